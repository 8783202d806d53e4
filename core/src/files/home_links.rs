//! Names in the home directory that are symlinks into writable trees, and symlinks in its
//! directories.
//!
//! Programs outside read `~/.bashrc` and `~/.gitconfig` wherever these lead. Settings are often in
//! a repository of their own, which may be a workspace. The target of such a name is protected like
//! the name itself, and so is every link on the way. The same holds for links in a listed
//! directory, which stands for all its entries. The patterns of the home directory find names that
//! are no links.

use super::home_listing::{HomeEntry, HomeListing};
use super::linked_dirs;
use super::patterns::{NamePatterns, NameRule};
use super::symlink;
use super::tree_roots::GrantedTree;
use super::walk::WalkError;
use crate::plan::ProtectedNames;
use crate::plan::wire::bytes::{AbsPath, Text};

/// `groups`: the protected names, with those of the home directory.
pub fn protect_ends(
    names: &mut NamePatterns,
    home: &HomeListing<'_>,
    groups: &[ProtectedNames],
    trees: &[GrantedTree],
) -> Result<(), WalkError> {
    let root = home.path();
    let of_home = |group: &&ProtectedNames| {
        group.below.iter().all(|place| place.as_bytes() == root.as_bytes())
    };
    let mut whole = Vec::new();
    for name in groups.iter().filter(of_home).flat_map(|group| &group.names) {
        let (fixed, rest) = fixed_part(name.as_bytes());
        if fixed.is_empty() {
            continue;
        }
        let seen = home.below(fixed);
        if seen == HomeEntry::Missing {
            continue;
        }
        let path = AbsPath::new(Text::from_bytes([root.as_bytes(), b"/", fixed].concat())?)?;
        if seen == HomeEntry::Unknown {
            protect_end(names, &path, &Text::from_bytes(rest.to_vec())?, trees)?;
        }
        if rest.is_empty() {
            whole.push(path);
        }
    }
    let nothing = Text::from_bytes(Vec::new())?;
    for link in linked_dirs::links_inside(whole.iter())? {
        protect_end(names, &link, &nothing, trees)?;
    }
    Ok(())
}

/// Protects the target of a path, and `rest` below it, if the target is elsewhere.
fn protect_end(
    names: &mut NamePatterns,
    path: &AbsPath,
    rest: &Text,
    trees: &[GrantedTree],
) -> Result<(), WalkError> {
    let Some(followed) = symlink::leads_to(path)? else { return Ok(()) };
    let held =
        |path: &AbsPath| trees.iter().any(|tree| tree.writable && path.is_within(&tree.path));
    for link in followed.links.iter().filter(|link| held(link)) {
        names.add_path(NameRule::Link, link.as_bytes());
    }
    // A path that a grant names stays writable: a person wrote the grant.
    let inner = |tree: &GrantedTree| {
        trees.iter().any(|other| {
            other.writable && tree.path != other.path && tree.path.is_within(&other.path)
        })
    };
    let granted = trees
        .iter()
        .any(|tree| tree.writable && !inner(tree) && tree.path.is_within(&followed.end));
    if followed.end != *path && held(&followed.end) && !granted {
        names.add_below(NameRule::Protect, followed.end.as_bytes(), rest)?;
    }
    Ok(())
}

/// A name up to its first wildcard, by whole components, and the rest.
fn fixed_part(name: &[u8]) -> (&[u8], &[u8]) {
    let Some(star) = name.iter().position(|byte| *byte == b'*') else { return (name, b"") };
    match name[..star].iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&name[..slash], &name[slash + 1..]),
        None => (b"", name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::test_tree::TestTree;
    use std::os::unix::fs::symlink;

    #[test]
    fn the_target_of_a_home_name_is_protected() {
        let scene = TestTree::new();
        for file in [
            "w/bash/.bashrc",
            "w/config/fish/config.fish",
            "w/real",
            "w/own/x",
            "out/x",
            "home/.profile",
        ] {
            scene.file(file);
        }
        for (target, link) in [
            ("../w/bash/.bashrc", "home/.bashrc"),
            ("../w/config", "home/.config"),
            ("../w/link", "home/.inputrc"),
            ("real", "w/link"),
            ("../out/x", "home/.zshrc"),
            ("../w", "home/bin"),
            ("../w/none", "home/.xprofile"),
            ("../../w/sshd", "home/.ssh/config"),
            ("../../../w/plugins", "home/.ssh/deep/plugins"),
        ] {
            std::fs::create_dir_all(scene.path(link).parent().unwrap()).unwrap();
            symlink(target, scene.path(link)).unwrap();
        }
        let text = |text: &str| Text::from_bytes(text.as_bytes().to_vec()).unwrap();
        let home = AbsPath::new(text(scene.path("home").to_str().unwrap())).unwrap();
        let wanted = [
            ".bashrc",
            ".config/fish",
            ".config/x/*.lua",
            ".inputrc",
            ".zshrc",
            "bin",
            ".xprofile",
            ".profile",
            ".ssh",
            ".zcompdump*",
        ];
        let group = ProtectedNames {
            below: vec![text(scene.path("home").to_str().unwrap())],
            but: Vec::new(),
            names: wanted.iter().map(|name| text(name)).collect(),
        };
        let mut names = NamePatterns::new(&[], &[], &[], &[]).unwrap();
        protect_ends(&mut names, &HomeListing::at(&home), &[group], &[scene.tree("w", true)])
            .unwrap();
        assert!(names.settle().unwrap());
        for (path, expected) in [
            ("w/bash/.bashrc", true),
            ("w/config/fish", true),
            ("w/config/x/a.lua", true),
            ("w/config/x/a.txt", false),
            ("w/real", true),
            ("w/none", true),
            ("w/sshd", true),
            ("w/plugins", true),
            ("w/own", false),
            ("w", false),
            ("out/x", false),
        ] {
            let look = names.start(scene.path(path).to_str().unwrap().as_bytes(), true).look;
            assert_eq!(look.protect.is_some(), expected, "{path}");
        }
        let link = names.start(scene.path("w/link").to_str().unwrap().as_bytes(), true).look;
        assert!(link.link.is_some(), "the link on the way stays as it is");
        assert_eq!(fixed_part(b".codex/AGENTS*.md"), (&b".codex"[..], &b"AGENTS*.md"[..]));
        assert_eq!(fixed_part(b".zcompdump*"), (&b""[..], &b".zcompdump*"[..]));
    }
}
