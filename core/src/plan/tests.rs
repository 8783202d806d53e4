use crate::plan::*;
use serde_json::{Value, json};

const GOLDEN: &str = include_str!("../../../schema/examples/plan-landlock.json");
const FULL: &str = include_str!("../../../schema/examples/plan.json");
const UID: u32 = 1000;

fn golden() -> Value {
    serde_json::from_str(GOLDEN).unwrap()
}

fn parse(value: &Value) -> Result<Box<Plan>, PlanError> {
    Plan::parse(value.to_string().as_bytes(), UID)
}

/// The golden plan with one value replaced.
fn with(pointer: &str, new: Value) -> Value {
    let mut plan = golden();
    *plan.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer}")) = new;
    plan
}

#[test]
fn the_golden_plan_parses() {
    let plan = parse(&golden()).unwrap();
    let landlock = plan.landlock.as_ref().unwrap();
    assert_eq!((landlock.abi, landlock.handled.len(), landlock.scoped.len()), (7, 16, 2));
    let files = plan.files.as_ref().unwrap();
    assert_eq!(files.grants.len(), 5);
    let home = files.grants.iter().find(|grant| grant.path.as_bytes() == b"/home/ada").unwrap();
    assert_eq!((home.except.len(), home.source().to_string()), (2, "paddock.toml:4".to_owned()));
    let read = plan.rights(&home.access);
    assert_eq!(rights::names(read), "execute, read_dir, read_file");
    assert!(plan.seccomp.as_ref().unwrap().syscalls.iter().any(|syscall| syscall.name == "ptrace"));
    assert_eq!(plan.rlimits.len(), 1);

    let full = parse(&serde_json::from_str(FULL).unwrap()).unwrap();
    assert_eq!((full.tier, full.namespaces.unwrap().tmp_mb), (Tier::Full, Some(512)));
    let files = full.files.unwrap();
    let texts = |patterns: Vec<Vec<u8>>| {
        patterns.into_iter().map(|one| String::from_utf8(one).unwrap()).collect::<Vec<_>>()
    };
    let protected = ["**/.git/config", "**/.git/hooks", "/home/ada/project/**/.vscode"];
    assert_eq!(texts(files.protected().collect()), protected);
    let excepted = ["/home/ada/project/.git/hooks", "/home/ada/project/**/node_modules/**/.vscode"];
    assert_eq!(texts(files.excepted().collect()), excepted);
}

#[test]
fn parts_of_the_other_tier_are_refused() {
    let changed = |golden: &str, pointer: &str, new: Value| {
        let mut plan: Value = serde_json::from_str(golden).unwrap();
        *plan.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer}")) = new;
        parse(&plan)
    };
    let namespaces = json!({"nested": false, "hostname": "", "tmp_mb": null});
    for (golden, pointer, new) in [
        (GOLDEN, "/namespaces", namespaces),
        (GOLDEN, "/workspace", json!({"path": "/home/ada/project", "resume": null})),
        (GOLDEN, "/files", Value::Null),
        (FULL, "/namespaces", Value::Null),
        (FULL, "/temp", json!({"parent": "/tmp", "access": "allow"})),
        (FULL, "/files/grants/1/except", json!(["/home/ada/.ssh"])),
        (FULL, "/workspace/path", json!("/usr")),
        (FULL, "/workspace/resume", json!("../x")),
        (FULL, "/workspace/resume", json!("")),
    ] {
        assert!(changed(golden, pointer, new.clone()).is_err(), "{pointer} = {new}");
    }
    assert!(changed(FULL, "/workspace/resume", json!("00ff")).is_ok());
}

#[test]
fn missing_and_unknown_keys_are_refused() {
    fn objects(value: &Value, at: String, found: &mut Vec<String>) {
        match value {
            Value::Object(map) => {
                found.push(at.clone());
                map.iter().for_each(|(key, inner)| objects(inner, format!("{at}/{key}"), found));
            }
            Value::Array(items) => {
                items
                    .iter()
                    .enumerate()
                    .for_each(|(index, inner)| objects(inner, format!("{at}/{index}"), found));
            }
            _ => {}
        }
    }
    let mut found = Vec::new();
    objects(&golden(), String::new(), &mut found);
    assert!(found.len() > 10);
    for pointer in found {
        let free_keys =
            ["/environment/set", "/rlimits", "/landlock/access"].contains(&pointer.as_str());
        if free_keys {
            continue;
        }
        let keys: Vec<String> =
            golden().pointer(&pointer).unwrap().as_object().unwrap().keys().cloned().collect();
        for key in keys {
            let mut plan = golden();
            plan.pointer_mut(&pointer).unwrap().as_object_mut().unwrap().remove(&key);
            assert!(parse(&plan).is_err(), "without {pointer}/{key}");
        }
        let mut plan = golden();
        plan.pointer_mut(&pointer)
            .unwrap()
            .as_object_mut()
            .unwrap()
            .insert("surprise".into(), json!(1));
        assert!(parse(&plan).is_err(), "surprise in {pointer}");
    }
}

#[test]
fn duplicates_are_refused_everywhere() {
    let golden = golden().to_string();
    assert!(Plan::parse(golden.as_bytes(), UID).is_ok());
    for (once, twice) in [
        (r#""version":1"#, r#""version":1,"version":1"#),
        (r#""core":0"#, r#""core":0,"core":1"#),
        (r#""CI":"1""#, r#""CI":"1","CI":"2""#),
        (r#""read":["execute""#, r#""read":["execute"],"read":["execute""#),
        (r#"["execute","ioctl_dev""#, r#"["execute","execute","ioctl_dev""#),
        (r#"["bpf","mount""#, r#"["bpf","bpf","mount""#),
        (r#""optional":true"#, r#""optional":true,"optional":true"#),
    ] {
        assert!(golden.contains(once), "{once}");
        assert!(Plan::parse(golden.replacen(once, twice, 1).as_bytes(), UID).is_err(), "{twice}");
    }
}

#[test]
fn trailing_text_is_refused() {
    let golden = golden().to_string();
    for tail in ["{}", "x", "\0", ",", " ", "\n"] {
        assert!(Plan::parse(format!("{golden}{tail}").as_bytes(), UID).is_err());
    }
    assert!(Plan::parse(&golden.as_bytes()[..golden.len() / 2], UID).is_err());
    assert!(Plan::parse(b"", UID).is_err());
    assert!(matches!(Plan::parse(b"\xff", UID), Err(PlanError::Json(_))));
}

#[test]
fn contradictions_are_refused() {
    for (pointer, new) in [
        ("/version", json!(2)),
        ("/tier", json!("full")),
        ("/user/uid", json!(1001)),
        ("/no_new_privs", json!(false)),
        ("/workdir", json!("relative")),
        ("/workdir", json!("/a/../b")),
        ("/files/grants/0/paths/0/0", json!("/dev//null")),
        ("/files/grants/3/except/0", json!("/home/ada/.")),
        ("/files/grants/0/access", json!("nothing")),
        ("/landlock/access/read", json!([])),
        ("/landlock/access/read/0", json!("fly")),
        ("/landlock/handled", json!([])),
        ("/landlock/handled", json!(["read_file"])),
        ("/landlock/abi", json!(4)),
        ("/landlock/abi", json!(0)),
        ("/landlock/scoped/0", json!("network")),
        ("/seccomp/default", json!("ask")),
        ("/seccomp/default", json!("deny")),
        ("/seccomp/syscalls/0", json!("ptrce")),
        ("/seccomp/syscalls/0", json!("execve")),
        ("/seccomp/syscalls/0", json!("exit_group")),
        ("/seccomp/sockets/0", json!("vsock")),
        ("/seccomp/sockets", json!(["inet", "inet"])),
        ("/temp/access", json!("nothing")),
        ("/temp", Value::Null),
        ("/journal/file", json!("../x")),
        ("/journal/file", json!("")),
        ("/notices/0/level", json!("error")),
        ("/rlimits", json!({"speed": 1})),
        ("/rlimits", json!({"core": -1})),
        ("/environment/set", json!({"A=B": "1"})),
        ("/environment/set", json!({"": "1"})),
        ("/gate/default", json!("maybe")),
        ("/gate/on_error", json!("allow")),
        ("/gate/timeout_ms", json!(0)),
        ("/gate/timeout_ms", json!(-1)),
        ("/gate/rules/0/id", json!("")),
        ("/gate/rules/0/id", json!("tools")),
        ("/gate/rules/0/match", json!([])),
        ("/gate/approved/0/id", json!("")),
        ("/gate/approved/0/match", json!([])),
        ("/gate/approved/0/action", json!("deny")),
        ("/gate/approved/0/action", json!("ask")),
        ("/gate/rules/0/match/0/values", json!([])),
        ("/gate/rules/0/match/0/key", json!("exe_name")),
    ] {
        assert!(parse(&with(pointer, new.clone())).is_err(), "{pointer} = {new}");
    }
}

#[test]
fn null_switches_a_layer_off() {
    for pointer in ["/landlock", "/seccomp", "/journal", "/gate"] {
        assert!(parse(&with(pointer, Value::Null)).is_ok(), "{pointer}");
    }
    let mut bare = golden();
    for key in ["files", "landlock", "seccomp", "journal", "environment", "temp"] {
        bare[key] = Value::Null;
    }
    bare["no_new_privs"] = json!(false);
    assert!(parse(&bare).is_ok());
    // Root needs no no_new_privs: it has the capability.
    let root = with("/no_new_privs", json!(false)).to_string().replace("\"uid\":1000", "\"uid\":0");
    assert!(Plan::parse(root.as_bytes(), 0).is_ok());
}

#[test]
fn a_network_needs_a_layer_that_enforces_it() {
    let full = || serde_json::from_str::<Value>(FULL).unwrap();
    let with = |pointer: &str, value: Value| {
        let mut plan = full();
        *plan.pointer_mut(pointer).unwrap() = value;
        plan
    };
    let network = full()["network"].clone();
    assert_eq!(parse(&full()).unwrap().network.unwrap().local_ports, [5432]);
    let no_network = json!({"mode": "none", "default": "deny", "ask_timeout_s": 1, "denied": [],
    "allowed": [], "local_ports": [],
                        "published": [], "approved": [], "default_source": null, "http": null});
    assert!(parse(&with("/network", no_network.clone())).is_ok());
    for (pointer, new) in [
        ("/network/mode", json!("host")),
        ("/network/mode", json!("none")),
        ("/network/local_ports", json!([0])),
        ("/network/allowed/0/hosts/0/1", json!(0)),
        ("/network/allowed/0/hosts/0/1", json!(65536)),
        ("/network/allowed/0/hosts/0", json!(["example.com", null])),
        ("/network/ask_timeout_s", json!(0)),
        ("/network/published", json!([{"inside": 3000, "host": 0}])),
        ("/network/published", json!([{"inside": 0, "host": 3000}])),
        (
            "/network/published",
            json!([{"inside": 3000, "host": 3000}, {"inside": 3001, "host": 3000}]),
        ),
        ("/network/published", json!(null)),
    ] {
        assert!(parse(&with(pointer, new.clone())).is_err(), "{pointer} = {new}");
    }
    for network in [network, no_network] {
        // In the landlock tier Landlock and seccomp enforce it.
        let mut landlock_plan = golden();
        landlock_plan["network"] = network.clone();
        landlock_plan["network"]["http"] = json!({"routes": [], "inspect": []});
        assert!(parse(&landlock_plan).is_err());
        landlock_plan["network"]["http"] = Value::Null;
        assert!(parse(&landlock_plan).is_ok());
        let without = |parts: &[&str]| {
            let mut plan = landlock_plan.clone();
            parts.iter().for_each(|part| plan[*part] = Value::Null);
            parse(&plan)
        };
        for parts in [&["seccomp"][..], &["landlock", "files", "temp"]] {
            assert!(matches!(without(parts), Err(PlanError::Tier("landlock", _))), "{parts:?}");
        }
        landlock_plan["network"]["published"] = json!([{"inside": 3000, "host": 3000}]);
        assert!(matches!(
            parse(&landlock_plan),
            Err(PlanError::Tier("landlock", "ports to publish"))
        ));
        landlock_plan["network"]["published"] = json!([]);
        landlock_plan["network"]["default"] = json!("ask");
        assert!(matches!(
            parse(&landlock_plan),
            Err(PlanError::Tier("landlock", "questions about hosts"))
        ));
        // Without files no namespace is created.
        let mut plan = with("/files", Value::Null);
        (plan["landlock"], plan["workspace"]) = (Value::Null, Value::Null);
        plan["network"] = network.clone();
        assert!(matches!(
            parse(&plan),
            Err(PlanError::Tier("full", "a network without namespaces"))
        ));
        let mut plan: Value =
            serde_json::from_str(include_str!("../../../schema/examples/plan-container.json"))
                .unwrap();
        plan["network"] = network;
        let uid = plan["user"]["uid"].as_u64().unwrap() as u32;
        assert!(matches!(
            Plan::parse(plan.to_string().as_bytes(), uid),
            Err(PlanError::Container(_))
        ));
    }
}

#[test]
fn an_allow_list_without_execve_or_exit_group_is_refused() {
    let mut plan = with("/seccomp/default", json!("deny"));
    plan["seccomp"]["syscalls"] = json!(["execve", "exit_group", "read"]);
    assert!(parse(&plan).is_ok());
    plan["seccomp"]["syscalls"] = json!(["execve", "read"]);
    assert!(matches!(parse(&plan), Err(PlanError::ExecImpossible("exit_group"))));
}
