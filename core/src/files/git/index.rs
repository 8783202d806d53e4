//! The paths in a git index.
//!
//! `git checkout .` and `git restore .` write each entry that is missing in the work tree, and do
//! not check its path. An entry `.git/hooks/post-checkout` becomes a hook, and runs at once. So the
//! guard reads an index that a command leaves to its end. The format is that of git's
//! Documentation/gitformat-index, versions 2 to 4.

const HEADER_BYTES: usize = 12;
/// Times, device, inode, mode, owner and size, before the object's hash.
const STAT_BYTES: usize = 40;
const MODE_OFFSET: usize = 24;
const SPARSE_DIRECTORY: u32 = 0o040_000;
const EXTENDED_FLAG: u16 = 0x4000;
const NAME_LENGTH_MASK: u16 = 0x0fff;
/// SHA-1 and SHA-256. The index does not say which; the configuration does.
const HASH_BYTES: [usize; 2] = [20, 32];

/// Does the index have only paths of the work tree? An index of an unknown format is not harmless.
pub fn is_harmless(index: &[u8]) -> bool {
    let mut read = HASH_BYTES.iter().filter_map(|hash| has_plain_paths(index, *hash)).peekable();
    read.peek().is_some() && read.all(|plain| plain)
}

/// None: the index does not have this format.
fn has_plain_paths(index: &[u8], hash: usize) -> Option<bool> {
    let body = index.get(..index.len().checked_sub(hash)?)?;
    if body.get(..4)? != b"DIRC" {
        return None;
    }
    let version = number(body, 4)?;
    let count = number(body, 8)?;
    let mut at = HEADER_BYTES;
    let mut path = Vec::new();
    let mut plain = true;
    for _ in 0..count {
        let entry = body.get(at..)?;
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
                let (kept, from) = prefix(entry, begin)?;
                let name = terminated(entry.get(from..)?)?;
                path.truncate(path.len().checked_sub(kept)?);
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
        plain &= is_plain(&path, mode == SPARSE_DIRECTORY);
        at += end;
    }
    // A split index has its other entries in a file that is not read here.
    Some(plain && !has_extension(body.get(at..)?, b"link"))
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

fn has_extension(mut rest: &[u8], name: &[u8]) -> bool {
    while let (Some(found), Some(size)) = (rest.get(..4), number(rest, 4)) {
        if found == name {
            return true;
        }
        let Some(next) = rest.get(8 + size as usize..) else { return false };
        rest = next;
    }
    false
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
                        is_harmless(&index(version, path, hash, b"")),
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
                        !is_harmless(&index(version, path, hash, b"")),
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
            assert!(!is_harmless(&whole[..end]), "{end}");
        }
        assert!(!is_harmless(&index(2, "a", 20, b"link\0\0\0\0")));
        assert!(is_harmless(&index(2, "a", 20, b"TREE\0\0\0\0")));
        assert!(!is_harmless(&index(5, "a", 20, b"")));
        let mut cut = index(2, "a.git", 20, b"");
        cut[HEADER_BYTES + STAT_BYTES + 21] = 1;
        assert!(!is_harmless(&cut), "git reads another name");
    }
}
