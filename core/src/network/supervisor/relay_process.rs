//! The relay process, from the supervisor's side: keeps the sockets, starts the relay at the first
//! connection, and reads its decisions.
//!
//! The HTTP helper ([`crate::network::supervisor::http_helper`]) is read in the same way.
//!
//! A relay that ends or sends an invalid message is not replaced. No process has its sockets any
//! more, so connections are refused from then on.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions};

pub use super::helper_process::HelperProcess;
use super::helper_process::{HelperMessage, is_ready};
use super::host_questions::HostQuestions;
use super::http_helper::{self, HttpHelper, HttpHelperError};
use super::loopback_proxy::LoopbackProxy;
use super::proxy_password::ProxyToken;
use super::published_ports::CommandNetwork;
use super::socket_processes::SocketProcesses;
use crate::approve::open_questions::OpenQuestions;
use crate::journal::event::network::NetworkDecision;
use crate::kernel::sys::{self, ExecStrings};
use crate::kernel::{child_fds, errno_names, socket_pair};
use crate::network::relay::relay_messages::{RelayRequest, SupervisorReply};

/// More messages are read in the next turn.
const MAX_MESSAGES_PER_TURN: usize = 64;
/// Pause before an unsent reply is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(10);
/// Denied hosts and ports that were printed.
const MAX_REPORTED_DENIALS: usize = 1024;

pub enum RelayEvent {
    /// In the order of the decisions.
    Decisions(Vec<NetworkDecision>),
    /// The relay ended, and how.
    RelayLost(String),
    /// The HTTP helper ended, and how.
    HttpHelperLost(String),
}

pub struct RelayProcess<'a> {
    plan: &'a OwnedFd,
    /// The password of the proxy. None: there is no proxy.
    token: Option<ProxyToken>,
    state: RelayState,
    processes: SocketProcesses,
    questions: HostQuestions,
    /// The HTTP helper.
    http: Option<HelperProcess>,
    /// The deadline of the helper's first message, while that is outstanding.
    http_ready_deadline: Option<Instant>,
    denied: BTreeSet<String>,
    /// The proxy listener, and a descriptor that is ready when a client or a relay message arrives.
    loopback_proxy: Option<(LoopbackProxy, OwnedFd)>,
}

enum RelayState {
    /// No connection yet. `connected` becomes readable at the first one.
    Waiting {
        sockets: Vec<OwnedFd>,
        command_network: Option<CommandNetwork>,
        /// The relay's socket to the HTTP helper.
        handover: Option<OwnedFd>,
        connected: OwnedFd,
    },
    Running(HelperProcess),
    Gone,
}

impl<'a> RelayProcess<'a> {
    /// Most commands connect to nothing, so the relay starts at the first connection. Until then
    /// connections wait in the kernel.
    pub fn new(
        sockets: Vec<OwnedFd>,
        command_network: Option<CommandNetwork>,
        token: Option<ProxyToken>,
        plan: &'a OwnedFd,
        processes: SocketProcesses,
        questions: HostQuestions,
        http: Option<HttpHelper>,
    ) -> Result<RelayProcess<'a>, Errno> {
        let connected = epoll::create(CreateFlags::CLOEXEC)?;
        for socket in &sockets {
            epoll::add(&connected, socket, EventData::new_u64(0), EventFlags::IN)?;
        }
        let (http, handover, is_starting) = match http.map(HttpHelper::into_parts) {
            Some((helper, handover, is_starting)) => (Some(helper), Some(handover), is_starting),
            None => (None, None, false),
        };
        let http_ready_deadline = is_starting.then(|| Instant::now() + http_helper::READY_TIMEOUT);
        let state = RelayState::Waiting { sockets, command_network, handover, connected };
        Ok(RelayProcess {
            plan,
            token,
            state,
            processes,
            questions,
            http,
            http_ready_deadline,
            denied: BTreeSet::new(),
            loopback_proxy: None,
        })
    }

    /// The relay of a command without a network namespace.
    pub fn at_loopback_proxy(
        loopback_proxy: LoopbackProxy,
        token: Option<ProxyToken>,
        plan: &'a OwnedFd,
        processes: SocketProcesses,
        questions: HostQuestions,
    ) -> Result<RelayProcess<'a>, Errno> {
        let ready = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&ready, loopback_proxy.fd(), EventData::new_u64(0), EventFlags::IN)?;
        Ok(RelayProcess {
            loopback_proxy: Some((loopback_proxy, ready)),
            ..RelayProcess::new(Vec::new(), None, token, plan, processes, questions, None)?
        })
    }

    pub fn track_branches(&mut self, command: Pid) {
        self.processes.track_branches(command);
    }

    /// The child of the command that the connecting process descends from.
    pub fn branch_of(&self, decision: &NetworkDecision) -> Option<u32> {
        decision.pid.and_then(|pid| self.processes.branch_of(pid))
    }

    pub fn uses_loopback_proxy(&self) -> bool {
        self.loopback_proxy.is_some()
    }

    /// Adds source addresses of the command's connections to the proxy.
    pub fn expect(&mut self, processes: Vec<SocketAddr>) {
        if let Some((loopback_proxy, _)) = &mut self.loopback_proxy {
            loopback_proxy.expect(processes);
        }
    }

    /// True while a client waits for the relay.
    fn has_waiting_client(&self) -> bool {
        self.loopback_proxy.as_ref().is_some_and(|(loopback_proxy, _)| loopback_proxy.is_waiting())
    }

    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        if let Some((loopback_proxy, ready)) = &self.loopback_proxy {
            return (!loopback_proxy.is_waiting()).then(|| ready.as_fd());
        }
        match &self.state {
            RelayState::Waiting { connected, .. } => Some(connected.as_fd()),
            RelayState::Running(relay) => Some(relay.socket.as_fd()),
            RelayState::Gone => None,
        }
    }

    /// The socket of the HTTP helper.
    pub fn http_helper_fd(&self) -> Option<BorrowedFd<'_>> {
        self.http.as_ref().map(|http| http.socket.as_fd())
    }

    pub fn is_due(&self) -> bool {
        self.is_ready() || self.http_helper_fd().is_some_and(|fd| is_ready(fd, Duration::ZERO))
    }

    /// True if the relay sent a message, or if a connection waits for it.
    fn is_ready(&self) -> bool {
        self.has_waiting_client() || self.fd().is_some_and(|fd| is_ready(fd, Duration::ZERO))
    }

    pub fn deadline(&self) -> Option<Instant> {
        let unsent = matches!(&self.state, RelayState::Running(relay) if relay.has_unsent());
        let again = (unsent || self.has_waiting_client()).then(|| Instant::now() + RETRY_PAUSE);
        self.questions.deadline().into_iter().chain(again).chain(self.http_ready_deadline).min()
    }

    /// Never blocks. `open_questions`: used for questions about hosts.
    pub fn turn(&mut self, open_questions: Option<&mut OpenQuestions>) -> Vec<RelayEvent> {
        let mut events = Vec::new();
        self.serve_relay(open_questions, &mut events);
        self.receive_http(&mut events);
        events
    }

    fn serve_relay(
        &mut self,
        mut open_questions: Option<&mut OpenQuestions>,
        events: &mut Vec<RelayEvent>,
    ) {
        if let (RelayState::Running(relay), Some(open_questions)) =
            (&mut self.state, open_questions.as_deref_mut())
        {
            for reply in self.questions.turn(open_questions) {
                relay.reply(&reply);
            }
        }
        if let RelayState::Running(relay) = &mut self.state {
            relay.flush();
        }
        if !self.is_ready() {
            return;
        }
        let connected = self
            .loopback_proxy
            .as_ref()
            .is_none_or(|(loopback_proxy, _)| is_ready(loopback_proxy.fd(), Duration::ZERO));
        if let (RelayState::Waiting { sockets, command_network, handover, .. }, true) =
            (&self.state, connected)
        {
            // From here on only the relay uses the sockets.
            self.state = match start(
                self.plan,
                self.token.as_ref(),
                command_network.as_ref(),
                handover.as_ref(),
                sockets,
            ) {
                Ok(relay) => RelayState::Running(relay),
                Err(errno) => {
                    events.push(RelayEvent::RelayLost(format!(
                        "cannot start it: {}",
                        errno_names::errno_text(errno)
                    )));
                    RelayState::Gone
                }
            };
        }
        self.hand_over();
        let RelayState::Running(relay) = &mut self.state else { return };
        let until = SocketProcesses::deadline();
        let mut count = 0;
        while count < MAX_MESSAGES_PER_TURN {
            count += 1;
            match relay.receive() {
                HelperMessage::Decisions(decision) => {
                    count += decision.len();
                    add_decisions(events, decision);
                }
                HelperMessage::Request(RelayRequest::FindOwner { id, socket }) => {
                    relay.reply(&SupervisorReply::Owner {
                        id,
                        process: self.processes.find(socket, until),
                    });
                }
                HelperMessage::Request(RelayRequest::Ask { id, host, port, process }) => {
                    let reply = self.questions.ask(
                        id,
                        &host,
                        port,
                        process.as_ref(),
                        open_questions.as_deref_mut(),
                    );
                    reply.iter().for_each(|reply| relay.reply(reply));
                }
                HelperMessage::Request(RelayRequest::Withdrawn { id }) => {
                    if let Some(open_questions) = open_questions.as_deref_mut() {
                        self.questions.withdraw(id, open_questions);
                    }
                }
                HelperMessage::Nothing => break,
                HelperMessage::End => {
                    events.push(RelayEvent::RelayLost(relay.end()));
                    self.state = RelayState::Gone;
                    break;
                }
                HelperMessage::Invalid => {
                    events.push(RelayEvent::RelayLost("it sent an invalid message".to_owned()));
                    self.state = RelayState::Gone;
                    break;
                }
            }
        }
        if let (RelayState::Gone, Some(open_questions)) = (&self.state, open_questions) {
            self.questions.withdraw_all(open_questions);
        }
    }

    fn receive_http(&mut self, events: &mut Vec<RelayEvent>) {
        let Some(http) = &self.http else { return };
        if let Some(until) = self.http_ready_deadline {
            let failed = match http_helper::ready_message(http, RecvFlags::DONTWAIT) {
                None if Instant::now() < until => return,
                None => Some("it does not start".to_owned()),
                Some(Err(HttpHelperError::Ended(how))) => Some(how),
                Some(first) => first.err().map(|error| error.to_string()),
            };
            self.http_ready_deadline = None;
            if let Some(failed) = failed {
                events.push(RelayEvent::HttpHelperLost(failed));
                self.http = None;
                return;
            }
        }
        for _ in 0..MAX_MESSAGES_PER_TURN {
            let end = match http.receive() {
                HelperMessage::Decisions(decision) => {
                    add_decisions(events, decision);
                    continue;
                }
                HelperMessage::Nothing => return,
                HelperMessage::End => http.end(),
                // The HTTP helper sends no requests.
                HelperMessage::Request(_) | HelperMessage::Invalid => {
                    "it sent an invalid message".to_owned()
                }
            };
            events.push(RelayEvent::HttpHelperLost(end));
            self.http = None;
            return;
        }
    }

    /// Hands waiting clients to the relay, or closes them if it is gone.
    fn hand_over(&mut self) {
        let Some((loopback_proxy, ready)) = &mut self.loopback_proxy else { return };
        match &self.state {
            RelayState::Running(relay) => {
                let _ = epoll::add(&*ready, &relay.socket, EventData::new_u64(1), EventFlags::IN);
                loopback_proxy.hand_over(|client| {
                    crate::network::supervisor::loopback_proxy::send(relay.socket.as_fd(), client)
                });
            }
            RelayState::Gone => loopback_proxy.hand_over(|_| Ok(())),
            RelayState::Waiting { .. } => {}
        }
    }

    /// The sandbox has ended: reads the last messages of both processes. The HTTP helper is told
    /// last.
    pub fn finish(&mut self, mut receive: impl FnMut(&NetworkDecision, Option<String>)) {
        let relay = match std::mem::replace(&mut self.state, RelayState::Gone) {
            RelayState::Running(relay) => Some(relay),
            RelayState::Waiting { .. } | RelayState::Gone => None,
        };
        // A helper that is not ready has decided nothing, and is not waited for.
        let not_ready = self.http_ready_deadline.is_some_and(|_| {
            self.http
                .as_ref()
                .is_some_and(|http| http_helper::ready_message(http, RecvFlags::DONTWAIT).is_none())
        });
        let http = self.http.take().filter(|_| !not_ready);
        for helper in [relay, http].into_iter().flatten() {
            helper.finish(|decision| receive(decision, self.denial(decision)));
        }
    }

    /// A message about a denial, once for each host and port.
    pub fn denial(&mut self, decision: &NetworkDecision) -> Option<String> {
        let host_and_port = decision.host_and_port().filter(|_| decision.is_denial())?;
        let line = format!("denied: {host_and_port} ({})", decision.denial_reason(&host_and_port));
        let key = if decision.request.is_some() { line.clone() } else { host_and_port };
        (self.denied.len() < MAX_REPORTED_DENIALS && self.denied.insert(key)).then_some(line)
    }
}

/// Decisions that arrive together are written together.
fn add_decisions(events: &mut Vec<RelayEvent>, decision: Vec<NetworkDecision>) {
    match events.last_mut() {
        Some(RelayEvent::Decisions(before)) => before.extend(decision),
        _ => events.push(RelayEvent::Decisions(decision)),
    }
}

/// Starts this program as the relay. It gets the plan, the sockets and one end of a socket pair,
/// and no other descriptor.
fn start(
    plan: &OwnedFd,
    token: Option<&ProxyToken>,
    command_network: Option<&CommandNetwork>,
    handover: Option<&OwnedFd>,
    sockets: &[OwnedFd],
) -> Result<HelperProcess, Errno> {
    let (ours, theirs) = socket_pair::pair()?;
    // The password waits in the socket: every user could read it among the arguments.
    token.map_or(Ok(()), |token| token.send(&ours))?;
    let spaces = command_network.map_or(Vec::new(), |command_network| {
        vec![&command_network.user, &command_network.network]
    });
    let null = rustix::fs::open(c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let number = |fd: &OwnedFd| fd.as_raw_fd().to_string();
    let mut words = ["paddock-core", "relay", "--plan-fd"].map(str::to_owned).to_vec();
    words.extend([number(plan), "--line".to_owned(), number(&theirs)]);
    words.extend((!spaces.is_empty()).then(|| "--within".to_owned()));
    words.extend(spaces.iter().copied().map(number));
    words.extend(handover.into_iter().flat_map(|line| ["--handover".to_owned(), number(line)]));
    words.push("--sockets".to_owned());
    words.extend(sockets.iter().map(number));
    let words: Result<Vec<CString>, _> = words.into_iter().map(CString::new).collect();
    let argv = ExecStrings::new(words.map_err(|_| Errno::INVAL)?);
    let environment = ExecStrings::new(Vec::new());
    let inherited: Vec<&OwnedFd> =
        [plan, &theirs].into_iter().chain(spaces).chain(handover).chain(sockets).collect();
    let supervisor = rustix::process::getpid();
    let prepare_child = || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // The supervisor may have died before the line above.
        if rustix::process::getppid() != Some(supervisor) {
            return Err(Errno::SRCH);
        }
        // Terminal input for the command must not reach the relay.
        rustix::process::setpgid(None, None)?;
        rustix::process::chdir(Path::new("/"))?;
        child_fds::keep_only(&null, &inherited)
    };
    let mut failure = None;
    let child = sys::spawn_sharing_memory(|| {
        failure = Some(match prepare_child() {
            Ok(()) => sys::execve(c"/proc/self/exe", &argv, &environment),
            Err(errno) => errno,
        });
        125
    })?;
    if let Some(errno) = failure {
        let _ = rustix::process::waitpid(Some(child), WaitOptions::empty());
        return Err(errno);
    }
    let process = rustix::process::pidfd_open(child, PidfdFlags::empty())?;
    Ok(HelperProcess::new(process, ours))
}
