//! Paths inside grants that mounts cover in the full tier, and the pins that keep their names in
//! place.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, Stat};
use rustix::io::Errno;

use super::{FileGrants, GrantError, GrantLocation, is_dir};
use crate::files::cover::{Cover, CoverKind};
use crate::files::home_listing::HomeEntry;
use crate::files::previously_writable::absolute;
use crate::kernel::resolved_path::{self, FollowedLink, Identity};
use crate::plan;
use crate::plan::wire::bytes::AbsPath;

impl<'p> FileGrants<'p> {
    /// Masks for closed paths inside grants, and locks for unwritable paths inside writable grants.
    pub fn covers(&self, requested: &'p plan::FilesPlan) -> Result<Vec<Cover>, GrantError> {
        let mut covers = Vec::new();
        let closed = requested.closed.iter().map(|path| (path, CoverKind::Mask));
        let unwritable = requested.unwritable.iter().map(|path| (path, CoverKind::Lock));
        for (path, kind) in closed.chain(unwritable) {
            let locate = |source| GrantError::Locate { path: path.clone(), source };
            let real = if self.linked.contains(&path) {
                let followed = resolved_path::follow(path.as_bytes()).map_err(locate)?;
                self.lock_links(&followed.links, &mut covers).map_err(locate)?;
                absolute(followed.real).map_err(locate)?
            } else {
                path.clone()
            };
            let exposed = |location: &GrantLocation<'_>| {
                real.is_within(&location.real)
                    && (kind == CoverKind::Mask || location.grant.writes())
            };
            if !self.locations.iter().any(exposed) {
                continue;
            }
            match rustix::fs::lstat(real.as_c_str()) {
                Ok(stat) => {
                    let identity = Identity::from(&stat);
                    covers.push(Cover { path: real, identity, directory: is_dir(&stat), kind });
                }
                // The guard watches for the name of a missing path.
                Err(Errno::NOENT | Errno::NOTDIR) => {}
                Err(source) => return Err(locate(source)),
            }
        }
        Ok(covers)
    }

    /// The grants that make a path writable. Grants add up: a read-only one takes nothing from one
    /// around it.
    pub fn writing<'f>(&'f self, path: &'f AbsPath) -> impl Iterator<Item = &'f GrantLocation<'p>> {
        // In the full tier the host's /tmp is visible only if a grant names it.
        let in_temp = |path: &AbsPath| path.as_bytes().starts_with(b"/tmp/");
        let shown = move |location: &GrantLocation<'_>| {
            !self.hides_temp || in_temp(&location.real) || !in_temp(path)
        };
        self.locations.iter().filter(move |location| {
            location.grant.writes() && shown(location) && path.is_within(&location.real)
        })
    }

    /// Pins for the directories above covered paths in writable grants. A directory that moves
    /// would take the path to a name that a later run does not know.
    pub fn pins<'c>(
        &self,
        covers: impl Iterator<Item = &'c Cover>,
    ) -> Result<Vec<Cover>, GrantError> {
        let mut pins: BTreeMap<PathBuf, Cover> = BTreeMap::new();
        for cover in covers {
            let Some(grant) =
                self.writing(&cover.path).min_by_key(|location| location.real.as_bytes().len())
            else {
                continue;
            };
            let above = Path::new(OsStr::from_bytes(cover.path.as_bytes())).ancestors().skip(1);
            for above in
                above.take_while(|above| above.as_os_str().len() > grant.real.as_bytes().len())
            {
                let seen = absolute(above.to_owned())
                    .and_then(|path| Ok((rustix::fs::lstat(path.as_c_str())?, path)));
                let (stat, path) =
                    seen.map_err(|source| GrantError::Locate { path: cover.path.clone(), source })?;
                let identity = Identity::from(&stat);
                pins.insert(
                    above.to_owned(),
                    Cover { path, identity, directory: true, kind: CoverKind::Pin },
                );
            }
        }
        Ok(pins.into_values().collect())
    }

    /// Locks a link that leads to a closed or own path. Otherwise the command could change it, and
    /// it would lead a later run elsewhere.
    fn lock_links(&self, links: &[FollowedLink], covers: &mut Vec<Cover>) -> Result<(), Errno> {
        for link in links {
            let path = absolute(link.at.clone())?;
            let writable = |location: &GrantLocation<'_>| {
                location.grant.writes() && path.is_within(&location.real)
            };
            if let Some(identity) = link.resolved.object
                && self.locations.iter().any(writable)
                && covers.iter().all(|cover| cover.path != path)
            {
                covers.push(Cover { path, identity, directory: false, kind: CoverKind::Lock });
            }
        }
        Ok(())
    }

    /// Closed files, and files directly in closed directories, that have several hard links:
    /// another name may be in a grant.
    pub fn closed_with_other_names(&self, requested: &plan::FilesPlan) -> Vec<Identity> {
        let mut found = Vec::new();
        let mut note = |stat: &Stat| {
            if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_nlink > 1 {
                found.push(Identity::from(stat));
            }
        };
        for path in requested.closed.iter().filter(|path| self.home.of(path) != HomeEntry::Missing)
        {
            let Ok(stat) = rustix::fs::stat(path.as_c_str()) else { continue };
            note(&stat);
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let Ok(dir) = rustix::fs::open(path.as_c_str(), flags, Mode::empty()) else { continue };
            let mut buffer = Vec::with_capacity(16 * 1024);
            let mut entries = RawDir::new(&dir, buffer.spare_capacity_mut());
            while let Some(Ok(entry)) = entries.next() {
                if let Ok(stat) =
                    rustix::fs::statat(&dir, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)
                {
                    note(&stat);
                }
            }
        }
        found
    }
}
