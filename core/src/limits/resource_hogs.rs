//! Real resource hogs on the real kernel, as an ordinary user, with and without cgroups, in both
//! tiers. The test binary starts itself again as the supervisor, and runs the same loop as the
//! core.

mod memory;

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Resource, Rlimit, Signal, WaitOptions, WaitStatus};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::process_usage::ProcessTree;
use super::{ActiveLimit, ExceededLimit, Limit, Limits, Means, RequestedLimits};

use memory::{MANY_SMALL, SHARED_HOG};

const NOBODY: u32 = 65534;
const NONE: RequestedLimits = RequestedLimits {
    memory_mb: None,
    processes: None,
    cpu_s: None,
    open_files: None,
    file_size_mb: None,
    wall_s: None,
};
/// Ends a scene that does not end itself.
const TIMEOUT_S: u64 = 120;
/// A fork bomb must not leave a test, whatever fails: a cgroup of root and a limit on the user's
/// tasks hold it.
const MAX_SAFE_TASKS: u64 = 300;

/// The result of a scene.
#[derive(Debug, Serialize, Deserialize)]
struct HogResult {
    /// The command's exit code, or 128 plus the signal.
    code: i32,
    active: Vec<String>,
    timed_out: bool,
    /// `limit by means`, the limits that ended the run first, marked `(ended)`.
    met: Vec<String>,
    /// From the start to the exceeded limit or the end.
    elapsed_ms: u64,
    /// From the exceeded limit until no process was left.
    kill_ms: u64,
    checks: u32,
    check_us: u64,
    max_tasks: u64,
    output: String,
    /// How far the hog came, from a file that survives it.
    reached: u64,
}

struct HogDir(PathBuf);

impl HogDir {
    fn new() -> HogDir {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name =
            format!("paddock-hog-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        if is_root() {
            chown(&path, Some(NOBODY), Some(NOBODY)).unwrap();
        }
        HogDir(path)
    }
}

impl Drop for HogDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn is_root() -> bool {
    rustix::process::getuid().is_root()
}

/// The path of this binary for the ordinary user: a copy, if it was built in a private directory.
fn binary() -> &'static Path {
    static REACHABLE: OnceLock<PathBuf> = OnceLock::new();
    REACHABLE.get_or_init(|| {
        let built = std::env::current_exe().unwrap();
        let reached = format!("{} test -x \"$0\"", as_user());
        if Command::new("sh").args(["-c", &reached]).arg(&built).status().unwrap().success() {
            return built;
        }
        let copy = std::env::temp_dir().join(format!("paddock-hogs-{}", std::process::id()));
        fs::copy(built, &copy).unwrap();
        fs::set_permissions(&copy, PermissionsExt::from_mode(0o755)).unwrap();
        copy
    })
}

/// The prefix of a command that runs as the ordinary user.
fn as_user() -> &'static str {
    if is_root() { "setpriv --reuid=65534 --regid=65534 --clear-groups" } else { "env" }
}

/// Groups that the ordinary user owns, as an administrator would create them.
struct DelegatedGroups(Vec<PathBuf>);

impl DelegatedGroups {
    fn none() -> DelegatedGroups {
        DelegatedGroups(Vec::new())
    }

    /// None: the machine has no such tree, or delegation is not possible.
    fn make(trees: &[&str]) -> Option<DelegatedGroups> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "paddock_hogs_{}_{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let mut made = DelegatedGroups::none();
        for tree in trees {
            let group = Path::new("/sys/fs/cgroup").join(tree).join(&name);
            if !is_root() || fs::create_dir(&group).is_err() {
                println!("skipped: no group can be delegated in the tree {tree}");
                return None;
            }
            chown(&group, Some(NOBODY), Some(NOBODY)).unwrap();
            for file in ["cgroup.procs", "cgroup.subtree_control"] {
                if group.join(file).exists() {
                    chown(group.join(file), Some(NOBODY), Some(NOBODY)).unwrap();
                }
            }
            if *tree == "pids" {
                fs::write(group.join("pids.max"), MAX_SAFE_TASKS.to_string()).unwrap();
            }
            made.0.push(group);
        }
        Some(made)
    }

    /// Groups that a session created and did not remove.
    fn left(&self) -> Vec<PathBuf> {
        let below =
            |group: &PathBuf| fs::read_dir(group).unwrap().map(|entry| entry.unwrap().path());
        self.0.iter().flat_map(below).filter(|path| path.is_dir()).collect()
    }
}

impl Drop for DelegatedGroups {
    fn drop(&mut self) {
        self.0.iter().for_each(|group| empty_and_remove(group));
    }
}

/// Works also after a failed test left processes in it.
fn empty_and_remove(group: &Path) {
    let _ = fs::write(group.join("pids.max"), "0");
    let deadline = Instant::now() + Duration::from_secs(TIMEOUT_S);
    while fs::remove_dir(group).is_err() && Instant::now() < deadline {
        let below = fs::read_dir(group).into_iter().flatten().flatten().map(|entry| entry.path());
        below.filter(|path| path.is_dir()).for_each(|path| empty_and_remove(&path));
        for pid in fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default().lines() {
            if let Some(pid) = pid.parse().ok().and_then(Pid::from_raw) {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A cgroup of root around everything that a scene starts.
struct SafetyGroup(Option<PathBuf>);

impl SafetyGroup {
    fn new() -> SafetyGroup {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "paddock_safety_{}_{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let group = Path::new("/sys/fs/cgroup/pids").join(name);
        let made = is_root() && fs::create_dir(&group).is_ok();
        if made {
            // Another test may have cleared the umask at this moment.
            fs::set_permissions(&group, fs::Permissions::from_mode(0o755)).unwrap();
            fs::write(group.join("pids.max"), MAX_SAFE_TASKS.to_string()).unwrap();
        }
        SafetyGroup(made.then_some(group))
    }
}

impl Drop for SafetyGroup {
    fn drop(&mut self) {
        self.0.iter().for_each(|group| empty_and_remove(group));
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum HogTier {
    Landlock,
    Full,
}

fn run(
    tier: HogTier,
    delegated: &DelegatedGroups,
    limits: RequestedLimits,
    argv: &[&str],
) -> HogResult {
    let dir = HogDir::new();
    let scene = json!({
        "full": tier == HogTier::Full,
        "limits": {
            "memory_mb": limits.memory_mb, "processes": limits.processes, "cpu_s": limits.cpu_s,
            "open_files": limits.open_files, "file_size_mb": limits.file_size_mb,
            "wall_s": limits.wall_s,
        },
        "argv": argv,
    });
    // Joins the groups as root, then becomes the ordinary user. A delegated pids group has its own
    // safety limit.
    let safety = if delegated.0.iter().any(|group| group.starts_with("/sys/fs/cgroup/pids")) {
        SafetyGroup(None)
    } else {
        SafetyGroup::new()
    };
    let joins: String = delegated
        .0
        .iter()
        .chain(&safety.0)
        .map(|group| format!("echo $$ > {}/cgroup.procs || exit 9; ", group.display()))
        .collect();
    let script = format!("{joins}exec prlimit --nproc={} {} \"$@\"", 2 * MAX_SAFE_TASKS, as_user());
    let output = Command::new("sh")
        .args(["-c", &script, "sh"])
        .arg(binary())
        .args([
            "--exact",
            "limits::resource_hogs::supervisor",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .env("PADDOCK_SCENE", scene.to_string())
        .current_dir(&dir.0)
        .output()
        .unwrap();
    let result = fs::read(dir.0.join("result"));
    let result = result.unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    let result: HogResult = serde_json::from_slice(&result).unwrap();
    assert_eq!(delegated.left(), Vec::<PathBuf>::new(), "groups were left behind");
    assert!(!result.timed_out, "{result:?}");
    println!("{} {result:?}", argv.join(" ").lines().nth(1).unwrap_or_default());
    result
}

#[test]
#[ignore = "the supervisor's part, started by the other tests as an ordinary user"]
fn supervisor() {
    let Ok(scene) = std::env::var("PADDOCK_SCENE") else { return };
    let scene: Value = serde_json::from_str(&scene).unwrap();
    let requested: RequestedLimits = serde_json::from_value(scene["limits"].clone()).unwrap();
    let argv: Vec<String> = serde_json::from_value(scene["argv"].clone()).unwrap();
    let full = scene["full"] == true;
    let own = rustix::process::getpid();
    rustix::process::set_child_subreaper(Some(own)).unwrap();

    let limits =
        Limits::prepare(&requested, full, &format!("{:016x}", own.as_raw_nonzero())).unwrap();
    let active = limits.active().iter().map(ActiveLimit::to_string).collect();
    // A second scan would slow the watchdog down, so it runs only if the kernel enforces the limit.
    let held_by_kernel =
        limits.active_limit(Limit::Processes).is_some_and(|active| active.means != Means::Watchdog);
    let (mut child, first, _stderr) = start(full, &argv);
    limits.admit(first).unwrap();
    for (resource, value) in limits.rlimits() {
        // As the sandbox does it: an ordinary user can not raise a hard limit.
        let value =
            rustix::process::getrlimit(*resource).maximum.map_or(*value, |hard| hard.min(*value));
        let limit = Rlimit { current: Some(value), maximum: Some(value) };
        rustix::process::prlimit(Some(first), *resource, limit).unwrap();
    }
    // A last bound if everything else fails.
    let backstop = Rlimit { current: Some(TIMEOUT_S), maximum: Some(TIMEOUT_S) };
    if requested.cpu_s.is_none() {
        rustix::process::prlimit(Some(first), Resource::Cpu, backstop).unwrap();
    }
    let (proc, tree) = if full {
        (open_proc(&format!("/proc/{}/root/proc", first.as_raw_nonzero())), ProcessTree::Namespace)
    } else {
        (open_proc("/proc"), ProcessTree::DescendantsOf(own))
    };
    let mut watch = limits.watch(proc.as_fd(), tree, &[]).unwrap();
    let mut usage =
        crate::limits::process_usage::ProcessUsage::new(proc.as_fd(), tree, &[]).unwrap();
    let main = Pid::from_raw(child.id() as i32).unwrap();
    let started = Instant::now();
    writeln!(child.stdin.take().unwrap(), "go").unwrap();

    let mut timed_out = false;
    let (mut checks, mut check_time, mut max_tasks) = (0, Duration::ZERO, 0);
    let (end, exceeded) = loop {
        if let Some((pid, status)) = rustix::process::wait(WaitOptions::NOHANG).unwrap() {
            if pid == main {
                break (Some(status), None);
            }
            continue;
        }
        if watch.next_check().is_some_and(|next| Instant::now() >= next) {
            let before = Instant::now();
            let exceeded = watch.check();
            checks += 1;
            check_time += before.elapsed();
            if exceeded.is_some() {
                break (None, exceeded);
            }
        }
        if held_by_kernel {
            let columns =
                crate::limits::process_usage::UsageFields { stat: true, ..Default::default() };
            max_tasks = max_tasks.max(usage.count(columns).unwrap().tasks);
        }
        if started.elapsed() > Duration::from_secs(TIMEOUT_S) {
            timed_out = true;
            break (None, None);
        }
        let pause = watch
            .next_check()
            .map_or(Duration::MAX, |next| next.saturating_duration_since(Instant::now()));
        std::thread::sleep(pause.min(Duration::from_millis(2)));
    };
    let elapsed_ms = started.elapsed().as_millis() as u64;
    let verdict_at = Instant::now();
    let end = end_all(&mut watch, main, end, full.then_some(first));
    let kill_ms = verdict_at.elapsed().as_millis() as u64;
    let met = limits.finish(exceeded).iter().map(text_of).collect();
    let code = end.exit_status().or(end.terminating_signal().map(|signal| 128 + signal)).unwrap();
    // The run was ended, independent of the command's own exit code.
    let code = if exceeded.is_some() { 137 } else { code };
    let result = HogResult {
        code,
        active,
        timed_out,
        met,
        elapsed_ms,
        kill_ms,
        checks,
        check_us: check_time.as_micros() as u64 / u64::from(checks.max(1)),
        max_tasks,
        output: fs::read_to_string("output").unwrap(),
        reached: fs::read_to_string("reach")
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(0),
    };
    fs::write("result", serde_json::to_vec(&result).unwrap()).unwrap();
}

fn text_of(exceeded: &ExceededLimit) -> String {
    let ended = if exceeded.ended { " (ended)" } else { "" };
    format!("{exceeded} by {}{ended}", exceeded.means.name())
}

fn open_proc(path: &str) -> OwnedFd {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .unwrap()
}

/// A shell that waits for a line before it runs the command. In the full tier it is init of the
/// namespaces. Also returns the pid of init as seen from here.
fn start(full: bool, argv: &[String]) -> (Child, Pid, BufReader<ChildStderr>) {
    let mut command = if full {
        let mut command = Command::new("unshare");
        command.args([
            "--user",
            "--map-current-user",
            "--pid",
            "--fork",
            "--mount-proc",
            "--kill-child",
        ]);
        // Not exec: the shell stays and reaps orphans.
        command.args(["sh", "-c", "echo ready >&2; read go; \"$@\" 2>&1; exit $?", "sh"]);
        command
    } else {
        let mut command = Command::new("sh");
        command.args(["-c", "echo ready >&2; read go; exec \"$@\" 2>&1", "sh"]);
        command
    };
    let output = File::create("output").unwrap();
    command.args(argv).stdin(Stdio::piped()).stdout(output).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    stderr.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let pid = child.id();
    let first = match full {
        true => fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))
            .unwrap()
            .trim()
            .parse()
            .unwrap(),
        false => pid as i32,
    };
    (child, Pid::from_raw(first).unwrap(), stderr)
}

/// Ends all processes that are left, and returns how the command ended.
fn end_all(
    watch: &mut crate::limits::watchdog::Watchdog<'_>,
    main: Pid,
    end: Option<WaitStatus>,
    init: Option<Pid>,
) -> WaitStatus {
    let mut end = end;
    let deadline = Instant::now() + Duration::from_secs(TIMEOUT_S);
    if let (Some(init), None) = (init, end) {
        rustix::process::kill_process(init, Signal::KILL).unwrap();
    }
    loop {
        // `unshare` reports its child's signal, so it is not killed.
        if init.is_none() {
            watch.kill();
        }
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == main => end = Some(status),
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => return end.unwrap(),
            }
        }
        assert!(Instant::now() < deadline, "somebody does not die");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn python<'a>(script: &'a str, argument: &'a str) -> [&'a str; 4] {
    ["/usr/bin/python3", "-c", script, argument]
}

fn megabytes(memory_mb: u64) -> RequestedLimits {
    RequestedLimits { memory_mb: Some(memory_mb), ..NONE }
}

fn assert_ended(result: &HogResult, met: &str) {
    assert!(result.output.starts_with("started\n"), "{result:?}");
    assert!(!result.output.contains("full"), "{result:?}");
    assert_eq!(result.code, 137, "{result:?}");
    assert_eq!(result.met, [format!("{met} (ended)")], "{result:?}");
}

fn assert_unharmed(result: &HogResult) {
    assert_eq!((result.code, result.output.as_str()), (0, "started\nfull\n"), "{result:?}");
    assert!(result.met.is_empty(), "{result:?}");
}

/// Doubles itself until fork fails. It prints a line before, and one after if it ever ends.
const BOMB: &str = "echo started; bomb() { bomb & bomb & wait; }; bomb; echo full";
/// Continues when fork fails.
const STUBBORN_BOMB: &str = "
import os
print('started', flush=True)
while True:
    try: os.fork()
    except OSError: pass";
/// A fixed number of processes at once.
const CROWD: &str =
    "echo started; i=0; while [ $i -lt 60 ]; do sleep 1 & i=$((i+1)); done; wait; echo full";

fn tasks(processes: u64) -> RequestedLimits {
    RequestedLimits { processes: Some(processes), ..NONE }
}

/// The bomb runs until the wall clock ends it, and never has more tasks than allowed.
fn assert_bomb_is_limited(tier: HogTier, delegated: &DelegatedGroups, means: &str) {
    let limits = RequestedLimits { wall_s: Some(1), ..tasks(40) };
    let result = run(tier, delegated, limits, &python(STUBBORN_BOMB, ""));
    assert_eq!(result.active[0], format!("processes 40: {means}"));
    // Init of the namespace is not the command's.
    assert!((30..=41).contains(&result.max_tasks), "{result:?}");
    let expected = [
        "wall_s 1 exceeded by watchdog (ended)".to_owned(),
        format!("processes 40 exceeded by {means}"),
    ];
    assert_eq!(result.met, expected, "{result:?}");
    let gives_up = run(tier, delegated, limits, &["sh", "-c", BOMB]);
    assert!(
        gives_up.output.starts_with("started\n") && gives_up.output.contains("Cannot fork"),
        "{gives_up:?}"
    );
}

#[test]
fn a_bomb_is_ended_by_the_watchdog() {
    let result = run(HogTier::Landlock, &DelegatedGroups::none(), tasks(40), &["sh", "-c", BOMB]);
    assert_eq!(result.active, ["processes 40: watchdog"]);
    assert_ended(&result, "processes 40 exceeded by watchdog");
    let result =
        run(HogTier::Landlock, &DelegatedGroups::none(), tasks(40), &python(STUBBORN_BOMB, ""));
    assert_ended(&result, "processes 40 exceeded by watchdog");
    assert_unharmed(&run(HogTier::Landlock, &DelegatedGroups::none(), NONE, &["sh", "-c", CROWD]));
    assert_unharmed(&run(
        HogTier::Landlock,
        &DelegatedGroups::none(),
        tasks(80),
        &["sh", "-c", CROWD],
    ));
}

#[test]
fn a_user_namespace_limits_a_bomb() {
    assert_bomb_is_limited(HogTier::Full, &DelegatedGroups::none(), "user namespace");
    assert_unharmed(&run(HogTier::Full, &DelegatedGroups::none(), NONE, &["sh", "-c", CROWD]));
    assert_unharmed(&run(HogTier::Full, &DelegatedGroups::none(), tasks(80), &["sh", "-c", CROWD]));
}

/// Three at once, each in short-lived children that are reaped; `$0` says how long.
const BURNERS: &str = "
echo started
one() { i=0; while [ $i -lt 8 ]; do (j=0; while [ $j -lt $1 ]; do j=$((j+1)); done); i=$((i+1)); \
done; }
one $0 & one $0 & one $0 & wait
echo full";
/// The kernel reaps the children of a process that ignores SIGCHLD, and forgets their time.
const FORGOTTEN: &str = "
import os, signal, time
print('started', flush=True)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for round in range(40):
    if os.fork() == 0:
        while time.process_time() < 0.5: pass
        os._exit(0)
    try: os.wait()
    except ChildProcessError: pass
print('full')";

fn seconds(cpu_s: u64) -> RequestedLimits {
    RequestedLimits { cpu_s: Some(cpu_s), ..NONE }
}

#[test]
fn processor_time_of_the_whole_tree_is_limited() {
    for tier in [HogTier::Landlock, HogTier::Full] {
        let result =
            run(tier, &DelegatedGroups::none(), seconds(1), &["sh", "-c", BURNERS, "10000000"]);
        assert_eq!(result.active, ["cpu_s 1: watchdog"]);
        assert_ended(&result, "cpu_s 1 exceeded by watchdog");
        assert_unharmed(&run(
            tier,
            &DelegatedGroups::none(),
            NONE,
            &["sh", "-c", BURNERS, "30000"],
        ));
        assert_unharmed(&run(
            tier,
            &DelegatedGroups::none(),
            seconds(20),
            &["sh", "-c", BURNERS, "30000"],
        ));
    }
}

#[test]
fn time_of_unreaped_children_counts() {
    let result =
        run(HogTier::Landlock, &DelegatedGroups::none(), seconds(2), &python(FORGOTTEN, ""));
    assert_ended(&result, "cpu_s 2 exceeded by watchdog");
}

#[test]
fn the_wall_clock_ends_a_run() {
    let limits = RequestedLimits { wall_s: Some(1), ..NONE };
    for tier in [HogTier::Landlock, HogTier::Full] {
        let result = run(
            tier,
            &DelegatedGroups::none(),
            limits,
            &["sh", "-c", "echo started; sleep 2; echo full"],
        );
        assert_ended(&result, "wall_s 1 exceeded by watchdog");
        assert!((950..1900).contains(&result.elapsed_ms), "{result:?}");
        assert_eq!(result.checks, 1, "a clock needs no looking in between");
        assert_unharmed(&run(
            tier,
            &DelegatedGroups::none(),
            NONE,
            &["sh", "-c", "echo started; sleep 2; echo full"],
        ));
    }
}

#[test]
fn open_files_are_limited() {
    let script =
        "import os; print('started', flush=True); [os.dup(1) for _ in range(100)]; print('full')";
    let limits = RequestedLimits { open_files: Some(64), ..NONE };
    let result = run(HogTier::Landlock, &DelegatedGroups::none(), limits, &python(script, ""));
    assert!(result.code == 1 && result.output.contains("Too many open files"), "{result:?}");
    assert_eq!(result.active, ["open_files 64: rlimit"]);
    assert_unharmed(&run(HogTier::Landlock, &DelegatedGroups::none(), NONE, &python(script, "")));
}

#[test]
fn file_sizes_are_limited() {
    // Python ignores SIGXFSZ, so it gets the error.
    let script = "
print('started', flush=True)
file = open('big', 'wb', buffering=0)
try:
    for _ in range(3): file.write(b'x' * (1 << 20))
except OSError as error:
    print(error.strerror)
import os
open('reach', 'w').write(str(os.stat('big').st_size))
print('full')";
    let limits = RequestedLimits { file_size_mb: Some(1), ..NONE };
    let result = run(HogTier::Landlock, &DelegatedGroups::none(), limits, &python(script, ""));
    assert_eq!(
        (result.output.as_str(), result.reached),
        ("started\nFile too large\nfull\n", 1 << 20)
    );
    let control = run(HogTier::Landlock, &DelegatedGroups::none(), NONE, &python(script, ""));
    assert_eq!((control.output.as_str(), control.reached), ("started\nfull\n", 3 << 20));
    // The process that starts the tests may ignore the signal, and the command inherits that.
    let script = "exec head -c 3000000 /dev/zero > big";
    let killed = run(
        HogTier::Landlock,
        &DelegatedGroups::none(),
        limits,
        &["env", "--default-signal", "sh", "-c", script],
    );
    assert_eq!(killed.code, 128 + libc::SIGXFSZ);
}

#[test]
fn a_group_of_version_1_holds_memory() {
    let Some(delegated) = DelegatedGroups::make(&["memory"]) else { return };
    for tier in [HogTier::Landlock, HogTier::Full] {
        let result = run(tier, &delegated, megabytes(64), &python(SHARED_HOG, "1500"));
        assert_eq!(result.active, ["memory_mb 64: cgroup v1"]);
        assert_ended(&result, "memory_mb 64 exceeded by cgroup v1");
        assert!(result.reached <= 64, "it got {} MB", result.reached);
        let result = run(tier, &delegated, megabytes(64), &python(MANY_SMALL, "60"));
        assert_ended(&result, "memory_mb 64 exceeded by cgroup v1");
        assert_unharmed(&run(tier, &delegated, megabytes(600), &python(SHARED_HOG, "300")));
        assert_unharmed(&run(tier, &delegated, NONE, &python(SHARED_HOG, "300")));
    }
}

#[test]
fn a_group_of_version_1_holds_processes() {
    let Some(delegated) = DelegatedGroups::make(&["pids"]) else { return };
    for tier in [HogTier::Landlock, HogTier::Full] {
        assert_bomb_is_limited(tier, &delegated, "cgroup v1");
        assert_unharmed(&run(tier, &delegated, tasks(80), &["sh", "-c", CROWD]));
    }
}

#[test]
fn a_cgroup_measures_all_cpu_time() {
    for (tree, version) in [("cpuacct", "cgroup v1"), ("unified", "cgroup v2")] {
        let Some(delegated) = DelegatedGroups::make(&[tree]) else { continue };
        for (program, script) in [("sh", BURNERS), ("/usr/bin/python3", FORGOTTEN)] {
            let result = run(
                HogTier::Landlock,
                &delegated,
                seconds(1),
                &[program, "-c", script, "10000000"],
            );
            assert_eq!(result.active, [format!("cpu_s 1: {version}")]);
            assert_ended(&result, &format!("cpu_s 1 exceeded by {version}"));
        }
        assert_unharmed(&run(
            HogTier::Landlock,
            &delegated,
            seconds(20),
            &["sh", "-c", BURNERS, "30000"],
        ));
    }
}

#[test]
fn a_session_removes_groups_of_a_killed_session() {
    let Some(delegated) = DelegatedGroups::make(&["pids"]) else { return };
    let forgotten = delegated.0[0].join("paddock-0123456789abcdef");
    fs::create_dir(&forgotten).unwrap();
    chown(&forgotten, Some(NOBODY), Some(NOBODY)).unwrap();
    assert_eq!(
        run(HogTier::Landlock, &delegated, tasks(80), &["true"]).active,
        ["processes 80: cgroup v1"]
    );
    assert!(!forgotten.exists());
}
