//! Facts about the file system of a directory: whether it ignores case, and whether directory
//! listings show the inode numbers of stat(2).

use std::os::fd::AsFd;

use rustix::io::Errno;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filesystem {
    pub device: u64,
    case: CaseRule,
    /// True if a directory listing gives the inode numbers that stat(2) gives.
    pub lists_inodes: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CaseRule {
    Sensitive,
    Insensitive,
    /// Each directory has its own flag.
    ByDirectory,
}

const FS_CASEFOLD_FL: u32 = 0x4000_0000;

impl Filesystem {
    pub fn of(dir: impl AsFd, device: u64) -> Result<Filesystem, Errno> {
        // The magic numbers of statfs(2).
        let (case, lists_inodes) = match rustix::fs::fstatfs(dir)?.f_type as u32 {
            // ext4, f2fs, tmpfs.
            0xEF53 | 0xF2F5_2010 | 0x0102_1994 => (CaseRule::ByDirectory, true),
            // xfs, btrfs, bcachefs.
            0x5846_5342 | 0x9123_683E | 0xCA45_1A4E => (CaseRule::Sensitive, true),
            // vfat, exfat, ntfs, ntfs3, SMB, HFS, HFS+, JFS, VirtualBox. 9p and FUSE depend on an
            // unknown server.
            0x4D44 | 0x2011_BAB0 | 0x5346_544E | 0x7366_746E | 0x517B | 0xFF53_4D42
            | 0xFE53_4D42 | 0x4244 | 0x482B | 0x3153_464A | 0x786F_4256 | 0x0102_1997
            | 0x6573_5546 => (CaseRule::Insensitive, false),
            _ => (CaseRule::ByDirectory, false),
        };
        Ok(Filesystem { device, case, lists_inodes })
    }

    /// True if this directory treats names that differ only in case as equal.
    pub fn folds_case(&self, dir: impl AsFd) -> bool {
        match self.case {
            CaseRule::Sensitive => false,
            CaseRule::Insensitive => true,
            CaseRule::ByDirectory => rustix::fs::ioctl_getflags(dir)
                .is_ok_and(|flags| flags.bits() & FS_CASEFOLD_FL != 0),
        }
    }
}
