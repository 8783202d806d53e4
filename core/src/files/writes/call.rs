//! The calls that make, change or remove a name, with everything that the caller's memory holds.
//!
//! The memory is read once. The caller can change it afterwards, and changes nothing by that: the
//! call is done from this copy.

use rustix::fs::{AtFlags, OFlags, RenameFlags, ResolveFlags, Timespec, Timestamps};
use rustix::io::Errno;

use crate::kernel::process_memory::ProcessMemory;
use crate::kernel::seccomp_notify::{InterceptedCall, MAX_PATH_BYTES};
use crate::kernel::sys;

/// Opens without one of these flags only read, and do not wait. O_TMPFILE makes a file without a
/// name: its name comes with linkat(2).
pub const WRITING_OPEN_FLAGS: u32 =
    (libc::O_WRONLY | libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC) as u32;

/// Calls that make, change or remove a name, and those that change the metadata of an open file:
/// its owner may do so even if the file is open for reading only. `landlock_create_ruleset` is
/// listed because init would not be bound by rules of an inner sandbox for files and ports.
pub const CALLS: &[&str] = &[
    "chmod",
    "chown",
    "creat",
    "fchmod",
    "fchmodat",
    "fchmodat2",
    "fchown",
    "fchownat",
    "fremovexattr",
    "fsetxattr",
    "futimesat",
    "landlock_create_ruleset",
    "lchown",
    "link",
    "linkat",
    "lremovexattr",
    "lsetxattr",
    "mkdir",
    "mkdirat",
    "mknod",
    "mknodat",
    "open",
    "openat",
    "openat2",
    "removexattr",
    "removexattrat",
    "rename",
    "renameat",
    "renameat2",
    "rmdir",
    "setxattr",
    "setxattrat",
    "symlink",
    "symlinkat",
    "truncate",
    "umask",
    "unlink",
    "unlinkat",
    "utime",
    "utimensat",
    "utimes",
];

/// bind(2) makes a socket file. The supervisor answers it if the network is filtered, and refuses
/// socket files then.
pub const BIND: &str = "bind";

/// Calls that fail, with the errno of a kernel that does not have them or a user that may not:
/// - `file_setattr` is new, and every program has a way without it.
/// - `open_by_handle_at` opens a file without its name. So does `fanotify_init`.
pub const REFUSED_CALLS: &[(&str, i32)] = &[
    ("fanotify_init", libc::EPERM),
    ("file_setattr", libc::ENOSYS),
    ("open_by_handle_at", libc::EPERM),
];

/// A path argument: a directory descriptor of the caller, and the bytes of the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathArgument {
    pub dir: i32,
    pub path: Vec<u8>,
}

/// What happens to an object that exists.
#[derive(Clone, Debug)]
pub enum Change {
    Truncate(u64),
    Mode(u32),
    Owner(u32, u32),
    Times(Timestamps),
    SetAttribute { name: Vec<u8>, value: Vec<u8>, flags: u32 },
    RemoveAttribute { name: Vec<u8> },
}

#[derive(Clone, Debug)]
pub enum WriteCall {
    Open {
        at: PathArgument,
        flags: OFlags,
        mode: u32,
        resolve: ResolveFlags,
    },
    MakeDir {
        at: PathArgument,
        mode: u32,
    },
    MakeNode {
        at: PathArgument,
        mode: u32,
        device: u64,
    },
    Symlink {
        target: Vec<u8>,
        at: PathArgument,
    },
    /// The kernel looks up the old name before it reads the new path.
    Link {
        old: PathArgument,
        new: Result<PathArgument, Errno>,
        flags: AtFlags,
    },
    Rename {
        old: PathArgument,
        new: Result<PathArgument, Errno>,
        flags: RenameFlags,
    },
    Remove {
        at: PathArgument,
        flags: AtFlags,
    },
    Change {
        at: PathArgument,
        flags: AtFlags,
        change: Change,
    },
    /// The change of an open file.
    ChangeOpen {
        fd: i32,
        change: Change,
    },
    /// `address` is the whole socket address.
    Bind {
        socket: i32,
        address: Vec<u8>,
    },
    /// Landlock rules that only keep signals and abstract sockets in.
    ScopedRuleset {
        scopes: u64,
    },
    /// Both times stay as they are: the kernel looks at nothing.
    Nothing,
}

/// Is the call one of [`CALLS`]? An observer also gets opens that only read.
pub fn is_write_call(call: &InterceptedCall) -> bool {
    let only_reads =
        WriteCall::open_flags(call).is_some_and(|flags| flags.bits() & WRITING_OPEN_FLAGS == 0);
    (shape(call).is_some() && !only_reads) || changes_umask(call)
}

/// umask(2) names no path. It is listed because new files depend on it.
pub fn changes_umask(call: &InterceptedCall) -> bool {
    i64::from(call.number) == libc::SYS_umask
}

/// Is it landlock_create_ruleset(2)?
pub fn makes_ruleset(call: &InterceptedCall) -> bool {
    i64::from(call.number) == libc::SYS_landlock_create_ruleset
}

/// Such a call with flags makes no ruleset.
pub fn asks_for_landlock_abi(call: &InterceptedCall) -> bool {
    makes_ruleset(call) && call.arguments[2] != 0
}

/// Where the parts of a call are in its arguments.
#[derive(Clone, Copy)]
enum Shape {
    Open { dir: Option<usize>, path: usize, flags: Option<usize>, mode: usize },
    OpenHow,
    MakeDir { dir: Option<usize>, path: usize },
    MakeNode { dir: Option<usize>, path: usize },
    Symlink { dir: Option<usize>, path: usize },
    Link { dirs: Option<(usize, usize)>, paths: (usize, usize), flags: Option<usize> },
    Rename { dirs: Option<(usize, usize)>, paths: (usize, usize), flags: Option<usize> },
    Remove { dir: Option<usize>, path: usize, flags: Option<usize>, directory: bool },
    Truncate,
    Mode { dir: Option<usize>, path: usize, flags: Option<usize> },
    Owner { dir: Option<usize>, path: usize, flags: Option<usize>, follow: bool },
    Times { dir: Option<usize>, path: usize, unit: TimeUnit, flags: Option<usize> },
    SetAttribute { follow: bool },
    RemoveAttribute { follow: bool },
    SetAttributeAt,
    RemoveAttributeAt,
    OpenFileMode,
    OpenFileOwner,
    OpenFileAttribute,
    OpenFileWithoutAttribute,
    Bind,
    Ruleset,
}

impl Shape {
    /// The argument with the AT_ flags of the call.
    fn flags(self) -> Option<usize> {
        match self {
            Shape::Link { flags, .. }
            | Shape::Mode { flags, .. }
            | Shape::Owner { flags, .. }
            | Shape::Times { flags, .. } => flags,
            Shape::SetAttributeAt | Shape::RemoveAttributeAt => Some(2),
            _ => None,
        }
    }
}

#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "old calls of x86_64"))]
#[derive(Clone, Copy)]
enum TimeUnit {
    Seconds,
    Microseconds,
    Nanoseconds,
}

fn shape(call: &InterceptedCall) -> Option<Shape> {
    let at = Some(0);
    let two = Some((0, 2));
    Some(match i64::from(call.number) {
        #[cfg(target_arch = "x86_64")]
        libc::SYS_open => Shape::Open { dir: None, path: 0, flags: Some(1), mode: 2 },
        #[cfg(target_arch = "x86_64")]
        libc::SYS_creat => Shape::Open { dir: None, path: 0, flags: None, mode: 1 },
        #[cfg(target_arch = "x86_64")]
        libc::SYS_mkdir => Shape::MakeDir { dir: None, path: 0 },
        #[cfg(target_arch = "x86_64")]
        libc::SYS_mknod => Shape::MakeNode { dir: None, path: 0 },
        #[cfg(target_arch = "x86_64")]
        libc::SYS_symlink => Shape::Symlink { dir: None, path: 1 },
        #[cfg(target_arch = "x86_64")]
        libc::SYS_link => Shape::Link { dirs: None, paths: (0, 1), flags: None },
        #[cfg(target_arch = "x86_64")]
        libc::SYS_rename => Shape::Rename { dirs: None, paths: (0, 1), flags: None },
        #[cfg(target_arch = "x86_64")]
        libc::SYS_unlink => Shape::Remove { dir: None, path: 0, flags: None, directory: false },
        #[cfg(target_arch = "x86_64")]
        libc::SYS_rmdir => Shape::Remove { dir: None, path: 0, flags: None, directory: true },
        #[cfg(target_arch = "x86_64")]
        libc::SYS_chmod => Shape::Mode { dir: None, path: 0, flags: None },
        #[cfg(target_arch = "x86_64")]
        libc::SYS_chown => Shape::Owner { dir: None, path: 0, flags: None, follow: true },
        #[cfg(target_arch = "x86_64")]
        libc::SYS_lchown => Shape::Owner { dir: None, path: 0, flags: None, follow: false },
        #[cfg(target_arch = "x86_64")]
        libc::SYS_utime => {
            Shape::Times { dir: None, path: 0, unit: TimeUnit::Seconds, flags: None }
        }
        #[cfg(target_arch = "x86_64")]
        libc::SYS_utimes => {
            Shape::Times { dir: None, path: 0, unit: TimeUnit::Microseconds, flags: None }
        }
        #[cfg(target_arch = "x86_64")]
        libc::SYS_futimesat => {
            Shape::Times { dir: at, path: 1, unit: TimeUnit::Microseconds, flags: None }
        }
        libc::SYS_openat => Shape::Open { dir: at, path: 1, flags: Some(2), mode: 3 },
        libc::SYS_mkdirat => Shape::MakeDir { dir: at, path: 1 },
        libc::SYS_mknodat => Shape::MakeNode { dir: at, path: 1 },
        libc::SYS_symlinkat => Shape::Symlink { dir: Some(1), path: 2 },
        libc::SYS_linkat => Shape::Link { dirs: two, paths: (1, 3), flags: Some(4) },
        libc::SYS_renameat => Shape::Rename { dirs: two, paths: (1, 3), flags: None },
        libc::SYS_renameat2 => Shape::Rename { dirs: two, paths: (1, 3), flags: Some(4) },
        libc::SYS_unlinkat => Shape::Remove { dir: at, path: 1, flags: Some(2), directory: false },
        libc::SYS_truncate => Shape::Truncate,
        libc::SYS_fchmodat => Shape::Mode { dir: at, path: 1, flags: None },
        SYS_FCHMODAT2 => Shape::Mode { dir: at, path: 1, flags: Some(3) },
        libc::SYS_fchownat => Shape::Owner { dir: at, path: 1, flags: Some(4), follow: true },
        libc::SYS_utimensat => {
            Shape::Times { dir: at, path: 1, unit: TimeUnit::Nanoseconds, flags: Some(3) }
        }
        libc::SYS_setxattr => Shape::SetAttribute { follow: true },
        libc::SYS_lsetxattr => Shape::SetAttribute { follow: false },
        libc::SYS_removexattr => Shape::RemoveAttribute { follow: true },
        libc::SYS_lremovexattr => Shape::RemoveAttribute { follow: false },
        SYS_SETXATTRAT => Shape::SetAttributeAt,
        SYS_REMOVEXATTRAT => Shape::RemoveAttributeAt,
        libc::SYS_openat2 => Shape::OpenHow,
        libc::SYS_fchmod => Shape::OpenFileMode,
        libc::SYS_fchown => Shape::OpenFileOwner,
        libc::SYS_fsetxattr => Shape::OpenFileAttribute,
        libc::SYS_fremovexattr => Shape::OpenFileWithoutAttribute,
        libc::SYS_bind => Shape::Bind,
        libc::SYS_landlock_create_ruleset => Shape::Ruleset,
        _ => return None,
    })
}

/// The same on every architecture (Linux 6.6 and 6.13).
const SYS_FCHMODAT2: i64 = 452;
const SYS_SETXATTRAT: i64 = 463;
const SYS_REMOVEXATTRAT: i64 = 466;

/// XATTR_NAME_MAX and XATTR_SIZE_MAX.
const MAX_ATTRIBUTE_NAME_BYTES: usize = 256;
const MAX_ATTRIBUTE_BYTES: usize = 65536;

impl WriteCall {
    /// The flags of an open call.
    pub fn open_flags(call: &InterceptedCall) -> Option<OFlags> {
        match shape(call)? {
            Shape::Open { flags: Some(index), .. } => {
                Some(OFlags::from_bits_retain(call.arguments[index] as u32))
            }
            _ => None,
        }
    }

    /// None: the call is none of [`CALLS`], or changes an open file and no name. Err: the kernel
    /// would fail with this errno before it looks at a name.
    pub fn read(call: &InterceptedCall) -> Result<Option<WriteCall>, Errno> {
        let Some(shape) = shape(call) else { return Ok(None) };
        let mut memory = ProcessMemory::of(call.thread);
        let argument = |index: usize| call.arguments[index];
        let dir_of = |dir: Option<usize>| dir.map_or(libc::AT_FDCWD, |dir| argument(dir) as i32);
        let may_be_empty = shape.flags().is_some_and(|index| {
            AtFlags::from_bits_retain(argument(index) as u32).contains(AtFlags::EMPTY_PATH)
        });
        let mut path_at = |dir: Option<usize>, path: usize| {
            let mut bytes = Vec::with_capacity(128);
            let (address, max) = (argument(path), MAX_PATH_BYTES);
            memory.string(address, max, Errno::NAMETOOLONG, &mut bytes)?;
            match &bytes[..] {
                b"" if !may_be_empty => Err(Errno::NOENT),
                _ => Ok(PathArgument { dir: dir_of(dir), path: bytes }),
            }
        };
        let at_flags = |index: Option<usize>, allowed: AtFlags| {
            let bits = index.map_or(0, |index| argument(index) as u32);
            let flags = AtFlags::from_bits_retain(bits);
            if allowed.contains(flags) { Ok(flags) } else { Err(Errno::INVAL) }
        };
        Ok(Some(match shape {
            Shape::Open { dir, path, flags, mode } => {
                let create = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
                let flags =
                    flags.map_or(create, |index| OFlags::from_bits_retain(argument(index) as u32));
                check_open_flags(flags)?;
                let (at, mode) = (path_at(dir, path)?, argument(mode) as u32);
                WriteCall::Open { at, flags, mode, resolve: ResolveFlags::empty() }
            }
            Shape::OpenHow => {
                let how = open_how(call)?;
                let flags = OFlags::from_bits_retain(how.flags as u32);
                let resolve = ResolveFlags::from_bits_retain(how.resolve);
                // The path is not in the cache: the caller tries again without this flag.
                if resolve.contains(ResolveFlags::CACHED) {
                    return Err(Errno::AGAIN);
                }
                let (at, mode) = (path_at(Some(0), 1)?, how.mode as u32);
                WriteCall::Open { at, flags, mode, resolve }
            }
            Shape::MakeDir { dir, path } => {
                WriteCall::MakeDir { at: path_at(dir, path)?, mode: argument(path + 1) as u32 }
            }
            Shape::MakeNode { dir, path } => {
                let (mode, device) = (argument(path + 1) as u32, argument(path + 2));
                match mode & libc::S_IFMT {
                    0 | libc::S_IFREG | libc::S_IFCHR | libc::S_IFBLK => {}
                    libc::S_IFIFO | libc::S_IFSOCK => {}
                    libc::S_IFDIR => return Err(Errno::PERM),
                    _ => return Err(Errno::INVAL),
                }
                WriteCall::MakeNode { at: path_at(dir, path)?, mode, device }
            }
            Shape::Symlink { dir, path } => {
                let target = path_at(None, 0)?.path;
                WriteCall::Symlink { target, at: path_at(dir, path)? }
            }
            Shape::Link { dirs, paths, flags } => {
                let flags = at_flags(flags, AtFlags::SYMLINK_FOLLOW | AtFlags::EMPTY_PATH)?;
                let old = path_at(dirs.map(|dirs| dirs.0), paths.0)?;
                WriteCall::Link { old, new: path_at(dirs.map(|dirs| dirs.1), paths.1), flags }
            }
            Shape::Rename { dirs, paths, flags } => {
                let bits = flags.map_or(0, |index| argument(index) as u32);
                let flags = RenameFlags::from_bits_retain(bits);
                let known = RenameFlags::NOREPLACE | RenameFlags::EXCHANGE | RenameFlags::WHITEOUT;
                // A whiteout is a device at the old name.
                if !known.contains(flags) || flags.contains(RenameFlags::WHITEOUT) {
                    return Err(Errno::INVAL);
                }
                let others = RenameFlags::NOREPLACE | RenameFlags::WHITEOUT;
                if flags.contains(RenameFlags::EXCHANGE) && flags.intersects(others) {
                    return Err(Errno::INVAL);
                }
                let old = path_at(dirs.map(|dirs| dirs.0), paths.0)?;
                WriteCall::Rename { old, new: path_at(dirs.map(|dirs| dirs.1), paths.1), flags }
            }
            Shape::Remove { dir, path, flags, directory } => {
                let flags = at_flags(flags, AtFlags::REMOVEDIR)?;
                let flags = if directory { AtFlags::REMOVEDIR } else { flags };
                WriteCall::Remove { at: path_at(dir, path)?, flags }
            }
            Shape::Truncate => {
                let length = u64::try_from(argument(1) as i64).map_err(|_| Errno::INVAL)?;
                let change = Change::Truncate(length);
                WriteCall::Change { at: path_at(None, 0)?, flags: AtFlags::empty(), change }
            }
            Shape::Mode { dir, path, flags } => {
                let allowed = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
                let flags = at_flags(flags, allowed)?;
                let change = Change::Mode(argument(path + 1) as u32);
                WriteCall::Change { at: path_at(dir, path)?, flags, change }
            }
            Shape::Owner { dir, path, flags, follow } => {
                let allowed = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
                let flags = at_flags(flags, allowed)?;
                let flags = if follow { flags } else { AtFlags::SYMLINK_NOFOLLOW };
                let change = Change::Owner(argument(path + 1) as u32, argument(path + 2) as u32);
                WriteCall::Change { at: path_at(dir, path)?, flags, change }
            }
            Shape::Times { dir, path, unit, flags } => {
                let times = times(&mut ProcessMemory::of(call.thread), argument(path + 1), unit)?;
                let omits = |time: &Timespec| time.tv_nsec == libc::UTIME_OMIT;
                if omits(&times.last_access) && omits(&times.last_modification) {
                    return Ok(Some(WriteCall::Nothing));
                }
                let allowed = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
                let flags = at_flags(flags, allowed)?;
                let change = Change::Times(times);
                // Without a path the times of an open file change.
                if argument(path) == 0 && dir.is_some() && dir_of(dir) != libc::AT_FDCWD {
                    return match flags.is_empty() {
                        true => Ok(Some(WriteCall::ChangeOpen { fd: dir_of(dir), change })),
                        false => Err(Errno::INVAL),
                    };
                }
                let at = path_at(dir, path)?;
                WriteCall::Change { at, flags, change }
            }
            Shape::SetAttribute { follow } => {
                // The kernel copies the attribute first.
                let change = new_attribute(call)?;
                WriteCall::Change { at: path_at(None, 0)?, flags: no_follow(follow), change }
            }
            Shape::RemoveAttribute { follow } => {
                let change = removed_attribute(call, argument(1))?;
                WriteCall::Change { at: path_at(None, 0)?, flags: no_follow(follow), change }
            }
            Shape::SetAttributeAt | Shape::RemoveAttributeAt => {
                let sets = matches!(shape, Shape::SetAttributeAt);
                let arguments = if sets { Some(attribute_arguments(call)?) } else { None };
                let flags = at_flags(Some(2), AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH)?;
                let change = match arguments {
                    Some(arguments) => attribute(call, argument(3), arguments)?,
                    None => removed_attribute(call, argument(3))?,
                };
                let at = match argument(1) {
                    0 if may_be_empty => PathArgument { dir: dir_of(Some(0)), path: Vec::new() },
                    _ => path_at(Some(0), 1)?,
                };
                match at.path.is_empty() && at.dir >= 0 {
                    true => WriteCall::ChangeOpen { fd: at.dir, change },
                    false => WriteCall::Change { at, flags, change },
                }
            }
            Shape::OpenFileMode => WriteCall::ChangeOpen {
                fd: argument(0) as i32,
                change: Change::Mode(argument(1) as u32),
            },
            Shape::OpenFileOwner => WriteCall::ChangeOpen {
                fd: argument(0) as i32,
                change: Change::Owner(argument(1) as u32, argument(2) as u32),
            },
            Shape::OpenFileAttribute => {
                let change = new_attribute(call)?;
                WriteCall::ChangeOpen { fd: argument(0) as i32, change }
            }
            Shape::OpenFileWithoutAttribute => {
                let change = removed_attribute(call, argument(1))?;
                WriteCall::ChangeOpen { fd: argument(0) as i32, change }
            }
            Shape::Bind => {
                let length = argument(2) as u32 as usize;
                if length > MAX_ADDRESS_BYTES {
                    return Err(Errno::INVAL);
                }
                let address = memory.bytes(argument(1), length)?;
                WriteCall::Bind { socket: argument(0) as i32, address }
            }
            Shape::Ruleset => WriteCall::ScopedRuleset { scopes: scopes_alone(call)? },
        }))
    }
}

/// Flags that open(2) refuses before it reads the path (build_open_flags() of the kernel).
fn check_open_flags(flags: OFlags) -> Result<(), Errno> {
    let unnamed = flags.intersects(OFlags::TMPFILE.difference(OFlags::DIRECTORY));
    let is_directory = flags.contains(OFlags::DIRECTORY);
    let writes = flags.intersects(OFlags::WRONLY | OFlags::RDWR);
    let makes_directory = is_directory && flags.contains(OFlags::CREATE);
    match makes_directory || (unnamed && !(is_directory && writes)) {
        true => Err(Errno::INVAL),
        false => Ok(()),
    }
}

/// sizeof(struct sockaddr_storage).
const MAX_ADDRESS_BYTES: usize = 128;

/// The arguments of openat2(2), as the kernel accepts them.
fn open_how(call: &InterceptedCall) -> Result<sys::OpenHow, Errno> {
    let [_, _, address, size, ..] = call.arguments;
    let bytes = copied_struct(call, address, size, sys::OPEN_HOW_BYTES)?;
    let word =
        |index: usize| bytes[8 * index..].first_chunk().map_or(0, |word| u64::from_ne_bytes(*word));
    let how = sys::OpenHow { flags: word(0), mode: word(1), resolve: word(2) };
    // The kernel checks the values before it looks at the descriptor, which is none here.
    match sys::open_how(-1, c"x", how) {
        Err(Errno::BADF) => Ok(how),
        Err(errno) => Err(errno),
        Ok(_) => Err(Errno::INVAL),
    }
}

/// The scopes of a new Landlock ruleset. EOPNOTSUPP, as from a kernel without Landlock: the call
/// asks for the version, or the rules are for files or ports too.
fn scopes_alone(call: &InterceptedCall) -> Result<u64, Errno> {
    let [address, size, flags, ..] = call.arguments;
    if flags != 0 || size < RULESET_BYTES as u64 {
        return Err(Errno::OPNOTSUPP);
    }
    let bytes = copied_struct(call, address, size, RULESET_BYTES)?;
    let word =
        |index: usize| bytes[8 * index..].first_chunk().map_or(0, |word| u64::from_ne_bytes(*word));
    match (word(0), word(1), word(2)) {
        (0, 0, scopes) if scopes != 0 => Ok(scopes),
        _ => Err(Errno::OPNOTSUPP),
    }
}

/// The size of `struct landlock_ruleset_attr` with scopes.
const RULESET_BYTES: usize = 24;

const PAGE_BYTES: usize = 4096;

/// `struct xattr_args`.
struct AttributeArguments {
    value: u64,
    length: u64,
    flags: u32,
}

const ATTRIBUTE_ARGUMENTS_BYTES: usize = 16;

fn attribute_arguments(call: &InterceptedCall) -> Result<AttributeArguments, Errno> {
    let bytes =
        copied_struct(call, call.arguments[4], call.arguments[5], ATTRIBUTE_ARGUMENTS_BYTES)?;
    let (value, rest) = bytes.split_first_chunk().ok_or(Errno::FAULT)?;
    let (length, rest) = rest.split_first_chunk().ok_or(Errno::FAULT)?;
    let (flags, _) = rest.split_first_chunk().ok_or(Errno::FAULT)?;
    Ok(AttributeArguments {
        value: u64::from_ne_bytes(*value),
        length: u32::from_ne_bytes(*length).into(),
        flags: u32::from_ne_bytes(*flags),
    })
}

/// A struct that may grow: the kernel accepts a longer one if the rest is zero.
fn copied_struct(
    call: &InterceptedCall,
    address: u64,
    size: u64,
    known: usize,
) -> Result<Vec<u8>, Errno> {
    let size = usize::try_from(size).map_err(|_| Errno::TOOBIG)?;
    match size {
        size if size < known => return Err(Errno::INVAL),
        size if size > PAGE_BYTES => return Err(Errno::TOOBIG),
        _ => {}
    }
    let bytes = ProcessMemory::of(call.thread).bytes(address, size)?;
    match bytes[known..].iter().any(|byte| *byte != 0) {
        true => Err(Errno::TOOBIG),
        false => Ok(bytes),
    }
}

fn new_attribute(call: &InterceptedCall) -> Result<Change, Errno> {
    let [_, name, value, length, flags, _] = call.arguments;
    attribute(call, name, AttributeArguments { value, length, flags: flags as u32 })
}

fn attribute(
    call: &InterceptedCall,
    name: u64,
    arguments: AttributeArguments,
) -> Result<Change, Errno> {
    let AttributeArguments { value, length, flags } = arguments;
    const KNOWN_FLAGS: u32 = (libc::XATTR_CREATE | libc::XATTR_REPLACE) as u32;
    if flags & !KNOWN_FLAGS != 0 {
        return Err(Errno::INVAL);
    }
    let mut memory = ProcessMemory::of(call.thread);
    let name = attribute_name(&mut memory, name)?;
    let length = usize::try_from(length).map_err(|_| Errno::TOOBIG)?;
    if length > MAX_ATTRIBUTE_BYTES {
        return Err(Errno::TOOBIG);
    }
    let value = memory.bytes(value, length)?;
    Ok(Change::SetAttribute { name, value, flags })
}

fn removed_attribute(call: &InterceptedCall, name: u64) -> Result<Change, Errno> {
    let name = attribute_name(&mut ProcessMemory::of(call.thread), name)?;
    Ok(Change::RemoveAttribute { name })
}

fn no_follow(follow: bool) -> AtFlags {
    if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW }
}

fn attribute_name(memory: &mut ProcessMemory, address: u64) -> Result<Vec<u8>, Errno> {
    let mut name = Vec::new();
    memory.string(address, MAX_ATTRIBUTE_NAME_BYTES, Errno::RANGE, &mut name)?;
    if name.is_empty() { Err(Errno::RANGE) } else { Ok(name) }
}

fn times(memory: &mut ProcessMemory, address: u64, unit: TimeUnit) -> Result<Timestamps, Errno> {
    let now = Timespec { tv_sec: 0, tv_nsec: libc::UTIME_NOW };
    if address == 0 {
        return Ok(Timestamps { last_access: now, last_modification: now });
    }
    let mut word = |index: u64| {
        let at = address.checked_add(8 * index).ok_or(Errno::FAULT)?;
        memory.word(at).map(|word| word as i64)
    };
    let mut time = |index: u64| {
        Ok(match unit {
            TimeUnit::Seconds => Timespec { tv_sec: word(index)?, tv_nsec: 0 },
            TimeUnit::Microseconds => {
                let (tv_sec, micros) = (word(2 * index)?, word(2 * index + 1)?);
                if !(0..1_000_000).contains(&micros) {
                    return Err(Errno::INVAL);
                }
                Timespec { tv_sec, tv_nsec: 1000 * micros }
            }
            TimeUnit::Nanoseconds => {
                Timespec { tv_sec: word(2 * index)?, tv_nsec: word(2 * index + 1)? }
            }
        })
    };
    Ok(Timestamps { last_access: time(0)?, last_modification: time(1)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradictory_open_flags_are_refused() {
        let tmpfile = OFlags::TMPFILE;
        for (flags, is_valid) in [
            (OFlags::RDONLY, true),
            (OFlags::WRONLY | OFlags::CREATE, true),
            (OFlags::RDONLY | OFlags::DIRECTORY, true),
            (OFlags::WRONLY | OFlags::CREATE | OFlags::DIRECTORY, false),
            (OFlags::RDWR | tmpfile, true),
            (OFlags::RDONLY | tmpfile, false),
            (OFlags::RDONLY | OFlags::TRUNC | tmpfile, false),
            (OFlags::RDWR | OFlags::CREATE | tmpfile, false),
            (OFlags::RDWR | tmpfile.difference(OFlags::DIRECTORY), false),
        ] {
            assert_eq!(check_open_flags(flags).is_ok(), is_valid, "{flags:?}");
        }
    }
}
