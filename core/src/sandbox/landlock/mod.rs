//! The plan's grants become Landlock rules, and places for the mounts of the full tier.
//!
//! Landlock only ever adds: a rule on a directory covers everything below it. A deny inside an
//! allow is therefore carved: the directory gets no rule, its entries do, all but the excepted one
//! and the directories on the way to it, which are carved in turn. Nothing can then be created in a
//! carved directory, so an excepted name that does not exist can not appear either. In the full
//! tier nothing is carved: mounts cover what is denied. What was asked for (`requested_`) and what
//! holds (`actual_`) are kept apart and reported.

mod covered_grants;
mod error;
pub mod grant_location;

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use landlock::AccessNet;
use rustix::fs::{CWD, FileType, Mode, OFlags, RawDir, ResolveFlags, Stat};
use rustix::io::Errno;

use crate::files::home_listing::{HomeListing, Seen};
use crate::files::previously_writable::{Reach, absolute};
use crate::journal::Journal;
use crate::kernel::resolved_path::{self, Identity, Link, Place};
use crate::kernel::sys;
use crate::plan::rights::{self, Rights};
use crate::plan::wire::bytes::AbsPath;
use crate::plan::{self, Grant, Plan, Tier};

pub use error::FilesError;
pub use grant_location::Placed;

/// A grant that was left out, and the excepted path that is the reason.
pub struct Removed<'p> {
    pub grant: &'p Grant,
    pub except: AbsPath,
}

pub struct Carved<'p> {
    pub grant: &'p Grant,
    pub kept_out: Vec<AbsPath>,
}

/// The rules as they stand in the kernel, and what became of each grant.
pub struct Files<'p> {
    ruleset: Option<BorrowedFd<'p>>,
    pub placed: Vec<Placed<'p>>,
    pub rules: usize,
    /// Grants that gave at least one rule.
    pub actual_paths: usize,
    pub skipped: Vec<&'p Grant>,
    pub removed: Vec<Removed<'p>>,
    pub carved: Vec<Carved<'p>>,
    pub warnings: Vec<String>,
    /// What the plan asks for and the kernel does not hold, where the plan puts up with that.
    pub unenforced: Vec<String>,
    granted: Vec<(Identity, &'p Grant)>,
    /// Closed and unwritable places whose names go through a symlink.
    linked: Vec<&'p AbsPath>,
    checked_devices: Vec<u64>,
    pub home: HomeListing<'p>,
}

/// Something opened for a rule.
struct Opened {
    fd: OwnedFd,
    stat: Stat,
    /// Where the path leads, if a symlink is on the way; otherwise it leads where it says.
    led_to: Option<AbsPath>,
    links: Vec<Link>,
}

impl Opened {
    fn is_dir(&self) -> bool {
        is_dir(&self.stat)
    }

    /// A rule is on the file, whichever of its names it was granted by.
    fn has_other_names(&self) -> bool {
        !self.is_dir() && self.stat.st_nlink > 1
    }
}

/// A network that no namespace fences.
fn is_pinned(plan: &Plan) -> bool {
    plan.tier == Tier::Landlock && plan.network.is_some()
}

fn is_dir(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

/// An excepted path with the places it stands for.
struct Except<'p> {
    path: &'p AbsPath,
    places: Vec<Place>,
}

impl<'p> Files<'p> {
    /// None when the plan leaves the files open. `ruleset` is what the rules are added to,
    /// `journal` the one that is open already.
    pub fn prepare(
        plan: &'p Plan,
        ruleset: Option<BorrowedFd<'p>>,
        journal: Option<&Journal>,
    ) -> Result<Option<Files<'p>>, FilesError> {
        let Some(requested) = &plan.files else { return Ok(None) };
        let here = check_standing(plan)?;
        Files::lay(plan, requested, ruleset, journal, Some(here)).map(Some)
    }

    /// For who may stand anywhere: a shell's fence has no place of its own.
    pub fn anywhere(plan: &'p Plan, ruleset: Option<BorrowedFd<'p>>) -> Result<(), FilesError> {
        match &plan.files {
            Some(requested) => Files::lay(plan, requested, ruleset, None, None).map(drop),
            None => Ok(()),
        }
    }

    fn lay(
        plan: &'p Plan,
        requested: &'p plan::Files,
        ruleset: Option<BorrowedFd<'p>>,
        journal: Option<&Journal>,
        here: Option<Identity>,
    ) -> Result<Files<'p>, FilesError> {
        let home = HomeListing::at(&plan.user.home);
        let mut files = Files {
            ruleset,
            placed: Vec::with_capacity(32),
            rules: 0,
            actual_paths: 0,
            skipped: Vec::new(),
            removed: Vec::new(),
            carved: Vec::new(),
            warnings: Vec::new(),
            unenforced: Vec::new(),
            granted: Vec::with_capacity(requested.grants.len()),
            linked: through_links(requested, &home),
            checked_devices: Vec::new(),
            home,
        };
        if plan.container.is_some() {
            // None of them is a place of the host: their rules are made when the container has its
            // root.
            files.rules = requested.grants.len();
            files.actual_paths = files.rules;
            return Ok(files);
        }
        let reach = Reach::of(plan, requested);
        check_own_ways(requested, &files.linked, &reach)?;
        for grant in &requested.grants {
            if grant.optional && files.home.of(&grant.path) == Seen::Missing {
                files.skipped.push(grant);
            } else if plan.tier != Tier::Full || !plan::is_made_anew(&grant.path) {
                files.grant(plan, requested, grant, &reach, here)?;
            } // The rules of places that the full tier makes anew have to wait until these exist.
        }
        if let Some(kept) = &plan.journal {
            files.check_journal(plan, requested, &kept.dir, journal)?;
        }
        Ok(files)
    }

    /// The private temporary directory, made after everything else was prepared.
    pub fn grant_temp(&mut self, dir: impl AsFd, rights: Rights) -> Result<(), FilesError> {
        let Some(ruleset) = self.ruleset else { return Ok(()) };
        sys::landlock_add_rule(ruleset, rights.bits(), dir.as_fd()).map_err(FilesError::Temp)
    }

    /// Unix sockets that are granted by their own names.
    pub fn sockets(&self) -> Vec<(AbsPath, Identity)> {
        let sockets = self.placed.iter().filter(|placed| placed.socket);
        sockets.map(|placed| (placed.real.clone(), placed.identity)).collect()
    }

    fn grant(
        &mut self,
        plan: &Plan,
        requested: &'p plan::Files,
        grant: &'p Grant,
        reach: &Reach<'_>,
        here: Option<Identity>,
    ) -> Result<(), FilesError> {
        let rights = plan.rights(&grant.access);
        let opened = match open(grant) {
            Ok(opened) => match check_way(grant, &opened, reach)? {
                Some(misled) if grant.optional => {
                    self.warnings.push(misled.to_string());
                    self.skipped.push(grant);
                    return Ok(());
                }
                Some(misled) => return Err(misled),
                None if grant.path == plan.cwd
                    && here.is_some_and(|here| here != Identity::from(&opened.stat)) =>
                {
                    return Err(FilesError::Moved { path: plan.cwd.clone() });
                }
                None => opened,
            },
            Err(_) if grant.optional => {
                self.skipped.push(grant);
                return Ok(());
            }
            Err(Errno::NOENT | Errno::NOTDIR) => {
                return Err(FilesError::Missing { path: grant.path.clone(), from: grant.source() });
            }
            Err(source) => return Err(open_error(grant, source)),
        };
        let before = self.granted.len();
        let excepts = excepts(requested, grant, &opened, &self.linked)?;
        if excepts.is_empty() {
            self.grant_whole(plan, grant, &opened, rights)?;
        } else {
            self.grant_around(plan, grant, &opened, rights, &excepts)?;
        }
        self.actual_paths += usize::from(self.granted.len() > before);
        Ok(())
    }

    fn grant_whole(
        &mut self,
        plan: &Plan,
        grant: &'p Grant,
        opened: &Opened,
        rights: Rights,
    ) -> Result<(), FilesError> {
        self.placed.push(Placed {
            grant,
            real: opened.led_to.clone().unwrap_or_else(|| grant.path.clone()),
            identity: Identity::from(&opened.stat),
            directory: opened.is_dir(),
            socket: FileType::from_raw_mode(opened.stat.st_mode) == FileType::Socket,
            links: opened.links.iter().map(grant_location::Signpost::from).collect(),
        });
        self.add_rule(plan, grant, &opened.fd, &opened.stat, rights)
    }

    fn grant_around(
        &mut self,
        plan: &Plan,
        grant: &'p Grant,
        opened: &Opened,
        rights: Rights,
        excepts: &[Except<'p>],
    ) -> Result<(), FilesError> {
        let own = if opened.is_dir() {
            Place::of_dir(&opened.fd)
        } else {
            resolved_path::place_of_file(&opened.fd)
        };
        let own = own.map_err(|source| open_error(grant, source))?;
        let inside = |place: &Place| {
            place.object.is_some_and(|object| own.above.contains(&object))
                || place.object == own.object
        };
        if let Some(except) = excepts.iter().find(|except| except.places.iter().any(inside)) {
            if opened.led_to.is_some() || opened.has_other_names() {
                self.warnings.push(format!(
                    "the grant of {} leads into {}, which is denied, so Paddock ignores the grant",
                    grant.path, except.path
                ));
            }
            self.removed.push(Removed { grant, except: except.path.clone() });
            return Ok(());
        }
        let below = |place: &&Place| own.object.is_some_and(|object| place.above.contains(&object));
        let places: Vec<&Place> =
            excepts.iter().flat_map(|except| &except.places).filter(below).collect();
        // Inside namespaces these are covered by mounts.
        if places.is_empty() || plan.tier == Tier::Full {
            return self.grant_whole(plan, grant, opened, rights);
        }
        let kept_out: Vec<AbsPath> = excepts
            .iter()
            .filter(|except| except.places.iter().any(|place| below(&place)))
            .map(|except| except.path.clone())
            .collect();
        self.carve(plan, grant, opened.fd.as_fd(), rights, &places, &kept_out)?;
        self.carved.push(Carved { grant, kept_out });
        Ok(())
    }

    /// A rule for every entry of `dir` that is neither excepted nor on the way to something
    /// excepted.
    fn carve(
        &mut self,
        plan: &Plan,
        grant: &'p Grant,
        dir: impl AsFd,
        rights: Rights,
        places: &[&Place],
        kept_out: &[AbsPath],
    ) -> Result<(), FilesError> {
        let list_error = |source| FilesError::List {
            path: grant.path.clone(),
            except: kept_out.first().unwrap_or(&grant.path).clone(),
            from: grant.source(),
            source,
        };
        let mut add = |fd: &OwnedFd, stat: &Stat| self.add_rule(plan, grant, fd, stat, rights);
        around(dir.as_fd(), places, &list_error, &mut add)
    }

    fn add_rule(
        &mut self,
        plan: &Plan,
        grant: &'p Grant,
        fd: &OwnedFd,
        stat: &Stat,
        rights: Rights,
    ) -> Result<(), FilesError> {
        self.check_file_system(plan, grant, fd, stat.st_dev)?;
        if let Some(ruleset) = self.ruleset {
            let actual_rights = if is_dir(stat) { rights } else { rights::on_a_file(rights) };
            if actual_rights.is_empty() {
                return Ok(());
            }
            let refused = |source| FilesError::AddRule {
                path: grant.path.clone(),
                from: grant.source(),
                source,
            };
            sys::landlock_add_rule(ruleset, actual_rights.bits(), fd.as_fd()).map_err(refused)?;
            self.rules += 1;
        }
        self.granted.push((Identity::from(stat), grant));
        Ok(())
    }

    /// Files of a server can change behind Landlock's back, and their inodes with them: each device
    /// is looked at once.
    fn check_file_system(
        &mut self,
        plan: &Plan,
        grant: &Grant,
        fd: &OwnedFd,
        device: u64,
    ) -> Result<(), FilesError> {
        if self.checked_devices.contains(&device) {
            return Ok(());
        }
        let kind = rustix::fs::fstatfs(fd).map_err(|source| open_error(grant, source))?.f_type;
        match file_system(kind as u32) {
            FileSystem::Local => {}
            FileSystem::Fuse => self.warnings.push(format!(
                "{} is on a FUSE file system: its server sees every access and may return another \
                    file for a name",
                grant.path
            )),
            // The mounts of the full tier hold there too.
            FileSystem::Remote(_) if plan.tier == Tier::Full => {}
            FileSystem::Remote(kind) if plan.require_enforced => {
                return Err(FilesError::Remote {
                    path: grant.path.clone(),
                    kind,
                    from: grant.source(),
                });
            }
            FileSystem::Remote(kind) => self.unenforced.push(format!(
                "{} is on a remote file system ({kind}), where Landlock cannot \
                    enforce rules",
                grant.path
            )),
        }
        self.checked_devices.push(device);
        Ok(())
    }

    /// The journal is neither readable nor writable from inside, whatever the plan grants: neither
    /// what its name leads to now nor what was opened.
    fn check_journal(
        &self,
        plan: &Plan,
        requested: &plan::Files,
        journal: &AbsPath,
        opened: Option<&Journal>,
    ) -> Result<(), FilesError> {
        let exposed = |grant: &Grant| FilesError::JournalExposed {
            journal: journal.clone(),
            path: grant.path.clone(),
            from: grant.source(),
        };
        let locate = |source| FilesError::Locate { path: journal.clone(), source };
        let mut places = Place::all_of(journal.as_bytes()).map_err(locate)?;
        let opened =
            opened.map(|opened| Place::of_dir(opened.dir())).transpose().map_err(locate)?;
        // Inside namespaces what is closed is masked, also where a grant is above it: if it is
        // still what has that name.
        let named =
            |opened: &Place| places.last().is_some_and(|place| place.object == opened.object);
        if plan.tier == Tier::Full
            && requested.closed.contains(journal)
            && opened.as_ref().is_none_or(named)
        {
            return Ok(());
        }
        places.extend(opened);
        for (identity, grant) in &self.granted {
            if places.iter().any(|place| place.is_within(*identity))
                || grant.path.is_within(journal)
            {
                return Err(exposed(grant));
            }
        }
        Ok(())
    }
}

/// Calls `add` for every entry of `dir` that is neither one of `places` nor a directory above one.
/// Directories above one are listed in turn.
pub fn around<E>(
    dir: BorrowedFd<'_>,
    places: &[&Place],
    list_error: &impl Fn(Errno) -> E,
    add: &mut impl FnMut(&OwnedFd, &Stat) -> Result<(), E>,
) -> Result<(), E> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let listed = rustix::fs::openat(dir, c".", flags, Mode::empty()).map_err(list_error)?;
    let mut buffer = Vec::with_capacity(16 * 1024);
    let mut entries = RawDir::new(&listed, buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let entry = entry.map_err(list_error)?;
        let name = entry.file_name();
        // A symlink gets no rule: what it points to has its own, or none.
        if name == c"." || name == c".." || entry.file_type() == FileType::Symlink {
            continue;
        }
        let fd = match resolved_path::open_entry(&listed, name) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => continue, // gone since it was listed
            Err(source) => return Err(list_error(source)),
        };
        let stat = rustix::fs::fstat(&fd).map_err(list_error)?;
        let identity = Identity::from(&stat);
        if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink
            || places.iter().any(|place| place.object == Some(identity))
        {
            continue;
        }
        if places.iter().any(|place| place.above.contains(&identity)) {
            around(fd.as_fd(), places, list_error, add)?;
        } else {
            add(&fd, &stat)?;
        }
    }
    Ok(())
}

/// The ABI that knows of TCP ports.
const PORTS_SINCE: i32 = 4;

/// An empty one, and the ABI that this kernel has. Where the network is fenced in the landlock
/// tier, no connection and no port is the command's own: the supervisor, who is not in here, has
/// those that are granted.
pub fn create_ruleset(
    plan: &Plan,
    requested: &plan::Landlock,
) -> Result<(OwnedFd, i32), FilesError> {
    let fenced = is_pinned(plan);
    let actual_abi = sys::landlock_abi().map_err(FilesError::NoLandlock)?;
    if actual_abi < requested.abi {
        return Err(FilesError::OldAbi { requested: requested.abi, actual: actual_abi });
    }
    // Rights and scopes are those of an ABI that this kernel has; the plan was checked for that.
    let ports = if fenced && actual_abi >= PORTS_SINCE {
        (AccessNet::BindTcp | AccessNet::ConnectTcp).bits()
    } else {
        0
    };
    let ruleset =
        sys::landlock_create_ruleset(requested.handled.bits(), ports, requested.scoped.bits());
    Ok((ruleset.map_err(FilesError::Create)?, actual_abi))
}

fn open_error(grant: &Grant, source: Errno) -> FilesError {
    FilesError::Open { path: grant.path.clone(), from: grant.source(), source }
}

fn open(grant: &Grant) -> Result<Opened, Errno> {
    let opened = |path: &CStr| {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let fd = rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?;
        let stat = rustix::fs::fstat(&fd)?;
        Ok((fd, stat))
    };
    match opened(&grant.path.as_c_str()) {
        Ok((fd, stat)) => Ok(Opened { fd, stat, led_to: None, links: Vec::new() }),
        // There is a symlink on the way. What the walk found is opened without following any more.
        Err(Errno::LOOP) => {
            let followed = resolved_path::follow(grant.path.as_bytes())?;
            let real = absolute(followed.real)?;
            let (fd, stat) = opened(&real.as_c_str())?;
            Ok(Opened { fd, stat, led_to: Some(real), links: followed.links })
        }
        Err(error) => Err(error),
    }
}

/// The process stands where the plan says. Its name may have been given to something else since the
/// plan was compiled.
fn check_standing(plan: &Plan) -> Result<Identity, FilesError> {
    let moved = |_| FilesError::Moved { path: plan.cwd.clone() };
    let here = resolved_path::of_current_directory().map_err(moved)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let named = rustix::fs::openat2(
        CWD,
        plan.cwd.as_c_str(),
        flags,
        Mode::empty(),
        ResolveFlags::NO_SYMLINKS,
    );
    let named = named.and_then(rustix::fs::fstat).map_err(moved)?;
    if Identity::from(&named) == here {
        Ok(here)
    } else {
        Err(FilesError::Moved { path: plan.cwd.clone() })
    }
}

/// What a fenced command can write, it can turn into a link to anywhere, before the next run or
/// during this start.
fn check_way(
    grant: &Grant,
    opened: &Opened,
    reach: &Reach<'_>,
) -> Result<Option<FilesError>, FilesError> {
    let Some(real) = &opened.led_to else { return Ok(None) };
    let (path, from) = (grant.path.clone(), grant.source());
    if let Some(dir) = reach.planted(&opened.links)? {
        return Ok(Some(FilesError::Planted { path, dir, from }));
    }
    // Its owner may have turned the link since. What nobody knows to be written would be believed
    // by later runs.
    if grant.writes() && !reach.is_recorded(real, Identity::from(&opened.stat)) {
        return Ok(Some(FilesError::Unrecorded { path, real: real.clone(), from }));
    }
    Ok(None)
}

/// Paddock's own places must not be reached through a link that the command could change: the next
/// run would find others. A link that is itself such a place is kept out of every grant, or locked.
fn check_own_ways(
    requested: &plan::Files,
    linked: &[&AbsPath],
    reach: &Reach<'_>,
) -> Result<(), FilesError> {
    let own = |at: &AbsPath| requested.unwritable.iter().any(|own| at.is_within(own));
    let is_own = |link: &Link| absolute(link.at.clone()).is_ok_and(|at| own(&at));
    for path in requested.unwritable.iter().filter(|path| linked.contains(path)) {
        let way = resolved_path::follow(path.as_bytes())
            .map_err(|source| FilesError::Locate { path: path.clone(), source })?;
        if let Some(dir) = reach.planted(way.links.iter().filter(|link| !is_own(link)))? {
            return Err(FilesError::OwnWay { path: path.clone(), dir });
        }
    }
    Ok(())
}

/// The journal is written outside the fence: no command may choose where. To be asked before it is
/// opened.
pub fn check_journal_way(plan: &Plan) -> Result<(), FilesError> {
    let (Some(journal), Some(requested)) = (&plan.journal, &plan.files) else { return Ok(()) };
    let journal = &journal.dir;
    let locate = |source| FilesError::Locate { path: journal.clone(), source };
    let way = resolved_path::follow(journal.as_bytes()).map_err(locate)?;
    match Reach::of(plan, requested).planted(&way.links)? {
        Some(dir) => Err(FilesError::JournalWay { journal: journal.clone(), dir }),
        None => Ok(()),
    }
}

/// What must stay outside a grant: its own excepts and, where a symlink is on the way or the file
/// has other names, every closed place. The plan is written by names; a link may lead a grant to a
/// place that is closed under another name, or a closed name to a place that is granted.
fn excepts<'p>(
    requested: &'p plan::Files,
    grant: &'p Grant,
    opened: &Opened,
    linked: &[&'p AbsPath],
) -> Result<Vec<Except<'p>>, FilesError> {
    let unwritable: &[AbsPath] = if grant.writes() { &requested.unwritable } else { &[] };
    let mut paths: Vec<&'p AbsPath> = grant.except.iter().collect();
    let closed = requested.closed.iter().chain(unwritable);
    // Closed names without a link lead where they say, so letters are enough to compare them with
    // where the grant leads.
    let led_to = opened.led_to.as_ref();
    let met =
        |path: &AbsPath| led_to.is_some_and(|place| path.is_within(place) || place.is_within(path));
    let other_names = opened.has_other_names();
    if other_names || led_to.is_some() || !linked.is_empty() {
        paths.extend(closed.filter(|path| other_names || met(path) || linked.contains(path)));
    }
    paths.sort_unstable();
    paths.dedup();
    paths
        .into_iter()
        .map(|path| match Place::all_of(path.as_bytes()) {
            Ok(places) => Ok(Except { path, places }),
            Err(source) => Err(FilesError::Locate { path: path.clone(), source }),
        })
        .collect()
}

/// The closed places whose names go through a symlink, or might: only these can lie where their
/// names do not say.
fn through_links<'p>(requested: &'p plan::Files, home: &HomeListing<'_>) -> Vec<&'p AbsPath> {
    let linked = |path: &&AbsPath| {
        if home.of(path) != Seen::Unknown {
            return false;
        }
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let opened = rustix::fs::openat2(
            CWD,
            path.as_c_str(),
            flags,
            Mode::empty(),
            ResolveFlags::NO_SYMLINKS,
        );
        // ELOOP: there is one. ENOSYS: an outer filter hides openat2. EACCES: somebody shut a
        // directory on the way.
        !matches!(opened, Ok(_) | Err(Errno::NOENT | Errno::NOTDIR))
    };
    requested.closed.iter().chain(&requested.unwritable).filter(linked).collect()
}

#[derive(Debug, PartialEq, Eq)]
enum FileSystem {
    Local,
    Fuse,
    Remote(&'static str),
}

/// By the numbers of statfs(2).
fn file_system(kind: u32) -> FileSystem {
    match kind {
        0x6969 => FileSystem::Remote("NFS"),
        0x517B | 0xFF53_4D42 | 0xFE53_4D42 => FileSystem::Remote("SMB"),
        0x0102_1997 => FileSystem::Remote("9p"),
        0x5346_414F | 0x6B41_4653 => FileSystem::Remote("AFS"),
        0x00C3_6400 => FileSystem::Remote("Ceph"),
        0x7375_7245 => FileSystem::Remote("Coda"),
        0x6573_5546 => FileSystem::Fuse,
        _ => FileSystem::Local,
    }
}

#[cfg(test)]
mod tests;
