use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use serde_json::{Value, json};

use crate::plan;
use crate::sandbox::landlock::*;

fn text(path: &Path) -> AbsPath {
    absolute(path.to_owned()).unwrap()
}

/// A plan that stands where this process does, reads `granted` and keeps its journal in `journal`.
fn plan(granted: &Path, journal: &Path) -> Box<Plan> {
    let mut plan: Value =
        serde_json::from_str(include_str!("../../../../schema/examples/plan-landlock.json"))
            .unwrap();
    let grant = json!({"access": "read", "except": [], "optional": false, "paths": [[granted, null]], "source": "test"});
    plan["cwd"] = json!(std::env::current_dir().unwrap());
    plan["journal"]["dir"] = json!(journal);
    plan["files"]["grants"] = json!([grant]);
    plan["files"]["closed"] = json!([]);
    plan["files"]["unwritable"] = json!([]);
    Plan::parse(plan.to_string().as_bytes(), 1000).unwrap()
}

#[test]
fn the_journal_that_was_opened_counts_whatever_its_name_leads_to_since() {
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
    assert!(Files::prepare(&plan, None, Some(&opened)).is_ok());
    // Somebody moved it into the grant after it was opened.
    std::fs::rename(&journal, granted.join("moved")).unwrap();
    assert!(Files::prepare(&plan, None, None).is_ok(), "by its name it is nowhere");
    assert!(matches!(
        Files::prepare(&plan, None, Some(&opened)),
        Err(FilesError::JournalExposed { .. })
    ));
    std::fs::remove_dir_all(&root).unwrap();
}
