//! The layer of intercepted shells, where init does the writes.
//!
//! A shell takes Landlock rules for itself, and init does not have them. So init does the calls of a
//! process in the layer in a child that takes the same rules. The child does only the step that the
//! kernel judges: Landlock would keep it from the descriptors and the memory of the caller.
//!
//! A process is in the layer if it has more seccomp filters than the run has installed. The layer
//! adds filters, and no process can remove one. A program outside that adds a filter of its own only
//! loses rights.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::WaitOptions;

use super::Writer;
use super::call::WriteCall;
use super::resolve::{Caller, status_field};
use crate::kernel::calling_process::proc_path;
use crate::kernel::resolved_path::Identity;
use crate::kernel::sys;
use crate::plan::CORE_NAME;

/// What a process in the layer may do.
pub struct LayerRules {
    pub ruleset: OwnedFd,
    /// Trees that it may write. Landlock does not judge changes of metadata.
    pub writable: Vec<Vec<u8>>,
    /// Paths in these trees that it may not write.
    pub unwritable: Vec<Vec<u8>>,
}

pub struct ShellLayer {
    /// So many filters has a process that is not in the layer.
    outer_filters: u64,
    /// This program, which becomes each shell.
    own_program: Identity,
    restricts_files: bool,
    restricts_ports: bool,
    /// None: the rules can not be made now.
    make_rules: Box<dyn Fn() -> Option<LayerRules>>,
    /// As the newest shell has them: they depend on the names that exist.
    rules: Option<LayerRules>,
    /// Is the caller of this call in the layer?
    is_caller_inside: bool,
}

impl ShellLayer {
    /// `added_filters`: the number of filters that the run installs for the command.
    pub fn new(
        added_filters: u64,
        restricts_files: bool,
        restricts_ports: bool,
        make_rules: Box<dyn Fn() -> Option<LayerRules>>,
    ) -> Result<ShellLayer, Errno> {
        let own_program = Identity::from(&rustix::fs::stat(c"/proc/self/exe")?);
        Ok(ShellLayer {
            outer_filters: filters_of(std::process::id())? + added_filters,
            own_program,
            restricts_files,
            restricts_ports,
            make_rules,
            rules: None,
            is_caller_inside: false,
        })
    }

    /// Is the caller this program in the place of a shell? It may take Landlock rules, because init
    /// knows them. The check counts only if the call still waits afterwards.
    pub fn is_entered_by(&self, caller: Caller) -> bool {
        let exe = proc_path(caller.thread, "exe");
        let found = rustix::fs::stat(&*exe);
        let path = rustix::fs::readlink(&*exe, Vec::new());
        let is_own = found.is_ok_and(|found| Identity::from(&found) == self.own_program);
        // Under its own name this program starts another run, whose rules init does not know.
        let has_own_name = |path: &[u8]| {
            path.rsplit(|byte| *byte == b'/').next().is_some_and(|name| name.starts_with(CORE_NAME))
        };
        is_own && path.is_ok_and(|path| !has_own_name(path.to_bytes()))
    }

    /// A shell is about to enter. Its rules are made now, and so are those of init. If they can not
    /// be made, the shell does not enter, and the old rules stay.
    pub fn renew_rules(&mut self) {
        if self.restricts_files
            && let Some(rules) = (self.make_rules)()
        {
            self.rules = Some(rules);
        }
    }

    /// Notes whether the layer restricts this call. The check counts only if the call still waits
    /// afterwards.
    fn enter(&mut self, caller: Caller, call: &WriteCall) -> Result<(), Errno> {
        let restricts = match call {
            WriteCall::Bind { .. } => self.restricts_files || self.restricts_ports,
            _ => self.restricts_files,
        };
        self.is_caller_inside = restricts && filters_of(caller.thread)? > self.outer_filters;
        if self.is_caller_inside && self.rules.is_none() {
            self.rules = Some((self.make_rules)().ok_or(Errno::ACCESS)?);
        }
        Ok(())
    }

    fn rules_of_caller(&self) -> Option<&LayerRules> {
        self.rules.as_ref().filter(|_| self.is_caller_inside)
    }
}

impl LayerRules {
    fn may_change_metadata(&self, path: &[u8]) -> bool {
        let is_within = |dir: &Vec<u8>| {
            let dir = dir.strip_suffix(b"/").unwrap_or(dir);
            path.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
        };
        // A path that does not start with a slash is no name: a pipe, a socket.
        !path.starts_with(b"/")
            || self.writable.iter().any(is_within) && !self.unwritable.iter().any(is_within)
    }
}

/// The number of seccomp filters of a thread (Linux 5.9).
fn filters_of(thread: u32) -> Result<u64, Errno> {
    let status = std::fs::read(proc_path(thread, "status")).map_err(|_| Errno::SRCH)?;
    status_field(&status, b"Seccomp_filters:", 10).ok_or(Errno::NOSYS)
}

impl Writer {
    /// Shells of this run have rules of their own.
    pub fn intercept_shells(&mut self, layer: ShellLayer) {
        self.layer = Some(layer);
    }

    pub(super) fn enter_layer(&mut self, caller: Caller, call: &WriteCall) -> Result<(), Errno> {
        self.layer.as_mut().map_or(Ok(()), |layer| layer.enter(caller, call))
    }

    pub(super) fn leave_layer(&mut self) {
        if let Some(layer) = &mut self.layer {
            layer.is_caller_inside = false;
        }
    }

    /// The Landlock rules of the caller's layer.
    pub(super) fn layer_rules(&self) -> Option<BorrowedFd<'_>> {
        let rules = self.layer.as_ref().and_then(ShellLayer::rules_of_caller);
        rules.map(|rules| rules.ruleset.as_fd())
    }

    /// Does the layer of the caller leave the metadata of this object open?
    pub(super) fn may_change_in_layer(&self, path: &[u8]) -> bool {
        let rules = self.layer.as_ref().and_then(ShellLayer::rules_of_caller);
        rules.is_none_or(|rules| rules.may_change_metadata(path))
    }

    /// Does one step of a call with the rights of the caller's layer.
    pub(super) fn in_layer<T>(&self, act: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
        with_rules(self.layer_rules().as_slice(), act)
    }
}

/// Runs `act` in a child that takes these Landlock rules. The child shares memory and descriptors
/// with this process. Its working directory is its own. Without rules there is no child.
pub fn with_rules<T>(
    rules: &[BorrowedFd<'_>],
    mut act: impl FnMut() -> Result<T, Errno>,
) -> Result<T, Errno> {
    if rules.is_empty() {
        return act();
    }
    let mut done = Err(Errno::ACCESS);
    let child = sys::spawn_into(libc::CLONE_FILES, || {
        // Landlock needs it. A process in the layer has it too.
        if let Err(errno) = rustix::thread::set_no_new_privs(true) {
            done = Err(errno);
            return 0;
        }
        let mut restricted = rules.iter().map(|rules| sys::landlock_restrict_self(*rules));
        done = restricted.try_for_each(|restricted| restricted).and_then(|()| act());
        0
    })?;
    rustix::process::waitpid(Some(child), WaitOptions::empty())?;
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::test_tree::TestTree;

    fn rules() -> LayerRules {
        LayerRules {
            ruleset: sys::landlock_create_ruleset(1 << 12, 0, 0).unwrap(), // LANDLOCK_ACCESS_FS_MAKE_SYM
            writable: vec![b"/w/out".to_vec(), b"/tmp".to_vec()],
            unwritable: vec![b"/w/out/key".to_vec()],
        }
    }

    #[test]
    fn metadata_follows_the_writable_trees() {
        let rules = rules();
        for path in ["/w/out", "/w/out/a", "/tmp/x", "pipe:[1]"] {
            assert!(rules.may_change_metadata(path.as_bytes()), "{path}");
        }
        for path in ["/w", "/w/outer", "/w/out/key", "/w/out/key/a", "/"] {
            assert!(!rules.may_change_metadata(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn a_child_takes_the_rules_and_this_process_does_not() {
        let tree = TestTree::new();
        let link = |name: &str| rustix::fs::symlink("x", tree.path(name));
        let rules = rules();
        assert_eq!(with_rules(&[rules.ruleset.as_fd()], || link("in")), Err(Errno::ACCESS));
        assert_eq!(with_rules(&[], || link("out")), Ok(()));
    }

    #[test]
    fn the_number_of_filters_grows() {
        let before = filters_of(std::process::id()).unwrap();
        // A filter belongs to its thread.
        let inside = std::thread::spawn(|| {
            rustix::thread::set_no_new_privs(true).unwrap();
            sys::seccomp_install(&[sys::Instruction { code: 6, jt: 0, jf: 0, k: 0x7fff_0000 }])
                .unwrap();
            filters_of(rustix::thread::gettid().as_raw_nonzero().get() as u32).unwrap()
        });
        assert_eq!(inside.join().unwrap(), before + 1);
    }
}
