//! Reads the plan from the descriptor that `--plan-fd` names: a sealed memfd, mapped and never
//! copied.

use std::os::fd::{AsFd as _, OwnedFd};

use rustix::fs::SealFlags;

use crate::kernel::sys;
use crate::plan::wire::bytes;
use crate::plan::{MAX_PLAN_BYTES, Plan, PlanError};

/// The plan and the exact bytes it was read from.
pub fn read(plan_fd: &OwnedFd, uid: u32) -> Result<(Box<Plan>, &'static [u8]), PlanError> {
    let needed = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK;
    match rustix::fs::fcntl_get_seals(plan_fd) {
        Ok(seals) if seals.contains(needed) => {}
        Ok(_) | Err(_) => return Err(PlanError::NotSealed),
    }
    let size = rustix::fs::fstat(plan_fd).map_err(PlanError::Read)?.st_size as u64;
    if size > MAX_PLAN_BYTES {
        return Err(PlanError::TooLong(size));
    }
    let bytes = sys::map_sealed(plan_fd.as_fd(), size as usize).map_err(PlanError::Read)?;
    bytes::remember_plan(bytes);
    Ok((Plan::parse(bytes, uid)?, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOLDEN: &str = include_str!("../../../schema/examples/plan-landlock.json");
    const UID: u32 = 1000;

    #[test]
    fn only_a_sealed_memfd_is_read() {
        use rustix::fs::MemfdFlags;
        let make = |seals: SealFlags, bytes: &[u8]| {
            let fd =
                rustix::fs::memfd_create(c"plan", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC)
                    .unwrap();
            let mut written = 0;
            while written < bytes.len() {
                written += rustix::io::pwrite(&fd, &bytes[written..], written as u64).unwrap();
            }
            rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
            fd
        };
        let all = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK;
        let golden = serde_json::from_str::<serde_json::Value>(GOLDEN).unwrap().to_string();
        let (_, bytes) = read(&make(all, golden.as_bytes()), UID).unwrap();
        assert_eq!(bytes, golden.as_bytes());
        for missing in [SealFlags::WRITE, SealFlags::GROW, SealFlags::SHRINK] {
            let refused = read(&make(all - missing, golden.as_bytes()), UID);
            assert!(matches!(refused, Err(PlanError::NotSealed)));
        }
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(matches!(read(&file.into(), UID), Err(PlanError::NotSealed)));
        let padded = format!("{GOLDEN}{}", " ".repeat(16 << 20));
        assert!(matches!(read(&make(all, padded.as_bytes()), UID), Err(PlanError::TooLong(_))));
    }
}
