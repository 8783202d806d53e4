//! Where the grants really lie: found by the supervisor, told to init, which mounts them there.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;

use rustix::io::Errno;

use crate::kernel::resolved_path::{FollowedLink, Identity};
use crate::plan::wire::bytes::{AbsPath, Text};
use crate::plan::{self, Grant};

/// Where a grant really lies, and the symlinks that lead there.
pub struct Placed<'p> {
    pub grant: &'p Grant,
    pub real: AbsPath,
    pub identity: Identity,
    pub directory: bool,
    pub socket: bool,
    pub links: Vec<Signpost>,
}

/// A symlink on the way: where it stands, and what it says.
#[derive(Debug, PartialEq, Eq)]
pub struct Signpost {
    pub at: Vec<u8>,
    pub target: CString,
}

impl From<&FollowedLink> for Signpost {
    fn from(link: &FollowedLink) -> Signpost {
        Signpost { at: link.at.as_os_str().as_bytes().to_vec(), target: link.target.clone() }
    }
}

/// For the channel. Both sides have the plan: a grant is told by its number in there.
pub fn spell(requested: &plan::FilesPlan, placed: &[Placed<'_>]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(128 * placed.len());
    let text = |bytes: &mut Vec<u8>, text: &[u8]| {
        bytes.extend((text.len() as u32).to_le_bytes());
        bytes.extend(text);
    };
    let mut grants = requested.grants.iter().zip(0u32..);
    for one in placed {
        // They are found in the order of the plan, one grant at one place at most.
        let Some((_, number)) = grants.find(|(grant, _)| std::ptr::eq(*grant, one.grant)) else {
            continue;
        };
        bytes.extend(number.to_le_bytes());
        bytes.extend([u8::from(one.directory), u8::from(one.socket)]);
        bytes.extend(one.identity.device.to_le_bytes());
        bytes.extend(one.identity.inode().to_le_bytes());
        text(&mut bytes, one.real.as_bytes());
        bytes.extend((one.links.len() as u32).to_le_bytes());
        for link in &one.links {
            text(&mut bytes, &link.at);
            text(&mut bytes, link.target.to_bytes());
        }
    }
    bytes
}

/// Errno::PROTO: nobody spells like this.
pub fn read<'p>(requested: &'p plan::FilesPlan, bytes: &[u8]) -> Result<Vec<Placed<'p>>, Errno> {
    let mut rest = Rest(bytes);
    let mut placed = Vec::with_capacity(32);
    while !rest.0.is_empty() {
        placed.push(rest.placed(requested).ok_or(Errno::PROTO)?);
    }
    Ok(placed)
}

struct Rest<'b>(&'b [u8]);

impl<'b> Rest<'b> {
    fn placed<'p>(&mut self, requested: &'p plan::FilesPlan) -> Option<Placed<'p>> {
        let grant = requested.grants.get(self.number()? as usize)?;
        let [directory, socket] = self.array()?;
        let identity =
            Identity::from((u64::from_le_bytes(self.array()?), u64::from_le_bytes(self.array()?)));
        let real = Text::from_bytes(self.text()?.to_vec()).and_then(AbsPath::new).ok()?;
        let count = self.number()?;
        let links = (0..count).map(|_| {
            let at = self.text()?.to_vec();
            Some(Signpost { at, target: CString::new(self.text()?).ok()? })
        });
        let links = links.collect::<Option<_>>()?;
        Some(Placed {
            grant,
            real,
            identity,
            directory: directory != 0,
            socket: socket != 0,
            links,
        })
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn number(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn text(&mut self) -> Option<&'b [u8]> {
        let length = self.number()? as usize;
        let (first, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(first)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::plan::Plan;

    #[test]
    fn what_was_placed_is_read_as_it_was_spelled() {
        let plan: Value =
            serde_json::from_str(include_str!("../../../../schema/examples/plan.json")).unwrap();
        let plan = Plan::parse(plan.to_string().as_bytes(), 1000).unwrap();
        let requested = plan.files.as_ref().unwrap();
        assert!(requested.grants.len() > 2, "too few to skip one");
        let place = |text: &[u8]| AbsPath::new(Text::from_bytes(text.to_vec()).unwrap()).unwrap();
        let link = |at: &str, target: &str| Signpost {
            at: at.into(),
            target: CString::new(target).unwrap(),
        };
        let one = |number: usize, real: &[u8], directory, links| Placed {
            grant: &requested.grants[number],
            real: place(real),
            identity: Identity::from((number as u64, u64::MAX - number as u64)),
            directory,
            socket: !directory,
            links,
        };
        let placed = [
            one(0, b"/usr/lib", true, vec![link("/lib", "usr/lib")]),
            one(2, b"/w/\xff x", false, Vec::new()),
        ];
        let bytes = spell(requested, &placed);
        let heard = read(requested, &bytes).unwrap();
        assert_eq!(heard.len(), placed.len());
        for (heard, said) in heard.iter().zip(&placed) {
            assert!(std::ptr::eq(heard.grant, said.grant) && heard.real == said.real);
            assert_eq!(
                (heard.identity, heard.directory, &heard.links),
                (said.identity, said.directory, &said.links)
            );
        }
        assert!(read(requested, &[]).unwrap().is_empty());
        // Whatever is cut off in between is noticed.
        let whole = spell(requested, &placed[..1]).len();
        for end in (1..bytes.len()).filter(|end| *end != whole) {
            assert_eq!(read(requested, &bytes[..end]).err(), Some(Errno::PROTO), "{end}");
        }
    }
}
