//! Directories that their owner has shut, opened for as long as the search takes.
//!
//! Such a directory is closed to the command as a whole. Its names still count: a symlink, another
//! name of a file or a git configuration in it protects something elsewhere, and a command could
//! take that protection away with one `chmod`. So the search gives the owner's rights back, looks,
//! and takes them away again.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, Stat};
use rustix::io::Errno;

use crate::files::cover::Cover;
use crate::files::tree_roots::OpenTree;
use crate::kernel::open_beneath;
use crate::kernel::resolved_path::{Identity, Object};

#[derive(Default)]
pub struct Lent {
    shut: Vec<Shut>,
}

struct Shut {
    cover: Cover,
    object: Object,
    /// What gives the mode back. None: the directory was left as it is.
    opened: Option<(OwnedFd, Mode)>,
}

impl Lent {
    /// Opens a directory of the same owner, and notes what is to be laid over it. False: it stays
    /// shut.
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
        self.shut.push(Shut { cover, object, opened });
        Ok(is_open)
    }

    pub fn is_known(&self, identity: Identity) -> bool {
        self.shut.iter().any(|shut| shut.object.identity == identity)
    }

    /// Does it lie in a directory that is closed as a whole?
    fn holds(&self, path: &[u8]) -> bool {
        let holds = |shut: &Shut| {
            path.strip_prefix(shut.cover.path.as_bytes()).is_some_and(|rest| rest.starts_with(b"/"))
        };
        self.shut.iter().any(holds)
    }

    /// Is it one of them, or does it lie in one?
    pub fn covers(&self, path: &[u8]) -> bool {
        self.holds(path) || self.shut.iter().any(|shut| shut.cover.path.as_bytes() == path)
    }

    pub fn is_empty(&self) -> bool {
        self.shut.is_empty()
    }

    /// Takes the rights away again. What is to be laid over the directories, and which they are.
    pub fn restore(mut self) -> Result<(Vec<Cover>, Vec<Object>), (Cover, Errno)> {
        let (mut covers, mut objects) = (Vec::new(), Vec::new());
        // The innermost first: each is reached by its descriptor, but who looks meanwhile finds the
        // order of before.
        while let Some(Shut { cover, mut object, opened }) = self.shut.pop() {
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

/// After an error the start ends, and says why. Modes go back as far as they can.
impl Drop for Lent {
    fn drop(&mut self) {
        for shut in self.shut.drain(..).rev() {
            if let Some((dir, mode)) = shut.opened {
                let _ = set_mode(&dir, mode);
            }
        }
    }
}

/// None: the file system does not let the mode be changed, so no command has changed it either.
fn lend(dir: &OwnedFd, stat: &Stat) -> Result<Option<(OwnedFd, Mode)>, Errno> {
    let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
    let kept = rustix::io::fcntl_dupfd_cloexec(dir, 0)?;
    match set_mode(dir, mode | Mode::RUSR | Mode::XUSR) {
        Ok(()) => Ok(Some((kept, mode))),
        Err(Errno::ROFS | Errno::PERM) => Ok(None),
        Err(error) => Err(error),
    }
}

fn set_mode(dir: &OwnedFd, mode: Mode) -> Result<(), Errno> {
    let mut buffer = [0; 32];
    rustix::fs::chmod(open_beneath::proc_fd_path(dir, &mut buffer), mode)
}
