//! Trees on disk, and the covers that a scan returns.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;

use crate::files::scan::*;
use crate::files::test_tree::{self, DENIED, PROTECTED, TestTree, absolute};
use crate::files::tree_roots::GrantedTree;

fn seen(
    names: &mut NamePatterns,
    trees: &[GrantedTree],
    left_out: &[AbsPath],
) -> Result<ScanResult, WalkError> {
    let roots = TreeRoots::open(trees, left_out)?;
    scan_trees(names, &roots, &mut Walker::default(), &[], &mut |_: &NamePatterns, _: &Dir<'_>| {
        Ok(0)
    })
}

/// "kind path" for each cover.
fn covers(scene: &TestTree, names: &mut NamePatterns, trees: &[GrantedTree]) -> Vec<String> {
    let found = seen(names, trees, &[]).unwrap();
    found
        .covers
        .iter()
        .map(|cover| format!("{:?} {}", cover.kind, scene.relative(&cover.path)))
        .collect()
}

#[test]
fn denied_names_are_masked_and_protected_ones_locked_where_they_can_be_written() {
    let scene = TestTree::new();
    for file in [
        "w/.env",
        "w/a/b/.env",
        "w/a/x.pem",
        "w/a/.envrc",
        "w/a/env",
        "r/.env",
        "r/.envrc",
        "w/.vscode/tasks.json",
    ] {
        scene.file(file);
    }
    scene.file("w/.vscode/deep/.env");
    let mut names = test_tree::names(DENIED, PROTECTED, &[]);
    let trees = [scene.tree("w", true), scene.tree("r", false)];
    assert_eq!(
        covers(&scene, &mut names, &trees),
        [
            "Mask r/.env",
            "Mask w/.env",
            "Lock w/.vscode",
            "Mask w/.vscode/deep/.env",
            "Lock w/a/.envrc",
            "Mask w/a/b/.env",
            "Mask w/a/x.pem",
        ]
    );
}

#[test]
fn the_directories_that_a_match_depends_on_are_pinned() {
    let scene = TestTree::new();
    scene.file("w/sub/.git/config");
    scene.file("w/sub/.git/modules/m/config");
    scene.file("w/a/b/secret");
    let exact = scene.path("w/a/b/secret");
    let mut names = test_tree::names(&[exact.to_str().unwrap(), "**/.env"], PROTECTED, &[]);
    assert_eq!(
        covers(&scene, &mut names, &[scene.tree("w", true)]),
        [
            "Pin w/a",
            "Pin w/a/b",
            "Mask w/a/b/secret",
            "Pin w/sub/.git",
            "Lock w/sub/.git/config",
            "Pin w/sub/.git/modules",
            "Lock w/sub/.git/modules/m/config",
        ]
    );
    // In a read-only tree nothing can be renamed.
    assert_eq!(covers(&scene, &mut names, &[scene.tree("w", false)]), ["Mask w/a/b/secret"]);
}

#[test]
fn exceptions_stay_free_and_other_entries_are_locked() {
    let scene = TestTree::new();
    for file in [
        "w/.claude/settings.json",
        "w/.claude/worktrees/x/.claude/y",
        "w/.claude/worktrees/x/src",
        "w/.npmrc",
    ] {
        scene.file(file);
    }
    let mut names = test_tree::names(&[], PROTECTED, &["**/.claude/worktrees", "**/.npmrc"]);
    assert_eq!(
        covers(&scene, &mut names, &[scene.tree("w", true)]),
        [
            "Pin w/.claude",
            "Lock w/.claude/settings.json",
            "Pin w/.claude/worktrees/x/.claude",
            "Lock w/.claude/worktrees/x/.claude/y"
        ]
    );
    let mut control = test_tree::names(&[], PROTECTED, &[]);
    assert_eq!(
        covers(&scene, &mut control, &[scene.tree("w", true)]),
        ["Lock w/.claude", "Lock w/.npmrc"]
    );
}

#[test]
fn the_target_of_a_link_at_a_name_is_covered() {
    let scene = TestTree::new();
    scene.file("w/shared/secret");
    scene.file("w/hooks/pre-commit");
    scene.file("w/shared/fish/config.fish");
    scene.file("elsewhere/secret");
    scene.link("w/.env", "way/secret");
    scene.link("w/way", "shared");
    scene.link("w/a/.env", scene.path("elsewhere/secret"));
    scene.link("w/.git/hooks", "../hooks");
    scene.link("w/.config", "shared");
    scene.link("w/b/.envrc", "../gone");
    let mut names = test_tree::names(DENIED, PROTECTED, &[]);
    let found = covers(&scene, &mut names, &[scene.tree("w", true)]);
    assert_eq!(
        found,
        [
            "Lock w/.config",
            "Mask w/.env",
            "Pin w/.git",
            "Lock w/.git/hooks",
            "Mask w/a/.env",
            "Lock w/b/.envrc",
            "Lock w/hooks",
            "Pin w/shared",
            "Lock w/shared/fish",
            "Mask w/shared/secret",
            "Lock w/way",
        ]
    );
    // A dangling link: an object that is made at its target later is protected.
    let start = names.start(scene.path("w/gone").as_os_str().as_encoded_bytes(), true);
    assert!(start.look.protect.is_some());
}

#[test]
fn links_in_a_circle_end() {
    let scene = TestTree::new();
    scene.link("w/.config", ".");
    scene.link("w/a/.env", ".env");
    scene.link("w/fish", ".config/fish");
    let mut names = test_tree::names(DENIED, PROTECTED, &[]);
    assert_eq!(
        covers(&scene, &mut names, &[scene.tree("w", true)]),
        ["Lock w/.config", "Mask w/a/.env", "Lock w/fish"]
    );
}

#[test]
fn every_name_of_a_file_is_covered() {
    let scene = TestTree::new();
    let env = scene.file("w/.env");
    fs::hard_link(&env, scene.path("w/notes.txt")).unwrap();
    scene.dir("r");
    fs::hard_link(&env, scene.path("r/other")).unwrap();
    let config = scene.file("w/.git/config");
    fs::hard_link(&config, scene.path("w/copy")).unwrap();
    fs::hard_link(&config, scene.path("r/copy")).unwrap();
    let deep = scene.file("w/.idea/x/y");
    fs::hard_link(&deep, scene.path("w/z")).unwrap();
    let key = scene.file("w/keys.key/inner");
    fs::hard_link(&key, scene.path("w/.idea/inner")).unwrap();
    scene.file("w/plain");
    let mut names = test_tree::names(DENIED, PROTECTED, &[]);
    let found = covers(&scene, &mut names, &[scene.tree("w", true), scene.tree("r", false)]);
    assert_eq!(
        found,
        [
            "Mask r/other",
            "Mask w/.env",
            "Pin w/.git",
            "Lock w/.git/config",
            "Lock w/.idea",
            "Mask w/.idea/inner",
            "Lock w/copy",
            "Mask w/keys.key",
            "Mask w/notes.txt",
            "Lock w/z",
        ]
    );
}

#[test]
fn other_names_of_a_file_that_is_closed_elsewhere_are_masked() {
    let scene = TestTree::new();
    let key = scene.file("home/id_ed25519");
    scene.file("w/plain");
    fs::hard_link(&key, scene.path("w/innocent")).unwrap();
    let mut names = test_tree::names(DENIED, PROTECTED, &[]);
    let roots = TreeRoots::open(&[scene.tree("w", true)], &[]).unwrap();
    let closed = [Identity::from(&rustix::fs::stat(&key).unwrap())];
    let mut enter = |_: &NamePatterns, _: &Dir<'_>| Ok::<u32, WalkError>(0);
    let found =
        scan_trees(&mut names, &roots, &mut Walker::default(), &closed, &mut enter).unwrap();
    assert_eq!(
        found.covers.iter().map(|cover| scene.relative(&cover.path)).collect::<Vec<_>>(),
        ["w/innocent"]
    );
}

#[test]
fn sockets_and_git_files_are_covered() {
    let scene = TestTree::new();
    scene.dir("r");
    let _sockets = ["w", "r"].map(|dir| UnixListener::bind(scene.dir(dir).join("s")).unwrap());
    fs::write(scene.file("w/tree/.git"), "gitdir: /elsewhere").unwrap();
    scene.link("w/linked/.git", "../real");
    for name in ["HEAD", "objects/x", "refs/x", "config", "hooks/post-update"] {
        scene.file(format!("w/bare.git/{name}"));
    }
    let mut names = test_tree::names(DENIED, PROTECTED, &[]);
    let trees = [scene.tree("w", true), scene.tree("r", false)];
    assert_eq!(
        covers(&scene, &mut names, &trees),
        [
            "Mask r/s",
            "Pin w/bare.git",
            "Lock w/bare.git/config",
            "Lock w/bare.git/hooks",
            "Lock w/linked/.git",
            "Mask w/s",
            "Lock w/tree/.git",
        ]
    );
    let mut without_git = test_tree::names(DENIED, &["**/.vscode"], &[]);
    assert_eq!(covers(&scene, &mut without_git, &trees), ["Mask r/s", "Mask w/s"]);
}

#[test]
fn a_tree_ends_at_another_tree_and_at_left_out_paths() {
    let scene = TestTree::new();
    for file in ["w/.envrc", "w/inner/.envrc", "w/closed/.envrc", "w/closed/deep/.envrc"] {
        scene.file(file);
    }
    let mut names = test_tree::names(DENIED, PROTECTED, &[]);
    let trees = [scene.tree("w", true), scene.tree("w/inner", false)];
    let found = seen(&mut names, &trees, &[absolute(&scene.path("w/closed"))]).unwrap();
    assert_eq!(
        found.covers.iter().map(|cover| scene.relative(&cover.path)).collect::<Vec<_>>(),
        ["w/.envrc"]
    );
}

#[test]
fn a_tree_may_be_one_file_or_inside_a_denied_path() {
    let scene = TestTree::new();
    let file = absolute(&scene.file("one/.npmrc"));
    let secret = scene.file("keys.key/w/x");
    let mut names = test_tree::names(DENIED, PROTECTED, &[]);
    let trees = [
        GrantedTree { path: file, writable: true, watched: true },
        GrantedTree { path: absolute(secret.parent().unwrap()), writable: true, watched: true },
    ];
    assert_eq!(covers(&scene, &mut names, &trees), ["Mask keys.key/w", "Lock one/.npmrc"]);
}

#[test]
fn a_grant_below_a_protected_name_stays_writable() {
    let scene = TestTree::new();
    scene.file("w/.claude/worktrees/x/.vscode/tasks.json");
    let mut names = test_tree::names(DENIED, PROTECTED, &[]);
    let trees = [scene.tree("w/.claude/worktrees/x", true)];
    assert_eq!(covers(&scene, &mut names, &trees), ["Lock w/.claude/worktrees/x/.vscode"]);
}

#[test]
fn names_may_have_any_bytes_and_be_deeper_than_the_descriptor_limit() {
    use std::os::unix::ffi::OsStrExt as _;
    let scene = TestTree::new();
    let odd = std::ffi::OsStr::from_bytes(b"w/\xff\nodd/.env");
    scene.file(odd);
    let depth = 1500;
    let mut path = scene.dir("w");
    let root = rustix::fs::open(&path, OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
    let mut at = root;
    for _ in 0..depth {
        rustix::fs::mkdirat(&at, c"dd", rustix::fs::Mode::RWXU).unwrap();
        at = rustix::fs::openat(&at, c"dd", OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
        path.push("dd");
    }
    let flags = OFlags::CREATE | OFlags::WRONLY;
    rustix::fs::openat(&at, c".env", flags, rustix::fs::Mode::RUSR).unwrap();
    let mut names = test_tree::names(DENIED, PROTECTED, &[]);
    let found = seen(&mut names, &[scene.tree("w", true)], &[]).unwrap();
    let found: Vec<&[u8]> = found.covers.iter().map(|cover| cover.path.as_bytes()).collect();
    assert_eq!(
        found,
        [path.join(".env").as_os_str().as_bytes(), scene.path(odd).as_os_str().as_bytes()]
    );
}

#[test]
fn a_directory_that_can_not_be_listed_or_searched_is_closed_as_a_whole() {
    test_tree::become_ordinary();
    let scene = TestTree::new();
    scene.file("w/shut/.env");
    let mut names = test_tree::names(DENIED, PROTECTED, &[]);
    for mode in [0o300, 0o600, 0o400, 0o100, 0o000] {
        fs::set_permissions(scene.path("w/shut"), fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(
            covers(&scene, &mut names, &[scene.tree("w", true)]),
            ["Mask w/shut"],
            "{mode:o}"
        );
        let found = seen(&mut names, &[scene.tree("w", true)], &[]).unwrap();
        let path = absolute(&scene.path("w/shut"));
        assert_eq!(
            found.shut,
            [Object::at(rustix::fs::CWD, &path.as_c_str()).unwrap()],
            "{mode:o}"
        );
    }
    fs::set_permissions(scene.path("w/shut"), fs::Permissions::from_mode(0o500)).unwrap();
    assert_eq!(covers(&scene, &mut names, &[scene.tree("w", true)]), ["Mask w/shut/.env"]);
}

#[test]
fn a_link_into_a_shut_directory_leads_to_a_closed_path() {
    test_tree::become_ordinary();
    let scene = TestTree::new();
    scene.file("w/conf/settings");
    scene.link("w/.env", "conf/settings");
    let mut names = test_tree::names(DENIED, PROTECTED, &[]);
    assert_eq!(
        covers(&scene, &mut names, &[scene.tree("w", true)])[1..],
        ["Pin w/conf", "Mask w/conf/settings"]
    );
    fs::set_permissions(scene.path("w/conf"), fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(
        covers(&scene, &mut names, &[scene.tree("w", true)]),
        ["Mask w/.env", "Mask w/conf"]
    );
    fs::set_permissions(scene.path("w/conf"), fs::Permissions::from_mode(0o700)).unwrap();
}

/// Makes a chain of directories, with `name` as a directory in each.
fn chain(scene: &TestTree, depth: usize, name: Option<&str>) -> OwnedFd {
    let mode = rustix::fs::Mode::RWXU;
    let mut at = rustix::fs::open(scene.dir("w"), OFlags::PATH, mode).unwrap();
    for _ in 0..depth {
        if let Some(name) = name {
            rustix::fs::mkdirat(&at, name, mode).unwrap();
        }
        rustix::fs::mkdirat(&at, c"d", mode).unwrap();
        at = rustix::fs::openat(&at, c"d", OFlags::PATH, mode).unwrap();
    }
    at
}

#[test]
fn a_walk_opens_closed_levels_again() {
    let scene = TestTree::new();
    // `x` has a directory in each level, before and after the next level in any listing order.
    chain(&scene, 300, Some("x"));
    let mut path = scene.path("w");
    for _ in 0..300 {
        for name in ["a", "z"] {
            fs::create_dir(path.join(name)).unwrap();
            fs::write(path.join(name).join(".env"), "").unwrap();
        }
        path.push("d");
    }
    let mut names = test_tree::names(DENIED, PROTECTED, &[]);
    let found = seen(&mut names, &[scene.tree("w", true)], &[]).unwrap();
    assert_eq!(found.covers.len(), 600);
}

#[test]
fn a_tree_deeper_than_the_limit_is_an_error() {
    let scene = TestTree::new();
    chain(&scene, 2048, None);
    let mut names = test_tree::names(DENIED, PROTECTED, &[]);
    assert!(seen(&mut names, &[scene.tree("w", true)], &[]).unwrap().covers.is_empty());
    let other = TestTree::new();
    chain(&other, walk::MAX_DEPTH + 1, None);
    let error = seen(&mut names, &[other.tree("w", true)], &[]).unwrap_err();
    assert!(matches!(&error, WalkError::Deep { path } if path.as_bytes().len() < 1000), "{error}");
    for scene in [scene, other] {
        assert!(
            std::process::Command::new("rm").arg("-rf").arg(&scene.0).status().unwrap().success()
        );
    }
}

#[test]
fn an_interrupted_walk_is_an_error() {
    let scene = TestTree::new();
    scene.file("w/a/.env");
    let mut names = test_tree::names(DENIED, PROTECTED, &[]);
    let roots = TreeRoots::open(&[scene.tree("w", true)], &[]).unwrap();
    let mut walker = Walker::default();
    walker.is_interrupted = Some(|| true);
    let mut enter = |_: &NamePatterns, _: &Dir<'_>| Ok::<u32, WalkError>(0);
    let result = scan_trees(&mut names, &roots, &mut walker, &[], &mut enter);
    assert!(matches!(result, Err(WalkError::Interrupted)));
    walker.is_interrupted = Some(|| false);
    assert_eq!(
        scan_trees(&mut names, &roots, &mut walker, &[], &mut enter).unwrap().covers.len(),
        1
    );
}

#[test]
fn a_link_error_is_reported_and_a_dangling_link_is_no_error() {
    let scene = TestTree::new();
    scene.link("w/.env", "x".repeat(300));
    let mut names = test_tree::names(DENIED, PROTECTED, &[]);
    let error = seen(&mut names, &[scene.tree("w", true)], &[]).unwrap_err();
    assert!(matches!(error, WalkError::Look { source: Errno::NAMETOOLONG, .. }), "{error}");
    fs::remove_file(scene.path("w/.env")).unwrap();
    scene.link("w/.env", "none");
    assert_eq!(covers(&scene, &mut names, &[scene.tree("w", true)]), ["Mask w/.env"]);
}

#[test]
fn a_root_that_is_a_link_or_missing_is_an_error() {
    let scene = TestTree::new();
    scene.dir("real");
    let mut names = test_tree::names(DENIED, PROTECTED, &[]);
    for path in [scene.link("link", "real"), scene.path("none"), scene.path("link/below")] {
        let tree = GrantedTree { path: absolute(&path), writable: true, watched: true };
        assert!(matches!(seen(&mut names, &[tree], &[]), Err(WalkError::Root { .. })));
    }
}

/// Prints the CPU time of a scan; `cargo test --release -- --ignored --nocapture costs`.
#[test]
#[ignore = "a measurement"]
fn costs_of_8000_files_in_800_directories() {
    let scene = TestTree::new();
    for dir in 0..800 {
        for file in 0..10 {
            scene.file(format!("w/d{}/s{}/module_{file}.py", dir / 20, dir % 20));
        }
    }
    scene.file("w/.git/config");
    // As in a plan: below the workspace, with exceptions below package directories.
    let w = scene.path("w");
    let below = |name: &str| format!("{}/**/{name}", w.display());
    let protect: Vec<String> = (0..200).map(|n| below(&format!(".protected-{n}"))).collect();
    let packages = ["node_modules", "site-packages"];
    let opened: Vec<String> = packages
        .iter()
        .flat_map(|package| (0..200).map(move |n| format!("{package}/**/.protected-{n}")))
        .collect();
    let opened: Vec<String> = opened.iter().map(|name| below(name)).collect();
    let opened: Vec<&str> = opened.iter().map(String::as_str).collect();
    let protect: Vec<&str> =
        protect.iter().map(String::as_str).chain(PROTECTED.iter().copied()).collect();
    let deny: Vec<String> = (0..30).map(|n| below(&format!("*.secret{n}"))).collect();
    let deny: Vec<&str> = deny.iter().map(String::as_str).chain(DENIED.iter().copied()).collect();
    let started = test_tree::cpu_us();
    for _ in 0..100 {
        test_tree::names(&deny, &protect, &opened);
    }
    println!(
        "{} patterns: {} us",
        deny.len() + protect.len() + opened.len(),
        (test_tree::cpu_us() - started) / 100
    );
    let mut best = u128::MAX;
    let mut watched = u128::MAX;
    for _ in 0..20 {
        let started = test_tree::cpu_us();
        let mut names = test_tree::names(&deny, &protect, &opened);
        seen(&mut names, &[scene.tree("w", true)], &[]).unwrap();
        best = best.min(test_tree::cpu_us() - started);
        let inotify =
            rustix::fs::inotify::init(rustix::fs::inotify::CreateFlags::NONBLOCK).unwrap();
        let started = test_tree::cpu_us();
        let mut names = test_tree::names(&deny, &protect, &opened);
        let roots = TreeRoots::open(&[scene.tree("w", true)], &[]).unwrap();
        scan_trees(&mut names, &roots, &mut Walker::default(), &[], &mut |_: &NamePatterns,
                                                                          dir: &Dir<'_>|
         -> Result<
            u32,
            WalkError,
        > {
            let mut buffer = [0; 32];
            let flags =
                rustix::fs::inotify::WatchFlags::CREATE | rustix::fs::inotify::WatchFlags::MOVED_TO;
            rustix::fs::inotify::add_watch(
                &inotify,
                crate::kernel::open_beneath::proc_fd_path(dir.fd, &mut buffer),
                flags,
            )
            .unwrap();
            Ok(0)
        })
        .unwrap();
        watched = watched.min(test_tree::cpu_us() - started);
    }
    println!("survey: {best} us, with watches: {watched} us");
}
