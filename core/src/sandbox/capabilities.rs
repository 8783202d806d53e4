//! The user of the command and its capabilities. All are dropped but those that the plan names.
//!
//! A capability that is only permitted is lost when an ordinary user executes a program. It
//! survives as an ambient one, which has to be inheritable and permitted first (capabilities(7)).

use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Privileges {
    /// In its own namespaces this process has every capability over them. The command keeps these.
    pub kept: CapabilitySet,
    /// None: the user stays the same.
    pub service: Option<ServiceUser>,
}

/// The user that the command runs as, by its numbers in the namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceUser {
    pub uid: u32,
    pub gid: u32,
    pub clears_groups: bool,
}

impl Privileges {
    pub const NONE: Privileges = Privileges { kept: CapabilitySet::empty(), service: None };

    /// Limits the bounding set: no other capability can be gained again, by this process or its
    /// children. Called first, while that is still allowed, and once for init and the command.
    pub fn bound(self) -> Result<(), Errno> {
        bound(self.kept)
    }

    /// Only makes system calls. The order matters: to change the user needs capabilities that are
    /// dropped after it. So the user comes first, keeping the permitted set; then the sets.
    pub fn shed(self) -> Result<(), Errno> {
        if let Some(service) = self.service {
            rustix::thread::set_keep_capabilities(true)?;
            service.become_it()?;
        }
        let kept = self.kept;
        let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: kept };
        rustix::thread::set_capabilities(None, sets)?;
        for capability in kept {
            rustix::thread::configure_capability_in_ambient_set(capability, true)?;
        }
        Ok(())
    }
}

impl ServiceUser {
    fn become_it(self) -> Result<(), Errno> {
        if self.clears_groups {
            rustix::thread::set_thread_groups(&[])?;
        }
        become_group_and_user(self.uid, self.gid)
    }
}

/// The process has one thread, so this changes the whole process.
pub fn become_group_and_user(uid: u32, gid: u32) -> Result<(), Errno> {
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid)
}

/// Root gets a full set by every exec, and also ends with no more than these.
fn bound(kept: CapabilitySet) -> Result<(), Errno> {
    for number in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        if kept.contains(capability) {
            continue;
        }
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            Err(Errno::INVAL) => break, // the kernel knows no more
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
