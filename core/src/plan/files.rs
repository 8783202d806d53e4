//! What the command may reach, as the plan lists it.

use std::fmt;
use std::ops::Deref;
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;
use std::rc::Rc;

use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};

use super::values::present;
use super::wire::bytes::{AbsPath, Text};

/// What the command may reach, whatever holds it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FilesPlan {
    #[serde(deserialize_with = "grants")]
    pub grants: Vec<Grant>,
    /// Places that no grant may open, and places that none may make writable, by whatever name it
    /// gets there. The excepts of the grants say the same of the names as they are written; these
    /// count where symlinks are on the way.
    pub closed: Vec<AbsPath>,
    pub unwritable: Vec<AbsPath>,
    /// Where fenced commands of this user could ever write: no grant follows a link that stands
    /// there.
    #[serde(rename = "reached")]
    pub previously_writable: Vec<PreviouslyWritable>,
    /// Patterns of names, held by mounts: closed wherever they are, read-only in what can be
    /// written, and exceptions from that.
    pub deny: Vec<Text>,
    pub deny_names: Vec<ProtectedNames>,
    pub protect: Vec<ProtectedNames>,
    pub opened: Vec<Text>,
    /// Patterns of names that may be written and are executed outside later, and directories below
    /// which nobody does that.
    pub flagged: Vec<Text>,
    pub packages: Vec<Text>,
}

/// Names that are protected, or denied, in the same places. Each place is the beginning of a
/// pattern, each name the rest of one.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProtectedNames {
    pub below: Vec<Text>,
    /// Where they are not, although it lies below.
    pub but: Vec<Text>,
    pub names: Vec<Text>,
}

impl FilesPlan {
    /// What is denied by name in certain places, as whole patterns.
    pub fn denied_names(&self) -> impl Iterator<Item = Vec<u8>> {
        self.deny_names.iter().flat_map(|group| group.patterns(&group.below))
    }

    /// What is protected, as whole patterns.
    pub fn protected(&self) -> impl Iterator<Item = Vec<u8>> {
        self.protect.iter().flat_map(|group| group.patterns(&group.below))
    }

    /// What is excepted from that.
    pub fn excepted(&self) -> impl Iterator<Item = Vec<u8>> {
        let own = self.opened.iter().map(|pattern| pattern.as_bytes().to_vec());
        own.chain(self.protect.iter().flat_map(|group| group.patterns(&group.but)))
    }
}

impl ProtectedNames {
    fn patterns(&self, beginnings: &[Text]) -> impl Iterator<Item = Vec<u8>> {
        let whole = |beginning: &Text, name: &Text| {
            let beginning = beginning.as_bytes().strip_suffix(b"/").unwrap_or(beginning.as_bytes());
            [beginning, b"/", name.as_bytes()].concat()
        };
        beginnings
            .iter()
            .flat_map(move |beginning| self.names.iter().map(move |name| whole(beginning, name)))
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PreviouslyWritable {
    pub path: AbsPath,
    /// Device and inode, if something was there: the place stays known when its owner renames it.
    #[serde(deserialize_with = "present")]
    pub identity: Option<(u64, u64)>,
}

#[derive(Debug)]
pub struct Grant {
    pub path: AbsPath,
    line: Option<u32>,
    shared: Rc<GrantGroup>,
}

/// Grants that differ in nothing but their path and line: a profile has a hundred of them.
#[derive(Debug)]
pub struct GrantGroup {
    pub access: Text,
    pub except: Vec<AbsPath>,
    pub optional: bool,
    /// The file in which they were asked for.
    source: Text,
}

impl Deref for Grant {
    type Target = GrantGroup;

    fn deref(&self) -> &GrantGroup {
        &self.shared
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GrantList {
    access: Text,
    except: Vec<AbsPath>,
    optional: bool,
    paths: Vec<(AbsPath, Option<u32>)>,
    source: Text,
}

impl GrantList {
    fn into_grants(self) -> impl Iterator<Item = Grant> {
        let GrantList { access, except, optional, paths, source } = self;
        let shared = Rc::new(GrantGroup { access, except, optional, source });
        paths.into_iter().map(move |(path, line)| Grant { path, line, shared: Rc::clone(&shared) })
    }
}

impl Grant {
    pub fn source(&self) -> Text {
        let file = &self.shared.source;
        let Some(line) = self.line else { return file.clone() };
        let whole = [file.as_bytes(), b":", line.to_string().as_bytes()].concat();
        Text::from_bytes(whole).unwrap_or_else(|_| file.clone())
    }

    /// In all but its path and line.
    pub fn differs_only_in_path(&self, other: &Grant) -> bool {
        Rc::ptr_eq(&self.shared, &other.shared)
    }

    /// Can something be changed through it? Its mount is read-only otherwise.
    pub fn writes(&self) -> bool {
        [&b"allow"[..], b"write"].iter().any(|kind| self.access.as_bytes().starts_with(kind))
    }

    /// Can something be executed through it? Its mount is noexec otherwise. Of the others Landlock
    /// alone tells them apart.
    pub fn executes(&self) -> bool {
        !self.access.as_bytes().ends_with(b"-noexec")
    }
}

struct GrantsVisitor;

impl<'de> Visitor<'de> for GrantsVisitor {
    type Value = Vec<Grant>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of grants")
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<Self::Value, S::Error> {
        // As many as a profile has. A list that grows while other things are allocated is copied
        // again and again.
        let mut grants = Vec::with_capacity(128);
        while let Some(granted) = list.next_element::<GrantList>()? {
            grants.extend(granted.into_grants());
        }
        Ok(grants)
    }
}

fn grants<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Grant>, D::Error> {
    deserializer.deserialize_seq(GrantsVisitor)
}

/// Places that the full tier makes anew, whatever the host has there.
pub fn is_private_path(path: &AbsPath) -> bool {
    let within = |tree: &[u8]| {
        path.as_bytes()
            .strip_prefix(tree)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
    };
    path.as_bytes() == b"/tmp" || within(b"/proc") || within(b"/dev")
}

/// Where plans put private temporary directories.
pub const TEMP_PARENT: &str = "/tmp";

/// How the names of this user's private temporary directories begin.
pub fn temp_name_prefix(uid: u32) -> String {
    format!("paddock-{uid}-")
}

/// How their paths begin.
pub fn temp_path_prefix(parent: &Path, uid: u32) -> Vec<u8> {
    parent.join(temp_name_prefix(uid)).into_os_string().into_vec()
}
