//! The plan's grants become Landlock rules, and locations for the mounts of the full tier.
//!
//! Landlock only adds rights: a rule on a directory covers everything below it. So a deny inside an
//! allow is carved. The directory gets no rule, but its entries do, all but the excepted one and
//! the directories above it, which are carved in turn. Nothing can then be created in a carved
//! directory, so an excepted name that does not exist can not appear. In the full tier nothing is
//! carved: mounts cover denied names. What was requested (`requested_`) and what is enforced
//! (`actual_`) are kept apart and reported.

mod covered_grants;
mod error;
pub mod grant_location;

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use landlock::{AccessFs, AccessNet};
use rustix::fs::{CWD, FileType, Mode, OFlags, RawDir, ResolveFlags, Stat};
use rustix::io::Errno;

use crate::files::home_listing::{HomeEntry, HomeListing};
use crate::files::previously_writable::{WritableHistory, absolute};
use crate::journal::Journal;
use crate::kernel::resolved_path::{self, FollowedLink, Identity, ResolvedPath};
use crate::kernel::{open_beneath, sys};
use crate::plan::rights::{self, Rights};
use crate::plan::wire::bytes::AbsPath;
use crate::plan::{self, Grant, Plan, Tier};

pub use error::GrantError;
pub use grant_location::GrantLocation;

/// A grant that was left out, and the excepted path that is the reason.
pub struct RemovedGrant<'p> {
    pub grant: &'p Grant,
    pub except: AbsPath,
}

pub struct CarvedGrant<'p> {
    pub grant: &'p Grant,
    pub kept_out: Vec<AbsPath>,
}

/// The rules in the kernel, and the result for each grant.
pub struct FileGrants<'p> {
    ruleset: Option<BorrowedFd<'p>>,
    /// The rules of init, if they are other rules.
    init_ruleset: Option<BorrowedFd<'p>>,
    pub locations: Vec<GrantLocation<'p>>,
    pub rules: usize,
    /// Grants that gave at least one rule.
    pub actual_paths: usize,
    pub skipped: Vec<&'p Grant>,
    pub removed: Vec<RemovedGrant<'p>>,
    pub carved: Vec<CarvedGrant<'p>>,
    pub warnings: Vec<String>,
    /// Parts of the plan that the kernel does not enforce, if the plan accepts that.
    pub unenforced: Vec<String>,
    granted: Vec<(Identity, &'p Grant)>,
    /// Closed and unwritable paths that go through a symlink.
    linked: Vec<&'p AbsPath>,
    checked_devices: Vec<u64>,
    /// Is the host's /tmp hidden where no grant names it?
    hides_temp: bool,
    pub home: HomeListing<'p>,
}

/// An object that was opened for a rule.
struct OpenedGrant {
    fd: OwnedFd,
    stat: Stat,
    /// The resolved path, if a symlink is on the way. None: the path itself.
    led_to: Option<AbsPath>,
    links: Vec<FollowedLink>,
}

impl OpenedGrant {
    fn is_dir(&self) -> bool {
        is_dir(&self.stat)
    }

    /// Does the file have several hard links? A rule applies to the file, under all its names.
    fn has_other_names(&self) -> bool {
        !self.is_dir() && self.stat.st_nlink > 1
    }
}

/// Is the network filtered without a namespace?
fn supervises_network(plan: &Plan) -> bool {
    plan.tier == Tier::Landlock && plan.network.is_some()
}

/// The rights to read files and list directories, as far as the rules restrict them.
fn reading(requested: &plan::Landlock) -> Rights {
    requested.handled & (AccessFs::ReadFile | AccessFs::ReadDir)
}

/// Adds a rule that allows reading below a directory.
pub fn allow_reading(
    ruleset: BorrowedFd<'_>,
    requested: &plan::Landlock,
    dir: BorrowedFd<'_>,
) -> Result<(), Errno> {
    sys::landlock_add_rule(ruleset, reading(requested).bits(), dir)
}

/// Does one grant of the full tier allow reading all of /proc?
pub fn grants_reading_proc(plan: &Plan, requested: &plan::Landlock) -> bool {
    let needed = reading(requested);
    let covers = |grant: &Grant| {
        matches!(grant.path.as_bytes(), b"/" | b"/proc")
            && plan.rights(&grant.access).contains(needed)
    };
    needed.is_empty() || plan.files.iter().any(|files| files.grants.iter().any(covers))
}

fn is_dir(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

/// An excepted path with its resolved paths.
struct ExceptedPath<'p> {
    path: &'p AbsPath,
    places: Vec<ResolvedPath>,
}

impl<'p> FileGrants<'p> {
    /// None if the plan does not restrict files. The rules are added to `ruleset`. `journal` is the
    /// open journal.
    pub fn prepare(
        plan: &'p Plan,
        ruleset: Option<BorrowedFd<'p>>,
        journal: Option<&Journal>,
    ) -> Result<Option<FileGrants<'p>>, GrantError> {
        let Some(requested) = &plan.files else { return Ok(None) };
        let here = check_working_dir(plan)?;
        FileGrants::lay(plan, requested, ruleset, journal, Some(here)).map(Some)
    }

    /// For a shell, which may start in any working directory.
    pub fn anywhere(plan: &'p Plan, ruleset: Option<BorrowedFd<'p>>) -> Result<(), GrantError> {
        match &plan.files {
            Some(requested) => FileGrants::lay(plan, requested, ruleset, None, None).map(drop),
            None => Ok(()),
        }
    }

    fn lay(
        plan: &'p Plan,
        requested: &'p plan::FilesPlan,
        ruleset: Option<BorrowedFd<'p>>,
        journal: Option<&Journal>,
        here: Option<Identity>,
    ) -> Result<FileGrants<'p>, GrantError> {
        let home = HomeListing::at(&plan.user.home);
        let mut files = FileGrants {
            ruleset,
            init_ruleset: None,
            locations: Vec::with_capacity(32),
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
            hides_temp: plan.tier == Tier::Full,
            home,
        };
        if plan.container.is_some() {
            // These are no paths of the host. Their rules are added when the container has its
            // root.
            files.rules = requested.grants.len();
            files.actual_paths = files.rules;
            return Ok(files);
        }
        let previously_writable = WritableHistory::of(plan, requested);
        check_own_paths(requested, &files.linked, &previously_writable)?;
        for grant in &requested.grants {
            if grant.optional && files.home.of(&grant.path) == HomeEntry::Missing {
                files.skipped.push(grant);
            } else if plan.tier != Tier::Full || !plan::is_private_path(&grant.path) {
                files.grant(plan, requested, grant, &previously_writable, here)?;
            } // The rules of places that the full tier makes anew have to wait until these exist.
        }
        if let Some(journal_plan) = &plan.journal {
            files.check_journal(plan, requested, &journal_plan.dir, journal)?;
        }
        Ok(files)
    }

    /// Grants the private temporary directory, which is made after everything else was prepared.
    pub fn grant_temp(&mut self, dir: impl AsFd, rights: Rights) -> Result<(), GrantError> {
        for ruleset in self.ruleset.iter().chain(&self.init_ruleset) {
            sys::landlock_add_rule(*ruleset, rights.bits(), dir.as_fd())
                .map_err(GrantError::Temp)?;
        }
        Ok(())
    }

    /// Does one rule allow reading all of /proc?
    pub fn allow_reading_proc(&self, plan: &Plan) -> Result<bool, GrantError> {
        let Some(requested) = &plan.landlock else { return Ok(true) };
        let needed = reading(requested);
        if needed.is_empty() {
            return Ok(true);
        }
        for dir in [c"/proc", c"/"] {
            let stat = rustix::fs::stat(dir).map_err(GrantError::Proc)?;
            let covers = |(identity, grant): &(Identity, &Grant)| {
                *identity == Identity::from(&stat) && plan.rights(&grant.access).contains(needed)
            };
            if self.granted.iter().any(covers) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Init gets these rules. They have the rules of the plan already, and get reading of /proc.
    pub fn add_init_rules(
        &mut self,
        ruleset: BorrowedFd<'p>,
        requested: &plan::Landlock,
    ) -> Result<(), GrantError> {
        self.init_ruleset = Some(ruleset);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(c"/proc", flags, Mode::empty())
            .and_then(|proc| allow_reading(ruleset, requested, proc.as_fd()))
            .map_err(GrantError::Proc)
    }

    /// Unix sockets that a grant names.
    pub fn sockets(&self) -> Vec<(AbsPath, Identity)> {
        let sockets = self.locations.iter().filter(|location| location.socket);
        sockets.map(|location| (location.real.clone(), location.identity)).collect()
    }

    fn grant(
        &mut self,
        plan: &Plan,
        requested: &'p plan::FilesPlan,
        grant: &'p Grant,
        previously_writable: &WritableHistory<'_>,
        here: Option<Identity>,
    ) -> Result<(), GrantError> {
        let rights = plan.rights(&grant.access);
        let opened = match open(grant) {
            Ok(opened) => match check_grant_path(grant, &opened, previously_writable)? {
                Some(misled) if grant.optional => {
                    self.warnings.push(misled.to_string());
                    self.skipped.push(grant);
                    return Ok(());
                }
                Some(misled) => return Err(misled),
                None if grant.path == plan.cwd
                    && here.is_some_and(|here| here != Identity::from(&opened.stat)) =>
                {
                    return Err(GrantError::Moved { path: plan.cwd.clone() });
                }
                None => opened,
            },
            Err(_) if grant.optional => {
                self.skipped.push(grant);
                return Ok(());
            }
            Err(Errno::NOENT | Errno::NOTDIR) => {
                return Err(GrantError::Missing { path: grant.path.clone(), from: grant.source() });
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
        opened: &OpenedGrant,
        rights: Rights,
    ) -> Result<(), GrantError> {
        self.locate(grant, opened);
        self.add_rule(plan, grant, &opened.fd, &opened.stat, rights)
    }

    fn locate(&mut self, grant: &'p Grant, opened: &OpenedGrant) {
        self.locations.push(GrantLocation {
            grant,
            real: opened.led_to.clone().unwrap_or_else(|| grant.path.clone()),
            identity: Identity::from(&opened.stat),
            directory: opened.is_dir(),
            socket: FileType::from_raw_mode(opened.stat.st_mode) == FileType::Socket,
            links: opened.links.iter().map(grant_location::GrantSymlink::from).collect(),
        });
    }

    fn grant_around(
        &mut self,
        plan: &Plan,
        grant: &'p Grant,
        opened: &OpenedGrant,
        rights: Rights,
        excepts: &[ExceptedPath<'p>],
    ) -> Result<(), GrantError> {
        let own = if opened.is_dir() {
            ResolvedPath::of_dir(&opened.fd)
        } else {
            resolved_path::resolved_file(&opened.fd)
        };
        let own = own.map_err(|source| open_error(grant, source))?;
        let inside = |place: &ResolvedPath| {
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
            self.removed.push(RemovedGrant { grant, except: except.path.clone() });
            return Ok(());
        }
        let below =
            |place: &&ResolvedPath| own.object.is_some_and(|object| place.above.contains(&object));
        let places: Vec<&ResolvedPath> =
            excepts.iter().flat_map(|except| &except.places).filter(below).collect();
        // In the full tier mounts cover these.
        if places.is_empty() || plan.tier == Tier::Full {
            return self.grant_whole(plan, grant, opened, rights);
        }
        let kept_out: Vec<AbsPath> = excepts
            .iter()
            .filter(|except| except.places.iter().any(|place| below(&place)))
            .map(|except| except.path.clone())
            .collect();
        self.locate(grant, opened);
        self.carve(plan, grant, opened.fd.as_fd(), rights, &places, &kept_out)?;
        self.carved.push(CarvedGrant { grant, kept_out });
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
        places: &[&ResolvedPath],
        kept_out: &[AbsPath],
    ) -> Result<(), GrantError> {
        let list_error = |source| GrantError::List {
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
    ) -> Result<(), GrantError> {
        self.check_file_system(plan, grant, fd, stat.st_dev)?;
        if let Some(ruleset) = self.ruleset {
            let actual_rights = if is_dir(stat) { rights } else { rights::for_file(rights) };
            if actual_rights.is_empty() {
                return Ok(());
            }
            let refused = |source| GrantError::AddRule {
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

    /// Files on a server can change without Landlock, and their inodes with them. Each device is
    /// checked once.
    fn check_file_system(
        &mut self,
        plan: &Plan,
        grant: &Grant,
        fd: &OwnedFd,
        device: u64,
    ) -> Result<(), GrantError> {
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
            // The mounts of the full tier work there too.
            FileSystem::Remote(_) if plan.tier == Tier::Full => {}
            FileSystem::Remote(kind) if plan.require_enforced => {
                let (path, from) = (grant.path.clone(), grant.source());
                return Err(GrantError::Remote { path, kind, from });
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

    /// The command can neither read nor write the journal, whatever the plan grants: neither the
    /// object that its path leads to now, nor the one that is open.
    fn check_journal(
        &self,
        plan: &Plan,
        requested: &plan::FilesPlan,
        journal: &AbsPath,
        opened: Option<&Journal>,
    ) -> Result<(), GrantError> {
        let exposed = |grant: &Grant| GrantError::JournalExposed {
            journal: journal.clone(),
            path: grant.path.clone(),
            from: grant.source(),
        };
        let locate = |source| GrantError::Locate { path: journal.clone(), source };
        let mut places = ResolvedPath::all_of(journal.as_bytes()).map_err(locate)?;
        let opened =
            opened.map(|opened| ResolvedPath::of_dir(opened.dir())).transpose().map_err(locate)?;
        // In the full tier a closed path is masked, also inside a grant, if it still has the same
        // object.
        let named = |opened: &ResolvedPath| {
            places.last().is_some_and(|place| place.object == opened.object)
        };
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
    places: &[&ResolvedPath],
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
        // A symlink gets no rule: its target has its own, or none.
        if name == c"." || name == c".." || entry.file_type() == FileType::Symlink {
            continue;
        }
        let fd = match resolved_path::open_entry(&listed, name) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => continue, // removed since it was listed
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

/// The first ABI with TCP ports.
const PORTS_ABI: i32 = 4;
/// The ABI that knows scopes.
const SCOPES_ABI: i32 = 6;

/// An empty ruleset, and the ABI of this kernel. If the network is filtered in the landlock tier,
/// the command can connect and bind to no port: the supervisor, which is outside, connects its
/// sockets.
pub fn create_ruleset(
    plan: &Plan,
    requested: &plan::Landlock,
) -> Result<(OwnedFd, i32), GrantError> {
    let supervised = supervises_network(plan);
    let actual_abi = sys::landlock_abi().map_err(GrantError::NoLandlock)?;
    if actual_abi < requested.abi {
        return Err(GrantError::OldAbi { requested: requested.abi, actual: actual_abi });
    }
    // This kernel has all rights and scopes of the plan: the plan was checked for that.
    let ports = if supervised && actual_abi >= PORTS_ABI {
        (AccessNet::BindTcp | AccessNet::ConnectTcp).bits()
    } else {
        0
    };
    let ruleset =
        sys::landlock_create_ruleset(requested.handled.bits(), ports, requested.scoped.bits());
    Ok((ruleset.map_err(GrantError::Create)?, actual_abi))
}

/// A layer without rules for files. It keeps signals of the command from processes that have only
/// the outer layer. None: the kernel has no scopes.
pub fn create_inner_ruleset(
    requested: &plan::Landlock,
    actual_abi: i32,
) -> Result<Option<OwnedFd>, GrantError> {
    if requested.scoped.is_empty() || actual_abi < SCOPES_ABI {
        return Ok(None);
    }
    let ruleset = sys::landlock_create_ruleset(0, 0, requested.scoped.bits());
    ruleset.map(Some).map_err(GrantError::Create)
}

fn open_error(grant: &Grant, source: Errno) -> GrantError {
    GrantError::Open { path: grant.path.clone(), from: grant.source(), source }
}

fn open(grant: &Grant) -> Result<OpenedGrant, Errno> {
    let opened = |path: &CStr| {
        let fd = open_beneath::open_without_symlinks(path, OFlags::empty())?;
        let stat = rustix::fs::fstat(&fd)?;
        Ok((fd, stat))
    };
    match opened(&grant.path.as_c_str()) {
        Ok((fd, stat)) => Ok(OpenedGrant { fd, stat, led_to: None, links: Vec::new() }),
        // A symlink is on the way. The resolved path is opened without following another one.
        Err(Errno::LOOP) => {
            let followed = resolved_path::follow(grant.path.as_bytes())?;
            let real = absolute(followed.real)?;
            let (fd, stat) = opened(&real.as_c_str())?;
            Ok(OpenedGrant { fd, stat, led_to: Some(real), links: followed.links })
        }
        Err(error) => Err(error),
    }
}

/// The working directory is the one of the plan. Its name may belong to another directory since the
/// plan was compiled.
fn check_working_dir(plan: &Plan) -> Result<Identity, GrantError> {
    let moved = |_| GrantError::Moved { path: plan.cwd.clone() };
    let here = resolved_path::current_directory_identity().map_err(moved)?;
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
        Err(GrantError::Moved { path: plan.cwd.clone() })
    }
}

/// A path that a command can write could be replaced by a link to anywhere, before the next run or
/// during this start.
fn check_grant_path(
    grant: &Grant,
    opened: &OpenedGrant,
    previously_writable: &WritableHistory<'_>,
) -> Result<Option<GrantError>, GrantError> {
    let Some(real) = &opened.led_to else { return Ok(None) };
    let (path, from) = (grant.path.clone(), grant.source());
    if let Some(dir) = previously_writable.planted(&opened.links)? {
        return Ok(Some(GrantError::Planted { path, dir, from }));
    }
    // Its owner may have changed the link since. Later runs would trust a writable path that is not
    // recorded.
    if grant.writes() && !previously_writable.is_recorded(real, Identity::from(&opened.stat)) {
        return Ok(Some(GrantError::Unrecorded { path, real: real.clone(), from }));
    }
    Ok(None)
}

/// A link that the command could change must not lead to Paddock's own paths: the next run would
/// find others. A link that is itself such a path is kept out of every grant, or locked.
fn check_own_paths(
    requested: &plan::FilesPlan,
    linked: &[&AbsPath],
    previously_writable: &WritableHistory<'_>,
) -> Result<(), GrantError> {
    let own = |at: &AbsPath| requested.unwritable.iter().any(|own| at.is_within(own));
    let is_own = |link: &FollowedLink| absolute(link.at.clone()).is_ok_and(|at| own(&at));
    for path in requested.unwritable.iter().filter(|path| linked.contains(path)) {
        let followed = resolved_path::follow(path.as_bytes())
            .map_err(|source| GrantError::Locate { path: path.clone(), source })?;
        if let Some(dir) =
            previously_writable.planted(followed.links.iter().filter(|link| !is_own(link)))?
        {
            return Err(GrantError::OwnWay { path: path.clone(), dir });
        }
    }
    Ok(())
}

/// The journal is written outside of the sandbox, so no command may choose its path. Checked before
/// it is opened.
pub fn check_journal_path(plan: &Plan) -> Result<(), GrantError> {
    let (Some(journal), Some(requested)) = (&plan.journal, &plan.files) else { return Ok(()) };
    let journal = &journal.dir;
    let locate = |source| GrantError::Locate { path: journal.clone(), source };
    let followed = resolved_path::follow(journal.as_bytes()).map_err(locate)?;
    match WritableHistory::of(plan, requested).planted(&followed.links)? {
        Some(dir) => Err(GrantError::JournalWay { journal: journal.clone(), dir }),
        None => Ok(()),
    }
}

/// The paths that must stay outside of a grant: its own excepts and, if a symlink is on the way or
/// the file has other names, every closed path. The plan has names. A link may lead a grant to a
/// path that is closed under another name, or a closed name to a granted path.
fn excepts<'p>(
    requested: &'p plan::FilesPlan,
    grant: &'p Grant,
    opened: &OpenedGrant,
    linked: &[&'p AbsPath],
) -> Result<Vec<ExceptedPath<'p>>, GrantError> {
    let unwritable: &[AbsPath] = if grant.writes() { &requested.unwritable } else { &[] };
    let mut paths: Vec<&'p AbsPath> = grant.except.iter().collect();
    let closed = requested.closed.iter().chain(unwritable);
    // Closed paths without a link can be compared by their text with the location of the grant.
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
        .map(|path| match ResolvedPath::all_of(path.as_bytes()) {
            Ok(places) => Ok(ExceptedPath { path, places }),
            Err(source) => Err(GrantError::Locate { path: path.clone(), source }),
        })
        .collect()
}

/// The closed paths that go through a symlink, or might. Only these can have another location.
fn through_links<'p>(requested: &'p plan::FilesPlan, home: &HomeListing<'_>) -> Vec<&'p AbsPath> {
    let linked = |path: &&AbsPath| {
        if home.of(path) != HomeEntry::Unknown {
            return false;
        }
        let opened = open_beneath::open_without_symlinks(&path.as_c_str(), OFlags::empty());
        // ELOOP: there is a link. EACCES: a directory on the way is shut.
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

/// By the type number of statfs(2).
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
