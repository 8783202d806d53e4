//! The landlock init: a process between the supervisor and the command, if the supervisor answers
//! the command's execs and there is no namespace.
//!
//! The end of the supervisor has to be the end of everything, also when it is killed: without it no
//! program can start any more. The kernel does not end the descendants of a process with it, so
//! this process does. It starts the command, adopts orphans, and reports the end of the command to
//! the supervisor. It kills all of them when the supervisor has ended.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{DumpableBehavior, Pid, PidfdFlags, Signal, WaitOptions};

use super::command::Command;
use super::enter::{EnterError, EnterStep, Restrictions};
use super::init_channel::{self, InitMessage};
use crate::files::writes::{self, RefusedWrite, Writer};
use crate::kernel::seccomp_notify::{
    InterceptedCall, MAX_FORWARDED_BYTES, NextCall, NotifyListener,
};
use crate::kernel::sys;
use crate::limits::descendants::end_descendants;

/// Runs as the landlock init. A failure before the command runs is stored in `failure`: a filter
/// may refuse every other way to report it. With a writer this process does the writes of the
/// command.
pub fn run(
    become_command: &dyn Fn(Pid) -> Result<(), EnterError>,
    command: &Command,
    writer: Option<(Writer, &Restrictions)>,
    channel: OwnedFd,
    failure: &AtomicI64,
) -> i32 {
    let confined = writer.as_ref().map_or(Ok(()), |(_, restrictions)| {
        restrictions.confine_writer()?;
        // The command has the same user: only this keeps it from tracing this process.
        rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
            .map_err(|errno| EnterError { step: EnterStep::Landlock, errno })
    });
    if let Err(error) = confined {
        failure.store(error.code(), Ordering::SeqCst);
        return 125;
    }
    let started = start(become_command, command, &channel, failure);
    match (started, writer) {
        (Ok(command), None) => sys::release_memory_and_run(supervise_command, command, channel),
        (Ok(command), Some((mut writer, restrictions))) => {
            let rules = restrictions.rules_beyond_init();
            let limited = rules.map_or(Ok(()), |rules| writer.limit_reading_proc(rules));
            limited.and_then(|()| supervise_and_write(command, &channel, writer)).unwrap_or(125)
        }
        (Err(_), _) => 125,
    }
}

/// Runs until the command or the supervisor ends, and does the writes of the command.
fn supervise_and_write(command: Pid, channel: &OwnedFd, mut writer: Writer) -> Result<i32, Errno> {
    let Some((InitMessage::Listening, descriptors)) = init_channel::receive(channel, true)? else {
        return Err(Errno::PROTO);
    };
    let [listener, calls] = <[OwnedFd; 2]>::try_from(descriptors).map_err(|_| Errno::PROTO)?;
    sys::wake_listener_in_turn(listener.as_fd());
    let listener = NotifyListener::new(listener);
    let signals = sys::signal_descriptor()?;
    let mut is_over = false;
    let mut last_retry = Instant::now();
    loop {
        // Without staged files or a listener another descriptor takes their places.
        let closed = writer.closed_files().unwrap_or(signals.as_fd());
        let waited_for = if is_over { signals.as_fd() } else { listener.fd() };
        let mut ready = [signals.as_fd(), calls.as_fd(), waited_for, closed]
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let pause = Timespec { tv_sec: 0, tv_nsec: writes::WAITING_INTERVAL.subsec_nanos().into() };
        let pause = writer.is_waiting().then_some(&pause);
        match rustix::event::poll(&mut ready, pause) {
            Err(Errno::INTR) => continue,
            polled => polled?,
        };
        let [by_signal, by_supervisor, by_call, _] =
            ready.each_ref().map(|fd| !fd.revents().is_empty());
        if last_retry.elapsed() >= writes::WAITING_INTERVAL {
            for refused in writer.retry(&listener) {
                report(&calls, &refused)?;
            }
            last_retry = Instant::now();
        }
        if by_signal {
            sys::received_signals(signals.as_fd()).for_each(drop);
            place_closed(&mut writer, &calls)?;
            if let Some(code) = reap(command, channel) {
                return Ok(code);
            }
        }
        place_closed(&mut writer, &calls)?;
        if by_supervisor {
            let mut bytes = [0; MAX_FORWARDED_BYTES];
            match rustix::net::recv(&calls, &mut bytes, RecvFlags::DONTWAIT) {
                Ok((_, 0)) | Err(Errno::CONNRESET) => {
                    end_descendants();
                    return Ok(125);
                }
                Ok((_, length)) => {
                    if let Some(call) = InterceptedCall::parse(&bytes[..length]) {
                        serve(&mut writer, &listener, &calls, &call)?;
                    }
                }
                Err(_) => {}
            }
        }
        if by_call && !is_over {
            match listener.next(false)? {
                // The supervisor sends it back.
                NextCall::Call(call) if writer.is_observed => call.send(calls.as_fd())?,
                NextCall::Call(call) => serve(&mut writer, &listener, &calls, &call)?,
                NextCall::Closed => is_over = true,
                NextCall::Nothing | NextCall::Message(_) => {}
            }
        }
    }
}

/// Does a write, or sends another call to the supervisor.
fn serve(
    writer: &mut Writer,
    listener: &NotifyListener,
    calls: &OwnedFd,
    call: &InterceptedCall,
) -> Result<(), Errno> {
    if !writes::call::is_write_call(call) {
        return call.send(calls.as_fd());
    }
    match writer.serve(listener, call) {
        Some(refused) => report(calls, &refused),
        None => Ok(()),
    }
}

/// Before another call is answered, what was closed before it is in place.
fn place_closed(writer: &mut Writer, calls: &OwnedFd) -> Result<(), Errno> {
    for refused in writer.place_closed()? {
        report(calls, &refused)?;
    }
    Ok(())
}

fn report(calls: &OwnedFd, refused: &RefusedWrite) -> Result<(), Errno> {
    rustix::net::send(calls, &refused.bytes(), SendFlags::NOSIGNAL).map(drop)
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
        // The supervisor and this process read the memory of the command.
        let _ = rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable);
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
        if let Some(code) = reap(command, &channel) {
            return code;
        }
        sys::next_signal(None);
    }
}

/// Reaps processes. Some: the command or the supervisor has ended.
fn reap(command: Pid, channel: &OwnedFd) -> Option<i32> {
    if has_lost_supervisor(channel) {
        end_descendants();
        return Some(125);
    }
    while let Ok(Some((pid, status))) =
        rustix::process::wait(WaitOptions::NOHANG | WaitOptions::UNTRACED)
    {
        if pid != command {
            continue;
        }
        let Some(message) = InitMessage::of_status(status) else { continue };
        let last = !matches!(message, InitMessage::Stopped(_));
        if init_channel::send(channel, &message, &[]).is_ok() && last {
            return Some(0);
        }
    }
    None
}

fn has_lost_supervisor(channel: &OwnedFd) -> bool {
    let mut other = [PollFd::new(channel, PollFlags::empty())];
    let polled = rustix::event::poll(&mut other, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    polled.is_ok() && other[0].revents().contains(PollFlags::HUP)
}
