//! A guard on real directories. An event is in the kernel's queue as soon as the call that made it
//! returns, so a test acts, takes a turn, and needs no waiting. Each test also has a name that is
//! not covered.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::PathBuf;

use rustix::fs::{Mode, OFlags};

use crate::files::guard::*;
use crate::files::test_tree::{self, DENIED, PROTECTED, TestTree};

struct GuardedTree {
    scene: TestTree,
    guard: Guard,
    at_start: Vec<Cover>,
    put: Vec<Cover>,
    events: Vec<CoveredName>,
}

impl GuardedTree {
    /// The tree `w` of a scene, watched.
    fn over(scene: TestTree) -> GuardedTree {
        GuardedTree::with(scene, test_tree::names(DENIED, PROTECTED, &[]))
    }

    fn with(scene: TestTree, names: NamePatterns) -> GuardedTree {
        let trees = [scene.tree("w", true)];
        let (guard, at_start) =
            Guard::arm(names, &trees, &[], &[], false, &mut FoundObjects::default()).unwrap();
        GuardedTree { scene, guard, at_start, put: Vec::new(), events: Vec::new() }
    }

    fn turn(&mut self) -> &mut GuardedTree {
        let GuardedTree { guard, put, events, .. } = self;
        let mut put_covers = |covers: &[Cover]| {
            put.extend_from_slice(covers);
            Ok(vec![CoverResult::Now; covers.len()])
        };
        // A turn ends at its timeout. On a busy machine another turn does the rest.
        loop {
            guard.turn(&mut put_covers, &mut |event| events.push(event)).unwrap();
            if !guard.is_due() {
                return self;
            }
        }
    }

    /// The covers since the last call as text, sorted by path.
    fn put(&mut self) -> Vec<String> {
        let mut put = std::mem::take(&mut self.put);
        put.sort_by(|one, other| one.path.cmp(&other.path));
        put.iter()
            .map(|cover| format!("{:?} {}", cover.kind, self.scene.relative(&cover.path)))
            .collect()
    }

    fn rename(&self, from: &str, to: &str) {
        fs::rename(self.scene.path(from), self.scene.path(to)).unwrap();
    }

    fn set_mode(&self, name: &str, mode: u32) {
        fs::set_permissions(self.scene.path(name), fs::Permissions::from_mode(mode)).unwrap();
    }
}

#[test]
fn a_new_denied_name_is_masked_and_stays() {
    let mut watch = GuardedTree::over(TestTree::new());
    let env = watch.scene.file("w/a/.env");
    watch.scene.file("w/a/env");
    watch.turn();
    assert_eq!(watch.put[0].identity, Identity::from(&rustix::fs::stat(&env).unwrap()));
    assert_eq!(watch.put(), ["Mask w/a/.env"]);
    let [CoveredName { window, .. }] = &watch.events[..] else { panic!() };
    assert!(*window < Duration::from_secs(10));
    // Replaced by rename, as editors do.
    fs::rename(watch.scene.file("w/a/new"), &env).unwrap();
    watch.turn();
    assert_eq!(watch.put(), ["Mask w/a/.env"]);
    assert!(env.exists());
}

#[test]
fn a_new_protected_name_is_left_alone() {
    let mut watch = GuardedTree::over(TestTree::new());
    let kept = ["w/.envrc", "w/.vscode/tasks.json", "w/.git/hooks/pre-commit"];
    let kept: Vec<PathBuf> = kept.iter().map(|name| watch.scene.file(name)).collect();
    watch.scene.file("w/.vscode/.env");
    watch.turn();
    assert_eq!(watch.put(), ["Mask w/.vscode/.env"]);
    assert!(kept.iter().all(|path| path.exists()));
}

#[test]
fn a_replaced_locked_name_is_locked_again() {
    let scene = TestTree::new();
    for name in ["w/dir/.envrc", "w/.npmrc"] {
        scene.file(name);
    }
    let mut watch = GuardedTree::over(scene);
    assert_eq!(watch.at_start.len(), 2);
    fs::rename(watch.scene.file("w/new"), watch.scene.path("w/.npmrc")).unwrap();
    // It moves with its directory, and keeps its cover. Another one at its old path is new.
    watch.rename("w/dir", "w/moved");
    watch.scene.file("w/dir/.envrc");
    watch.turn();
    assert_eq!(watch.put(), ["Lock w/.npmrc"]);
}

#[test]
fn a_new_exact_path_is_pinned_too() {
    let scene = TestTree::new();
    let exact = scene.path("w/a/b/secret");
    let names = test_tree::names(&[exact.to_str().unwrap()], &[], &[]);
    let mut watch = GuardedTree::with(scene, names);
    watch.scene.file("w/a/b/secret");
    watch.scene.file("w/b/secret");
    watch.turn();
    assert_eq!(watch.put(), ["Pin w/a", "Pin w/a/b", "Mask w/a/b/secret"]);
}

#[test]
fn a_directory_that_appears_is_searched_as_a_whole() {
    let mut watch = GuardedTree::over(TestTree::new());
    // Made at once, before the guard looks.
    watch.scene.file("w/one/two/.env");
    watch.scene.file("w/one/two/env");
    // Prepared elsewhere and moved in.
    watch.scene.file("outside/deep/.env");
    watch.rename("outside", "w/inside");
    watch.turn();
    assert_eq!(watch.put(), ["Mask w/inside/deep/.env", "Mask w/one/two/.env"]);
    // New names in them are seen as well, also after another rename.
    watch.scene.file("w/inside/.env");
    watch.rename("w/inside", "w/again");
    watch.scene.file("w/again/deep/new/.env");
    watch.turn();
    let put = watch.put();
    for name in ["Mask w/again/.env", "Mask w/again/deep/new/.env"] {
        assert!(put.iter().any(|cover| cover == name), "{put:?}");
    }
}

#[test]
fn a_directory_that_becomes_a_link_is_not_followed() {
    let scene = TestTree::new();
    scene.dir("w/a/b");
    scene.file("victim/b/.env");
    let mut watch = GuardedTree::over(scene);
    watch.scene.file("w/a/b/.env");
    watch.rename("w/a", "w/c");
    watch.scene.link("w/a", "../victim");
    watch.turn();
    assert_eq!(watch.put(), ["Mask w/c/b/.env"]);
}

#[test]
fn a_denied_link_is_masked_with_its_target() {
    let scene = TestTree::new();
    scene.file("w/shared");
    scene.file("w/other");
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
    let later = watch.scene.file("w/d/.env");
    watch.turn();
    let made = watch.scene.dir("made");
    fs::hard_link(&later, made.join("inner")).unwrap();
    fs::rename(&made, w.join("e")).unwrap();
    watch.turn();
    assert_eq!(watch.put(), ["Mask w/d/.env", "Mask w/e/inner"]);
    // The inode number of a removed file may be another file's.
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
fn names_may_have_any_bytes_and_any_depth() {
    let mut watch = GuardedTree::over(TestTree::new());
    watch.scene.file(OsString::from_vec(b"w/\xff\n\x01/sub dir/.env".to_vec()));
    let mut at = rustix::fs::open(watch.scene.path("w"), OFlags::PATH, Mode::empty()).unwrap();
    for _ in 0..1500 {
        rustix::fs::mkdirat(&at, c"dddd", Mode::RWXU).unwrap();
        at = rustix::fs::openat(&at, c"dddd", OFlags::PATH, Mode::empty()).unwrap();
    }
    rustix::fs::mkdirat(&at, c".env", Mode::RWXU).unwrap();
    rustix::fs::mkdirat(&at, c"env", Mode::RWXU).unwrap();
    watch.turn();
    assert_eq!(watch.put().len(), 2);
    // One more, now that everything is watched.
    rustix::fs::unlinkat(&at, c".env", rustix::fs::AtFlags::REMOVEDIR).unwrap();
    rustix::fs::mkdirat(&at, c".env", Mode::RWXU).unwrap();
    watch.turn();
    assert_eq!(watch.put().len(), 1);
}

#[test]
fn lost_events_cause_a_full_scan() {
    let scene = TestTree::new();
    scene.file("w/a/.env");
    let mut watch = GuardedTree::over(scene);
    let limit = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    let dir = watch.scene.dir("w/many");
    watch.turn();
    for number in 0..limit.trim().parse::<usize>().unwrap() + 10 {
        fs::File::create(dir.join(number.to_string())).unwrap();
    }
    watch.scene.file("w/fresh/.env");
    fs::rename(watch.scene.file("w/new"), watch.scene.path("w/a/.env")).unwrap();
    watch.turn();
    assert_eq!(watch.put(), ["Mask w/a/.env", "Mask w/fresh/.env"]);
    // The guard goes on from there.
    watch.scene.file("w/fresh/x/.env");
    watch.turn();
    assert_eq!(watch.put(), ["Mask w/fresh/x/.env"]);
}

#[test]
fn an_object_that_leaves_the_tree_is_not_watched() {
    let scene = TestTree::new();
    scene.dir("w/leaves/deep");
    let mut watch = GuardedTree::over(scene);
    watch.rename("w/leaves", "left");
    watch.scene.file("left/deep/.env");
    watch.scene.file("w/.env");
    watch.turn();
    assert_eq!(watch.put(), ["Mask w/.env"]);
    // The watch moved with it, and is dropped.
    assert_eq!(watch.guard.state.nodes.len(), 2);
}

#[test]
fn removed_rights_do_not_hide_names() {
    test_tree::become_ordinary();
    let scene = TestTree::new();
    scene.file("w/b/x");
    let mut watch = GuardedTree::over(scene);
    watch.scene.file("w/a/.env");
    watch.scene.file("w/c/d/.env");
    watch.rename("w/b/x", "w/b/.env");
    watch.set_mode("w/a", 0o500);
    watch.set_mode("w/b", 0o600);
    watch.set_mode("w/c/d", 0o000);
    watch.set_mode("w/c", 0o000);
    watch.turn();
    assert_eq!(watch.put(), ["Mask w/a/.env", "Mask w/b/.env"]);
    assert_eq!(fs::metadata(watch.scene.path("w/a")).unwrap().mode() & 0o777, 0o500);
    // A directory that can be entered again is scanned.
    watch.set_mode("w/c", 0o700);
    watch.turn();
    watch.set_mode("w/c/d", 0o700);
    watch.turn();
    assert_eq!(watch.put(), ["Mask w/c/d/.env"]);
    // A directory whose names can be opened but not listed gets its rights back at once.
    watch.scene.file("w/e/.env");
    watch.set_mode("w/e", 0o300);
    watch.turn();
    // The events of the directory and of the mode can arrive in two turns.
    let mut covers = watch.put();
    covers.dedup();
    assert_eq!(covers, ["Mask w/e/.env"]);
}

#[test]
fn a_shut_root_does_not_count_as_empty() {
    test_tree::become_ordinary();
    let scene = TestTree::new();
    scene.dir("w/a");
    let mut watch = GuardedTree::over(scene);
    let a = rustix::fs::open(watch.scene.path("w/a"), OFlags::PATH, Mode::empty()).unwrap();
    watch.set_mode("w", 0o000);
    rustix::fs::mkdirat(&a, c".env", Mode::RWXU).unwrap();
    rustix::fs::mkdirat(&a, c"plain", Mode::RWXU).unwrap();
    watch.turn();
    assert_eq!(watch.put(), ["Mask w/a/.env"]);
}

#[test]
fn denied_names_are_covered_before_other_events_are_judged() {
    let scene = TestTree::new();
    scene.dir("w/many");
    let mut watch = GuardedTree::over(scene);
    for number in 0..300 {
        watch.scene.file(format!("w/many/{number}/.env"));
    }
    watch.scene.file("w/.env");
    let GuardedTree { guard, events, .. } = &mut watch;
    let mut put = Vec::new();
    let mut put_covers = |covers: &[Cover]| {
        put.push(covers.len());
        Ok(vec![CoverResult::Now; covers.len()])
    };
    while guard.is_due() {
        guard.turn(&mut put_covers, &mut |event| events.push(event)).unwrap();
    }
    assert_eq!((put[0], put.iter().sum::<usize>()), (1, 301));
}

#[test]
fn a_guard_with_nothing_to_read_does_nothing() {
    let mut watch = GuardedTree::over(TestTree::new());
    watch.turn();
    assert!(watch.events.is_empty() && watch.guard.timeout().is_none());
}

#[test]
fn a_flood_of_changing_names_leads_nowhere_outside() {
    let scene = TestTree::new();
    let victim = scene.dir("victim");
    scene.file("victim/.env");
    scene.file("w/mine/.env");
    let mut watch = GuardedTree::over(scene);
    let w = watch.scene.path("w");
    std::thread::scope(|scope| {
        let racer = scope.spawn(|| {
            for round in 0..400 {
                let dir = w.join(format!("r{}", round % 7));
                let _ = fs::create_dir_all(dir.join("x"));
                let _ = fs::write(dir.join("x/.env"), "new");
                // A listed directory becomes a link to elsewhere, and the other way round.
                let _ = fs::rename(dir.join("x"), dir.join("y"));
                let _ = symlink(&victim, dir.join("x"));
                let _ = fs::rename(dir.join("y"), w.join(format!("s{}", round % 5)));
                let _ = fs::remove_file(dir.join("x"));
                let _ = fs::rename(&dir, w.join(format!("t{}", round % 3)));
                let _ = fs::rename(w.join("mine"), w.join("mine2"));
                let _ = fs::rename(w.join("mine2"), w.join("mine"));
                if round % 50 == 0 {
                    let _ = fs::remove_dir_all(w.join("t1"));
                }
            }
        });
        while !racer.is_finished() {
            watch.turn();
        }
    });
    fs::write(w.join("last.env"), "").unwrap();
    watch.scene.file("w/last/.env");
    watch.turn();
    let put = watch.put();
    assert!(put.iter().all(|cover| cover.starts_with("Mask w/")), "{put:?}");
    assert!(put.iter().any(|cover| cover == "Mask w/last/.env"), "the guard still works");
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
    }
}
