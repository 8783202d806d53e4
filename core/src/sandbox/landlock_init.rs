//! The landlock init: a process between the supervisor and the command, if the supervisor answers
//! the command's execs and there is no namespace.
//!
//! The end of the supervisor has to be the end of everything, also when it is killed: without it no
//! program can start any more. The kernel does not end the descendants of a process with it, so
//! this process does. It starts the command, adopts orphans, and reports the end of the command to
//! the supervisor. It kills all of them when the supervisor has ended.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicI64, Ordering};

use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Pid, PidfdFlags, Signal, WaitOptions};

use super::apply_restrictions::{EnterError, EnterStep, Restrictions};
use super::command::Command;
use super::init_channel::{self, InitMessage};
use super::write_server;
use crate::files::writes::Writer;
use crate::kernel::sys;

/// Runs as the landlock init. A failure before the command runs is stored in `failure`: a filter
/// may refuse every other way to report it. With a writer this process does the writes of the
/// command.
pub fn run(
    become_command: &dyn Fn(Pid) -> Result<(), EnterError>,
    command: &Command,
    restrictions: &Restrictions,
    writer: Option<Writer>,
    channel: OwnedFd,
    failure: &AtomicI64,
) -> i32 {
    let confined = writer.as_ref().map_or(Ok(()), |_| {
        restrictions.confine_writer()?;
        // The command has the same user: only this keeps it from tracing this process.
        rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
            .map_err(|errno| EnterError { step: EnterStep::Landlock, errno })
    });
    if let Err(error) = confined {
        failure.store(error.code(), Ordering::SeqCst);
        return 125;
    }
    let copies_memory = restrictions.has_exec_answered();
    let started = start(become_command, command, copies_memory, &channel, failure);
    match (started, writer) {
        (Ok(command), None) => sys::release_memory_and_run(supervise_command, command, channel),
        (Ok(command), Some(mut writer)) => {
            let rules = restrictions.rules_beyond_init();
            let limited = rules.map_or(Ok(()), |rules| writer.limit_reading_proc(rules));
            limited.and_then(|()| write_server::run(command, &channel, writer)).unwrap_or(125)
        }
        (Err(_), _) => 125,
    }
}

/// `copies_memory`: another process reads the memory of the command before its exec is done. It must
/// not read the memory of this process.
fn start(
    become_command: &dyn Fn(Pid) -> Result<(), EnterError>,
    command: &Command,
    copies_memory: bool,
    channel: &OwnedFd,
    failure: &AtomicI64,
) -> Result<Pid, Errno> {
    let own = rustix::process::getpid();
    rustix::process::set_child_subreaper(Some(own))?;
    // Signals are blocked: this one only wakes this process.
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
    let run = || {
        let code = match become_command(own) {
            Ok(()) => i64::from(command.exec().raw_os_error()),
            Err(error) => error.code(),
        };
        failure.store(code, Ordering::SeqCst);
        125
    };
    let child = match copies_memory {
        true => sys::fork_into(libc::CLONE_VFORK, || {
            let _ = rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable);
            run()
        }),
        false => sys::spawn_sharing_memory(run),
    }?;
    if failure.load(Ordering::SeqCst) != 0 {
        rustix::process::waitpid(Some(child), WaitOptions::empty())?;
        return Err(Errno::CANCELED);
    }
    let handle = rustix::process::pidfd_open(child, PidfdFlags::empty())?;
    init_channel::send(channel, &InitMessage::Started, &[handle.as_fd()])?;
    Ok(child)
}

/// Runs until the command or the supervisor ends.
fn supervise_command(command: Pid, channel: OwnedFd) -> i32 {
    sys::close_all_but(&[channel.as_fd()]);
    loop {
        if let Some(code) = write_server::reap(command, &channel, &mut || {}) {
            return code;
        }
        sys::next_signal(None);
    }
}
