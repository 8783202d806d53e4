use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use serde_json::{Value, json};

use crate::plan;
use crate::sandbox::landlock::*;

fn text(path: &Path) -> AbsPath {
    absolute(path.to_owned()).unwrap()
}

/// A plan with the working directory of this process. It grants `granted` for reading, and its
/// journal is `journal`.
fn plan(granted: &Path, journal: &Path) -> Box<Plan> {
    let mut plan: Value =
        serde_json::from_str(include_str!("../../../../schema/examples/plan-landlock.json"))
            .unwrap();
    let grant = json!({
        "access": "read",
        "except": [],
        "optional": false,
        "paths": [[granted, null]],
        "source": "test",
    });
    plan["cwd"] = json!(std::env::current_dir().unwrap());
    plan["journal"]["dir"] = json!(journal);
    plan["files"]["grants"] = json!([grant]);
    plan["files"]["closed"] = json!([]);
    plan["files"]["unwritable"] = json!([]);
    Plan::parse(plan.to_string().as_bytes(), 1000).unwrap()
}

#[test]
fn the_open_journal_counts_after_its_name_has_changed() {
    let root = std::env::temp_dir()
        .canonicalize()
        .unwrap()
        .join(format!("paddock-files-{}", std::process::id()));
    let (granted, journal) = (root.join("granted"), root.join("journal"));
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&granted).unwrap();
    let requested = plan::JournalPlan { dir: text(&journal), file: None, stderr: false };
    let opened =
        Journal::open(&requested, rustix::process::getuid().as_raw(), String::new()).unwrap();
    let plan = plan(&granted, &journal);
    assert!(FileGrants::prepare(&plan, None, Some(&opened)).is_ok());
    // It is moved into the grant after it was opened.
    std::fs::rename(&journal, granted.join("moved")).unwrap();
    assert!(FileGrants::prepare(&plan, None, None).is_ok(), "by its name it is nowhere");
    assert!(matches!(
        FileGrants::prepare(&plan, None, Some(&opened)),
        Err(GrantError::JournalExposed { .. })
    ));
    std::fs::remove_dir_all(&root).unwrap();
}
