//! What the first bytes of a file say about how the kernel would execute it.

use std::os::fd::AsFd;

use rustix::io::Errno;

/// As much as the kernel looks at for a `#!` line (BINPRM_BUF_SIZE).
const LINE: usize = 256;
/// Enough for the header and, in nearly all programs, for what follows it.
const HEAD: usize = 4096;
/// The kernel takes no more of either.
const PROGRAM_HEADERS: usize = 65536;
const MAX_PATH_BYTES: usize = 4096;
const DYNAMIC: usize = 1 << 16;

// little endian; what else there is, the filter does not let run
const ELF64: &[u8] = b"\x7fELF\x02\x01";
const ET_DYN: u16 = 3;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const DT_NULL: u64 = 0;
const DT_SONAME: u64 = 14;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    /// `#!`: the interpreter and its one argument.
    Script { interpreter: Vec<u8>, argument: Option<Vec<u8>> },
    /// By its own loader, or by none.
    Binary { loader: Option<Vec<u8>> },
    /// A library that is no program, unless it is one to start other programs.
    Library,
    /// `#!` and more than the kernel reads of it.
    Cut,
}

impl Program {
    /// NOEXEC: the kernel has nothing to execute it with (or something that an administrator
    /// registered, which we do not know).
    pub fn of(file: impl AsFd) -> Result<Program, Errno> {
        let mut head = vec![0; HEAD];
        let length = read_at(&file, &mut head, 0)?;
        head.truncate(length);
        if head.starts_with(b"#!") {
            return script(&head[..length.min(LINE)]);
        }
        if !head.starts_with(ELF64) {
            return Err(Errno::NOEXEC);
        }
        binary(&file, &head).ok_or(Errno::NOEXEC)
    }
}

/// The line as binfmt_script reads it. One that does not fit is not for us to cut: in another place
/// than the kernel does, it would say something else.
fn script(head: &[u8]) -> Result<Program, Errno> {
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let line = match head.iter().position(|byte| *byte == b'\n') {
        Some(end) => &head[2..end],
        None if head.len() < LINE => &head[2..],
        None => return Ok(Program::Cut),
    };
    let end = line.iter().rposition(|byte| !blank(byte)).map_or(0, |last| last + 1);
    let start = line.iter().position(|byte| !blank(byte)).unwrap_or(end);
    let words = &line[start..end];
    let length = words.iter().position(|byte| blank(byte) || *byte == 0).unwrap_or(words.len());
    let (interpreter, rest) = words.split_at(length);
    if interpreter.is_empty() {
        return Err(Errno::NOEXEC);
    }
    let argument = match rest.first() {
        Some(byte) if blank(byte) => {
            rest.iter().position(|byte| !blank(byte)).map(|start| &rest[start..])
        }
        _ => None,
    };
    let argument =
        argument.map(|text| text.split(|byte| *byte == 0).next().unwrap_or_default().to_vec());
    Ok(Program::Script { interpreter: interpreter.to_vec(), argument })
}

fn binary(file: &impl AsFd, head: &[u8]) -> Option<Program> {
    let kind = u16::from_le_bytes(field(head, 16)?);
    let start = u64::from_le_bytes(field(head, 32)?);
    let size = usize::from(u16::from_le_bytes(field(head, 54)?));
    let count = usize::from(u16::from_le_bytes(field(head, 56)?));
    if size != 56 || count == 0 || size * count > PROGRAM_HEADERS {
        return None;
    }
    let headers = part(file, head, start, size * count)?;
    let part_of = |wanted: u32, most: usize| {
        let is_it = |header: &&[u8]| field(header, 0).map(u32::from_le_bytes) == Some(wanted);
        let header = headers.chunks_exact(size).find(is_it)?;
        let (offset, length) =
            (u64::from_le_bytes(field(header, 8)?), u64::from_le_bytes(field(header, 32)?));
        part(file, head, offset, usize::try_from(length).ok()?.min(most))
    };
    let has = |wanted: u32| {
        headers.chunks_exact(size).any(|header| field(header, 0) == Some(wanted.to_le_bytes()))
    };
    if has(PT_INTERP) {
        let text = part_of(PT_INTERP, MAX_PATH_BYTES)?;
        return Some(Program::Binary {
            loader: Some(text.split(|byte| *byte == 0).next()?.to_vec()),
        });
    }
    // A position-independent program without a loader, or a loader: that one has a name of its own
    // for others to ask for.
    let named = || {
        let table = part_of(PT_DYNAMIC, DYNAMIC)?;
        let tags =
            table.chunks_exact(16).filter_map(|entry| field(entry, 0)).map(u64::from_le_bytes);
        Some(tags.take_while(|tag| *tag != DT_NULL).any(|tag| tag == DT_SONAME))
    };
    if kind == ET_DYN && has(PT_DYNAMIC) && named()? {
        return Some(Program::Library);
    }
    Some(Program::Binary { loader: None })
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// A part of the file, from its head where that has it.
fn part(file: &impl AsFd, head: &[u8], offset: u64, length: usize) -> Option<Vec<u8>> {
    let start = usize::try_from(offset).ok()?;
    if let Some(known) = head.get(start..start.checked_add(length)?) {
        return Some(known.to_vec());
    }
    let mut bytes = vec![0; length];
    (read_at(file, &mut bytes, offset).ok()? == length).then_some(bytes)
}

fn read_at(file: &impl AsFd, buffer: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let mut filled = 0;
    while filled < buffer.len() {
        let at = offset.checked_add(filled as u64).ok_or(Errno::INVAL)?;
        match rustix::io::pread(file, &mut buffer[filled..], at) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn of(bytes: &[u8]) -> Result<Program, Errno> {
        let fd = rustix::fs::memfd_create(c"program", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let mut file = std::fs::File::from(fd);
        file.write_all(bytes).unwrap();
        Program::of(&file)
    }

    fn interpreted(interpreter: &str, argument: Option<&str>) -> Result<Program, Errno> {
        let argument = argument.map(|text| text.as_bytes().to_vec());
        Ok(Program::Script { interpreter: interpreter.into(), argument })
    }

    #[test]
    fn a_first_line_is_read_as_the_kernel_reads_it() {
        for (text, expected) in [
            (&b"#!/bin/sh\n"[..], interpreted("/bin/sh", None)),
            (b"#!/bin/sh", interpreted("/bin/sh", None)),
            (b"#! \t/bin/sh \t\nrest", interpreted("/bin/sh", None)),
            (b"#!/usr/bin/env node\n", interpreted("/usr/bin/env", Some("node"))),
            (b"#!/usr/bin/env -S a b  c \n", interpreted("/usr/bin/env", Some("-S a b  c"))),
            (b"#!/bin/sh\0 x\n", interpreted("/bin/sh", None)),
            (b"#!/bin/sh a\0b\n", interpreted("/bin/sh", Some("a"))),
            (b"#!sh\n", interpreted("sh", None)),
            (b"#!\n", Err(Errno::NOEXEC)),
            (b"#!  \t \n", Err(Errno::NOEXEC)),
            (b"#!", Err(Errno::NOEXEC)),
            (b"", Err(Errno::NOEXEC)),
            (b"echo hello\n", Err(Errno::NOEXEC)),
            (b"\x7fELF\x01\x01\x01", Err(Errno::NOEXEC)),
            (b"\x7fELF\x02\x01\x01", Err(Errno::NOEXEC)),
        ] {
            assert_eq!(of(text), expected, "{text:?}");
        }
        let long = [b"#!/bin/sh ".to_vec(), vec![b'x'; 300]].concat();
        assert_eq!(of(&long), Ok(Program::Cut));
    }

    #[test]
    fn real_programs_are_told_apart() {
        let at = |path: &str| Program::of(std::fs::File::open(path).unwrap());
        let Ok(Program::Binary { loader: Some(loader) }) = at("/bin/ls") else {
            panic!("ls has a loader")
        };
        assert_eq!(at(std::str::from_utf8(&loader).unwrap()), Ok(Program::Library));
        // This test: static, and position independent.
        assert_eq!(at("/proc/self/exe"), Ok(Program::Binary { loader: None }));
    }

    #[test]
    fn broken_headers_are_no_program_and_no_panic() {
        let whole = std::fs::read("/bin/true").unwrap();
        let mut state = 0x9E37_79B9_7F4A_7C15_u64;
        for round in 0..4000 {
            let mut bytes = whole[..whole.len().min(1 + round * 3 % 8192)].to_vec();
            for _ in 0..round % 7 {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                let at = state as usize % bytes.len().clamp(1, 1024).min(bytes.len());
                bytes[at] = (state >> 32) as u8;
            }
            let _ = of(&bytes);
        }
    }
}
