//! Init, the first process of new namespaces, and the command under it.
//!
//! Init builds the root, starts the command, and from then on only reaps processes. When init ends
//! for any reason, the kernel ends every process in its namespace. Init ends with the command, and
//! with the supervisor.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Pid, PidfdFlags, Signal, WaitOptions};
use rustix::thread::LinkNameSpaceType;

use super::apply_restrictions::{self, EnterError, Restrictions};
use super::capabilities::Privileges;
use super::container::ContainerError;
use super::error::SandboxError;
use super::init_channel::{self, InitMessage};
use super::root::{self, RootBlueprint, RootError, StageDir};
use super::{cover_mount, cpu_affinity, overlay, shell_rules, write_server};
use crate::files::cover::{Cover, CoverKind, CoverResult};
use crate::files::host_sockets::{self, SocketFile};
use crate::files::patterns::NamePatternsError;
use crate::files::writes::written_trees::{self, BeforeStart};
use crate::files::writes::{KnownNames, ShellLayer, Writer};
use crate::kernel::pid_namespace::PidNamespace;
use crate::kernel::resolved_path::Identity;
use crate::kernel::seccomp_notify::NotifyListener;
use crate::kernel::sys::{self, SignalMask};
use crate::kernel::{mount, socket_pair, stderr};
use crate::limits::Limits;
use crate::network::namespace::{self, NamespaceError};
use crate::network::supervisor::socket_processes::SocketProcesses;

/// The namespaces that init is cloned into, and those that it makes itself while the supervisor
/// goes on.
const INIT_CLONE_FLAGS: i32 = libc::CLONE_NEWUSER | libc::CLONE_NEWPID;
const INIT_UNSHARE_FLAGS: i32 = libc::CLONE_NEWNS | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;

#[derive(Debug, thiserror::Error)]
pub enum NamespacesError {
    #[error("cannot create namespaces: {}", crate::kernel::errno_names::errno_text(*.0))]
    Enter(#[source] Errno),
    #[error("cannot communicate with init: {}", crate::kernel::errno_names::errno_text(*.0))]
    Channel(#[source] Errno),
    #[error("{error}")]
    Refused { error: String, hint: String },
    #[error("init was ended before the command started")]
    Lost,
}

impl NamespacesError {
    pub fn hint(&self) -> &str {
        match self {
            NamespacesError::Refused { hint, .. } => hint,
            _ => {
                "type `paddock doctor` to test every mechanism, or run without namespaces: --tier \
                landlock"
            }
        }
    }
}

/// A failure inside init, which init can only report.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    #[error("{what}: {}", crate::kernel::errno_names::errno_text(*.errno))]
    Step { what: &'static str, errno: Errno },
    #[error(transparent)]
    Root(#[from] RootError),
    #[error(transparent)]
    Container(ContainerError),
    #[error(transparent)]
    Network(#[from] NamespaceError),
    #[error(transparent)]
    Enter(#[from] EnterError),
    #[error(transparent)]
    Names(#[from] NamePatternsError),
}

impl InitError {
    fn hint(&self) -> &'static str {
        match self {
            InitError::Root(error) => error.hint(),
            InitError::Container(error) => error.hint(),
            InitError::Network(error) => error.hint(),
            InitError::Enter(error) => error.step.hint(),
            InitError::Names(error) => error.hint(),
            InitError::Step { .. } => {
                "type `paddock doctor` to test every mechanism, or run without namespaces: --tier \
                    landlock"
            }
        }
    }
}

/// The running sandbox, as the supervisor sees it.
pub struct Sandbox {
    pub init: Pid,
    pub channel: OwnedFd,
    /// A pidfd of the command: it can not come to mean another process.
    pub command: OwnedFd,
    /// A /proc that shows only the processes of the sandbox.
    pub proc: OwnedFd,
    /// The listener of intercepted calls.
    pub listener: Option<NotifyListener>,
    /// Sockets of the sandbox's network, for the relay.
    pub sockets: Vec<OwnedFd>,
    /// The sandbox's own file systems in memory.
    pub volatile: Vec<OwnedFd>,
    namespaces: SandboxNamespaces,
}

/// The parts of a finished root that the supervisor needs.
pub struct RootReady {
    pub proc: OwnedFd,
    pub volatile: Vec<OwnedFd>,
}

/// Sends a message to init. Errors are checked after the last one.
pub type SendMessage<'a> = &'a mut dyn FnMut(&InitMessage);

pub enum SandboxStart {
    Running(Sandbox),
    /// The errno that the payload returned.
    NotExecuted(i32),
}

/// Runs inside the sandbox: it becomes the command, or returns an errno (or 0, if it was no
/// command).
pub type Payload<'a> = &'a dyn Fn() -> i32;

/// Answers calls of the first program, until the descriptor is readable. The process that starts
/// the program can not report anything before these calls are answered.
pub type AnswerCalls<'a> = &'a mut dyn FnMut(&NotifyListener, BorrowedFd<'_>) -> Result<(), Errno>;

/// The inputs that every start of a sandbox takes.
pub struct Launch<'a> {
    pub restrictions: &'a Restrictions,
    pub payload: Payload<'a>,
    /// The signals that the command gets back.
    pub mask: &'a SignalMask,
    pub terminal: Option<&'a CStr>,
    /// None: the payload is no command, and needs no limits.
    pub limits: Option<&'a Limits>,
    pub answer_calls: AnswerCalls<'a>,
}

/// Makes the writer. Called when the command has started: its writes wait until this is done. All
/// that is read from files was read before.
pub type MakeWriter<'a> = Box<dyn FnOnce() -> Result<Writer, NamePatternsError> + 'a>;

/// Builds the root inside the namespaces of init.
pub trait RootBuilder {
    /// Namespaces (CLONE_NEW*) besides those that every sandbox has.
    fn extra_namespaces(&self) -> i32 {
        0
    }

    /// Maps the users, unless the supervisor does it when it admits init.
    fn map_users(&self) -> Result<(), InitError> {
        Ok(())
    }

    fn hostname(&self) -> &[u8];

    /// Leaves this process in the new root.
    fn build_root(
        &self,
        channel: &OwnedFd,
        rulesets: &[BorrowedFd<'_>],
    ) -> Result<RootReady, InitError>;

    /// Covers names. This comes last, because the supervisor may take longest to find them. Some:
    /// init does the writes of the command.
    fn cover_names(&self, _channel: &OwnedFd) -> Result<Option<MakeWriter<'_>>, InitError> {
        Ok(None)
    }

    /// The layer of intercepted shells, if there are any. Called when init is confined.
    fn shell_layer(&self, _restrictions: &Restrictions) -> Result<Option<ShellLayer>, Errno> {
        Ok(None)
    }

    /// Adds the rule for init's own /proc, if init needs one.
    fn let_init_read(
        &self,
        _restrictions: &Restrictions,
        _proc: BorrowedFd<'_>,
    ) -> Result<(), Errno> {
        Ok(())
    }
}

impl RootBuilder for RootBlueprint<'_> {
    fn map_users(&self) -> Result<(), InitError> {
        let what = "cannot map the user into the namespace";
        map_identity(self.plan.user.uid, self.gid).map_err(|errno| InitError::Step { what, errno })
    }

    fn hostname(&self) -> &[u8] {
        self.namespaces.hostname.as_bytes()
    }

    fn build_root(
        &self,
        channel: &OwnedFd,
        rulesets: &[BorrowedFd<'_>],
    ) -> Result<RootReady, InitError> {
        if let Some(network) = &self.plan.network {
            // Init keeps none of them: without a listener connections are refused.
            let sockets = namespace::enter(network)?;
            let sockets: Vec<BorrowedFd<'_>> = sockets.iter().map(OwnedFd::as_fd).collect();
            for some in sockets.chunks(init_channel::MAX_MESSAGE_FDS) {
                let sent = init_channel::send(channel, &InitMessage::Network, some);
                sent.map_err(|errno| InitError::Step {
                    what: "cannot pass the sockets to init",
                    errno,
                })?;
            }
        }
        Ok(root::build(self, rulesets, channel)?)
    }

    fn cover_names(&self, channel: &OwnedFd) -> Result<Option<MakeWriter<'_>>, InitError> {
        let Some(scanned) = root::cover(self, channel)? else { return Ok(None) };
        let before = BeforeStart::now(written_trees::of_plan(self.plan, None));
        Ok(Some(Box::new(move || {
            let known = KnownNames::of_scan(self.requested, &before.trees, scanned)?;
            Ok(Writer::new(self.plan, self.requested, known, before, self.lock.take()))
        })))
    }

    fn shell_layer(&self, restrictions: &Restrictions) -> Result<Option<ShellLayer>, Errno> {
        shell_rules::layer_of(self.plan, restrictions)
    }

    fn let_init_read(
        &self,
        restrictions: &Restrictions,
        proc: BorrowedFd<'_>,
    ) -> Result<(), Errno> {
        restrictions.let_init_read(self.plan, proc)
    }
}

/// Starts init and, under it, the command. `admit` is called with the pid of init before init makes
/// anything. `meanwhile` runs while init makes its namespaces, and has to be done before the
/// command starts. It sends init what init waits for, and is called again if that has moved. One
/// after the other, the two would make a launch a quarter longer. `launch.answer_calls` answers
/// calls of the command until the descriptor is readable.
pub fn start(
    root_builder: &dyn RootBuilder,
    launch: Launch<'_>,
    admit: impl FnOnce(Pid) -> Result<(), Errno>,
    mut meanwhile: impl FnMut(SendMessage<'_>) -> Result<(), SandboxError>,
) -> Result<SandboxStart, SandboxError> {
    let Launch { restrictions, payload, mask, answer_calls, .. } = launch;
    let (ours, theirs) = socket_pair::pair().map_err(NamespacesError::Channel)?;
    let (mut supervisors_end, mut inits_end) = (Some(ours), Some(theirs));
    let init = sys::fork_into(INIT_CLONE_FLAGS, || {
        supervisors_end = None;
        inits_end
            .take()
            .map_or(125, |channel| init(root_builder, restrictions, payload, mask, channel))
    })
    .map_err(NamespacesError::Enter)?;
    let aside = cpu_affinity::start_on_other_cpu(init);
    drop(inits_end);
    let Some(channel) = supervisors_end else { return Err(NamespacesError::Lost.into()) };
    let admitted = aside
        .and_then(|()| admit(init))
        .and_then(|()| init_channel::send(&channel, &InitMessage::Started, &[]));
    let mut sent = admitted;
    let done = match sent {
        Ok(()) => meanwhile(&mut |message| {
            sent = sent.and_then(|()| init_channel::send(&channel, message, &[]))
        }),
        Err(_) => Ok(()),
    };
    let sent = done.map(|()| sent);
    let mut fds = HandedFds::default();
    let mut received = match sent {
        Ok(Ok(())) => receive_start(&channel, answer_calls, &mut fds),
        unsaid => {
            kill_and_reap(init);
            // If init ended first, it has sent the reason.
            return Err(match (unsaid, receive_start(&channel, &mut |_, _| Ok(()), &mut fds)) {
                (Ok(_), Ok(Some((InitMessage::Refused { error, hint }, _)))) => {
                    NamespacesError::Refused { error, hint }.into()
                }
                (Ok(sent), _) => NamespacesError::Channel(sent.err().unwrap_or(Errno::PIPE)).into(),
                (Err(refusal), _) => refusal,
            });
        }
    };
    while let Ok(Some((InitMessage::Moved, _))) = received {
        let mut sent = Ok(());
        if let Err(refusal) = meanwhile(&mut |message| {
            sent = sent.and_then(|()| init_channel::send(&channel, message, &[]))
        }) {
            kill_and_reap(init);
            return Err(refusal);
        }
        received = sent.and_then(|()| receive_start(&channel, answer_calls, &mut fds));
    }
    let refused = match received {
        Ok(Some((InitMessage::Started, descriptors))) => {
            let mut descriptors = descriptors.into_iter();
            let mut next = || descriptors.next();
            let known = (next(), next(), next(), next(), next());
            let pids = restrictions.judges_writes().then(next).flatten();
            if let (Some(command), Some(user), Some(mount), Some(network), Some(proc)) = known {
                let HandedFds { mut listener, sockets, overlay } = fds;
                if let (Some(pids), Some(listener)) = (pids, &mut listener) {
                    let namespace = PidNamespace::new(pids, init.as_raw_nonzero().get() as u32);
                    let handed = write_server::hand_listener(&channel, listener, Some(namespace));
                    if let Err(errno) = handed {
                        kill_and_reap(init);
                        return Err(NamespacesError::Channel(errno).into());
                    }
                }
                let (namespaces, volatile) = (
                    SandboxNamespaces { init, user, mount, network, overlay },
                    descriptors.collect(),
                );
                let sandbox = Sandbox {
                    init,
                    channel,
                    command,
                    proc,
                    listener,
                    sockets,
                    volatile,
                    namespaces,
                };
                return Ok(SandboxStart::Running(sandbox));
            }
            NamespacesError::Channel(Errno::PROTO)
        }
        Ok(Some((InitMessage::NotExecuted(errno), _))) => {
            kill_and_reap(init);
            return Ok(SandboxStart::NotExecuted(errno));
        }
        Ok(Some((InitMessage::Refused { error, hint }, _))) => {
            NamespacesError::Refused { error, hint }
        }
        Ok(Some(_) | None) => NamespacesError::Lost,
        Err(errno) => NamespacesError::Channel(errno),
    };
    kill_and_reap(init);
    Err(refused.into())
}

/// The descriptors that the supervisor gets before the command starts.
#[derive(Default)]
pub struct HandedFds {
    pub listener: Option<NotifyListener>,
    pub sockets: Vec<OwnedFd>,
    pub overlay: Option<OverlayFds>,
}

/// Receives messages until the start has succeeded or failed.
pub fn receive_start(
    channel: &OwnedFd,
    answer_calls: AnswerCalls<'_>,
    fds: &mut HandedFds,
) -> Result<Option<(InitMessage, Vec<OwnedFd>)>, Errno> {
    loop {
        match init_channel::receive(channel, true)? {
            Some((InitMessage::Listening, descriptors)) => {
                let fd = descriptors.into_iter().next().ok_or(Errno::PROTO)?;
                answer_calls(fds.listener.insert(NotifyListener::new(fd)), channel.as_fd())?;
            }
            Some((InitMessage::Network, sockets)) => fds.sockets.extend(sockets),
            Some((InitMessage::Copied, descriptors)) => {
                let [view, whiteouts] =
                    <[OwnedFd; 2]>::try_from(descriptors).map_err(|_| Errno::PROTO)?;
                fds.overlay = Some(OverlayFds { view, whiteouts });
            }
            received => return Ok(received),
        }
    }
}

/// Kills init and everything under it; the kernel returns only after that. Traced processes have to
/// be reaped first, so all children are waited for.
pub fn kill_and_reap(init: Pid) {
    let _ = rustix::process::kill_process(init, Signal::KILL);
    sys::trace::wait_until_ended(init);
}

impl Sandbox {
    pub fn namespaces(&self) -> &SandboxNamespaces {
        &self.namespaces
    }

    /// After its end: the descriptors that keep its mounts. To close them takes long, so the caller
    /// passes them to `init_channel::abandon`.
    pub fn mounts(self) -> impl Iterator<Item = OwnedFd> {
        let Sandbox {
            proc,
            volatile,
            namespaces: SandboxNamespaces { user, mount, network, .. },
            ..
        } = self;
        [mount, user, network, proc].into_iter().chain(volatile)
    }
}

/// The pid on this side of the process of a pidfd, as long as it lives.
pub fn pid_of(process: &OwnedFd) -> Option<Pid> {
    let facts =
        std::fs::read_to_string(format!("/proc/self/fdinfo/{}", process.as_raw_fd())).ok()?;
    let number = facts.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    Pid::from_raw(number.trim().parse().ok()?)
}

/// The namespaces of a running sandbox, for the supervisor to enter.
pub struct SandboxNamespaces {
    init: Pid,
    user: OwnedFd,
    mount: OwnedFd,
    network: OwnedFd,
    overlay: Option<OverlayFds>,
}

/// The descriptors of a copy-on-write overlay.
pub struct OverlayFds {
    /// Its root, as the command sees it, with all mounts in it.
    pub view: OwnedFd,
    /// The layer of whiteouts, between the copy and the workspace.
    pub whiteouts: OwnedFd,
}

impl SandboxNamespaces {
    pub fn overlay(&self) -> Option<&OverlayFds> {
        self.overlay.as_ref()
    }

    /// Covers names in the running sandbox. There is one result for each cover.
    pub fn cover(
        &self,
        covers: &[Cover],
        copied: impl Fn(&Cover) -> bool,
    ) -> Result<Vec<Result<CoverResult, Errno>>, Errno> {
        let foreign_sockets = self.foreign_sockets(covers)?;
        let mut results = vec![Err(Errno::CANCELED); covers.len()];
        let mut entered = Ok(());
        let child = sys::spawn_sharing_memory(|| {
            entered = self.enter();
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            match entered.and_then(|()| rustix::fs::open(c"/", flags, Mode::empty())) {
                Ok(root) => {
                    for (cover, result) in covers.iter().zip(&mut results) {
                        if cover.kind == CoverKind::ForeignSocket
                            && !foreign_sockets.iter().any(|(other, _)| *other == cover)
                        {
                            *result = Err(Errno::NOENT);
                            continue;
                        }
                        *result = match cover_mount::cover(root.as_fd(), cover, copied(cover)) {
                            Err(Errno::NOENT) if copied(cover) => {
                                cover_mount::hide(root.as_fd(), cover)
                            }
                            placed => placed,
                        };
                    }
                }
                Err(errno) => entered = Err(errno),
            }
            0
        })?;
        rustix::process::waitpid(Some(child), WaitOptions::empty())?;
        entered.map(|()| results)
    }

    /// The foreign sockets among the covers. If the sandbox has its own network, a socket is
    /// foreign if it was not made there. Else it is foreign if no process inside holds it.
    fn foreign_sockets<'c>(&self, covers: &'c [Cover]) -> Result<Vec<(&'c Cover, OwnedFd)>, Errno> {
        // The open descriptors keep the inode numbers from being reused. A socket that answers
        // before and after the lookup is the one that was looked up.
        let suspects = covers.iter().filter(|cover| cover.kind == CoverKind::ForeignSocket);
        let answers = |socket: &OwnedFd| !host_sockets::is_silent(socket.as_fd());
        let mut suspects: Vec<(&Cover, OwnedFd)> =
            suspects.filter_map(|cover| Some((cover, look(cover).filter(answers)?))).collect();
        if suspects.is_empty() {
            return Ok(suspects);
        }
        let ours = Identity::from(&rustix::fs::stat(c"/proc/self/ns/net")?);
        let apart = ours != Identity::from(&rustix::fs::fstat(&self.network)?);
        let mut bound = Ok(Vec::new());
        if apart {
            let child = sys::spawn_sharing_memory(|| {
                bound = self.enter_network().and_then(|()| host_sockets::bound());
                0
            })?;
            rustix::process::waitpid(Some(child), WaitOptions::empty())?;
        } else {
            bound = host_sockets::bound();
        }
        let (bound, mounts) = (bound?, host_sockets::mounts()?);
        let (mut callers, until) = (SocketProcesses::of(self.init), SocketProcesses::deadline());
        suspects.retain(|(_, socket)| {
            let file = SocketFile::of(socket.as_fd(), &mounts);
            let mut same =
                bound.iter().filter(|(other, _)| Some(*other) == file).map(|(_, number)| *number);
            !same.any(|number| apart || callers.find(number, until).is_some()) && answers(socket)
        });
        Ok(suspects)
    }

    fn enter_network(&self) -> Result<(), Errno> {
        rustix::thread::move_into_link_name_space(
            self.user.as_fd(),
            Some(LinkNameSpaceType::User),
        )?;
        rustix::thread::move_into_link_name_space(
            self.network.as_fd(),
            Some(LinkNameSpaceType::Network),
        )
    }

    /// The user namespace that owns its network.
    pub fn user(&self) -> &OwnedFd {
        &self.user
    }

    /// Are these the namespaces of a process? `process`: its directory in /proc.
    pub fn holds(&self, process: BorrowedFd<'_>) -> bool {
        let same = |name: &CStr, known: &OwnedFd| {
            let found = rustix::fs::statat(process, name, AtFlags::empty())?;
            Ok::<_, Errno>(Identity::from(&found) == Identity::from(&rustix::fs::fstat(known)?))
        };
        same(c"ns/user", &self.user) == Ok(true) && same(c"ns/mnt", &self.mount) == Ok(true)
    }

    /// Joins them, with every capability over them.
    pub fn enter(&self) -> Result<(), Errno> {
        rustix::thread::move_into_link_name_space(
            self.user.as_fd(),
            Some(LinkNameSpaceType::User),
        )?;
        rustix::thread::move_into_link_name_space(
            self.mount.as_fd(),
            Some(LinkNameSpaceType::Mount),
        )
    }
}

/// The object at the path of a cover, if it is still the same one.
fn look(cover: &Cover) -> Option<OwnedFd> {
    let (flags, resolve) = (OFlags::PATH | OFlags::CLOEXEC, ResolveFlags::NO_SYMLINKS);
    let found =
        rustix::fs::openat2(CWD, cover.path.as_c_str(), flags, Mode::empty(), resolve).ok()?;
    let stat = rustix::fs::fstat(&found).ok()?;
    (Identity::from(&stat) == cover.identity).then_some(found)
}

/// Which namespaces and mounts work on this machine.
pub struct NamespaceSupport {
    /// Err: the step that failed.
    pub namespaces: Result<(), (&'static str, Errno)>,
    pub overlay: Result<(), Errno>,
}

/// Tries the namespaces and the kinds of mounts that a run needs.
pub fn try_out() -> NamespaceSupport {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let mut usable = NamespaceSupport {
        namespaces: Err(("namespaces", Errno::NOSYS)),
        overlay: Err(Errno::NOSYS),
    };
    let child = sys::spawn_into(INIT_CLONE_FLAGS | INIT_UNSHARE_FLAGS, || {
        usable.namespaces = (|| {
            map_identity(uid, gid).map_err(|errno| ("user map", errno))?;
            let stage = mount::new_fs(c"tmpfs", &[], mount::NO_SUID_NO_DEV)
                .map_err(|errno| ("tmpfs", errno))?;
            let root = StageDir::find()
                .and_then(|on| on.put(&stage))
                .map_err(|error| ("mount", error.errno()))?;
            mount::new_fs(c"proc", &[], mount::NO_SUID_NO_DEV).map_err(|errno| ("proc", errno))?;
            mount::new_fs(c"devpts", &[], mount::NO_SUID_NO_DEV)
                .map_err(|errno| ("devpts", errno))?;
            usable.overlay = overlay::try_overlay(root.as_fd());
            Ok(())
        })();
        0
    });
    match child {
        Ok(child) => {
            let _ = rustix::process::waitpid(Some(child), WaitOptions::empty());
        }
        Err(errno) => usable.namespaces = Err(("user namespace", errno)),
    }
    usable
}

/// Runs as init. Only its messages count, not its exit status.
fn init(
    root_builder: &dyn RootBuilder,
    restrictions: &Restrictions,
    payload: Payload<'_>,
    mask: &SignalMask,
    channel: OwnedFd,
) -> i32 {
    match set_up(root_builder, restrictions, payload, mask, &channel) {
        Ok(Ok((command, None))) => {
            sys::release_memory_and_run(reap_until_command_ends, command, channel)
        }
        Ok(Ok((command, Some(judged)))) => match judged.writer(restrictions) {
            Ok(writer) => write_server::run(command, &channel, writer).unwrap_or(125),
            Err(error) => {
                stderr::print_error(&error.to_string(), error.hint());
                // The supervisor hands the listener over first. The return ends the command.
                let _ = init_channel::receive(&channel, true);
                let _ = init_channel::send(&channel, &InitMessage::Exited(125), &[]);
                125
            }
        },
        Ok(Err(errno)) => {
            let _ = init_channel::send(&channel, &InitMessage::NotExecuted(errno), &[]);
            125
        }
        Err(error) => {
            let message =
                InitMessage::Refused { error: error.to_string(), hint: error.hint().to_owned() };
            let _ = init_channel::send(&channel, &message, &[]);
            125
        }
    }
}

/// What a writer is made of after the command has started.
struct JudgedWrites<'a> {
    make_writer: MakeWriter<'a>,
    layer: Option<ShellLayer>,
}

impl JudgedWrites<'_> {
    fn writer(self, restrictions: &Restrictions) -> Result<Writer, InitError> {
        let mut writer = (self.make_writer)()?;
        if let Some(rules) = restrictions.rules_beyond_init() {
            let what = "cannot keep the rules of the command";
            let limited = writer.limit_reading_proc(rules);
            limited.map_err(|errno| InitError::Step { what, errno })?;
        }
        if let Some(layer) = self.layer {
            writer.intercept_shells(layer);
        }
        Ok(writer)
    }
}

/// From a fork in new namespaces to the running command, or to the errno of its exec. With the
/// command comes what a writer needs, if this process does the writes of the command.
fn set_up<'a>(
    root_builder: &'a dyn RootBuilder,
    restrictions: &Restrictions,
    payload: Payload<'_>,
    mask: &SignalMask,
    channel: &OwnedFd,
) -> Result<Result<(Pid, Option<JudgedWrites<'a>>), i32>, InitError> {
    let step = |what| move |errno| InitError::Step { what, errno };
    follow_supervisor(channel).map_err(step("cannot tie init to its supervisor"))?;
    let extra_namespaces = (INIT_UNSHARE_FLAGS | root_builder.extra_namespaces()) as u64;
    sys::numeric_syscall(libc::SYS_unshare, [extra_namespaces, 0, 0, 0])
        .map_err(step("cannot create namespaces"))?;
    root_builder.map_users()?;
    let namespace = |name: &str| {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        rustix::fs::open(format!("/proc/self/ns/{name}"), flags, Mode::empty())
    };
    let user = namespace("user").map_err(step("cannot open the user namespace"))?;
    let mount = namespace("mnt").map_err(step("cannot open the mount namespace"))?;
    // The supervisor puts init under limits first.
    init_channel::receive(channel, true).map_err(step("the supervisor has ended"))?;
    let rulesets = restrictions.rulesets();
    let RootReady { proc, volatile } = root_builder.build_root(channel, &rulesets)?;
    root_builder
        .let_init_read(restrictions, proc.as_fd())
        .map_err(step("cannot let init read /proc"))?;
    if !root_builder.hostname().is_empty() {
        rustix::system::sethostname(root_builder.hostname())
            .map_err(step("cannot set the host name"))?;
    }
    // The command has the same user: only this keeps it from tracing init.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(step("cannot protect init against tracing"))?;

    restrictions.bound()?;
    let judged = match root_builder.cover_names(channel)? {
        Some(make_writer) => {
            restrictions.confine_writer()?;
            let layer = root_builder.shell_layer(restrictions);
            let layer = layer.map_err(step("cannot prepare the layer of shells"))?;
            Some(JudgedWrites { make_writer, layer })
        }
        None => None,
    };
    let mut enter_failure = None;
    let mut exec_failure = None;
    // Until its exec the command has init's channel, to send the listener.
    let become_command = || {
        apply_restrictions::become_command(None, Some(mask))
            .and_then(|()| restrictions.enter(Some(channel.as_fd())))
    };
    let child = if restrictions.has_exec_answered() {
        // The supervisor has to read the memory of the command, but not that of init. So the
        // command gets a copy of the memory, and reports its failure in a shared number.
        let failure = sys::shared_number().map_err(step("cannot start a process"))?;
        let child = sys::fork_into(libc::CLONE_VFORK, || {
            let _ = rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable);
            let code = match become_command() {
                Ok(()) => payload().into(),
                Err(error) => error.code(),
            };
            failure.store(code, Ordering::SeqCst);
            125
        });
        let failed = failure.load(Ordering::SeqCst);
        enter_failure = EnterError::of_code(failed);
        exec_failure = (failed != 0 && enter_failure.is_none()).then_some(failed as i32);
        child
    } else {
        sys::spawn_sharing_memory(|| {
            match become_command() {
                Ok(()) => exec_failure = Some(payload()),
                Err(error) => enter_failure = Some(error),
            }
            125
        })
    };
    let child = child.map_err(step("cannot start a process"))?;
    if let Some(error) = enter_failure {
        return Err(error.into());
    }
    if let Some(errno) = exec_failure {
        return Ok(Err(errno));
    }
    let handle = rustix::process::pidfd_open(child, PidfdFlags::empty())
        .map_err(step("the command has no handle"))?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let network = rustix::fs::openat(&proc, c"self/ns/net", flags, Mode::empty())
        .map_err(step("cannot open the network namespace"))?;
    let pids = match &judged {
        Some(_) => Some(
            rustix::fs::openat(&proc, c"self/ns/pid", flags, Mode::empty())
                .map_err(step("cannot open the pid namespace"))?,
        ),
        None => None,
    };
    let mut descriptors =
        vec![handle.as_fd(), user.as_fd(), mount.as_fd(), network.as_fd(), proc.as_fd()];
    descriptors.extend(pids.iter().map(OwnedFd::as_fd));
    descriptors.extend(volatile.iter().map(OwnedFd::as_fd));
    init_channel::send(channel, &InitMessage::Started, &descriptors)
        .map_err(step("the supervisor has ended"))?;
    Ok(Ok((child, judged)))
}

/// Makes this process die with the supervisor. If the supervisor has died before, its end of the
/// channel is closed.
pub fn follow_supervisor(channel: &OwnedFd) -> Result<(), Errno> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let mut hung_up = [PollFd::new(channel, PollFlags::empty())];
    rustix::event::poll(&mut hung_up, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    if hung_up[0].revents().contains(PollFlags::HUP) { Err(Errno::SRCH) } else { Ok(()) }
}

/// The user keeps its id. Files keep their owner, and exec drops every capability.
fn map_identity(uid: u32, gid: u32) -> Result<(), Errno> {
    write_once("setgroups", "deny")?;
    write_once("uid_map", &format!("{uid} {uid} 1"))?;
    write_once("gid_map", &format!("{gid} {gid} 1"))
}

fn write_once(name: &str, text: &str) -> Result<(), Errno> {
    let path = CString::new(format!("/proc/self/{name}")).map_err(|_| Errno::INVAL)?;
    let file =
        rustix::fs::openat(CWD, path.as_c_str(), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&file, text.as_bytes()).map(drop)
}

/// Reaps processes until the command ends. The return ends the namespace.
fn reap_until_command_ends(command: Pid, channel: OwnedFd) -> i32 {
    sys::close_all_but(&[channel.as_fd()]);
    // Init drops its capabilities, so that a process that takes it over gains nothing. If this
    // fails, init has no more than before.
    let _ = Privileges::NONE.shed();
    loop {
        let (pid, status) = match rustix::process::wait(WaitOptions::UNTRACED) {
            Ok(Some(ended)) => ended,
            Ok(None) | Err(Errno::INTR) => continue,
            // the command is a child until it ends, so there is always one to wait for
            Err(_) => return 125,
        };
        if pid != command {
            continue;
        }
        let Some(message) = InitMessage::of_status(status) else { continue };
        let last = !matches!(message, InitMessage::Stopped(_));
        if init_channel::send(&channel, &message, &[]).is_err() || last {
            return 0;
        }
    }
}
