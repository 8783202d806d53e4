//! The system call table, built from the same file that the policy loader reads.

#[derive(Debug)]
pub struct Syscall {
    /// Its index in [`TABLE`].
    pub row: usize,
    pub name: &'static str,
    x86_64: Option<u32>,
    aarch64: Option<u32>,
}

include!(concat!(env!("OUT_DIR"), "/syscall_table.rs"));

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(test),
    allow(dead_code, reason = "each build runs on one; the tests compile filters for both")
)]
pub enum Arch {
    X86_64,
    Aarch64,
}

impl Arch {
    #[cfg(target_arch = "x86_64")]
    pub const NATIVE: Arch = Arch::X86_64;
    #[cfg(target_arch = "aarch64")]
    pub const NATIVE: Arch = Arch::Aarch64;

    pub fn name(self) -> &'static str {
        match self {
            Arch::X86_64 => "x86_64",
            Arch::Aarch64 => "aarch64",
        }
    }

    /// Every call of this architecture, ordered by number.
    pub fn syscalls(self) -> impl Iterator<Item = (u32, &'static Syscall)> {
        self.rows().iter().map(|(number, row)| (*number, &TABLE[*row]))
    }

    /// The same as indexes in [`TABLE`].
    pub fn rows(self) -> &'static [(u32, usize)] {
        match self {
            Arch::X86_64 => BY_NUMBER_X86_64,
            Arch::Aarch64 => BY_NUMBER_AARCH64,
        }
    }

    /// AUDIT_ARCH_*: the ELF machine, marked 64 bit and little endian.
    pub fn audit(self) -> u32 {
        match self {
            Arch::X86_64 => 0xC000_003E,
            Arch::Aarch64 => 0xC000_00B7,
        }
    }
}

impl Syscall {
    pub fn number(&self, arch: Arch) -> Option<u32> {
        match arch {
            Arch::X86_64 => self.x86_64,
            Arch::Aarch64 => self.aarch64,
        }
    }
}

pub fn find(name: &str) -> Option<&'static Syscall> {
    TABLE.binary_search_by(|syscall| syscall.name.cmp(name)).ok().map(|index| &TABLE[index])
}

/// Finds names that come in sorted order, as a plan lists them: each search starts at the last
/// result.
pub struct SyscallFinder {
    ahead: std::slice::Iter<'static, Syscall>,
}

impl SyscallFinder {
    pub fn new() -> SyscallFinder {
        SyscallFinder { ahead: TABLE.iter() }
    }

    pub fn find(&mut self, name: &[u8]) -> Option<&'static Syscall> {
        let is_it = |syscall: &&Syscall| syscall.name.as_bytes() == name;
        match self.ahead.find(is_it) {
            Some(syscall) => Some(syscall),
            None => {
                *self = SyscallFinder::new();
                self.ahead.find(is_it)
            }
        }
    }
}
