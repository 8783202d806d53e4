//! Flagged names that the command has changed. It may write them, and programs outside run them
//! later, so the run lists them at its end.

use std::collections::HashSet;
use std::ffi::CStr;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, FileType};

use super::Writer;
use crate::files::symlink;
use crate::kernel::seccomp_notify::MAX_PATH_BYTES;
use crate::plan::wire::bytes::{AbsPath, Text};

/// So many changed names are listed that existed before the run, and as many new ones. So new names
/// never push an old one out of the list.
pub const MAX_CHANGED_NAMES: usize = 8192;

/// A flagged name that the command has made, written, replaced or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedName {
    /// Empty: there are more changed names than are listed.
    pub path: Vec<u8>,
    /// It existed before its first change in this run.
    pub existed: bool,
}

impl ChangedName {
    /// As a message to the supervisor.
    pub fn bytes(&self) -> Vec<u8> {
        [&[b'F', u8::from(self.existed)], &self.path[..]].concat()
    }

    /// None: the message is another one.
    pub fn parse(bytes: &[u8]) -> Option<ChangedName> {
        let [b'F', existed, path @ ..] = bytes else { return None };
        Some(ChangedName { path: path.to_vec(), existed: *existed != 0 })
    }
}

/// The changed names of a run, each once.
#[derive(Default)]
pub struct ChangedNames {
    known: HashSet<Vec<u8>>,
    new: usize,
    is_full: bool,
    /// Those that the supervisor does not know yet.
    unsent: Vec<ChangedName>,
}

impl ChangedNames {
    fn add(&mut self, path: Vec<u8>, existed: bool) {
        if self.known.contains(&path) {
            return;
        }
        let count = if existed { self.known.len() - self.new } else { self.new };
        if count == MAX_CHANGED_NAMES || path.len() > MAX_PATH_BYTES {
            if !self.is_full {
                self.unsent.push(ChangedName { path: Vec::new(), existed });
            }
            self.is_full = true;
            return;
        }
        self.new += usize::from(!existed);
        self.known.insert(path.clone());
        self.unsent.push(ChangedName { path, existed });
    }

    pub fn take_unsent(&mut self) -> Vec<ChangedName> {
        std::mem::take(&mut self.unsent)
    }
}

impl Writer {
    /// Notes the change of a file at a path.
    pub(super) fn note_path(&mut self, path: Vec<u8>, existed: bool) {
        if self.judge.is_flagged(&path) {
            self.changed.add(path, existed);
        }
    }

    /// Notes the change of an object of this type at a path.
    pub(super) fn note_object(&mut self, path: Vec<u8>, file_type: FileType, existed: bool) {
        if !self.judge.flags_names() || file_type == FileType::Directory {
            return;
        }
        if file_type == FileType::Symlink && self.leads_to_packages(&path) {
            self.changed.add(path, existed);
        } else {
            self.note_path(path, existed);
        }
    }

    /// Notes a name that was moved, and everything below it. `replaced`: the new name existed.
    pub(super) fn note_moved(
        &mut self,
        old: Vec<u8>,
        new: Vec<u8>,
        file_type: FileType,
        replaced: bool,
    ) {
        self.note_object(old, file_type, true);
        self.note_object(new, file_type, replaced);
        let mut moved = self.judge.take_moved();
        // In an exchange a name is both: one that was there, and one that comes.
        moved.sort_by_key(|name| !name.existed);
        for ChangedName { path, existed } in moved {
            self.changed.add(path, existed);
        }
        for link in self.judge.take_moved_links() {
            if self.leads_to_packages(&link) {
                self.changed.add(link, false);
            }
        }
    }

    /// Does a symlink lead into a directory of installed packages? Names there are not protected and
    /// changes are not listed, so the link itself is. What it leads to can become a directory later.
    fn leads_to_packages(&self, link: &[u8]) -> bool {
        let Ok(path) = Text::from_bytes(link.to_vec()).and_then(AbsPath::new) else { return false };
        let Ok(Some(followed)) = symlink::leads_to(&path) else { return false };
        let end = followed.end.as_bytes();
        self.judge.is_shipped(end) && !self.judge.is_shipped(link)
    }
}

/// Does a name in an open directory exist?
pub(super) fn exists(dir: &OwnedFd, name: &CStr) -> bool {
    rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_name_arrives_as_it_was_sent() {
        for existed in [false, true] {
            let changed = ChangedName { path: b"/w/\xff/Makefile".to_vec(), existed };
            assert_eq!(ChangedName::parse(&changed.bytes()), Some(changed));
        }
        assert_eq!(ChangedName::parse(b"R"), None);
    }

    #[test]
    fn new_names_do_not_push_out_an_old_one() {
        let mut changed = ChangedNames::default();
        for number in 0..MAX_CHANGED_NAMES + 5 {
            changed.add(format!("/w/{number}/Makefile").into_bytes(), false);
        }
        changed.add(b"/w/Makefile".to_vec(), true);
        changed.add(b"/w/Makefile".to_vec(), false);
        let sent = changed.take_unsent();
        assert_eq!(sent.len(), MAX_CHANGED_NAMES + 2);
        assert!(sent[MAX_CHANGED_NAMES].path.is_empty(), "the limit is reported once");
        assert_eq!(
            sent.last(),
            Some(&ChangedName { path: b"/w/Makefile".to_vec(), existed: true })
        );
        assert!(changed.take_unsent().is_empty());
    }
}
