//! Repositories in watched trees: git works, and names that it would run are quarantined.

use super::*;

#[test]
fn git_works_and_names_that_it_would_run_are_quarantined() {
    let scene = TestTree::new();
    let w = scene.dir("w");
    scene.file("w/file");
    assert!(
        git(&w, &["init", "-q"]) && git(&w, &["add", "file"]) && git(&w, &["commit", "-qm", "one"])
    );
    let mut watch = GuardedTree::over(scene);
    // Next to an existing repository: commit, stash, worktree.
    fs::write(w.join("file"), "changed").unwrap();
    assert!(
        git(&w, &["stash", "-q"])
            && git(&w, &["stash", "pop", "-q"])
            && git(&w, &["commit", "-qam", "two"])
    );
    watch.turn();
    assert!(git(&w, &["worktree", "add", "-q", "tree"]));
    watch.turn();
    assert_eq!(watch.quarantined(), [""; 0]);
    assert!(git(&w.join("tree"), &["status"]));
    // A new repository, with turns while git works.
    assert!(git(&w, &["init", "-q", "sub"]));
    watch.turn();
    let sub = w.join("sub");
    watch.scene.file("w/sub/x");
    assert!(git(&sub, &["add", "x"]) && git(&sub, &["commit", "-qm", "one"]));
    assert!(git(&sub, &["remote", "add", "origin", "https://example.org/x"]));
    watch.turn();
    assert_eq!(watch.quarantined(), [""; 0]);
    // G2: a key that runs something; G1: a hook; G7, G8: a work tree led elsewhere; G3.
    assert!(git(&sub, &["config", "core.fsmonitor", "touch ran"]));
    watch.scene.file("w/sub/.git/hooks/pre-commit");
    fs::write(w.join(".git/worktrees/tree/commondir"), "../../../evil\n").unwrap();
    fs::write(w.join("tree/.git"), "gitdir: ../evil\n").unwrap();
    watch.scene.file("w/.git/commondir");
    watch.turn();
    assert_eq!(
        watch.quarantined(),
        [
            "w/.git/commondir",
            "w/.git/worktrees/tree/commondir",
            "w/sub/.git/config",
            "w/sub/.git/hooks/pre-commit",
            "w/tree/.git"
        ]
    );
    git(&sub, &["status"]);
    assert!(!watch.exists("w/sub/ran") && git(&w, &["status"]));
}

#[test]
fn git_is_not_disturbed_while_it_works() {
    let scene = TestTree::new();
    let w = scene.dir("w");
    scene.file("w/file");
    assert!(
        git(&w, &["init", "-q"]) && git(&w, &["add", "file"]) && git(&w, &["commit", "-qm", "one"])
    );
    let mut watch = GuardedTree::over(scene);
    for round in 0..10 {
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                let (sub, tree) = (format!("sub{round}"), format!("tree{round}"));
                assert!(git(&w, &["init", "-q", &sub]));
                fs::write(w.join(&sub).join("x"), "x").unwrap();
                assert!(
                    git(&w.join(&sub), &["add", "x"])
                        && git(&w.join(&sub), &["commit", "-qm", "one"])
                );
                assert!(git(&w.join(&sub), &["remote", "add", "o", "https://example.org/x"]));
                assert!(git(&w, &["worktree", "add", "-q", &tree]));
                assert!(git(&w.join(&tree), &["commit", "-q", "--allow-empty", "-m", "two"]));
                assert!(git(&w, &["worktree", "remove", &tree]));
            });
            while !worker.is_finished() {
                watch.turn();
            }
        });
    }
    watch.turn().finish();
    assert_eq!(watch.quarantined(), [""; 0]);
}

#[test]
fn judged_content_is_judged_again_after_any_write() {
    use std::io::Write as _;
    let mut watch = GuardedTree::over(TestTree::new());
    let w = watch.scene.path("w");
    for name in ["a", "b", "c"] {
        assert!(git(&w, &["init", "-q", name]));
    }
    watch.turn();
    assert_eq!(watch.quarantined(), [""; 0]);
    // Written in place and not closed.
    let mut open = fs::OpenOptions::new().append(true).open(w.join("a/.git/config")).unwrap();
    open.write_all(b"[core]\n\tfsmonitor = evil\n").unwrap();
    watch.turn();
    assert_eq!(watch.quarantined(), ["w/a/.git/config"]);
    // It gets another name, which could be written.
    fs::hard_link(w.join("b/.git/config"), w.join("other")).unwrap();
    watch.turn();
    assert_eq!(watch.quarantined(), ["w/a/.git/config", "w/b/.git/config"]);
    // Replaced.
    fs::write(w.join("new"), "[include]\npath = x\n").unwrap();
    fs::rename(w.join("new"), w.join("c/.git/config")).unwrap();
    watch.turn();
    assert_eq!(watch.quarantined().len(), 3);
    assert!(watch.exists("w/c/.git/HEAD") && watch.exists("w/other"));
}

#[test]
fn a_repository_without_a_work_tree_loses_its_head() {
    let scene = TestTree::new();
    for name in ["HEAD", "objects/x", "refs/x"] {
        scene.file(Path::new("w/old.git").join(name));
    }
    let mut watch = GuardedTree::over(scene);
    for name in [
        "trap/HEAD",
        "trap/objects/x",
        "trap/refs/x",
        "half/HEAD",
        "half/refs/x",
        "other/HEAD",
        "other/commondir",
    ] {
        watch.scene.file(Path::new("w").join(name));
        watch.turn();
    }
    for name in ["HEAD", "objects/x", "refs/x"] {
        watch.scene.file(Path::new("moved").join(name));
    }
    fs::rename(watch.scene.path("moved"), watch.scene.path("w/moved")).unwrap();
    fs::write(watch.scene.path("w/old.git/HEAD.lock"), "x").unwrap();
    fs::rename(watch.scene.path("w/old.git/HEAD.lock"), watch.scene.path("w/old.git/HEAD"))
        .unwrap();
    watch.turn().finish();
    // G10, G11.
    assert_eq!(watch.quarantined(), ["w/moved/HEAD", "w/other/HEAD", "w/trap/HEAD"]);
    assert!(watch.exists("w/half/HEAD") && watch.exists("w/old.git/HEAD"));
}

#[test]
fn state_that_is_written_in_place_is_judged_without_an_event() {
    use std::os::unix::fs::FileExt as _;
    let scene = TestTree::new();
    let w = scene.dir("w");
    for repository in ["attacked", "honest"] {
        scene.file(Path::new("w").join(repository).join("xgit/x"));
        let dir = w.join(repository);
        assert!(git(&dir, &["init", "-q"]) && git(&dir, &["add", "."]));
        scene.file(Path::new("w").join(repository).join(".git/rebase-merge/done"));
        fs::write(dir.join(".git/rebase-merge/end"), "3\n").unwrap();
    }
    let mut watch = GuardedTree::over(scene);
    let write = |path: &str, at: u64, text: &[u8]| {
        let file = fs::OpenOptions::new().write(true).open(w.join(path)).unwrap();
        file.write_all_at(text, at).unwrap();
    };
    let index = fs::read(w.join("attacked/.git/index")).unwrap();
    let at = index.windows(6).position(|part| part == b"xgit/x").unwrap();
    write("attacked/.git/index", at as u64, b".");
    write("attacked/.git/rebase-merge/end", 0, b"$(x)");
    write("honest/.git/rebase-merge/end", 0, b"4");
    assert!(!watch.guard.is_due(), "no event");
    watch.turn().finish();
    assert_eq!(watch.quarantined(), ["w/attacked/.git/index", "w/attacked/.git/rebase-merge/end"]);
}

#[test]
fn objects_that_are_neither_file_nor_directory_do_not_appear_in_a_git_directory() {
    let scene = TestTree::new();
    let w = scene.dir("w");
    assert!(git(&w, &["init", "-q"]));
    let fifo = |path: PathBuf| {
        rustix::fs::mknodat(rustix::fs::CWD, path, FileType::Fifo, 0o600.into(), 0).unwrap();
    };
    fifo(w.join(".git/own"));
    let mut watch = GuardedTree::over(scene);
    fifo(w.join(".git/planted"));
    fifo(w.join("elsewhere"));
    watch.turn();
    assert_eq!(watch.quarantined(), ["w/.git/planted"]);
    fs::rename(w.join(".git/own"), w.join(".git/moved")).unwrap();
    fs::rename(w.join(".git/moved"), w.join(".git/own")).unwrap();
    watch.finish();
    assert_eq!(watch.quarantined(), ["w/.git/planted"]);
    assert!(watch.exists("w/.git/own") && watch.exists("w/elsewhere"));
}
