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
use super::helper_process::{Said, is_ready};
use super::host_questions::Asker;
use super::http_helper::{self, Http, HttpError};
use super::loopback_proxy::Door;
use super::proxy_password::Token;
use super::published_ports::Within;
use super::socket_processes::Callers;
use crate::approve::open_questions::OpenQuestions;
use crate::journal::event::network::NetworkDecision;
use crate::kernel::sys::{self, ExecStrings};
use crate::kernel::{child_fds, errno_names, socket_pair};
use crate::network::relay::relay_messages::{Reply, Request};

/// Who has more to say gets another turn.
const MOST_HEARD: usize = 64;
/// So soon a relay that does not take a reply is tried again.
const AGAIN: Duration = Duration::from_millis(10);
/// Hosts and ports of which a person was told.
const MOST_DENIED: usize = 1024;

pub enum Heard {
    /// In the order in which it was decided.
    Decisions(Vec<NetworkDecision>),
    /// The relay is gone, and how.
    Lost(String),
    /// What speaks HTTP is.
    Mute(String),
}

pub struct RelayProcess<'a> {
    plan: &'a OwnedFd,
    /// For its proxy; None: there is none.
    token: Option<Token>,
    state: State,
    callers: Callers,
    asker: Asker,
    /// What speaks HTTP.
    http: Option<HelperProcess>,
    /// Until when it has to say its first word, if it has not yet.
    silent_until: Option<Instant>,
    denied: BTreeSet<String>,
    /// Where clients arrive that the supervisor hands over; they, and the relay's line, make the
    /// descriptor ready.
    door: Option<(Door, OwnedFd)>,
}

enum State {
    /// Nobody has called yet. Ready for reading when somebody does.
    Waiting {
        sockets: Vec<OwnedFd>,
        within: Option<Within>,
        /// Its line to what speaks HTTP.
        handover: Option<OwnedFd>,
        called: OwnedFd,
    },
    Running(HelperProcess),
    Gone,
}

impl<'a> RelayProcess<'a> {
    /// Most commands call nobody, so a relay is not started with them: connections wait in the
    /// kernel until it is.
    pub fn new(
        sockets: Vec<OwnedFd>,
        within: Option<Within>,
        token: Option<Token>,
        plan: &'a OwnedFd,
        callers: Callers,
        asker: Asker,
        http: Option<Http>,
    ) -> Result<RelayProcess<'a>, Errno> {
        let called = epoll::create(CreateFlags::CLOEXEC)?;
        for socket in &sockets {
            epoll::add(&called, socket, EventData::new_u64(0), EventFlags::IN)?;
        }
        let (http, handover, silent) = match http.map(Http::parts) {
            Some((partner, handover, silent)) => (Some(partner), Some(handover), silent),
            None => (None, None, false),
        };
        let silent_until = silent.then(|| Instant::now() + http_helper::SILENT);
        let state = State::Waiting { sockets, within, handover, called };
        Ok(RelayProcess {
            plan,
            token,
            state,
            callers,
            asker,
            http,
            silent_until,
            denied: BTreeSet::new(),
            door: None,
        })
    }

    /// Of a command that no namespace keeps in.
    pub fn at_door(
        door: Door,
        token: Option<Token>,
        plan: &'a OwnedFd,
        callers: Callers,
        asker: Asker,
    ) -> Result<RelayProcess<'a>, Errno> {
        let ready = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&ready, door.fd(), EventData::new_u64(0), EventFlags::IN)?;
        Ok(RelayProcess {
            door: Some((door, ready)),
            ..RelayProcess::new(Vec::new(), None, token, plan, callers, asker, None)?
        })
    }

    pub fn tell_apart(&mut self, command: Pid) {
        self.callers.tell_apart(command);
    }

    /// Which child of the command a caller descends from.
    pub fn branch_of(&self, told: &NetworkDecision) -> Option<u32> {
        told.pid.and_then(|pid| self.callers.branch_of(pid))
    }

    pub fn is_at_door(&self) -> bool {
        self.door.is_some()
    }

    /// Those whom the command's connections to the proxy come from.
    pub fn expect(&mut self, callers: Vec<SocketAddr>) {
        if let Some((door, _)) = &mut self.door {
            door.expect(callers);
        }
    }

    /// Is there a client at the door that the relay could not take?
    fn is_waiting(&self) -> bool {
        self.door.as_ref().is_some_and(|(door, _)| door.is_waiting())
    }

    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        if let Some((door, ready)) = &self.door {
            return (!door.is_waiting()).then(|| ready.as_fd());
        }
        match &self.state {
            State::Waiting { called, .. } => Some(called.as_fd()),
            State::Running(relay) => Some(relay.line.as_fd()),
            State::Gone => None,
        }
    }

    /// Of what speaks HTTP.
    pub fn other_fd(&self) -> Option<BorrowedFd<'_>> {
        self.http.as_ref().map(|http| http.line.as_fd())
    }

    pub fn is_due(&self) -> bool {
        self.is_called() || self.other_fd().is_some_and(|fd| is_ready(fd, Duration::ZERO))
    }

    /// By the relay, or for it.
    fn is_called(&self) -> bool {
        self.is_waiting() || self.fd().is_some_and(|fd| is_ready(fd, Duration::ZERO))
    }

    pub fn deadline(&self) -> Option<Instant> {
        let unsent = matches!(&self.state, State::Running(relay) if relay.has_unsent());
        let again = (unsent || self.is_waiting()).then(|| Instant::now() + AGAIN);
        self.asker.deadline().into_iter().chain(again).chain(self.silent_until).min()
    }

    /// Never waits. `desk`: where hosts can be asked about.
    pub fn turn(&mut self, desk: Option<&mut OpenQuestions>) -> Vec<Heard> {
        let mut heard = Vec::new();
        self.turn_to_relay(desk, &mut heard);
        self.hear_http(&mut heard);
        heard
    }

    fn turn_to_relay(&mut self, mut desk: Option<&mut OpenQuestions>, heard: &mut Vec<Heard>) {
        if let (State::Running(relay), Some(desk)) = (&mut self.state, desk.as_deref_mut()) {
            for reply in self.asker.turn(desk) {
                relay.reply(&reply);
            }
        }
        if let State::Running(relay) = &mut self.state {
            relay.flush();
        }
        if !self.is_called() {
            return;
        }
        let called = self.door.as_ref().is_none_or(|(door, _)| is_ready(door.fd(), Duration::ZERO));
        if let (State::Waiting { sockets, within, handover, .. }, true) = (&self.state, called) {
            // The sockets are the relay's alone from here on.
            self.state = match start(
                self.plan,
                self.token.as_ref(),
                within.as_ref(),
                handover.as_ref(),
                sockets,
            ) {
                Ok(relay) => State::Running(relay),
                Err(errno) => {
                    heard.push(Heard::Lost(format!(
                        "cannot start it: {}",
                        errno_names::errno_text(errno)
                    )));
                    State::Gone
                }
            };
        }
        self.hand_over();
        let State::Running(relay) = &mut self.state else { return };
        let until = Callers::deadline();
        let mut count = 0;
        while count < MOST_HEARD {
            count += 1;
            match relay.hear() {
                Said::Decisions(told) => {
                    count += told.len();
                    hear_of(heard, told);
                }
                Said::Asked(Request::Who { id, socket }) => {
                    relay.reply(&Reply::Who { id, process: self.callers.find(socket, until) });
                }
                Said::Asked(Request::Ask { id, host, port, process }) => {
                    let reply =
                        self.asker.ask(id, &host, port, process.as_ref(), desk.as_deref_mut());
                    reply.iter().for_each(|reply| relay.reply(reply));
                }
                Said::Asked(Request::Withdrawn { id }) => {
                    if let Some(desk) = desk.as_deref_mut() {
                        self.asker.withdraw(id, desk);
                    }
                }
                Said::Nothing => break,
                Said::End => {
                    heard.push(Heard::Lost(relay.end()));
                    self.state = State::Gone;
                    break;
                }
                Said::Nonsense => {
                    heard.push(Heard::Lost("it sent an invalid message".to_owned()));
                    self.state = State::Gone;
                    break;
                }
            }
        }
        if let (State::Gone, Some(desk)) = (&self.state, desk) {
            self.asker.withdraw_all(desk);
        }
    }

    fn hear_http(&mut self, heard: &mut Vec<Heard>) {
        let Some(http) = &self.http else { return };
        if let Some(until) = self.silent_until {
            let failed = match http_helper::first_word(http, RecvFlags::DONTWAIT) {
                None if Instant::now() < until => return,
                None => Some("it does not start".to_owned()),
                Some(Err(HttpError::Ended(how))) => Some(how),
                Some(first) => first.err().map(|error| error.to_string()),
            };
            self.silent_until = None;
            if let Some(failed) = failed {
                heard.push(Heard::Mute(failed));
                self.http = None;
                return;
            }
        }
        for _ in 0..MOST_HEARD {
            let end = match http.hear() {
                Said::Decisions(told) => {
                    hear_of(heard, told);
                    continue;
                }
                Said::Nothing => return,
                Said::End => http.end(),
                // It has nothing to ask of us.
                Said::Asked(_) | Said::Nonsense => "it sent an invalid message".to_owned(),
            };
            heard.push(Heard::Mute(end));
            self.http = None;
            return;
        }
    }

    /// Whoever waits at the door goes to the relay; if it is gone, nowhere.
    fn hand_over(&mut self) {
        let Some((door, ready)) = &mut self.door else { return };
        match &self.state {
            State::Running(relay) => {
                let _ = epoll::add(&*ready, &relay.line, EventData::new_u64(1), EventFlags::IN);
                door.hand_over(|client| {
                    crate::network::supervisor::loopback_proxy::send(relay.line.as_fd(), client)
                });
            }
            State::Gone => door.hand_over(|_| Ok(())),
            State::Waiting { .. } => {}
        }
    }

    /// Everything inside has ended: what the two have still to say. Those who speak HTTP hear last
    /// that it is over.
    pub fn finish(&mut self, mut hear: impl FnMut(&NetworkDecision, Option<String>)) {
        let relay = match std::mem::replace(&mut self.state, State::Gone) {
            State::Running(relay) => Some(relay),
            State::Waiting { .. } | State::Gone => None,
        };
        // Who has not begun has decided nothing, and is not waited for.
        let unheard = self.silent_until.is_some_and(|_| {
            self.http
                .as_ref()
                .is_some_and(|http| http_helper::first_word(http, RecvFlags::DONTWAIT).is_none())
        });
        let http = self.http.take().filter(|_| !unheard);
        for partner in [relay, http].into_iter().flatten() {
            partner.finish(|told| hear(told, self.denial(told)));
        }
    }

    /// A line for people, once for each host and port.
    pub fn denial(&mut self, told: &NetworkDecision) -> Option<String> {
        let place = told.place().filter(|_| told.is_denial())?;
        let line = format!("denied: {place} ({})", told.why(&place));
        let key = if told.request.is_some() { line.clone() } else { place };
        (self.denied.len() < MOST_DENIED && self.denied.insert(key)).then_some(line)
    }
}

/// What is heard of together is written together.
fn hear_of(heard: &mut Vec<Heard>, told: Vec<NetworkDecision>) {
    match heard.last_mut() {
        Some(Heard::Decisions(before)) => before.extend(told),
        _ => heard.push(Heard::Decisions(told)),
    }
}

/// Our own program as the relay: with the plan, the sockets and one end of a line, and with nothing
/// else of ours.
fn start(
    plan: &OwnedFd,
    token: Option<&Token>,
    within: Option<&Within>,
    handover: Option<&OwnedFd>,
    sockets: &[OwnedFd],
) -> Result<HelperProcess, Errno> {
    let (ours, theirs) = socket_pair::pair()?;
    // It waits there for the relay: what stands among its arguments everybody could read.
    token.map_or(Ok(()), |token| token.send(&ours))?;
    let spaces = within.map_or(Vec::new(), |within| vec![&within.user, &within.network]);
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
    let become_relay = || {
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
        failure = Some(match become_relay() {
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
