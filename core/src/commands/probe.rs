//! `probe`: tries every mechanism, each in a child of its own. Each try has a control: the same act
//! has to succeed without the restriction first, so that "refused" can not mean "impossible
//! anyway".

use std::collections::BTreeSet;
use std::ffi::CString;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use landlock::{
    AccessFs, AccessNet, BitFlags, CompatLevel, Compatible as _, Ruleset, RulesetAttr as _, Scope,
};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions};

use super::error::Refusal;
use crate::kernel::errno_names;
use crate::kernel::random_name::random_name;
use crate::kernel::sys::{self, Instruction, trace};
use crate::network::{namespace, supervised_connect};
use crate::plan::rights::{self, Rights};
use crate::plan::syscalls::{self, Arch};
use crate::plan::wire::bytes::{AbsPath, Text};
use crate::plan::wire::writer::{self, NonUtf8};
use crate::plan::{self, SocketAccess};
use crate::sandbox::seccomp::{Filter, bpf};
use crate::sandbox::temp_dir::TempDir;

/// A mechanism, and the kernel that brought it.
struct Mechanism {
    name: &'static str,
    needs: &'static str,
    probe: fn(&ProbeScene) -> ProbeResult,
}

const MECHANISMS: &[Mechanism] = &[
    Mechanism { name: "landlock read", needs: "Linux 5.13", probe: landlock_read },
    Mechanism { name: "landlock write", needs: "Linux 5.13", probe: landlock_write },
    Mechanism { name: "landlock refer", needs: "Linux 5.19", probe: landlock_refer },
    Mechanism { name: "landlock truncate", needs: "Linux 6.2", probe: landlock_truncate },
    Mechanism { name: "landlock ioctl_dev", needs: "Linux 6.10", probe: landlock_ioctl },
    Mechanism { name: "landlock signal scope", needs: "Linux 6.12", probe: landlock_signal },
    Mechanism {
        name: "landlock abstract socket scope",
        needs: "Linux 6.12",
        probe: landlock_abstract_socket,
    },
    Mechanism { name: "landlock tcp ports", needs: "Linux 6.7", probe: landlock_ports },
    Mechanism { name: "landlock ptrace", needs: "Linux 5.13", probe: landlock_ptrace },
    Mechanism { name: "seccomp errno", needs: "Linux 3.17", probe: seccomp_errno },
    Mechanism { name: "seccomp foreign architecture", needs: "Linux 4.14", probe: seccomp_foreign },
    Mechanism { name: "seccomp x32", needs: "Linux 4.14", probe: seccomp_x32 },
    Mechanism { name: "seccomp io_uring", needs: "Linux 3.17", probe: seccomp_io_uring },
    Mechanism { name: "seccomp TIOCSTI", needs: "Linux 3.17", probe: seccomp_tiocsti },
    // 5.0 has the listener, 5.5 lets a call continue, 5.9 gives the caller a descriptor.
    Mechanism { name: "user notification", needs: "Linux 5.9", probe: user_notification },
    Mechanism {
        name: "user notification despite signals",
        needs: "Linux 5.19",
        probe: killable_notification,
    },
    Mechanism { name: "socket of another process", needs: "Linux 5.6", probe: pinned_socket },
    Mechanism { name: "ptrace stop", needs: "Linux 3.4", probe: ptrace_stop },
    // 3.8 has the namespace, 5.12 changes the flags of a whole tree of mounts (mount_setattr).
    Mechanism { name: "user namespace", needs: "Linux 5.12", probe: user_namespace },
    Mechanism { name: "network namespace", needs: "Linux 3.8", probe: network_namespace },
    Mechanism {
        name: "network filter",
        needs: "Linux 4.19 with nft_tproxy and IPv6",
        probe: network_filter,
    },
];

struct ProbeResult {
    held: bool,
    detail: String,
}

/// The result that a child reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProbeOutcome {
    Done,
    Refused(Errno),
    Killed(i32),
    /// The restriction itself could not be applied.
    NotRestricted(Errno),
    /// The child could not be started.
    NotRun(Errno),
}

impl ProbeOutcome {
    fn words(self) -> String {
        match self {
            ProbeOutcome::Done => "succeeded".to_owned(),
            ProbeOutcome::Refused(errno) => errno_names::errno(errno),
            ProbeOutcome::Killed(signal) => format!("killed by {}", errno_names::signal(signal)),
            ProbeOutcome::NotRestricted(errno) => {
                format!("the mechanism is not available: {}", errno_names::errno(errno))
            }
            ProbeOutcome::NotRun(errno) => {
                format!("cannot start a process: {}", errno_names::errno(errno))
            }
        }
    }
}

/// A directory with two files and two directories, and a process outside of the sandbox.
struct ProbeScene {
    path: CString,
    dir: OwnedFd,
    outsider: Pid,
}

pub fn report(uid: u32) -> Result<String, Refusal> {
    let parent =
        Text::from_bytes(std::env::temp_dir().into_os_string().into_vec()).and_then(AbsPath::new);
    let parent = parent.map_err(|_| Refusal::Scene(Errno::INVAL))?;
    let temp = TempDir::make(&parent, uid, &random_name().map_err(Refusal::Random)?)?;
    let report = ProbeScene::set(&temp).map(|scene| {
        let report = scene.try_all();
        scene.strike();
        report
    });
    temp.remove()?;
    report.map_err(Refusal::Scene)
}

impl ProbeScene {
    fn set(temp: &TempDir) -> Result<ProbeScene, Errno> {
        let dir = rustix::fs::openat(
            temp.dir(),
            c".",
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        for name in [c"from", c"to"] {
            rustix::fs::mkdirat(&dir, name, Mode::RWXU)?;
        }
        for name in [c"file", c"from/file"] {
            rustix::fs::openat(
                &dir,
                name,
                OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC,
                Mode::RUSR | Mode::WUSR,
            )?;
        }
        let outsider = sys::fork(|| {
            let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
            loop {
                std::thread::sleep(Duration::from_secs(60));
            }
        })?;
        Ok(ProbeScene { path: temp.path().to_owned(), dir, outsider })
    }

    fn try_all(&self) -> String {
        let mut out = String::new();
        writer::list(&mut out, MECHANISMS, |out, mechanism| {
            let ProbeResult { held, detail } = (mechanism.probe)(self);
            out.push_str(&format!(
                "{{\"mechanism\":\"{}\",\"held\":{held},\"detail\":",
                mechanism.name
            ));
            writer::string(out, detail.as_bytes(), NonUtf8::Text);
            out.push_str(&format!(",\"needs\":\"{}\"}}", mechanism.needs));
        });
        out
    }

    fn strike(self) {
        let _ = rustix::process::kill_process(self.outsider, Signal::KILL);
        let _ = rustix::process::waitpid(Some(self.outsider), WaitOptions::empty());
    }
}

type ProbeAct<'a> = &'a dyn Fn() -> Result<(), Errno>;

/// Applies the restriction and acts, in a child.
fn see(restrictions: ProbeAct<'_>, act: ProbeAct<'_>) -> ProbeOutcome {
    const UNFENCED: i32 = 0x80; // above every errno a probe meets
    let status = sys::fork(|| match restrictions() {
        Err(errno) => UNFENCED | errno.raw_os_error() & 0x7F,
        Ok(()) => act().map_or_else(|errno| errno.raw_os_error() & 0x7F, |()| 0),
    })
    .and_then(|child| rustix::process::waitpid(Some(child), WaitOptions::empty()));
    let status = match status {
        Ok(Some((_, status))) => status,
        Ok(None) => return ProbeOutcome::NotRun(Errno::CHILD),
        Err(errno) => return ProbeOutcome::NotRun(errno),
    };
    match (status.exit_status(), status.terminating_signal()) {
        (Some(0), _) => ProbeOutcome::Done,
        (Some(code), _) if code & UNFENCED != 0 => {
            ProbeOutcome::NotRestricted(Errno::from_raw_os_error(code & 0x7F))
        }
        (Some(code), _) => ProbeOutcome::Refused(Errno::from_raw_os_error(code)),
        (None, signal) => ProbeOutcome::Killed(signal.unwrap_or_default()),
    }
}

/// Without the restriction the act gives `control`, with it `expected`.
fn compare(
    control: ProbeOutcome,
    restrictions: ProbeAct<'_>,
    act: ProbeAct<'_>,
    expected: ProbeOutcome,
) -> ProbeResult {
    let outside = see(&|| Ok(()), act);
    if outside != control {
        return ProbeResult {
            held: false,
            detail: format!("cannot be tested: without the sandbox {}", outside.words()),
        };
    }
    let inside = see(restrictions, act);
    ProbeResult {
        held: inside == expected,
        detail: format!("inside: {}; outside: {}", inside.words(), outside.words()),
    }
}

fn restrict(ruleset: Ruleset, grants: &[(&OwnedFd, Rights)]) -> Result<(), Errno> {
    rustix::thread::set_no_new_privs(true)?;
    let ruleset: Option<OwnedFd> = ruleset.create().map_err(|_| Errno::OPNOTSUPP)?.into();
    let ruleset = ruleset.ok_or(Errno::OPNOTSUPP)?;
    for (dir, rights) in grants {
        sys::landlock_add_rule(ruleset.as_fd(), rights.bits(), dir.as_fd())?;
    }
    sys::landlock_restrict_self(ruleset.as_fd())
}

fn handling(rights: impl Into<Rights>) -> Result<Ruleset, Errno> {
    Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(rights.into())
        .map_err(|_| Errno::OPNOTSUPP)
}

fn scoping(scope: Scope) -> Result<Ruleset, Errno> {
    Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .scope(scope)
        .map_err(|_| Errno::OPNOTSUPP)
}

/// An act that this one right decides, in a scene without any grant.
fn without_right(right: AccessFs, act: ProbeAct<'_>) -> ProbeResult {
    compare(
        ProbeOutcome::Done,
        &|| restrict(handling(right)?, &[]),
        act,
        ProbeOutcome::Refused(Errno::ACCESS),
    )
}

fn open_file(scene: &ProbeScene, flags: OFlags) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(&scene.dir, c"file", flags | OFlags::CLOEXEC, Mode::empty())
}

fn landlock_read(scene: &ProbeScene) -> ProbeResult {
    without_right(AccessFs::ReadFile, &|| open_file(scene, OFlags::RDONLY).map(drop))
}

fn landlock_write(scene: &ProbeScene) -> ProbeResult {
    without_right(AccessFs::WriteFile, &|| open_file(scene, OFlags::WRONLY).map(drop))
}

fn landlock_truncate(scene: &ProbeScene) -> ProbeResult {
    without_right(AccessFs::Truncate, &|| {
        open_file(scene, OFlags::WRONLY | OFlags::TRUNC).map(drop)
    })
}

fn landlock_ioctl(_: &ProbeScene) -> ProbeResult {
    without_right(AccessFs::IoctlDev, &|| {
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        rustix::termios::tcgetattr(rustix::fs::open(c"/dev/ptmx", flags, Mode::empty())?).map(drop)
    })
}

/// Moves a file between two directories that grant everything but this right.
fn landlock_refer(scene: &ProbeScene) -> ProbeResult {
    let restrictions = || {
        let all = rights::supported_by(2).0;
        restrict(handling(all)?, &[(&scene.dir, all & !AccessFs::Refer)])
    };
    let act = || {
        rustix::fs::renameat(&scene.dir, c"from/file", &scene.dir, c"to/file")?;
        rustix::fs::renameat(&scene.dir, c"to/file", &scene.dir, c"from/file")
    };
    compare(ProbeOutcome::Done, &restrictions, &act, ProbeOutcome::Refused(Errno::XDEV))
}

fn landlock_signal(scene: &ProbeScene) -> ProbeResult {
    let restrictions = || restrict(scoping(Scope::Signal)?, &[]);
    compare(
        ProbeOutcome::Done,
        &restrictions,
        &|| rustix::process::test_kill_process(scene.outsider),
        ProbeOutcome::Refused(Errno::PERM),
    )
}

fn landlock_abstract_socket(_: &ProbeScene) -> ProbeResult {
    let name = format!("paddock-probe-{}", rustix::process::getpid().as_raw_nonzero());
    let address = SocketAddr::from_abstract_name(name.as_bytes());
    let listener = address
        .and_then(|address| UnixListener::bind_addr(&address).map(|listener| (address, listener)));
    let (address, _listener) = match listener {
        Ok(pair) => pair,
        Err(error) => {
            return ProbeResult { held: false, detail: format!("cannot be tested: {error}") };
        }
    };
    let connect = || match UnixStream::connect_addr(&address) {
        Ok(_) => Ok(()),
        Err(error) => Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
    };
    let restrictions = || restrict(scoping(Scope::AbstractUnixSocket)?, &[]);
    compare(ProbeOutcome::Done, &restrictions, &connect, ProbeOutcome::Refused(Errno::PERM))
}

fn landlock_ptrace(scene: &ProbeScene) -> ProbeResult {
    const PTRACE_SEIZE: u64 = 0x4206;
    let target = scene.outsider.as_raw_nonzero().get() as u64;
    let seize = || sys::numeric_syscall(libc::SYS_ptrace, [PTRACE_SEIZE, target, 0, 0]).map(drop);
    let restrictions = || restrict(handling(AccessFs::ReadFile)?, &[]);
    compare(ProbeOutcome::Done, &restrictions, &seize, ProbeOutcome::Refused(Errno::PERM))
}

/// The core's own filter, with one harmless call on the list.
fn filter() -> Result<(), Errno> {
    let requested = plan::Seccomp {
        default: plan::SeccompDefault::Allow,
        syscalls: syscalls::find("getpriority").into_iter().collect(),
        sockets: BTreeSet::new(),
        namespaces: false,
    };
    let filter =
        Filter::compile(&requested, Arch::NATIVE, false, false, false, SocketAccess::default())
            .map_err(|_| Errno::INVAL)?;
    rustix::thread::set_no_new_privs(true)?;
    sys::seccomp_install(&filter.program)
}

fn seccomp_errno(_: &ProbeScene) -> ProbeResult {
    let act = || sys::numeric_syscall(libc::SYS_getpriority, [0; 4]).map(drop);
    compare(ProbeOutcome::Done, &filter, &act, ProbeOutcome::Refused(Errno::PERM))
}

#[cfg(target_arch = "x86_64")]
fn seccomp_foreign(_: &ProbeScene) -> ProbeResult {
    let act = || if sys::i386_getpid() > 0 { Ok(()) } else { Err(Errno::NOSYS) };
    if see(&|| Ok(()), &act) != ProbeOutcome::Done {
        return ProbeResult {
            held: true,
            detail: "this kernel has no i386 system calls".to_owned(),
        };
    }
    compare(ProbeOutcome::Done, &filter, &act, ProbeOutcome::Killed(libc::SIGSYS))
}

#[cfg(target_arch = "aarch64")]
fn seccomp_foreign(_: &ProbeScene) -> ProbeResult {
    ProbeResult {
        held: true,
        detail: "a 64-bit program has no other system calls on this \
        architecture"
            .to_owned(),
    }
}

/// With the filter the number kills, whether the kernel has x32 or not.
fn seccomp_x32(_: &ProbeScene) -> ProbeResult {
    if Arch::NATIVE != Arch::X86_64 {
        return ProbeResult { held: true, detail: "this architecture has no x32".to_owned() };
    }
    const X32_GETPID: i64 = 0x4000_0000 + 39;
    let act = || sys::numeric_syscall(X32_GETPID, [0; 4]).map(drop);
    let outside = see(&|| Ok(()), &act);
    compare(outside, &filter, &act, ProbeOutcome::Killed(libc::SIGSYS))
}

/// The arguments are wrong, so no ring is made even without a filter. ENOSYS tells the filter from
/// the kernel.
fn seccomp_io_uring(_: &ProbeScene) -> ProbeResult {
    let act = || sys::numeric_syscall(libc::SYS_io_uring_setup, [0; 4]).map(drop);
    let outside = see(&|| Ok(()), &act);
    if outside == ProbeOutcome::Refused(Errno::NOSYS) {
        return ProbeResult { held: true, detail: "this kernel has no io_uring".to_owned() };
    }
    compare(outside, &filter, &act, ProbeOutcome::Refused(Errno::NOSYS))
}

/// Uses a descriptor that is not open, and a bit that the kernel ignores.
fn seccomp_tiocsti(_: &ProbeScene) -> ProbeResult {
    const TIOCSTI: u64 = 0x5412;
    let act =
        || sys::numeric_syscall(libc::SYS_ioctl, [u64::MAX, TIOCSTI | 1 << 32, 0, 0]).map(drop);
    compare(ProbeOutcome::Refused(Errno::BADF), &filter, &act, ProbeOutcome::Refused(Errno::PERM))
}

fn user_notification(_: &ProbeScene) -> ProbeResult {
    const ALLOW: Instruction = Instruction { code: bpf::RETURN, jt: 0, jf: 0, k: bpf::RET_ALLOW };
    let listen = || {
        rustix::thread::set_no_new_privs(true)?;
        sys::seccomp_listener(&[ALLOW]).map(drop)
    };
    let seen = see(&|| Ok(()), &listen);
    ProbeResult {
        held: seen == ProbeOutcome::Done,
        detail: format!("a listener: {}", seen.words()),
    }
}

/// Without it a call that waits for its answer is made again after each signal. The filter has no
/// address, so none is installed.
fn killable_notification(_: &ProbeScene) -> ProbeResult {
    let flags =
        libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    let install = u64::from(libc::SECCOMP_SET_MODE_FILTER);
    let seen = sys::numeric_syscall(libc::SYS_seccomp, [install, flags, 0, 0]);
    let held = seen.err() == Some(Errno::FAULT);
    let detail = if held { "the kernel knows the flag" } else { "the kernel lacks the flag" };
    ProbeResult { held, detail: detail.to_owned() }
}

/// A connection to a port of this machine.
fn landlock_ports(_: &ProbeScene) -> ProbeResult {
    let Ok((listener, address)) =
        TcpListener::bind("127.0.0.1:0").and_then(|one| one.local_addr().map(|at| (one, at)))
    else {
        return ProbeResult {
            held: false,
            detail: "cannot be tested: no loopback device".to_owned(),
        };
    };
    let restrictions = || {
        rustix::thread::set_no_new_privs(true)?;
        let ruleset =
            sys::landlock_create_ruleset(0, BitFlags::from(AccessNet::ConnectTcp).bits(), 0)?;
        sys::landlock_restrict_self(ruleset.as_fd())
    };
    let connect = || {
        let connected = TcpStream::connect(address);
        connected.map(drop).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    };
    let result =
        compare(ProbeOutcome::Done, &restrictions, &connect, ProbeOutcome::Refused(Errno::ACCESS));
    drop(listener);
    result
}

/// The supervisor needs this call to connect sockets of the command in the landlock tier. Filters
/// of containers may refuse it.
fn pinned_socket(_: &ProbeScene) -> ProbeResult {
    match supervised_connect::check() {
        Ok(()) => ProbeResult {
            held: true,
            detail: "a descriptor was duplicated by its number".to_owned(),
        },
        Err(errno) => ProbeResult {
            held: false,
            detail: format!("pidfd_getfd: {}", errno_names::errno(errno)),
        },
    }
}

/// Without it the gate can not verify an exec. Yama (kernel.yama.ptrace_scope = 3) and some
/// containers refuse it.
fn ptrace_stop(scene: &ProbeScene) -> ProbeResult {
    let process = scene.outsider.as_raw_nonzero().get() as u32;
    let stop = || {
        trace::seize(process)?;
        trace::interrupt(process)?;
        let deadline = Instant::now() + Duration::from_secs(2);
        while trace::poll_traced(process)?.is_none() {
            if Instant::now() > deadline {
                return Err(Errno::TIMEDOUT);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        trace::detach(process)
    };
    match stop() {
        Ok(()) => {
            ProbeResult { held: true, detail: "a process was stopped and continued".to_owned() }
        }
        Err(errno) => ProbeResult {
            held: false,
            detail: format!("a process of this user: {}", errno_names::errno(errno)),
        },
    }
}

/// A new user and mount namespace in which a mount works, for a process that may not mount
/// otherwise (or is root).
fn user_namespace(scene: &ProbeScene) -> ProbeResult {
    let enter = || {
        let flags = libc::CLONE_NEWUSER | libc::CLONE_NEWNS;
        sys::numeric_syscall(libc::SYS_unshare, [flags as u64, 0, 0, 0]).map(drop)
    };
    let mount = || {
        // By name: the descriptor belongs to the old mount namespace.
        rustix::process::chdir(scene.path.as_c_str())?;
        rustix::mount::mount_bind(c"from", c"to")
    };
    let seen = see(&enter, &mount);
    ProbeResult {
        held: seen == ProbeOutcome::Done,
        detail: format!("a mount in a new namespace: {}", seen.words()),
    }
}

/// A network namespace with its own loopback.
fn network_namespace(_: &ProbeScene) -> ProbeResult {
    let seen = see(&own_user, &|| own_network(plan::NetworkMode::None).map(drop));
    ProbeResult {
        held: seen == ProbeOutcome::Done,
        detail: format!("a new network namespace: {}", seen.words()),
    }
}

/// A network namespace in which a connection to a host that does not exist arrives at a local
/// listener.
fn network_filter(_: &ProbeScene) -> ProbeResult {
    let call = || {
        let _sockets = own_network(plan::NetworkMode::Filtered)?;
        for nobody in ["203.0.113.1:80", "[2001:db8::1]:80"] {
            TcpStream::connect(nobody)
                .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        }
        Ok(())
    };
    let seen = see(&own_user, &call);
    ProbeResult {
        held: seen == ProbeOutcome::Done,
        detail: format!("connections to every address are redirected: {}", seen.words()),
    }
}

fn own_user() -> Result<(), Errno> {
    sys::numeric_syscall(libc::SYS_unshare, [libc::CLONE_NEWUSER as u64, 0, 0, 0]).map(drop)
}

fn own_network(mode: plan::NetworkMode) -> Result<Vec<OwnedFd>, Errno> {
    let (default, ask_timeout_s) = (plan::Action::Deny, 1);
    let (denied, allowed, approved, local_ports, published) =
        (vec![], vec![], vec![], vec![], vec![]);
    let (default_source, http) = (None, None);
    let network = plan::Network {
        mode,
        default,
        default_source,
        ask_timeout_s,
        denied,
        allowed,
        approved,
        local_ports,
        published,
        http,
    };
    namespace::enter(&network).map_err(|error| error.errno)
}
