//! Directories that their owner has shut, opened during the scan.
//!
//! Such a directory is closed to the command as a whole. Its names still count: a symlink, a hard
//! link or a git configuration in it protects something elsewhere, and a command could remove that
//! protection with one `chmod`. So the scan restores the owner's rights, searches, and removes them
//! again.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, Stat};
use rustix::io::Errno;

use crate::files::cover::Cover;
use crate::files::tree_roots::OpenTree;
use crate::kernel::open_beneath;
use crate::kernel::resolved_path::{Identity, Object};

#[derive(Default)]
pub struct ReopenedDirs {
    shut: Vec<ShutDir>,
}

struct ShutDir {
    cover: Cover,
    object: Object,
    /// Restores the mode. None: the directory was left as it is.
    opened: Option<(OwnedFd, Mode)>,
}

impl ReopenedDirs {
    /// Opens a directory of the same owner, and notes its cover. False: it stays shut.
    pub fn open(
        &mut self,
        tree: &OpenTree,
        dir: &OwnedFd,
        stat: &Stat,
        cover: Cover,
    ) -> Result<bool, Errno> {
        let own = stat.st_uid == rustix::process::getuid().as_raw();
        let object = Object::at(dir, c"")?;
        let opened = if own && (tree.writable || tree.watched) { lend(dir, stat)? } else { None };
        let is_open = opened.is_some();
        self.shut.push(ShutDir { cover, object, opened });
        Ok(is_open)
    }

    pub fn is_known(&self, identity: Identity) -> bool {
        self.shut.iter().any(|shut| shut.object.identity == identity)
    }

    /// Is the path inside a directory that is closed as a whole?
    fn holds(&self, path: &[u8]) -> bool {
        let holds = |shut: &ShutDir| {
            path.strip_prefix(shut.cover.path.as_bytes()).is_some_and(|rest| rest.starts_with(b"/"))
        };
        self.shut.iter().any(holds)
    }

    /// Is the path one of them, or inside one?
    pub fn covers(&self, path: &[u8]) -> bool {
        self.holds(path) || self.shut.iter().any(|shut| shut.cover.path.as_bytes() == path)
    }

    pub fn is_empty(&self) -> bool {
        self.shut.is_empty()
    }

    /// Removes the rights again. Returns the covers of the directories, and the directories.
    pub fn restore(mut self) -> Result<(Vec<Cover>, Vec<Object>), (Cover, Errno)> {
        let (mut covers, mut objects) = (Vec::new(), Vec::new());
        // The innermost first. Each has a descriptor, but other processes should see the same order
        // as before.
        while let Some(ShutDir { cover, mut object, opened }) = self.shut.pop() {
            if let Some((dir, mode)) = opened {
                match set_mode(&dir, mode).and_then(|()| Object::at(&dir, c"")) {
                    Ok(now) => object = now,
                    Err(source) => return Err((cover, source)),
                }
            }
            covers.push(cover);
            objects.push(object);
        }
        Ok((covers, objects))
    }
}

/// After an error the start fails with a reason. Modes are restored as far as possible.
impl Drop for ReopenedDirs {
    fn drop(&mut self) {
        for shut in self.shut.drain(..).rev() {
            if let Some((dir, mode)) = shut.opened {
                let _ = set_mode(&dir, mode);
            }
        }
    }
}

/// None: the file system has no changeable modes, so no command has changed them either.
fn lend(dir: &OwnedFd, stat: &Stat) -> Result<Option<(OwnedFd, Mode)>, Errno> {
    let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
    let duplicate = rustix::io::fcntl_dupfd_cloexec(dir, 0)?;
    match set_mode(dir, mode | Mode::RUSR | Mode::XUSR) {
        Ok(()) => Ok(Some((duplicate, mode))),
        Err(Errno::ROFS | Errno::PERM) => Ok(None),
        Err(error) => Err(error),
    }
}

fn set_mode(dir: &OwnedFd, mode: Mode) -> Result<(), Errno> {
    let mut buffer = [0; 32];
    rustix::fs::chmod(open_beneath::proc_fd_path(dir, &mut buffer), mode)
}
