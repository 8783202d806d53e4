//! The writable trees of all runs of a user.
//!
//! In the full tier init sees a tree through a mount of its own. If another run moves the directory,
//! init still sees the old path, and judges names by it: `workspace/hooks` could have become
//! `.git/hooks`. So no run moves a directory that another run works in, nor one above it.
//!
//! The trees are in the file `runs`, beside the lock. Each run has a record there, and locks its
//! first byte. The kernel releases this lock when the run has ended, so a record without a lock is
//! free.

use std::os::fd::{AsFd as _, OwnedFd};

use rustix::io::Errno;

use crate::kernel::sys;

/// So many runs can be at work at the same time.
const MAX_RUNS: u64 = 1024;
/// The file has holes: a record takes as much of the disk as its paths.
const RECORD_BYTES: usize = 256 * 1024;
const SHORT_RECORD_BYTES: usize = 4096;

pub struct RunRoots(OwnedFd);

impl RunRoots {
    /// Writes the trees of this run. The caller holds the lock of all writers alone. `E2BIG`: they
    /// do not fit into a record.
    pub fn register(file: OwnedFd, trees: &[Vec<u8>]) -> Result<RunRoots, Errno> {
        // A record ends with an empty path.
        let paths = trees.iter().flat_map(|tree| tree.iter().copied().chain([0]));
        let record: Vec<u8> = paths.chain([0]).collect();
        if record.len() > RECORD_BYTES {
            return Err(Errno::TOOBIG);
        }
        for number in 0..MAX_RUNS {
            let start = number * RECORD_BYTES as u64;
            if sys::lock_byte(file.as_fd(), start)? {
                let written = rustix::io::pwrite(&file, &record, start)?;
                return if written == record.len() {
                    Ok(RunRoots(file))
                } else {
                    Err(Errno::NOSPC)
                };
            }
        }
        Err(Errno::USERS)
    }

    pub fn fd(&self) -> &OwnedFd {
        &self.0
    }

    /// The trees of all other runs.
    pub fn of_others(&self) -> Result<Vec<Vec<u8>>, Errno> {
        let mut found = Vec::new();
        let end = rustix::fs::fstat(&self.0)?.st_size as u64;
        let mut record = Vec::new();
        for start in (0..end).step_by(RECORD_BYTES) {
            if !sys::is_byte_locked(self.0.as_fd(), start)? {
                continue;
            }
            // Nearly all records are short.
            for bytes in [SHORT_RECORD_BYTES, RECORD_BYTES] {
                record.resize(bytes, 0);
                let length = rustix::io::pread(&self.0, &mut record, start)?;
                record.truncate(length);
                if record.windows(2).any(|pair| pair == [0, 0]) {
                    break;
                }
            }
            let trees = record.split(|byte| *byte == 0);
            found.extend(trees.take_while(|tree| !tree.is_empty()).map(<[u8]>::to_vec));
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, Mode, OFlags};

    use super::*;

    #[test]
    fn trees_count_until_their_run_has_ended() {
        let path = std::env::temp_dir().join(format!("paddock-runs-{}", std::process::id()));
        let open = || {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
            rustix::fs::openat(CWD, &path, flags, Mode::RUSR | Mode::WUSR).unwrap()
        };
        let register = |trees: &[&str]| {
            let trees: Vec<_> = trees.iter().map(|tree| tree.as_bytes().to_vec()).collect();
            RunRoots::register(open(), &trees).unwrap()
        };
        let seen_by = |run: &RunRoots| {
            run.of_others().unwrap().into_iter().map(|tree| String::from_utf8(tree).unwrap())
        };
        let one = register(&["/w/a", "/w/b/c"]);
        let other = register(&["/x"]);
        assert!(seen_by(&other).eq(["/w/a", "/w/b/c"]), "not its own tree");
        assert!(seen_by(&one).eq(["/x"]));
        drop(one);
        assert!(seen_by(&other).eq([""; 0]), "the run has ended");
        let third = register(&["/y"]);
        assert_eq!(rustix::fs::fstat(third.fd()).unwrap().st_size as usize / RECORD_BYTES, 1);
        assert!(seen_by(&other).eq(["/y"]), "the record is used again");
        let long = vec![b'l'; RECORD_BYTES];
        assert_eq!(RunRoots::register(open(), &[long]).err(), Some(Errno::TOOBIG));
        std::fs::remove_file(path).unwrap();
    }
}
