//! Judged writes: a call that makes, changes or removes a name waits in the kernel. This process
//! judges the name, does the call itself, and gives the result to the caller.
//!
//! This process has the command's mounts, its Landlock rules, its user and its limits. So a call
//! that it does for the command can do no more than the command itself could. Three exceptions are
//! handled: it may read more of /proc, a process of root may have dropped capabilities, and a shell
//! may have a layer of its own.
//!
//! No call ever continues on what was read from the caller's memory: the caller could change it.

mod answers;
mod bind;
pub mod call;
mod change;
mod changed_names;
mod credentials;
mod index_entries;
mod judge;
mod kept_files;
mod kept_repositories;
mod known_names;
mod moves;
mod open;
mod resolve;
mod run_roots;
mod shell_layer;
mod staged;
mod umasks;
mod write_lock;
pub mod written_trees;

use std::collections::VecDeque;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

pub use self::answers::NameAct;
use self::call::{PathArgument, WriteCall};
use self::changed_names::ChangedNames;
pub use self::changed_names::{ChangedName, MAX_CHANGED_NAMES};
use self::credentials::FileCredentials;
use self::judge::{WriteDecision, WriteJudge};
use self::kept_repositories::REPOSITORY;
pub use self::known_names::{FoundObjects, KnownNames, ScannedNames};
use self::open::OpenArguments;
use self::resolve::{Caller, Found, MAX_SYMLINKS, Place};
pub use self::shell_layer::{LayerRules, ShellLayer};
use self::staged::StagedFiles;
use self::umasks::Umasks;
pub use self::write_lock::WriteLock;
use self::written_trees::BeforeStart;
use super::git::{self, Role};
use crate::kernel::seccomp_notify::{InterceptedCall, NotifyAnswer, NotifyListener};
use crate::kernel::{open_beneath, sys};
use crate::plan::{FilesPlan, Grant, NetworkMode, Plan, Tier};

/// Are writes judged, and could the command make a name where programs outside see it?
pub fn are_judged(plan: &Plan) -> bool {
    let is_written = plan.files.as_ref().is_some_and(|files| {
        let is_shared = |grant: &Grant| grant.writes() && plan.shares_names_of(grant);
        plan.tier == Tier::Landlock || files.grants.iter().any(is_shared)
    });
    plan.judges_writes && is_written
}

/// The calls that wait, and those that are refused.
pub fn calls(plan: &Plan) -> Vec<&'static str> {
    let filtered =
        plan.network.as_ref().is_some_and(|network| network.mode == NetworkMode::Filtered);
    let refused = call::REFUSED_CALLS.iter().map(|(name, _)| *name);
    let mut calls: Vec<&str> = call::CALLS.iter().copied().chain(refused).collect();
    calls.extend((!filtered).then_some(call::BIND));
    // Every process keeps its memory readable.
    calls.push("prctl");
    calls
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RefusalCause {
    Protected,
    /// A deny rule closes the name.
    Denied,
    /// A rename between two grants, which are two mounts of one file system.
    TwoGrants,
}

impl RefusalCause {
    fn of(denied: bool) -> RefusalCause {
        if denied { RefusalCause::Denied } else { RefusalCause::Protected }
    }

    fn parse(byte: u8) -> Option<RefusalCause> {
        [RefusalCause::Protected, RefusalCause::Denied, RefusalCause::TwoGrants]
            .into_iter()
            .find(|cause| *cause as u8 == byte)
    }
}

/// A refused call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedWrite {
    pub thread: u32,
    /// The name of its program, as the kernel shows it.
    pub program: Vec<u8>,
    /// Empty: the kernel hides the memory of the caller, and with it the path.
    pub path: Vec<u8>,
    pub cause: RefusalCause,
    /// The setting of git that would change, in a file from before the run. Mostly empty.
    pub setting: Vec<u8>,
}

/// A longer name of a setting is cut.
const MAX_SETTING_BYTES: usize = 256;

impl RefusedWrite {
    /// As a message to the supervisor.
    pub fn bytes(&self) -> Vec<u8> {
        let RefusedWrite { thread, program, path, cause, setting } = self;
        let (thread, cause) = (thread.to_ne_bytes(), [*cause as u8]);
        let setting = &setting[..setting.len().min(MAX_SETTING_BYTES)];
        [&b"R"[..], &thread, &cause, program, b"\0", path, b"\0", setting].concat()
    }

    /// None: the message is another one.
    pub fn parse(bytes: &[u8]) -> Option<RefusedWrite> {
        let [b'R', bytes @ ..] = bytes else { return None };
        let (thread, bytes) = bytes.split_first_chunk()?;
        let (cause, bytes) = bytes.split_first()?;
        let mut parts = bytes.splitn(3, |byte| *byte == 0).map(<[u8]>::to_vec);
        let (program, path, setting) = (parts.next()?, parts.next()?, parts.next()?);
        let thread = u32::from_ne_bytes(*thread);
        Some(RefusedWrite { thread, program, path, cause: RefusalCause::parse(*cause)?, setting })
    }
}

/// The result of a call.
enum Done {
    Nothing,
    /// The caller gets this descriptor.
    Opened {
        fd: OwnedFd,
        close_on_exec: bool,
    },
    /// The call concerns no name.
    NotAName,
}

enum Failure {
    /// The other end of a FIFO is not open yet.
    Waits,
    Kernel(Errno),
    Protected(Vec<u8>),
    /// A rename to this path from another grant on the same file system.
    TwoGrants(Vec<u8>),
    /// A file of git from before the run keeps this setting. Empty: the file is protected.
    Kept {
        path: Vec<u8>,
        setting: Vec<u8>,
    },
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Failure {
        Failure::Kernel(errno)
    }
}

pub struct Writer {
    judge: WriteJudge,
    umasks: Umasks,
    /// The umask of this process, once it was set.
    umask: Option<u32>,
    /// Opens of FIFOs without a reader. They are tried again, so that no call holds up another.
    waiting: VecDeque<InterceptedCall>,
    staged: StagedFiles,
    changed: ChangedNames,
    /// The Landlock rules of the command, if this process may read more of /proc.
    rules: Option<OwnedFd>,
    /// An observer looks at each call before it is served.
    pub is_observed: bool,
    /// A rename between two grants was reported. Programs try it before they copy.
    told_two_grants: bool,
    /// The supervisor renames directories in a copy of the workspace: the overlay can not.
    has_copy: bool,
    /// A process inside can have other mounts or another root than this one.
    may_see_other_files: bool,
    /// None: nothing is written, and a person asks about a name.
    lock: Option<WriteLock>,
    /// Its processes can have different credentials.
    is_root: bool,
    /// None: shells are ordinary programs.
    layer: Option<ShellLayer>,
}

/// What is left to do after a call was served.
pub enum Served {
    Done,
    /// A protected name was refused.
    Refused(RefusedWrite),
    /// The call waits for the supervisor.
    RenameInCopy,
}

/// So many opens of FIFOs wait at the same time. Further ones fail.
const MAX_WAITING: usize = 1024;
/// The time until a waiting open is tried again.
pub const WAITING_INTERVAL: Duration = Duration::from_millis(2);
/// After this time other calls have their turn, before further waiting opens are tried.
const MAX_RETRY_TIME: Duration = Duration::from_millis(1);

impl Writer {
    pub fn new(
        plan: &Plan,
        files: &FilesPlan,
        known: KnownNames,
        before: BeforeStart,
        lock: Option<WriteLock>,
    ) -> Writer {
        Writer {
            judge: WriteJudge::new(plan, files, known, before),
            umasks: Umasks::default(),
            umask: None,
            waiting: VecDeque::new(),
            staged: StagedFiles::default(),
            changed: ChangedNames::default(),
            rules: None,
            is_observed: plan.observe,
            told_two_grants: false,
            has_copy: plan.workspace.is_some(),
            may_see_other_files: plan.seccomp.as_ref().is_some_and(|seccomp| seccomp.namespaces),
            lock,
            is_root: rustix::process::geteuid().is_root(),
            layer: None,
        }
    }

    /// This process may read all of /proc. The command gets only what these rules allow.
    pub fn limit_reading_proc(&mut self, rules: BorrowedFd<'_>) -> Result<(), Errno> {
        self.rules = Some(rustix::io::fcntl_dupfd_cloexec(rules, 0)?);
        Ok(())
    }

    /// The descriptors that it needs before the first call.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let lock = self.lock.iter().flat_map(WriteLock::descriptors);
        self.rules.iter().chain(lock).map(|fd| fd.as_fd())
    }

    /// Does a call and answers it.
    pub fn serve(&mut self, listener: &NotifyListener, call: &InterceptedCall) -> Served {
        let caller = Caller { thread: call.thread };
        // This process opens such files too.
        self.release_leases();
        self.umasks.see(call.thread);
        if call::changes_umask(call) {
            let answer = match self.umasks.change(call.thread) {
                Ok(()) => NotifyAnswer::Continue,
                Err(errno) => NotifyAnswer::Fail(errno),
            };
            listener.answer(call, answer);
            return Served::Done;
        }
        if call::makes_ruleset(call)
            && let Some(layer) = &mut self.layer
            && layer.is_entered_by(caller)
            && listener.still_waits(call)
        {
            if !call::asks_for_landlock_abi(call) {
                layer.renew_rules();
            }
            // The rules can only take rights away from the caller.
            listener.answer(call, NotifyAnswer::Continue);
            return Served::Done;
        }
        // A descriptor for a path alone writes nothing, and the flags are a number.
        let only_path =
            WriteCall::open_flags(call).is_some_and(|flags| flags.contains(OFlags::PATH));
        let mut renames = false;
        let result = match WriteCall::read(call) {
            _ if only_path => Ok(Done::NotAName),
            Ok(Some(write @ WriteCall::Rename { .. })) => {
                renames = true;
                self.perform_as_caller(listener, call, &write)
            }
            Ok(Some(write)) => self.perform_as_caller(listener, call, &write),
            Ok(None) => Ok(Done::NotAName),
            Err(errno) => Err(Failure::Kernel(errno)),
        };
        match result {
            Ok(Done::Nothing) => listener.answer(call, NotifyAnswer::Value(0)),
            Ok(Done::Opened { fd, close_on_exec }) => {
                if let Err(errno) = listener.answer_with_fd(call, fd, close_on_exec) {
                    listener.answer(call, NotifyAnswer::Fail(errno));
                }
            }
            // The decision rests on numbers, which the caller can not change.
            Ok(Done::NotAName) => listener.answer(call, NotifyAnswer::Continue),
            Err(Failure::Kernel(Errno::PERM)) if caller.hides_memory() => {
                let program = caller.program();
                listener.answer(call, NotifyAnswer::Fail(Errno::ACCESS));
                let (thread, path) = (call.thread, Vec::new());
                let (cause, setting) = (RefusalCause::Protected, Vec::new());
                return Served::Refused(RefusedWrite { thread, program, path, cause, setting });
            }
            Err(Failure::Kernel(Errno::XDEV)) if renames && self.has_copy => {
                return Served::RenameInCopy;
            }
            Err(Failure::TwoGrants(path)) => {
                let program = caller.program();
                listener.answer(call, NotifyAnswer::Fail(Errno::XDEV));
                if !std::mem::replace(&mut self.told_two_grants, true) {
                    let (thread, cause) = (call.thread, RefusalCause::TwoGrants);
                    let setting = Vec::new();
                    return Served::Refused(RefusedWrite { thread, program, path, cause, setting });
                }
            }
            Err(Failure::Kernel(errno)) => listener.answer(call, NotifyAnswer::Fail(errno)),
            Err(Failure::Waits) if self.waiting.len() < MAX_WAITING => {
                self.waiting.push_back(*call)
            }
            Err(Failure::Waits) => listener.answer(call, NotifyAnswer::Fail(Errno::NXIO)),
            Err(Failure::Protected(path)) => {
                return self.refuse(listener, call, path, Vec::new());
            }
            Err(Failure::Kept { path, setting }) => {
                return self.refuse(listener, call, path, setting);
            }
        }
        Served::Done
    }

    /// Changed names that the supervisor does not know yet.
    pub fn take_changed(&mut self) -> Vec<ChangedName> {
        self.changed.take_unsent()
    }

    fn refuse(
        &mut self,
        listener: &NotifyListener,
        call: &InterceptedCall,
        path: Vec<u8>,
        setting: Vec<u8>,
    ) -> Served {
        let program = (Caller { thread: call.thread }).program();
        listener.answer(call, NotifyAnswer::Fail(Errno::ACCESS));
        let (thread, cause) = (call.thread, RefusalCause::of(self.judge.is_denied(&path)));
        Served::Refused(RefusedWrite { thread, program, path, cause, setting })
    }

    /// Readable after a file was closed whose content is to be judged.
    pub fn closed_files(&self) -> Option<BorrowedFd<'_>> {
        self.staged.fd().map(|fd| fd.as_fd())
    }

    /// Does an open wait for the other end of a FIFO?
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Tries the waiting opens again. A signal ends the wait.
    pub fn retry(&mut self, listener: &NotifyListener) -> Vec<RefusedWrite> {
        // The kernel handles the signal, and then restarts the call or answers EINTR.
        const RESTART: Errno = Errno::from_raw_os_error(512); // ERESTARTSYS
        let mut refused = Vec::new();
        let start = Instant::now();
        for _ in 0..self.waiting.len() {
            let Some(call) = self.waiting.pop_front() else { break };
            if start.elapsed() > MAX_RETRY_TIME {
                self.waiting.push_front(call);
                break;
            }
            if !listener.still_waits(&call) {
                continue;
            }
            match (Caller { thread: call.thread }).has_signal() {
                Ok(false) => match self.serve(listener, &call) {
                    Served::Refused(one) => refused.push(one),
                    // An open is no rename.
                    Served::Done | Served::RenameInCopy => {}
                },
                Ok(true) => listener.answer(&call, NotifyAnswer::Fail(RESTART)),
                Err(errno) => listener.answer(&call, NotifyAnswer::Fail(errno)),
            }
        }
        refused
    }

    /// The processes of an ordinary user all have the same credentials.
    fn perform_as_caller(
        &mut self,
        listener: &NotifyListener,
        call: &InterceptedCall,
        write: &WriteCall,
    ) -> Result<Done, Failure> {
        let caller = Caller { thread: call.thread };
        // A path of such a caller means another file here.
        if self.may_see_other_files && caller.sees_other_files()? {
            return Err(Errno::ACCESS.into());
        }
        self.enter_layer(caller, write)?;
        let done = if self.is_root {
            FileCredentials::of(call.thread).map_err(Failure::from).and_then(|credentials| {
                credentials::acting_as(&credentials, || self.perform(listener, call, write))
            })
        } else {
            self.perform(listener, call, write)
        };
        self.leave_layer();
        done
    }

    fn perform(
        &mut self,
        listener: &NotifyListener,
        call: &InterceptedCall,
        write: &WriteCall,
    ) -> Result<Done, Failure> {
        let Some(lock) = self.lock.take() else {
            return self.perform_alone(listener, call, write);
        };
        // The kernel walks the path of bind(2) a second time, so no other run may change a symlink.
        let is_alone = matches!(write, WriteCall::Rename { .. } | WriteCall::Bind { .. });
        let mut done = Err(Failure::from(Errno::AGAIN));
        if !is_alone {
            self.judge.may_race = true;
            done = lock
                .hold_shared()
                .map_err(Failure::from)
                .and_then(|_held| self.perform_alone(listener, call, write));
            self.judge.may_race = false;
        }
        if is_alone || std::mem::take(&mut self.judge.is_unsure) {
            let held = lock.hold_alone();
            done = match held.and_then(|held| lock.trees_of_others().map(|trees| (held, trees))) {
                Ok((_held, trees)) => {
                    self.judge.trees_of_others = trees;
                    self.perform_alone(listener, call, write)
                }
                Err(errno) => Err(errno.into()),
            };
        }
        self.lock = Some(lock);
        done
    }

    fn perform_alone(
        &mut self,
        listener: &NotifyListener,
        call: &InterceptedCall,
        write: &WriteCall,
    ) -> Result<Done, Failure> {
        let caller = Caller { thread: call.thread };
        // Everything that is opened by the caller's number is checked before it is used.
        let still_waits = || if listener.still_waits(call) { Ok(()) } else { Err(Errno::SRCH) };
        match write {
            WriteCall::Open { at, flags, mode, resolve } => {
                let (flags, mode, resolve) = (*flags, *mode, *resolve);
                let arguments = OpenArguments { at, flags, mode, resolve };
                let close_on_exec = flags.contains(OFlags::CLOEXEC);
                let fd = self.open(caller, arguments, still_waits)?;
                Ok(Done::Opened { fd, close_on_exec })
            }
            WriteCall::MakeDir { at, mode } => {
                let place = place(caller.parent(at)?)?;
                still_waits()?;
                self.check(&place, FileType::Directory)?;
                self.set_umask(caller)?;
                let (name, mode) = (place.c_name()?, Mode::from_raw_mode(*mode));
                self.in_layer(|| rustix::fs::mkdirat(&place.dir, &*name, mode))?;
                Ok(Done::Nothing)
            }
            WriteCall::MakeNode { at, mode, device } => {
                let place = place(caller.parent(at)?)?;
                still_waits()?;
                let file_type = match FileType::from_raw_mode(*mode) {
                    FileType::Unknown => FileType::RegularFile,
                    file_type => file_type,
                };
                let path = self.check(&place, file_type)?;
                self.set_umask(caller)?;
                let (name, mode) = (place.c_name()?, Mode::from_raw_mode(*mode & 0o7777));
                self.in_layer(|| {
                    rustix::fs::mknodat(&place.dir, &*name, file_type, mode, *device)
                })?;
                self.note_object(path, file_type, false);
                Ok(Done::Nothing)
            }
            WriteCall::Symlink { target, at } => {
                let place = place(caller.parent(at)?)?;
                still_waits()?;
                let dir = place.dir.as_fd();
                let path = match self.judge.is_symlink_probe(dir, &place.name, target)? {
                    true => None,
                    false => Some(self.check(&place, FileType::Symlink)?),
                };
                let name = place.c_name()?;
                self.in_layer(|| rustix::fs::symlinkat(&target[..], &place.dir, &*name))?;
                if let Some(path) = path {
                    self.note_object(path, FileType::Symlink, false);
                }
                Ok(Done::Nothing)
            }
            WriteCall::Link { old, new, flags } => {
                let object = object(caller, old, follow_flags(*flags))?.fd;
                let new = place(caller.parent(new.as_ref().map_err(|errno| *errno)?)?)?;
                still_waits()?;
                self.link(&object, &new)
            }
            WriteCall::Nothing => Ok(Done::Nothing),
            WriteCall::Rename { old, new, flags } => {
                let old = caller.parent(old)?;
                let new = new.as_ref().map_err(|errno| *errno).and_then(|new| caller.parent(new));
                still_waits()?;
                self.rename(old, new, *flags).map(|()| Done::Nothing)
            }
            WriteCall::Remove { at, flags } => {
                let place = place(caller.parent(at)?)?;
                still_waits()?;
                let existing = self.check_existing(&place, true)?;
                let name = place.c_name()?;
                self.in_layer(|| rustix::fs::unlinkat(&place.dir, &*name, *flags))?;
                // A file that is made there later has an old name.
                if let Some((file_type, path)) = existing {
                    self.note_object(path, file_type, true);
                }
                Ok(Done::Nothing)
            }
            WriteCall::Change { at, flags, change } => {
                let object = object(caller, at, *flags)?;
                still_waits()?;
                self.change(caller, &object, *flags, change).map(|()| Done::Nothing)
            }
            WriteCall::ChangeOpen { fd, change } => {
                let file = sys::duplicate_descriptor(call.thread, *fd)?;
                still_waits()?;
                self.change_open(&file, change).map(|()| Done::Nothing)
            }
            WriteCall::Bind { socket, address } => self.bind(caller, *socket, address, still_waits),
            WriteCall::ScopedRuleset { scopes } => {
                let fd = sys::landlock_create_ruleset(0, 0, *scopes)?;
                Ok(Done::Opened { fd, close_on_exec: true })
            }
        }
    }

    /// New files get the umask of the caller.
    fn set_umask(&mut self, caller: Caller) -> Result<(), Errno> {
        let umask = self.umasks.of(caller)?;
        if self.umask.replace(umask) != Some(umask) {
            rustix::process::umask(Mode::from_raw_mode(umask));
        }
        Ok(())
    }

    /// A new name. Returns its path.
    fn check(&mut self, place: &Place, file_type: FileType) -> Result<Vec<u8>, Failure> {
        // The kernel refuses to make `.` and `..`.
        if !place.is_plain() {
            return Ok(Vec::new());
        }
        let (decision, path) = self.judge.decide(place.dir.as_fd(), &place.name, file_type)?;
        let is_free = match decision {
            WriteDecision::Free => true,
            WriteDecision::ByContent(Role::Hooks) => file_type == FileType::Directory,
            WriteDecision::ByContent(Role::Hook) => {
                file_type == FileType::RegularFile && place.name.ends_with(b".sample")
            }
            _ => false,
        };
        if is_free { Ok(path) } else { Err(Failure::Protected(path)) }
    }

    /// A name that is removed or renamed, or replaced. `ends`: no file has the name afterwards.
    /// Returns the type of the object and its path. None: there is none.
    fn check_existing(
        &mut self,
        place: &Place,
        ends: bool,
    ) -> Result<Option<(FileType, Vec<u8>)>, Failure> {
        if !place.is_plain() {
            return Ok(None);
        }
        let name = c_name(&place.name)?;
        let stat = match rustix::fs::statat(&place.dir, &*name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(None),
            stat => stat?,
        };
        let file_type = FileType::from_raw_mode(stat.st_mode);
        let (decision, path) =
            self.judge.decide_existing(place.dir.as_fd(), &place.name, file_type)?;
        let is_free = match decision {
            _ if self.judge.is_kept_part(&path, ends) => {
                return Err(Failure::Kept { path, setting: REPOSITORY.to_vec() });
            }
            _ if ends && self.judge.makes_known_repository(&path) => false,
            WriteDecision::Free => true,
            WriteDecision::Protected | WriteDecision::Denied => false,
            WriteDecision::ByContent(role) if ends && changes_index(role, &path) => false,
            WriteDecision::ByContent(role) if ends => {
                let dir = place.dir.as_fd();
                if let Some(setting) = self.judge.refused_removal(role, dir, &name, &path)? {
                    return Err(Failure::Kept { path, setting });
                }
                self.judge.exists_harmless(dir, &name, &path, file_type)?
            }
            WriteDecision::ByContent(role) => {
                self.may_replace(role, place, &name, &path, file_type)?
            }
        };
        if is_free { Ok(Some((file_type, path))) } else { Err(Failure::Protected(path)) }
    }
}

impl Writer {
    /// May a file with this role get another content? Some contents are judged together with the
    /// one that they replace.
    fn may_replace(
        &mut self,
        role: Role,
        place: &Place,
        name: &CStr,
        path: &[u8],
        file_type: FileType,
    ) -> Result<bool, Errno> {
        match (role, file_type) {
            (Role::Config | Role::GitFile | Role::GitDir | Role::Head, FileType::RegularFile) => {
                Ok(true)
            }
            _ => self.judge.exists_harmless(place.dir.as_fd(), name, path, file_type),
        }
    }
}

/// Does an index mean other paths without this file?
fn changes_index(role: Role, path: &[u8]) -> bool {
    let dir = git::parent_of(path);
    match role {
        Role::Config => git::changes_hashes(dir, b"", None),
        Role::CommonDir => git::changes_hashes_by_common_dir(dir, None),
        _ => false,
    }
}

/// linkat(2) follows a symlink only if it is told to. The other calls follow it unless told not to.
fn follow_flags(flags: AtFlags) -> AtFlags {
    let follow = if flags.contains(AtFlags::SYMLINK_FOLLOW) {
        AtFlags::empty()
    } else {
        AtFlags::SYMLINK_NOFOLLOW
    };
    follow | flags.intersection(AtFlags::EMPTY_PATH)
}

/// An object that a path leads to.
struct NamedObject {
    /// Open with O_PATH.
    fd: OwnedFd,
    /// None: the path has no name of it.
    place: Option<Place>,
}

impl NamedObject {
    /// The path of a symlink, for calls that need one. None: it is no symlink.
    fn name_of_link(&self, is_link: bool) -> Result<Option<CString>, Errno> {
        let Some(place) = self.place.as_ref().filter(|_| is_link) else { return Ok(None) };
        let mut buffer = [0; 32];
        let dir = open_beneath::proc_fd_path(&place.dir, &mut buffer).to_bytes();
        c_name(&[dir, b"/", &place.name].concat()).map(Some)
    }
}

fn object(caller: Caller, at: &PathArgument, flags: AtFlags) -> Result<NamedObject, Errno> {
    if at.path.is_empty() && flags.contains(AtFlags::EMPTY_PATH) {
        return Ok(NamedObject { fd: caller.descriptor(at.dir)?, place: None });
    }
    let mut found = caller.parent(at)?;
    for _ in 0..=MAX_SYMLINKS {
        let place = match found {
            Found::Object(fd) => return Ok(NamedObject { fd, place: None }),
            Found::Gone => return Err(Errno::NOENT),
            Found::Place(place) => place,
        };
        let name = place.c_name()?;
        // The kernel follows a symlink with a slash, and `/proc/self` would be this process.
        match open::open_exactly(&place.dir, &name, OFlags::PATH | OFlags::NOFOLLOW, 0) {
            Err(Errno::LOOP) if place.has_slash => {}
            Err(errno) => return Err(errno),
            Ok(fd) => {
                let file_type = FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode);
                if file_type != FileType::Symlink || flags.contains(AtFlags::SYMLINK_NOFOLLOW) {
                    return Ok(NamedObject { fd, place: Some(place) });
                }
            }
        }
        found = caller.through(place)?;
    }
    Err(Errno::LOOP)
}

fn place(found: Found) -> Result<Place, Errno> {
    match found {
        Found::Place(place) => Ok(place),
        Found::Object(_) => Err(Errno::ACCESS),
        Found::Gone => Err(Errno::NOENT),
    }
}

fn c_name(name: &[u8]) -> Result<CString, Errno> {
    CString::new(name).map_err(|_| Errno::INVAL)
}
