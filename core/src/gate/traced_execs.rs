//! Allowed execs, from the answer to the exec stop.
//!
//! The gate traces the process, because the kernel reads path and arguments again after the answer.
//! At the exec stop `gate/verify_exec.rs` compares the new program with what was judged.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal};

use super::expected_exec::{self, ExpectedExec};
use super::{DecisionReason, ExecGate, verify_exec};
use crate::journal::event::exec::{ExecProcess, ExecResult};
use crate::kernel::calling_process;
use crate::kernel::seccomp_notify::{InterceptedCall, NotifyAnswer, NotifyListener};
use crate::kernel::sys::trace::{self, TraceStop};

/// An exec that was allowed.
pub(super) struct Admitted {
    call: InterceptedCall,
    expected: ExpectedExec,
    decision_reason: DecisionReason,
    /// Its directory in /proc, opened while the kernel works. None: the process has ended.
    own: Option<OwnedFd>,
    /// It was not what was judged, and was killed.
    killed: bool,
}

impl ExecGate {
    /// Allows an exec. The call was just seen to wait.
    pub(super) fn admit(
        &mut self,
        listener: &NotifyListener,
        call: InterceptedCall,
        expected: ExpectedExec,
        decision_reason: DecisionReason,
    ) {
        self.shells.note(&expected, &decision_reason);
        let mut admitted = Admitted { call, expected, decision_reason, own: None, killed: false };
        // One exec of each process at a time: two would deadlock. A thread that execs holds the
        // lock that PTRACE_SEIZE of a sibling needs (cred_guard_mutex), and waits until its
        // siblings have ended. A traced sibling has ended only when the tracer has reaped it.
        let process = admitted.expected.pid;
        if self.traced.iter().any(|other| other.expected.pid == process) {
            return self.queued.push(admitted);
        }
        match trace::seize(call.thread) {
            Ok(()) => {
                // The interrupt does not end the waiting call: the filter lets only a kill do that
                // (WAIT_KILLABLE_RECV). It stops the thread if the exec fails and the old program
                // goes on.
                let _ = trace::interrupt(call.thread);
                listener.answer(&call, NotifyAnswer::Continue);
                // Done while the kernel works. The process is traced, so its pid is not reused.
                admitted.own = calling_process::proc_directory(process).ok();
                admitted.expected.process =
                    admitted.expected.process.or_else(|| ExecProcess::of(process).ok());
                self.traced.push(admitted);
            }
            Err(_) if self.plan.trace => {
                admitted.expected.complete(call.thread);
                listener.answer(&call, NotifyAnswer::Continue);
                let Admitted { expected, decision_reason, .. } = admitted;
                self.record(expected, ExecResult::Ran { verified: false }, decision_reason);
            }
            Err(_) if !listener.still_waits(&call) => {} // the process was killed
            Err(_) => {
                let why = match expected_exec::is_traced(call.thread) {
                    false => {
                        "the kernel denies access to the process (check \
                        kernel.yama.ptrace_scope)"
                    }
                    true => "another program traces it",
                };
                let reason = Some(format!("the started program could not be checked: {why}"));
                admitted.expected.complete(call.thread);
                self.deny(
                    listener,
                    &call,
                    admitted.expected,
                    DecisionReason { reason, ..admitted.decision_reason },
                );
            }
        }
    }

    pub(super) fn check_traced(&mut self, listener: &NotifyListener) {
        let numbers: Vec<(u32, u32)> =
            self.traced.iter().map(|traced| (traced.call.thread, traced.expected.pid)).collect();
        for (thread, process) in numbers {
            let found = trace::poll_traced(thread);
            let is_there = found.is_ok();
            // A thread that execs takes over the pid of its process. This pid is not traced until
            // then.
            let (pid, found) = match found {
                Ok(None) | Err(Errno::CHILD) if process != thread => {
                    (process, trace::poll_traced(process))
                }
                found => (thread, found),
            };
            match found {
                Ok(Some(traced)) => self.handle_trace_stop(listener, pid, traced),
                Ok(None) => {}
                Err(_) if is_there => {}
                Err(_) => self.ended(listener, thread),
            }
        }
    }

    fn handle_trace_stop(&mut self, listener: &NotifyListener, pid: u32, traced: TraceStop) {
        match traced {
            TraceStop::Executed { former } => {
                let Some(index) =
                    self.traced.iter().position(|admitted| admitted.call.thread == former)
                else {
                    return kill(pid); // the gate has not allowed it
                };
                let deadline = Instant::now() + Duration::from_millis(self.plan.timeout_ms.into());
                let Admitted { expected, own, .. } = &mut self.traced[index];
                let difference = verify_exec::difference(
                    expected,
                    pid,
                    own.as_ref(),
                    &mut self.caller_view.memory,
                    deadline,
                );
                match difference {
                    None if trace::detach(pid).is_ok() => {
                        self.leave(listener, index, ExecResult::Ran { verified: true })
                    }
                    // It was killed meanwhile. The exec gave the thread the pid of its process, and
                    // its end is reported under that.
                    _ if !trace::is_stopped(pid) => self.traced[index].call.thread = pid,
                    None => {
                        kill(pid);
                        self.traced[index].call.thread = pid;
                    }
                    Some(what) => {
                        let admitted = &mut self.traced[index];
                        admitted.expected.complete(pid);
                        kill(pid);
                        admitted.killed = true;
                        admitted.call.thread = pid;
                        let observed = admitted.expected.observed();
                        let decision_reason = admitted.decision_reason.clone();
                        self.record_exec(observed, ExecResult::Attack(what), decision_reason);
                    }
                }
            }
            TraceStop::Interrupted => {
                let index = self.traced.iter().position(|admitted| admitted.call.thread == pid);
                if let Some(index) = index {
                    self.traced[index].expected.complete(pid);
                }
                // A process that was killed meanwhile stays traced until it is reaped.
                if trace::detach(pid).is_ok()
                    && let Some(index) = index
                {
                    self.leave(listener, index, ExecResult::Failed);
                }
            }
            TraceStop::Signalled(signal) => {
                let _ = trace::resume(pid, signal);
            }
            TraceStop::Ended => self.ended(listener, pid),
        }
    }

    /// A traced process has ended and was reaped.
    fn ended(&mut self, listener: &NotifyListener, pid: u32) {
        let is_it =
            |admitted: &Admitted| admitted.call.thread == pid || admitted.expected.pid == pid;
        if let Some(index) = self.traced.iter().position(is_it) {
            self.leave(listener, index, ExecResult::Failed);
        }
    }

    /// The exec has succeeded or failed. The next exec of its process starts.
    fn leave(&mut self, listener: &NotifyListener, index: usize, result: ExecResult) {
        let Admitted { expected, decision_reason, killed, .. } = self.traced.swap_remove(index);
        let process = expected.pid;
        if !killed {
            self.record(expected, result, decision_reason);
        }
        while !self.traced.iter().any(|traced| traced.expected.pid == process)
            && let Some(index) =
                self.queued.iter().position(|queued| queued.expected.pid == process)
        {
            let Admitted { call, expected, decision_reason, .. } = self.queued.remove(index);
            if listener.still_waits(&call) {
                self.admit(listener, call, expected, decision_reason);
            }
        }
    }
}

fn kill(pid: u32) {
    if let Some(pid) = Pid::from_raw(pid as i32) {
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
}
