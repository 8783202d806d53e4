//! The paths in a git index.
//!
//! `git checkout .` and `git restore .` write each entry that is missing in the work tree, and do
//! not check its path. An entry `.git/hooks/post-checkout` becomes a hook, and runs at once. So the
//! guard reads an index that a command leaves to its end. The format is that of git's
//! Documentation/gitformat-index, versions 2 to 4.

use std::collections::{BTreeSet, HashSet};

use sha1::Sha1;
use sha2::{Digest as _, Sha256};

const HEADER_BYTES: usize = 12;
/// Times, device, inode, mode, owner and size, before the object's hash.
const STAT_BYTES: usize = 40;
const MODE_OFFSET: usize = 24;
const SPARSE_DIRECTORY: u32 = 0o040_000;
const EXTENDED_FLAG: u16 = 0x4000;
const STAGE_MASK: u16 = 0x3000;
const NAME_LENGTH_MASK: u16 = 0x0fff;
/// No thread may start at this entry.
const NO_START: usize = usize::MAX;

/// Does the index have only paths of the work tree? `hash`: the bytes of an object's hash, which
/// the index does not tell. An index of an unknown format is not harmless.
pub fn is_harmless(index: &[u8], hash: usize) -> bool {
    has_plain_paths(index, hash) == Some(true)
}

/// None: the index does not have this format.
fn has_plain_paths(index: &[u8], hash: usize) -> Option<bool> {
    let body = index.get(..index.len().checked_sub(hash)?)?;
    let (end, entries) = entries_end(body, hash, &mut |_| {})?;
    Some(extensions_are_known(body, end, &entries.starts, hash)? && entries.are_plain)
}

/// One entry of an index.
struct IndexEntry<'i> {
    path: &'i [u8],
    mode: u32,
    /// The object's hash.
    id: &'i [u8],
    /// The side of a conflict.
    stage: u16,
}

/// A file that an index has, and another index has not, or with another content.
#[derive(Debug, PartialEq, Eq)]
pub struct ChangedEntry {
    pub path: Vec<u8>,
    pub mode: u32,
    pub id: Vec<u8>,
}

/// The entries of an index that another one has not. None: the index does not have this format.
pub fn changed_entries(before: &[u8], after: &[u8], hash: usize) -> Option<Vec<ChangedEntry>> {
    let key = |entry: &IndexEntry<'_>| {
        let (mode, stage) = (entry.mode.to_be_bytes(), entry.stage.to_be_bytes());
        [entry.path, b"\0", &mode, &stage, entry.id].concat()
    };
    let mut known = HashSet::new();
    // An entry that can not be read there counts as changed.
    let _ = see_entries(before, hash, &mut |entry| {
        known.insert(key(entry));
    });
    let mut changed = Vec::new();
    see_entries(after, hash, &mut |entry| {
        if !known.contains(&key(entry)) {
            let (path, id) = (entry.path.to_vec(), entry.id.to_vec());
            changed.push(ChangedEntry { path, mode: entry.mode, id });
        }
    })?;
    Some(changed)
}

/// The id that git gives to a file with this content.
pub fn blob_id(content: &[u8], hash: usize) -> Vec<u8> {
    let object = [format!("blob {}\0", content.len()).as_bytes(), content].concat();
    match hash {
        20 => Sha1::digest(&object).to_vec(),
        _ => Sha256::digest(&object).to_vec(),
    }
}

/// The entries of an index.
struct Entries {
    /// Where they start.
    starts: Vec<usize>,
    are_plain: bool,
}

/// Does the index have a path below a directory? None: the index does not have this format.
pub fn has_path_below(index: &[u8], hash: usize, dir: &[u8]) -> Option<bool> {
    let mut is_found = false;
    see_entries(index, hash, &mut |entry| {
        is_found |= entry.path.strip_prefix(dir).is_some_and(|rest| rest.starts_with(b"/"));
    })?;
    Some(is_found)
}

/// None: the index does not have this format, or it has entries in another file.
fn see_entries(index: &[u8], hash: usize, see: &mut dyn FnMut(&IndexEntry<'_>)) -> Option<()> {
    let body = index.get(..index.len().checked_sub(hash)?)?;
    let (end, entries) = entries_end(body, hash, see)?;
    extensions_are_known(body, end, &entries.starts, hash)?.then_some(())
}

/// The directories that have files. The top has an empty path. None: the index does not have this
/// format.
pub fn directories(index: &[u8], hash: usize) -> Option<BTreeSet<Vec<u8>>> {
    let mut found = BTreeSet::new();
    see_entries(index, hash, &mut |IndexEntry { path, .. }| {
        let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        for (end, _) in slashes.rev() {
            // Then those above it are known too.
            if !found.insert(path[..end].to_vec()) {
                return;
            }
        }
        found.insert(Vec::new());
    })?;
    Some(found)
}

/// Where the entries end. `see` gets each entry. None: the index does not have this format.
fn entries_end(
    body: &[u8],
    hash: usize,
    see: &mut dyn FnMut(&IndexEntry<'_>),
) -> Option<(usize, Entries)> {
    if body.get(..4)? != b"DIRC" {
        return None;
    }
    let version = number(body, 4)?;
    let count = number(body, 8)?;
    let mut at = HEADER_BYTES;
    let mut path = Vec::new();
    let mut plain = true;
    let mut starts = Vec::new();
    for _ in 0..count {
        let entry = body.get(at..)?;
        let mut start = at;
        let mode = number(entry, MODE_OFFSET)?;
        let flags = u16::from_be_bytes(
            entry.get(STAT_BYTES + hash..STAT_BYTES + hash + 2)?.try_into().ok()?,
        );
        let extended = flags & EXTENDED_FLAG != 0;
        let begin = STAT_BYTES + hash + if extended { 4 } else { 2 };
        let length = usize::from(flags & NAME_LENGTH_MASK);
        let (name, end) = match version {
            2 | 3 => {
                let name = terminated(entry.get(begin..)?)?;
                // The length of an entry is a multiple of eight, and at least one zero ends the
                // name.
                (name, (begin + name.len() + 8) & !7)
            }
            4 => {
                let (removed, from) = prefix(entry, begin)?;
                let name = terminated(entry.get(from..)?)?;
                path.truncate(path.len().checked_sub(removed)?);
                // A thread of git starts its block without the name before it. So it may start only
                // at an entry that keeps no letter of that name.
                start = if path.is_empty() { at } else { NO_START };
                (name, from + name.len() + 1)
            }
            _ => return None,
        };
        if version != 4 {
            path.clear();
        }
        path.extend_from_slice(name);
        // Git cuts a name at its length field, if it is set. Every entry has a name.
        if path.is_empty() || (path.len() != length && length != usize::from(NAME_LENGTH_MASK)) {
            return None;
        }
        let id = &entry[STAT_BYTES..STAT_BYTES + hash];
        see(&IndexEntry { path: &path, mode, id, stage: flags & STAGE_MASK });
        plain &= is_plain(&path, mode == SPARSE_DIRECTORY);
        starts.try_reserve(1).ok()?;
        starts.push(start);
        at += end;
    }
    (at <= body.len()).then_some((at, Entries { starts, are_plain: plain }))
}

/// The index without what git can find out again: it believes these extensions without a look at
/// the entries and the files. The id of a directory in `TREE` becomes a part of the next commit, and
/// `UNTR` and `FSMN` hide files. None: the index does not have this format.
pub fn without_caches(index: &[u8], hash: usize) -> Option<Vec<u8>> {
    let body = index.get(..index.len().checked_sub(hash)?)?;
    let (at, _) = entries_end(body, hash, &mut |_| {})?;
    let mut kept = Vec::new();
    kept.try_reserve(index.len()).ok()?;
    kept.extend_from_slice(&body[..at]);
    let mut at = at;
    while at < body.len() {
        let end = at.checked_add(8)?.checked_add(number(body, at + 4)? as usize)?;
        let extension = body.get(at..end)?;
        if !matches!(&extension[..4], b"TREE" | b"UNTR" | b"FSMN" | b"EOIE" | b"IEOT") {
            kept.extend_from_slice(extension);
        }
        at = end;
    }
    let sum = match hash {
        20 => Sha1::digest(&kept).to_vec(),
        _ => Sha256::digest(&kept).to_vec(),
    };
    kept.extend(sum);
    Some(kept)
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn terminated(bytes: &[u8]) -> Option<&[u8]> {
    Some(&bytes[..bytes.iter().position(|byte| *byte == 0)?])
}

/// The number of letters that are dropped from the previous path, and the start of the rest.
fn prefix(entry: &[u8], begin: usize) -> Option<(usize, usize)> {
    let mut at = begin;
    let mut byte = *entry.get(at)?;
    let mut value = usize::from(byte & 0x7f);
    while byte & 0x80 != 0 {
        at += 1;
        byte = *entry.get(at)?;
        value = value.checked_add(1)?.checked_mul(128)? | usize::from(byte & 0x7f);
    }
    Some((value, at + 1))
}

/// Are all extensions known, and does git find them and the entries where they are here? Git reads
/// with several threads from the offsets in `EOIE` and `IEOT`. None: the extensions do not end
/// where the body does. `starts`: where the entries start.
fn extensions_are_known(body: &[u8], end: usize, starts: &[usize], hash: usize) -> Option<bool> {
    let eoie = body.len().checked_sub(8 + 4 + hash).filter(|at| *at >= end);
    let ends_with_eoie = eoie.is_some_and(|at| {
        body[at..].starts_with(b"EOIE") && number(body, at + 4) == u32::try_from(4 + hash).ok()
    });
    let (mut at, mut known, mut has_eoie) = (end, true, false);
    while at < body.len() {
        let (name, size) = (body.get(at..at + 4)?, number(body, at + 4)? as usize);
        let from = at + 8;
        let content = body.get(from..from.checked_add(size)?)?;
        known &= match name {
            b"TREE" | b"REUC" | b"UNTR" | b"FSMN" | b"sdir" => true,
            b"EOIE" => {
                has_eoie = Some(at) == eoie;
                has_eoie && number(content, 0).is_some_and(|offset| offset as usize == end)
            }
            b"IEOT" => are_blocks(content, starts),
            // A split index (`link`) has its other entries in a file that is not read here.
            _ => false,
        };
        at = from + size;
    }
    Some(known && has_eoie == ends_with_eoie)
}

/// Version 1, then the offset and the number of entries of each block.
fn are_blocks(content: &[u8], starts: &[usize]) -> bool {
    let Some((version, blocks)) = content.split_first_chunk::<4>() else { return false };
    let mut next = 0;
    let fits = |block: &[u8]| match (number(block, 0), number(block, 4)) {
        (Some(offset), Some(count)) if count > 0 => {
            let is_there = starts.get(next) == Some(&(offset as usize));
            next += count as usize;
            is_there
        }
        _ => false,
    };
    *version == 1_u32.to_be_bytes() && blocks.chunks(8).all(fits) && next == starts.len()
}

/// As `verify_path` in git's read-cache.c, for every file system.
fn is_plain(path: &[u8], directory: bool) -> bool {
    let path = if directory { path.strip_suffix(b"/").unwrap_or(path) } else { path };
    path.split(|byte| *byte == b'/').all(|name| {
        !matches!(name, b"" | b"." | b"..")
            && !name.eq_ignore_ascii_case(b".git")
            && !name.eq_ignore_ascii_case(b"git~1")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH_BYTES: [usize; 2] = [20, 32];

    fn entry(version: u32, path: &str, hash: usize) -> Vec<u8> {
        let mut entry = vec![0; STAT_BYTES];
        entry.extend(vec![7; hash]);
        entry[MODE_OFFSET..MODE_OFFSET + 4].copy_from_slice(&0o100_644_u32.to_be_bytes());
        entry.extend(u16::try_from(path.len()).unwrap().to_be_bytes());
        if version == 4 {
            entry.push(0);
        }
        entry.extend(path.as_bytes());
        entry.push(0);
        while version != 4 && !entry.len().is_multiple_of(8) {
            entry.push(0);
        }
        entry
    }

    fn index(version: u32, path: &str, hash: usize, extension: &[u8]) -> Vec<u8> {
        let mut index = b"DIRC".to_vec();
        index.extend(version.to_be_bytes());
        index.extend(1_u32.to_be_bytes());
        index.extend(entry(version, path, hash));
        index.extend(extension);
        index.extend(vec![7; hash]);
        index
    }

    #[test]
    fn paths_of_the_work_tree_are_harmless() {
        for version in [2, 3, 4] {
            for hash in HASH_BYTES {
                for path in ["a", "a/b.c", "src/.gitignore", "..a", ".github/x", "a/git"] {
                    assert!(
                        is_harmless(&index(version, path, hash, b""), hash),
                        "{version} {hash} {path}"
                    );
                }
            }
        }
    }

    #[test]
    fn other_paths_are_not() {
        for version in [2, 3, 4] {
            for hash in HASH_BYTES {
                for path in [
                    ".git/hooks/x",
                    "a/.GIT/config",
                    "../x",
                    "/etc/x",
                    "a//b",
                    "a/",
                    "./a",
                    "git~1/config",
                ] {
                    assert!(
                        !is_harmless(&index(version, path, hash, b""), hash),
                        "{version} {hash} {path}"
                    );
                }
            }
        }
    }

    #[test]
    fn an_index_of_another_format_is_not_harmless() {
        let whole = index(2, "a", 20, b"");
        for end in 0..whole.len() - 1 {
            assert!(!is_harmless(&whole[..end], 20), "{end}");
        }
        assert!(!is_harmless(&index(2, "a", 20, b"link\0\0\0\0"), 20));
        assert!(is_harmless(&index(2, "a", 20, b"TREE\0\0\0\0"), 20));
        assert!(!is_harmless(&index(5, "a", 20, b""), 20));
        let mut cut = index(2, "a.git", 20, b"");
        cut[HEADER_BYTES + STAT_BYTES + 21] = 1;
        assert!(!is_harmless(&cut, 20), "git reads another name");
    }

    fn extension(name: &[u8], content: &[u8]) -> Vec<u8> {
        let size = u32::try_from(content.len()).unwrap().to_be_bytes();
        [name, &size[..], content].concat()
    }

    fn end_of_entries(offset: u32, hash: usize) -> Vec<u8> {
        extension(b"EOIE", &[&offset.to_be_bytes()[..], &vec![7; hash]].concat())
    }

    fn blocks(blocks: &[(u32, u32)]) -> Vec<u8> {
        let mut content = 1_u32.to_be_bytes().to_vec();
        for (offset, count) in blocks {
            content.extend([offset.to_be_bytes(), count.to_be_bytes()].concat());
        }
        extension(b"IEOT", &content)
    }

    #[test]
    fn git_finds_entries_and_extensions_where_they_are_here() {
        for (version, hash) in [(2, 20), (4, 20), (2, 32)] {
            let end = u32::try_from(HEADER_BYTES + entry(version, "a", hash).len()).unwrap();
            let judged = |extensions: &[Vec<u8>]| {
                is_harmless(&index(version, "a", hash, &extensions.concat()), hash)
            };
            let (tree, eoie) = (extension(b"TREE", b"x"), end_of_entries(end, hash));
            assert!(judged(&[blocks(&[(12, 1)]), tree.clone(), eoie.clone()]));
            assert!(judged(&[tree.clone(), extension(b"sdir", b"")]));
            // The end of the entries is elsewhere, or git does not see the extension there.
            let behind_tree = end_of_entries(end + u32::try_from(tree.len()).unwrap(), hash);
            assert!(!judged(&[tree.clone(), behind_tree]));
            assert!(!judged(&[eoie.clone(), tree.clone()]));
            // Git starts inside of what is one extension here.
            let hidden = [extension(b"link", b"x"), end_of_entries(end + 8, hash)].concat();
            assert!(!judged(&[extension(b"TREE", &hidden)]));
            for wrong in [&[][..], &[(13, 1)], &[(12, 2)], &[(12, 1), (12, 1)], &[(12, 0)]] {
                assert!(!judged(&[blocks(wrong), eoie.clone()]), "{wrong:?}");
            }
            assert!(!judged(&[extension(b"ZZZZ", b"")]) && !judged(&[b"TREE\0\0\0\x09x".to_vec()]));
        }
    }

    #[test]
    fn an_entry_that_ends_behind_the_index_is_refused() {
        let whole = index(2, "ab", 20, b"");
        let cut = [&whole[..HEADER_BYTES + STAT_BYTES + 20 + 2 + 3], &[7; 20]].concat();
        assert!(!is_harmless(&cut, 20));
        assert_eq!(without_caches(&cut, 20), None);
    }

    #[test]
    fn paths_below_a_directory_are_found() {
        let index = index(2, "src/a.c", 20, b"");
        for (dir, expected) in [("src", true), ("sr", false), ("src/a.c", false), ("x", false)] {
            assert_eq!(has_path_below(&index, 20, dir.as_bytes()), Some(expected), "{dir}");
        }
        assert_eq!(has_path_below(b"DIRC", 20, b"src"), None);
    }

    #[test]
    fn directories_with_files_are_found() {
        let found = |index: &[u8]| directories(index, 20).map(|dirs| dirs.into_iter().collect());
        let dirs: Vec<Vec<u8>> = ["", "a", "a/b"].map(Into::into).to_vec();
        assert_eq!(found(&index(2, "a/b/c", 20, b"")), Some(dirs));
        assert_eq!(found(&index(2, "c", 20, b"")), Some(vec![Vec::new()]));
        // The other entries are in another file.
        assert_eq!(found(&index(2, "c", 20, b"link\0\0\0\0")), None);
    }

    #[test]
    fn changed_entries_are_found() {
        for version in [2, 4] {
            let before = index(version, "a", 20, b"");
            assert_eq!(changed_entries(&before, &before, 20), Some(vec![]));
            let mut other = before.clone();
            other[HEADER_BYTES + STAT_BYTES] = 9;
            let mut stage = before.clone();
            stage[HEADER_BYTES + STAT_BYTES + 20] = 0x10;
            for after in [other, stage, index(version, "b", 20, b"")] {
                assert_eq!(changed_entries(&before, &after, 20).unwrap().len(), 1);
                assert_eq!(changed_entries(b"", &after, 20).unwrap().len(), 1);
            }
            assert_eq!(changed_entries(&before, b"DIRC", 20), None);
        }
        let id = blob_id(b"1\n", 20);
        assert_eq!(id[..4], [0xd0, 0x04, 0x91, 0xfd], "git hash-object");
    }

    #[test]
    fn caches_are_left_out_and_the_rest_stays() {
        for hash in HASH_BYTES {
            let (tree, undo) = (extension(b"TREE", b"x"), extension(b"REUC", b"y"));
            let end = end_of_entries(0, hash);
            let whole = index(2, "a", hash, &[tree, undo.clone(), end].concat());
            let without = without_caches(&whole, hash).unwrap();
            let plain = index(2, "a", hash, &undo);
            assert_eq!(without[..without.len() - hash], plain[..plain.len() - hash]);
            assert!(is_harmless(&without, hash));
            assert_eq!(without_caches(&without, hash), Some(without.clone()));
            assert_eq!(without_caches(&whole[..20], hash), None);
        }
    }

    #[test]
    fn an_index_is_read_with_the_hash_of_its_repository() {
        // With 32 bytes the flags are letters of this path, and the rest is the path.
        let path = format!("../aaaaaaa0 {}", "b".repeat(32));
        let two = index(2, &path, 20, b"AAAA\0\0\0\x64xxxx");
        assert!(is_harmless(&two, 32), "the control");
        assert!(!is_harmless(&two, 20));
    }
}
