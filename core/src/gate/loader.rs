//! Which file a process has mapped at an address: the file whose code it runs next.
//!
//! Only root may open the file itself (`/proc/PID/map_files`). The numbers in `/proc/PID/maps` are
//! those of a file system. On btrfs and overlayfs they differ from stat(2), and on btrfs several
//! files share them. So the supervisor maps the expected file too, and compares both lines, with
//! their paths.

use std::ffi::CStr;
use std::os::fd::AsFd;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::kernel::sys::MappedPage;

/// The program's starter may rename or remove it between two reads.
const MAX_LOOKS: usize = 50;

/// A file as /proc/PID/maps shows it.
#[derive(Debug, PartialEq, Eq)]
struct MappedFile {
    device: Vec<u8>,
    inode: Vec<u8>,
    path: Vec<u8>,
}

/// `own`: the directory of the process in /proc.
pub fn is_of(own: impl AsFd, address: u64, file: impl AsFd) -> Result<bool, Errno> {
    let page = MappedPage::of(file.as_fd())?;
    for _ in 0..MAX_LOOKS {
        let Some(found) = mapped(&own, c"maps", address)? else { return Ok(false) };
        match mapped(rustix::fs::CWD, c"/proc/self/maps", page.address())? {
            Some(wanted) if found == wanted => return Ok(true),
            Some(wanted) if (&found.device, &found.inode) == (&wanted.device, &wanted.inode) => {}
            _ => return Ok(false),
        }
    }
    Ok(false)
}

/// None: no file is mapped there.
fn mapped(dir: impl AsFd, maps: &CStr, address: u64) -> Result<Option<MappedFile>, Errno> {
    const READ_BYTES: usize = 4096;
    let maps = rustix::fs::openat(dir, maps, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut text = Vec::with_capacity(READ_BYTES);
    loop {
        // Only whole lines are parsed.
        let known = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        if let Some(found) =
            text[..known].split(|byte| *byte == b'\n').find_map(|line| file_at(line, address))
        {
            return Ok(found);
        }
        text.drain(..known);
        let start = text.len();
        text.resize(start + READ_BYTES, 0);
        let count = rustix::io::read(&maps, &mut text[start..])?;
        if count == 0 {
            return Ok(None);
        }
        text.truncate(start + count);
    }
}

/// The file of the line about an address. Some(None): no file is mapped there.
fn file_at(line: &[u8], address: u64) -> Option<Option<MappedFile>> {
    let mut columns = line.splitn(5, |byte| *byte == b' ');
    let (start, end) = std::str::from_utf8(columns.next()?).ok()?.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    if !(number(start)?..number(end)?).contains(&address) {
        return None;
    }
    // After rights and offset.
    let (device, rest) = (columns.nth(2)?, columns.next()?);
    let inode = rest.split(|byte| *byte == b' ').next()?;
    let path = rest[inode.len()..].trim_ascii_start();
    Some((inode != b"0").then(|| MappedFile {
        device: device.to_vec(),
        inode: inode.to_vec(),
        path: path.to_vec(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    fn own() -> File {
        File::open("/proc/self").unwrap()
    }

    #[test]
    fn a_maps_line_gives_addresses_and_file() {
        let line = b"7f29-7f2b r-xp 00001000 fe:00 42                     /a b (deleted)";
        let file = MappedFile {
            device: b"fe:00".to_vec(),
            inode: b"42".to_vec(),
            path: b"/a b (deleted)".to_vec(),
        };
        for address in [0x7f29, 0x7f2a] {
            assert_eq!(file_at(line, address).flatten().as_ref(), Some(&file));
        }
        for address in [0x7f28, 0x7f2b, 0, u64::MAX] {
            assert_eq!(file_at(line, address), None);
        }
        for nobody in
            ["1-2 rw-p 00000000 00:00 0 ", "1-2 r-xp 00000000 00:00 0                    [vdso]"]
        {
            assert_eq!(file_at(nobody.as_bytes(), 1), Some(None));
        }
        for broken in
            ["", "1", "1-2", "1-2 r-xp", "1-2 r-xp 0 fe:00", "x-y r-xp 0 fe:00 1 /a", "1-2\n"]
        {
            assert_eq!(file_at(broken.as_bytes(), 1), None, "{broken}");
        }
    }

    #[test]
    fn a_mapping_identifies_its_file() {
        let code = own as *const () as u64;
        assert_eq!(is_of(own(), code, File::open("/proc/self/exe").unwrap()), Ok(true));
        assert_eq!(is_of(own(), code, File::open("/bin/true").unwrap()), Ok(false));
        let local = 0_u8;
        for elsewhere in [&raw const local as u64, 8, u64::MAX] {
            assert_eq!(is_of(own(), elsewhere, File::open("/proc/self/exe").unwrap()), Ok(false));
        }
    }

    #[test]
    fn a_mapping_is_found_after_many_others() {
        let files: Vec<_> =
            ["/bin/true", "/proc/self/exe"].iter().map(|path| File::open(path).unwrap()).collect();
        // No two adjacent mappings merge.
        let pages: Vec<_> =
            (0..400).map(|number| MappedPage::of(files[number % 2].as_fd()).unwrap()).collect();
        for (number, page) in pages.iter().enumerate().step_by(133) {
            assert_eq!(is_of(own(), page.address(), &files[number % 2]), Ok(true));
            assert_eq!(is_of(own(), page.address(), &files[1 - number % 2]), Ok(false));
        }
    }
}
