//! Excepts inside grants: what is denied, what stays reachable, and that no excepted name can be
//! created.

#![cfg(supported)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use support::*;

/// home/{keys/id, notes, project/{code, .env}, .config/{app/x, gh/token}}
fn home() -> (TestDir, PathBuf) {
    let tree = TestDir::new();
    for dir in ["home/keys", "home/project", "home/.config/app", "home/.config/gh", "elsewhere"] {
        tree.dir(dir);
    }
    for file in [
        "home/keys/id",
        "home/notes",
        "home/project/code",
        "home/project/.env",
        "home/.config/app/x",
        "home/.config/gh/token",
        "elsewhere/x",
    ] {
        tree.file(file);
    }
    let home = tree.path("home");
    (tree, home)
}

fn allowed(plan: &Value, path: impl AsRef<Path>) -> bool {
    match attempt(plan, "read", path.as_ref()).as_str() {
        "allowed" => true,
        "denied" => false,
        other => panic!("{} {other}", path.as_ref().display()),
    }
}

fn preflight(plan: &Value) -> Value {
    json_of(&Core::new::<&str>("preflight", plan, &[]).output())
}

#[test]
fn an_excepted_directory_is_denied_and_its_siblings_are_not() {
    let (_tree, home) = home();
    let plan = plan(&home, &[grant_except(&home, "allow", &[home.join("keys")])]);
    assert!(!allowed(&plan, home.join("keys/id")));
    for inside in ["notes", "project/code", ".config/gh/token"] {
        assert!(allowed(&plan, home.join(inside)), "{inside}");
    }
    let report = preflight(&plan);
    assert_eq!(
        report["carved"],
        json!([{"path": home, "source": "test:2", "kept_out": [home.join("keys")]}])
    );
    // The restricted directory itself has no rights.
    let output = sh(
        &plan,
        "ls . || echo no-list; touch new || echo no-create; touch project/new && echo created",
    );
    assert_eq!(stdout(&output), "no-list\nno-create\ncreated\n");
    let control = preflight(&support::plan(&home, &[grant(&home, "allow")]));
    assert_eq!(control["carved"], json!([]));
}

#[test]
fn nested_excepts_are_denied() {
    let (_tree, home) = home();
    let kept_out = [home.join(".config/gh"), home.join("project/.env"), home.join("keys/id")];
    let plan = plan(&home, &[grant_except(&home, "read", &kept_out)]);
    for outside in [".config/gh/token", "project/.env", "keys/id"] {
        assert!(!allowed(&plan, home.join(outside)), "{outside}");
    }
    for inside in [".config/app/x", "project/code", "notes"] {
        assert!(allowed(&plan, home.join(inside)), "{inside}");
    }
}

#[test]
fn an_excepted_name_can_not_be_created() {
    let (_tree, home) = home();
    let planned = plan(&home, &[grant_except(&home, "allow", &[home.join("secret/deep/er")])]);
    let script = "mkdir secret || echo refused; mv project secret || echo refused; ln -s /etc \
        secret || echo refused";
    let output = sh(&planned, script);
    assert_eq!(stdout(&output), "refused\nrefused\nrefused\n");
    assert!(!home.join("secret").exists());
    assert!(allowed(&planned, home.join("keys/id")));
    let control = sh(&plan(&home, &[grant(&home, "allow")]), "mkdir secret && echo made");
    assert_eq!(stdout(&control), "made\n");
}

#[test]
fn a_missing_except_restricts_only_its_directory() {
    let (_tree, home) = home();
    let planned = plan(&home, &[grant_except(&home, "allow", &[home.join("project/missing")])]);
    let output = sh(&planned, "touch project/missing || echo refused; touch keys/new && echo made");
    assert_eq!(stdout(&output), "refused\nmade\n");
    assert!(allowed(&planned, home.join("project/code")));
}

#[test]
fn a_grant_at_or_below_its_except_is_removed() {
    let (_tree, home) = home();
    let project = home.join("project");
    for except in [home.clone(), project.clone()] {
        let plan = plan(&home, &[grant_except(&project, "allow", std::slice::from_ref(&except))]);
        assert!(!allowed(&plan, project.join("code")));
        let removed = preflight(&plan)["removed"].clone();
        assert_eq!(removed, json!([{"path": project, "source": "test:2", "except": except}]));
    }
    let file = plan(&home, &[grant_except(home.join("keys/id"), "read", &[home.join("keys")])]);
    assert!(!allowed(&file, home.join("keys/id")));
}

#[test]
fn an_except_outside_of_the_grant_has_no_effect() {
    let (tree, home) = home();
    let plan = plan(
        &home,
        &[grant_except(&home, "allow", &[tree.path("elsewhere"), tree.path("nowhere/at/all")])],
    );
    assert!(allowed(&plan, home.join("keys/id")));
    assert_eq!(preflight(&plan)["carved"], json!([]));
    assert_eq!(stdout(&sh(&plan, "touch new && echo made")), "made\n");
}

#[test]
fn a_grant_through_a_symlink_is_restricted_at_its_target() {
    let (tree, home) = home();
    let link = tree.link("link", &home);
    for except in [home.join("keys"), link.join("keys")] {
        let plan = plan(&home, &[grant_except(&link, "read", &[except])]);
        assert!(!allowed(&plan, home.join("keys/id")));
        assert!(!allowed(&plan, link.join("keys/id")));
        assert!(allowed(&plan, home.join("notes")));
    }
}

/// The plan with paths that are closed, and paths that are unwritable.
fn closing(mut plan: Value, closed: &[PathBuf], unwritable: &[PathBuf]) -> Value {
    plan["files"]["closed"] = json!(closed);
    plan["files"]["unwritable"] = json!(unwritable);
    plan
}

#[test]
fn a_symlink_does_not_open_a_closed_path() {
    let (tree, home) = home();
    let into = tree.link("into", home.join("keys"));
    let above = tree.link("above", &home);
    let keys = [home.join("keys")];

    let led_into = closing(plan(&home, &[grant(&into, "read")]), &keys, &[]);
    assert!(allowed(&plan(&home, &[grant(&into, "read")]), home.join("keys/id")));
    assert!(!allowed(&led_into, home.join("keys/id")));
    let report = preflight(&led_into);
    assert_eq!(report["removed"][0]["path"], json!(into));
    assert!(report["warnings"][0].as_str().unwrap().contains("leads into"));

    let led_above = closing(plan(&home, &[grant(&above, "read")]), &keys, &[]);
    assert!(!allowed(&led_above, home.join("keys/id")));
    assert!(allowed(&led_above, home.join("notes")));

    // Unwritable only: reading through the link works, writing does not.
    let readable = closing(plan(&home, &[grant(&above, "read")]), &[], &keys);
    assert!(allowed(&readable, home.join("keys/id")));
    let mut writable = closing(plan(&home, &[grant(&above, "allow")]), &[], &keys);
    writable["files"]["reached"] = json!([{"path": home, "identity": null, "born_ns": null}]);
    assert_eq!(attempt(&writable, "write", home.join("keys/id")), "denied");
    assert_eq!(attempt(&writable, "write", home.join("notes")), "allowed");
}

#[test]
fn a_closed_symlink_closes_its_target() {
    let (tree, home) = home();
    let alias = tree.link("alias", home.join("keys"));
    let planned = || plan(&home, &[grant(&home, "allow")]);
    assert!(allowed(&planned(), home.join("keys/id")));
    for name in [alias.clone(), alias.join("id")] {
        assert!(!allowed(
            &closing(planned(), std::slice::from_ref(&name), &[]),
            home.join("keys/id")
        ));
        let unwritable = closing(planned(), &[], &[name]);
        assert_eq!(attempt(&unwritable, "write", home.join("keys/id")), "denied");
        assert!(allowed(&unwritable, home.join("notes")));
    }
}

#[test]
fn an_excepted_symlink_protects_the_link_and_what_it_points_to() {
    let (_tree, home) = home();
    std::os::unix::fs::symlink("project", home.join("alias")).unwrap();
    let planned = plan(&home, &[grant_except(&home, "allow", &[home.join("alias")])]);
    assert!(!allowed(&planned, home.join("project/code")));
    assert!(allowed(&planned, home.join("keys/id")));
    assert_eq!(stdout(&sh(&planned, "rm alias || echo refused")), "refused\n");

    // A dangling link: its target must not be created either.
    std::os::unix::fs::symlink("project/later", home.join("dangling")).unwrap();
    let planned = plan(&home, &[grant_except(&home, "allow", &[home.join("dangling")])]);
    assert_eq!(
        stdout(&sh(&planned, "mkdir project/later || echo refused; rm dangling || echo refused")),
        "refused\nrefused\n"
    );
}

#[test]
fn symlink_entries_get_no_rule() {
    let (tree, home) = home();
    std::os::unix::fs::symlink(tree.path("elsewhere"), home.join("out")).unwrap();
    let plan = plan(&home, &[grant_except(&home, "read", &[home.join("keys")])]);
    assert!(!allowed(&plan, home.join("out/x")));
    assert!(!allowed(&plan, tree.path("elsewhere/x")));
}

#[test]
fn a_loop_of_symlinks_is_refused() {
    let (_tree, home) = home();
    std::os::unix::fs::symlink("b", home.join("a")).unwrap();
    std::os::unix::fs::symlink("a", home.join("b")).unwrap();
    let plan = plan(&home, &[grant_except(&home, "read", &[home.join("a")])]);
    assert_refused(&sh(&plan, "true"), "cannot locate");
}

#[test]
fn the_journal_is_never_reachable() {
    let (tree, home) = home();
    let mut exposed = plan(&home, &[grant(&tree.0, "read")]);
    exposed["journal"] = json!({"dir": tree.path("audit"), "file": null, "stderr": false});
    assert_refused(&sh(&exposed, "true"), "could reach the journal");
    exposed["files"]["grants"].as_array_mut().unwrap().pop();
    exposed["files"]["grants"].as_array_mut().unwrap().push(grant_except(
        &tree.0,
        "allow",
        &[tree.path("audit")],
    ));
    let output = sh(
        &exposed,
        &format!("cat {0}/* || echo refused; ls {0} || echo refused", tree.path("audit").display()),
    );
    assert_eq!(stdout(&output), "refused\nrefused\n");
}
