//! The rules as a table. Then properties of all rules and execs, over a bounded random sample.

use serde_json::{Value, json};

use crate::gate::rules::*;

fn gate(default: &str, rules: Value) -> GatePlan {
    gate_with(default, rules, json!([]))
}

fn gate_with(default: &str, rules: Value, approved: Value) -> GatePlan {
    serde_json::from_value(json!({
        "default": default, "on_error": "deny", "timeout_ms": 250, "ask_timeout_s": 300,
        "trace": false,
        "exec_only_granted": true, "rules": written_out(rules), "approved": written_out(approved),
    }))
    .unwrap()
}

fn written_out(rules: Value) -> Vec<Value> {
    rules
        .as_array()
        .unwrap()
        .iter()
        .enumerate()
        .map(|(index, rule)| {
            let keys = rule.as_object().unwrap().iter().filter(|(key, _)| *key != "action");
            let matches = keys.map(|(key, values)| {
                let values = if values.is_array() { values.clone() } else { json!([values]) };
                let negated = key.strip_suffix("_not");
                let (key, not) = (negated.unwrap_or(key), negated.is_some());
                json!({"key": key, "not": not, "values": values})
            });
            let matches = matches.collect::<Vec<_>>();
            json!({
                "id": format!("r{index}"),
                "action": rule["action"],
                "reason": null,
                "source": "x",
                "match": matches,
            })
        })
        .collect()
}

fn compiled(default: &str, rules: Value) -> ExecRules {
    ExecRules::compile(&gate(default, rules)).unwrap()
}

/// An exec with these arguments. The rest is usual.
#[derive(Clone)]
struct TestExec {
    chain: Vec<(Vec<u8>, Vec<u8>)>, // as named, and resolved
    line_arguments: Vec<Option<Vec<u8>>>,
    argv: Vec<Vec<u8>>,
    cwd: Vec<u8>,
    uid: u32,
    parent: Option<(Vec<u8>, Vec<Vec<u8>>)>,
    granted: bool,
    digests: Vec<Option<u8>>,
}

impl TestExec {
    fn new(exe: &str, argv: &str) -> TestExec {
        TestExec {
            chain: vec![(exe.into(), exe.into())],
            line_arguments: vec![None],
            argv: argv.split(' ').map(Into::into).collect(),
            cwd: b"/home/ada/project".to_vec(),
            uid: 1000,
            parent: Some((b"/usr/bin/bash".to_vec(), vec![b"bash".to_vec(), b"-l".to_vec()])),
            granted: true,
            digests: vec![Some(0)],
        }
    }

    fn named(mut self, path: &str) -> TestExec {
        self.chain[0].0 = path.into();
        self
    }

    fn by(self, interpreter: &str) -> TestExec {
        self.by_link(interpreter, interpreter)
    }

    fn by_link(mut self, named: &str, real: &str) -> TestExec {
        self.chain.push((named.into(), real.into()));
        self.line_arguments.push(None);
        self.digests.push(Some(1));
        self
    }

    /// The last interpreter has an argument of its own.
    fn with_line_argument(mut self, argument: &str) -> TestExec {
        *self.line_arguments.last_mut().unwrap() = Some(argument.into());
        self
    }

    fn own(mut self) -> TestExec {
        self.granted = false;
        self
    }

    fn judged(&self, rules: &ExecRules) -> ExecDecision {
        self.with_exec(|exec| rules.judge(exec))
    }

    fn approved(&self, rules: &ExecRules) -> Option<usize> {
        self.with_exec(|exec| rules.approves(exec))
    }

    fn with_exec<T>(&self, test: impl FnOnce(&ExecRequest<'_>) -> T) -> T {
        let files = self.chain.iter().zip(&self.line_arguments);
        let chain: Vec<ExecFile<'_>> = files
            .map(|((named, real), argument)| ExecFile {
                named,
                real,
                argument: argument.as_deref(),
            })
            .collect();
        let argv: Vec<&[u8]> = self.argv.iter().map(Vec::as_slice).collect();
        let parent_argv: Vec<&[u8]> =
            self.parent.iter().flat_map(|(_, argv)| argv.iter().map(Vec::as_slice)).collect();
        test(&ExecRequest {
            chain: &chain,
            argv: &argv,
            cwd: &self.cwd,
            uid: self.uid,
            parent: self.parent.as_ref().map(|(exe, _)| ParentProcess { exe, argv: &parent_argv }),
            granted: self.granted,
            digest: &|index| {
                self.digests[index].map(|byte| [byte; 32]).ok_or_else(|| "unreadable".to_owned())
            },
        })
    }
}

/// Does the one rule decide, as an allow and as a deny?
fn decides(rule: &Value, call: &TestExec) -> (bool, bool) {
    let as_action = |action: &str, default: &str| {
        let mut rule = rule.clone();
        rule["action"] = json!(action);
        call.judged(&compiled(default, json!([rule]))).cause == Cause::Rule(0)
    };
    (as_action("allow", "deny"), as_action("deny", "allow"))
}

#[test]
fn every_key_allows_by_the_counting_name_and_denies_by_any_name() {
    let git = || TestExec::new("/usr/bin/git", "git push origin");
    let link = || TestExec::new("/usr/bin/curl", "git x").named("/project/bin/git");
    let script = || TestExec::new("/project/run", "run x").by("/usr/bin/python3");
    let busybox = |argv: &str| TestExec::new("/bin/busybox", argv).named("/bin/rm");
    let curl = |argv: &str| TestExec::new("/usr/bin/curl", argv);
    let (zero, one) = ("00".repeat(32), "01".repeat(32));
    for (rule, call, allow, deny) in [
        // exe: the file itself; to deny, also the path as given and the interpreters
        (json!({"exe": "/usr/bin/git"}), git(), true, true),
        (json!({"exe": ["/bin/x", "/usr/bin/git"]}), git(), true, true),
        (json!({"exe": "/usr/bin/gi"}), git(), false, false),
        (json!({"exe": "/project/bin/git"}), link(), false, true),
        (json!({"exe": "/project/bin/git"}), link().named("/project//./bin/git"), false, true),
        (json!({"exe": "/home/ada/project/git"}), link().named("./git"), false, true),
        (json!({"exe": "/project/run"}), script(), true, true),
        (json!({"exe": "/usr/bin/python3"}), script(), false, true),
        (
            json!({"exe": "/bin/sh"}),
            TestExec::new("/project/run", "run").by_link("/bin/sh", "/usr/bin/dash"),
            false,
            true,
        ),
        (json!({"exe_not": "/usr/bin/git"}), git(), false, false),
        (json!({"exe_not": "/usr/bin/git"}), curl("curl"), true, true),
        (json!({"exe_not": "/project/bin/git"}), link(), false, true),
        (json!({"exe_not": "/usr/bin/python3"}), script(), false, true),
        // exe_basename: to deny, also the first argument and the applet of a multi-call program
        (json!({"exe_basename": "git"}), git(), true, true),
        (json!({"exe_basename": "git"}), link(), false, true),
        (json!({"exe_basename": "git"}), curl("git x"), false, true),
        (json!({"exe_basename": "git"}), curl("/x/git x"), false, true),
        (json!({"exe_basename": "bash"}), TestExec::new("/bin/x", "-bash"), false, true),
        (json!({"exe_basename": "python3"}), script(), false, true),
        (
            json!({"exe_basename": "sh"}),
            TestExec::new("/project/run", "run").by_link("/bin/sh", "/usr/bin/dash"),
            false,
            true,
        ),
        (json!({"exe_basename": "rm"}), busybox("rm -rf x"), false, true),
        (
            json!({"exe_basename": "rm"}),
            busybox("busybox rm -rf x").named("/bin/busybox"),
            false,
            true,
        ),
        (json!({"exe_basename": "rm"}), TestExec::new("/bin/xargs", "xargs rm"), false, false),
        (json!({"exe_basename_not": "git"}), link(), false, true),
        (json!({"exe_basename_not": "git"}), git(), false, false),
        (json!({"exe_basename_not": "ls"}), git(), true, true),
        // exe_glob
        (json!({"exe_glob": "/usr/*/git"}), git(), true, true),
        (json!({"exe_glob": "/usr/*"}), git(), false, false),
        (json!({"exe_glob": "/usr/**"}), git(), true, true),
        (json!({"exe_glob": "/project/**"}), link(), false, true),
        (json!({"exe_glob": "/usr/**"}), script(), false, true),
        (json!({"exe_glob_not": "/usr/**"}), script(), false, true),
        (json!({"exe_glob_not": "/usr/**"}), git(), false, false),
        // exe_sha256: the file; to deny, also the interpreters
        (json!({"exe_sha256": zero}), git(), true, true),
        (json!({"exe_sha256": one}), git(), false, false),
        (json!({"exe_sha256": one}), script(), false, true),
        (json!({"exe_sha256_not": zero}), git(), false, false),
        (json!({"exe_sha256_not": one}), script(), false, true),
        // argv_regex: the arguments as given; to deny, also with the program's other names
        (json!({"argv_regex": "^git push( |$)"}), git(), true, true),
        (
            json!({"argv_regex": "^git push( |$)"}),
            TestExec::new("/usr/bin/git", "x push"),
            false,
            true,
        ),
        (
            json!({"argv_regex": "^git push( |$)"}),
            TestExec::new("/usr/bin/git", "/usr/bin/git push"),
            false,
            true,
        ),
        (json!({"argv_regex": "^/usr/bin/git push"}), git(), false, true),
        (json!({"argv_regex": "^git status( |$)"}), git(), false, false),
        (json!({"argv_regex": ["x", "origin$"]}), git(), true, true),
        (json!({"argv_regex": "^$"}), git(), false, false),
        (json!({"argv_regex": "^ "}), git().named(""), false, false),
        (json!({"exe_glob": "/home/**"}), git().named(""), false, false),
        (
            json!({"argv_regex": "^rm -rf"}),
            busybox("busybox rm -rf x").named("/bin/busybox"),
            false,
            true,
        ),
        (
            json!({"argv_regex_not": "^git push"}),
            TestExec::new("/usr/bin/git", "x push"),
            false,
            true,
        ),
        (
            json!({"argv_regex_not": "^git push"}),
            TestExec::new("/usr/bin/git", "git log"),
            true,
            true,
        ),
        (json!({"argv_regex_not": "^git push"}), git(), false, false),
        // argv_contains: one whole argument; the first is only a name
        (json!({"argv_contains": "push"}), git(), true, true),
        (json!({"argv_contains": "pus"}), git(), false, false),
        (json!({"argv_contains": ["a", "origin"]}), git(), true, true),
        (json!({"argv_contains": "git"}), git(), false, true),
        (json!({"argv_contains_not": "push"}), git(), false, false),
        (json!({"argv_contains_not": "log"}), git(), true, true),
        // argv_host_in: to allow, all hosts have to be listed; to deny, one is enough
        (json!({"argv_host_in": "ok.example"}), curl("curl https://ok.example/x"), true, true),
        (
            json!({"argv_host_in": "*.example"}),
            curl("curl https://a.ok.example --url=http://b.example"),
            true,
            true,
        ),
        (
            json!({"argv_host_in": "ok.example"}),
            curl("curl https://ok.example https://b.example"),
            false,
            true,
        ),
        (
            json!({"argv_host_in": "ok.example"}),
            curl("curl https://ok.example@evil.example"),
            false,
            false,
        ),
        (json!({"argv_host_in": "ok.example"}), curl("curl https:/evil.example"), false, true),
        (json!({"argv_host_in": "ok.example"}), curl("curl ok.example"), false, false),
        (json!({"argv_host_in": "ok.example"}), curl("https://ok.example x"), false, false),
        (json!({"argv_host_in_not": "ok.example"}), curl("curl https://ok.example"), false, false),
        (
            json!({"argv_host_in_not": "ok.example"}),
            curl("curl https://ok.example https://b.example"),
            false,
            true,
        ),
        (json!({"argv_host_in_not": "ok.example"}), curl("curl https://b.example"), true, true),
        (json!({"argv_host_in_not": "ok.example"}), curl("curl x"), true, true),
        // working directory, user, parent process
        (json!({"cwd_glob": "/home/*/project"}), git(), true, true),
        (json!({"cwd_glob": "/srv/**"}), git(), false, false),
        (json!({"cwd_glob_not": "/srv/**"}), git(), true, true),
        (json!({"uid": "1000"}), git(), true, true),
        (json!({"uid": ["0", "1"]}), git(), false, false),
        (json!({"uid_not": "0"}), git(), true, true),
        (json!({"parent_exe": "/usr/bin/bash"}), git(), true, true),
        (json!({"parent_exe": "/usr/bin/sh"}), git(), false, false),
        (json!({"parent_exe_not": "/usr/bin/bash"}), git(), false, false),
        (json!({"parent_argv": "^bash -l$"}), git(), true, true),
        (json!({"parent_argv_not": "^bash"}), git(), false, false),
        // all keys
        (json!({"exe_basename": "git", "argv_contains": "push"}), git(), true, true),
        (json!({"exe_basename": "git", "argv_contains": "log"}), git(), false, false),
        (json!({"exe_basename": "git", "argv_contains": "x"}), link(), false, true),
    ] {
        assert_eq!(
            decides(&rule, &call),
            (allow, deny),
            "{rule} {}",
            String::from_utf8_lossy(&call.argv.join(&b' '))
        );
    }
}

#[test]
fn the_first_rule_that_matches_decides() {
    let push = TestExec::new("/usr/bin/git", "git push");
    let (deny, allow) = (
        json!({"action": "deny", "argv_contains": "push"}),
        json!({"action": "allow", "exe": "/usr/bin/git"}),
    );
    let decision = |rules: Value| push.judged(&compiled("ask", rules));
    assert_eq!(decision(json!([deny, allow])).action, Action::Deny);
    assert_eq!(decision(json!([allow, deny])).action, Action::Allow);
    assert_eq!(decision(json!([])).cause, Cause::Default);
    assert_eq!(decision(json!([])).action, Action::Ask);
}

#[test]
fn a_script_does_not_allow_a_denied_interpreter() {
    let rules = compiled(
        "deny",
        json!([
            {"action": "deny", "exe": "/usr/bin/perl"},
            {"action": "allow", "exe_glob": "/project/*"},
        ]),
    );
    assert_eq!(
        TestExec::new("/project/a", "a").by("/usr/bin/python3").judged(&rules).action,
        Action::Allow
    );
    assert_eq!(
        TestExec::new("/project/a", "a").by("/usr/bin/perl").judged(&rules).cause,
        Cause::Rule(0)
    );
}

/// An interpreter is started with the argument of its `#!` line.
#[test]
fn arguments_denied_to_a_program_are_denied_to_its_scripts() {
    let denies = |rule: Value, call: TestExec| {
        call.judged(&compiled("allow", json!([rule]))).action == Action::Deny
    };
    let push = || {
        TestExec::new("/project/run", "run origin")
            .named("./run")
            .by("/usr/bin/git")
            .with_line_argument("push")
    };
    for key in [
        json!({"argv_regex": "^git push"}),
        json!({"argv_contains": "push"}),
        json!({"argv_regex_not": "^git (log|diff)"}),
    ] {
        let mut rule = json!({"action": "deny", "exe": "/usr/bin/git"});
        rule.as_object_mut().unwrap().append(&mut key.as_object().unwrap().clone());
        assert!(denies(rule.clone(), push()), "{rule}");
        // By the name of the script, and under a harmless name.
        assert!(
            denies(
                rule.clone(),
                TestExec::new("/project/push", "x").named("push").by("/usr/bin/git")
            ),
            "{rule}"
        );
        assert!(
            denies(
                rule.clone(),
                TestExec::new("/project/run", "git push log")
                    .named("./run")
                    .by("/usr/bin/git")
                    .with_line_argument("push")
            ),
            "{rule}"
        );
    }
    assert!(denies(
        json!({"action": "deny", "exe": "/usr/bin/git", "argv_regex_not": "^git log"}),
        TestExec::new("/project/run", "git log")
            .named("./run")
            .by("/usr/bin/git")
            .with_line_argument("push")
    ));
    let busybox =
        || TestExec::new("/project/run", "run").by("/usr/bin/busybox").with_line_argument("wget");
    assert!(denies(json!({"action": "deny", "exe_basename": "wget"}), busybox()));
    assert!(denies(
        json!({"action": "deny", "exe_basename": "curl", "argv_host_in_not": "good.org"}),
        {
            TestExec::new("/project/run", "run https://good.org/")
                .by("/usr/bin/curl")
                .with_line_argument("https://bad.org/")
        }
    ));
    // Nested: each gets the argument of its own line.
    let nested = || {
        TestExec::new("/project/a", "a")
            .by("/project/b")
            .with_line_argument("x")
            .by("/usr/bin/git")
            .with_line_argument("push")
    };
    assert!(denies(
        json!({
            "action": "deny",
            "exe": "/usr/bin/git",
            "argv_regex": "^git push /project/b x /project/a$",
        }),
        nested()
    ));
    assert!(denies(
        json!({"action": "deny", "exe": "/project/b", "argv_regex": "^b x /project/a$"}),
        nested()
    ));
    assert!(!denies(
        json!({"action": "deny", "exe": "/usr/bin/git", "argv_regex": "^git log"}),
        push()
    ));
    // A negated deny is about the script.
    for key in ["exe_glob_not", "argv_regex_not"] {
        let value = if key == "exe_glob_not" { "/project/**" } else { "^run " };
        let rule = json!({"action": "deny", key: value});
        assert!(!denies(rule.clone(), push()), "{rule}");
    }
}

#[test]
fn an_argument_can_not_look_like_two() {
    let rules = compiled("deny", json!([{"action": "allow", "argv_regex": "^git status( |$)"}]));
    let mut call = TestExec::new("/usr/bin/git", "git status");
    assert_eq!(call.judged(&rules).action, Action::Allow);
    call.argv = vec![b"git".to_vec(), b"status x".to_vec()];
    assert_eq!(call.judged(&rules).action, Action::Deny);
    call.argv = vec![b"git status".to_vec(), b"push".to_vec()];
    assert_eq!(call.judged(&rules).action, Action::Deny);
}

#[test]
fn a_writable_program_needs_a_rule_with_path_or_content() {
    let tool = || TestExec::new("/project/git", "git log").own();
    for (default, rule, expected) in [
        (
            "allow",
            json!({"action": "deny", "exe_basename": "curl"}),
            (Action::Allow, Cause::Default),
        ),
        ("deny", json!({"action": "allow", "exe_basename": "git"}), (Action::Deny, Cause::Default)),
        ("deny", json!({"action": "allow", "exe_not": "/x"}), (Action::Deny, Cause::Default)),
        (
            "deny",
            json!({"action": "allow", "exe": "/project/git"}),
            (Action::Allow, Cause::Rule(0)),
        ),
        (
            "deny",
            json!({"action": "allow", "exe_glob": "/project/**"}),
            (Action::Allow, Cause::Rule(0)),
        ),
        (
            "deny",
            json!({"action": "allow", "exe_sha256": "00".repeat(32)}),
            (Action::Allow, Cause::Rule(0)),
        ),
        ("ask", json!({"action": "deny", "exe_basename": "curl"}), (Action::Ask, Cause::Default)),
        // The command chose this name.
        (
            "allow",
            json!({"action": "deny", "exe_basename_not": "git"}),
            (Action::Deny, Cause::Rule(0)),
        ),
    ] {
        let decision = tool().judged(&compiled(default, json!([rule])));
        assert_eq!((decision.action, decision.cause), expected, "{rule}");
    }
    let mut gate = gate("allow", json!([{"action": "deny", "exe_basename": "curl"}]));
    gate.exec_only_granted = false;
    assert_eq!(tool().judged(&ExecRules::compile(&gate).unwrap()).action, Action::Allow);
}

#[test]
fn a_program_of_git_is_the_command_of_git() {
    let push = json!([
        {"action": "deny", "exe_basename": "git", "argv_regex": "^git push( |$)"}
    ]);
    let by_name = json!([{"action": "deny", "exe_basename": "git-push"}]);
    for (exe, named, argv, denied) in [
        ("/usr/bin/git", "/usr/lib/git-core/git-push", "git-push origin", true),
        ("/usr/lib/git-core/git-push", "/usr/lib/git-core/git-push", "git-push", true),
        ("/usr/bin/git", "./git-push", "x", true),
        ("/usr/bin/git", "/usr/bin/git", "git push origin", true),
        ("/usr/bin/git", "/usr/lib/git-core/git-status", "git-status", false),
        ("/usr/bin/git-push", "/usr/bin/git-push-all", "git-push-all", false),
    ] {
        let exec = TestExec::new(exe, argv).named(named);
        for rules in [&push, &by_name] {
            if exe == "/usr/bin/git-push" && *rules == by_name {
                continue;
            }
            let decision = exec.judged(&compiled("allow", rules.clone()));
            assert_eq!(decision.action == Action::Deny, denied, "{exe} {named} {argv} {rules}");
        }
    }
    for (argv, denied) in
        [("git -C push status", false), ("git -C x -c a=b push", true), ("git --bare push", true)]
    {
        let decision =
            TestExec::new("/usr/bin/git", argv).judged(&compiled("allow", by_name.clone()));
        assert_eq!(decision.action == Action::Deny, denied, "{argv}");
    }
}

#[test]
fn an_approval_has_to_hold_surely_and_beats_no_rule() {
    let approved = json!([
        {
            "action": "allow",
            "exe": "/usr/bin/git",
            "argv_regex": "^git push$",
            "cwd_glob": "/home/ada/project",
        },
        {"action": "allow", "exe_basename": "make"},
    ]);
    let rules = json!([
        {"action": "deny", "exe": "/usr/bin/git", "argv_contains": "--force"},
        {"action": "ask", "exe": "/usr/bin/git"},
    ]);
    let compiled = ExecRules::compile(&gate_with("deny", rules, approved)).unwrap();
    let git = |argv: &str| TestExec::new("/usr/bin/git", argv);
    let elsewhere = TestExec { cwd: b"/home/ada/project/x".to_vec(), ..git("git push") };
    for (call, expected) in [
        (git("git push"), Some(0)),
        (git("git push --force"), None),
        (git("git push\n"), None),
        (git("/usr/bin/git push"), None),
        // Under another name the rule holds only partly.
        (TestExec::new("/usr/bin/git2", "git push").named("/usr/bin/git"), None),
        (elsewhere, None),
        (TestExec::new("/usr/bin/make", "make"), Some(1)),
        (TestExec::new("/home/ada/project/make", "make").own(), None),
        (TestExec::new("/bin/ls", "ls"), None),
    ] {
        assert_eq!(call.approved(&compiled), expected, "{:?}", call.argv);
    }
    // Rules decide first. Approvals only answer questions.
    assert_eq!(git("git push --force").judged(&compiled).cause, Cause::Rule(0));
    assert_eq!(git("git push").judged(&compiled).action, Action::Ask);
    assert_eq!(TestExec::new("/usr/bin/make", "make").judged(&compiled).action, Action::Deny);
}

#[test]
fn an_approval_that_can_not_be_judged_does_not_count() {
    let approved = json!([{"action": "allow", "exe_sha256": "00".repeat(32)}]);
    let compiled = ExecRules::compile(&gate_with("ask", json!([]), approved)).unwrap();
    let mut cat = TestExec::new("/bin/cat", "cat");
    assert_eq!(cat.approved(&compiled), Some(0));
    cat.digests = vec![None];
    assert_eq!(cat.approved(&compiled), None);
}

#[test]
fn an_allow_rule_that_held_partly_is_named() {
    let rules = compiled(
        "deny",
        json!([
            {"action": "allow", "exe_basename": "ls"},
            {"action": "allow", "exe_basename": "python3"},
        ]),
    );
    let decision =
        TestExec::new("/usr/bin/python3.11", "python3").named("/usr/bin/python3").judged(&rules);
    assert_eq!(
        (decision.action, decision.cause, decision.doubted),
        (Action::Deny, Cause::Default, Some(1))
    );
}

#[test]
fn an_unknown_fact_is_an_error_only_if_a_rule_needs_it() {
    let parent = json!([{"action": "allow", "exe": "/bin/cat", "parent_exe": "/usr/bin/git"}]);
    let mut cat = TestExec::new("/bin/cat", "cat");
    cat.parent = None;
    let decision = cat.judged(&compiled("allow", parent.clone()));
    assert_eq!(decision.cause, Cause::Error { rule: 0, why: "the parent is unknown".to_owned() });
    assert_eq!(decision.action, Action::Deny);
    let mut asking = gate("allow", parent.clone());
    asking.on_error = Action::Ask;
    assert_eq!(cat.judged(&ExecRules::compile(&asking).unwrap()).action, Action::Ask);
    cat.chain = vec![(b"/bin/ls".to_vec(), b"/bin/ls".to_vec())];
    assert_eq!(cat.judged(&compiled("allow", parent)).cause, Cause::Default);

    let digest =
        json!([{"action": "deny", "exe_sha256": "00".repeat(32), "parent_exe": "/usr/bin/git"}]);
    let mut unreadable = TestExec::new("/bin/cat", "cat");
    unreadable.digests = vec![None];
    // The parent rules it out, so the content does not matter.
    assert_eq!(unreadable.judged(&compiled("allow", digest)).cause, Cause::Default);
}

#[test]
fn expressions_take_linear_time_and_match_bytes() {
    for (pattern, expected) in [
        (r"(a)\1", "backreferences"),
        (r"(?=a)", "look-around"),
        ("(", "unclosed"),
        ("a{1000}{1000}", "size limit"),
        (r"\pL", "Unicode"),
        ("[\u{e9}]", "Unicode"),
    ] {
        let error = regex(pattern.as_bytes()).unwrap_err();
        assert!(error.contains(expected) && !error.contains('\n'), "{pattern}: {error}");
    }
    assert!(regex(b"\xff").is_err());
    assert!(regex(".\u{e9}$".as_bytes()).unwrap().is_match(b"\xff\xc3\xa9"));
    // A backtracking engine would not end.
    assert!(!regex(b"^(a+)+$").unwrap().is_match(&[&[b'a'; 1 << 16][..], b"b"].concat()));
}

#[test]
fn an_invalid_value_is_refused() {
    for (key, value) in [
        ("argv_regex", "("),
        ("parent_argv", "("),
        ("exe_glob", "a"),
        ("cwd_glob", "/a/../b"),
        ("exe_sha256", "00"),
        ("exe_sha256", &"zz".repeat(32)),
        ("argv_host_in", "https://a"),
        ("uid", "root"),
    ] {
        assert!(
            ExecRules::compile(&gate("deny", json!([{"action": "deny", (key): value}]))).is_err(),
            "{key} {value}"
        );
    }
}

/// xorshift: the same sample in every run.
struct RandomSample(u64);

impl RandomSample {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }

    fn of<'a>(&mut self, list: &[&'a str]) -> &'a str {
        list[self.below(list.len())]
    }

    fn key(&mut self) -> (String, Value) {
        let hash = ["00", "01", "02"][self.below(3)].repeat(32);
        let (key, value) = match self.below(11) {
            0 => ("exe", self.of(&PATHS)),
            1 => ("exe_basename", self.of(&NAMES)),
            2 => ("exe_glob", self.of(&["/usr/**", "/**/git", "/project/*", "**/sh"])),
            3 => ("exe_sha256", hash.as_str()),
            4 => ("argv_regex", self.of(&["^git", "push$", " -x( |$)", "sh", "^$", "."])),
            5 => ("argv_contains", self.of(&WORDS)),
            6 => ("argv_host_in", self.of(&["a.example", "*.example", "*", "::1"])),
            7 => ("cwd_glob", self.of(&["/project/**", "/usr/*"])),
            8 => ("uid", self.of(&["0", "1000"])),
            9 => ("parent_exe", self.of(&PATHS)),
            _ => ("parent_argv", self.of(&["sh", "^git"])),
        };
        (format!("{key}{}", if self.below(3) == 0 { "_not" } else { "" }), json!(value))
    }

    fn rule(&mut self, action: &str) -> Value {
        let mut rule: serde_json::Map<String, Value> =
            (0..=self.below(3)).map(|_| self.key()).collect();
        rule.insert("action".to_owned(), json!(action));
        Value::Object(rule)
    }

    fn call(&mut self) -> TestExec {
        let mut call = TestExec::new(self.of(&PATHS), self.of(&WORDS)).named(self.of(&PATHS));
        for _ in 0..self.below(3) {
            call = call.by(self.of(&PATHS));
        }
        call.argv.extend((0..self.below(4)).map(|_| self.of(&WORDS).into()));
        if self.below(4) == 0 {
            call.argv.push((0..self.below(6)).map(|_| self.below(256) as u8).collect());
        }
        call.cwd = self.of(&["/project/x", "/usr/a", "(unreachable)"]).into();
        call.uid = [0, 1000][self.below(2)];
        call.granted = self.below(3) > 0;
        call.parent = Some((self.of(&PATHS).into(), vec![self.of(&NAMES).into()]));
        call
    }
}

const PATHS: [&str; 6] =
    ["/usr/bin/git", "/project/git", "/bin/busybox", "/usr/bin/sh", "sh", "/memfd:x (deleted)"];
const NAMES: [&str; 5] = ["git", "sh", "busybox", "rm", "x"];
const WORDS: [&str; 9] = [
    "git",
    "-sh",
    "push",
    "-x",
    "/x/git",
    "https://a.example/",
    "https://b.example",
    "https:/c",
    "",
];

#[test]
fn a_key_that_allows_would_also_deny_and_not_negates_it() {
    let mut lot = RandomSample(0x9e37_79b9_7f4a_7c15);
    for _ in 0..3_000 {
        let mut call = lot.call();
        let rule = lot.rule("deny");
        let (allows, stops) = decides(&rule, &call);
        assert!(stops || !allows, "{rule} allows what it would not stop");

        let (key, value) = lot.key();
        let bare = key.strip_suffix("_not").unwrap_or(&key);
        call.granted = true;
        let (allow, deny) = decides(&json!({ (bare): value }), &call);
        let (allow_not, deny_not) = decides(&json!({ (format!("{bare}_not")): value }), &call);
        assert_eq!((allow_not, deny_not), (!deny, !allow), "{bare} {value}");
    }
}

#[test]
fn rules_apply_in_order_and_a_further_key_only_narrows() {
    let mut lot = RandomSample(0x2545_f491_4f6c_dd1d);
    for _ in 0..2_000 {
        let call = lot.call();
        let actions = ["allow", "deny", "ask"];
        let rules: Vec<Value> =
            (0..1 + lot.below(5)).map(|_| lot.rule(actions[lot.0 as usize % 3])).collect();
        let decision = call.judged(&compiled("ask", json!(rules)));
        if let Cause::Rule(index) = decision.cause {
            assert_eq!(call.judged(&compiled("ask", json!(rules[..index]))).cause, Cause::Default);
            assert_eq!(call.judged(&compiled("ask", json!([rules[index]]))).cause, Cause::Rule(0));
        } else {
            let alone = |rule: &Value| call.judged(&compiled("ask", json!([rule]))).cause;
            assert!(rules.iter().all(|rule| alone(rule) == Cause::Default));
        }
        let rule = lot.rule("deny");
        let mut narrower = rule.clone();
        let (key, value) = lot.key();
        if narrower.get(&key).is_none() && !key.starts_with("exe") {
            narrower[&key] = value;
            let (wide, narrow) = (decides(&rule, &call), decides(&narrower, &call));
            assert!(narrow.0 <= wide.0 && narrow.1 <= wide.1, "{narrower}");
        }
    }
}

#[test]
fn the_first_argument_never_allows_a_program() {
    let mut lot = RandomSample(0xd129_42e5_f3ab_1c07);
    for _ in 0..2_000 {
        let mut call = lot.call();
        let (key, value) = lot.key();
        // An expression is about the whole text, the program's name included.
        if key.starts_with("argv_regex") {
            continue;
        }
        let rules = compiled("deny", json!([{"action": "allow", (key.as_str()): value}]));
        call.argv[0] = b"harmless".to_vec();
        let honest = call.judged(&rules).action;
        for name in WORDS {
            call.argv[0] = name.into();
            let forged = call.judged(&rules).action;
            assert!(forged == Action::Deny || honest == Action::Allow, "{key} {value} {name}");
        }
    }
}
