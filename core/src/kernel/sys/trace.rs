//! ptrace(2), as far as the exec gate needs it. Every call must come from the thread that attached;
//! the program has only one.

use std::ffi::c_void;
use std::ptr;

use rustix::io::Errno;
use rustix::process::Pid;

use super::{Result, check};

const PTRACE_EVENT_EXEC: i32 = 4;
const PTRACE_EVENT_STOP: i32 = 128;

/// What happened to a traced thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceStop {
    /// It executes a new program; no instruction of it has run. `former` is its thread id before
    /// the exec.
    Executed {
        former: u32,
    },
    /// It did not execute a program and returns to the old one.
    Interrupted,
    /// A signal is about to be delivered.
    Signalled(i32),
    Ended,
}

impl TraceStop {
    /// From a status of wait(2).
    pub fn of(pid: u32, status: i32) -> TraceStop {
        if !libc::WIFSTOPPED(status) {
            return TraceStop::Ended;
        }
        match status >> 16 {
            PTRACE_EVENT_EXEC => {
                TraceStop::Executed { former: former_thread_id(pid).unwrap_or(pid) }
            }
            PTRACE_EVENT_STOP => TraceStop::Interrupted,
            _ => TraceStop::Signalled(libc::WSTOPSIG(status)),
        }
    }
}

fn request(request: u32, pid: u32, data: usize) -> Result<()> {
    let none: *mut c_void = ptr::null_mut();
    // SAFETY: these requests take numbers; the address is not used.
    check(unsafe { libc::ptrace(request as _, pid as libc::pid_t, none, data as *mut c_void) }
        as libc::c_long)
    .map(drop)
}

/// Attaches to a thread, which continues to run. The thread is killed if this process ends.
pub fn seize(thread: u32) -> Result<()> {
    request(
        libc::PTRACE_SEIZE as u32,
        thread,
        (libc::PTRACE_O_TRACEEXEC | libc::PTRACE_O_EXITKILL) as usize,
    )
}

/// Stops the thread when it next returns to its program.
pub fn interrupt(thread: u32) -> Result<()> {
    request(libc::PTRACE_INTERRUPT as u32, thread, 0)
}

/// Detaches from a stopped thread.
pub fn detach(pid: u32) -> Result<()> {
    request(libc::PTRACE_DETACH as u32, pid, 0)
}

/// False if the thread was killed meanwhile.
pub fn is_stopped(pid: u32) -> bool {
    former_thread_id(pid).is_ok()
}

/// Resumes a stopped thread, with a signal or none.
pub fn resume(pid: u32, signal: i32) -> Result<()> {
    request(libc::PTRACE_CONT as u32, pid, signal as usize)
}

/// The instruction and stack pointer of a stopped thread.
pub struct Registers {
    pub instruction: u64,
    pub stack: u64,
}

/// For a thread at its exec stop: the entry point of the new program and its stack.
pub fn registers_of(pid: u32) -> Result<Registers> {
    /// The part of `struct ptrace_syscall_info` that every stop fills.
    #[repr(C)]
    #[derive(Default)]
    struct SyscallInfo {
        kind: u8,
        flags: [u8; 3],
        arch: u32,
        instruction_pointer: u64,
        stack_pointer: u64,
    }
    const PTRACE_GET_SYSCALL_INFO: u32 = 0x420e;
    let mut info = SyscallInfo::default();
    // SAFETY: the kernel writes at most as many bytes as the third argument says.
    check(unsafe {
        libc::ptrace(
            PTRACE_GET_SYSCALL_INFO as _,
            pid as libc::pid_t,
            size_of::<SyscallInfo>() as *mut c_void,
            ptr::from_mut(&mut info),
        )
    } as libc::c_long)?;
    Ok(Registers { instruction: info.instruction_pointer, stack: info.stack_pointer })
}

fn former_thread_id(pid: u32) -> Result<u32> {
    let mut number: libc::c_ulong = 0;
    let none: *mut c_void = ptr::null_mut();
    // SAFETY: the kernel writes one unsigned long to it.
    check(unsafe {
        libc::ptrace(
            libc::PTRACE_GETEVENTMSG as _,
            pid as libc::pid_t,
            none,
            ptr::from_mut(&mut number),
        )
    } as libc::c_long)?;
    Ok(number as u32)
}

/// Waits for every child and traced thread until `pid` has ended, or until none is left.
pub fn wait_until_ended(pid: Pid) {
    loop {
        let mut status = 0;
        // SAFETY: the kernel writes one int.
        let found = unsafe { libc::waitpid(-1, &mut status, libc::__WALL) };
        match check(found.into()) {
            Ok(_) if found == pid.as_raw_nonzero().get() && !libc::WIFSTOPPED(status) => return,
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

/// The state of one traced thread, without waiting for it. Errno::CHILD: no such thread is traced.
pub fn poll_traced(pid: u32) -> Result<Option<TraceStop>> {
    let mut status = 0;
    loop {
        // SAFETY: the kernel writes one int.
        let found =
            unsafe { libc::waitpid(pid as libc::pid_t, &mut status, libc::WNOHANG | libc::__WALL) };
        match check(found.into()) {
            Err(Errno::INTR) => {}
            found => return found.map(|found| (found > 0).then(|| TraceStop::of(pid, status))),
        }
    }
}
