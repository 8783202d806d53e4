//! The locations of grants: the supervisor finds them, and init mounts the grants there.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;

use rustix::io::Errno;

use crate::kernel::resolved_path::{FollowedLink, Identity};
use crate::plan::wire::bytes::{AbsPath, Text};
use crate::plan::{self, Grant};

/// The resolved path of a grant, and the symlinks that lead there.
pub struct GrantLocation<'p> {
    pub grant: &'p Grant,
    pub real: AbsPath,
    pub identity: Identity,
    pub directory: bool,
    pub socket: bool,
    pub links: Vec<GrantSymlink>,
}

/// A symlink on the path of a grant: its own path, and its target.
#[derive(Debug, PartialEq, Eq)]
pub struct GrantSymlink {
    pub at: Vec<u8>,
    pub target: CString,
}

impl From<&FollowedLink> for GrantSymlink {
    fn from(link: &FollowedLink) -> GrantSymlink {
        GrantSymlink { at: link.at.as_os_str().as_bytes().to_vec(), target: link.target.clone() }
    }
}

/// Encodes the locations for the channel. Both sides have the plan, so a grant is its number there.
pub fn encode(requested: &plan::FilesPlan, locations: &[GrantLocation<'_>]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(128 * locations.len());
    let text = |bytes: &mut Vec<u8>, text: &[u8]| {
        bytes.extend((text.len() as u32).to_le_bytes());
        bytes.extend(text);
    };
    let mut grants = requested.grants.iter().zip(0u32..);
    for one in locations {
        // They have the order of the plan, and a grant has at most one location.
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

/// Errno::PROTO: the bytes are no valid encoding.
pub fn decode<'p>(
    requested: &'p plan::FilesPlan,
    bytes: &[u8],
) -> Result<Vec<GrantLocation<'p>>, Errno> {
    let mut rest = ByteReader(bytes);
    let mut locations = Vec::with_capacity(32);
    while !rest.0.is_empty() {
        locations.push(rest.location(requested).ok_or(Errno::PROTO)?);
    }
    Ok(locations)
}

struct ByteReader<'b>(&'b [u8]);

impl<'b> ByteReader<'b> {
    fn location<'p>(&mut self, requested: &'p plan::FilesPlan) -> Option<GrantLocation<'p>> {
        let grant = requested.grants.get(self.number()? as usize)?;
        let [directory, socket] = self.array()?;
        let identity =
            Identity::from((u64::from_le_bytes(self.array()?), u64::from_le_bytes(self.array()?)));
        let real = Text::from_bytes(self.text()?.to_vec()).and_then(AbsPath::new).ok()?;
        let count = self.number()?;
        let links = (0..count).map(|_| {
            let at = self.text()?.to_vec();
            Some(GrantSymlink { at, target: CString::new(self.text()?).ok()? })
        });
        let links = links.collect::<Option<_>>()?;
        Some(GrantLocation {
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
    fn grant_locations_survive_their_encoding() {
        let plan: Value =
            serde_json::from_str(include_str!("../../../../schema/examples/plan.json")).unwrap();
        let plan = Plan::parse(plan.to_string().as_bytes(), 1000).unwrap();
        let requested = plan.files.as_ref().unwrap();
        assert!(requested.grants.len() > 2, "too few to skip one");
        let place = |text: &[u8]| AbsPath::new(Text::from_bytes(text.to_vec()).unwrap()).unwrap();
        let link = |at: &str, target: &str| GrantSymlink {
            at: at.into(),
            target: CString::new(target).unwrap(),
        };
        let one = |number: usize, real: &[u8], directory, links| GrantLocation {
            grant: &requested.grants[number],
            real: place(real),
            identity: Identity::from((number as u64, u64::MAX - number as u64)),
            directory,
            socket: !directory,
            links,
        };
        let locations = [
            one(0, b"/usr/lib", true, vec![link("/lib", "usr/lib")]),
            one(2, b"/w/\xff x", false, Vec::new()),
        ];
        let bytes = encode(requested, &locations);
        let received = decode(requested, &bytes).unwrap();
        assert_eq!(received.len(), locations.len());
        for (received, sent) in received.iter().zip(&locations) {
            assert!(std::ptr::eq(received.grant, sent.grant) && received.real == sent.real);
            assert_eq!(
                (received.identity, received.directory, &received.links),
                (sent.identity, sent.directory, &sent.links)
            );
        }
        assert!(decode(requested, &[]).unwrap().is_empty());
        // Truncated bytes are noticed at any position.
        let whole = encode(requested, &locations[..1]).len();
        for end in (1..bytes.len()).filter(|end| *end != whole) {
            assert_eq!(decode(requested, &bytes[..end]).err(), Some(Errno::PROTO), "{end}");
        }
    }
}
