//! Symlinks that a command could have created and directories that it could have closed must not
//! choose where a plan's names lead.

#![cfg(supported)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use serde_json::{Value, json};
use support::*;

/// work (the working directory), reached (an earlier run could write it), vault/secret, own/ (of
/// the user)
fn test_tree() -> TestDir {
    let tree = TestDir::new();
    for dir in ["work", "reached", "vault", "own"] {
        tree.dir(dir);
    }
    tree.file("vault/secret");
    tree
}

fn reached(mut plan: Value, trees: &[(PathBuf, Value)]) -> Value {
    plan["files"]["reached"] =
        trees.iter().map(|(path, identity)| recorded(path, identity, Value::Null)).collect();
    plan
}

fn recorded(path: &Path, identity: &Value, born_ns: Value) -> Value {
    json!({"path": path, "identity": identity, "born_ns": born_ns})
}

fn born_ns(path: &Path) -> i64 {
    let found = statx(CWD, path, AtFlags::empty(), StatxFlags::BTIME).unwrap();
    found.stx_btime.tv_sec * 1_000_000_000 + i64::from(found.stx_btime.tv_nsec)
}

fn identity(path: &Path) -> Value {
    let facts = fs::metadata(path).unwrap();
    json!([facts.dev(), facts.ino()])
}

fn needed(path: impl AsRef<Path>, access: &str) -> Value {
    grant_except(path, access, &[])
}

fn shut(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o000)).unwrap();
}

fn open(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_renamed_directory_is_known_by_its_inode() {
    let tree = test_tree();
    let earlier = tree.path("reached");
    let known = identity(&earlier);
    fs::rename(&earlier, tree.path("renamed")).unwrap();
    let link = tree.link("renamed/link", tree.path("vault"));
    let planned = |identity| {
        reached(plan(&tree.path("work"), &[needed(&link, "read")]), &[(earlier.clone(), identity)])
    };
    assert_refused(&sh(&planned(known), "true"), "leads through a symlink in");
    // The name alone does not identify it.
    assert_eq!(attempt(&planned(Value::Null), "read", tree.path("vault/secret")), "allowed");
}

#[test]
fn an_inode_number_that_comes_back_is_another_directory() {
    let tree = test_tree();
    let fresh = tree.path("own");
    let link = tree.link("own/link", tree.path("vault"));
    let planned = |path: &str, born_ns: i64| {
        let mut plan = plan(&tree.path("work"), &[needed(&link, "read")]);
        plan["files"]["reached"] =
            json!([recorded(&tree.path(path), &identity(&fresh), json!(born_ns))]);
        plan
    };
    for path in ["gone", "own"] {
        let same = planned(path, born_ns(&fresh));
        assert_refused(&sh(&same, "true"), "leads through a symlink in");
        let removed = planned(path, born_ns(&fresh) - 1);
        assert_eq!(attempt(&removed, "read", tree.path("vault/secret")), "allowed", "{path}");
    }
}

#[test]
fn a_link_in_a_private_temporary_directory_is_not_followed() {
    let tree = test_tree();
    let temp = PathBuf::from(format!("/tmp/paddock-{}-links{}", uid(), std::process::id()));
    fs::create_dir(&temp).unwrap();
    own(&temp);
    std::os::unix::fs::symlink(tree.path("vault"), temp.join("link")).unwrap();
    let planted = sh(&plan(&tree.path("work"), &[needed(temp.join("link"), "read")]), "true");
    fs::remove_dir_all(&temp).unwrap();
    assert_refused(&planted, "leads through a symlink in");
    let control = tree.link("own/link", tree.path("vault"));
    let planned = plan(&tree.path("work"), &[needed(control, "read")]);
    assert_eq!(attempt(&planned, "read", tree.path("vault/secret")), "allowed");
}

#[test]
fn a_writable_grant_through_a_link_must_be_recorded() {
    let tree = test_tree();
    let link = tree.link("own/current", tree.path("vault"));
    let planned = |trees: &[(PathBuf, Value)]| {
        reached(plan(&tree.path("work"), &[needed(&link, "allow")]), trees)
    };
    assert_refused(&sh(&planned(&[]), "true"), "and led elsewhere");
    // The link was changed after the record was made.
    assert_refused(
        &sh(&planned(&[(tree.path("reached"), Value::Null)]), "true"),
        "and led elsewhere",
    );
    for known in
        [(tree.path("vault"), Value::Null), (tree.path("gone"), identity(&tree.path("vault")))]
    {
        assert_eq!(attempt(&planned(&[known]), "write", tree.path("vault/secret")), "allowed");
    }
    // A read-only grant leaves nothing behind.
    let read = plan(&tree.path("work"), &[needed(&link, "read")]);
    assert_eq!(attempt(&read, "read", tree.path("vault/secret")), "allowed");
}

#[test]
fn a_closed_path_behind_an_unreadable_directory_is_refused() {
    let tree = test_tree();
    for (dir, target) in [("dots", "../work/token"), ("dirs", "../work")] {
        let dir = tree.dir(dir);
        let link = dir.join("link");
        std::os::unix::fs::symlink(target, &link).unwrap();
        let token = tree.file("work/token");
        let closed = if dir.ends_with("dots") { link } else { link.join("token") };
        let mut planned = plan(&tree.path("work"), &[needed(tree.path("work"), "allow")]);
        assert_eq!(attempt(&planned, "read", &token), "allowed");
        for (key, operation) in [("closed", "read"), ("unwritable", "write")] {
            planned["files"]["closed"] = json!([]);
            planned["files"][key] = json!([closed]);
            if key == "closed" {
                assert_eq!(attempt(&planned, operation, &token), "denied");
            }
            shut(&dir);
            let stopped = sh(&planned, "cat token");
            open(&dir);
            assert_refused(&stopped, "cannot locate");
        }
    }
}

#[test]
fn an_unreadable_directory_of_another_user_is_accepted() {
    let tree = test_tree();
    if !is_root() {
        return; // only root can make such a directory
    }
    let theirs = tree.path("theirs");
    fs::create_dir(&theirs).unwrap();
    fs::set_permissions(&theirs, fs::Permissions::from_mode(0o700)).unwrap();
    let mut planned = plan(&tree.path("work"), &[needed(&tree.0, "read")]);
    planned["files"]["closed"] = json!([theirs.join("deep/key")]);
    assert_eq!(attempt(&planned, "read", tree.path("vault/secret")), "allowed");
}

#[test]
fn a_link_to_a_closed_path_can_not_be_replaced() {
    let tree = test_tree();
    tree.dir("work/v1");
    tree.dir("work/v2");
    let token = tree.file("work/v1/token");
    let link = tree.link("work/current", "v1");
    let mut planned = plan(&tree.path("work"), &[needed(tree.path("work"), "allow")]);
    assert_eq!(
        stdout(&sh(&planned, "ln -sfn v2 current && ln -sfn v1 current && echo turned")),
        "turned\n"
    );
    planned["files"]["closed"] = json!([link.join("token")]);
    let script =
        "ln -sfn v2 current || echo refused; rm current || echo refused; touch v2/new && echo made";
    assert_eq!(stdout(&sh(&planned, script)), "refused\nrefused\nmade\n");
    assert_eq!(attempt(&planned, "read", token), "denied");
}

#[test]
fn an_excepted_link_can_not_be_replaced() {
    let tree = test_tree();
    let entry = tree.link("own/paddock", tree.path("vault/secret"));
    let mut planned = plan(&tree.path("work"), &[needed(tree.path("own"), "allow")]);
    planned["files"]["reached"] = json!([recorded(&tree.path("own"), &Value::Null, Value::Null)]);
    planned["files"]["unwritable"] = json!([entry]);
    planned["files"]["grants"].as_array_mut().unwrap().last_mut().unwrap()["except"] =
        json!([entry]);
    let script =
        format!("ln -sfn /bin/true {0} || echo refused; rm {0} || echo refused", entry.display());
    assert_eq!(stdout(&sh(&planned, &script)), "refused\nrefused\n");
    // A link in the middle of a path is refused.
    let middle = tree.link("own/dir", tree.path("vault"));
    planned["files"]["unwritable"] = json!([middle.join("secret")]);
    assert_refused(&sh(&planned, "true"), "leads through a symlink in");
}

#[test]
fn a_planted_link_does_not_move_the_journal() {
    let tree = test_tree();
    for (dir, is_planted) in [("reached", true), ("own", false)] {
        let link = tree.link(&format!("{dir}/logs"), tree.path("vault"));
        let trees = [(tree.path("reached"), Value::Null)];
        let mut planned =
            reached(plan(&tree.path("work"), &[needed(tree.path("work"), "allow")]), &trees);
        planned["journal"] = json!({"dir": link.join("journal"), "file": null, "stderr": false});
        let output = sh(&planned, "echo ran");
        if is_planted {
            assert_refused(&output, "the journal");
            assert_refused(&Core::new::<&str>("preflight", &planned, &[]).output(), "the journal");
        } else {
            assert_eq!(stdout(&output), "ran\n", "{}", stderr(&output));
        }
        assert_eq!(tree.path("vault/journal").exists(), !is_planted);
    }
}
