//! The target of a symlink, and the links on the way. The result has only names: the caller looks
//! up each object itself, by descriptor.

use rustix::fs::Access;
use rustix::io::Errno;

use super::walk::WalkError;
use crate::plan::wire::bytes::{AbsPath, Text};

/// As many as the kernel follows in one path.
const MAX_SYMLINKS: usize = 40;

pub struct ResolvedLink {
    /// Every further link on the way, by a path without links.
    pub links: Vec<AbsPath>,
    /// The final target, which need not exist.
    pub end: AbsPath,
}

/// Follows a link that a walk has found. None: it leads nowhere, because the kernel follows no
/// circle and no more links than this.
pub fn leads_to(link: &AbsPath) -> Result<Option<ResolvedLink>, WalkError> {
    follow(link).map_err(|source| WalkError::Look { path: link.clone(), source })
}

/// Follows `link`, whose path has no other link. An error of the kernel is no circle, and is
/// returned.
fn follow(link: &AbsPath) -> Result<Option<ResolvedLink>, Errno> {
    let mut links = Vec::new();
    let mut met = 0;
    let mut real: Vec<u8> = Vec::new();
    let mut ahead: Vec<Vec<u8>> = names(link.as_bytes());
    while let Some(name) = ahead.pop() {
        match name.as_slice() {
            b"" | b"." => continue,
            b".." => {
                let parent = real.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
                real.truncate(parent);
                continue;
            }
            _ => {}
        }
        let above = real.len();
        real.push(b'/');
        real.extend_from_slice(&name);
        let target = match rustix::fs::readlink(real.as_slice(), Vec::new()) {
            Ok(target) => target.into_bytes(),
            // No link, or nothing yet: the rest of the path is below it. The same holds if a
            // directory on the way can not be searched: in a tree it is closed as a whole, and
            // elsewhere no command can restore its rights.
            Err(Errno::INVAL | Errno::NOENT | Errno::NOTDIR) => continue,
            Err(Errno::ACCESS) if is_shut(&real[..above]) => continue,
            Err(error) => return Err(error),
        };
        met += 1;
        if met > MAX_SYMLINKS {
            return Ok(None);
        }
        if real != link.as_bytes() {
            links.push(absolute(&real)?);
        }
        real.truncate(if target.starts_with(b"/") { 0 } else { above });
        ahead.extend(names(&target));
    }
    Ok(Some(ResolvedLink { links, end: absolute(&real)? }))
}

/// Can the directory, or one above it, not be searched?
fn is_shut(directory: &[u8]) -> bool {
    let directory = if directory.is_empty() { b"/" } else { directory };
    rustix::fs::access(directory, Access::EXEC_OK) == Err(Errno::ACCESS)
}

/// In reverse order.
fn names(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|byte| *byte == b'/').rev().map(<[u8]>::to_vec).collect()
}

fn absolute(path: &[u8]) -> Result<AbsPath, Errno> {
    let path = if path.is_empty() { b"/" } else { path };
    let text = Text::from_bytes(path.to_vec()).map_err(|_| Errno::INVAL)?;
    AbsPath::new(text).map_err(|_| Errno::INVAL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::fs::symlink;

    #[test]
    fn the_target_and_every_link_are_returned() {
        let dir = std::env::temp_dir()
            .canonicalize()
            .unwrap()
            .join(format!("paddock-links-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("real/deep")).unwrap();
        symlink("b", dir.join("a")).unwrap();
        symlink("way/deep/none", dir.join("b")).unwrap();
        symlink(dir.join("real"), dir.join("way")).unwrap();
        symlink("../x/../self", dir.join("real/up")).unwrap();
        symlink("self", dir.join("self")).unwrap();
        let path = |name: &str| absolute(dir.join(name).as_os_str().as_bytes()).unwrap();
        let followed = follow(&path("a")).unwrap().unwrap();
        assert_eq!(followed.links, [path("b"), path("way")]);
        assert_eq!(followed.end, path("real/deep/none"));
        assert!(follow(&path("self")).unwrap().is_none());
        assert!(follow(&path("real/up")).unwrap().is_none());
        std::fs::remove_dir_all(dir).unwrap();
    }
}
