//! Values that JSON has no type for: lists without duplicates, known names, objects in the order
//! they are written.

use std::collections::BTreeSet;
use std::fmt;

use rustix::process::Resource;
use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor};

use super::SocketFamily;
use super::rights::{self, Rights, Scopes};
use super::syscalls::{self, Syscall, SyscallFinder};
use super::wire::bytes::Text;

/// An optional value must be written as `null`: a lost key must not switch a layer off.
pub fn present<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Option::deserialize(deserializer)
}

struct UniqueVisitor<V>(std::marker::PhantomData<V>);

impl<'de, V: Deserialize<'de>> Visitor<'de> for UniqueVisitor<V> {
    type Value = Vec<(Text, V)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
        let mut entries: Self::Value = Vec::new();
        while let Some(key) = map.next_key::<Text>()? {
            if entries.iter().any(|(known, _)| *known == key) {
                return Err(de::Error::custom(format_args!("duplicate key \"{key}\"")));
            }
            entries.push((key, map.next_value()?));
        }
        Ok(entries)
    }
}

/// Refuses duplicate keys. serde's own maps keep the last of two equal keys.
pub fn unique<'de, D, V>(deserializer: D) -> Result<Vec<(Text, V)>, D::Error>
where
    D: Deserializer<'de>,
    V: Deserialize<'de>,
{
    deserializer.deserialize_map(UniqueVisitor(std::marker::PhantomData))
}

pub fn name_set<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeSet<String>, D::Error> {
    let mut names = BTreeSet::new();
    for name in Vec::<String>::deserialize(deserializer)? {
        if let Some(twice) = names.replace(name) {
            return Err(de::Error::custom(format_args!("\"{twice}\" is listed twice")));
        }
    }
    Ok(names)
}

pub fn syscall_set<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<&'static Syscall>, D::Error> {
    let mut listed = vec![false; syscalls::TABLE.len()];
    let mut found = Vec::with_capacity(128);
    let mut finder = SyscallFinder::new();
    for name in Vec::<Text>::deserialize(deserializer)? {
        let syscall = finder
            .find(name.as_bytes())
            .ok_or_else(|| de::Error::custom(format_args!("unknown system call \"{name}\"")))?;
        if std::mem::replace(&mut listed[syscall.row], true) {
            return Err(de::Error::custom(format_args!("\"{name}\" is listed twice")));
        }
        found.push(syscall);
    }
    Ok(found)
}

pub fn family_set<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeSet<SocketFamily>, D::Error> {
    let mut families = BTreeSet::new();
    for family in Vec::<SocketFamily>::deserialize(deserializer)? {
        if !families.insert(family) {
            return Err(de::Error::custom(format_args!("{family:?} is listed twice")));
        }
    }
    Ok(families)
}

pub fn right_set<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Rights, D::Error> {
    let mut rights = Rights::empty();
    for name in Vec::<Text>::deserialize(deserializer)? {
        let right = std::str::from_utf8(name.as_bytes()).ok().and_then(rights::right);
        let right =
            right.ok_or_else(|| de::Error::custom(format_args!("unknown right \"{name}\"")))?;
        if rights.contains(right) {
            return Err(de::Error::custom(format_args!("\"{name}\" is listed twice")));
        }
        rights |= right;
    }
    Ok(rights)
}

pub fn scope_set<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Scopes, D::Error> {
    let mut scopes = Scopes::empty();
    for name in Vec::<Text>::deserialize(deserializer)? {
        let scope = std::str::from_utf8(name.as_bytes()).ok().and_then(rights::scope);
        let scope =
            scope.ok_or_else(|| de::Error::custom(format_args!("unknown scope \"{name}\"")))?;
        if scopes.contains(scope) {
            return Err(de::Error::custom(format_args!("\"{name}\" is listed twice")));
        }
        scopes |= scope;
    }
    Ok(scopes)
}

pub fn rlimits<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<(Resource, u64)>, D::Error> {
    let named: Vec<(Text, u64)> = unique(deserializer)?;
    let resource = |name: &Text| match name.as_bytes() {
        b"as" => Some(Resource::As),
        b"core" => Some(Resource::Core),
        b"cpu" => Some(Resource::Cpu),
        b"data" => Some(Resource::Data),
        b"fsize" => Some(Resource::Fsize),
        b"memlock" => Some(Resource::Memlock),
        b"nofile" => Some(Resource::Nofile),
        b"nproc" => Some(Resource::Nproc),
        b"stack" => Some(Resource::Stack),
        _ => None,
    };
    named
        .into_iter()
        .map(|(name, value)| match resource(&name) {
            Some(resource) => Ok((resource, value)),
            None => Err(de::Error::custom(format_args!("unknown resource limit \"{name}\""))),
        })
        .collect()
}
