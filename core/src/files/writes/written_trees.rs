//! What the judge reads before the command starts: the trees that the command may write, without
//! symlinks, and the time.

use std::os::fd::AsFd as _;

use rustix::fs::{Mode, OFlags};
use rustix::time::ClockId;

use super::resolve::path_of;
use crate::plan::Plan;
use crate::plan::wire::bytes::AbsPath;

/// Seconds and nanoseconds.
pub type FileTime = (i64, u32);

pub struct BeforeStart {
    pub trees: Vec<WrittenTree>,
    /// No file that the command makes is born before this time.
    pub time: FileTime,
}

impl BeforeStart {
    pub fn now(trees: Vec<WrittenTree>) -> BeforeStart {
        // The kernel takes the births of files from this clock. A finer one is ahead of it.
        let now = rustix::time::clock_gettime(ClockId::RealtimeCoarse);
        BeforeStart { trees, time: (now.tv_sec, now.tv_nsec as u32) }
    }
}

pub struct WrittenTree {
    pub path: Vec<u8>,
    except: Vec<AbsPath>,
    /// Programs outside see its names. They do not see those of a private directory, nor those of a
    /// copy.
    pub is_shared: bool,
}

impl WrittenTree {
    pub fn holds(&self, path: &[u8]) -> bool {
        is_within(path, &self.path)
            && !self.except.iter().any(|except| is_within(path, except.as_bytes()))
    }
}

/// `temporary`: the private directory of the run, in the landlock tier.
pub fn of_plan(plan: &Plan, temporary: Option<&[u8]>) -> Vec<WrittenTree> {
    let grants = plan.files.iter().flat_map(|files| &files.grants).filter(|grant| grant.writes());
    let granted = grants.map(|grant| {
        let (path, except) = (resolved(grant.path.as_bytes()), grant.except.clone());
        WrittenTree { path, except, is_shared: plan.shares_names_of(grant) }
    });
    let temporary =
        temporary.map(|path| WrittenTree { path: resolved(path), except: vec![], is_shared: true });
    granted.chain(temporary).collect()
}

/// The trees that programs outside see.
pub fn shared(trees: &[WrittenTree]) -> Vec<Vec<u8>> {
    trees.iter().filter(|tree| tree.is_shared).map(|tree| tree.path.clone()).collect()
}

/// The path of a granted tree without symlinks. A path that can not be opened has no file that
/// could be changed.
fn resolved(path: &[u8]) -> Vec<u8> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let opened = rustix::fs::open(path, flags, Mode::empty());
    opened.and_then(|opened| path_of(opened.as_fd())).unwrap_or_else(|_| path.to_vec())
}

pub fn is_within(path: &[u8], dir: &[u8]) -> bool {
    let dir = dir.strip_suffix(b"/").unwrap_or(dir);
    path.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}
