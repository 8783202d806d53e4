//! A guard on real directories. An event is in the kernel's queue as soon as the call that made it
//! returns, so a test acts, takes a turn, and needs no waiting. Each test also has a name that
//! stays.

mod hostile;
mod repositories;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{AtFlags, FileType};

use crate::files::guard::*;
use crate::files::test_tree::{self, DENIED, PROTECTED, TestTree, absolute};
use crate::files::walk;

struct GuardedTree {
    scene: TestTree,
    guard: Guard,
    at_start: Vec<Cover>,
    put: Vec<Cover>,
    events: Vec<GuardEvent>,
}

impl GuardedTree {
    /// The tree `w` of a scene, watched.
    fn over(scene: TestTree) -> GuardedTree {
        GuardedTree::with(scene, &[], "taken")
    }

    fn with(scene: TestTree, opened: &[&str], quarantine: impl AsRef<Path>) -> GuardedTree {
        let names = test_tree::names(DENIED, PROTECTED, opened);
        let trees = [scene.tree("w", true)];
        let (guard, at_start) =
            Guard::arm(names, &trees, &[], &[], absolute(&scene.path(quarantine))).unwrap();
        GuardedTree { scene, guard, at_start, put: Vec::new(), events: Vec::new() }
    }

    fn turn(&mut self) -> &mut GuardedTree {
        self.try_turn().unwrap();
        self
    }

    fn try_turn(&mut self) -> Result<(), GuardError> {
        let GuardedTree { guard, put, events, .. } = self;
        let mut put_covers = |covers: &[Cover]| {
            put.extend_from_slice(covers);
            Ok(vec![CoverResult::Now; covers.len()])
        };
        // A turn ends at its timeout. On a busy machine another turn does the rest.
        loop {
            guard.turn(&mut put_covers, &mut |event| events.push(event))?;
            if !guard.is_due() {
                return Ok(());
            }
        }
    }

    fn finish(&mut self) -> &mut GuardedTree {
        let events = &mut self.events;
        self.guard.finish(&mut |event| events.push(event)).unwrap();
        self
    }

    /// The quarantined names, sorted. No failure is allowed.
    fn quarantined(&self) -> Vec<String> {
        let mut quarantined = Vec::new();
        for event in &self.events {
            match event {
                GuardEvent::Quarantined { path, moved_to, whole } => {
                    assert!(*whole);
                    assert!(
                        fs::symlink_metadata(OsStr::from_bytes(moved_to.as_bytes())).is_ok(),
                        "{moved_to}"
                    );
                    quarantined.push(self.scene.relative(path));
                }
                GuardEvent::Masked { .. } => {}
                GuardEvent::Removed { .. } | GuardEvent::Failed { .. } => panic!("{event:?}"),
            }
        }
        quarantined.sort();
        quarantined
    }

    fn put(&self) -> Vec<String> {
        self.put
            .iter()
            .map(|cover| format!("{:?} {}", cover.kind, self.scene.relative(&cover.path)))
            .collect()
    }

    fn exists(&self, name: impl AsRef<Path>) -> bool {
        fs::symlink_metadata(self.scene.path(name)).is_ok()
    }

    fn quarantined_content(&self, number: u32, name: &str) -> Vec<u8> {
        fs::read(self.scene.path(format!("taken/{number}/{name}"))).unwrap()
    }
}

/// Git with no configuration but this.
fn git(dir: &Path, arguments: &[&str]) -> bool {
    let output = Command::new("git")
        .args([
            "-c",
            "user.name=ada",
            "-c",
            "user.email=ada@example.org",
            "-c",
            "init.defaultBranch=main",
        ])
        .args(arguments)
        .current_dir(dir)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null")
        .output()
        .unwrap();
    output.status.success()
}

#[test]
fn a_new_protected_name_is_quarantined() {
    let mut watch = GuardedTree::over(TestTree::new());
    watch.scene.file("w/.envrc");
    watch.scene.file("w/.vscode/tasks.json");
    watch.scene.file("w/plain");
    watch.turn();
    assert_eq!(watch.quarantined(), ["w/.envrc", "w/.vscode"]);
    assert!(!watch.exists("w/.envrc") && !watch.exists("w/.vscode") && watch.exists("w/plain"));
    assert_eq!(watch.quarantined_content(1, ".envrc"), b"w/.envrc");
    assert_eq!(watch.quarantined_content(2, ".vscode/tasks.json"), b"w/.vscode/tasks.json");
    assert_eq!(fs::metadata(watch.scene.path("taken")).unwrap().mode() & 0o777, 0o700);
    assert!(watch.put.is_empty());
}

#[test]
fn no_quarantine_is_made_without_a_removed_name() {
    let mut watch = GuardedTree::over(TestTree::new());
    watch.scene.file("w/a/b/c");
    watch.turn().finish();
    assert!(watch.quarantined().is_empty() && !watch.exists("taken"));
}

#[test]
fn a_new_denied_name_is_masked_and_stays() {
    let mut watch = GuardedTree::over(TestTree::new());
    watch.scene.file("w/a/.env");
    watch.scene.file("w/a/env");
    watch.turn();
    assert_eq!(watch.put(), ["Mask w/a/.env"]);
    let identity = Identity::from(&rustix::fs::stat(watch.scene.path("w/a/.env")).unwrap());
    assert_eq!(watch.put[0].identity, identity);
    let [GuardEvent::Masked { window, .. }] = &watch.events[..] else { panic!() };
    assert!(*window < Duration::from_secs(10));
    // Replaced by rename, as editors do.
    watch.put.clear();
    fs::rename(watch.scene.file("w/a/new"), watch.scene.path("w/a/.env")).unwrap();
    watch.turn();
    assert_eq!(watch.put(), ["Mask w/a/.env"]);
    assert!(watch.exists("w/a/.env") && watch.quarantined().is_empty());
}

#[test]
fn a_denied_and_protected_name_is_masked_and_quarantined() {
    let scene = TestTree::new();
    let names = test_tree::names(&["**/.env"], &["**/.env", "**/.envrc"], &[]);
    let trees = [scene.tree("w", true)];
    let (guard, at_start) =
        Guard::arm(names, &trees, &[], &[], absolute(&scene.path("taken"))).unwrap();
    let mut watch = GuardedTree { scene, guard, at_start, put: Vec::new(), events: Vec::new() };
    watch.scene.file("w/.env");
    watch.scene.file("w/.envrc");
    watch.turn();
    assert_eq!(
        (watch.put(), watch.quarantined()),
        (vec!["Mask w/.env".to_owned()], vec!["w/.env".to_owned(), "w/.envrc".to_owned()])
    );
}

#[test]
fn a_new_exact_path_is_pinned_too() {
    let scene = TestTree::new();
    let exact = scene.path("w/a/b/secret");
    let names = test_tree::names(&[exact.to_str().unwrap()], &[], &[]);
    let (guard, at_start) =
        Guard::arm(names, &[scene.tree("w", true)], &[], &[], absolute(&scene.path("taken")))
            .unwrap();
    let mut watch = GuardedTree { scene, guard, at_start, put: Vec::new(), events: Vec::new() };
    watch.scene.file("w/a/b/secret");
    watch.turn();
    assert_eq!(watch.put(), ["Pin w/a", "Pin w/a/b", "Mask w/a/b/secret"]);
}

#[test]
fn a_directory_that_appears_is_judged_as_a_whole() {
    let mut watch = GuardedTree::over(TestTree::new());
    // Made at once, before the guard looks.
    watch.scene.file("w/one/two/.git/hooks/pre-commit");
    watch.scene.file("w/one/two/.git/hooks/pre-commit.sample");
    // Prepared elsewhere and moved in.
    for name in ["deep/.husky/pre-push", "deep/src/main.rs", ".npmrc"] {
        watch.scene.file(Path::new("outside").join(name));
    }
    fs::rename(watch.scene.path("outside"), watch.scene.path("w/inside")).unwrap();
    watch.turn();
    assert_eq!(
        watch.quarantined(),
        ["w/inside/.npmrc", "w/inside/deep/.husky", "w/one/two/.git/hooks/pre-commit"]
    );
    assert!(
        watch.exists("w/inside/deep/src/main.rs")
            && watch.exists("w/one/two/.git/hooks/pre-commit.sample")
    );
    // New names in them are seen as well.
    watch.scene.file("w/inside/deep/src/.envrc");
    watch.turn();
    assert!(!watch.exists("w/inside/deep/src/.envrc"));
}

#[test]
fn a_directory_renamed_to_a_protected_name_is_quarantined_and_others_stay_watched() {
    let scene = TestTree::new();
    scene.file("w/prepared/tasks.json");
    scene.file("w/repo/hooks/pre-commit");
    scene.dir("w/moved/deep");
    let mut watch = GuardedTree::over(scene);
    let rename = |watch: &GuardedTree, from: &str, to: &str| {
        fs::rename(watch.scene.path(from), watch.scene.path(to)).unwrap();
    };
    rename(&watch, "w/prepared", "w/.vscode");
    rename(&watch, "w/repo", "w/.git");
    rename(&watch, "w/moved", "w/renamed");
    watch.turn();
    assert_eq!(watch.quarantined(), ["w/.git/hooks/pre-commit", "w/.vscode"]);
    watch.scene.file("w/renamed/deep/.envrc");
    rename(&watch, "w/renamed", "w/again");
    watch.turn();
    assert!(!watch.exists("w/again/deep/.envrc") && watch.exists("w/again/deep"));
}

#[test]
fn objects_of_the_start_are_never_quarantined() {
    let scene = TestTree::new();
    for name in ["w/dir/.envrc", "w/.vscode/settings.json", "w/sub/.git/config", "w/.npmrc"] {
        scene.file(name);
    }
    scene.link("w/dir/.bashrc", "/nowhere");
    let mut watch = GuardedTree::over(scene);
    assert_eq!(watch.at_start.len(), 6);
    // It moves with its directory, and another one at its old path is new.
    fs::rename(watch.scene.path("w/dir"), watch.scene.path("w/moved")).unwrap();
    watch.scene.file("w/dir/.envrc");
    // Moved from outside, or replaced: inside it is a mount point.
    watch.scene.dir("w/elsewhere");
    fs::rename(watch.scene.path("w/.vscode"), watch.scene.path("w/elsewhere/.vscode")).unwrap();
    fs::rename(watch.scene.file("w/new"), watch.scene.path("w/.npmrc")).unwrap();
    fs::remove_file(watch.scene.path("w/sub/.git/config")).unwrap();
    watch.scene.file("w/sub/.git/config");
    watch.turn();
    // A removed name that appears again may be the command's.
    assert_eq!(watch.quarantined(), ["w/dir/.envrc", "w/sub/.git/config"]);
    assert_eq!(watch.put(), ["Lock w/.npmrc"]);
    assert!(watch.exists("w/elsewhere/.vscode/settings.json"));
    assert!(
        watch.exists("w/moved/.envrc")
            && watch.exists("w/moved/.bashrc")
            && watch.exists("w/.npmrc")
    );
    watch.finish();
    assert_eq!(watch.quarantined(), ["w/dir/.envrc", "w/sub/.git/config"]);
}

#[test]
fn the_inode_number_of_a_removed_file_means_nothing() {
    let scene = TestTree::new();
    let names: Vec<String> = (0..20).map(|number| format!("w/{number}/.envrc")).collect();
    for name in &names {
        scene.file(name);
    }
    let mut watch = GuardedTree::over(scene);
    let inode = |path: PathBuf| fs::symlink_metadata(path).unwrap().ino();
    let mut reused = 0;
    for name in &names {
        let path = watch.scene.path(name);
        let before = inode(path.clone());
        fs::remove_file(path).unwrap();
        let other = watch.scene.file("w/.npmrc");
        reused += u32::from(inode(other) == before);
        watch.turn();
        assert!(!watch.exists("w/.npmrc"));
    }
    assert_eq!(watch.quarantined().len(), 20, "{reused} numbers were given again");
}

#[test]
fn a_link_is_quarantined_itself_and_not_followed() {
    let scene = TestTree::new();
    let victim = scene.file("victim/file");
    scene.file("w/target");
    scene.dir("w/sub/.git/worktrees");
    let mut watch = GuardedTree::over(scene);
    for (name, target) in [
        ("w/.envrc", victim.as_path()),
        ("w/.vscode", Path::new("../victim")),
        ("w/a.code-workspace", Path::new("target")),
        ("w/.git", Path::new("../victim")),
        // On the path of a pattern (G7, G16).
        ("w/.config", Path::new("../victim")),
        ("w/sub/.git/worktrees/n", Path::new("../../../../victim")),
        ("w/sub/.git/info", Path::new("../../../victim")),
        ("w/plain", Path::new("../victim")),
    ] {
        watch.scene.link(name, target);
    }
    watch.turn();
    assert_eq!(
        watch.quarantined(),
        [
            "w/.config",
            "w/.envrc",
            "w/.git",
            "w/.vscode",
            "w/a.code-workspace",
            "w/sub/.git/info",
            "w/sub/.git/worktrees/n",
        ]
    );
    assert!(watch.exists("w/plain") && watch.exists("w/target"));
    assert_eq!(fs::read(victim).unwrap(), b"victim/file");
}

#[test]
fn a_directory_that_becomes_a_link_is_not_followed() {
    let scene = TestTree::new();
    scene.dir("w/a/b");
    let victim = scene.file("victim/b/.envrc");
    let mut watch = GuardedTree::over(scene);
    watch.scene.file("w/a/b/.envrc");
    fs::rename(watch.scene.path("w/a"), watch.scene.path("w/c")).unwrap();
    watch.scene.link("w/a", "../victim");
    watch.turn();
    assert_eq!(watch.quarantined(), ["w/c/b/.envrc"]);
    assert!(victim.exists());
    // A directory that replaced it is new, and judged as such.
    fs::remove_file(watch.scene.path("w/a")).unwrap();
    watch.scene.file("w/c/b/.npmrc");
    fs::rename(watch.scene.path("w/c"), watch.scene.path("w/d")).unwrap();
    watch.scene.file("w/c/b/.npmrc");
    watch.turn();
    assert_eq!(watch.quarantined(), ["w/c/b/.envrc", "w/c/b/.npmrc", "w/d/b/.npmrc"]);
}

#[test]
fn a_denied_link_is_masked_with_its_target() {
    let scene = TestTree::new();
    scene.file("w/shared");
    let mut watch = GuardedTree::over(scene);
    watch.scene.link("w/.env", "shared");
    watch.turn();
    assert_eq!(watch.put(), ["Mask w/.env", "Mask w/shared"]);
}

/// The host gives covered files other names. A file that only looks like one of them stays.
#[test]
fn a_covered_file_is_covered_under_each_new_name() {
    let scene = TestTree::new();
    let env = scene.file("w/.env");
    let settings = scene.file("w/.envrc");
    let mut watch = GuardedTree::over(scene);
    let w = watch.scene.path("w");
    fs::hard_link(&env, w.join("linked")).unwrap();
    fs::hard_link(&settings, w.join("settings")).unwrap();
    fs::copy(&env, w.join("copied")).unwrap();
    watch.turn();
    assert_eq!(watch.put(), ["Mask w/linked", "Lock w/settings"]);
    // A file that is denied only since a moment ago, in a directory that appears as a whole.
    watch.put.clear();
    let later = watch.scene.file("w/d/.env");
    watch.turn();
    let made = watch.scene.dir("made");
    fs::hard_link(&later, made.join("inner")).unwrap();
    fs::rename(&made, w.join("e")).unwrap();
    watch.turn();
    assert_eq!(watch.put(), ["Mask w/d/.env", "Mask w/e/inner"]);
    assert!(watch.quarantined().is_empty());
    // The inode number of a removed file may be another file's.
    watch.put.clear();
    for name in [".env", "linked", "d/.env", "e/inner"] {
        fs::remove_file(w.join(name)).unwrap();
    }
    watch.turn();
    for number in 0..8 {
        fs::write(w.join(format!("new{number}")), "new").unwrap();
    }
    watch.turn();
    assert_eq!(watch.put(), [""; 0]);
}

#[test]
fn exceptions_may_appear() {
    let mut watch =
        GuardedTree::with(TestTree::new(), &["**/.npmrc", "**/.claude/worktrees"], "taken");
    for name in [
        "w/.npmrc",
        "w/.claude/worktrees/x/src",
        "w/.claude/worktrees/x/.vscode/y",
        "w/.claude/settings.json",
    ] {
        watch.scene.file(name);
    }
    watch.turn();
    assert_eq!(watch.quarantined(), ["w/.claude/settings.json", "w/.claude/worktrees/x/.vscode"]);
    assert!(watch.exists("w/.npmrc") && watch.exists("w/.claude/worktrees/x/src"));
}

#[test]
fn names_may_have_any_bytes_and_any_depth() {
    let mut watch = GuardedTree::over(TestTree::new());
    let odd = OsString::from_vec(b"w/\xff\n\x01/sub dir/.envrc".to_vec());
    watch.scene.file(&odd);
    let mut at =
        rustix::fs::open(watch.scene.path("w"), OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
    for _ in 0..1500 {
        rustix::fs::mkdirat(&at, c"dddd", rustix::fs::Mode::RWXU).unwrap();
        at = rustix::fs::openat(&at, c"dddd", OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
    }
    rustix::fs::mkdirat(&at, c".husky", rustix::fs::Mode::RWXU).unwrap();
    rustix::fs::mkdirat(&at, c"husky", rustix::fs::Mode::RWXU).unwrap();
    watch.turn();
    // One more, now that everything is watched.
    rustix::fs::mkdirat(&at, c".idea", rustix::fs::Mode::RWXU).unwrap();
    watch.turn();
    assert_eq!(watch.events.len(), 3);
    assert!(rustix::fs::statat(&at, c".husky", AtFlags::empty()).is_err());
    assert!(rustix::fs::statat(&at, c".idea", AtFlags::empty()).is_err());
    assert!(rustix::fs::statat(&at, c"husky", AtFlags::empty()).is_ok());
    assert!(!watch.exists(&odd) && watch.exists(Path::new(&odd).parent().unwrap()));
}

#[test]
fn lost_events_cause_a_full_scan() {
    let scene = TestTree::new();
    scene.file("w/a/.env");
    let mut watch = GuardedTree::over(scene);
    let limit: usize = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events")
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let dir = watch.scene.dir("w/many");
    watch.turn();
    for number in 0..limit + 10 {
        fs::File::create(dir.join(number.to_string())).unwrap();
    }
    watch.scene.file("w/a/.envrc");
    watch.scene.file("w/fresh/.vscode/x");
    fs::rename(watch.scene.file("w/new"), watch.scene.path("w/a/.env")).unwrap();
    for _ in 0..1000 {
        watch.turn();
    }
    assert_eq!(watch.quarantined(), ["w/a/.envrc", "w/fresh/.vscode"]);
    assert_eq!(watch.put(), ["Mask w/a/.env"]);
    // The guard goes on from there.
    watch.scene.file("w/fresh/.npmrc");
    watch.turn();
    assert!(!watch.exists("w/fresh/.npmrc"));
}

#[test]
fn an_object_that_leaves_the_tree_is_not_watched() {
    let scene = TestTree::new();
    scene.dir("w/leaves/deep");
    let mut watch = GuardedTree::over(scene);
    fs::rename(watch.scene.path("w/leaves"), watch.scene.path("left")).unwrap();
    let outside = watch.scene.file("left/deep/.envrc");
    watch.scene.file("w/.envrc");
    watch.turn().finish();
    assert!(outside.exists());
    assert_eq!(watch.quarantined(), ["w/.envrc"]);
    // The watch moved with it, and is dropped.
    assert_eq!(watch.guard.state.nodes.len(), 2);
}

#[test]
fn the_quarantine_may_be_in_the_tree_or_on_another_file_system() {
    let mut watch = GuardedTree::with(TestTree::new(), &[], "w/state/taken");
    watch.scene.file("w/.envrc");
    watch.turn();
    watch.scene.file("w/x");
    watch.turn().finish();
    assert_eq!(watch.quarantined(), ["w/.envrc"]);

    let other = PathBuf::from(format!("/dev/shm/paddock-taken-{}", std::process::id()));
    let scene = TestTree::new();
    if fs::metadata("/dev/shm").map(|facts| facts.dev()).ok()
        == fs::metadata(&scene.0).map(|facts| facts.dev()).ok()
    {
        return; // one file system only
    }
    let victim = scene.file("victim");
    let mut watch = GuardedTree::with(scene, &[], &other);
    watch.scene.file("w/.vscode/a/b");
    watch.scene.link("w/.vscode/link", &victim);
    fs::set_permissions(watch.scene.path("w/.vscode/a/b"), fs::Permissions::from_mode(0o751))
        .unwrap();
    let deep = watch.scene.dir(format!("w/.vscode/{}", vec!["d"; 80].join("/")));
    fs::write(deep.join("end"), "end").unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        watch.scene.path("w/.vscode/pipe"),
        FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .unwrap();
    watch.turn();
    assert_eq!(watch.quarantined(), ["w/.vscode"]);
    assert!(!watch.exists("w/.vscode") && victim.exists());
    let copy = other.join("1/.vscode");
    assert_eq!(fs::read(copy.join("a/b")).unwrap(), b"w/.vscode/a/b");
    assert_eq!(fs::metadata(copy.join("a/b")).unwrap().mode() & 0o777, 0o751);
    assert_eq!(fs::read_link(copy.join("link")).unwrap(), victim);
    let found = Command::new("find").arg(&other).args(["-name", "end"]).output().unwrap();
    assert_eq!(found.stdout.iter().filter(|byte| **byte == b'\n').count(), 1);
    fs::remove_dir_all(other).unwrap();
}

#[test]
fn a_covered_file_inside_does_not_keep_other_files() {
    let scene = TestTree::new();
    if fs::metadata("/dev/shm").map(|facts| facts.dev()).ok()
        == fs::metadata(&scene.0).map(|facts| facts.dev()).ok()
    {
        return; // one file system only
    }
    scene.file("w/app/.envrc");
    let store = PathBuf::from(format!("/dev/shm/paddock-spared-{}", std::process::id()));
    let mut watch = GuardedTree::with(scene, &[], &store);
    let names = ["a", "m/n", "z", ".deep-1/x", ".deep-2"];
    names.iter().for_each(|name| drop(watch.scene.file(format!("w/v/{name}"))));
    let deep = watch.scene.dir(format!("w/v/{}", vec!["d"; 80].join("/")));
    fs::write(deep.join("end"), "end").unwrap();
    fs::rename(watch.scene.path("w/app"), watch.scene.path("w/v/m/app")).unwrap();
    fs::rename(watch.scene.path("w/v"), watch.scene.path("w/.vscode")).unwrap();
    watch.turn();
    let path = absolute(&watch.scene.path("w/.vscode"));
    assert_eq!(watch.events, [GuardEvent::Failed { path, source: Errno::NOTEMPTY }]);
    let files =
        Command::new("find").arg(watch.scene.path("w")).args(["-type", "f"]).output().unwrap();
    let spared = watch.scene.path("w/.vscode/m/app/.envrc");
    assert_eq!(files.stdout.trim_ascii_end(), spared.as_os_str().as_bytes());
    assert!(names.iter().all(|name| store.join("1/.vscode").join(name).exists()));
    // The last scan is not complete while the name is there.
    assert!(watch.guard.finish(&mut |event| panic!("reported twice: {event:?}")).is_err());
    fs::rename(watch.scene.path("w/.vscode/m/app"), watch.scene.path("w/app")).unwrap();
    watch.finish();
    assert!(!watch.exists("w/.vscode") && watch.exists("w/app/.envrc"));
    fs::remove_dir_all(store).unwrap();
}

/// Prints the CPU time of turns; `cargo test --release -- --ignored --nocapture costs`.
#[test]
#[ignore = "a measurement"]
fn costs_of_a_turn() {
    let scene = TestTree::new();
    for dir in 0..800 {
        scene.dir(format!("w/d{}/s{}", dir / 20, dir % 20));
    }
    let started = test_tree::cpu_us();
    let mut watch = GuardedTree::over(scene);
    println!(
        "arm: {} us, {} watches",
        test_tree::cpu_us() - started,
        watch.guard.state.nodes.len()
    );
    for round in 0..3 {
        let dir = watch.scene.path(format!("w/d{round}/s1"));
        for number in 0..1000 {
            fs::File::create(dir.join(number.to_string())).unwrap();
        }
        let started = test_tree::cpu_us();
        watch.turn();
        println!("1000 plain files: {} us", test_tree::cpu_us() - started);
        watch.scene.file(format!("w/d{round}/.env"));
        let started = test_tree::cpu_us();
        watch.turn();
        println!("one denied: {} us", test_tree::cpu_us() - started);
        watch.scene.file(format!("w/d{round}/.envrc"));
        let started = test_tree::cpu_us();
        watch.turn();
        println!("one quarantined: {} us", test_tree::cpu_us() - started);
    }
    let started = test_tree::cpu_us();
    watch.finish();
    println!("finish: {} us", test_tree::cpu_us() - started);
}
