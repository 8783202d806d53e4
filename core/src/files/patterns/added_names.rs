//! The patterns that a scan has added to those of the plan, as text for another process.

use std::fmt::Write as _;

use serde::Deserialize;

use super::{AddedPattern, NamePatterns, NamePatternsError, NameRule};
use crate::plan::wire::bytes::Text;
use crate::plan::wire::writer::{self, NonUtf8};

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddedNames {
    added: Vec<(AddedRule, Text, Text)>,
    /// Directories that are git's by their parts.
    git: Vec<Text>,
    /// Paths that git's own files name.
    named: Vec<Text>,
    /// Directories in which a repository outside of the trees has files.
    outer: Vec<Text>,
    /// Trees below a repository that can not be read.
    unread: Vec<Text>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum AddedRule {
    Deny,
    Protect,
    Opened,
    Link,
    Flag,
}

impl AddedRule {
    fn name(rule: NameRule) -> Option<&'static str> {
        match rule {
            NameRule::Deny => Some("deny"),
            NameRule::Protect => Some("protect"),
            NameRule::Opened => Some("opened"),
            NameRule::Link => Some("link"),
            NameRule::Flag => Some("flag"),
            NameRule::System => None,
        }
    }

    fn rule(self) -> NameRule {
        match self {
            AddedRule::Deny => NameRule::Deny,
            AddedRule::Protect => NameRule::Protect,
            AddedRule::Opened => NameRule::Opened,
            AddedRule::Link => NameRule::Link,
            AddedRule::Flag => NameRule::Flag,
        }
    }
}

impl AddedNames {
    /// Writes the additions as JSON.
    pub fn write(names: &NamePatterns, out: &mut String) {
        let text = |out: &mut String, bytes: &[u8]| writer::string(out, bytes, NonUtf8::Surrogate);
        let added = names.added().iter();
        let added = added.filter_map(|added| Some((AddedRule::name(added.rule)?, added)));
        out.push_str("{\"added\":");
        writer::list(out, added, |out, (kind, added)| {
            let _ = write!(out, "[\"{kind}\",");
            text(out, &added.path);
            out.push(',');
            text(out, &added.rest);
            out.push(']');
        });
        out.push_str(",\"git\":");
        writer::list(out, names.git.directories(), |out, path| text(out, path));
        out.push_str(",\"named\":");
        writer::list(out, names.git.named_paths(), |out, path| text(out, path));
        out.push_str(",\"outer\":");
        writer::list(out, names.git.outer.dirs(), |out, path| text(out, path));
        out.push_str(",\"unread\":");
        writer::list(out, names.git.outer.unread(), |out, path| text(out, path));
        out.push('}');
    }

    /// Adds them to the patterns of the same plan.
    pub fn apply(&self, names: &mut NamePatterns) -> Result<(), NamePatternsError> {
        for (kind, path, rest) in &self.added {
            let added = AddedPattern {
                rule: kind.rule(),
                path: path.as_bytes().into(),
                rest: rest.as_bytes().into(),
            };
            names.add(&added)?;
        }
        for path in &self.git {
            names.git.add(path.as_bytes());
        }
        for path in &self.named {
            names.git.add_named_path(path.as_bytes());
        }
        for path in &self.outer {
            names.git.outer.add_dir(path.as_bytes());
        }
        for path in &self.unread {
            names.git.outer.add_unread(path.as_bytes());
        }
        names.settle().map(drop)
    }
}
