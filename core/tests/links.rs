//! Symlinks that a command could have made, directories it could have shut: what a plan's names
//! lead to must not be its choice.

#![cfg(supported)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use support::*;

/// work (where the run stands), reached (where an earlier one could write), vault/secret, own/ (the
/// person's)
fn ground() -> Tree {
    let tree = Tree::new();
    for dir in ["work", "reached", "vault", "own"] {
        tree.dir(dir);
    }
    tree.file("vault/secret");
    tree
}

fn reached(mut plan: Value, trees: &[(PathBuf, Value)]) -> Value {
    plan["files"]["reached"] =
        trees.iter().map(|(path, identity)| json!({"path": path, "identity": identity})).collect();
    plan
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
fn a_renamed_place_is_known_by_its_inode() {
    let tree = ground();
    let earlier = tree.path("reached");
    let known = identity(&earlier);
    fs::rename(&earlier, tree.path("renamed")).unwrap();
    let link = tree.link("renamed/link", tree.path("vault"));
    let asked = |identity| {
        reached(plan(&tree.path("work"), &[needed(&link, "read")]), &[(earlier.clone(), identity)])
    };
    assert_refused(&sh(&asked(known), "true"), "leads through a symlink in");
    // By the name alone nobody would know it.
    assert_eq!(attempt(&asked(Value::Null), "read", tree.path("vault/secret")), "allowed");
}

#[test]
fn a_link_in_a_private_temporary_directory_is_not_followed() {
    let tree = ground();
    let temp = PathBuf::from(format!("/tmp/paddock-{}-links{}", uid(), std::process::id()));
    fs::create_dir(&temp).unwrap();
    own(&temp);
    std::os::unix::fs::symlink(tree.path("vault"), temp.join("link")).unwrap();
    let planted = sh(&plan(&tree.path("work"), &[needed(temp.join("link"), "read")]), "true");
    fs::remove_dir_all(&temp).unwrap();
    assert_refused(&planted, "leads through a symlink in");
    let control = tree.link("own/link", tree.path("vault"));
    let asked = plan(&tree.path("work"), &[needed(control, "read")]);
    assert_eq!(attempt(&asked, "read", tree.path("vault/secret")), "allowed");
}

#[test]
fn what_becomes_writable_through_a_link_has_to_be_known_to_later_runs() {
    let tree = ground();
    let link = tree.link("own/current", tree.path("vault"));
    let asked = |trees: &[(PathBuf, Value)]| {
        reached(plan(&tree.path("work"), &[needed(&link, "allow")]), trees)
    };
    assert_refused(&sh(&asked(&[]), "true"), "and led elsewhere");
    // The link was turned after the record was made.
    assert_refused(
        &sh(&asked(&[(tree.path("reached"), Value::Null)]), "true"),
        "and led elsewhere",
    );
    for known in
        [(tree.path("vault"), Value::Null), (tree.path("gone"), identity(&tree.path("vault")))]
    {
        assert_eq!(attempt(&asked(&[known]), "write", tree.path("vault/secret")), "allowed");
    }
    // Nothing can be left behind where nothing can be written.
    let read = plan(&tree.path("work"), &[needed(&link, "read")]);
    assert_eq!(attempt(&read, "read", tree.path("vault/secret")), "allowed");
}

#[test]
fn a_closed_place_behind_a_shut_directory_stops_the_run() {
    let tree = ground();
    for (dir, target) in [("dots", "../work/token"), ("dirs", "../work")] {
        let dir = tree.dir(dir);
        let link = dir.join("link");
        std::os::unix::fs::symlink(target, &link).unwrap();
        let token = tree.file("work/token");
        let closed = if dir.ends_with("dots") { link } else { link.join("token") };
        let mut asked = plan(&tree.path("work"), &[needed(tree.path("work"), "allow")]);
        assert_eq!(attempt(&asked, "read", &token), "allowed");
        for (key, operation) in [("closed", "read"), ("unwritable", "write")] {
            asked["files"]["closed"] = json!([]);
            asked["files"][key] = json!([closed]);
            if key == "closed" {
                assert_eq!(attempt(&asked, operation, &token), "denied");
            }
            shut(&dir);
            let stopped = sh(&asked, "cat token");
            open(&dir);
            assert_refused(&stopped, "cannot locate");
        }
    }
}

#[test]
fn a_directory_of_somebody_else_that_is_shut_hides_nothing_of_ours() {
    let tree = ground();
    if !is_root() {
        return; // only root can make such a directory
    }
    let theirs = tree.path("theirs");
    fs::create_dir(&theirs).unwrap();
    fs::set_permissions(&theirs, fs::Permissions::from_mode(0o700)).unwrap();
    let mut asked = plan(&tree.path("work"), &[needed(&tree.0, "read")]);
    asked["files"]["closed"] = json!([theirs.join("deep/key")]);
    assert_eq!(attempt(&asked, "read", tree.path("vault/secret")), "allowed");
}

#[test]
fn a_link_on_the_way_to_a_closed_place_can_not_be_turned() {
    let tree = ground();
    tree.dir("work/v1");
    tree.dir("work/v2");
    let token = tree.file("work/v1/token");
    let way = tree.link("work/current", "v1");
    let mut asked = plan(&tree.path("work"), &[needed(tree.path("work"), "allow")]);
    assert_eq!(
        stdout(&sh(&asked, "ln -sfn v2 current && ln -sfn v1 current && echo turned")),
        "turned\n"
    );
    asked["files"]["closed"] = json!([way.join("token")]);
    let script =
        "ln -sfn v2 current || echo refused; rm current || echo refused; touch v2/new && echo made";
    assert_eq!(stdout(&sh(&asked, script)), "refused\nrefused\nmade\n");
    assert_eq!(attempt(&asked, "read", token), "denied");
}

#[test]
fn a_link_that_is_itself_kept_out_of_every_grant_is_no_danger() {
    let tree = ground();
    let entry = tree.link("own/paddock", tree.path("vault/secret"));
    let mut asked = plan(&tree.path("work"), &[needed(tree.path("own"), "allow")]);
    asked["files"]["reached"] = json!([{"path": tree.path("own"), "identity": null}]);
    asked["files"]["unwritable"] = json!([entry]);
    asked["files"]["grants"].as_array_mut().unwrap().last_mut().unwrap()["except"] = json!([entry]);
    let script =
        format!("ln -sfn /bin/true {0} || echo refused; rm {0} || echo refused", entry.display());
    assert_eq!(stdout(&sh(&asked, &script)), "refused\nrefused\n");
    // One in the middle of the way is.
    let middle = tree.link("own/dir", tree.path("vault"));
    asked["files"]["unwritable"] = json!([middle.join("secret")]);
    assert_refused(&sh(&asked, "true"), "leads through a symlink in");
}

#[test]
fn a_journal_is_not_led_elsewhere_by_a_planted_link() {
    let tree = ground();
    for (dir, is_planted) in [("reached", true), ("own", false)] {
        let link = tree.link(&format!("{dir}/logs"), tree.path("vault"));
        let trees = [(tree.path("reached"), Value::Null)];
        let mut asked =
            reached(plan(&tree.path("work"), &[needed(tree.path("work"), "allow")]), &trees);
        asked["journal"] = json!({"dir": link.join("journal"), "file": null, "stderr": false});
        let output = sh(&asked, "echo ran");
        if is_planted {
            assert_refused(&output, "the journal");
            assert_refused(&Core::new::<&str>("preflight", &asked, &[]).output(), "the journal");
        } else {
            assert_eq!(stdout(&output), "ran\n", "{}", stderr(&output));
        }
        assert_eq!(tree.path("vault/journal").exists(), !is_planted);
    }
}
