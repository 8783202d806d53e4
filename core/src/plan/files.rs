//! The files that the command may use, as the plan lists them.

use std::fmt;
use std::ops::Deref;
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;
use std::rc::Rc;

use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};

use super::deserializers::present;
use super::wire::bytes::{AbsPath, Text};

/// The files that the command may use, in both tiers.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FilesPlan {
    #[serde(deserialize_with = "grants")]
    pub grants: Vec<Grant>,
    /// Paths that no grant may open, and paths that no grant may make writable, after following
    /// symlinks. The excepts of the grants say the same for the names as written.
    pub closed: Vec<AbsPath>,
    pub unwritable: Vec<AbsPath>,
    /// Directories that sandboxed commands of this user could ever write. No grant follows a
    /// symlink that lies there.
    #[serde(rename = "reached")]
    pub previously_writable: Vec<PreviouslyWritable>,
    /// Patterns of names that mounts enforce: unreadable names, names that are read-only in
    /// writable trees, and exceptions from those.
    pub deny: Vec<Text>,
    pub deny_names: Vec<ProtectedNames>,
    pub protect: Vec<ProtectedNames>,
    pub opened: Vec<Text>,
    /// Patterns of writable names that are executed outside of the sandbox later, and directories
    /// in which such names are harmless.
    pub flagged: Vec<Text>,
    pub packages: Vec<Text>,
    /// Remotes with a URL in the user's own git configuration.
    pub git_remotes: Vec<Text>,
}

/// Names that are protected, or denied, in the same directories. Each directory is the start of a
/// pattern, each name the rest.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProtectedNames {
    pub below: Vec<Text>,
    /// Exceptions below these directories.
    pub but: Vec<Text>,
    pub names: Vec<Text>,
}

impl FilesPlan {
    /// The names that are denied in certain directories, as whole patterns.
    pub fn denied_names(&self) -> impl Iterator<Item = Vec<u8>> {
        self.deny_names.iter().flat_map(|group| group.patterns(&group.below))
    }

    /// The protected names, as whole patterns.
    pub fn protected(&self) -> impl Iterator<Item = Vec<u8>> {
        self.protect.iter().flat_map(|group| group.patterns(&group.below))
    }

    /// The exceptions from the protected names.
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
    /// Device and inode, if the directory existed. They identify it after a rename.
    #[serde(deserialize_with = "present")]
    pub identity: Option<(u64, u64)>,
    /// Its birth time: the file system gives an inode number again. None: unknown.
    #[serde(deserialize_with = "present")]
    pub born_ns: Option<i64>,
}

#[derive(Debug)]
pub struct Grant {
    pub path: AbsPath,
    line: Option<u32>,
    shared: Rc<GrantGroup>,
}

/// What several grants have in common. They differ only in path and line; a profile has a hundred
/// of them.
#[derive(Debug)]
pub struct GrantGroup {
    pub access: Text,
    pub except: Vec<AbsPath>,
    pub optional: bool,
    /// The policy file that lists them.
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

    /// True if both grants differ only in path and line.
    pub fn differs_only_in_path(&self, other: &Grant) -> bool {
        Rc::ptr_eq(&self.shared, &other.shared)
    }

    /// True if files can be changed through this grant. Otherwise its mount is read-only.
    pub fn writes(&self) -> bool {
        [&b"allow"[..], b"write"].iter().any(|kind| self.access.as_bytes().starts_with(kind))
    }

    /// True if files can be executed through this grant. Otherwise its mount is noexec. Only
    /// Landlock distinguishes the remaining rights.
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
        // A profile has about this many. A growing list would be copied again and again, because
        // other values are allocated in between.
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

/// Paths that the full tier creates itself, independent of the host.
pub fn is_private_path(path: &AbsPath) -> bool {
    let within = |tree: &[u8]| {
        path.as_bytes()
            .strip_prefix(tree)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
    };
    path.as_bytes() == b"/tmp" || within(b"/proc") || within(b"/dev")
}

/// The parent of private temporary directories.
pub const TEMP_PARENT: &str = "/tmp";

/// The prefix of the names of this user's private temporary directories.
pub fn temp_name_prefix(uid: u32) -> String {
    format!("paddock-{uid}-")
}

/// The prefix of their paths.
pub fn temp_path_prefix(parent: &Path, uid: u32) -> Vec<u8> {
    parent.join(temp_name_prefix(uid)).into_os_string().into_vec()
}
