//! Whether a git configuration is harmless: it has only keys that `git init`, `clone`, `commit` and
//! `branch` write.
//!
//! Git has hundreds of keys, and many of them name programs to run (protected-paths G2, G10, G14).
//! So the list has the harmless keys. A key that is not on it, an include, and a line that this
//! parser does not understand are all harmful. The grammar is that of git's config.c.

/// The text that is not read yet.
struct ConfigReader<'a> {
    rest: &'a [u8],
}

/// The configuration can not be parsed.
#[derive(Debug, PartialEq, Eq)]
pub struct MalformedConfig;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigSection {
    pub name: Vec<u8>,
    pub subsection: Option<Vec<u8>>,
}

#[cfg(test)]
pub fn is_harmless(config: &[u8]) -> bool {
    is_harmless_with(config, &mut |_| false)
}

/// `is_harmless_remote`: may a repository at this path be a remote? `git push` runs its hooks.
pub fn is_harmless_with(config: &[u8], is_harmless_remote: &mut dyn FnMut(&[u8]) -> bool) -> bool {
    other_settings(config, is_harmless_remote).is_ok_and(|others| others.is_empty())
}

/// Git's own set of blanks. A vertical tab and a form feed are letters of a value.
pub fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

/// Without blanks at both ends.
pub fn trimmed(text: &[u8]) -> &[u8] {
    let Some(start) = text.iter().position(|byte| !is_blank(*byte)) else { return b"" };
    let end = text.iter().rposition(|byte| !is_blank(*byte)).map_or(start, |last| last + 1);
    &text[start..end]
}

/// Git writes no control character into a configuration, and a person sees none.
pub fn has_control_characters(config: &[u8]) -> bool {
    config.iter().any(|byte| byte.is_ascii_control() && !is_blank(*byte))
}

/// A section, a key and a value.
pub type Setting = (ConfigSection, Vec<u8>, Option<Vec<u8>>);

/// The settings that are not harmless by themselves, in their order.
pub fn other_settings(
    config: &[u8],
    is_harmless_remote: &mut dyn FnMut(&[u8]) -> bool,
) -> Result<Vec<Setting>, MalformedConfig> {
    if has_control_characters(config) {
        return Err(MalformedConfig);
    }
    let mut others = Vec::new();
    let (mut remotes, mut used) = (Vec::new(), Vec::new());
    each(config, &mut |section, key, value| {
        let setting = || (section.clone(), key.to_vec(), value.map(<[u8]>::to_vec));
        let is_harmless = allowed(section, key, value)
            || remote_path(section, key, value).is_some_and(&mut *is_harmless_remote);
        others.extend((!is_harmless).then(setting));
        match (&section.name[..], key) {
            (b"remote", b"url") => remotes.extend(section.subsection.clone()),
            (b"branch", b"remote") if is_harmless => used.push(setting()),
            _ => {}
        }
    })?;
    // To git another name is the path of a repository.
    let is_known = |(_, _, value): &Setting| {
        value.as_ref().is_none_or(|name| name == b"." || remotes.contains(name))
    };
    others.extend(used.into_iter().filter(|setting| !is_known(setting)));
    Ok(others)
}

/// The paths of remotes on this machine, as the configuration spells them.
pub fn local_remotes(config: &[u8]) -> Vec<Vec<u8>> {
    let mut paths = Vec::new();
    // Git stops at a syntax error, and may have used the lines before it.
    let _ = each(config, &mut |section, key, value| {
        let is_remote = section.name == b"remote" && matches!(key, b"url" | b"pushurl");
        if let Some(url) = value.filter(|url| is_remote && !is_remote_url(url)) {
            paths.push(url.strip_prefix(b"file://").unwrap_or(url).to_vec());
        }
    });
    paths
}

/// The absolute path of a remote on this machine.
fn remote_path<'v>(
    section: &ConfigSection,
    key: &[u8],
    value: Option<&'v [u8]>,
) -> Option<&'v [u8]> {
    let is_remote = section.name == b"remote" && key == b"url";
    let has_name = section.subsection.as_deref().is_some_and(is_remote_name);
    value.filter(|path| is_remote && has_name && path.starts_with(b"/") && is_line(path))
}

/// Called with a section, a key in it, and the value.
pub type KeyVisitor<'t> = dyn FnMut(&ConfigSection, &[u8], Option<&[u8]>) + 't;

pub fn each(config: &[u8], visit: &mut KeyVisitor<'_>) -> Result<(), MalformedConfig> {
    let mut reader = ConfigReader { rest: config.strip_prefix(b"\xef\xbb\xbf").unwrap_or(config) };
    let mut section = None;
    while let Some(byte) = reader.next() {
        match byte {
            byte if is_blank(byte) => {}
            b'#' | b';' => while reader.next().is_some_and(|byte| byte != b'\n') {},
            b'[' => section = Some(reader.section()?),
            byte if byte.is_ascii_alphabetic() => {
                let (key, value) = reader.variable(byte)?;
                visit(section.as_ref().ok_or(MalformedConfig)?, &key, value.as_deref());
            }
            _ => return Err(MalformedConfig),
        }
    }
    Ok(())
}

impl ConfigReader<'_> {
    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        // A carriage return before a newline is skipped.
        if *first == b'\r' && rest.first() == Some(&b'\n') {
            self.rest = &rest[1..];
            return Some(b'\n');
        }
        Some(*first)
    }

    /// After `[`.
    fn section(&mut self) -> Result<ConfigSection, MalformedConfig> {
        let mut name = Vec::new();
        loop {
            match self.next().ok_or(MalformedConfig)? {
                b']' => break,
                b' ' | b'\t' => return self.subsection(name),
                byte if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.') => {
                    name.push(byte.to_ascii_lowercase());
                }
                _ => return Err(MalformedConfig),
            }
        }
        if name.is_empty() {
            return Err(MalformedConfig);
        }
        // The old syntax of a subsection.
        match name.iter().position(|byte| *byte == b'.') {
            Some(dot) => {
                let subsection = name.split_off(dot + 1);
                name.pop();
                Ok(ConfigSection { name, subsection: Some(subsection) })
            }
            None => Ok(ConfigSection { name, subsection: None }),
        }
    }

    /// `"…"]`, after the space.
    fn subsection(&mut self, name: Vec<u8>) -> Result<ConfigSection, MalformedConfig> {
        while matches!(self.rest.first(), Some(b' ' | b'\t')) {
            self.next();
        }
        if self.next() != Some(b'"') {
            return Err(MalformedConfig);
        }
        let mut subsection = Vec::new();
        loop {
            match self.next().ok_or(MalformedConfig)? {
                b'"' => break,
                b'\n' | 0 => return Err(MalformedConfig),
                b'\\' => match self.next().ok_or(MalformedConfig)? {
                    b'\n' | 0 => return Err(MalformedConfig),
                    byte => subsection.push(byte),
                },
                byte => subsection.push(byte),
            }
        }
        if self.next() != Some(b']') {
            return Err(MalformedConfig);
        }
        Ok(ConfigSection { name, subsection: Some(subsection) })
    }

    /// A key, and the value if there is one.
    fn variable(&mut self, first: u8) -> Result<(Vec<u8>, Option<Vec<u8>>), MalformedConfig> {
        let mut key = vec![first.to_ascii_lowercase()];
        let mut after = loop {
            match self.next() {
                Some(byte) if byte.is_ascii_alphanumeric() || byte == b'-' => {
                    key.push(byte.to_ascii_lowercase())
                }
                other => break other,
            }
        };
        while matches!(after, Some(b' ' | b'\t')) {
            after = self.next();
        }
        match after {
            None | Some(b'\n') => Ok((key, None)),
            Some(b'=') => Ok((key, Some(self.value()?))),
            Some(_) => Err(MalformedConfig),
        }
    }

    fn value(&mut self) -> Result<Vec<u8>, MalformedConfig> {
        let mut value = Vec::new();
        let (mut quoted, mut comment) = (false, false);
        // Spaces count only between other letters.
        let mut length_without_trailing_spaces = 0;
        loop {
            let byte = match self.next() {
                None | Some(b'\n') if quoted => return Err(MalformedConfig),
                None | Some(b'\n') => break,
                Some(byte) => byte,
            };
            if comment {
                continue;
            }
            match byte {
                0 => return Err(MalformedConfig),
                byte if is_blank(byte) && !quoted => {
                    if length_without_trailing_spaces > 0 {
                        value.push(byte);
                    }
                    continue;
                }
                b'#' | b';' if !quoted => {
                    comment = true;
                    continue;
                }
                b'"' => {
                    quoted = !quoted;
                    // Quoted text keeps its last spaces.
                    length_without_trailing_spaces = value.len();
                    continue;
                }
                b'\\' => match self.next().ok_or(MalformedConfig)? {
                    // The line goes on. Blanks before the backslash count.
                    b'\n' => {}
                    b't' => value.push(b'\t'),
                    b'b' => value.push(0x08),
                    b'n' => value.push(b'\n'),
                    byte @ (b'\\' | b'"') => value.push(byte),
                    _ => return Err(MalformedConfig),
                },
                byte => value.push(byte),
            }
            length_without_trailing_spaces = value.len();
        }
        value.truncate(length_without_trailing_spaces);
        Ok(value)
    }
}

/// Is this setting harmless? `value` is None for a key alone, which means true.
pub fn allowed(section: &ConfigSection, key: &[u8], value: Option<&[u8]>) -> bool {
    let text = value.unwrap_or(b"true");
    match (section.name.as_slice(), section.subsection.as_deref(), key) {
        (b"core", None, b"repositoryformatversion") => matches!(text, b"0" | b"1"),
        // True makes the directory a bare repository. git init and clone write it only in bare
        // ones.
        (b"core", None, b"bare") => text.eq_ignore_ascii_case(b"false"),
        (
            b"core",
            None,
            b"filemode"
            | b"logallrefupdates"
            | b"ignorecase"
            | b"symlinks"
            | b"precomposeunicode"
            | b"autocrlf"
            | b"eol"
            | b"quotepath"
            | b"sparsecheckout"
            | b"sparsecheckoutcone",
        ) => is_plain(text),
        (b"extensions", None, b"objectformat") => matches!(text, b"sha1" | b"sha256"),
        (b"extensions", None, b"refstorage") => matches!(text, b"files" | b"reftable"),
        // The file `config.worktree` is judged like this one. `git sparse-checkout` uses it.
        (b"extensions", None, b"worktreeconfig") => matches!(text, b"true" | b"false"),
        (b"index", None, b"sparse") => text == b"false",
        (b"user", None, b"name" | b"email") => is_line(text),
        (b"init", None, b"defaultbranch") => is_plain(text),
        (b"pull", None, b"rebase" | b"ff") | (b"push", None, b"default" | b"autosetupremote") => {
            is_plain(text)
        }
        (b"fetch", None, b"prune") | (b"rerere", None, b"enabled") | (b"gc", None, b"auto") => {
            is_plain(text)
        }
        (b"color", None, b"ui") | (b"advice", None, _) => is_plain(text),
        (b"remote", Some(name), b"url") => is_remote_name(name) && is_remote_url(text),
        (b"remote", Some(name), b"fetch") => is_remote_name(name) && is_refspec(text),
        (b"remote", Some(name), b"tagopt") => {
            is_remote_name(name) && matches!(text, b"--tags" | b"--no-tags")
        }
        // A path would be a repository whose hooks `git push` runs.
        (b"branch", Some(_), b"remote") => is_plain(text) && !text.contains(&b'/') || text == b".",
        (b"branch", Some(_), b"merge") => is_plain(text),
        (b"branch", Some(_), b"rebase") => is_plain(text),
        (b"submodule", Some(_), b"url") => is_remote_url(text),
        (b"submodule", Some(_) | None, b"active") => is_plain(text),
        _ => false,
    }
}

fn is_line(text: &[u8]) -> bool {
    !text.iter().any(u8::is_ascii_control)
}

/// A plain word: no option, no URL, no path upwards.
fn is_plain(text: &[u8]) -> bool {
    let letter = |byte: &u8| {
        byte.is_ascii_alphanumeric()
            || matches!(byte, b'_' | b'-' | b'.' | b'/' | b'+')
            || *byte >= 0x80
    };
    text.first().is_some_and(|first| *first != b'-')
        && text.iter().all(letter)
        && !text.starts_with(b"/")
}

/// A name that `git remote add` accepts: a part of a ref. Another name can be that of a path which
/// branches use, or which a person types: `.`, `../x`. Git would go to the remote in its place.
fn is_remote_name(name: &[u8]) -> bool {
    let is_part = |part: &[u8]| {
        !part.is_empty()
            && !part.starts_with(b".")
            && !part.ends_with(b".lock")
            && !part.windows(2).any(|pair| pair == b"..")
    };
    is_plain(name) && name.split(|byte| *byte == b'/').all(is_part)
}

/// A fetch writes its destination. Git takes other objects from `refs/replace`.
fn is_refspec(text: &[u8]) -> bool {
    const DESTINATIONS: [&[u8]; 4] =
        [b"refs/remotes/", b"refs/heads/", b"refs/tags/", b"refs/notes/"];
    let letter =
        |byte: &u8| byte.is_ascii_alphanumeric() || b"_-./+*:^@#".contains(byte) || *byte >= 0x80;
    let text = text.strip_prefix(b"+").unwrap_or(text);
    let mut parts = text.split(|byte| *byte == b':');
    let is_source = parts.next().is_some_and(|source| source.starts_with(b"refs/"));
    let destination = parts.next();
    let is_known = |path: &[u8]| {
        DESTINATIONS.iter().any(|known| path.starts_with(known))
            && !path.windows(2).any(|pair| pair == b"..")
    };
    is_source
        && parts.next().is_none()
        && destination.is_none_or(is_known)
        && text.iter().all(letter)
}

/// A network URL: no program (`ext::`), no option, no local path.
fn is_remote_url(url: &[u8]) -> bool {
    if !is_line(url)
        || url.contains(&b' ')
        || url.starts_with(b"-")
        || url.windows(2).any(|pair| pair == b"::")
    {
        return false;
    }
    let schemes: [&[u8]; 4] = [b"https://", b"http://", b"ssh://", b"git://"];
    if let Some(rest) = schemes.iter().find_map(|scheme| url.strip_prefix(*scheme)) {
        let authority = rest.split(|byte| *byte == b'/').next().unwrap_or_default();
        let host = authority.rsplit(|byte| *byte == b'@').next().unwrap_or_default();
        return !host.is_empty() && !host.starts_with(b"-") && !authority.starts_with(b"-");
    }
    // user@host:path
    let Some(colon) = url.iter().position(|byte| *byte == b':') else { return false };
    let (place, path) = (&url[..colon], &url[colon + 1..]);
    let host = place.rsplit(|byte| *byte == b'@').next().unwrap_or_default();
    !place.contains(&b'/')
        && place.contains(&b'@')
        && !host.is_empty()
        && !host.starts_with(b"-")
        && !path.starts_with(b"-")
        && !path.starts_with(b"//")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Git joins the section, the subsection and the key by dots.
    fn as_git_lists_it(config: &[u8]) -> Option<Vec<u8>> {
        let mut listed = Vec::new();
        let parsed = each(config, &mut |section, key, value| {
            let subsection = section.subsection.iter().flat_map(|name| [&b"."[..], name]);
            listed.extend_from_slice(&section.name);
            subsection.for_each(|part| listed.extend_from_slice(part));
            listed.extend([b".", key].concat());
            value.iter().for_each(|value| listed.extend([b"\n", *value].concat()));
            listed.push(0);
        });
        parsed.ok().map(|()| listed)
    }

    /// Git before 2.45 makes a space of each blank inside a value.
    fn with_plain_blanks(listed: Vec<u8>) -> Vec<u8> {
        listed
            .into_iter()
            .map(|byte| if matches!(byte, b'\t' | b'\r') { b' ' } else { byte })
            .collect()
    }

    #[test]
    fn values_are_those_that_git_lists() {
        const PARTS: [&str; 26] = [
            "[a]\n",
            "[a \"b\"]\n",
            "[A.B]",
            "[]",
            "[a \"\\b\"]",
            "x",
            "k = ",
            "k=",
            "k",
            "\n",
            "\n",
            " ",
            "\t",
            "\\",
            "\\\n",
            "\\n",
            "\\t",
            "\"",
            "#",
            ";",
            "\x0b",
            "\x0c",
            "\r",
            "\r\n",
            "=",
            "é",
        ];
        let path = std::env::temp_dir().join(format!("paddock-config-{}", std::process::id()));
        let (mut seed, mut compared) = (0x9E37_79B9_7F4A_7C15_u64, 0);
        for _ in 0..600 {
            let mut text = String::from("[s]\nk = v");
            for _ in 0..12 {
                seed ^= seed << 13;
                seed ^= seed >> 7;
                seed ^= seed << 17;
                text += PARTS[(seed % PARTS.len() as u64) as usize];
            }
            std::fs::write(&path, &text).unwrap();
            let git = std::process::Command::new("git")
                .args(["config", "--null", "--list", "--file"])
                .arg(&path)
                .output()
                .unwrap();
            // A configuration that git refuses leads it nowhere.
            if let Some(own) = as_git_lists_it(text.as_bytes()).filter(|_| git.status.success()) {
                compared += 1;
                assert_eq!(with_plain_blanks(own), with_plain_blanks(git.stdout), "{text:?}");
            }
        }
        std::fs::remove_file(path).unwrap();
        assert!(compared > 50, "{compared} texts were valid");
    }

    #[test]
    fn settings_that_git_writes_are_harmless() {
        for config in [
            "",
            "\u{feff}# nothing\n",
            "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\
             \tlogallrefupdates = true\n",
            "[core]\r\n\tignorecase = true\r\n\tprecomposeunicode\r\n",
            "[remote \"origin\"]\n\turl = https://github.com/a/b.git\n\
             \tfetch = +refs/heads/*:refs/remotes/origin/*\n\
             [branch \"main\"]\n\tremote = origin\n\tmerge = refs/heads/main\n\trebase = true\n",
            "[remote \"o\"] url = git@github.com:a/b.git ; comment\n\
             [remote \"p\"]url=ssh://git@host:22/x\n[remote \"team/x.y\"]\n\turl = https://x\n",
            "[branch \"we\\\\ird \\\"]\"]\n remote = .\n",
            "[user]\n\tname = Ada \"L.\" Lovelace\n\temail = ada@example.org\n[init]\n\
             \tdefaultBranch = main\n",
            "[submodule \"x\"]\n\turl = https://example.org/x\n\tactive = true\n[submodule]\n\
             \tactive = .\n",
            "[core]\n\tfilemode = tr\\\nue\n",
            "[extensions]\n\tworktreeConfig = true\n",
        ] {
            assert!(is_harmless(config.as_bytes()), "{config}");
        }
    }

    #[test]
    fn settings_that_run_or_redirect_are_harmful() {
        for config in [
            "[core]\n\tfsmonitor = evil\n",
            "[CORE]\n\tFsMonitor = evil\n",
            "[core] bare = false\n\tfsmonitor=evil\n",
            "[core]bare=false\n[core \"\"]\nfsmonitor=evil\n",
            "[core]\n\thooksPath = x\n",
            "[core]\n\tworktree = ../x\n",
            "[core]\n\tbare = true\n",
            "[core]\n\tbare\n",
            "[core]\n\trepositoryformatversion = 2\n",
            "[include]\n\tpath = x\n",
            "[includeIf \"gitdir:/\"]\n\tpath = x\n",
            "[alias]\n\tx = !evil\n",
            "[filter \"x\"]\n\tclean = evil\n",
            "[filter.x]\n\tclean = evil\n",
            "[remote \"o\"]\n\turl = ext::sh -c evil\n",
            "[remote \"o\"]\n\turl = https://x/::y\n",
            "[remote \"o\"]\n\turl = -uevil\n",
            "[remote \"o\"]\n\turl = ssh://-oProxyCommand=evil/x\n",
            "[remote \"o\"]\n\turl = user@-oProxyCommand=evil:x\n",
            "[remote \"o\"]\n\turl = /tmp/x\n",
            "[remote \"o\"]\n\turl = ../x\n",
            "[remote \"o\"]\n\turl = file:///x\n",
            "[remote \"o\"]\n\turl = evil:x\n",
            "[remote \".\"]\n\turl = https://x\n",
            "[remote \"../x\"]\n\turl = https://x\n",
            "[remote \"./x\"]\n\tfetch = +refs/heads/*:refs/remotes/x/*\n",
            "[remote \"x/../y\"]\n\turl = https://x\n",
            "[remote \"x//y\"]\n\ttagOpt = --tags\n",
            "[remote \"o\"]\n\tuploadpack = evil\n",
            "[remote \"o\"]\n\tpushurl = https://x\n",
            "[remote \"o\"]\n\tfetch = x\n",
            "[branch \"m\"]\n\tremote = ext::evil\n",
            "[url \"x\"]\n\tinsteadOf = https://\n",
            "[submodule \"x\"]\n\tupdate = !evil\n",
            "[user]\n\tsigningkey = x\n",
            "[user]\n\tname = a\\nb\n",
        ] {
            assert!(!is_harmless(config.as_bytes()), "{config}");
        }
    }

    #[test]
    fn unknown_syntax_is_harmful() {
        for config in [
            "key = value\n",
            "[core\n",
            "[core]\n\tx y\n",
            "[core]\n=\n",
            "[core \"x]\n",
            "[core \"x\" ]\n",
            "[co re]\n",
            "[core]\n\tbare = \"false\n",
            "[core]\n\tbare = fal\\se\n",
            "[core]\nbare = false\0\n",
            "[core]\nfile_mode = true\n",
            "\x01",
            "[core]\n\u{e9} = 1\n",
        ] {
            assert!(!is_harmless(config.as_bytes()), "{config:?}");
        }
    }

    #[test]
    fn values_are_parsed_as_git_parses_them() {
        let read = |config: &str| {
            let mut values = Vec::new();
            each(config.as_bytes(), &mut |section, key, value| {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                let subsection = section
                    .subsection
                    .as_deref()
                    .map_or(String::new(), |name| format!(".{}", text(name)));
                let value = value.map_or("-".to_owned(), |value| format!("<{}>", text(value)));
                values.push(format!("{}{subsection}.{} {value}", text(&section.name), text(key)));
            })
            .unwrap();
            values
        };
        assert_eq!(
            read("[A]\nb = \" x \" y  # z\nC\n"),
            ["a.b < x  y>", "a.c ->"].map(|one| one.replace("->", "-"))
        );
        assert_eq!(read("[a \"B\\\"c\"]\nk=v\\\n w\\t\\\\"), ["a.B\"c.k <v w\t\\>"]);
        assert_eq!(read("[a.Bc.D] k =\n"), ["a.bc.d.k <>"]);
        assert_eq!(read("[a]\nk = \";\" ; no\nl=x;y\n"), ["a.k <;>", "a.l <x>"]);
        assert_eq!(read("[a]\nk = \" \"\n"), ["a.k < >"]);
    }

    #[test]
    fn any_bytes_are_parsed_without_a_loop() {
        let mut dice = 3_u64;
        let letters = b"[]core\"\\=# \n\t\r;.abc\0\xff-";
        for _ in 0..20_000 {
            let mut config = b"[core]\n".to_vec();
            for _ in 0..24 {
                dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                config.push(letters[(dice >> 33) as usize % letters.len()]);
            }
            is_harmless(&config);
        }
    }
}
