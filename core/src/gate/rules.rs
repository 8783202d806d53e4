//! The rules of the gate: one exec in, one decision out. Pure: facts about a process or a file are
//! arguments.
//!
//! The first rule that matches decides. A rule matches if all its keys do. A program has several
//! names: its file, the path that was requested, its first argument, and the interpreters that run
//! it. So a key holds surely, not at all, or partly: by some name but not by the one that counts. A
//! rule that allows has to hold surely. A rule that denies or asks applies if it holds partly.
//! (Three values after Kleene: `_not` exchanges the outer two, and a rule is as sure as its least
//! sure key.)

#[cfg(test)]
mod tests;

use std::cell::OnceCell;

use regex::bytes::{Regex, RegexBuilder, RegexSet, RegexSetBuilder, SetMatches};

use super::argv_hosts::{self, HostPattern};
use super::argv_text;
use crate::files::patterns::{Globs, NamePatternsError};
use crate::plan::host_name::Host;
use crate::plan::wire::bytes::{AbsPath, Text};
use crate::plan::{self, Action, ExecRuleKey, GatePlan};

/// Memory for one compiled expression: enough for some thousand usual letters.
const MAX_REGEX_BYTES: usize = 1 << 20;

/// Multi-call programs: the first argument selects the applet, or the second if the first is the
/// program itself.
const MULTI_CALL: [&[u8]; 3] = [b"busybox", b"coreutils", b"toybox"];

/// Does the program choose its part by its arguments? Then the rules read them, and the name of a
/// link to it (`git-push`) says nothing about a copy of it.
pub fn acts_by_its_words(path: &[u8]) -> bool {
    let name = basename(path);
    name == b"git" || MULTI_CALL.contains(&name)
}

/// An exec that a process requests.
pub struct ExecRequest<'a> {
    /// Every file that this exec runs: the requested one, then the interpreter of each `#!` line.
    /// At least one.
    pub chain: &'a [ExecFile<'a>],
    pub argv: &'a [&'a [u8]],
    pub cwd: &'a [u8],
    pub uid: u32,
    /// None: it has ended, or can not be read.
    pub parent: Option<ParentProcess<'a>>,
    /// Every file of the chain is in a directory that is granted for execution and that no command
    /// can write (`gate/trusted_program_dirs.rs`).
    pub granted: bool,
    /// The SHA-256 of a file of the chain, by its index. Only rules that need it ask for it.
    pub digest: &'a dyn Fn(usize) -> Result<[u8; 32], String>,
}

#[derive(Clone, Copy)]
pub struct ExecFile<'a> {
    /// The path in the call or in the `#!` line. Empty if only a descriptor was given.
    pub named: &'a [u8],
    /// The resolved path.
    pub real: &'a [u8],
    /// The one argument of the `#!` line.
    pub argument: Option<&'a [u8]>,
}

#[derive(Clone, Copy)]
pub struct ParentProcess<'a> {
    pub exe: &'a [u8],
    pub argv: &'a [&'a [u8]],
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecDecision {
    pub action: Action,
    pub cause: Cause,
    /// The first rule that would have allowed it and held only partly. It is shown to people, who
    /// often meant this rule.
    pub doubted: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    Rule(usize),
    Default,
    /// The exec can not be read, or can not be verified.
    Unseen(&'static str),
    /// The judgement took too long.
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
    Glob(Text, #[source] NamePatternsError),
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
pub struct ExecRules {
    rules: Vec<CompiledRule>,
    approved: Vec<CompiledRule>,
    patterns: RulePatterns,
    default: Action,
    on_error: Action,
    only_granted: bool,
}

/// The patterns of all rules. Each is matched once for all rules.
#[derive(Debug)]
struct RulePatterns {
    globs: Globs,
    expressions: RegexSet,
}

#[derive(Debug)]
struct CompiledRule {
    action: Action,
    /// Keys that can fail come last: if another key excludes the rule, their answer is not needed.
    keys: Vec<(bool, RuleTest)>,
    /// The rule names the path or the content of the program.
    identifies: bool,
    /// The rule also applies to interpreters, with their arguments. A rule with only negated keys
    /// would apply to every interpreter, so it does not.
    follows: bool,
}

#[derive(Debug)]
enum RuleTest {
    Exe(Vec<Text>),
    Basename(Vec<Text>),
    Glob(Vec<usize>),
    Argv(Vec<usize>),
    Contains(Vec<Text>),
    HostIn(Vec<HostPattern>),
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

/// Compiles an expression for the rules. `Err` is one line about the error.
pub fn regex(pattern: &[u8]) -> Result<Regex, String> {
    let pattern = std::str::from_utf8(pattern).map_err(|_| "it is not UTF-8".to_owned())?;
    let built = RegexBuilder::new(pattern).unicode(false).size_limit(MAX_REGEX_BYTES).build();
    built.map_err(|error| {
        let text = error.to_string();
        // The crate's message has several lines. The last one is the error.
        text.lines().next_back().unwrap_or_default().trim_start_matches("error: ").to_owned()
    })
}

/// The patterns of the rules while they are read.
struct CollectedPatterns<'a> {
    globs: Globs,
    /// With the name of the rule.
    expressions: Vec<(&'a Text, &'a Text)>,
}

impl CollectedPatterns<'_> {
    fn compile(self) -> Result<RulePatterns, RuleError> {
        let CollectedPatterns { globs, expressions } = self;
        let texts: Option<Vec<&str>> =
            expressions.iter().map(|(_, text)| std::str::from_utf8(text.as_bytes()).ok()).collect();
        let together = texts.and_then(|texts| {
            RegexSetBuilder::new(texts)
                .unicode(false)
                .size_limit(MAX_REGEX_BYTES * (1 + expressions.len()))
                .build()
                .ok()
        });
        if let Some(expressions) = together {
            return Ok(RulePatterns { globs, expressions });
        }
        // Find the one with the error.
        for (id, text) in &expressions {
            regex(text.as_bytes()).map_err(|why| RuleError::Regex((*id).clone(), why))?;
        }
        Err(RuleError::Expressions)
    }
}

impl ExecRules {
    pub fn compile(gate: &GatePlan) -> Result<ExecRules, RuleError> {
        let mut collected = CollectedPatterns { globs: Globs::new(), expressions: Vec::new() };
        let rules = gate
            .rules
            .iter()
            .map(|rule| CompiledRule::compile(rule, &mut collected))
            .collect::<Result<_, _>>()?;
        let approved = gate
            .approved
            .iter()
            .map(|rule| CompiledRule::compile(rule, &mut collected))
            .collect::<Result<_, _>>()?;
        let patterns = collected.compile()?;
        let GatePlan { default, on_error, exec_only_granted: only_granted, .. } = *gate;
        Ok(ExecRules { rules, approved, patterns, default, on_error, only_granted })
    }

    /// Does a rule ask for the parent process?
    pub fn name_parents(&self) -> bool {
        let parental = |(_, test): &(bool, RuleTest)| {
            matches!(test, RuleTest::ParentExe(_) | RuleTest::ParentArgv(_))
        };
        self.rules.iter().chain(&self.approved).any(|rule| rule.keys.iter().any(parental))
    }

    /// Does a rule ask for the working directory, or for the user?
    pub fn name_callers(&self) -> bool {
        let own =
            |(_, test): &(bool, RuleTest)| matches!(test, RuleTest::Cwd(_) | RuleTest::Uid(_));
        self.name_parents()
            || self.rules.iter().chain(&self.approved).any(|rule| rule.keys.iter().any(own))
    }

    pub fn judge(&self, exec: &ExecRequest<'_>) -> ExecDecision {
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
        ExecDecision { action: self.default, cause: Cause::Default, doubted }
    }

    /// The approval that answers the question, if there is one. An exec that can not be judged is
    /// not approved.
    pub fn approves(&self, exec: &ExecRequest<'_>) -> Option<usize> {
        let readings = readings(exec, &self.patterns);
        let surely = |rule: &CompiledRule| matches!(rule.holds_in(&readings), Ok(Holds::Surely));
        self.approved.iter().position(|rule| !self.is_unplaced(rule, exec) && surely(rule))
    }

    /// Would the rule allow, by a name alone, a program that the command could have made?
    fn is_unplaced(&self, rule: &CompiledRule, exec: &ExecRequest<'_>) -> bool {
        rule.action == Action::Allow && !rule.identifies && self.is_own(exec)
    }

    pub fn allow_by_default(&self) -> bool {
        self.default == Action::Allow
    }

    /// Does only the default allow it, and could the command have made the program?
    pub fn allow_own(&self, decision: &ExecDecision, exec: &ExecRequest<'_>) -> bool {
        decision.action == Action::Allow && decision.cause == Cause::Default && self.is_own(exec)
    }

    /// Does a rule that denies or asks name this file?
    pub fn deny_name(&self, path: &[u8]) -> bool {
        self.denying().any(|test| match test {
            RuleTest::Exe(paths) => paths.iter().any(|wanted| wanted.as_bytes() == path),
            RuleTest::Basename(names) => {
                names.iter().any(|wanted| wanted.as_bytes() == basename(path))
            }
            RuleTest::Glob(globs) => {
                globs.iter().any(|glob| self.patterns.globs.matches(*glob, path))
            }
            _ => false,
        })
    }

    /// The files that rules which deny or ask name by their whole path.
    pub fn denied_paths(&self) -> Vec<Vec<u8>> {
        let exact = self.denying().filter_map(|test| match test {
            RuleTest::Exe(paths) => Some(paths),
            _ => None,
        });
        exact.flatten().map(|path| path.as_bytes().to_vec()).collect()
    }

    fn denying(&self) -> impl Iterator<Item = &RuleTest> {
        let rules = self.rules.iter().filter(|rule| rule.action != Action::Allow);
        rules.flat_map(|rule| &rule.keys).filter(|(not, _)| !not).map(|(_, test)| test)
    }

    /// Could the command have made the program, and does that matter?
    fn is_own(&self, exec: &ExecRequest<'_>) -> bool {
        self.only_granted && !exec.granted
    }
}

impl CompiledRule {
    fn compile<'a>(
        rule: &'a plan::ExecRule,
        patterns: &mut CollectedPatterns<'a>,
    ) -> Result<CompiledRule, RuleError> {
        let mut keys = Vec::with_capacity(rule.matches.len());
        for one in &rule.matches {
            keys.push((one.not, RuleTest::compile(one.key, &one.values, &rule.id, patterns)?));
        }
        keys.sort_by_key(|(_, test)| test.can_fail());
        let identifies = |(not, test): &(bool, RuleTest)| {
            !not && matches!(test, RuleTest::Exe(_) | RuleTest::Glob(_) | RuleTest::Sha256(_))
        };
        let names = |(not, test): &(bool, RuleTest)| !not && test.is_of_file();
        let excludes =
            |(not, test): &(bool, RuleTest)| *not && (test.is_of_file() || test.is_of_arguments());
        let follows =
            rule.action != Action::Allow && (keys.iter().any(names) || !keys.iter().any(excludes));
        Ok(CompiledRule {
            action: rule.action,
            identifies: keys.iter().any(identifies),
            follows,
            keys,
        })
    }

    /// In order: the exec as it was requested, then as each interpreter gets it.
    fn holds_in(&self, readings: &[ExecFacts<'_, '_>]) -> Result<Holds, String> {
        let mut held = Holds::No;
        for index in 0..if self.follows { readings.len() } else { readings.len().min(1) } {
            held = held.max(self.holds(readings, index)?);
            if held != Holds::No {
                break;
            }
        }
        Ok(held)
    }

    /// An error counts only if no other key excludes the rule.
    fn holds(&self, readings: &[ExecFacts<'_, '_>], index: usize) -> Result<Holds, String> {
        let mut least = Holds::Surely;
        let mut failed = None;
        for (not, test) in &self.keys {
            // A negated key that allows must hold for every interpreter too.
            let all = *not && self.action == Action::Allow;
            let held = if all { test.holds_in_any(readings) } else { test.holds(&readings[index]) };
            match held {
                // The command has chosen the name of a program that it made.
                Ok(Holds::Surely)
                    if *not
                        && matches!(test, RuleTest::Basename(_))
                        && readings[index].is_own() =>
                {
                    least = least.min(Holds::Partly);
                }
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

impl RuleTest {
    fn compile<'a>(
        key: ExecRuleKey,
        values: &'a [Text],
        id: &'a Text,
        patterns: &mut CollectedPatterns<'a>,
    ) -> Result<RuleTest, RuleError> {
        let CollectedPatterns { globs, expressions } = patterns;
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
            ExecRuleKey::Exe => RuleTest::Exe(values.to_vec()),
            ExecRuleKey::ExeBasename => RuleTest::Basename(values.to_vec()),
            ExecRuleKey::ExeGlob => RuleTest::Glob(patterns()?),
            ExecRuleKey::ExeSha256 => {
                RuleTest::Sha256(each(values, digest).ok_or_else(|| RuleError::Digest(id.clone()))?)
            }
            ExecRuleKey::ArgvRegex => RuleTest::Argv(regexes()),
            ExecRuleKey::ArgvContains => RuleTest::Contains(values.to_vec()),
            ExecRuleKey::ArgvHostIn => RuleTest::HostIn(
                each(values, HostPattern::read).ok_or_else(|| RuleError::Host(id.clone()))?,
            ),
            ExecRuleKey::CwdGlob => RuleTest::Cwd(patterns()?),
            ExecRuleKey::Uid => {
                RuleTest::Uid(each(values, number).ok_or_else(|| RuleError::Uid(id.clone()))?)
            }
            ExecRuleKey::ParentExe => RuleTest::ParentExe(values.to_vec()),
            ExecRuleKey::ParentArgv => RuleTest::ParentArgv(regexes()),
        })
    }

    fn is_of_file(&self) -> bool {
        matches!(
            self,
            RuleTest::Exe(_) | RuleTest::Basename(_) | RuleTest::Glob(_) | RuleTest::Sha256(_)
        )
    }

    fn is_of_arguments(&self) -> bool {
        matches!(self, RuleTest::Argv(_) | RuleTest::Contains(_) | RuleTest::HostIn(_))
    }

    fn can_fail(&self) -> bool {
        matches!(self, RuleTest::Sha256(_) | RuleTest::ParentExe(_) | RuleTest::ParentArgv(_))
    }

    fn holds_in_any(&self, readings: &[ExecFacts<'_, '_>]) -> Result<Holds, String> {
        readings.iter().try_fold(Holds::No, |most, facts| Ok(most.max(self.holds(facts)?)))
    }

    fn holds(&self, facts: &ExecFacts<'_, '_>) -> Result<Holds, String> {
        let (exec, globs) = (facts.exec, &facts.patterns.globs);
        let exe = facts.exe();
        Ok(match self {
            RuleTest::Exe(paths) => {
                let one_of = |path: &[u8]| paths.iter().any(|wanted| wanted.as_bytes() == path);
                Holds::from(one_of(exe), || facts.paths().any(one_of))
            }
            RuleTest::Basename(names) => {
                let one_of =
                    |path: &[u8]| names.iter().any(|wanted| wanted.as_bytes() == basename(path));
                let called =
                    || std::iter::once(facts.own_name()).chain(facts.applet().first().copied());
                let of_git = |name: &[u8]| {
                    let subcommand = name.strip_prefix(b"git-");
                    (name == b"git" && facts.git_program().is_some())
                        || (subcommand.is_some() && subcommand == facts.git_subcommand())
                };
                Holds::from(one_of(exe), || {
                    facts.paths().chain(called()).any(one_of)
                        || names.iter().any(|name| of_git(name.as_bytes()))
                })
            }
            RuleTest::Glob(patterns) => {
                let one_of =
                    |path: &[u8]| patterns.iter().any(|pattern| globs.matches(*pattern, path));
                Holds::from(one_of(exe), || facts.paths().any(one_of))
            }
            RuleTest::Argv(expressions) => {
                let any = |found: &SetMatches| {
                    expressions.iter().any(|expression| found.matched(*expression))
                };
                let (as_given, renamed) = facts.found();
                Holds::from(any(as_given), || renamed.iter().any(any))
            }
            RuleTest::Contains(words) => {
                // The first argument is the program's name, and the caller chooses it.
                let one_of = |argument: &[u8]| words.iter().any(|word| word.as_bytes() == argument);
                let name = facts.argv.first().copied().unwrap_or_default();
                Holds::from(facts.argv.iter().skip(1).any(|argument| one_of(argument)), || {
                    one_of(name)
                })
            }
            RuleTest::HostIn(patterns) => {
                let hosts = facts.hosts();
                let listed = |host: &Host| patterns.iter().any(|pattern| pattern.matches(host));
                let all =
                    !hosts.is_empty() && hosts.iter().all(|host| host.as_ref().is_some_and(listed));
                Holds::from(all, || hosts.iter().any(|host| host.as_ref().is_none_or(listed)))
            }
            // A directory that was removed or is not visible has no path.
            RuleTest::Cwd(_) if !exec.cwd.starts_with(b"/") => Holds::Partly,
            RuleTest::Cwd(patterns) => Holds::from(
                patterns.iter().any(|pattern| globs.matches(*pattern, exec.cwd)),
                || false,
            ),
            RuleTest::Uid(uids) => Holds::from(uids.contains(&exec.uid), || false),
            RuleTest::Sha256(digests) => {
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
            RuleTest::ParentExe(paths) => {
                let exe = facts.parent()?.exe;
                Holds::from(paths.iter().any(|wanted| wanted.as_bytes() == exe), || false)
            }
            RuleTest::ParentArgv(expressions) => {
                let text = argv_text::joined(facts.parent()?.argv.iter().copied());
                let found = facts.patterns.expressions.matches(&text);
                Holds::from(expressions.iter().any(|expression| found.matched(*expression)), || {
                    false
                })
            }
        })
    }
}

/// The exec as it was requested, then as each interpreter gets it, with the argument of its `#!`
/// line.
fn readings<'a, 'b>(
    exec: &'a ExecRequest<'b>,
    patterns: &'a RulePatterns,
) -> Vec<ExecFacts<'a, 'b>> {
    let mut argv = exec.argv.to_vec();
    let mut readings = Vec::with_capacity(exec.chain.len());
    readings.push(ExecFacts::of(exec, patterns, 0, argv.clone()));
    for (index, pair) in exec.chain.windows(2).enumerate() {
        let [script, interpreter] = pair else { continue };
        let interpreter_words = [Some(interpreter.named), interpreter.argument, Some(script.named)];
        argv.splice(..argv.len().min(1), interpreter_words.into_iter().flatten());
        readings.push(ExecFacts::of(exec, patterns, index + 1, argv.clone()));
    }
    readings
}

/// Facts that several rules ask for, computed once.
struct ExecFacts<'a, 'b> {
    exec: &'a ExecRequest<'b>,
    patterns: &'a RulePatterns,
    /// From the file that these facts are about.
    chain: &'b [ExecFile<'b>],
    argv: Vec<&'b [u8]>,
    named: OnceCell<Vec<Vec<u8>>>,
    /// Which expressions match the arguments: as they are, and with each other name of the program.
    found: OnceCell<(SetMatches, Vec<SetMatches>)>,
    hosts: OnceCell<Vec<Option<Host>>>,
}

impl<'a, 'b> ExecFacts<'a, 'b> {
    fn of(
        exec: &'a ExecRequest<'b>,
        patterns: &'a RulePatterns,
        from: usize,
        argv: Vec<&'b [u8]>,
    ) -> ExecFacts<'a, 'b> {
        let chain = &exec.chain[from..];
        ExecFacts {
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

    /// The requested file.
    fn exe(&self) -> &'b [u8] {
        self.chain.first().map_or(b"", |file| file.real)
    }

    fn is_own(&self) -> bool {
        !self.exec.granted
    }

    fn parent(&self) -> Result<ParentProcess<'b>, String> {
        self.exec.parent.ok_or_else(|| "the parent is unknown".to_owned())
    }

    /// All names of the files: as named, absolute by text, and resolved.
    fn paths(&self) -> impl Iterator<Item = &[u8]> {
        let chain = self.chain;
        let named = self
            .named
            .get_or_init(|| chain.iter().map(|file| absolute(file.named, self.exec.cwd)).collect());
        named.iter().map(Vec::as_slice).chain(chain.iter().map(|file| file.real))
    }

    /// The program's name by its first argument. That of a login shell begins with a dash.
    fn own_name(&self) -> &'b [u8] {
        let name = self.argv.first().copied().unwrap_or_default();
        name.strip_prefix(b"-").unwrap_or(name)
    }

    /// The arguments of the applet of a multi-call program.
    fn applet(&self) -> &[&'b [u8]] {
        match &self.argv[..] {
            [_, applet @ ..] if MULTI_CALL.contains(&basename(self.exe())) => {
                // It may get its own name first, and then another applet.
                let itself =
                    applet.iter().take_while(|word| MULTI_CALL.contains(&basename(word))).count();
                &applet[itself..]
            }
            _ => &[],
        }
    }

    /// The command that a program of git's own directory is: `git-push` is `git push`.
    fn git_program(&self) -> Option<&'b [u8]> {
        let file = self.chain.first()?;
        let in_git_dir =
            |path: &[u8]| path.rsplit(|byte| *byte == b'/').nth(1) == Some(b"git-core");
        if basename(file.real) != b"git" && !in_git_dir(file.real) && !in_git_dir(file.named) {
            return None;
        }
        let names = [self.own_name(), file.named, file.real];
        names.into_iter().find_map(|name| basename(name).strip_prefix(b"git-"))
    }

    /// The command that git gets, after its options.
    fn git_subcommand(&self) -> Option<&'b [u8]> {
        const WITH_VALUE: [&[u8]; 6] =
            [b"-C", b"-c", b"--git-dir", b"--work-tree", b"--namespace", b"--config-env"];
        let file = self.chain.first()?;
        if basename(file.real) != b"git" {
            return None;
        }
        let mut words = self.argv.iter().skip(1).copied();
        while let Some(word) = words.next() {
            if !word.starts_with(b"-") {
                return Some(word);
            }
            if WITH_VALUE.contains(&word) {
                words.next();
            }
        }
        None
    }

    fn found(&self) -> (&SetMatches, &[SetMatches]) {
        let (as_given, renamed) = self.found.get_or_init(|| {
            let (as_given, renamed) = self.texts();
            let found = |text: &Vec<u8>| self.patterns.expressions.matches(text);
            (found(&as_given), renamed.iter().map(found).collect())
        });
        (as_given, renamed)
    }

    /// The arguments as they are, and with each other name of the program in front.
    fn texts(&self) -> (Vec<u8>, Vec<Vec<u8>>) {
        let rest = self.argv.split_first().map_or(&[][..], |(_, rest)| rest);
        let called =
            |name: &[u8]| argv_text::joined(std::iter::once(name).chain(rest.iter().copied()));
        let as_given = argv_text::joined(self.argv.iter().copied());
        let own = self.own_name();
        let (exe, named_by_caller) =
            (self.exe(), self.chain.first().map_or(&b""[..], |file| file.named));
        let names = [basename(exe), exe, basename(own), basename(named_by_caller), named_by_caller];
        let called = names.into_iter().filter(|name| !name.is_empty()).map(called);
        let applet = self.applet();
        let inner = (!applet.is_empty()).then(|| argv_text::joined(applet.iter().copied()));
        let of_git = self.git_program().map(|command| {
            argv_text::joined([b"git", command].into_iter().chain(rest.iter().copied()))
        });
        let mut renamed = Vec::new();
        for text in called.chain(inner).chain(of_git) {
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

/// Made absolute by text, without following links. An empty path stays empty.
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
