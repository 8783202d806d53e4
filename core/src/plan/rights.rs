//! Landlock's rights and scopes by their names in a plan, and the rights of each ABI, from
//! `src/paddock/policy/landlock.tsv`, which Python shares.

use landlock::{ABI, AccessFs, BitFlags, Scope};

pub type Rights = BitFlags<AccessFs>;
pub type Scopes = BitFlags<Scope>;

include!(concat!(env!("OUT_DIR"), "/landlock_table.rs"));

pub fn right(name: &str) -> Option<AccessFs> {
    RIGHTS.iter().find(|(known, ..)| *known == name).map(|(_, right, _)| *right)
}

pub fn scope(name: &str) -> Option<Scope> {
    SCOPES.iter().find(|(known, ..)| *known == name).map(|(_, scope, _)| *scope)
}

pub fn names(rights: Rights) -> String {
    let known = RIGHTS.iter().filter(|(_, right, _)| rights.contains(*right));
    let named: Vec<&str> = known.map(|(name, ..)| *name).collect();
    named.join(", ")
}

/// The rights and scopes that a kernel with this ABI handles.
pub fn supported_by(abi: i32) -> (Rights, Scopes) {
    (
        RIGHTS.iter().filter(|(.., since)| *since <= abi).map(|(_, right, _)| *right).collect(),
        SCOPES.iter().filter(|(.., since)| *since <= abi).map(|(_, scope, _)| *scope).collect(),
    )
}

/// The rights that apply to a file that is not a directory. The kernel refuses the others there
/// (EINVAL).
pub fn for_file(rights: Rights) -> Rights {
    rights & AccessFs::from_file(ABI::V9)
}

#[cfg(test)]
mod tests {
    use landlock::Access;

    use super::*;

    #[test]
    fn the_table_agrees_with_the_landlock_crate() {
        for abi in 0..=10 {
            let known = ABI::from(abi);
            assert_eq!(supported_by(abi), (AccessFs::from_all(known), Scope::from_all(known)));
        }
    }
}
