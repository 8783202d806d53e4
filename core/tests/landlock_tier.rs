//! The sandbox seen from outside: each denial beside an allowed act, and beside the same act
//! without the sandbox.

#![cfg(supported)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use rustix::fs::SealFlags;
use serde_json::json;
use support::*;

#[test]
fn only_granted_files_can_be_written() {
    let tree = TestDir::new();
    let (inside, outside) = (tree.dir("inside"), tree.dir("outside"));
    tree.file("outside/old");
    let script = format!(
        "echo started; echo 1 > {0}/new && echo wrote-inside; echo 1 > {1}/new || echo \
         refused-new; \
         echo 1 > {1}/old || echo refused-old; cat {1}/old || echo refused-read; rm {1}/old || \
         echo refused-remove; \
         mv {0}/new {1}/moved || echo refused-move",
        inside.display(),
        outside.display()
    );
    let output = sh(&plan(&inside, &[grant(&inside, "allow")]), &script);
    assert_eq!(
        stdout(&output),
        "started\nwrote-inside\nrefused-new\nrefused-old\nrefused-read\nrefused-remove\n\
         refused-move\n"
    );
    assert_eq!(fs::read_to_string(outside.join("old")).unwrap(), "outside/old");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);

    let control = as_user("/bin/sh").args(["-c", &script]).output().unwrap();
    assert!(!stdout(&control).contains("refused"), "{}", stdout(&control));
    assert!(outside.join("moved").exists());
}

#[test]
fn a_read_grant_allows_reading_and_running() {
    let tree = TestDir::new();
    let dir = tree.dir("tools");
    fs::write(dir.join("tool"), "#!/bin/sh\necho ran\n").unwrap();
    fs::set_permissions(dir.join("tool"), PermissionsExt::from_mode(0o755)).unwrap();
    own(&dir.join("tool"));
    let readable = plan(&tree.0, &[grant(&dir, "read")]);
    let output = sh(
        &readable,
        &format!("{0}/tool; ls {0}; echo x >> {0}/tool || echo refused", dir.display()),
    );
    assert_eq!(stdout(&output), "ran\ntool\nrefused\n");
    for (operation, expected) in [("read", "allowed"), ("write", "denied"), ("exec", "allowed")] {
        assert_eq!(attempt(&readable, operation, dir.join("tool")), expected);
    }
    assert_eq!(attempt(&plan(&tree.0, &[]), "exec", dir.join("tool")), "denied");
    assert_eq!(attempt(&readable, "read", dir.join("nothing")), "missing");
    assert_eq!(attempt(&readable, "write", &dir), "untried");
}

#[test]
fn blocked_system_calls_fail_and_the_program_continues() {
    let tree = TestDir::new();
    let mut blocked = plan(&tree.0, &[grant(&tree.0, "allow")]);
    let control = sh(&blocked, "mkdir d1; echo alive");
    assert_eq!((stdout(&control).as_str(), tree.path("d1").exists()), ("alive\n", true));
    blocked["seccomp"]["syscalls"] = json!(["mkdir", "mkdirat"]);
    let output = sh(&blocked, "mkdir d2; echo alive");
    assert_eq!((stdout(&output).as_str(), tree.path("d2").exists()), ("alive\n", false));
    assert!(stderr(&output).contains("not permitted"));
}

#[test]
fn calls_that_the_set_up_uses_can_be_blocked() {
    let tree = TestDir::new();
    let mut blocked = plan(&tree.0, &[]);
    blocked["seccomp"]["syscalls"] =
        json!(["chdir", "close_range", "landlock_restrict_self", "prctl", "seccomp"]);
    blocked["temp"] =
        json!({"parent": std::env::temp_dir().canonicalize().unwrap(), "access": "allow"});
    assert_eq!(stdout(&sh(&blocked, "echo started")), "started\n");
}

#[test]
fn an_allow_list_blocks_other_calls() {
    let tree = TestDir::new();
    let mut listed = plan(&tree.0, &[grant(&tree.0, "allow")]);
    let names = [
        "access",
        "arch_prctl",
        "brk",
        "clone",
        "close",
        "dup2",
        "execve",
        "exit_group",
        "faccessat",
        "fcntl",
        "fstat",
        "getegid",
        "geteuid",
        "getgid",
        "getpid",
        "getppid",
        "getrandom",
        "getuid",
        "mmap",
        "mprotect",
        "munmap",
        "newfstatat",
        "open",
        "openat",
        "pread64",
        "prlimit64",
        "read",
        "readlink",
        "rseq",
        "rt_sigaction",
        "rt_sigprocmask",
        "rt_sigreturn",
        "set_robust_list",
        "set_tid_address",
        "stat",
        "wait4",
        "write",
        "writev",
    ];
    listed["seccomp"] =
        json!({"default": "deny", "syscalls": names[..], "sockets": [], "namespaces": false});
    let output = sh(&listed, "echo started; cd / 2>/dev/null || echo no-chdir");
    assert_eq!(stdout(&output), "started\nno-chdir\n", "{}", stderr(&output));
}

#[test]
fn the_kernel_reports_seccomp_and_no_new_privs() {
    let tree = TestDir::new();
    let status = "grep -E '^(NoNewPrivs|Seccomp):' /proc/self/status | tr -d '\\t '";
    assert_eq!(stdout(&sh(&plan(&tree.0, &[]), status)), "NoNewPrivs:1\nSeccomp:2\n");
    let mut off = plan(&tree.0, &[]);
    off["seccomp"] = json!(null);
    assert_eq!(stdout(&sh(&off, status)), "NoNewPrivs:1\nSeccomp:0\n");
    off["landlock"] = json!(null);
    off["files"] = json!(null);
    off["no_new_privs"] = json!(false);
    assert_eq!(stdout(&sh(&off, status)), "NoNewPrivs:0\nSeccomp:0\n");
}

#[test]
fn only_listed_variables_are_passed() {
    let tree = TestDir::new();
    let mut planned = plan(&tree.0, &[]);
    planned["environment"] = json!({"pass": ["PATH", "A_*"], "deny": ["*_TOKEN"],
    "keep": ["KEEP_TOKEN"], "set": {"CI": "1"}});
    let environment = [
        ("A_B", "1"),
        ("A_TOKEN", "2"),
        ("KEEP_TOKEN", "3"),
        ("OTHER", "4"),
        ("LD_PRELOAD", "/nothing"),
    ];
    let mut core = Core::new("run", &planned, &["--", "/usr/bin/env"]);
    core.command.env_clear().env("PATH", "/usr/bin:/bin").envs(environment);
    let output = core.output();
    let mut lines: Vec<String> = stdout(&output).lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["A_B=1", "CI=1", "KEEP_TOKEN=3", "PATH=/usr/bin:/bin"]);

    planned["environment"] = json!(null);
    let mut core = Core::new("run", &planned, &["--", "/usr/bin/env"]);
    core.command.env_clear().env("PATH", "/usr/bin:/bin").env("OTHER", "4");
    assert!(stdout(&core.output()).contains("OTHER=4"));
}

#[test]
fn no_other_descriptor_reaches_the_command() {
    let tree = TestDir::new();
    let mut supervised = plan(&tree.0, &[]);
    supervised["journal"] = json!({"dir": tree.path("audit"), "file": null, "stderr": false});
    for planned in [plan(&tree.0, &[]), supervised] {
        // The shell's glob opens the directory that it lists: the only descriptor above 2.
        let output = sh(&planned, "cd /proc/self/fd && echo *");
        let open: Vec<String> = stdout(&output).split_whitespace().map(str::to_owned).collect();
        assert!(
            open.len() <= 4 && open.starts_with(&["0".into(), "1".into(), "2".into()]),
            "{open:?}"
        );
    }
}

#[test]
fn exit_codes_are_the_commands_or_126_or_127() {
    let tree = TestDir::new();
    let planned = plan(&tree.0, &[grant(&tree.0, "allow")]);
    let audit = TestDir::new();
    let mut journaled = planned.clone();
    journaled["journal"] = json!({"dir": audit.path("journal"), "file": null, "stderr": false});
    let closed = tree.dir("closed");
    fs::set_permissions(&closed, PermissionsExt::from_mode(0o000)).unwrap();
    tree.file("plain");
    for plan in [&planned, &journaled] {
        assert_eq!(sh(plan, "exit 7").status.code(), Some(7));
        let run = |words: &[&str]| Core::new("run", plan, &[&["--"], words].concat()).output();
        for (words, code, text) in [
            (&["no-such-program"][..], 127, "cannot run no-such-program"),
            (&["./missing"], 127, "cannot run ./missing"),
            (&[""], 127, "cannot run"),
            (&["./plain"], 126, "cannot run ./plain"),
            (&["/etc"], 126, "cannot run /etc"),
        ] {
            let output = run(words);
            assert_eq!(output.status.code(), Some(code), "{words:?} {}", stderr(&output));
            assert!(stderr(&output).contains(text) && stderr(&output).contains("\nhint: "));
        }
    }
    let signal = sh(&journaled, "kill -TERM $$");
    assert_eq!(signal.status.code(), Some(128 + 15));

    // A directory of PATH that can not be searched is skipped.
    let mut core = Core::new("run", &planned, &["--", "no-such-program"]);
    core.command.env("PATH", format!("{}:/usr/bin", closed.display()));
    assert_eq!(core.output().status.code(), Some(127));
}

#[test]
fn a_script_without_a_first_line_runs_in_the_shell() {
    let tree = TestDir::new();
    let script = tree.file("script");
    fs::write(&script, "echo \"$0 $1\"\n").unwrap();
    fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    let planned = plan(&tree.0, &[grant(&tree.0, "allow")]);
    let output = Core::new("run", &planned, &["--", "./script", "word"]).output();
    assert_eq!(stdout(&output), "./script word\n");
}

#[test]
fn names_that_are_not_utf8_work() {
    let tree = TestDir::new();
    let name = OsStr::from_bytes(b"d\xff\xc3");
    let dir = tree.0.join(name);
    fs::create_dir(&dir).unwrap();
    own(&dir);
    let mut planned = plan(&tree.0, &[grant("/WORK", "allow")]);
    planned["cwd"] = json!("/");
    let text = planned.to_string();
    // Python's spelling of the two bytes: surrogateescape.
    let escaped = format!("{}/d\\udcff\\udcc3", tree.0.display());
    let text = text
        .replace("/WORK", &escaped)
        .replace(&format!("\"workdir\":{}", json!(tree.0)), &format!("\"workdir\":\"{escaped}\""));
    let words: [&OsStr; 5] = [
        "--".as_ref(),
        "/bin/sh".as_ref(),
        "-c".as_ref(),
        "printf %s \"$0\" > \"$0\"; pwd".as_ref(),
        OsStr::from_bytes(b"f\xfe"),
    ];
    let output = Core::sealed("run", seal(text.as_bytes(), all_seals()), &words).output();
    assert_eq!(output.stdout, [dir.as_os_str().as_bytes(), b"\n"].concat(), "{}", stderr(&output));
    assert_eq!(fs::read(dir.join(OsStr::from_bytes(b"f\xfe"))).unwrap(), b"f\xfe");
}

#[test]
fn a_megabyte_of_arguments_reaches_the_command() {
    let tree = TestDir::new();
    let mut planned = plan(&tree.0, &[]);
    planned["journal"] = json!({"dir": tree.path("audit"), "file": null, "stderr": false});
    let long = "x".repeat(100_000);
    let words: Vec<&str> =
        ["--", "/bin/sh", "-c", "echo $#", "sh"].into_iter().chain([long.as_str(); 10]).collect();
    assert_eq!(stdout(&Core::new("run", &planned, &words).output()), "10\n");
    let journal = fs::read_dir(tree.path("audit")).unwrap().map(|entry| entry.unwrap().path());
    let lines = journal.map(|path| fs::read_to_string(path).unwrap()).collect::<String>();
    assert!(lines.lines().all(|line| line.len() < 4096 && line.is_ascii()));
    assert!(lines.contains("more\""));
}

#[test]
fn unsealed_and_invalid_plans_are_refused() {
    let tree = TestDir::new();
    let planned = plan(&tree.0, &[]).to_string();
    let marker = tree.path("ran");
    let words = ["--".to_owned(), "/bin/touch".to_owned(), marker.display().to_string()];
    let refused = |bytes: &[u8], seals: SealFlags, text: &str| {
        assert_refused(&Core::sealed("run", seal(bytes, seals), &words).output(), text);
    };
    refused(planned.as_bytes(), SealFlags::SHRINK | SealFlags::GROW, "not a memfd sealed");
    refused(format!("{planned} {{}}").as_bytes(), all_seals(), "after the end");
    refused(planned.replace("\"version\":1", "\"version\":2").as_bytes(), all_seals(), "version 2");
    refused(
        planned.replace(&format!("\"uid\":{}", uid()), "\"uid\":4242").as_bytes(),
        all_seals(),
        "uid 4242",
    );
    refused(planned.replace("\"ptrace\"", "\"ptrce\"").as_bytes(), all_seals(), "ptrce");
    refused(planned.replace("\"abi\":7", "\"abi\":99").as_bytes(), all_seals(), "ABI 99");
    assert!(!marker.exists());

    let output = as_user(core()).args(["run", "--plan-fd", "77", "--", "true"]).output().unwrap();
    assert_refused(&output, "not an open descriptor");
    for words in [
        &["run"][..],
        &["run", "--plan-fd"],
        &["run", "--plan-fd", "x"],
        &["fly"],
        &[],
        &["host", "more"],
    ] {
        assert_refused(&as_user(core()).args(words).output().unwrap(), "paddock: ");
    }
}

#[test]
fn a_directory_on_a_standard_descriptor_is_refused() {
    let tree = TestDir::new();
    let mut core = Core::new("run", &plan(&tree.0, &[]), &["--", "true"]);
    core.command.stdin(Stdio::from(fs::File::open("/").unwrap()));
    assert_refused(&core.output(), "stdin is a directory");
}

#[test]
fn closed_standard_descriptors_become_dev_null() {
    let tree = TestDir::new();
    let mut planned = plan(&tree.0, &[grant(&tree.0, "allow")]);
    let audit = TestDir::new();
    planned["journal"] = json!({"dir": audit.path("journal"), "file": null, "stderr": false});
    let sealed = seal(planned.to_string().as_bytes(), all_seals());
    let fd = std::os::fd::AsRawFd::as_raw_fd(&sealed);
    let script = format!(
        "exec {} run --plan-fd {fd} -- /bin/sh -c 'readlink /proc/self/fd/0 /proc/self/fd/2 > \
         seen' <&- 2>&-",
        core().display()
    );
    let status = as_user("/bin/sh").args(["-c", &script]).current_dir(&tree.0).status().unwrap();
    assert!(status.success());
    assert_eq!(fs::read_to_string(tree.path("seen")).unwrap(), "/dev/null\n/dev/null\n");
}

#[test]
fn a_failed_set_up_step_is_a_refusal() {
    let tree = TestDir::new();
    let mut planned = plan(&tree.0, &[grant(&tree.0, "allow")]);
    planned["workdir"] = json!(tree.path("gone"));
    let marker = tree.path("ran");
    let script = format!("touch {}", marker.display());
    assert_refused(&sh(&planned, &script), "working directory");
    let audit = TestDir::new();
    planned["journal"] = json!({"dir": audit.path("journal"), "file": null, "stderr": true});
    let output = sh(&planned, &script);
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("\"event\":\"session.refused\""), "{}", stderr(&output));
    assert!(!marker.exists());
}

#[test]
fn a_replaced_working_directory_is_refused() {
    let tree = TestDir::new();
    let (sub, aside) = (tree.dir("sub"), tree.path("aside"));
    let planned = plan(&sub, &[grant(&sub, "allow")]);
    let core = Core::new("run", &planned, &["--", "/bin/sh", "-c", "echo ran"]);
    // An earlier command can do this: the name leads elsewhere, and this process still stands in
    // the old directory.
    let script = format!(
        "cd {0} && mv {0} {1} && ln -s / {0} && exec \"$0\" \"$@\"",
        sub.display(),
        aside.display()
    );
    let mut shell = std::process::Command::new("/bin/sh");
    shell.args(["-c", &script]).arg(core.command.get_program()).args(core.command.get_args());
    assert_refused(&shell.output().unwrap(), "was moved or replaced while paddock started");
}

#[test]
fn a_grant_does_not_follow_a_link_in_a_writable_directory() {
    let tree = TestDir::new();
    let (work, outside) = (tree.dir("work"), tree.dir("outside"));
    tree.link("work/build", &outside);
    let through = |access: &str| {
        plan(&work, &[grant(&work, access), grant_except(work.join("build"), "allow", &[])])
    };
    for access in ["allow", "read"] {
        assert_refused(&sh(&through(access), "touch build/x"), "leads through a symlink in");
    }
    // A link where no command can write belongs to the user.
    let own = tree.link("own", &outside);
    let mut planned = plan(&work, &[grant(&work, "allow"), grant_except(&own, "allow", &[])]);
    planned["files"]["reached"] = json!([{"path": outside, "identity": null, "born_ns": null}]);
    assert_eq!(stdout(&sh(&planned, &format!("touch {}/x && echo made", own.display()))), "made\n");
}

#[test]
fn missing_grants_are_refused_unless_optional() {
    let tree = TestDir::new();
    let missing = tree.path("missing");
    let output = sh(&plan(&tree.0, &[grant_except(&missing, "read", &[])]), "echo ran");
    assert_refused(&output, &format!("{} does not exist (test:2)", missing.display()));
    let optional = plan(&tree.0, &[grant(&missing, "read")]);
    assert_eq!(stdout(&sh(&optional, "echo ran")), "ran\n");
    let report = json_of(&Core::new::<&str>("preflight", &optional, &[]).output());
    assert!(
        report["skipped"]
            .as_array()
            .unwrap()
            .contains(&json!({"path": missing, "source": "test:1"}))
    );
}

#[test]
fn notices_are_printed_with_control_characters_escaped() {
    let tree = TestDir::new();
    let mut planned = plan(&tree.0, &[]);
    planned["notices"] = json!([
        {"level": "warning", "text": "look \u{1b}[31m here\nand"},
        {"level": "info", "text": "only for a terminal"},
    ]);
    let output = Core::new("run", &planned, &["--quiet", "--", "true"]).output();
    assert_eq!(stderr(&output), "paddock: warning: look \\u{1b}[31m here\\nand\n");
}

#[test]
fn every_mechanism_works_here() {
    let output = as_user(core()).arg("probe").output().unwrap();
    for tried in json_of(&output).as_array().unwrap() {
        let optional =
            ["user namespace", "user notification"].contains(&tried["mechanism"].as_str().unwrap());
        assert!(optional || tried["held"] == true, "{tried}");
        assert_eq!(tried.as_object().unwrap().len(), 4);
    }
    let host = json_of(&as_user(core()).arg("host").output().unwrap());
    assert_eq!(host["uid"], uid());
    assert!(host["landlock_abi"].as_i64().unwrap() >= 7);
}
