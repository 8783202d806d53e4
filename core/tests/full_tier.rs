//! The full tier seen from outside: each denial beside an allowed act, and beside the same act
//! without the sandbox.

#![cfg(supported)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::json;
use support::*;

#[test]
fn only_granted_paths_exist() {
    let tree = TestDir::new();
    let (inside, outside) = (tree.dir("inside"), tree.dir("outside"));
    tree.file("outside/secret");
    tree.file("inside/mine");
    let script = format!(
        "cat mine && echo; cat {0}/secret || echo unreadable; stat {0}/secret || echo invisible; \
         ls {1}; \
         chmod 600 {0}/secret || echo not-changed; echo x > new && echo wrote; ls /home /root /run \
         || echo no-run",
        outside.display(),
        tree.0.display(),
    );
    let output = sh(&full_plan(&inside, &[grant(&inside, "allow")]), &script);
    assert_eq!(
        stdout(&output),
        "inside/mine\nunreadable\ninvisible\ninside\nnot-changed\nwrote\nno-run\n",
        "{}",
        stderr(&output)
    );
    assert!(inside.join("new").exists());
    let control = as_user("/bin/sh").args(["-c", &script]).current_dir(&inside).output().unwrap();
    assert!(stdout(&control).contains("outside/secret"), "{}", stdout(&control));
}

#[test]
fn a_read_grant_allows_no_change() {
    let tree = TestDir::new();
    let (work, tools) = (tree.dir("work"), tree.dir("tools"));
    let tool = tree.file("tools/tool");
    let before = fs::metadata(&tool).unwrap();
    let script = format!(
        "cd {0}; chmod 777 tool || echo mode; touch -d 2001-01-01 tool || echo time; echo x > tool \
         || echo write; \
         ln tool link || echo link; mv tool other || echo rename; setfattr -n user.x -v y tool \
         2>/dev/null || echo attribute",
        tools.display()
    );
    let output = sh(&full_plan(&work, &[grant(&work, "allow"), grant(&tools, "read")]), &script);
    assert_eq!(
        stdout(&output),
        "mode\ntime\nwrite\nlink\nrename\nattribute\n",
        "{}",
        stderr(&output)
    );
    let after = fs::metadata(&tool).unwrap();
    assert_eq!(
        (before.mode(), before.mtime(), before.ctime()),
        (after.mode(), after.mtime(), after.ctime())
    );
    let control = as_user("/bin/sh").args(["-c", &script]).output().unwrap();
    assert!(
        !stdout(&control).contains("mode") && !stdout(&control).contains("time"),
        "{}",
        stdout(&control)
    );
}

#[test]
fn tmp_dev_and_proc_are_private() {
    let tree = TestDir::new();
    let outside = std::env::temp_dir().join(format!("paddock-outside-{}", std::process::id()));
    fs::write(&outside, "x").unwrap();
    let script = "ls -A /tmp | grep -v test; echo x > /tmp/mine && ls /tmp | grep -v test; ls \
        /var/tmp/ | grep -v test; echo > /dev/null && echo null; \
                  echo $$; ls -d /proc/[0-9]* | wc -l; cat /proc/1/environ || echo closed; \
                  readlink /proc/1/root || echo hidden";
    let output = sh(&full_plan(&tree.0, &[grant(&tree.0, "allow")]), script);
    let printed = stdout(&output);
    // Two processes of the sandbox, and those that count them.
    assert!(printed.starts_with("mine\nmine\nnull\n2\n"), "{printed}{}", stderr(&output));
    assert!(printed.ends_with("closed\nhidden\n"), "{printed}");
    assert!(!printed.contains("paddock-outside"));
    assert!(outside.exists() && !std::env::temp_dir().join("mine").exists());
    fs::remove_file(outside).unwrap();
}

#[test]
fn mounts_separate_paths_of_one_file_system() {
    let tree = TestDir::new();
    let script = "stat -c %a /tmp /dev /dev/shm; stat -c %d / /tmp /dev /dev/shm | uniq | wc -l; \
                  for dir in /tmp /dev/shm; do cp /bin/true $dir/run && $dir/run && echo runs; ls \
                  -A $dir/..| grep -c tmp; done; \
                  for dir in / /dev /tmp/.. /dev/shm/..; do echo x > $dir/made || echo locked; \
                  chmod 777 $dir || echo kept; done; \
                  ln /tmp/run /dev/shm/linked || echo apart; echo x > /dev/null && echo device; \
                  head -c 700000 /dev/zero > /tmp/half && head -c 700000 /dev/zero > /dev/shm/half \
                  || echo full";
    for (everything, devices) in [(false, "1"), (true, "3")] {
        let mut grants = vec![grant(&tree.0, "allow")];
        grants.extend(everything.then(|| grant("/", "read")));
        let mut plan = full_plan(&tree.0, &grants);
        plan["landlock"] = json!(null);
        plan["namespaces"]["tmp_mb"] = json!(1);
        let output = sh(&plan, script);
        let printed = stdout(&output);
        let kept = "locked\nkept\n".repeat(4);
        let full = if everything { "" } else { "full\n" };
        let expected =
            format!("1777\n755\n1777\n{devices}\nruns\n1\nruns\n0\n{kept}apart\ndevice\n{full}");
        assert_eq!(printed, expected, "{}", stderr(&output));
    }
}

#[test]
fn closed_paths_are_masked_and_unwritable_paths_locked() {
    let tree = TestDir::new();
    let work = tree.dir("work");
    tree.dir("work/secrets");
    tree.file("work/secrets/key");
    tree.file("work/.env");
    tree.dir("work/state");
    tree.file("work/state/note");
    let mut plan = full_plan(&work, &[grant(&work, "allow")]);
    plan["files"]["closed"] = json!([work.join("secrets"), work.join(".env")]);
    plan["sessions"] = json!(tree.dir("own").join("sessions"));
    plan["files"]["unwritable"] = json!([work.join("state")]);
    let script = "cat .env || echo env; cat secrets/key || echo key; ls secrets || echo list; mv \
        secrets s2 || echo held; \
                  rm -rf .env || echo kept; ln .env link || echo unlinked; cat state/note && echo; \
                  echo x > state/note || echo locked; rm state/note || echo kept; mv state s3 || \
                  echo held; \
                  cat /proc/self/root$PWD/.env || echo env; echo x > free && echo free";
    let output = sh(&plan, script);
    assert_eq!(
        stdout(&output),
        "env\nkey\nlist\nheld\nkept\nunlinked\nwork/state/note\nlocked\nkept\nheld\nenv\nfree\n",
        "{}",
        stderr(&output)
    );
    assert_eq!(fs::read_to_string(work.join(".env")).unwrap(), "work/.env");
    assert_eq!(fs::read_to_string(work.join("state/note")).unwrap(), "work/state/note");
    assert_eq!(attempt(&plan, "read", work.join(".env")), "denied");
    assert_eq!(attempt(&plan, "write", work.join("state/note")), "denied");
    assert_eq!(attempt(&plan, "read", work.join("state/note")), "allowed");
    let control = as_user("/bin/sh").args(["-c", script]).current_dir(&work).output().unwrap();
    assert!(stdout(&control).starts_with("work/.envwork/secrets/keykey\n"), "{}", stdout(&control));
}

#[test]
fn a_grant_of_everything_keeps_private_tmp_and_closed_paths() {
    let tree = TestDir::new();
    let work = tree.dir("work");
    tree.file("work/secret");
    // Granted by its own name too: the host's /tmp, where it lies, is hidden.
    let mut plan = full_plan(&work, &[grant("/", "allow"), grant(&work, "allow")]);
    plan["files"]["closed"] = json!([work.join("secret")]);
    plan["sessions"] = json!(tree.dir("own").join("sessions"));
    let script = format!(
        "cat {0}/secret || echo closed; echo x > {0}/free && echo free; ls /usr > /dev/null && \
         echo usr",
        work.display()
    );
    let output = sh(&plan, &script);
    assert_eq!(stdout(&output), "closed\nfree\nusr\n", "{}", stderr(&output));
    assert!(work.join("free").exists());
}

#[test]
fn there_are_no_capabilities_and_no_user_namespaces() {
    let tree = TestDir::new();
    let mut plan = full_plan(&tree.0, &[grant(&tree.0, "allow")]);
    // Without seccomp, so that the namespace itself must refuse.
    plan["seccomp"] = json!(null);
    let script = "grep -c 'Cap.*0000000000000000' /proc/self/status; unshare -U true || echo \
        no-user-namespace; \
                  umount /tmp || echo no-umount; mount -t tmpfs none /tmp || echo no-mount; mount \
                  -o remount,rw / || echo no-remount";
    let output = sh(&plan, script);
    assert_eq!(
        stdout(&output),
        "5\nno-user-namespace\nno-umount\nno-mount\nno-remount\n",
        "{}",
        stderr(&output)
    );
    let control = as_user("unshare").args(["-U", "true"]).status().unwrap();
    assert!(control.success());
    plan["namespaces"]["nested"] = json!(true);
    assert_eq!(stdout(&sh(&plan, "unshare -U echo nested")), "nested\n");
}

fn alive(marker: &str) -> usize {
    let numbered = fs::read_dir("/proc").unwrap().flatten();
    let line = |entry: fs::DirEntry| fs::read(entry.path().join("cmdline")).unwrap_or_default();
    let marked =
        |line: &Vec<u8>| line.windows(marker.len()).any(|window| window == marker.as_bytes());
    numbered.map(line).filter(|line| line.starts_with(b"sleep") && marked(line)).count()
}

fn gone_within(marker: &str, limit: Duration) -> bool {
    let start = Instant::now();
    while start.elapsed() < limit {
        if alive(marker) == 0 {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}

#[test]
fn all_processes_end_with_the_command() {
    let tree = TestDir::new();
    let plan = full_plan(&tree.0, &[grant(&tree.0, "allow")]);
    let seconds = format!("41{}", std::process::id());
    let script = format!(
        "setsid sh -c 'trap \"\" TERM HUP INT; sleep {seconds}' & (sleep {seconds} &); \
         while [ $(ls -d /proc/[0-9]* | wc -l) -lt 5 ]; do :; done; exit 7"
    );
    let output = sh(&plan, &script);
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    assert_eq!(alive(&seconds), 0);
}

#[test]
fn all_processes_end_with_the_supervisor() {
    let tree = TestDir::new();
    let plan = full_plan(&tree.0, &[grant(&tree.0, "allow")]);
    let seconds = format!("42{}", std::process::id());
    let script = format!("setsid sh -c 'trap \"\" TERM; sleep {seconds}' & sleep {seconds}");
    let mut core = Core::new("run", &plan, &["--", "/bin/sh", "-c", &script]);
    let mut supervisor = core.command.stdout(Stdio::null()).spawn().unwrap();
    let start = Instant::now();
    while alive(&seconds) < 2 && start.elapsed() < Duration::from_secs(120) {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(alive(&seconds), 2);
    supervisor.kill().unwrap();
    supervisor.wait().unwrap();
    assert!(gone_within(&seconds, Duration::from_secs(120)));
}

#[test]
fn exit_codes_and_signals_are_passed_on() {
    let tree = TestDir::new();
    let plan = full_plan(&tree.0, &[grant(&tree.0, "allow")]);
    assert_eq!(sh(&plan, "exit 9").status.code(), Some(9));
    assert_eq!(sh(&plan, "kill -TERM $$").status.code(), Some(128 + 15));
    let missing = Core::new("run", &plan, &["--", "/usr/bin/nothing-of-that-name"]).output();
    assert_eq!(missing.status.code(), Some(127), "{}", stderr(&missing));
    let script = tree.file("not-executable");
    let forbidden = Core::new("run", &plan, &["--", script.to_str().unwrap()]).output();
    assert_eq!(forbidden.status.code(), Some(126), "{}", stderr(&forbidden));
}

#[test]
fn symlinks_to_a_grant_exist_inside() {
    let tree = TestDir::new();
    let real = tree.dir("real");
    tree.file("real/file");
    let link = tree.link("link", &real);
    let plan = full_plan(&real, &[grant(&real, "read"), grant(link.join("file"), "read")]);
    let output = sh(&plan, &format!("cat {}/file", link.display()));
    assert_eq!(stdout(&output), "real/file", "{}", stderr(&output));
}

#[test]
fn a_copy_takes_the_changes_and_the_host_stays_unchanged() {
    let tree = TestDir::new();
    let work = tree.dir("work");
    tree.file("work/old");
    tree.file("work/.env");
    let sessions = tree.dir("state");
    let mut plan = full_plan(&work, &[grant(&work, "allow")]);
    plan["workspace"] = json!({"path": work, "resume": null});
    plan["sessions"] = json!(sessions);
    plan["files"]["closed"] = json!([work.join(".env")]);
    plan["files"]["protect"] =
        json!([{"below": ["**", "/"], "but": ["/x/**"], "names": [".vscode"]}]);
    plan["files"]["opened"] = json!(["/y"]);
    let output = sh(
        &plan,
        "echo new > old; echo x > added; rm .env || echo kept; cat .env || echo closed; cat old",
    );
    assert_eq!(stdout(&output), "kept\nclosed\nnew\n", "{}", stderr(&output));
    assert_eq!(fs::read_to_string(work.join(".env")).unwrap(), "work/.env");
    assert_eq!(fs::read_to_string(work.join("old")).unwrap(), "work/old");
    assert!(!work.join("added").exists());
    let session = fs::read_dir(&sessions).unwrap().next().unwrap().unwrap().path();
    assert_eq!(fs::read_to_string(session.join("upper/old")).unwrap(), "new\n");
    assert_eq!(fs::metadata(&session).unwrap().permissions().mode() & 0o777, 0o700);
    let note: serde_json::Value =
        serde_json::from_slice(&fs::read(session.join("session.json")).unwrap()).unwrap();
    let hidden = || fs::read_to_string(session.join("hidden.jsonl")).unwrap();
    let first: serde_json::Value = serde_json::from_str(&hidden()).unwrap();
    assert_eq!(first, json!({"masked": [".env"], "deny": [work.join(".env")]}));
    assert_eq!(note["workspace"], json!(work));
    // Written in full: a later reader knows patterns only.
    let patterns =
        json!({"protect": ["**/.vscode", "/.vscode"], "opened": ["/y", "/x/**/.vscode"]});
    assert_eq!(note["plan"]["files"], patterns);

    let id = session.file_name().unwrap().to_str().unwrap();
    plan["workspace"]["resume"] = json!(id);
    assert_eq!(stdout(&sh(&plan, "cat old added")), "new\nx\n");
    assert_eq!(hidden().lines().count(), 2, "a resumed one may be denied more");
    plan["workspace"]["resume"] = json!("0123");
    assert_refused(&sh(&plan, "cat old"), "does not exist");
}

#[test]
fn a_grant_inside_a_copy_is_a_part_of_the_copy() {
    let tree = TestDir::new();
    let work = tree.dir("work");
    let inner = tree.dir("work/inner");
    let mut plan = full_plan(&work, &[grant(&work, "allow-noexec"), grant(&inner, "allow")]);
    plan["landlock"]["access"]["allow-noexec"] = plan["landlock"]["access"]["allow"].clone();
    plan["workspace"] = json!({"path": work, "resume": null});
    plan["sessions"] = json!(tree.dir("state"));
    let script = "cp /bin/true inner/program; inner/program && echo ran; cp /bin/true program; \
        ./program || echo not";
    let output = sh(&plan, script);
    assert_eq!(stdout(&output), "ran\nnot\n", "{}", stderr(&output));
    assert!(!inner.join("program").exists());
}

#[test]
fn a_copy_without_changes_leaves_nothing() {
    let tree = TestDir::new();
    let work = tree.dir("work");
    let sessions = tree.dir("state");
    let mut plan = full_plan(&work, &[grant(&work, "allow")]);
    plan["workspace"] = json!({"path": work, "resume": null});
    plan["sessions"] = json!(sessions);
    assert!(sh(&plan, "ls").status.success());
    assert_eq!(fs::read_dir(Path::new(&sessions)).unwrap().count(), 0);
}

/// Grants are checked while init is created. A wrong grant ends init, and nothing of it stays.
#[test]
fn an_impossible_grant_is_refused_before_the_start() {
    let tree = TestDir::new();
    let (work, sessions) = (tree.dir("work"), tree.dir("state"));
    let missing = tree.path("missing");
    let mut plan = full_plan(&work, &[grant(&work, "allow"), grant_except(&missing, "read", &[])]);
    for copied in [false, true] {
        if copied {
            plan["workspace"] = json!({"path": work, "resume": null});
            plan["sessions"] = json!(sessions);
        }
        assert_refused(&sh(&plan, "echo ran; touch ran"), missing.to_str().unwrap());
        assert!(!work.join("ran").exists());
        assert_eq!(fs::read_dir(&sessions).unwrap().count(), 0);
    }
    tree.dir("missing");
    let output = sh(&plan, "echo ran");
    assert_eq!(stdout(&output), "ran\n", "{}", stderr(&output));
}

#[test]
fn a_missing_working_directory_is_not_created() {
    let tree = TestDir::new();
    let work = tree.dir("work");
    let mut plan = full_plan(&work, &[grant(&work, "allow")]);
    plan["workdir"] = json!(work.join("gone"));
    assert_refused(&sh(&plan, "true"), "cannot enter the working directory");
    assert!(!work.join("gone").exists());
}
