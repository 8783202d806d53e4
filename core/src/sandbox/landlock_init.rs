//! The keeper: between the supervisor and a command that has no init of its own, where the
//! command's execs are answered for.
//!
//! The supervisor's end has to be the end of everything, also when it is killed: without it no
//! program can be started any more. Nothing in the kernel ends the descendants of a process with
//! it, so a process that does nothing else waits for that: it starts the command, adopts what that
//! leaves behind, tells the supervisor how it ends, and kills all of them when there is nobody left
//! to tell.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicI64, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions};

use super::command::Command;
use super::enter::FenceError;
use super::init_channel::{self, InitMessage};
use crate::kernel::sys;
use crate::limits::descendants::end_descendants;

/// The life of a keeper, in the process that became one. What goes wrong before the command runs is
/// left in `failure`: a filter may refuse every other way to say it.
pub fn keep(
    become_command: &dyn Fn(Pid) -> Result<(), FenceError>,
    command: &Command,
    channel: OwnedFd,
    failure: &AtomicI64,
) -> i32 {
    match start(become_command, command, &channel, failure) {
        Ok(command) => sys::release_memory_and_run(mourn, command, channel),
        Err(_) => 125,
    }
}

fn start(
    become_command: &dyn Fn(Pid) -> Result<(), FenceError>,
    command: &Command,
    channel: &OwnedFd,
    failure: &AtomicI64,
) -> Result<Pid, Errno> {
    let own = rustix::process::getpid();
    rustix::process::set_child_subreaper(Some(own))?;
    // Signals are held: this one only wakes us.
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

/// Until the command ends, or the supervisor does.
fn mourn(command: Pid, channel: OwnedFd) -> i32 {
    sys::close_all_but(&channel);
    loop {
        if is_alone(&channel) {
            end_descendants();
            return 125;
        }
        while let Ok(Some((pid, status))) =
            rustix::process::wait(WaitOptions::NOHANG | WaitOptions::UNTRACED)
        {
            if pid != command {
                continue;
            }
            let Some(word) = InitMessage::of_status(status) else { continue };
            let last = !matches!(word, InitMessage::Stopped(_));
            if init_channel::send(&channel, &word, &[]).is_ok() && last {
                return 0;
            }
        }
        sys::next_signal(None);
    }
}

fn is_alone(channel: &OwnedFd) -> bool {
    let mut other = [PollFd::new(channel, PollFlags::empty())];
    let polled = rustix::event::poll(&mut other, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    polled.is_ok() && other[0].revents().contains(PollFlags::HUP)
}
