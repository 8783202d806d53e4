//! A hostile command: shut directories, floods of names, names that change all the time.

use super::*;

#[test]
fn removed_rights_do_not_hide_names() {
    test_tree::become_ordinary();
    let mut watch = GuardedTree::over(TestTree::new());
    let shut = |watch: &GuardedTree, name: &str, mode| {
        fs::set_permissions(watch.scene.path(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    watch.scene.file("w/a/.envrc");
    watch.scene.file("w/b/.vscode/x");
    watch.scene.file("w/c/d/.npmrc");
    shut(&watch, "w/a", 0o500);
    shut(&watch, "w/b/.vscode", 0o000);
    shut(&watch, "w/c/d", 0o000);
    shut(&watch, "w/c", 0o000);
    watch.turn();
    assert_eq!(watch.quarantined(), ["w/a/.envrc", "w/b/.vscode"]);
    assert_eq!(fs::metadata(watch.scene.path("w/a")).unwrap().mode() & 0o777, 0o500);
    // A directory that can be entered again is scanned.
    shut(&watch, "w/c", 0o700);
    watch.turn();
    shut(&watch, "w/c/d", 0o700);
    watch.turn();
    assert_eq!(watch.quarantined(), ["w/a/.envrc", "w/b/.vscode", "w/c/d/.npmrc"]);
    // The last scan checks it in any case.
    watch.scene.file("w/e/f/.npmrc");
    shut(&watch, "w/e/f", 0o000);
    shut(&watch, "w/e", 0o000);
    watch.turn().finish();
    assert!(watch.quarantined().contains(&"w/e/f/.npmrc".to_owned()));
}

#[test]
fn a_shut_root_does_not_count_as_empty() {
    test_tree::become_ordinary();
    for at_the_end in [false, true] {
        let scene = TestTree::new();
        scene.dir("w/a");
        let mut watch = GuardedTree::over(scene);
        let a = rustix::fs::open(watch.scene.path("w/a"), OFlags::PATH, rustix::fs::Mode::empty())
            .unwrap();
        fs::set_permissions(watch.scene.path("w"), fs::Permissions::from_mode(0o000)).unwrap();
        rustix::fs::mkdirat(&a, c".vscode", rustix::fs::Mode::RWXU).unwrap();
        rustix::fs::mkdirat(&a, c"plain", rustix::fs::Mode::RWXU).unwrap();
        if at_the_end {
            watch.finish()
        } else {
            watch.turn()
        };
        assert_eq!(watch.quarantined(), ["w/a/.vscode"]);
        assert!(watch.exists("w/a/plain"));
    }
}

#[test]
fn a_directory_that_lists_but_can_not_be_searched_hides_nothing() {
    test_tree::become_ordinary();
    let scene = TestTree::new();
    for name in ["a", "b"] {
        scene.file(format!("w/{name}/x"));
    }
    let mut watch = GuardedTree::over(scene);
    let shut = |watch: &GuardedTree, name: &str, mode| {
        fs::set_permissions(watch.scene.path(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    fs::rename(watch.scene.path("w/a/x"), watch.scene.path("w/a/.envrc")).unwrap();
    shut(&watch, "w/a", 0o600);
    watch.turn();
    assert_eq!(watch.quarantined(), ["w/a/.envrc"]);
    fs::rename(watch.scene.path("w/b/x"), watch.scene.path("w/b/.npmrc")).unwrap();
    shut(&watch, "w/b", 0o600);
    watch.finish();
    assert_eq!(watch.quarantined(), ["w/a/.envrc", "w/b/.npmrc"]);
    // A directory whose names can be opened but not listed gets its rights back at once.
    let mut watch = GuardedTree::over(TestTree::new());
    watch.scene.file("w/c/.env");
    shut(&watch, "w/c", 0o300);
    watch.turn();
    assert_eq!(watch.put(), ["Mask w/c/.env"]);
}

#[test]
fn denied_names_are_covered_before_other_events_are_judged() {
    let scene = TestTree::new();
    scene.dir("w/many");
    let mut watch = GuardedTree::over(scene);
    for number in 0..300 {
        watch.scene.dir(format!("w/many/{number}"));
        watch.scene.file(format!("w/many/{number}/.envrc"));
    }
    watch.scene.file("w/.env");
    let GuardedTree { guard, events, scene, .. } = &mut watch;
    let mut first = None;
    let mut put_covers = |covers: &[Cover]| {
        let left = (0..300)
            .filter(|number| scene.path(format!("w/many/{number}/.envrc")).exists())
            .count();
        first.get_or_insert((covers.len(), left));
        Ok(vec![CoverResult::Now; covers.len()])
    };
    while guard.is_due() {
        guard.turn(&mut put_covers, &mut |event| events.push(event)).unwrap();
    }
    assert_eq!(first, Some((1, 300)));
    assert_eq!(watch.quarantined().len(), 300);
}

#[test]
fn a_last_scan_with_an_error_handles_the_rest_and_reports_it() {
    let mut watch = GuardedTree::over(TestTree::new());
    let mut at =
        rustix::fs::open(watch.scene.dir("w/deep"), OFlags::PATH, rustix::fs::Mode::empty())
            .unwrap();
    for _ in 0..walk::MAX_DEPTH + 1 {
        rustix::fs::mkdirat(&at, c"d", rustix::fs::Mode::RWXU).unwrap();
        at = rustix::fs::openat(&at, c"d", OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
    }
    for number in 0..20 {
        watch.scene.file(format!("w/{number}/.envrc"));
    }
    let events = &mut watch.events;
    let error = watch.guard.finish(&mut |event| events.push(event)).unwrap_err();
    assert!(
        error.to_string().contains("did not finish")
            && error.to_string().contains("directories deep"),
        "{error}"
    );
    assert_eq!(watch.quarantined().len(), 20);
    assert!(
        Command::new("rm").arg("-rf").arg(watch.scene.path("w/deep")).status().unwrap().success()
    );
}

#[test]
fn too_many_protected_names_end_the_run() {
    let mut watch = GuardedTree::over(TestTree::new());
    for number in 0..=MAX_QUARANTINED {
        watch.scene.file(format!("w/{number}/.envrc"));
    }
    let mut result = Ok(());
    while result.is_ok() {
        result = watch.try_turn();
    }
    assert!(matches!(result, Err(GuardError::TooManyQuarantined)));
    // Then the command is ended. Names that it left are still quarantined.
    watch.scene.file("w/more/.envrc");
    watch.finish();
    assert!(!watch.exists("w/more/.envrc") && watch.quarantined().len() == MAX_QUARANTINED + 2);
}

#[test]
fn a_guard_with_nothing_to_read_does_nothing() {
    let mut watch = GuardedTree::over(TestTree::new());
    watch.turn().finish();
    assert!(watch.events.is_empty() && watch.guard.timeout().is_none());
}

#[test]
fn names_that_change_all_the_time_are_handled_by_the_last_scan() {
    let scene = TestTree::new();
    let victim = scene.dir("victim");
    for name in [
        "victim/.envrc",
        "victim/.git/hooks/pre-commit",
        "victim/keep",
        "w/mine/.vscode/settings.json",
    ] {
        scene.file(name);
    }
    let mut watch = GuardedTree::over(scene);
    let w = watch.scene.path("w");
    let rounds = std::thread::scope(|scope| {
        let racer = scope.spawn(|| {
            let mut rounds = 0;
            for round in 0..400 {
                rounds = round;
                let dir = w.join(format!("r{}", round % 7));
                let _ = fs::create_dir_all(dir.join("x/.git/hooks"));
                let _ = fs::write(dir.join("x/.git/hooks/post-checkout"), "evil");
                let _ = fs::write(dir.join("x/.envrc"), "evil");
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
            rounds
        });
        while !racer.is_finished() {
            match watch.try_turn() {
                Ok(()) => {}
                Err(GuardError::TooManyQuarantined) => watch.guard.state.quarantined = 0,
                Err(error) => panic!("{error}"),
            }
        }
        racer.join().unwrap()
    });
    assert_eq!(rounds, 399);
    watch.finish();
    for name in [
        "victim/.envrc",
        "victim/.git/hooks/pre-commit",
        "victim/keep",
        "w/mine/.vscode/settings.json",
    ] {
        assert_eq!(fs::read(watch.scene.path(name)).unwrap(), name.as_bytes());
    }
    let find = ["(", "-name", ".envrc", "-o", "-name", "post-checkout", ")"];
    let left = Command::new("find").arg(&w).args(find).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&left.stdout), "");
    let found = Command::new("find")
        .arg(watch.scene.path("taken"))
        .args(["-name", ".envrc"])
        .output()
        .unwrap();
    assert!(!found.stdout.is_empty(), "the race was run");
}
