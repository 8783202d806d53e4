//! Finds this process in the cgroup trees from kernel text (cgroups(7), proc_pid_mountinfo(5)), and
//! the level of a version 2 tree where a group can be created. Pure: text in, locations out.

use std::ffi::CString;

use crate::kernel::proc_text::words;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    V1,
    V2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Controller {
    Memory,
    Pids,
    /// Only measures. Version 2 measures in every group without a controller.
    CpuTime,
}

impl Controller {
    pub const ALL: [Controller; 3] = [Controller::Memory, Controller::Pids, Controller::CpuTime];

    /// The name in version 1.
    fn name(self) -> &'static [u8] {
        match self {
            Controller::Memory => b"memory",
            Controller::Pids => b"pids",
            Controller::CpuTime => b"cpuacct",
        }
    }
}

/// The directory of this process's own group, below its mount point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupLocation {
    pub mount: Vec<u8>,
    /// Names below the mount point; none for the mount point itself.
    pub names: Vec<Vec<u8>>,
}

impl CgroupLocation {
    /// The directory of the own group without the last `up` names.
    pub fn path(&self, up: usize) -> Option<CString> {
        let mut path = self.mount.clone();
        for name in self.names.iter().take(self.names.len().checked_sub(up)?) {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        CString::new(path).ok()
    }

    /// `membership` is /proc/self/cgroup, `mounts` /proc/self/mountinfo.
    pub fn in_v1(
        controller: Controller,
        membership: &[u8],
        mounts: &[u8],
    ) -> Option<CgroupLocation> {
        let path = path_of(membership, |controllers| listed(controllers, controller.name()))?;
        mounts_of(mounts, b"cgroup", |options| listed(options, controller.name()))
            .find_map(|mount| mount.location(path))
    }

    pub fn in_v2(membership: &[u8], mounts: &[u8]) -> Option<CgroupLocation> {
        // The line of version 2 has no controllers: `0::PATH`. A named hierarchy has `name=…`
        // there.
        let path = path_of(membership, <[u8]>::is_empty)?;
        mounts_of(mounts, b"cgroup2", |_| true).find_map(|mount| mount.location(path))
    }
}

/// The mount points of all cgroup trees.
pub fn mount_points(mounts: &[u8]) -> impl Iterator<Item = Vec<u8>> + '_ {
    let kinds: [&[u8]; 2] = [b"cgroup", b"cgroup2"];
    kinds.into_iter().flat_map(|kind| mounts_of(mounts, kind, |_| true)).map(|mount| mount.point)
}

fn listed(list: &[u8], name: &[u8]) -> bool {
    list.split(|byte| *byte == b',').any(|word| word == name)
}

/// The path on the line `ID:CONTROLLERS:PATH` with matching controllers.
fn path_of(membership: &[u8], is_right: impl Fn(&[u8]) -> bool) -> Option<&[u8]> {
    membership.split(|byte| *byte == b'\n').find_map(|line| {
        let mut parts = line.splitn(3, |byte| *byte == b':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        is_right(controllers).then_some(path)
    })
}

struct CgroupMount {
    root: Vec<u8>,
    point: Vec<u8>,
}

/// `ID PARENT DEVICE ROOT POINT OPTIONS [TAG…] - TYPE SOURCE OPTIONS`.
fn mounts_of<'a>(
    mounts: &'a [u8],
    kind: &'static [u8],
    is_right: impl Fn(&[u8]) -> bool + 'a,
) -> impl Iterator<Item = CgroupMount> + 'a {
    mounts.split(|byte| *byte == b'\n').filter_map(move |line| {
        let mut fields = words(line);
        let (root, point) = (fields.nth(3)?, fields.next()?);
        let mut fields = fields.skip_while(|field| *field != b"-").skip(1);
        let (actual_kind, _source, options) = (fields.next()?, fields.next()?, fields.next()?);
        (actual_kind == kind && is_right(options))
            .then(|| CgroupMount { root: unescaped(root), point: unescaped(point) })
    })
}

impl CgroupMount {
    /// None: the path lies outside of the mounted part (another cgroup namespace).
    fn location(self, path: &[u8]) -> Option<CgroupLocation> {
        let names = |path: &[u8]| -> Vec<Vec<u8>> {
            path.split(|byte| *byte == b'/')
                .filter(|name| !name.is_empty())
                .map(<[u8]>::to_vec)
                .collect()
        };
        let (root, own) = (names(&self.root), names(path));
        let below = own.strip_prefix(root.as_slice())?;
        let leads_out = root.iter().chain(below).any(|name| name == b"..");
        (!leads_out).then(|| CgroupLocation { mount: self.point, names: below.to_vec() })
    }
}

/// Decodes `\ooo`, which mountinfo writes for blanks and backslashes.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        match after {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', tail @ ..] if *first == b'\\' => {
                plain.push((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'));
                rest = tail;
            }
            _ => plain.push(*first),
        }
    }
    plain
}

/// What one directory between the own group and the mount point says, in version 2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CgroupLevel {
    /// Groups can be created in it and processes moved within it: its directory and its
    /// cgroup.procs are writable.
    pub delegated: bool,
    /// cgroup.controllers: the controllers that it can give to groups below.
    pub offers: Controllers,
    /// cgroup.subtree_control: the controllers that it gives to them.
    pub gives: Controllers,
    /// It has its own limit on memory or CPU time. A group beside it would escape that limit.
    pub limited: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Controllers {
    pub memory: bool,
    pub pids: bool,
}

impl Controllers {
    pub fn parse(text: &[u8]) -> Controllers {
        let has = |name: &[u8]| words(text).any(|word| word == name);
        Controllers { memory: has(b"memory"), pids: has(b"pids") }
    }

    fn and(self, other: Controllers) -> Controllers {
        Controllers { memory: self.memory && other.memory, pids: self.pids && other.pids }
    }

    pub fn missing_in(self, other: Controllers) -> Controllers {
        Controllers { memory: self.memory && !other.memory, pids: self.pids && !other.pids }
    }

    pub fn count(self) -> usize {
        usize::from(self.memory) + usize::from(self.pids)
    }
}

/// Levels where a group with the wanted controllers can be created, best first. `levels` start with
/// the own group. A group with processes can not give controllers to groups below it, except the
/// root group (no internal processes, cgroups(7)). So the usual location is beside the own group.
/// Only an attempt shows whether the kernel agrees.
pub fn candidates(levels: &[CgroupLevel], wanted: Controllers) -> Vec<usize> {
    let mut found: Vec<(usize, usize)> = Vec::with_capacity(levels.len());
    for (up, level) in levels.iter().enumerate() {
        if !level.delegated {
            break;
        }
        let provided = wanted.and(level.gives).count().max(wanted.and(level.offers).count());
        if provided > 0 || wanted.count() == 0 {
            found.push((up, provided));
        }
        if level.limited {
            break;
        }
    }
    // A stable sort keeps the nearest of equal levels first.
    found.sort_by_key(|(_, provided)| std::cmp::Reverse(*provided));
    found.into_iter().map(|(up, _)| up).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &[u8] =
        b"9:name=systemd:/s\n8:pids:/docker/abc/x\n4:memory:/user/a b\n2:cpu,cpuacct:/\n0::/u\n";
    const MOUNTS: &[u8] = b"\
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 master:1 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/my\\040memory rw,relatime - cgroup cgroup rw,memory
39 31 0:36 /docker/abc /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate
";

    fn path(location: Option<CgroupLocation>) -> Option<String> {
        location.map(|location| location.path(0).unwrap().into_string().unwrap())
    }

    #[test]
    fn each_controller_has_its_own_tree_in_version_1() {
        let own = |controller| path(CgroupLocation::in_v1(controller, HYBRID, MOUNTS));
        assert_eq!(own(Controller::Memory).as_deref(), Some("/sys/fs/cgroup/my memory/user/a b"));
        assert_eq!(own(Controller::Pids).as_deref(), Some("/sys/fs/cgroup/pids/x"));
        assert_eq!(own(Controller::CpuTime).as_deref(), Some("/sys/fs/cgroup/cpu,cpuacct"));
        assert_eq!(
            path(CgroupLocation::in_v2(HYBRID, MOUNTS)).as_deref(),
            Some("/sys/fs/cgroup/unified/u")
        );
    }

    #[test]
    fn every_tree_is_known_by_its_mount_points() {
        let found: Vec<_> =
            mount_points(MOUNTS).map(|point| String::from_utf8(point).unwrap()).collect();
        let expected = ["cpu,cpuacct", "my memory", "pids", "systemd", "unified"];
        assert_eq!(found, expected.map(|name| format!("/sys/fs/cgroup/{name}")));
    }

    #[test]
    fn parent_levels_end_at_the_mount_point() {
        let membership = b"0::/user.slice/user@1000.service/app.slice/a.scope\n";
        let mounts = b"30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let location = CgroupLocation::in_v2(membership, mounts).unwrap();
        let up = |steps| location.path(steps).map(|path| path.into_string().unwrap());
        assert_eq!(up(1).as_deref(), Some("/sys/fs/cgroup/user.slice/user@1000.service/app.slice"));
        assert_eq!(up(4).as_deref(), Some("/sys/fs/cgroup"));
        assert_eq!(up(5), None);
    }

    #[test]
    fn a_group_outside_of_the_mount_has_no_location() {
        let mounts = b"30 23 0:26 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        for membership in [
            &b"0::/docker/abcd\n"[..],
            b"0::/\n",
            b"0::/docker/abc/../x\n",
            b"8:pids:/docker/abc\n",
            b"",
        ] {
            assert_eq!(CgroupLocation::in_v2(membership, mounts), None);
        }
        let outside = b"30 23 0:26 /../.. /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        assert_eq!(CgroupLocation::in_v2(b"0::/../../x\n", outside), None);
        assert_eq!(
            CgroupLocation::in_v2(
                b"0::/x\n",
                b"30 23 0:26 / /sys rw - sysfs sysfs rw\n30 23 garbage\n"
            ),
            None
        );
    }

    const BOTH: Controllers = Controllers { memory: true, pids: true };
    const PIDS: Controllers = Controllers { memory: false, pids: true };
    const NONE: Controllers = Controllers { memory: false, pids: false };

    fn level(offers: Controllers, gives: Controllers) -> CgroupLevel {
        CgroupLevel { delegated: true, offers, gives, limited: false }
    }

    #[test]
    fn controllers_are_whole_words() {
        assert_eq!(Controllers::parse(b"cpuset cpu io memory pids\n"), BOTH);
        assert_eq!(Controllers::parse(b"memory.x pid\n"), NONE);
        assert_eq!(BOTH.missing_in(PIDS), Controllers { memory: true, pids: false });
    }

    #[test]
    fn a_terminal_in_a_user_session_gets_a_group_beside_its_own() {
        // a.scope, app.slice, user@1000.service, then a level that root owns.
        let levels =
            [level(NONE, NONE), level(BOTH, BOTH), level(BOTH, BOTH), CgroupLevel::default()];
        assert_eq!(candidates(&levels, BOTH), [1, 2]);
    }

    #[test]
    fn more_controllers_beat_a_nearer_level() {
        let levels = [level(PIDS, PIDS), level(BOTH, PIDS)];
        assert_eq!(candidates(&levels, BOTH), [1, 0]);
        assert_eq!(candidates(&levels, PIDS), [0, 1]);
    }

    #[test]
    fn levels_above_an_undelegated_one_are_not_tried() {
        let levels = [CgroupLevel { delegated: false, ..level(BOTH, BOTH) }, level(BOTH, BOTH)];
        assert!(candidates(&levels, BOTH).is_empty());
    }

    #[test]
    fn a_group_is_not_put_beside_one_that_is_limited() {
        let levels = [CgroupLevel { limited: true, ..level(BOTH, NONE) }, level(BOTH, BOTH)];
        assert_eq!(candidates(&levels, BOTH), [0]);
    }

    #[test]
    fn counting_time_needs_no_controller() {
        assert_eq!(candidates(&[level(NONE, NONE)], NONE), [0]);
        assert!(candidates(&[level(NONE, NONE)], BOTH).is_empty());
    }
}
