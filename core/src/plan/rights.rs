//! Landlock's rights and scopes by their names in a plan, and the rights of each ABI.

use landlock::{ABI, Access, AccessFs, BitFlags, Scope};

pub type Rights = BitFlags<AccessFs>;
pub type Scopes = BitFlags<Scope>;

const RIGHTS: &[(&str, AccessFs)] = &[
    ("execute", AccessFs::Execute),
    ("ioctl_dev", AccessFs::IoctlDev),
    ("make_block", AccessFs::MakeBlock),
    ("make_char", AccessFs::MakeChar),
    ("make_dir", AccessFs::MakeDir),
    ("make_fifo", AccessFs::MakeFifo),
    ("make_reg", AccessFs::MakeReg),
    ("make_sock", AccessFs::MakeSock),
    ("make_sym", AccessFs::MakeSym),
    ("read_dir", AccessFs::ReadDir),
    ("read_file", AccessFs::ReadFile),
    ("refer", AccessFs::Refer),
    ("remove_dir", AccessFs::RemoveDir),
    ("remove_file", AccessFs::RemoveFile),
    ("resolve_unix", AccessFs::ResolveUnix),
    ("truncate", AccessFs::Truncate),
    ("write_file", AccessFs::WriteFile),
];

const SCOPES: &[(&str, Scope)] =
    &[("abstract_unix_socket", Scope::AbstractUnixSocket), ("signal", Scope::Signal)];

pub fn right(name: &str) -> Option<AccessFs> {
    RIGHTS.iter().find(|(known, _)| *known == name).map(|(_, right)| *right)
}

pub fn scope(name: &str) -> Option<Scope> {
    SCOPES.iter().find(|(known, _)| *known == name).map(|(_, scope)| *scope)
}

pub fn names(rights: Rights) -> String {
    let named: Vec<&str> =
        RIGHTS.iter().filter(|(_, right)| rights.contains(*right)).map(|(name, _)| *name).collect();
    named.join(", ")
}

/// The rights and scopes that a kernel with this ABI handles.
pub fn supported_by(abi: i32) -> (Rights, Scopes) {
    (AccessFs::from_all(ABI::from(abi)), Scope::from_all(ABI::from(abi)))
}

/// The rights that apply to a file that is not a directory. The kernel refuses the others there
/// (EINVAL).
pub fn for_file(rights: Rights) -> Rights {
    rights & AccessFs::from_file(ABI::V9)
}
