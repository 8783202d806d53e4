//! What has to be known of the file system that a directory lies on: whether it ignores case, and
//! whether its listings number files as stat(2) does.

use std::os::fd::AsFd;

use rustix::io::Errno;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Volume {
    pub device: u64,
    case: Case,
    /// Does a listing give the inode numbers that stat(2) gives?
    pub numbers_agree: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    Counts,
    Ignored,
    /// Each directory says for itself.
    ByDirectory,
}

const FS_CASEFOLD_FL: u32 = 0x4000_0000;

/// Does a write through a shared mapping change the ctime of a file here? A file system in memory
/// has no such rule, and a server or a lower layer may have another one.
pub fn keeps_ctime_of_mappings(dir: impl AsFd) -> bool {
    let local = [0xEF53, 0x5846_5342, 0x9123_683E, 0xF2F5_2010]; // ext4, xfs, btrfs, f2fs
    rustix::fs::fstatfs(dir).is_ok_and(|volume| local.contains(&(volume.f_type as u32)))
}

impl Volume {
    pub fn of(dir: impl AsFd, device: u64) -> Result<Volume, Errno> {
        // The numbers of statfs(2).
        let (case, numbers_agree) = match rustix::fs::fstatfs(dir)?.f_type as u32 {
            0xEF53 | 0xF2F5_2010 | 0x0102_1994 => (Case::ByDirectory, true), // ext4, f2fs, tmpfs
            0x5846_5342 | 0x9123_683E | 0xCA45_1A4E => (Case::Counts, true), // xfs, btrfs, bcachefs
            // vfat, exfat, ntfs, ntfs3, SMB, HFS, HFS+, JFS, VirtualBox; 9p and FUSE have whatever
            // server there is.
            0x4D44 | 0x2011_BAB0 | 0x5346_544E | 0x7366_746E | 0x517B | 0xFF53_4D42
            | 0xFE53_4D42 | 0x4244 | 0x482B | 0x3153_464A | 0x786F_4256 | 0x0102_1997
            | 0x6573_5546 => (Case::Ignored, false),
            _ => (Case::ByDirectory, false),
        };
        Ok(Volume { device, case, numbers_agree })
    }

    /// Does this directory take names that differ only in case for one?
    pub fn folds(&self, dir: impl AsFd) -> bool {
        match self.case {
            Case::Counts => false,
            Case::Ignored => true,
            Case::ByDirectory => rustix::fs::ioctl_getflags(dir)
                .is_ok_and(|flags| flags.bits() & FS_CASEFOLD_FL != 0),
        }
    }
}
