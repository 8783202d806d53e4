//! The supervisor's side of the network: keeps the sockets until somebody calls, starts the relay
//! then, and hears what it decided.
//!
//! Where something is to be read as HTTP, another partner stands beside the relay
//! ([`crate::network::supervisor::http_helper`]) and is heard in the same way.
//!
//! A relay that ends, or says what it may not, is not replaced: nobody has its sockets any more, so
//! connections are refused from then on.

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

/// Who has more to say gets another turn.
const MAX_MESSAGES_PER_TURN: usize = 64;
/// So soon a relay that does not take a reply is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(10);
/// Hosts and ports of which a person was told.
const MAX_REPORTED_DENIALS: usize = 1024;

pub enum RelayEvent {
    /// In the order in which it was decided.
    Decisions(Vec<NetworkDecision>),
    /// The relay is gone, and how.
    RelayLost(String),
    /// What speaks HTTP is.
    HttpHelperLost(String),
}

pub struct RelayProcess<'a> {
    plan: &'a OwnedFd,
    /// For its proxy; None: there is none.
    token: Option<ProxyToken>,
    state: RelayState,
    processes: SocketProcesses,
    questions: HostQuestions,
    /// What speaks HTTP.
    http: Option<HelperProcess>,
    /// Until when it has to say its first word, if it has not yet.
    http_ready_deadline: Option<Instant>,
    denied: BTreeSet<String>,
    /// Where clients arrive that the supervisor hands over; they, and the relay's line, make the
    /// descriptor ready.
    loopback_proxy: Option<(LoopbackProxy, OwnedFd)>,
}

enum RelayState {
    /// Nobody has called yet. Ready for reading when somebody does.
    Waiting {
        sockets: Vec<OwnedFd>,
        command_network: Option<CommandNetwork>,
        /// Its line to what speaks HTTP.
        handover: Option<OwnedFd>,
        connected: OwnedFd,
    },
    Running(HelperProcess),
    Gone,
}

impl<'a> RelayProcess<'a> {
    /// Most commands call nobody, so a relay is not started with them: connections wait in the
    /// kernel until it is.
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

    /// Of a command that no namespace keeps in.
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

    /// Which child of the command a caller descends from.
    pub fn branch_of(&self, decision: &NetworkDecision) -> Option<u32> {
        decision.pid.and_then(|pid| self.processes.branch_of(pid))
    }

    pub fn uses_loopback_proxy(&self) -> bool {
        self.loopback_proxy.is_some()
    }

    /// Those whom the command's connections to the proxy come from.
    pub fn expect(&mut self, processes: Vec<SocketAddr>) {
        if let Some((loopback_proxy, _)) = &mut self.loopback_proxy {
            loopback_proxy.expect(processes);
        }
    }

    /// Is there a client at the door that the relay could not take?
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

    /// Of what speaks HTTP.
    pub fn http_helper_fd(&self) -> Option<BorrowedFd<'_>> {
        self.http.as_ref().map(|http| http.socket.as_fd())
    }

    pub fn is_due(&self) -> bool {
        self.is_ready() || self.http_helper_fd().is_some_and(|fd| is_ready(fd, Duration::ZERO))
    }

    /// By the relay, or for it.
    fn is_ready(&self) -> bool {
        self.has_waiting_client() || self.fd().is_some_and(|fd| is_ready(fd, Duration::ZERO))
    }

    pub fn deadline(&self) -> Option<Instant> {
        let unsent = matches!(&self.state, RelayState::Running(relay) if relay.has_unsent());
        let again = (unsent || self.has_waiting_client()).then(|| Instant::now() + RETRY_PAUSE);
        self.questions.deadline().into_iter().chain(again).chain(self.http_ready_deadline).min()
    }

    /// Never waits. `open_questions`: where hosts can be asked about.
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
            // The sockets are the relay's alone from here on.
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
                        "it can not be started: {}",
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
                    events.push(RelayEvent::RelayLost("it said what is no message".to_owned()));
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
                None => Some("it does not begin".to_owned()),
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
                // It has nothing to ask of us.
                HelperMessage::Request(_) | HelperMessage::Invalid => {
                    "it said what is no message".to_owned()
                }
            };
            events.push(RelayEvent::HttpHelperLost(end));
            self.http = None;
            return;
        }
    }

    /// Whoever waits at the door goes to the relay; if it is gone, nowhere.
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

    /// Everything inside has ended: what the two have still to say. Those who speak HTTP hear last
    /// that it is over.
    pub fn finish(&mut self, mut receive: impl FnMut(&NetworkDecision, Option<String>)) {
        let relay = match std::mem::replace(&mut self.state, RelayState::Gone) {
            RelayState::Running(relay) => Some(relay),
            RelayState::Waiting { .. } | RelayState::Gone => None,
        };
        // Who has not begun has decided nothing, and is not waited for.
        let unheard = self.http_ready_deadline.is_some_and(|_| {
            self.http
                .as_ref()
                .is_some_and(|http| http_helper::ready_message(http, RecvFlags::DONTWAIT).is_none())
        });
        let http = self.http.take().filter(|_| !unheard);
        for helper in [relay, http].into_iter().flatten() {
            helper.finish(|decision| receive(decision, self.denial(decision)));
        }
    }

    /// A line for people, once for each host and port.
    pub fn denial(&mut self, decision: &NetworkDecision) -> Option<String> {
        let host_and_port = decision.host_and_port().filter(|_| decision.is_denial())?;
        let line = format!("denied: {host_and_port} ({})", decision.denial_reason(&host_and_port));
        let key = if decision.request.is_some() { line.clone() } else { host_and_port };
        (self.denied.len() < MAX_REPORTED_DENIALS && self.denied.insert(key)).then_some(line)
    }
}

/// What is heard of together is written together.
fn add_decisions(events: &mut Vec<RelayEvent>, decision: Vec<NetworkDecision>) {
    match events.last_mut() {
        Some(RelayEvent::Decisions(before)) => before.extend(decision),
        _ => events.push(RelayEvent::Decisions(decision)),
    }
}

/// Our own program as the relay: with the plan, the sockets and one end of a line, and with nothing
/// else of ours.
fn start(
    plan: &OwnedFd,
    token: Option<&ProxyToken>,
    command_network: Option<&CommandNetwork>,
    handover: Option<&OwnedFd>,
    sockets: &[OwnedFd],
) -> Result<HelperProcess, Errno> {
    let (ours, theirs) = socket_pair::pair()?;
    // It waits there for the relay: what stands among its arguments everybody could read.
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
    let kept: Vec<&OwnedFd> =
        [plan, &theirs].into_iter().chain(spaces).chain(handover).chain(sockets).collect();
    let supervisor = rustix::process::getpid();
    let prepare_child = || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // It may have died before the line above.
        if rustix::process::getppid() != Some(supervisor) {
            return Err(Errno::SRCH);
        }
        // What is typed for the command is not for it.
        rustix::process::setpgid(None, None)?;
        rustix::process::chdir(Path::new("/"))?;
        child_fds::keep_only(&null, &kept)
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
