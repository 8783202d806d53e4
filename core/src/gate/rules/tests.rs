//! The rules as a table; then what has to hold for any rules and any exec, over a bounded lot of
//! both.

use serde_json::{Value, json};

use crate::gate::rules::*;

fn gate(default: &str, rules: Value) -> Gate {
    gate_with(default, rules, json!([]))
}

fn gate_with(default: &str, rules: Value, approved: Value) -> Gate {
    serde_json::from_value(json!({
        "default": default, "on_error": "deny", "timeout_ms": 250, "ask_timeout_s": 300, "trace": false,
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
                let (key, not) = key.strip_suffix("_not").map_or((key.as_str(), false), |key| (key, true));
                json!({"key": key, "not": not, "values": values})
            });
            let matches = matches.collect::<Vec<_>>();
            json!({"id": format!("r{index}"), "action": rule["action"], "reason": null, "source": "x", "match": matches})
        })
        .collect()
}

fn compiled(default: &str, rules: Value) -> Rules {
    Rules::compile(&gate(default, rules)).unwrap()
}

/// An exec of words; the rest is as most execs are.
#[derive(Clone)]
struct Call {
    chain: Vec<(Vec<u8>, Vec<u8>)>, // as named, and where that leads
    told: Vec<Option<Vec<u8>>>,
    argv: Vec<Vec<u8>>,
    cwd: Vec<u8>,
    uid: u32,
    parent: Option<(Vec<u8>, Vec<Vec<u8>>)>,
    granted: bool,
    digests: Vec<Option<u8>>,
}

impl Call {
    fn new(exe: &str, argv: &str) -> Call {
        Call {
            chain: vec![(exe.into(), exe.into())],
            told: vec![None],
            argv: argv.split(' ').map(Into::into).collect(),
            cwd: b"/home/ada/project".to_vec(),
            uid: 1000,
            parent: Some((b"/usr/bin/bash".to_vec(), vec![b"bash".to_vec(), b"-l".to_vec()])),
            granted: true,
            digests: vec![Some(0)],
        }
    }

    fn given(mut self, path: &str) -> Call {
        self.chain[0].0 = path.into();
        self
    }

    fn by(self, interpreter: &str) -> Call {
        self.by_link(interpreter, interpreter)
    }

    fn by_link(mut self, named: &str, real: &str) -> Call {
        self.chain.push((named.into(), real.into()));
        self.told.push(None);
        self.digests.push(Some(1));
        self
    }

    /// The last interpreter has an argument of its own.
    fn told(mut self, argument: &str) -> Call {
        *self.told.last_mut().unwrap() = Some(argument.into());
        self
    }

    fn own(mut self) -> Call {
        self.granted = false;
        self
    }

    fn judged(&self, rules: &Rules) -> ExecDecision {
        self.with_exec(|exec| rules.judge(exec))
    }

    fn approved(&self, rules: &Rules) -> Option<usize> {
        self.with_exec(|exec| rules.approves(exec))
    }

    fn with_exec<T>(&self, asked: impl FnOnce(&Exec<'_>) -> T) -> T {
        let files = self.chain.iter().zip(&self.told);
        let chain: Vec<File<'_>> = files
            .map(|((named, real), argument)| File { named, real, argument: argument.as_deref() })
            .collect();
        let argv: Vec<&[u8]> = self.argv.iter().map(Vec::as_slice).collect();
        let parent_argv: Vec<&[u8]> =
            self.parent.iter().flat_map(|(_, argv)| argv.iter().map(Vec::as_slice)).collect();
        asked(&Exec {
            chain: &chain,
            argv: &argv,
            cwd: &self.cwd,
            uid: self.uid,
            parent: self.parent.as_ref().map(|(exe, _)| Parent { exe, argv: &parent_argv }),
            granted: self.granted,
            digest: &|index| {
                self.digests[index].map(|byte| [byte; 32]).ok_or_else(|| "unreadable".to_owned())
            },
        })
    }
}

/// Whether the one rule decides, as an allow and as a deny.
fn decides(rule: &Value, call: &Call) -> (bool, bool) {
    let as_action = |action: &str, default: &str| {
        let mut rule = rule.clone();
        rule["action"] = json!(action);
        call.judged(&compiled(default, json!([rule]))).cause == Cause::Rule(0)
    };
    (as_action("allow", "deny"), as_action("deny", "allow"))
}

#[test]
fn every_key_lets_through_by_what_counts_and_stops_by_any_name() {
    let git = || Call::new("/usr/bin/git", "git push origin");
    let link = || Call::new("/usr/bin/curl", "git x").given("/project/bin/git");
    let script = || Call::new("/project/run", "run x").by("/usr/bin/python3");
    let busybox = |argv: &str| Call::new("/bin/busybox", argv).given("/bin/rm");
    let curl = |argv: &str| Call::new("/usr/bin/curl", argv);
    let (zero, one) = ("00".repeat(32), "01".repeat(32));
    for (rule, call, allow, deny) in [
        // exe: the file itself; to stop, also the path as given and the interpreters
        (json!({"exe": "/usr/bin/git"}), git(), true, true),
        (json!({"exe": ["/bin/x", "/usr/bin/git"]}), git(), true, true),
        (json!({"exe": "/usr/bin/gi"}), git(), false, false),
        (json!({"exe": "/project/bin/git"}), link(), false, true),
        (json!({"exe": "/project/bin/git"}), link().given("/project//./bin/git"), false, true),
        (json!({"exe": "/home/ada/project/git"}), link().given("./git"), false, true),
        (json!({"exe": "/project/run"}), script(), true, true),
        (json!({"exe": "/usr/bin/python3"}), script(), false, true),
        (
            json!({"exe": "/bin/sh"}),
            Call::new("/project/run", "run").by_link("/bin/sh", "/usr/bin/dash"),
            false,
            true,
        ),
        (json!({"exe_not": "/usr/bin/git"}), git(), false, false),
        (json!({"exe_not": "/usr/bin/git"}), curl("curl"), true, true),
        (json!({"exe_not": "/project/bin/git"}), link(), false, true),
        (json!({"exe_not": "/usr/bin/python3"}), script(), false, true),
        // exe_basename: to stop, also the first argument and the name inside of a program that is
        // many
        (json!({"exe_basename": "git"}), git(), true, true),
        (json!({"exe_basename": "git"}), link(), false, true),
        (json!({"exe_basename": "git"}), curl("git x"), false, true),
        (json!({"exe_basename": "git"}), curl("/x/git x"), false, true),
        (json!({"exe_basename": "bash"}), Call::new("/bin/x", "-bash"), false, true),
        (json!({"exe_basename": "python3"}), script(), false, true),
        (
            json!({"exe_basename": "sh"}),
            Call::new("/project/run", "run").by_link("/bin/sh", "/usr/bin/dash"),
            false,
            true,
        ),
        (json!({"exe_basename": "rm"}), busybox("rm -rf x"), false, true),
        (
            json!({"exe_basename": "rm"}),
            busybox("busybox rm -rf x").given("/bin/busybox"),
            false,
            true,
        ),
        (json!({"exe_basename": "rm"}), Call::new("/bin/xargs", "xargs rm"), false, false),
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
        // exe_sha256: the file; to stop, also the interpreters
        (json!({"exe_sha256": zero}), git(), true, true),
        (json!({"exe_sha256": one}), git(), false, false),
        (json!({"exe_sha256": one}), script(), false, true),
        (json!({"exe_sha256_not": zero}), git(), false, false),
        (json!({"exe_sha256_not": one}), script(), false, true),
        // argv_regex: the arguments as given; to stop, also by the program's other names
        (json!({"argv_regex": "^git push( |$)"}), git(), true, true),
        (json!({"argv_regex": "^git push( |$)"}), Call::new("/usr/bin/git", "x push"), false, true),
        (
            json!({"argv_regex": "^git push( |$)"}),
            Call::new("/usr/bin/git", "/usr/bin/git push"),
            false,
            true,
        ),
        (json!({"argv_regex": "^/usr/bin/git push"}), git(), false, true),
        (json!({"argv_regex": "^git status( |$)"}), git(), false, false),
        (json!({"argv_regex": ["x", "origin$"]}), git(), true, true),
        (json!({"argv_regex": "^$"}), git(), false, false),
        (json!({"argv_regex": "^ "}), git().given(""), false, false),
        (json!({"exe_glob": "/home/**"}), git().given(""), false, false),
        (
            json!({"argv_regex": "^rm -rf"}),
            busybox("busybox rm -rf x").given("/bin/busybox"),
            false,
            true,
        ),
        (json!({"argv_regex_not": "^git push"}), Call::new("/usr/bin/git", "x push"), false, true),
        (json!({"argv_regex_not": "^git push"}), Call::new("/usr/bin/git", "git log"), true, true),
        (json!({"argv_regex_not": "^git push"}), git(), false, false),
        // argv_contains: one whole argument; the first is only a name
        (json!({"argv_contains": "push"}), git(), true, true),
        (json!({"argv_contains": "pus"}), git(), false, false),
        (json!({"argv_contains": ["a", "origin"]}), git(), true, true),
        (json!({"argv_contains": "git"}), git(), false, true),
        (json!({"argv_contains_not": "push"}), git(), false, false),
        (json!({"argv_contains_not": "log"}), git(), true, true),
        // argv_host_in: to let through all hosts have to be listed, to stop one is enough
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
        // where, who, from whom
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
    let push = Call::new("/usr/bin/git", "git push");
    let (deny, allow) = (
        json!({"action": "deny", "argv_contains": "push"}),
        json!({"action": "allow", "exe": "/usr/bin/git"}),
    );
    let verdict = |rules: Value| push.judged(&compiled("ask", rules));
    assert_eq!(verdict(json!([deny, allow])).action, Action::Deny);
    assert_eq!(verdict(json!([allow, deny])).action, Action::Allow);
    assert_eq!(verdict(json!([])).cause, Cause::Default);
    assert_eq!(verdict(json!([])).action, Action::Ask);
}

#[test]
fn an_interpreter_that_an_earlier_rule_denies_is_not_let_through_by_its_script() {
    let rules = compiled(
        "deny",
        json!([{"action": "deny", "exe": "/usr/bin/perl"}, {"action": "allow", "exe_glob": "/project/*"}]),
    );
    assert_eq!(
        Call::new("/project/a", "a").by("/usr/bin/python3").judged(&rules).action,
        Action::Allow
    );
    assert_eq!(
        Call::new("/project/a", "a").by("/usr/bin/perl").judged(&rules).cause,
        Cause::Rule(0)
    );
}

/// What a `#!` line tells its interpreter is what that one is started with.
#[test]
fn what_is_denied_to_a_program_is_denied_to_the_scripts_that_it_interprets() {
    let denies = |rule: Value, call: Call| {
        call.judged(&compiled("allow", json!([rule]))).action == Action::Deny
    };
    let push =
        || Call::new("/project/run", "run origin").given("./run").by("/usr/bin/git").told("push");
    for key in [
        json!({"argv_regex": "^git push"}),
        json!({"argv_contains": "push"}),
        json!({"argv_regex_not": "^git (log|diff)"}),
    ] {
        let mut rule = json!({"action": "deny", "exe": "/usr/bin/git"});
        rule.as_object_mut().unwrap().append(&mut key.as_object().unwrap().clone());
        assert!(denies(rule.clone(), push()), "{rule}");
        // By the name of the script, and by one that calls itself what is harmless.
        assert!(
            denies(rule.clone(), Call::new("/project/push", "x").given("push").by("/usr/bin/git")),
            "{rule}"
        );
        assert!(
            denies(
                rule.clone(),
                Call::new("/project/run", "git push log")
                    .given("./run")
                    .by("/usr/bin/git")
                    .told("push")
            ),
            "{rule}"
        );
    }
    assert!(denies(
        json!({"action": "deny", "exe": "/usr/bin/git", "argv_regex_not": "^git log"}),
        { Call::new("/project/run", "git log").given("./run").by("/usr/bin/git").told("push") }
    ));
    let busybox = || Call::new("/project/run", "run").by("/usr/bin/busybox").told("wget");
    assert!(denies(json!({"action": "deny", "exe_basename": "wget"}), busybox()));
    assert!(denies(
        json!({"action": "deny", "exe_basename": "curl", "argv_host_in_not": "good.org"}),
        {
            Call::new("/project/run", "run https://good.org/")
                .by("/usr/bin/curl")
                .told("https://bad.org/")
        }
    ));
    // Nested: each is told what its own line says.
    let nested =
        || Call::new("/project/a", "a").by("/project/b").told("x").by("/usr/bin/git").told("push");
    assert!(denies(
        json!({"action": "deny", "exe": "/usr/bin/git", "argv_regex": "^git push /project/b x /project/a$"}),
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
    // What stops all that is not there, or not called so, is about the script.
    for key in ["exe_glob_not", "argv_regex_not"] {
        let rule = json!({"action": "deny", key: if key == "exe_glob_not" { "/project/**" } else { "^run " }});
        assert!(!denies(rule.clone(), push()), "{rule}");
    }
}

#[test]
fn an_argument_can_not_imitate_two() {
    let rules = compiled("deny", json!([{"action": "allow", "argv_regex": "^git status( |$)"}]));
    let mut call = Call::new("/usr/bin/git", "git status");
    assert_eq!(call.judged(&rules).action, Action::Allow);
    call.argv = vec![b"git".to_vec(), b"status x".to_vec()];
    assert_eq!(call.judged(&rules).action, Action::Deny);
    call.argv = vec![b"git status".to_vec(), b"push".to_vec()];
    assert_eq!(call.judged(&rules).action, Action::Deny);
}

#[test]
fn what_the_command_could_have_made_needs_a_rule_that_names_its_place_or_content() {
    let tool = || Call::new("/project/git", "git log").own();
    for (default, rule, expected) in [
        (
            "allow",
            json!({"action": "deny", "exe_basename": "curl"}),
            (Action::Deny, Cause::NotGranted),
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
    ] {
        let verdict = tool().judged(&compiled(default, json!([rule])));
        assert_eq!((verdict.action, verdict.cause), expected, "{rule}");
    }
    let mut gate = gate("allow", json!([{"action": "deny", "exe_basename": "curl"}]));
    gate.exec_only_granted = false;
    assert_eq!(tool().judged(&Rules::compile(&gate).unwrap()).action, Action::Allow);
}

#[test]
fn an_approval_answers_what_it_holds_for_surely_and_beats_no_rule() {
    let approved = json!([
        {"action": "allow", "exe": "/usr/bin/git", "argv_regex": "^git push$", "cwd_glob": "/home/ada/project"},
        {"action": "allow", "exe_basename": "make"},
    ]);
    let rules = json!([
        {"action": "deny", "exe": "/usr/bin/git", "argv_contains": "--force"},
        {"action": "ask", "exe": "/usr/bin/git"},
    ]);
    let compiled = Rules::compile(&gate_with("deny", rules, approved)).unwrap();
    let git = |argv: &str| Call::new("/usr/bin/git", argv);
    let elsewhere = Call { cwd: b"/home/ada/project/x".to_vec(), ..git("git push") };
    for (call, expected) in [
        (git("git push"), Some(0)),
        (git("git push --force"), None),
        (git("git push\n"), None),
        (git("/usr/bin/git push"), None),
        // By another name it holds only partly.
        (Call::new("/usr/bin/git2", "git push").given("/usr/bin/git"), None),
        (elsewhere, None),
        (Call::new("/usr/bin/make", "make"), Some(1)),
        (Call::new("/home/ada/project/make", "make").own(), None),
        (Call::new("/bin/ls", "ls"), None),
    ] {
        assert_eq!(call.approved(&compiled), expected, "{:?}", call.argv);
    }
    // Rules decide first, and whoever asks for approvals does so for a question alone.
    assert_eq!(git("git push --force").judged(&compiled).cause, Cause::Rule(0));
    assert_eq!(git("git push").judged(&compiled).action, Action::Ask);
    assert_eq!(Call::new("/usr/bin/make", "make").judged(&compiled).action, Action::Deny);
}

#[test]
fn an_approval_that_can_not_be_judged_is_none() {
    let approved = json!([{"action": "allow", "exe_sha256": "00".repeat(32)}]);
    let compiled = Rules::compile(&gate_with("ask", json!([]), approved)).unwrap();
    let mut cat = Call::new("/bin/cat", "cat");
    assert_eq!(cat.approved(&compiled), Some(0));
    cat.digests = vec![None];
    assert_eq!(cat.approved(&compiled), None);
}

#[test]
fn a_rule_that_would_have_allowed_is_named_if_it_held_partly() {
    let rules = compiled(
        "deny",
        json!([{"action": "allow", "exe_basename": "ls"}, {"action": "allow", "exe_basename": "python3"}]),
    );
    let verdict =
        Call::new("/usr/bin/python3.11", "python3").given("/usr/bin/python3").judged(&rules);
    assert_eq!(
        (verdict.action, verdict.cause, verdict.doubted),
        (Action::Deny, Cause::Default, Some(1))
    );
}

#[test]
fn what_can_not_be_known_is_an_error_only_where_it_matters() {
    let parent = json!([{"action": "allow", "exe": "/bin/cat", "parent_exe": "/usr/bin/git"}]);
    let mut cat = Call::new("/bin/cat", "cat");
    cat.parent = None;
    let verdict = cat.judged(&compiled("allow", parent.clone()));
    assert_eq!(verdict.cause, Cause::Error { rule: 0, why: "the parent is unknown".to_owned() });
    assert_eq!(verdict.action, Action::Deny);
    let mut asking = gate("allow", parent.clone());
    asking.on_error = Action::Ask;
    assert_eq!(cat.judged(&Rules::compile(&asking).unwrap()).action, Action::Ask);
    cat.chain = vec![(b"/bin/ls".to_vec(), b"/bin/ls".to_vec())];
    assert_eq!(cat.judged(&compiled("allow", parent)).cause, Cause::Default);

    let digest =
        json!([{"action": "deny", "exe_sha256": "00".repeat(32), "parent_exe": "/usr/bin/git"}]);
    let mut unreadable = Call::new("/bin/cat", "cat");
    unreadable.digests = vec![None];
    // The parent rules it out, so the content does not matter.
    assert_eq!(unreadable.judged(&compiled("allow", digest)).cause, Cause::Default);
}

#[test]
fn expressions_are_of_linear_time_over_bytes() {
    for (pattern, said) in [
        (r"(a)\1", "backreferences"),
        (r"(?=a)", "look-around"),
        ("(", "unclosed"),
        ("a{1000}{1000}", "size limit"),
        (r"\pL", "Unicode"),
        ("[\u{e9}]", "Unicode"),
    ] {
        let error = regex(pattern.as_bytes()).unwrap_err();
        assert!(error.contains(said) && !error.contains('\n'), "{pattern}: {error}");
    }
    assert!(regex(b"\xff").is_err());
    assert!(regex(".\u{e9}$".as_bytes()).unwrap().is_match(b"\xff\xc3\xa9"));
    // For a backtracking engine this is the age of the universe.
    assert!(!regex(b"^(a+)+$").unwrap().is_match(&[&[b'a'; 1 << 16][..], b"b"].concat()));
}

#[test]
fn a_value_that_is_none_is_refused() {
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
            Rules::compile(&gate("deny", json!([{"action": "deny", (key): value}]))).is_err(),
            "{key} {value}"
        );
    }
}

/// xorshift: the same lot in every run.
struct Lot(u64);

impl Lot {
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

    fn call(&mut self) -> Call {
        let mut call = Call::new(self.of(&PATHS), self.of(&WORDS)).given(self.of(&PATHS));
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
fn what_allows_would_also_stop_and_not_is_the_opposite_of_the_other() {
    let mut lot = Lot(0x9e37_79b9_7f4a_7c15);
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
fn rules_are_read_in_order_and_a_further_key_only_narrows() {
    let mut lot = Lot(0x2545_f491_4f6c_dd1d);
    for _ in 0..2_000 {
        let call = lot.call();
        let actions = ["allow", "deny", "ask"];
        let rules: Vec<Value> =
            (0..1 + lot.below(5)).map(|_| lot.rule(actions[lot.0 as usize % 3])).collect();
        let verdict = call.judged(&compiled("ask", json!(rules)));
        if let Cause::Rule(index) = verdict.cause {
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
fn no_first_argument_lets_a_program_through() {
    let mut lot = Lot(0xd129_42e5_f3ab_1c07);
    for _ in 0..2_000 {
        let mut call = lot.call();
        let (key, value) = lot.key();
        // An expression is about the whole text, the name in it too; that is what people write.
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
