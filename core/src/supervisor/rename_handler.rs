//! Renames directories in a copy-on-write workspace.
//!
//! The overlay refuses to rename a directory of the workspace (EXDEV), because it would have to
//! store its origin. So rename(2) and its relatives are intercepted in such a run. All but
//! directories of the overlay continue in the kernel at once. A child moves a directory
//! (`files/workspace/move_tree.rs`). The child enters the sandbox's mounts and takes on the
//! restrictions and limits of the command, so it can do nothing that the command could not do. One
//! directory moves at a time, and the supervisor serves its other tasks meanwhile.
//!
//! No safety rests on data that is read from the caller. A path that changes, a link that is
//! swapped or a reused pid lead only to another directory that the caller could rename as well. A
//! caller with further restrictions of its own (Landlock, namespaces) gets the kernel's answer,
//! because the child would not have these restrictions.

use std::collections::VecDeque;
use std::ffi::CString;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{FileType, Mode, OFlags, RenameFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions};

use crate::files::workspace::move_tree::{self, NameInDir};
use crate::kernel::calling_process::{
    CallingProcess, mount_of, open_in_root, open_start, proc_path,
};
use crate::kernel::seccomp_notify::{InterceptedCall, NotifyAnswer, NotifyListener};
use crate::kernel::sys;
use crate::limits::Limits;
use crate::plan::wire::bytes::AbsPath;
use crate::sandbox::apply_restrictions::Restrictions;
use crate::sandbox::init::SandboxNamespaces;

/// landlock_restrict_self(2) is listed only to notice further restrictions.
pub const CALLS: [&str; 4] = ["rename", "renameat", "renameat2", "landlock_restrict_self"];

/// If more calls wait, further ones get the kernel's own answer.
const MAX_PENDING_RENAMES: usize = 4096;
/// At the end of the run the last move may take this long.
const LAST_MOVE_TIMEOUT: Duration = Duration::from_secs(5);

const FOLLOW_FLAGS: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);
const PATH_DIR_FLAGS: OFlags = FOLLOW_FLAGS.union(OFlags::DIRECTORY);

pub struct RenameHandler<'a> {
    workspace: AbsPath,
    namespaces: &'a SandboxNamespaces,
    restrictions: &'a Restrictions,
    limits: &'a Limits,
    waiting: VecDeque<InterceptedCall>,
    mover: Option<Mover>,
    /// A process has more restrictions than the child would have.
    restricted_further: bool,
    /// The answer to a call that this handler does not do. If init judges writes, the kernel must
    /// not read the caller's memory again. Then it is EXDEV, which the kernel has answered before.
    otherwise: NotifyAnswer,
}

/// The child that moves a directory and answers the call.
struct Mover {
    pid: Pid,
    handle: OwnedFd,
    call: InterceptedCall,
}

/// The arguments of a rename.
struct RenameCall {
    old: (i32, u64),
    new: (i32, u64),
    flags: RenameFlags,
}

impl<'a> RenameHandler<'a> {
    pub fn new(
        workspace: &AbsPath,
        namespaces: &'a SandboxNamespaces,
        restrictions: &'a Restrictions,
        limits: &'a Limits,
    ) -> RenameHandler<'a> {
        let (waiting, mover) = (VecDeque::new(), None);
        let otherwise = match restrictions.judges_writes() {
            true => NotifyAnswer::Fail(Errno::XDEV),
            false => NotifyAnswer::Continue,
        };
        RenameHandler {
            workspace: workspace.clone(),
            namespaces,
            restrictions,
            limits,
            waiting,
            mover,
            restricted_further: false,
            otherwise,
        }
    }

    /// Readable when a directory has been moved.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.mover.as_ref().map(|mover| mover.handle.as_fd())
    }

    /// Is the call one of [`CALLS`]?
    pub fn knows(call: &InterceptedCall) -> bool {
        i64::from(call.number) == libc::SYS_landlock_restrict_self || RenameCall::of(call).is_some()
    }

    /// A call arrived.
    pub fn take(&mut self, listener: &NotifyListener, call: InterceptedCall) {
        let Some(rename_call) = RenameCall::of(&call) else {
            self.restricted_further = true;
            return listener.answer(&call, NotifyAnswer::Continue);
        };
        if self.restricted_further
            || self.waiting.len() >= MAX_PENDING_RENAMES
            || !may_be_directory(&call, &rename_call)
        {
            return listener.answer(&call, self.otherwise);
        }
        self.waiting.push_back(call);
        self.turn(listener);
    }

    /// Starts the next move when the last one has ended.
    pub fn turn(&mut self, listener: &NotifyListener) {
        if !self.is_free(listener) {
            return;
        }
        while let Some(call) = self.waiting.pop_front() {
            match self.begin(listener, call) {
                Some(mover) => return self.mover = Some(mover),
                None => listener.answer(&call, self.otherwise),
            }
        }
    }

    fn is_free(&mut self, listener: &NotifyListener) -> bool {
        let Some(mover) = &self.mover else { return true };
        match rustix::process::waitpid(Some(mover.pid), WaitOptions::NOHANG) {
            Ok(None) | Err(Errno::INTR) => return false,
            Ok(Some(_)) | Err(_) => {}
        }
        // The child has answered, unless it was killed. Then this answer takes effect.
        listener.answer(&mover.call, NotifyAnswer::Fail(Errno::IO));
        self.mover = None;
        true
    }

    /// None: the kernel answers the call.
    fn begin(&self, listener: &NotifyListener, call: InterceptedCall) -> Option<Mover> {
        let rename_call = RenameCall::of(&call)?;
        let caller = CallingProcess::of(call.thread).ok()?;
        let process = caller.open_proc_file("", PATH_DIR_FLAGS).ok()?;
        if self.restricted_further || !self.namespaces.holds(process.as_fd()) {
            return None;
        }
        let (old, new) =
            (resolve(&caller, &call, rename_call.old)?, resolve(&caller, &call, rename_call.new)?);
        // Locks, masks and pins are separate mounts, and so is everything outside of the copy.
        let workspace = open_in_root(
            caller.root(),
            self.workspace.as_bytes(),
            PATH_DIR_FLAGS,
            ResolveFlags::NO_SYMLINKS,
        )
        .ok()?;
        let mount = mount_of(&workspace, c"").ok()?;
        let at = [mount_of(&old.dir, c""), mount_of(&new.dir, c""), mount_of(&old.dir, &old.name)];
        if at != [Ok(mount); 3] || !old.is_directory() || !listener.still_waits(&call) {
            return None;
        }
        let supervisor = rustix::process::getpid();
        let pid = sys::fork(|| {
            let moved = match self.become_like_the_command(supervisor) {
                Ok(()) => move_tree::rename(&old, &new, rename_call.flags, mount),
                Err(_) => NotifyAnswer::Continue,
            };
            let moved = if moved == NotifyAnswer::Continue { self.otherwise } else { moved };
            listener.answer(&call, moved);
            0
        });
        let pid = pid.ok()?;
        match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
            Ok(handle) => Some(Mover { pid, handle, call }),
            Err(_) => {
                end(pid);
                None
            }
        }
    }

    /// In the child: enters the sandbox's mounts, so that its mount points can not be moved or
    /// replaced, and takes on the same restrictions.
    fn become_like_the_command(&self, supervisor: Pid) -> Result<(), Errno> {
        self.limits.admit_self().map_err(|error| error.errno())?;
        self.namespaces.enter()?;
        self.restrictions.confine().map_err(|error| error.errno)?;
        // Entering cleared the death signal. The supervisor may have died since.
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        if rustix::process::getppid() == Some(supervisor) { Ok(()) } else { Err(Errno::SRCH) }
    }

    /// Every process has ended. A move that has begun is completed.
    pub fn finish(self) {
        let Some(mover) = self.mover else { return };
        let deadline = Instant::now() + LAST_MOVE_TIMEOUT;
        loop {
            let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now())).ok();
            let mut ended = [PollFd::new(&mover.handle, PollFlags::IN)];
            match rustix::event::poll(&mut ended, left.as_ref()) {
                Err(Errno::INTR) => {}
                _ => return end(mover.pid),
            }
        }
    }
}

fn end(child: Pid) {
    let _ = rustix::process::kill_process(child, Signal::KILL);
    while matches!(rustix::process::waitpid(Some(child), WaitOptions::empty()), Err(Errno::INTR)) {}
}

impl RenameCall {
    /// None: the call is no rename.
    fn of(call: &InterceptedCall) -> Option<RenameCall> {
        let [a, b, c, d, e, _] = call.arguments;
        match i64::from(call.number) {
            #[cfg(target_arch = "x86_64")]
            libc::SYS_rename => Some(RenameCall {
                old: (libc::AT_FDCWD, a),
                new: (libc::AT_FDCWD, b),
                flags: RenameFlags::empty(),
            }),
            libc::SYS_renameat => Some(RenameCall {
                old: (a as i32, b),
                new: (c as i32, d),
                flags: RenameFlags::empty(),
            }),
            libc::SYS_renameat2 => {
                let flags = RenameFlags::from_bits_retain(e as u32);
                Some(RenameCall { old: (a as i32, b), new: (c as i32, d), flags })
            }
            _ => None,
        }
    }
}

/// A quick check for every rename. It may be wrong for objects that are no directory, and costs a
/// few system calls.
fn may_be_directory(call: &InterceptedCall, rename_call: &RenameCall) -> bool {
    let look = || {
        let (dir, address) = rename_call.old;
        let path = call.path(address)?;
        let (start, scope) = if path.starts_with(b"/") {
            (
                rustix::fs::open(proc_path(call.thread, "root"), PATH_DIR_FLAGS, Mode::empty())?,
                ResolveFlags::IN_ROOT,
            )
        } else {
            (open_start(call.thread, dir)?, ResolveFlags::BENEATH)
        };
        match open_in_root(&start, &path, FOLLOW_FLAGS | OFlags::NOFOLLOW, scope) {
            Ok(found) => {
                Ok(FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode)
                    == FileType::Directory)
            }
            Err(Errno::XDEV) => Ok(true), // the path leads up; `resolve` decides
            Err(errno) => Err(errno),
        }
    };
    look() == Ok(true)
}

/// The directory that holds a name, resolved below the caller's root. None: the kernel has its own
/// answer to such a path.
fn resolve(
    caller: &CallingProcess,
    call: &InterceptedCall,
    (dir, address): (i32, u64),
) -> Option<NameInDir> {
    let path = call.path(address).ok()?;
    let (above, name) = split(&path)?;
    let dir = caller.open(dir, above, PATH_DIR_FLAGS).ok()?;
    Some(NameInDir { dir, name: CString::new(name).ok()? })
}

/// The directory part and the last name of a path. None where the kernel would not rename: the
/// root, `.` and `..`, nothing.
fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = path.iter().rposition(|byte| *byte != b'/')? + 1;
    let start = path[..end].iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    let name = &path[start..end];
    if matches!(name, b"." | b"..") {
        return None;
    }
    let above = &path[..start];
    Some((if above.is_empty() { b"." } else { above }, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_split_as_the_kernel_splits_it() {
        for (path, expected) in [
            (&b"a"[..], Some((&b"."[..], &b"a"[..]))),
            (b"a/", Some((b".", b"a"))),
            (b"/a", Some((b"/", b"a"))),
            (b"a/b//", Some((b"a/", b"b"))),
            (b"../b", Some((b"../", b"b"))),
            (b"a/.", None),
            (b"a/..", None),
            (b"..", None),
            (b"/", None),
            (b"", None),
        ] {
            assert_eq!(split(path), expected, "{path:?}");
        }
    }
}
