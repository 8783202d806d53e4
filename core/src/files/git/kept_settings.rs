//! Settings that a command must keep in a configuration from before the run. They say where a push
//! or a fetch goes: remotes, the remotes of branches, and URLs of submodules.
//!
//! All settings that are not harmless by themselves are kept too, in their order. So a
//! configuration with an alias or a hooks directory of the user can get a new user name.

use std::collections::{BTreeMap, BTreeSet};

use super::harmless_settings::{self, ConfigSection};
use crate::plan::wire::bytes::Text;

/// Which file a configuration is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigFile {
    Repository,
    /// `config.worktree`: git reads it after the repository's, and its values are added or win.
    WorkTree,
}

/// Section, subsection and key.
type Name = (Vec<u8>, Option<Vec<u8>>, Vec<u8>);

/// The settings that count here, each with its values in their order.
#[derive(Debug, Default)]
struct Settings {
    values: BTreeMap<Name, Vec<Option<Vec<u8>>>>,
    includes: bool,
}

impl Settings {
    fn of(text: &[u8]) -> Option<Settings> {
        if harmless_settings::has_control_characters(text) {
            return None;
        }
        let mut found = Settings::default();
        let parsed = harmless_settings::each(text, &mut |section, key, value| {
            found.includes |= matches!(&section.name[..], b"include" | b"includeif");
            if is_kept(section, key) {
                let name = (section.name.clone(), section.subsection.clone(), key.to_vec());
                found.values.entry(name).or_default().push(value.map(<[u8]>::to_vec));
            }
        });
        parsed.ok().map(|()| found)
    }

    fn remotes(&self) -> BTreeSet<&[u8]> {
        let names = self.values.keys().filter(|(section, ..)| section == b"remote");
        names.filter_map(|(_, remote, _)| remote.as_deref()).collect()
    }

    /// The remotes that branches and `remote.pushDefault` name.
    fn named_remotes(&self) -> impl Iterator<Item = &[u8]> {
        let names = self.values.iter().filter(|((section, subsection, _), _)| {
            section == b"branch" || (section == b"remote" && subsection.is_none())
        });
        names.flat_map(|(_, values)| values.iter().flatten()).map(|value| &value[..])
    }
}

/// Git uses `tagOpt` only to choose tags.
fn is_kept(section: &ConfigSection, key: &[u8]) -> bool {
    match (&section.name[..], &section.subsection) {
        (b"remote", _) => key != b"tagopt",
        (b"branch", Some(_)) => matches!(key, b"remote" | b"pushremote"),
        (b"submodule", Some(_)) => key == b"url",
        // They say how git reads what is there already.
        (b"extensions", None) => matches!(key, b"objectformat" | b"refstorage"),
        _ => false,
    }
}

/// The first setting that leads a push or a fetch elsewhere with the text `after`. An empty name: one
/// of the texts can not be parsed. `before` is the text from before the run. `has_branch`: does a
/// branch of this name exist?
pub fn first_redirected(
    file: ConfigFile,
    before: &[u8],
    after: &[u8],
    has_branch: &mut dyn FnMut(&[u8]) -> bool,
) -> Option<Vec<u8>> {
    let (Some(before), Some(after)) = (Settings::of(before), Settings::of(after)) else {
        return Some(Vec::new());
    };
    let changed = before.values.iter().find(|(name, values)| match after.values.get(*name) {
        Some(later) => later != *values,
        None => match name {
            // `git branch -d` removes the branch first. The command could make the branch again, so
            // git must then push to the same remote: `origin` is its default.
            (section, Some(branch), _)
                if section == b"branch" && file == ConfigFile::Repository =>
            {
                values.iter().any(|value| value.as_deref() != Some(b"origin")) || has_branch(branch)
            }
            _ => true,
        },
    });
    let is_free = |(name, values): &(&Name, &Vec<Option<Vec<u8>>>)| {
        before.values.contains_key(*name)
            || (file == ConfigFile::Repository && may_be_added(&before, name, values))
    };
    let added = || after.values.iter().find(|setting| !is_free(setting));
    changed.or_else(added).map(|(name, _)| shown(name))
}

/// The first setting of one of these remotes that the text `after` has and `before` has not. The
/// user's own configuration has the remotes, and git adds the values of a repository to its values.
/// A text that can not be parsed is refused elsewhere.
pub fn first_added_to(remotes: &[Text], before: &[u8], after: &[u8]) -> Option<Vec<u8>> {
    if remotes.is_empty() {
        return None;
    }
    let before = Settings::of(before).unwrap_or_default();
    let is_added = |(section, subsection, _): &Name| {
        let is_known = |name: &[u8]| remotes.iter().any(|remote| remote.as_bytes() == name);
        section == b"remote" && subsection.as_deref().is_some_and(is_known)
    };
    let added = |name: &&Name| is_added(name) && !before.values.contains_key(*name);
    Settings::of(after)?.values.keys().find(added).map(shown)
}

/// May this setting be in a configuration that did not have it before?
fn may_be_added(before: &Settings, name: &Name, values: &[Option<Vec<u8>>]) -> bool {
    let remotes = before.remotes();
    match name {
        (section, Some(remote), _) if section == b"remote" => {
            // A branch can name a remote that another file has, or a path.
            let is_used = before.named_remotes().any(|named| named == remote);
            // Git pushes to `origin` where nothing names a remote.
            let is_default = remote == b"origin" && (!remotes.is_empty() || before.includes);
            !remotes.contains(&remote[..]) && !is_used && !is_default
        }
        (section, Some(_), _) if section == b"branch" => values.iter().all(|value| match value {
            Some(value) => value == b"." || remotes.contains(&value[..]),
            None => false,
        }),
        (section, Some(_), _) => section == b"submodule",
        (_, None, _) => false,
    }
}

/// As git spells it on its command line.
fn shown((section, subsection, key): &Name) -> Vec<u8> {
    match subsection {
        Some(subsection) => [section, &b"."[..], subsection, b".", key].concat(),
        None => [section, &b"."[..], key].concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "[core]\n\tbare = false\n[remote \"origin\"]\n\turl = https://a/x\n\
        \turl = https://b/x\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n\
        [remote \"fork\"]\n\turl = https://f/x\n[branch \"main\"]\n\tremote = origin\n\
        \tmerge = refs/heads/main\n[submodule \"s\"]\n\turl = https://s/x\n";

    fn redirected(file: ConfigFile, before: &str, after: &str) -> Option<String> {
        let has_branch = &mut |name: &[u8]| name == b"main";
        first_redirected(file, before.as_bytes(), after.as_bytes(), has_branch)
            .map(|name| String::from_utf8(name).unwrap())
    }

    fn in_config(after: &str) -> Option<String> {
        redirected(ConfigFile::Repository, BEFORE, after)
    }

    #[test]
    fn known_destinations_stay_as_they_are() {
        for (old, new, setting) in [
            ("https://a/x", "https://evil/x", "remote.origin.url"),
            ("url = https://a/x\n\turl = https://b/x", "url = https://a/x", "remote.origin.url"),
            (
                "url = https://a/x\n\turl = https://b/x",
                "url = https://b/x\n\turl = https://a/x",
                "remote.origin.url",
            ),
            ("+refs/heads/*:", "+refs/heads/main:", "remote.origin.fetch"),
            ("[remote \"fork\"]", "[remote \"other\"]", "remote.fork.url"),
            ("[remote \"fork\"]\n\turl = https://f/x\n", "", "remote.fork.url"),
            ("remote = origin", "remote = fork", "branch.main.remote"),
            ("\tremote = origin\n", "", "branch.main.remote"),
            ("https://s/x", "https://evil/x", "submodule.s.url"),
            ("[submodule \"s\"]\n\turl = https://s/x\n", "", "submodule.s.url"),
        ] {
            let after = BEFORE.replace(old, new);
            assert_ne!(after, BEFORE, "{old}");
            assert_eq!(in_config(&after).as_deref(), Some(setting), "{old} {new}");
        }
    }

    #[test]
    fn no_spelling_adds_to_a_known_destination() {
        for (added, setting) in [
            ("[Remote \"origin\"]\nURL = https://evil\n", "remote.origin.url"),
            ("[remote.origin] url = https://evil\n", "remote.origin.url"),
            ("[REMOTE.Origin]\nuRl = https://evil\n", "remote.origin.url"),
            ("[remote \"orig\\in\"]\nurl = https://evil\n", "remote.origin.url"),
            ("[remote \"origin\"]\nurl = https://\\\nevil\n", "remote.origin.url"),
            ("[remote \"origin\"]\npushurl = https://evil\n", "remote.origin.pushurl"),
            ("[remote \"origin\"]\npush = refs/heads/x\n", "remote.origin.push"),
            ("[remote \"origin\"]\nmirror\n", "remote.origin.mirror"),
            ("[remote]\npushDefault = fork\n", "remote.pushdefault"),
            ("[branch \"main\"]\nremote = fork\n", "branch.main.remote"),
            ("[branch \"main\"]\npushRemote = evil\n", "branch.main.pushremote"),
            ("[branch \"new\"]\nremote = evil\n", "branch.new.remote"),
            ("[branch \"new\"]\nremote\n", "branch.new.remote"),
            ("[branch \"new\"]\nremote = fork\nremote = https://evil\n", "branch.new.remote"),
            (
                "[remote \"evil\"]\nurl = https://evil\n[branch \"new\"]\nremote = evil\n",
                "branch.new.remote",
            ),
            ("[submodule \"s\"]\nurl = https://evil\n", "submodule.s.url"),
        ] {
            let after = format!("{BEFORE}{added}");
            assert_eq!(in_config(&after).as_deref(), Some(setting), "{added}");
        }
        for added in
            ["[extensions]\nrefStorage = reftable\n", "[extensions]\nobjectFormat = sha1\n"]
        {
            assert!(in_config(&format!("{BEFORE}{added}")).is_some(), "{added}");
        }
        for blank in ['\x0b', '\x0c', '\x01', '\x7f'] {
            let after = BEFORE.replace("remote = origin", &format!("remote = origin{blank}"));
            assert!(in_config(&after).is_some(), "git takes it for a letter: {blank:?}");
        }
        assert!(in_config("[core\n").is_some());
        assert!(in_config("").is_some());
    }

    #[test]
    fn new_remotes_and_branches_are_free() {
        for after in [
            BEFORE.to_owned(),
            BEFORE.replace("bare = false", "bare = false\n\tfilemode = true"),
            BEFORE.replace("refs/heads/main\n", "refs/heads/other\n"),
            format!("{BEFORE}[remote \"new\"]\n\turl = https://n\n\tfetch = +refs/heads/*:x\n"),
            format!("{BEFORE}[remote \"Origin\"]\n\turl = https://n\n"),
            format!("{BEFORE}[remote \"origin\"]\n\ttagOpt = --no-tags\n"),
            format!("{BEFORE}[branch \"x\"]\n\tremote = fork\n\tmerge = refs/heads/x\n"),
            format!("{BEFORE}[branch \"x\"]\n\tremote = .\n\tpushRemote = origin\n"),
            format!("{BEFORE}[submodule \"t\"]\n\turl = https://t\n\tactive = true\n"),
        ] {
            assert_eq!(in_config(&after), None, "{after}");
        }
        for (remote, setting) in [("origin", None), ("fork", Some("branch.gone.remote"))] {
            let removed = format!("{BEFORE}[branch \"gone\"]\n\tremote = {remote}\n");
            let found = redirected(ConfigFile::Repository, &removed, BEFORE);
            assert_eq!(found.as_deref(), setting, "git would push to origin");
        }
    }

    #[test]
    fn a_remote_that_git_uses_already_is_not_new() {
        let origin = "[remote \"origin\"]\nurl = https://evil\n";
        for (before, is_free) in [
            ("", true),
            ("[remote \"upstream\"]\nurl = https://a\n", false),
            ("[include]\npath = x\n", false),
            ("[branch \"main\"]\nremote = origin\n", false),
            ("[remote]\npushDefault = origin\n", false),
        ] {
            let after = format!("{before}{origin}");
            let found = redirected(ConfigFile::Repository, before, &after);
            assert_eq!(found.is_none(), is_free, "{before}");
        }
        let path = "[branch \"main\"]\nremote = ../x\n";
        let after = format!("{path}[remote \"../x\"]\nurl = https://evil\n");
        assert!(redirected(ConfigFile::Repository, path, &after).is_some());
    }

    #[test]
    fn a_remote_of_the_user_gets_no_setting_in_a_repository() {
        let remotes = [Text::from_bytes(b"backup".to_vec()).unwrap()];
        let added = |before: &str, after: &str| {
            first_added_to(&remotes, before.as_bytes(), after.as_bytes())
                .map(|name| String::from_utf8(name).unwrap())
        };
        let own = "[remote \"backup\"]\n\tfetch = +refs/heads/*:refs/remotes/backup/*\n";
        let url = "[Remote \"backup\"]\n\turl = https://evil\n";
        assert_eq!(added("", url).as_deref(), Some("remote.backup.url"));
        assert_eq!(added(own, &format!("{own}{url}")).as_deref(), Some("remote.backup.url"));
        assert_eq!(added("", own).as_deref(), Some("remote.backup.fetch"));
        for (before, after) in
            [(url, url), (own, ""), ("", "[remote \"other\"]\nurl = https://x\n")]
        {
            assert_eq!(added(before, after), None, "{after}");
        }
        assert_eq!(first_added_to(&[], b"", url.as_bytes()), None);
    }

    #[test]
    fn the_configuration_of_a_work_tree_gets_no_destination() {
        let sparse = "[core]\n\tsparseCheckout = true\n";
        assert_eq!(redirected(ConfigFile::WorkTree, "", sparse), None);
        for added in [
            "[remote \"new\"]\nurl = https://n\n",
            "[branch \"new\"]\nremote = .\n",
            "[submodule \"t\"]\nurl = https://t\n",
        ] {
            let after = format!("{sparse}{added}");
            assert!(redirected(ConfigFile::WorkTree, sparse, &after).is_some(), "{added}");
            assert_eq!(redirected(ConfigFile::WorkTree, &after, &after), None, "{added}");
            assert!(redirected(ConfigFile::WorkTree, &after, sparse).is_some(), "{added}");
        }
    }
}
