//! The landlock init: a process between the supervisor and the command, if the supervisor answers
//! the command's execs and there is no namespace.
//!
//! The end of the supervisor has to be the end of everything, also when it is killed: without it no
//! program can start any more. The kernel does not end the descendants of a process with it, so
//! this process does. It starts the command, adopts orphans, and reports the end of the command to
//! the supervisor. It kills all of them when the supervisor has ended.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicI64, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions};

use super::command::Command;
use super::enter::EnterError;
use super::init_channel::{self, InitMessage};
use crate::kernel::sys;
use crate::limits::descendants::end_descendants;

/// Runs as the landlock init. A failure before the command runs is stored in `failure`: a filter
/// may refuse every other way to report it.
pub fn run(
    become_command: &dyn Fn(Pid) -> Result<(), EnterError>,
    command: &Command,
    channel: OwnedFd,
    failure: &AtomicI64,
) -> i32 {
    match start(become_command, command, &channel, failure) {
        Ok(command) => sys::release_memory_and_run(supervise_command, command, channel),
        Err(_) => 125,
    }
}

fn start(
    become_command: &dyn Fn(Pid) -> Result<(), EnterError>,
    command: &Command,
    channel: &OwnedFd,
    failure: &AtomicI64,
) -> Result<Pid, Errno> {
    let own = rustix::process::getpid();
    rustix::process::set_child_subreaper(Some(own))?;
    // Signals are blocked: this one only wakes this process.
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
    let child = sys::fork_into(libc::CLONE_VFORK, || {
        let code = match become_command(own) {
            Ok(()) => i64::from(command.exec().raw_os_error()),
            Err(error) => error.code(),
        };
        failure.store(code, Ordering::SeqCst);
        125
    })?;
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
    sys::close_all_but(&channel);
    loop {
        if has_lost_supervisor(&channel) {
            end_descendants();
            return 125;
        }
        while let Ok(Some((pid, status))) =
            rustix::process::wait(WaitOptions::NOHANG | WaitOptions::UNTRACED)
        {
            if pid != command {
                continue;
            }
            let Some(message) = InitMessage::of_status(status) else { continue };
            let last = !matches!(message, InitMessage::Stopped(_));
            if init_channel::send(&channel, &message, &[]).is_ok() && last {
                return 0;
            }
        }
        sys::next_signal(None);
    }
}

fn has_lost_supervisor(channel: &OwnedFd) -> bool {
    let mut other = [PollFd::new(channel, PollFlags::empty())];
    let polled = rustix::event::poll(&mut other, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    polled.is_ok() && other[0].revents().contains(PollFlags::HUP)
}
