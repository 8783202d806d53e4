//! The rules of the gate: one exec in, one verdict out. Pure: what has to be read of a process or a
//! file is handed in.
//!
//! The first rule that matches decides; a rule matches if all its keys do. A program has more than
//! one name: the file it is, the path it was asked for by, its first argument, the interpreters
//! that run it. So a key holds surely, not at all, or partly: by some name but not by the one that
//! counts. What lets a program through has to hold surely; what stops or asks holds as soon as it
//! does so partly. (Three values after Kleene: `_not` exchanges the outer two, and a rule is as
//! sure as its least sure key.)

#[cfg(test)]
mod tests;

use std::cell::OnceCell;

use regex::bytes::{Regex, RegexBuilder, RegexSet, RegexSetBuilder, SetMatches};

use super::argv_hosts::{self, Pattern};
use super::argv_text;
use crate::files::patterns::{Globs, NamesError};
use crate::plan::host_name::Host;
use crate::plan::wire::bytes::{AbsPath, Text};
use crate::plan::{self, Action, Gate, Key};

/// Memory for one compiled expression: some thousand letters of a usual one.
const REGEX_SIZE: usize = 1 << 20;

/// Programs that are many: which one, says the first argument or, if that names themselves, the
/// second.
const MULTI_CALL: [&[u8]; 3] = [b"busybox", b"coreutils", b"toybox"];

/// What a process asks the kernel to start.
pub struct Exec<'a> {
    /// Every file that this exec brings to run: the one asked for, then the interpreter of each
    /// `#!` line. At least one.
    pub chain: &'a [File<'a>],
    pub argv: &'a [&'a [u8]],
    pub cwd: &'a [u8],
    pub uid: u32,
    /// None: it has ended, or can not be read.
    pub parent: Option<Parent<'a>>,
    /// Every file of the chain lies where programs are granted and the command can not write
    /// (gate/trusted_dirs.rs).
    pub granted: bool,
    /// The SHA-256 of a file of the chain, by its index: asked only by rules that need it.
    pub digest: &'a dyn Fn(usize) -> Result<[u8; 32], String>,
}

#[derive(Clone, Copy)]
pub struct File<'a> {
    /// The path as the process or the `#!` line has it; empty where a descriptor alone was given.
    pub named: &'a [u8],
    /// Where that leads, after all links.
    pub real: &'a [u8],
    /// The one argument that the `#!` line gives to it.
    pub argument: Option<&'a [u8]>,
}

#[derive(Clone, Copy)]
pub struct Parent<'a> {
    pub exe: &'a [u8],
    pub argv: &'a [&'a [u8]],
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecDecision {
    pub action: Action,
    pub cause: Cause,
    /// The first rule that would have allowed it and held only partly. For people: it is what they
    /// thought of.
    pub doubted: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    Rule(usize),
    Default,
    /// By default it would be allowed, but the command could have made it.
    NotGranted,
    /// What it does can not be seen, or not be held to what was seen.
    Unseen(&'static str),
    /// Judging took too long.
    Late,
    /// The rule can not be judged.
    Error {
        rule: usize,
        why: String,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum RuleError {
    #[error("the rule \"{0}\" has an invalid expression: {1}")]
    Regex(Text, String),
    #[error("the expressions of all rules together are too large")]
    Expressions,
    #[error("the rule \"{0}\" has an invalid pattern: {1}")]
    Glob(Text, #[source] NamesError),
    #[error("the rule \"{0}\" has an invalid SHA-256")]
    Digest(Text),
    #[error("the rule \"{0}\" has an invalid host")]
    Host(Text),
    #[error("the rule \"{0}\" has an invalid user id")]
    Uid(Text),
    #[error("exec rules cannot be enforced if the command may create namespaces")]
    Namespaces,
    #[error(
        "exec rules cannot be enforced if the command may write to {0}: it could change programs \
            after the check"
    )]
    Proc(AbsPath),
}

#[derive(Debug)]
pub struct Rules {
    rules: Vec<Rule>,
    approved: Vec<Rule>,
    patterns: Patterns,
    default: Action,
    on_error: Action,
    only_granted: bool,
}

/// What the keys of all rules look for: tried once for all of them, whichever rule asks.
#[derive(Debug)]
struct Patterns {
    globs: Globs,
    expressions: RegexSet,
}

#[derive(Debug)]
struct Rule {
    action: Action,
    /// Those that can fail last: what another key rules out needs not be known.
    keys: Vec<(bool, Test)>,
    /// It says where the program lies or what is in it.
    identifies: bool,
    /// It is about interpreters too, with what they are told. One that says only what a program is
    /// not, or is not told, would be about each.
    follows: bool,
}

#[derive(Debug)]
enum Test {
    Exe(Vec<Text>),
    Basename(Vec<Text>),
    Glob(Vec<usize>),
    Argv(Vec<usize>),
    Contains(Vec<Text>),
    HostIn(Vec<Pattern>),
    Cwd(Vec<usize>),
    Uid(Vec<u32>),
    Sha256(Vec<[u8; 32]>),
    ParentExe(Vec<Text>),
    ParentArgv(Vec<usize>),
}

/// In order: a rule is as sure as its least sure key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Holds {
    No,
    Partly,
    Surely,
}

impl Holds {
    fn from(surely: bool, partly: impl FnOnce() -> bool) -> Holds {
        match surely {
            true => Holds::Surely,
            false if partly() => Holds::Partly,
            false => Holds::No,
        }
    }

    fn negated(self) -> Holds {
        match self {
            Holds::No => Holds::Surely,
            Holds::Partly => Holds::Partly,
            Holds::Surely => Holds::No,
        }
    }
}

/// An expression as the rules understand it; `Err` says what is wrong in one line.
pub fn regex(pattern: &[u8]) -> Result<Regex, String> {
    let pattern = std::str::from_utf8(pattern).map_err(|_| "it is not UTF-8".to_owned())?;
    let built = RegexBuilder::new(pattern).unicode(false).size_limit(REGEX_SIZE).build();
    built.map_err(|error| {
        let text = error.to_string();
        // The crate draws the place over several lines and says last what it is.
        text.lines().next_back().unwrap_or_default().trim_start_matches("error: ").to_owned()
    })
}

/// The patterns of the rules while they are read.
struct Collected<'a> {
    globs: Globs,
    /// With the name of the rule.
    expressions: Vec<(&'a Text, &'a Text)>,
}

impl Collected<'_> {
    fn compile(self) -> Result<Patterns, RuleError> {
        let Collected { globs, expressions } = self;
        let texts: Option<Vec<&str>> =
            expressions.iter().map(|(_, text)| std::str::from_utf8(text.as_bytes()).ok()).collect();
        let together = texts.and_then(|texts| {
            RegexSetBuilder::new(texts)
                .unicode(false)
                .size_limit(REGEX_SIZE * (1 + expressions.len()))
                .build()
                .ok()
        });
        if let Some(expressions) = together {
            return Ok(Patterns { globs, expressions });
        }
        // Which one is it?
        for (id, text) in &expressions {
            regex(text.as_bytes()).map_err(|why| RuleError::Regex((*id).clone(), why))?;
        }
        Err(RuleError::Expressions)
    }
}

impl Rules {
    pub fn compile(gate: &Gate) -> Result<Rules, RuleError> {
        let mut collected = Collected { globs: Globs::new(), expressions: Vec::new() };
        let rules = gate
            .rules
            .iter()
            .map(|rule| Rule::compile(rule, &mut collected))
            .collect::<Result<_, _>>()?;
        let approved = gate
            .approved
            .iter()
            .map(|rule| Rule::compile(rule, &mut collected))
            .collect::<Result<_, _>>()?;
        let patterns = collected.compile()?;
        let Gate { default, on_error, exec_only_granted: only_granted, .. } = *gate;
        Ok(Rules { rules, approved, patterns, default, on_error, only_granted })
    }

    /// Does one of them ask who started the program?
    pub fn name_parents(&self) -> bool {
        let parental =
            |(_, test): &(bool, Test)| matches!(test, Test::ParentExe(_) | Test::ParentArgv(_));
        self.rules.iter().chain(&self.approved).any(|rule| rule.keys.iter().any(parental))
    }

    /// Does one of them ask where the process stands, or whose it is?
    pub fn name_callers(&self) -> bool {
        let own = |(_, test): &(bool, Test)| matches!(test, Test::Cwd(_) | Test::Uid(_));
        self.name_parents()
            || self.rules.iter().chain(&self.approved).any(|rule| rule.keys.iter().any(own))
    }

    pub fn judge(&self, exec: &Exec<'_>) -> ExecDecision {
        let readings = readings(exec, &self.patterns);
        let mut doubted = None;
        for (index, rule) in self.rules.iter().enumerate() {
            let held = match rule.holds_in(&readings) {
                Ok(held) => held,
                Err(why) => {
                    return ExecDecision {
                        action: self.on_error,
                        cause: Cause::Error { rule: index, why },
                        doubted,
                    };
                }
            };
            match held.min(if self.is_unplaced(rule, exec) { Holds::Partly } else { Holds::Surely })
            {
                Holds::No => {}
                Holds::Partly if rule.action == Action::Allow => doubted = doubted.or(Some(index)),
                Holds::Partly | Holds::Surely => {
                    return ExecDecision {
                        action: rule.action,
                        cause: Cause::Rule(index),
                        doubted,
                    };
                }
            }
        }
        if self.default == Action::Allow && self.is_own(exec) {
            return ExecDecision { action: Action::Deny, cause: Cause::NotGranted, doubted };
        }
        ExecDecision { action: self.default, cause: Cause::Default, doubted }
    }

    /// The approval that answers the question whether this may run, if there is one. What can not
    /// be judged is not approved.
    pub fn approves(&self, exec: &Exec<'_>) -> Option<usize> {
        let readings = readings(exec, &self.patterns);
        let surely = |rule: &Rule| matches!(rule.holds_in(&readings), Ok(Holds::Surely));
        self.approved.iter().position(|rule| !self.is_unplaced(rule, exec) && surely(rule))
    }

    /// It would allow by a name what the command could have made itself.
    fn is_unplaced(&self, rule: &Rule, exec: &Exec<'_>) -> bool {
        rule.action == Action::Allow && !rule.identifies && self.is_own(exec)
    }

    /// The command could have made the program itself, and that matters.
    fn is_own(&self, exec: &Exec<'_>) -> bool {
        self.only_granted && !exec.granted
    }
}

impl Rule {
    fn compile<'a>(rule: &'a plan::Rule, patterns: &mut Collected<'a>) -> Result<Rule, RuleError> {
        let mut keys = Vec::with_capacity(rule.matches.len());
        for one in &rule.matches {
            keys.push((one.not, Test::compile(one.key, &one.values, &rule.id, patterns)?));
        }
        keys.sort_by_key(|(_, test)| test.can_fail());
        let places = |(not, test): &(bool, Test)| {
            !not && matches!(test, Test::Exe(_) | Test::Glob(_) | Test::Sha256(_))
        };
        let names = |(not, test): &(bool, Test)| !not && test.is_of_file();
        let excludes =
            |(not, test): &(bool, Test)| *not && (test.is_of_file() || test.is_of_arguments());
        let follows =
            rule.action != Action::Allow && (keys.iter().any(names) || !keys.iter().any(excludes));
        Ok(Rule { action: rule.action, identifies: keys.iter().any(places), follows, keys })
    }

    /// In order: the exec as it is asked for, then as each interpreter gets it.
    fn holds_in(&self, readings: &[Facts<'_, '_>]) -> Result<Holds, String> {
        let mut held = Holds::No;
        for index in 0..if self.follows { readings.len() } else { readings.len().min(1) } {
            held = held.max(self.holds(readings, index)?);
            if held != Holds::No {
                break;
            }
        }
        Ok(held)
    }

    /// An error counts only if no other key rules the rule out.
    fn holds(&self, readings: &[Facts<'_, '_>], index: usize) -> Result<Holds, String> {
        let mut least = Holds::Surely;
        let mut failed = None;
        for (not, test) in &self.keys {
            // What is let through because it is not so, must not be so for any interpreter either.
            let all = *not && self.action == Action::Allow;
            let held = if all { test.holds_in_any(readings) } else { test.holds(&readings[index]) };
            match held {
                Ok(held) => least = least.min(if *not { held.negated() } else { held }),
                Err(why) => failed = failed.or(Some(why)),
            }
            if least == Holds::No {
                return Ok(Holds::No);
            }
        }
        failed.map_or(Ok(least), Err)
    }
}

impl Test {
    fn compile<'a>(
        key: Key,
        values: &'a [Text],
        id: &'a Text,
        patterns: &mut Collected<'a>,
    ) -> Result<Test, RuleError> {
        let Collected { globs, expressions } = patterns;
        let mut regexes = || {
            let first = expressions.len();
            expressions.extend(values.iter().map(|value| (id, value)));
            (first..expressions.len()).collect()
        };
        let mut patterns = || {
            let added = values.iter().map(|value| globs.add(value));
            added.collect::<Result<Vec<_>, _>>().map_err(|why| RuleError::Glob(id.clone(), why))
        };
        fn each<T>(values: &[Text], read: impl Fn(&[u8]) -> Option<T>) -> Option<Vec<T>> {
            values.iter().map(|value| read(value.as_bytes())).collect()
        }
        Ok(match key {
            Key::Exe => Test::Exe(values.to_vec()),
            Key::ExeBasename => Test::Basename(values.to_vec()),
            Key::ExeGlob => Test::Glob(patterns()?),
            Key::ExeSha256 => {
                Test::Sha256(each(values, digest).ok_or_else(|| RuleError::Digest(id.clone()))?)
            }
            Key::ArgvRegex => Test::Argv(regexes()),
            Key::ArgvContains => Test::Contains(values.to_vec()),
            Key::ArgvHostIn => Test::HostIn(
                each(values, Pattern::read).ok_or_else(|| RuleError::Host(id.clone()))?,
            ),
            Key::CwdGlob => Test::Cwd(patterns()?),
            Key::Uid => Test::Uid(each(values, number).ok_or_else(|| RuleError::Uid(id.clone()))?),
            Key::ParentExe => Test::ParentExe(values.to_vec()),
            Key::ParentArgv => Test::ParentArgv(regexes()),
        })
    }

    fn is_of_file(&self) -> bool {
        matches!(self, Test::Exe(_) | Test::Basename(_) | Test::Glob(_) | Test::Sha256(_))
    }

    fn is_of_arguments(&self) -> bool {
        matches!(self, Test::Argv(_) | Test::Contains(_) | Test::HostIn(_))
    }

    fn can_fail(&self) -> bool {
        matches!(self, Test::Sha256(_) | Test::ParentExe(_) | Test::ParentArgv(_))
    }

    fn holds_in_any(&self, readings: &[Facts<'_, '_>]) -> Result<Holds, String> {
        readings.iter().try_fold(Holds::No, |most, facts| Ok(most.max(self.holds(facts)?)))
    }

    fn holds(&self, facts: &Facts<'_, '_>) -> Result<Holds, String> {
        let (exec, globs) = (facts.exec, &facts.patterns.globs);
        let exe = facts.exe();
        Ok(match self {
            Test::Exe(paths) => {
                let one_of = |path: &[u8]| paths.iter().any(|wanted| wanted.as_bytes() == path);
                Holds::from(one_of(exe), || facts.paths().any(one_of))
            }
            Test::Basename(names) => {
                let one_of =
                    |path: &[u8]| names.iter().any(|wanted| wanted.as_bytes() == basename(path));
                let called =
                    || std::iter::once(facts.own_name()).chain(facts.applet().first().copied());
                Holds::from(one_of(exe), || facts.paths().chain(called()).any(one_of))
            }
            Test::Glob(patterns) => {
                let one_of =
                    |path: &[u8]| patterns.iter().any(|pattern| globs.matches(*pattern, path));
                Holds::from(one_of(exe), || facts.paths().any(one_of))
            }
            Test::Argv(expressions) => {
                let any = |found: &SetMatches| {
                    expressions.iter().any(|expression| found.matched(*expression))
                };
                let (as_given, renamed) = facts.found();
                Holds::from(any(as_given), || renamed.iter().any(any))
            }
            Test::Contains(words) => {
                // Its first argument is what a program is called, and the caller calls it as he
                // likes.
                let one_of = |argument: &[u8]| words.iter().any(|word| word.as_bytes() == argument);
                let name = facts.argv.first().copied().unwrap_or_default();
                Holds::from(facts.argv.iter().skip(1).any(|argument| one_of(argument)), || {
                    one_of(name)
                })
            }
            Test::HostIn(patterns) => {
                let hosts = facts.hosts();
                let listed = |host: &Host| patterns.iter().any(|pattern| pattern.matches(host));
                let all =
                    !hosts.is_empty() && hosts.iter().all(|host| host.as_ref().is_some_and(listed));
                Holds::from(all, || hosts.iter().any(|host| host.as_ref().is_none_or(listed)))
            }
            // A directory that is gone or out of sight has no path.
            Test::Cwd(_) if !exec.cwd.starts_with(b"/") => Holds::Partly,
            Test::Cwd(patterns) => Holds::from(
                patterns.iter().any(|pattern| globs.matches(*pattern, exec.cwd)),
                || false,
            ),
            Test::Uid(uids) => Holds::from(uids.contains(&exec.uid), || false),
            Test::Sha256(digests) => {
                if digests.contains(&facts.digest(0)?) {
                    return Ok(Holds::Surely);
                }
                for interpreter in 1..facts.chain.len() {
                    if digests.contains(&facts.digest(interpreter)?) {
                        return Ok(Holds::Partly);
                    }
                }
                Holds::No
            }
            Test::ParentExe(paths) => {
                let exe = facts.parent()?.exe;
                Holds::from(paths.iter().any(|wanted| wanted.as_bytes() == exe), || false)
            }
            Test::ParentArgv(expressions) => {
                let text = argv_text::joined(facts.parent()?.argv.iter().copied());
                let found = facts.patterns.expressions.matches(&text);
                Holds::from(expressions.iter().any(|expression| found.matched(*expression)), || {
                    false
                })
            }
        })
    }
}

/// The exec as it is asked for, and then as each interpreter gets it: what a `#!` line says is told
/// to that one.
fn readings<'a, 'b>(exec: &'a Exec<'b>, patterns: &'a Patterns) -> Vec<Facts<'a, 'b>> {
    let mut argv = exec.argv.to_vec();
    let mut readings = Vec::with_capacity(exec.chain.len());
    readings.push(Facts::of(exec, patterns, 0, argv.clone()));
    for (index, pair) in exec.chain.windows(2).enumerate() {
        let [script, interpreter] = pair else { continue };
        let told = [Some(interpreter.named), interpreter.argument, Some(script.named)];
        argv.splice(..argv.len().min(1), told.into_iter().flatten());
        readings.push(Facts::of(exec, patterns, index + 1, argv.clone()));
    }
    readings
}

/// What several rules ask about, found out once.
struct Facts<'a, 'b> {
    exec: &'a Exec<'b>,
    patterns: &'a Patterns,
    /// From the file that this is about.
    chain: &'b [File<'b>],
    argv: Vec<&'b [u8]>,
    named: OnceCell<Vec<Vec<u8>>>,
    /// Which expressions match the arguments: as they are, and with each other name of the program.
    found: OnceCell<(SetMatches, Vec<SetMatches>)>,
    hosts: OnceCell<Vec<Option<Host>>>,
}

impl<'a, 'b> Facts<'a, 'b> {
    fn of(
        exec: &'a Exec<'b>,
        patterns: &'a Patterns,
        from: usize,
        argv: Vec<&'b [u8]>,
    ) -> Facts<'a, 'b> {
        let chain = &exec.chain[from..];
        Facts {
            exec,
            patterns,
            chain,
            argv,
            named: OnceCell::new(),
            found: OnceCell::new(),
            hosts: OnceCell::new(),
        }
    }

    fn digest(&self, index: usize) -> Result<[u8; 32], String> {
        (self.exec.digest)(self.exec.chain.len() - self.chain.len() + index)
    }

    /// The file that was asked for.
    fn exe(&self) -> &'b [u8] {
        self.chain.first().map_or(b"", |file| file.real)
    }

    fn parent(&self) -> Result<Parent<'b>, String> {
        self.exec.parent.ok_or_else(|| "the parent is unknown".to_owned())
    }

    /// All that the files are called: as named, absolute by the letters alone, and where that
    /// leads.
    fn paths(&self) -> impl Iterator<Item = &[u8]> {
        let chain = self.chain;
        let named = self
            .named
            .get_or_init(|| chain.iter().map(|file| absolute(file.named, self.exec.cwd)).collect());
        named.iter().map(Vec::as_slice).chain(chain.iter().map(|file| file.real))
    }

    /// What the program would call itself by its first argument; a login shell's begins with a
    /// dash.
    fn own_name(&self) -> &'b [u8] {
        let name = self.argv.first().copied().unwrap_or_default();
        name.strip_prefix(b"-").unwrap_or(name)
    }

    /// The arguments of the program inside of one that is many.
    fn applet(&self) -> &[&'b [u8]] {
        match &self.argv[..] {
            [_, applet @ ..] if MULTI_CALL.contains(&basename(self.exe())) => {
                // It may be told to be itself, and then something else.
                let itself =
                    applet.iter().take_while(|word| MULTI_CALL.contains(&basename(word))).count();
                &applet[itself..]
            }
            _ => &[],
        }
    }

    fn found(&self) -> (&SetMatches, &[SetMatches]) {
        let (as_given, renamed) = self.found.get_or_init(|| {
            let (as_given, renamed) = self.texts();
            let found = |text: &Vec<u8>| self.patterns.expressions.matches(text);
            (found(&as_given), renamed.iter().map(found).collect())
        });
        (as_given, renamed)
    }

    /// The arguments as they are; and as they would be if the program were called by its other
    /// names.
    fn texts(&self) -> (Vec<u8>, Vec<Vec<u8>>) {
        let rest = self.argv.split_first().map_or(&[][..], |(_, rest)| rest);
        let called =
            |name: &[u8]| argv_text::joined(std::iter::once(name).chain(rest.iter().copied()));
        let as_given = argv_text::joined(self.argv.iter().copied());
        let own = self.own_name();
        let (exe, given) = (self.exe(), self.chain.first().map_or(&b""[..], |file| file.named));
        let names = [basename(exe), exe, basename(own), basename(given), given];
        let called = names.into_iter().filter(|name| !name.is_empty()).map(called);
        let applet = self.applet();
        let inner = (!applet.is_empty()).then(|| argv_text::joined(applet.iter().copied()));
        let mut renamed = Vec::new();
        for text in called.chain(inner) {
            if text != as_given && !renamed.contains(&text) {
                renamed.push(text);
            }
        }
        (as_given, renamed)
    }

    fn hosts(&self) -> &[Option<Host>] {
        self.hosts.get_or_init(|| {
            let mut found = Vec::new();
            self.argv
                .iter()
                .skip(1)
                .for_each(|argument| argv_hosts::in_argument(argument, &mut found));
            found
        })
    }
}

/// By the letters alone: no link is followed. No path stays none.
fn absolute(path: &[u8], cwd: &[u8]) -> Vec<u8> {
    let from: &[u8] = if path.is_empty() || path.starts_with(b"/") { b"" } else { cwd };
    let names = [from, path].into_iter().flat_map(|part| part.split(|byte| *byte == b'/'));
    names
        .filter(|name| !matches!(*name, b"" | b"."))
        .flat_map(|name| [b"/", name])
        .flatten()
        .copied()
        .collect()
}

fn basename(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

fn digest(text: &[u8]) -> Option<[u8; 32]> {
    let mut digest = [0; 32];
    if text.len() != 64 {
        return None;
    }
    for (byte, pair) in digest.iter_mut().zip(text.chunks_exact(2)) {
        let digit = |letter: u8| char::from(letter).to_digit(16);
        *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
    }
    Some(digest)
}

fn number(text: &[u8]) -> Option<u32> {
    std::str::from_utf8(text).ok()?.parse().ok()
}
