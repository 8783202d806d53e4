//! Sockets that appear, and whether a process answers there.
//!
//! A socket has its name before a process listens there (bind(2) makes the file first). So a silent
//! socket is checked again for a while. After that it stays silent: an existing file is never
//! bound.

use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::files::cover::{Cover, CoverKind};
use crate::files::tree_roots::TreeRoots;
use crate::files::walk::{self, WalkError};
use crate::files::{host_sockets, scan};
use crate::kernel::resolved_path::Identity;

const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LAST_PAUSE: Duration = Duration::from_secs(8);
const MAX_SILENT_SOCKETS: usize = 1000;

#[derive(Debug)]
struct SilentSocket {
    /// The tree, and the path in it.
    place: (usize, Vec<u8>),
    identity: Identity,
    next: Instant,
    pause: Duration,
}

#[derive(Debug, Default)]
pub struct SilentSockets(Vec<SilentSocket>);

impl SilentSockets {
    /// False: there are too many.
    pub fn remember(&mut self, place: (usize, Vec<u8>), identity: Identity) -> bool {
        if self.0.iter().any(|one| one.identity == identity && one.place == place) {
            return true;
        }
        if self.0.len() == MAX_SILENT_SOCKETS {
            return false;
        }
        self.0.push(SilentSocket {
            place,
            identity,
            next: Instant::now() + FIRST_PAUSE,
            pause: FIRST_PAUSE,
        });
        true
    }

    pub fn next_look(&self) -> Option<Duration> {
        let next = self.0.iter().map(|one| one.next).min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// True: a process answers now, and the socket has to be covered.
    pub fn look_again(
        &mut self,
        roots: &TreeRoots,
        covers: &mut Vec<Cover>,
    ) -> Result<bool, WalkError> {
        if self.next_look() != Some(Duration::ZERO) {
            return Ok(false);
        }
        let (before, now) = (covers.len(), Instant::now());
        let mut remaining = Vec::with_capacity(self.0.len());
        for mut one in self.0.drain(..) {
            if one.next > now {
                remaining.push(one);
                continue;
            }
            let (tree, path) = (&roots.trees[one.place.0], &one.place.1);
            let found = tree
                .open(path, OFlags::PATH)
                .and_then(|socket| Ok((rustix::fs::fstat(&socket)?, socket)));
            let silent = match found {
                Ok((stat, socket)) if Identity::from(&stat) == one.identity => {
                    let silent = host_sockets::is_silent(socket.as_fd());
                    if !silent {
                        covers.push(scan::cover(
                            tree.absolute(path)?,
                            &stat,
                            CoverKind::ForeignSocket,
                        )?);
                    }
                    silent
                }
                Ok(_) | Err(Errno::NOENT) => false,
                // The command has shut or replaced a directory on the path, and can undo that.
                Err(Errno::ACCESS | Errno::NOTDIR | Errno::LOOP) => {
                    one.pause = one.pause.min(LAST_PAUSE / 2);
                    true
                }
                Err(source) => {
                    return Err(WalkError::Look { path: walk::shown(tree, path), source });
                }
            };
            if silent && one.pause < LAST_PAUSE {
                one.pause *= 2;
                one.next = now + one.pause;
                remaining.push(one);
            }
        }
        self.0 = remaining;
        Ok(covers.len() > before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::test_tree::TestTree;
    use crate::files::tree_roots::GrantedTree;
    use crate::plan::wire::bytes::Text;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_silent_socket_is_checked_again_and_covered_when_it_answers() {
        let scene = TestTree::new();
        drop(UnixListener::bind(scene.path("dead")).unwrap());
        let _listener = UnixListener::bind(scene.path("awake")).unwrap();
        let path = Text::from_bytes(scene.0.as_os_str().as_encoded_bytes().to_vec())
            .and_then(crate::plan::wire::bytes::AbsPath::new);
        let tree = GrantedTree { path: path.unwrap(), writable: true, watched: true };
        let roots = TreeRoots::open(&[tree], &[]).unwrap();
        let (mut silent, mut covers) = (SilentSockets::default(), Vec::new());
        for name in ["dead", "awake", "awake"] {
            let stat = rustix::fs::lstat(scene.path(name)).unwrap();
            assert!(silent.remember((0, name.into()), Identity::from(&stat)));
        }
        assert_eq!(silent.0.len(), 2);
        while !silent.look_again(&roots, &mut covers).unwrap() {
            std::thread::sleep(silent.next_look().unwrap());
        }
        let found: Vec<_> =
            covers.iter().map(|cover| (cover.path.to_string(), cover.kind)).collect();
        assert_eq!(found, [(scene.path("awake").display().to_string(), CoverKind::ForeignSocket)]);
        assert_eq!(silent.0.len(), 1);
        silent.0[0].pause = LAST_PAUSE;
        silent.0[0].next = Instant::now();
        assert!(!silent.look_again(&roots, &mut covers).unwrap());
        assert!(silent.0.is_empty());
    }

    #[test]
    fn too_many_silent_sockets_are_reported() {
        let mut silent = SilentSockets::default();
        let identity = Identity::from((1, 1));
        assert!(
            (0..MAX_SILENT_SOCKETS)
                .all(|number| silent.remember((0, number.to_string().into()), identity))
        );
        assert!(!silent.remember((0, b"one more".to_vec()), identity));
    }
}
