//! The sandbox's own processes: init, the first process of new namespaces, and the command behind
//! it.
//!
//! Init builds the root, starts the command, and from then on only buries the dead. It is the
//! kernel's handle on all of them: when it ends, whatever ended it, nothing in its namespace lives
//! on. It ends with the command, and with the supervisor.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Pid, PidfdFlags, Signal, WaitOptions};
use rustix::thread::LinkNameSpaceType;

use super::capabilities::Privileges;
use super::container::JailError;
use super::enter::{self, Fence, FenceError};
use super::error::SandboxError;
use super::init_channel::{self, InitMessage};
use super::root::{self, Blueprint, RootError, Stage};
use super::{cover_mount, cpu_affinity, overlay};
use crate::files::cover::{Cover, CoverKind, Placed};
use crate::files::host_sockets::{self, SocketFile};
use crate::kernel::resolved_path::Identity;
use crate::kernel::seccomp_notify::Listener;
use crate::kernel::sys::{self, SignalMask};
use crate::kernel::{mount, socket_pair};
use crate::network::namespace::{self, InsideError};
use crate::network::supervisor::socket_processes::Callers;

/// What init is born into, and what it makes itself, while the supervisor goes on.
const BIRTH: i32 = libc::CLONE_NEWUSER | libc::CLONE_NEWPID;
const OWN: i32 = libc::CLONE_NEWNS | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;

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

/// A failure inside init, which can only tell of it.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    #[error("{what}: {}", crate::kernel::errno_names::errno_text(*.errno))]
    Step { what: &'static str, errno: Errno },
    #[error(transparent)]
    Root(#[from] RootError),
    #[error(transparent)]
    Jail(JailError),
    #[error(transparent)]
    Network(#[from] InsideError),
    #[error(transparent)]
    Fence(#[from] FenceError),
}

impl InitError {
    fn hint(&self) -> &'static str {
        match self {
            InitError::Root(error) => error.hint(),
            InitError::Jail(error) => error.hint(),
            InitError::Network(error) => error.hint(),
            InitError::Fence(error) => error.step.hint(),
            InitError::Step { .. } => {
                "type `paddock doctor` to test every mechanism, or run without namespaces: --tier \
                    landlock"
            }
        }
    }
}

/// The running sandbox, seen from outside.
pub struct Sandbox {
    pub init: Pid,
    pub channel: OwnedFd,
    /// The command, by a descriptor that can not come to mean another process.
    pub command: OwnedFd,
    /// A /proc that shows the processes of the sandbox and no other.
    pub proc: OwnedFd,
    /// Where calls of the command arrive that we answer.
    pub listener: Option<Listener>,
    /// Of its network, for the relay.
    pub sockets: Vec<OwnedFd>,
    /// File systems in memory that are its own.
    pub volatile: Vec<OwnedFd>,
    inside: Inside,
}

/// What the supervisor has to see of a furnished root.
pub struct RootReady {
    pub proc: OwnedFd,
    pub volatile: Vec<OwnedFd>,
}

/// Says a word to init. Whether it was heard is asked when all is said.
pub type Tell<'a> = &'a mut dyn FnMut(&InitMessage);

pub enum Started {
    Running(Sandbox),
    /// What the payload returned.
    NotExecuted(i32),
}

/// What happens inside the fence: it becomes the command, or returns an errno (or 0, if it was no
/// command).
pub type Payload<'a> = &'a dyn Fn() -> i32;

/// Answers for the program that is about to be started, by somebody who can not tell us more before
/// it is: until he can.
pub type Attend<'a> = &'a mut dyn FnMut(&Listener, BorrowedFd<'_>) -> Result<(), Errno>;

/// What init makes of its namespaces.
pub trait Furnish {
    /// Namespaces (CLONE_NEW*) beside those that every sandbox has.
    fn kinds(&self) -> i32 {
        0
    }

    /// Who we are in here, unless the supervisor says so when it admits us.
    fn introduce(&self) -> Result<(), InitError> {
        Ok(())
    }

    fn hostname(&self) -> &[u8];

    /// Leaves this process in the new root.
    fn furnish(
        &self,
        channel: &OwnedFd,
        ruleset: Option<BorrowedFd<'_>>,
    ) -> Result<RootReady, InitError>;

    /// What the supervisor may take longest to find out, and comes last: what is covered in there.
    fn finish(&self, _channel: &OwnedFd) -> Result<(), InitError> {
        Ok(())
    }
}

impl Furnish for Blueprint<'_> {
    fn introduce(&self) -> Result<(), InitError> {
        let what = "cannot map the user into the namespace";
        map_identity(self.plan.user.uid, self.gid).map_err(|errno| InitError::Step { what, errno })
    }

    fn hostname(&self) -> &[u8] {
        self.namespaces.hostname.as_bytes()
    }

    fn furnish(
        &self,
        channel: &OwnedFd,
        ruleset: Option<BorrowedFd<'_>>,
    ) -> Result<RootReady, InitError> {
        if let Some(network) = &self.plan.network {
            // None of them stays here: where nobody listens, connections are refused.
            let sockets = namespace::enter(network)?;
            let sockets: Vec<BorrowedFd<'_>> = sockets.iter().map(OwnedFd::as_fd).collect();
            for some in sockets.chunks(init_channel::DESCRIPTORS) {
                let told = init_channel::send(channel, &InitMessage::Network, some);
                told.map_err(|errno| InitError::Step {
                    what: "cannot pass the sockets to init",
                    errno,
                })?;
            }
        }
        Ok(root::build(self, ruleset, channel)?)
    }

    fn finish(&self, channel: &OwnedFd) -> Result<(), InitError> {
        Ok(root::cover(self, channel)?)
    }
}

/// Starts init and, behind it, the command. `admit` is called with init's number before it makes
/// anything. `meanwhile` is what has to be done before the command starts, and not before init
/// does; it tells init what that waits for, and is asked again if that moved. Done one after the
/// other, the two would be more than a quarter of a launch more. `attend` answers calls of the
/// command until the descriptor can be read.
pub fn start(
    interior: &dyn Furnish,
    fence: &Fence,
    payload: Payload<'_>,
    mask: &SignalMask,
    admit: impl FnOnce(Pid) -> Result<(), Errno>,
    mut meanwhile: impl FnMut(Tell<'_>) -> Result<(), SandboxError>,
    attend: Attend<'_>,
) -> Result<Started, SandboxError> {
    let (ours, theirs) = socket_pair::pair().map_err(NamespacesError::Channel)?;
    let (mut supervisors_end, mut inits_end) = (Some(ours), Some(theirs));
    let init = sys::fork_into(BIRTH, || {
        supervisors_end = None;
        inits_end.take().map_or(125, |channel| init(interior, fence, payload, mask, channel))
    })
    .map_err(NamespacesError::Enter)?;
    let aside = cpu_affinity::send_aside(init);
    drop(inits_end);
    let Some(channel) = supervisors_end else { return Err(NamespacesError::Lost.into()) };
    let admitted = aside
        .and_then(|()| admit(init))
        .and_then(|()| init_channel::send(&channel, &InitMessage::Started, &[]));
    let mut told = admitted;
    let done = match told {
        Ok(()) => meanwhile(&mut |word| {
            told = told.and_then(|()| init_channel::send(&channel, word, &[]))
        }),
        Err(_) => Ok(()),
    };
    let told = done.map(|()| told);
    let mut handed = Handed::default();
    let mut heard = match told {
        Ok(Ok(())) => hear(&channel, attend, &mut handed),
        unsaid => {
            bury(init);
            // If it was init that went first, it has said why.
            return Err(match (unsaid, hear(&channel, &mut |_, _| Ok(()), &mut handed)) {
                (Ok(_), Ok(Some((InitMessage::Refused { error, hint }, _)))) => {
                    NamespacesError::Refused { error, hint }.into()
                }
                (Ok(told), _) => NamespacesError::Channel(told.err().unwrap_or(Errno::PIPE)).into(),
                (Err(refusal), _) => refusal,
            });
        }
    };
    while let Ok(Some((InitMessage::Moved, _))) = heard {
        let mut told = Ok(());
        if let Err(refusal) = meanwhile(&mut |word| {
            told = told.and_then(|()| init_channel::send(&channel, word, &[]))
        }) {
            bury(init);
            return Err(refusal);
        }
        heard = told.and_then(|()| hear(&channel, attend, &mut handed));
    }
    let refused = match heard {
        Ok(Some((InitMessage::Started, descriptors))) => {
            let mut descriptors = descriptors.into_iter();
            let mut next = || descriptors.next();
            let known = (next(), next(), next(), next(), next());
            if let (Some(command), Some(user), Some(mount), Some(network), Some(proc)) = known {
                let Handed { listener, sockets, overlaid } = handed;
                let (inside, volatile) =
                    (Inside { init, user, mount, network, overlaid }, descriptors.collect());
                let sandbox =
                    Sandbox { init, channel, command, proc, listener, sockets, volatile, inside };
                return Ok(Started::Running(sandbox));
            }
            NamespacesError::Channel(Errno::PROTO)
        }
        Ok(Some((InitMessage::NotExecuted(errno), _))) => {
            bury(init);
            return Ok(Started::NotExecuted(errno));
        }
        Ok(Some((InitMessage::Refused { error, hint }, _))) => {
            NamespacesError::Refused { error, hint }
        }
        Ok(Some(_) | None) => NamespacesError::Lost,
        Err(errno) => NamespacesError::Channel(errno),
    };
    bury(init);
    Err(refused.into())
}

/// What the supervisor is given before the command starts.
#[derive(Default)]
pub struct Handed {
    pub listener: Option<Listener>,
    pub sockets: Vec<OwnedFd>,
    pub overlaid: Option<Overlaid>,
}

/// What became of the start.
pub fn hear(
    channel: &OwnedFd,
    attend: Attend<'_>,
    handed: &mut Handed,
) -> Result<Option<(InitMessage, Vec<OwnedFd>)>, Errno> {
    loop {
        match init_channel::receive(channel, true)? {
            Some((InitMessage::Listening, descriptors)) => {
                let fd = descriptors.into_iter().next().ok_or(Errno::PROTO)?;
                attend(handed.listener.insert(Listener::new(fd)), channel.as_fd())?;
            }
            Some((InitMessage::Network, sockets)) => handed.sockets.extend(sockets),
            Some((InitMessage::Copied, descriptors)) => {
                let [view, veil] =
                    <[OwnedFd; 2]>::try_from(descriptors).map_err(|_| Errno::PROTO)?;
                handed.overlaid = Some(Overlaid { view, veil });
            }
            heard => return Ok(heard),
        }
    }
}

/// Its end is the end of everything behind it; the kernel returns only then. Whom we traced, we
/// have to bury first: so all are waited for.
pub fn bury(init: Pid) {
    let _ = rustix::process::kill_process(init, Signal::KILL);
    sys::trace::wait_until_ended(init);
}

impl Sandbox {
    pub fn inside(&self) -> &Inside {
        &self.inside
    }

    /// After its end: what its mounts still hang on, to be let go of by who can not wait until they
    /// are taken apart.
    pub fn mounts(self) -> impl Iterator<Item = OwnedFd> {
        let Sandbox { proc, volatile, inside: Inside { user, mount, network, .. }, .. } = self;
        [mount, user, network, proc].into_iter().chain(volatile)
    }
}

/// The number on this side of a process that is known by its descriptor, as long as it lives.
pub fn pid_of(process: &OwnedFd) -> Option<Pid> {
    let facts =
        std::fs::read_to_string(format!("/proc/self/fdinfo/{}", process.as_raw_fd())).ok()?;
    let number = facts.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    Pid::from_raw(number.trim().parse().ok()?)
}

/// The way into the mounts of a running sandbox, for its owner.
pub struct Inside {
    init: Pid,
    user: OwnedFd,
    mount: OwnedFd,
    network: OwnedFd,
    overlaid: Option<Overlaid>,
}

/// A copy, from outside.
pub struct Overlaid {
    /// Its root, as the command sees it, with all that is mounted in it.
    pub view: OwnedFd,
    /// Of whiteouts, between the copy and what it is one of.
    pub veil: OwnedFd,
}

impl Inside {
    pub fn overlaid(&self) -> Option<&Overlaid> {
        self.overlaid.as_ref()
    }

    /// Covers names in the running sandbox. Each result stands for its cover.
    pub fn cover(
        &self,
        covers: &[Cover],
        copied: impl Fn(&Cover) -> bool,
    ) -> Result<Vec<Result<Placed, Errno>>, Errno> {
        let strangers = self.strangers(covers)?;
        let mut results = vec![Err(Errno::CANCELED); covers.len()];
        let mut entered = Ok(());
        let child = sys::spawn_sharing_memory(|| {
            entered = self.enter();
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            match entered.and_then(|()| rustix::fs::open(c"/", flags, Mode::empty())) {
                Ok(root) => {
                    for (cover, result) in covers.iter().zip(&mut results) {
                        if cover.kind == CoverKind::Stranger
                            && !strangers.iter().any(|(other, _)| *other == cover)
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

    /// Of those that are covered if they are strangers, the sockets that are: not made in there, if
    /// that has a network of its own; else, in the hands of nobody there.
    fn strangers<'c>(&self, covers: &'c [Cover]) -> Result<Vec<(&'c Cover, OwnedFd)>, Errno> {
        // Held open, no number of theirs becomes another's: who answers before and after it is told
        // who is there, was there.
        let suspects = covers.iter().filter(|cover| cover.kind == CoverKind::Stranger);
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
        let (mut callers, until) = (Callers::of(self.init), Callers::deadline());
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

    /// The namespace that its networks belong to.
    pub fn user(&self) -> &OwnedFd {
        &self.user
    }

    /// Are these the namespaces of a process, which is told by its directory in /proc?
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

/// What lies where a cover should, if it still does.
fn look(cover: &Cover) -> Option<OwnedFd> {
    let (flags, resolve) = (OFlags::PATH | OFlags::CLOEXEC, ResolveFlags::NO_SYMLINKS);
    let found =
        rustix::fs::openat2(CWD, cover.path.as_c_str(), flags, Mode::empty(), resolve).ok()?;
    let stat = rustix::fs::fstat(&found).ok()?;
    (Identity::from(&stat) == cover.identity).then_some(found)
}

/// What namespaces give on this machine.
pub struct Usable {
    /// Err: the step that failed.
    pub namespaces: Result<(), (&'static str, Errno)>,
    pub overlay: Result<(), Errno>,
}

/// Makes the namespaces and the kinds of mounts that a run needs, and lets them go again.
pub fn try_out() -> Usable {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let mut usable =
        Usable { namespaces: Err(("namespaces", Errno::NOSYS)), overlay: Err(Errno::NOSYS) };
    let child = sys::spawn_into(BIRTH | OWN, || {
        usable.namespaces = (|| {
            map_identity(uid, gid).map_err(|errno| ("user map", errno))?;
            let stage =
                mount::new_fs(c"tmpfs", &[], mount::PLAIN).map_err(|errno| ("tmpfs", errno))?;
            let root = Stage::find()
                .and_then(|on| on.put(&stage))
                .map_err(|error| ("mount", error.errno()))?;
            mount::new_fs(c"proc", &[], mount::PLAIN).map_err(|errno| ("proc", errno))?;
            mount::new_fs(c"devpts", &[], mount::PLAIN).map_err(|errno| ("devpts", errno))?;
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

/// The life of init. What it returns is seen by nobody but a debugger: its words count.
fn init(
    interior: &dyn Furnish,
    fence: &Fence,
    payload: Payload<'_>,
    mask: &SignalMask,
    channel: OwnedFd,
) -> i32 {
    match set_up(interior, fence, payload, mask, &channel) {
        Ok(Ok(command)) => sys::go_on_alone(mourn, command, channel),
        Ok(Err(errno)) => {
            let _ = init_channel::send(&channel, &InitMessage::NotExecuted(errno), &[]);
            125
        }
        Err(error) => {
            let word =
                InitMessage::Refused { error: error.to_string(), hint: error.hint().to_owned() };
            let _ = init_channel::send(&channel, &word, &[]);
            125
        }
    }
}

/// From a fork in new namespaces to the running command, or to the reason why it could not be
/// executed.
fn set_up(
    interior: &dyn Furnish,
    fence: &Fence,
    payload: Payload<'_>,
    mask: &SignalMask,
    channel: &OwnedFd,
) -> Result<Result<Pid, i32>, InitError> {
    let step = |what| move |errno| InitError::Step { what, errno };
    follow_supervisor(channel).map_err(step("cannot tie init to its supervisor"))?;
    let kinds = (OWN | interior.kinds()) as u64;
    sys::numeric_syscall(libc::SYS_unshare, [kinds, 0, 0, 0])
        .map_err(step("cannot create namespaces"))?;
    interior.introduce()?;
    let namespace = |name: &str| {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        rustix::fs::open(format!("/proc/self/ns/{name}"), flags, Mode::empty())
    };
    let user = namespace("user").map_err(step("cannot open the user namespace"))?;
    let mount = namespace("mnt").map_err(step("cannot open the mount namespace"))?;
    // The supervisor puts us under limits first.
    init_channel::receive(channel, true).map_err(step("the supervisor has ended"))?;
    let RootReady { proc, volatile } = interior.furnish(channel, fence.ruleset())?;
    if !interior.hostname().is_empty() {
        rustix::system::sethostname(interior.hostname())
            .map_err(step("cannot set the host name"))?;
    }
    // The command runs with our user: nothing but this keeps it from tracing us.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(step("cannot protect init against tracing"))?;

    fence.bound()?;
    interior.finish(channel)?;
    let mut fence_failure = None;
    let mut exec_failure = None;
    // Until it is executed the command has our channel, to say who answers for it.
    let become_command = || {
        enter::become_command(None, Some(mask)).and_then(|()| fence.enter(Some(channel.as_fd())))
    };
    let child = if fence.listens() {
        // The supervisor has to see what it asks for, and must not see us: so its memory is a copy,
        // and it leaves there what went wrong.
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
        fence_failure = FenceError::of_code(failed);
        exec_failure = (failed != 0 && fence_failure.is_none()).then_some(failed as i32);
        child
    } else {
        sys::spawn_sharing_memory(|| {
            match become_command() {
                Ok(()) => exec_failure = Some(payload()),
                Err(error) => fence_failure = Some(error),
            }
            125
        })
    };
    let child = child.map_err(step("cannot start a process"))?;
    if let Some(error) = fence_failure {
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
    let mut descriptors =
        vec![handle.as_fd(), user.as_fd(), mount.as_fd(), network.as_fd(), proc.as_fd()];
    descriptors.extend(volatile.iter().map(OwnedFd::as_fd));
    init_channel::send(channel, &InitMessage::Started, &descriptors)
        .map_err(step("the supervisor has ended"))?;
    Ok(Ok(child))
}

/// Dies with the supervisor. It may have died before we asked for that: then its end of the channel
/// is closed.
pub fn follow_supervisor(channel: &OwnedFd) -> Result<(), Errno> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let mut hung_up = [PollFd::new(channel, PollFlags::empty())];
    rustix::event::poll(&mut hung_up, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    if hung_up[0].revents().contains(PollFlags::HUP) { Err(Errno::SRCH) } else { Ok(()) }
}

/// The one user keeps the one number; files keep their owner, and exec drops every capability.
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

/// Buries whoever ends, until the command does. Returning ends the namespace.
fn mourn(command: Pid, channel: OwnedFd) -> i32 {
    sys::close_all_but(&channel);
    // Whatever gets hold of us gains nothing by it. Should it fail, we are no more than we were.
    let _ = Privileges::NONE.shed();
    loop {
        let (pid, status) = match rustix::process::wait(WaitOptions::UNTRACED) {
            Ok(Some(ended)) => ended,
            Ok(None) | Err(Errno::INTR) => continue,
            // the command is our child until it ends, so there is always one to wait for
            Err(_) => return 125,
        };
        if pid != command {
            continue;
        }
        let Some(word) = InitMessage::of_status(status) else { continue };
        let last = !matches!(word, InitMessage::Stopped(_));
        if init_channel::send(&channel, &word, &[]).is_err() || last {
            return 0;
        }
    }
}
