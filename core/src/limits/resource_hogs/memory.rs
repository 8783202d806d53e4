//! Memory of one process, of many processes, and shared memory.

use super::*;

/// Fills shared mappings, which no rlimit of a process counts. Only the watchdog or a cgroup sees
/// them.
pub const SHARED_HOG: &str = "
import mmap, os, sys
print('started', flush=True)
total = int(sys.argv[1])
reach = os.open('reach', os.O_WRONLY | os.O_CREAT)
memory = mmap.mmap(-1, total << 20)
block = b'x' * (1 << 20)
for index in range(total):
    memory[index << 20 : (index + 1) << 20] = block
    os.pwrite(reach, b'%08d' % (index + 1), 0)
print('full')
";

/// Children with 20 MB each, written after the fork. All of them wait for the last.
pub const MANY_SMALL: &str = "
import os, sys
print('started', flush=True)
count = int(sys.argv[1])
reach = os.open('reach', os.O_WRONLY | os.O_CREAT)
ready, tell = os.pipe()
held, hold = os.pipe()
for index in range(count):
    if os.fork() == 0:
        os.close(hold)
        block = bytearray(b'x' * (20 << 20))
        os.write(tell, b'x')
        os.read(held, 1)
        os._exit(0)
    os.read(ready, 1)
    os.pwrite(reach, b'%08d' % (index + 1), 0)
print('full')
";

/// Children that share the memory of their parent: 30 times 100 MB if counted per process, 100 MB
/// if counted once.
const SHARED_BY_FORK: &str = "
import os, time
print('started', flush=True)
block = b'x' * (100 << 20)
held, hold = os.pipe()
for index in range(30):
    if os.fork() == 0:
        os.close(hold)
        os.read(held, 1)
        os._exit(0)
time.sleep(1)
print('full')
";

#[test]
fn one_hog_is_stopped_by_the_watchdog() {
    for tier in [HogTier::Landlock, HogTier::Full] {
        let result =
            run(tier, &DelegatedGroups::none(), megabytes(128), &python(SHARED_HOG, "1500"));
        assert_eq!(result.active, ["memory_mb 128: watchdog"]);
        assert_ended(&result, "memory_mb 128 exceeded by watchdog");
        assert!(result.reached < 1000, "it got {} MB", result.reached);
        let control = run(tier, &DelegatedGroups::none(), NONE, &python(SHARED_HOG, "300"));
        assert_unharmed(&control);
        assert_eq!(control.reached, 300);
    }
}

#[test]
fn many_small_hogs_are_stopped_by_the_watchdog() {
    for tier in [HogTier::Landlock, HogTier::Full] {
        let result = run(tier, &DelegatedGroups::none(), megabytes(256), &python(MANY_SMALL, "60"));
        assert_ended(&result, "memory_mb 256 exceeded by watchdog");
        assert!(result.reached < 40, "{} of them", result.reached);
        assert_unharmed(&run(tier, &DelegatedGroups::none(), NONE, &python(MANY_SMALL, "20")));
    }
}

#[test]
fn memory_that_is_shared_counts_once() {
    for tier in [HogTier::Landlock, HogTier::Full] {
        assert_unharmed(&run(
            tier,
            &DelegatedGroups::none(),
            megabytes(400),
            &python(SHARED_BY_FORK, ""),
        ));
    }
}

#[test]
fn a_single_process_hits_its_rlimit_first() {
    let script = "print('started', flush=True); block = bytearray(10**9); print('full')";
    let result =
        run(HogTier::Landlock, &DelegatedGroups::none(), megabytes(512), &python(script, ""));
    assert!(result.code == 1 && result.output.contains("MemoryError"), "{result:?}");
    assert_unharmed(&run(HogTier::Landlock, &DelegatedGroups::none(), NONE, &python(script, "")));
}

#[test]
fn node_works_under_512_megabytes() {
    let script = "console.log('started'); setTimeout(() => console.log('full'), 300)";
    let groups = [Some(DelegatedGroups::none()), DelegatedGroups::make(&["memory"])];
    for delegated in groups.iter().flatten() {
        assert_unharmed(&run(
            HogTier::Landlock,
            delegated,
            megabytes(512),
            &["node", "-e", script],
        ));
    }
    let hog = "console.log('started'); let a = []; for (;;) a.push(Buffer.alloc(1 << 24, 1))";
    let result =
        run(HogTier::Landlock, &DelegatedGroups::none(), megabytes(512), &["node", "-e", hog]);
    assert!(result.output.starts_with("started\n") && result.code != 0, "{result:?}");
}

#[test]
fn the_tree_has_a_high_oom_score() {
    let show = ["cat", "/proc/self/oom_score_adj"];
    assert_eq!(
        run(HogTier::Landlock, &DelegatedGroups::none(), megabytes(512), &show).output,
        "500\n"
    );
    assert_eq!(run(HogTier::Full, &DelegatedGroups::none(), megabytes(512), &show).output, "500\n");
    let own = fs::read_to_string("/proc/self/oom_score_adj").unwrap();
    assert_eq!(run(HogTier::Landlock, &DelegatedGroups::none(), NONE, &show).output, own);
}
