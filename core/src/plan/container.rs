//! The container of a plan: its own root directory, its user, and what the command keeps.

use rustix::thread::CapabilitySet;
use serde::Deserialize;
use serde::de::{self, Deserializer};

use super::deserializers::{name_set, present};
use super::wire::bytes::{AbsPath, Text};
use super::{Plan, PlanError, Tier};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Container {
    pub rootdir: AbsPath,
    /// The user of the command, by its id inside the container.
    pub uid: u32,
    pub gid: u32,
    pub uid_map: Vec<IdRange>,
    pub gid_map: Vec<IdRange>,
    /// The programs that map id ranges for an unprivileged user.
    #[serde(deserialize_with = "present")]
    pub mappers: Option<Mappers>,
    /// An existing network namespace to join, instead of a new one.
    #[serde(deserialize_with = "present")]
    pub netns: Option<AbsPath>,
    pub loopback: bool,
    pub cgroups: Vec<AbsPath>,
    #[serde(deserialize_with = "capability_set")]
    pub capabilities: CapabilitySet,
    /// Paths inside the container that are unreadable.
    pub masks: Vec<Mask>,
}

/// `count` numbers from `inside` up are the ones from `outside` up on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdRange {
    pub inside: u32,
    pub outside: u32,
    pub count: u32,
}

impl IdRange {
    pub fn has_inside(&self, id: u32) -> bool {
        id.checked_sub(self.inside).is_some_and(|offset| offset < self.count)
    }

    pub fn has_outside(&self, id: u32) -> bool {
        id.checked_sub(self.outside).is_some_and(|offset| offset < self.count)
    }

    fn is_valid(&self) -> bool {
        let fits = |first: u32| first.checked_add(self.count).is_some();
        self.count > 0 && fits(self.inside) && fits(self.outside)
    }
}

/// newuidmap and newgidmap.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mappers {
    pub uid: AbsPath,
    pub gid: AbsPath,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mask {
    pub path: AbsPath,
    /// True: a missing path is not an error.
    pub optional: bool,
    pub source: Text,
}

impl Container {
    /// True if the supplementary groups can be cleared. For some id maps the kernel forbids
    /// setgroups.
    pub fn clears_groups(&self, caller: u32) -> bool {
        caller == 0 || self.mappers.is_some()
    }

    /// True if the caller's uid is mapped inside. Without that, nothing can be created there.
    pub fn maps_caller(&self, caller: u32) -> bool {
        self.uid_map.iter().any(|range| range.has_outside(caller))
    }

    pub(super) fn check(&self, plan: &Plan) -> Result<(), PlanError> {
        let wrong = |what| Err(PlanError::Container(what));
        if plan.tier != Tier::Full || plan.namespaces.is_none() {
            return wrong("a tier without namespaces");
        }
        if plan.temp.is_some() || plan.workspace.is_some() {
            return wrong("a workspace on the host");
        }
        if let Some(files) = &plan.files {
            let names = files.deny.len()
                + files.deny_names.len()
                + files.protect.len()
                + files.opened.len()
                + files.flagged.len()
                + files.git_remotes.len();
            if names + files.closed.len() + files.unwritable.len() > 0 || plan.landlock.is_none() {
                return wrong("file rules that a container cannot enforce");
            }
        }
        if !self.uid_map.iter().chain(&self.gid_map).all(IdRange::is_valid) {
            return wrong("an empty or too large range of ids");
        }
        let has = |map: &[IdRange], id| map.iter().any(|range| range.has_inside(id));
        if !has(&self.uid_map, self.uid) || !has(&self.gid_map, self.gid) {
            return wrong("a user or group without an id on the host");
        }
        let rooted = has(&self.uid_map, 0) && has(&self.gid_map, 0);
        if !rooted && !self.maps_caller(plan.user.uid) {
            return wrong("neither its owner nor a root");
        }
        if self.loopback && self.netns.is_some() {
            return wrong("a loopback device in an existing network namespace");
        }
        Ok(())
    }
}

fn capability_set<'de, D: Deserializer<'de>>(deserializer: D) -> Result<CapabilitySet, D::Error> {
    let mut set = CapabilitySet::empty();
    for name in name_set(deserializer)? {
        let known = name.strip_prefix("CAP_").and_then(CapabilitySet::from_name);
        set |= known
            .ok_or_else(|| de::Error::custom(format_args!("unknown capability \"{name}\"")))?;
    }
    Ok(set)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOLDEN: &str = include_str!("../../../schema/examples/plan-container.json");

    fn parsed(change: impl FnOnce(&mut serde_json::Value)) -> Result<Box<Plan>, PlanError> {
        let mut plan: serde_json::Value = serde_json::from_str(GOLDEN).unwrap();
        change(&mut plan);
        Plan::parse(plan.to_string().as_bytes(), 0)
    }

    #[test]
    fn the_container_example_parses() {
        let plan = parsed(|_| {}).unwrap();
        let container = plan.container.unwrap();
        assert_eq!(container.capabilities, CapabilitySet::NET_BIND_SERVICE);
        assert!(container.clears_groups(0) && !container.clears_groups(1000));
        assert!(!container.maps_caller(0));
    }

    #[test]
    fn every_capability_has_its_name() {
        let names = CapabilitySet::all().iter_names().map(|(name, _)| format!("CAP_{name}"));
        let names: Vec<String> = names.filter(|name| name != "CAP__").collect();
        assert_eq!(names.len(), 41);
        let plan = parsed(|plan| plan["container"]["capabilities"] = names.into()).unwrap();
        assert_eq!(plan.container.unwrap().capabilities.bits(), (1 << 41) - 1);
    }

    #[test]
    fn contradictions_are_refused() {
        let refused = |change: fn(&mut serde_json::Value)| match parsed(change) {
            Err(PlanError::Container(what)) => what,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            refused(
                |plan| (plan["files"], plan["landlock"], plan["namespaces"]) = Default::default()
            ),
            "a tier without namespaces"
        );
        assert!(
            refused(|plan| plan["container"]["uid"] = 65536.into())
                .contains("without an id on the host")
        );
        assert!(refused(|plan| plan["container"]["loopback"] = true.into()).contains("loopback"));
        assert!(
            refused(|plan| plan["files"]["deny"] = vec!["**/.env"].into())
                .contains("file rules that a container ca")
        );
        assert!(
            refused(|plan| plan["container"]["uid_map"][0]["count"] = 0.into())
                .contains("empty or too large")
        );
        assert!(
            refused(|plan| plan["container"]["uid_map"][0]["inside"] = 33.into())
                .contains("nor a root")
        );
        assert!(
            parsed(|plan| plan["container"]["capabilities"] = vec!["CAP_NOPE"].into()).is_err()
        );
        assert!(parsed(|plan| plan["container"]["more"] = 1.into()).is_err());
    }

    fn range(inside: u32, outside: u32, count: u32) -> IdRange {
        IdRange { inside, outside, count }
    }

    #[test]
    fn a_range_contains_only_its_ids() {
        let shifted = range(0, 100_000, 65_536);
        assert!(shifted.has_inside(0) && shifted.has_inside(65_535));
        assert!(!shifted.has_inside(65_536));
        assert!(
            shifted.has_outside(100_000)
                && !shifted.has_outside(99_999)
                && !shifted.has_outside(165_536)
        );
    }

    #[test]
    fn an_empty_or_overflowing_range_is_invalid() {
        assert!(range(0, 0, 1).is_valid());
        assert!(!range(0, 0, 0).is_valid());
        assert!(!range(1, 0, u32::MAX).is_valid());
        assert!(!range(0, u32::MAX, 2).is_valid());
    }
}
