//! The part of init that does the writes of the command, until the command or the supervisor ends.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Pid, WaitOptions};

use super::init_channel::{self, InitMessage};
use crate::files::writes::{self, RefusedWrite, Served, Writer};
use crate::kernel::pid_namespace::PidNamespace;
use crate::kernel::seccomp_notify::{
    InterceptedCall, MAX_FORWARDED_BYTES, NextCall, NotifyListener,
};
use crate::kernel::{socket_pair, sys};
use crate::limits::descendants::end_descendants;

/// Called by the supervisor: from now on init receives the calls, and sends those that are no
/// writes. `namespace`: the pid namespace of init, if it has its own.
pub fn hand_listener(
    channel: &OwnedFd,
    listener: &mut NotifyListener,
    namespace: Option<PidNamespace>,
) -> Result<(), Errno> {
    let (ours, theirs) = socket_pair::pair()?;
    let descriptors = [listener.listener(), theirs.as_fd()];
    init_channel::send(channel, &InitMessage::Listening, &descriptors)?;
    listener.forward_from(ours, namespace);
    Ok(())
}

/// Runs in init until the command or the supervisor ends.
pub fn run(command: Pid, channel: &OwnedFd, mut writer: Writer) -> Result<i32, Errno> {
    let kept: Vec<BorrowedFd<'_>> =
        [channel.as_fd()].into_iter().chain(writer.descriptors()).collect();
    sys::close_all_but(&kept);
    let Some((InitMessage::Listening, descriptors)) = init_channel::receive(channel, true)? else {
        return Err(Errno::PROTO);
    };
    let [listener, calls] = <[OwnedFd; 2]>::try_from(descriptors).map_err(|_| Errno::PROTO)?;
    sys::wake_listener_in_turn(listener.as_fd());
    sys::release_memory();
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
        // Without it the listener has only hung up, and a receive would wait.
        let has_call = ready[2].revents().contains(PollFlags::IN);
        if last_retry.elapsed() >= writes::WAITING_INTERVAL {
            for refused in writer.retry(&listener) {
                report(&calls, &refused)?;
            }
            last_retry = Instant::now();
        }
        if by_signal {
            let received = sys::received_signals(signals.as_fd());
            let has_reader = received.filter(|one| one.signal == libc::SIGIO).count() > 0;
            place_closed(&mut writer, &calls)?;
            if has_reader {
                writer.release_leases();
            }
            let mut end = || {
                for refused in writer.drop_staged() {
                    let _ = report(&calls, &refused);
                }
            };
            if let Some(code) = reap(command, channel, &mut end) {
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
            match listener.next(has_call)? {
                // The supervisor sends it back.
                NextCall::Call(call) if writer.is_observed => call.send(calls.as_fd())?,
                NextCall::Call(call) => serve(&mut writer, &listener, &calls, &call)?,
                NextCall::Closed => is_over = true,
                NextCall::Nothing | NextCall::Message(_) | NextCall::RenameInCopy(_) => {}
            }
        }
        for changed in writer.take_changed() {
            send(&calls, &changed.bytes())?;
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
        Served::Done => Ok(()),
        Served::Refused(refused) => report(calls, &refused),
        Served::RenameInCopy => call.send_rename_in_copy(calls.as_fd()),
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
    send(calls, &refused.bytes())
}

fn send(calls: &OwnedFd, message: &[u8]) -> Result<(), Errno> {
    rustix::net::send(calls, message, SendFlags::NOSIGNAL).map(drop)
}

/// Reaps processes. Some: the command or the supervisor has ended. `end`: called when the command
/// has ended, before the supervisor knows it.
pub fn reap(command: Pid, channel: &OwnedFd, end: &mut dyn FnMut()) -> Option<i32> {
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
        if last {
            end();
        }
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
