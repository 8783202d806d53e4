//! Refs that lead git to write a file.
//!
//! Git writes through a ref that names another one, whatever that name is: `ref: commondir` makes a
//! file that leads git to another directory.

use super::harmless_settings::trimmed;

/// The content of a ref that is not called HEAD. Git itself writes no name of another ref there:
/// with `refs/stash` = `ref: refs/heads/main` a stash becomes a commit of the branch.
pub fn is_harmless(content: &[u8]) -> bool {
    !content.starts_with(b"ref:")
}

/// The content of HEAD, of a repository, a linked work tree or a remote. Git takes no directory with
/// another HEAD for a repository. It looks at the first 255 bytes alone.
pub fn is_harmless_head(content: &[u8]) -> bool {
    let Some(target) = content.strip_prefix(b"ref:") else {
        let id = content.strip_suffix(b"\n").unwrap_or(content);
        return matches!(id.len(), 40 | 64) && id.iter().all(u8::is_ascii_hexdigit);
    };
    let target = target.strip_prefix(b" ").unwrap_or(target);
    let target = target.strip_suffix(b"\n").unwrap_or(target);
    let is_known =
        [&b"refs/heads/"[..], b"refs/remotes/"].iter().any(|known| target.starts_with(known));
    is_known && is_plain_name(target)
}

/// The refs that an unfinished rebase writes or removes at its end, with their ids. Git names
/// branches there, and refs of its own. At the end it writes each name in the list, also one that
/// is no ref.
pub fn is_harmless_list(content: &[u8]) -> bool {
    content.split(|byte| *byte == b'\n').map(trimmed).all(|line| {
        let is_id = line.iter().all(u8::is_ascii_hexdigit) && matches!(line.len(), 0 | 40 | 64);
        let is_own =
            [&b"refs/heads/"[..], b"refs/rewritten/"].iter().any(|own| line.starts_with(own));
        is_id || line == b"detached HEAD" || (is_own && is_plain_name(line))
    })
}

fn is_plain_name(name: &[u8]) -> bool {
    name.starts_with(b"refs/")
        && !name.iter().any(|byte| byte.is_ascii_control())
        && name.split(|byte| *byte == b'/').all(|name| !matches!(name, b"" | b"." | b".."))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "1111111111111111111111111111111111111111";

    #[test]
    fn only_head_names_another_ref() {
        for content in [ID, "ref: refs/heads/main\n", "ref:refs/remotes/o/x"] {
            assert!(is_harmless_head(content.as_bytes()), "{content}");
            assert_eq!(is_harmless(content.as_bytes()), !content.starts_with("ref"), "{content}");
        }
        for content in
            ["ref: commondir", "ref: refs/replace/x", "ref: refs/heads/../x", "ref: refs/heads//x"]
        {
            assert!(!is_harmless_head(content.as_bytes()), "{content}");
        }
        let far = format!("ref:{}refs/heads/main", " ".repeat(300));
        for content in ["", "x", "ref:", "1111", &far, &ID.repeat(2)] {
            assert!(!is_harmless_head(content.as_bytes()), "{content}");
        }
    }

    #[test]
    fn a_rebase_writes_only_branches_and_refs_of_its_own() {
        for content in [
            "detached HEAD\n".to_owned(),
            "refs/heads/a/b\n".to_owned(),
            format!("refs/heads/x\n{ID}\n{ID}\n"),
            "refs/rewritten/onto\nrefs/rewritten/b\n".to_owned(),
        ] {
            assert!(is_harmless_list(content.as_bytes()), "{content}");
        }
        for content in [
            format!("commondir\n{ID}\n{ID}\n"),
            format!("refs/heads/x\n{ID}\n{ID}\nrefs/replace/{ID}\n{ID}\n{ID}\n"),
            "refs/heads/../../config".to_owned(),
            "HEAD".to_owned(),
        ] {
            assert!(!is_harmless_list(content.as_bytes()), "{content}");
        }
    }
}
