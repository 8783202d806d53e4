//! Patterns against the table that both languages share, then properties that the walk needs.

use serde::Deserialize;

use crate::files::patterns::*;
use crate::files::test_tree::{names, text};

#[derive(Deserialize)]
struct ExampleTable {
    cases: Vec<ExampleCase>,
    refused: Vec<Text>,
}

#[derive(Deserialize)]
struct ExampleCase {
    pattern: Text,
    path: Text,
    matches: bool,
    covers: bool,
}

fn table() -> ExampleTable {
    serde_json::from_str(include_str!("../../../../schema/examples/globs.json")).unwrap()
}

/// One match for each component of the path.
fn looks(names: &mut NamePatterns, path: &str, folding: bool) -> Vec<NameMatch> {
    let mut look = names.start(b"/", false).look;
    pattern::components(path.as_bytes())
        .map(|name| {
            look = names.look(look.next, name, folding);
            look
        })
        .collect()
}

#[test]
fn patterns_match_the_table_of_both_languages() {
    for ExampleCase { pattern, path, matches, covers } in table().cases {
        let mut names = NamePatterns::new(std::slice::from_ref(&pattern), &[], &[], &[]).unwrap();
        // System trees matter only for floating patterns, and no case of the table has that.
        let start = names.start(path.as_bytes(), true);
        assert_eq!(start.look.deny.is_some(), matches, "{pattern} {path}");
        assert_eq!(start.denied, covers, "{pattern} {path}");
    }
}

#[test]
fn single_patterns_match_the_same_table() {
    let mut globs = Globs::new();
    for ExampleCase { pattern, path, matches, .. } in table().cases {
        let number = globs.add(&pattern).unwrap();
        assert_eq!(globs.matches(number, path.as_bytes()), matches, "{pattern} {path}");
    }
}

#[test]
fn an_invalid_pattern_is_refused() {
    for pattern in table().refused {
        assert!(Globs::new().add(&pattern).is_err(), "{pattern}");
        assert!(
            NamePatterns::new(std::slice::from_ref(&pattern), &[], &[], &[]).is_err(),
            "{pattern}"
        );
    }
}

#[test]
fn a_walk_and_a_single_pattern_agree_on_random_input() {
    let mut dice = 7_u64;
    let mut roll = |sides: usize| {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (dice >> 33) as usize % sides
    };
    let words = ["a", "b", "ab", "*", "a*", "*b", "a*b", "*a*", "**", "**"];
    let mut agreed = 0;
    for _ in 0..400 {
        let patterns: Vec<String> = (0..4)
            .map(|_| {
                let parts: Vec<&str> = (0..1 + roll(4)).map(|_| words[roll(words.len())]).collect();
                let root = if roll(2) == 0 { "/" } else { "**/a/" };
                format!("{root}{}", parts.join("/"))
            })
            .collect();
        let texts: Vec<Text> = patterns.iter().map(|one| text(one)).collect();
        let mut together = NamePatterns::new(&texts, &[], &[], &[]).unwrap();
        for _ in 0..20 {
            let path: Vec<&str> =
                (0..roll(6)).map(|_| ["a", "b", "ab", "aab", "ba"][roll(5)]).collect();
            let path = format!("/{}", path.join("/"));
            let matching: Vec<bool> = texts.iter().map(|one| !never(one, &path)).collect();
            let found = together.start(path.as_bytes(), false).look.deny;
            assert_eq!(found.is_some(), matching.contains(&true), "{patterns:?} {path}");
            if let Some(end) = found {
                let parts = together.stems.parts(end);
                assert!(
                    pattern::rests_on(&parts, &mut together.words, path.as_bytes(), false)
                        .is_some()
                );
            }
            agreed += usize::from(found.is_some());
        }
    }
    assert!((400..7600).contains(&agreed), "the dice hit both sides: {agreed}");
}

#[test]
fn a_group_is_every_name_below_every_beginning() {
    let group = ProtectedNames {
        below: vec![text("/w/**"), text("**/.git")],
        but: vec![text("/w/**/packages/**")],
        names: vec![text(".idea"), text("hooks/*"), text("**/deep")],
    };
    let mut names = NamePatterns::new(&[], &[group], &[], &[]).unwrap();
    for (path, protected) in [
        ("/w/.idea", true),
        ("/w/a/b/.idea", true),
        ("/x/.idea", false),
        ("/x/.git/.idea", true),
        ("/x/.git/a/.idea", false),
        ("/x/.git/hooks/any", true),
        ("/x/.git/a/b/deep", true),
        ("/w/packages/.idea", false),
        ("/w/a/packages/b/.idea", false),
        ("/w/packages/hooks/any", false),
        ("/w/a/hooks/any", true),
    ] {
        let look = *looks(&mut names, path, false).last().unwrap();
        assert_eq!(look.protect.is_some() && !look.opened, protected, "{path}");
    }
    assert!(names.guards_git);
    let nothing =
        ProtectedNames { below: vec![text("a")], but: Vec::new(), names: vec![text("x")] };
    assert!(NamePatterns::new(&[], &[nothing], &[], &[]).is_err(), "a place has a beginning");
    let nowhere =
        ProtectedNames { below: vec![text("/a")], but: Vec::new(), names: vec![text(".")] };
    assert!(NamePatterns::new(&[], &[nowhere], &[], &[]).is_err(), "a name has a part");
}

/// By the algorithm of `rests_on`.
fn never(pattern: &Text, path: &str) -> bool {
    let (mut words, mut parts) = (InternedNames::new(), Vec::new());
    pattern::parse(pattern, &mut words, &mut parts).unwrap();
    pattern::rests_on(&parts, &mut words, path.as_bytes(), false).is_none()
}

#[test]
fn deny_protect_and_opened_are_separate() {
    let mut names = names(&["**/.env"], &["**/.claude", "**/.env"], &["**/.claude/worktrees"]);
    let last = |names: &mut NamePatterns, path| *looks(names, path, false).last().unwrap();
    assert!(
        last(&mut names, "/w/.env").deny.is_some() && last(&mut names, "/w/.env").protect.is_some()
    );
    let claude = last(&mut names, "/w/.claude");
    assert!(claude.protect.is_some() && claude.opened_below && !claude.opened);
    let worktrees = last(&mut names, "/w/.claude/worktrees");
    assert!(worktrees.opened && worktrees.protect.is_none());
    assert!(last(&mut names, "/w/.claude/worktrees/x/.claude").protect.is_some());
    let plain = last(&mut names, "/w/src");
    assert!(
        plain.deny.is_none() && plain.protect.is_none() && !plain.opened && !plain.opened_below
    );
}

#[test]
fn denied_names_of_a_directory_are_known_before_they_exist() {
    let deny = [
        "**/.env",
        "/w/**/id_rsa",
        "/w/a/token",
        "/w/a/keys/**",
        "/w/a/*.pem",
        "/w/a/b/c",
        "**/d/e",
    ];
    let mut names = names(&deny, &["/w/a/kept"], &[]);
    let mut denied = |dir: &str| {
        let mut found = names.denied_in(dir.as_bytes());
        found.sort();
        found.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect::<Vec<_>>()
    };
    assert_eq!(denied("/w"), [".env", "id_rsa"]);
    assert_eq!(denied("/w/a"), [".env", "id_rsa", "keys", "token"]);
    assert_eq!(denied("/w/x/d"), [".env", "e", "id_rsa"]);
    assert_eq!(denied("/x"), [".env"]);
}

#[test]
fn the_directories_above_a_protected_name_are_known() {
    let mut names = names(
        &["/w/a/b/secret"],
        &["**/.git/worktrees/*/gitdir", "**/.git/modules/**/config"],
        &[],
    );
    let ways = |names: &mut NamePatterns, path| {
        let all = looks(names, path, false);
        all.iter().map(|look| (look.way_to_denied, look.way_to_protected)).collect::<Vec<_>>()
    };
    assert_eq!(ways(&mut names, "/w/a/c"), [(true, false), (true, false), (false, false)]);
    assert_eq!(ways(&mut names, "/x/.git/worktrees/n")[1..], [(false, true); 3]);
    assert_eq!(
        ways(&mut names, "/x/.git/modules/a")[1..],
        [(false, true), (false, true), (false, false)]
    );
    assert!(names.guards_git);
}

#[test]
fn a_match_depends_on_the_names_of_its_pattern() {
    let cases: [(&str, &str, &[usize]); 7] = [
        ("**/.env", "/w/a/b/.env", &[]),
        ("**/.git/config", "/w/sub/.git/config", &[2]),
        ("/w/a/b/secret", "/w/a/b/secret", &[0, 1, 2]),
        ("/w/**/keys/*.pem", "/w/x/y/keys/a.pem", &[0, 3]),
        ("**/.git/modules/**/config", "/w/.git/modules/a/b/config", &[1, 2]),
        ("**/.git/worktrees/*/gitdir", "/w/.git/worktrees/n/gitdir", &[1, 2, 3]),
        ("/w/**", "/w/a/b", &[0]),
    ];
    for (pattern, path, depths) in cases {
        let mut names = names(&[pattern], &[], &[]);
        let rule = names.start(path.as_bytes(), false).look.deny.unwrap();
        assert_eq!(names.rests_on(rule, path.as_bytes(), false), depths, "{pattern}");
    }
}

#[test]
fn of_several_patterns_the_one_with_the_fewest_names_counts() {
    let mut names = names(&["/w/a/.env", "**/.env"], &[], &[]);
    let rule = names.start(b"/w/a/.env", false).look.deny.unwrap();
    assert!(names.rests_on(rule, b"/w/a/.env", false).is_empty());
}

#[test]
fn denied_names_that_cannot_lie_in_a_searched_tree_are_left_out() {
    for (below, tree, path, kept) in [
        ("/h/a/**", "/h/a", "/h/a/b/x", true),
        ("/h//a/./**", "/h/a", "/h/a/b/x", true),
        ("/h", "/h/a", "/h/x", true),
        ("/h/a/b", "/h/a", "/h/a/b/x", true),
        ("/h/*/b", "/h/a", "/h/a/b/x", true),
        ("/**/b", "/h/a", "/h/a/b/x", true),
        ("**", "/h/a", "/h/a/b/x", true),
        ("/h/ab", "/h/a", "/h/ab/x", false),
        ("/h/c*/b", "/h/a", "/h/cd/b/x", false),
        ("/k/**", "/h/a", "/k/x", false),
    ] {
        let group =
            ProtectedNames { below: vec![text(below)], but: Vec::new(), names: vec![text("x")] };
        let mut names = names(&[], &[], &[]);
        names.deny(&group, Some(&[tree.as_bytes().to_vec()])).unwrap();
        names.settle().unwrap();
        assert_eq!(names.denies(path.as_bytes()), kept, "{below} {tree}");
        names.deny(&group, None).unwrap();
        names.settle().unwrap();
        assert!(names.denies(path.as_bytes()), "{below}");
    }
}

#[test]
fn floating_patterns_skip_system_trees() {
    let mut names = names(&["**/.env", "/etc/ssh/*_key"], &[], &[]);
    let denied =
        |names: &mut NamePatterns, path| looks(names, path, false).last().unwrap().deny.is_some();
    assert!(denied(&mut names, "/home/u/.env"));
    assert!(!denied(&mut names, "/etc/x/.env"));
    assert!(denied(&mut names, "/etc/ssh/host_key"));
    assert!(denied(&mut names, "/var/.env") && !denied(&mut names, "/var/lib/.env"));
    let below = |names: &mut NamePatterns, path| looks(names, path, false).last().unwrap().next;
    let (usr, etc) = (below(&mut names, "/usr/share"), below(&mut names, "/etc/ssh"));
    assert!(!names.expects(usr) && names.expects(etc));
    // A tree that was requested by name is searched anyway.
    let own = names.start(b"/var/lib/app", true).look.next;
    assert!(names.look(own, b".env", false).deny.is_some());
    let other = names.start(b"/var/lib/app", false).look.next;
    assert!(names.look(other, b".env", false).deny.is_none());
}

#[test]
fn a_case_insensitive_directory_folds_names() {
    let mut names = names(&["**/.Env*"], &["**/.git/hooks"], &[]);
    let found = |names: &mut NamePatterns, path, folding| {
        let last = *looks(names, path, folding).last().unwrap();
        last.deny.is_some() || last.protect.is_some()
    };
    for path in ["/w/.ENV.local", "/w/.env", "/w/.GIT/Hooks", "/w/.gi\u{200b}t/hook\u{17f}"] {
        assert!(found(&mut names, path, true) && !found(&mut names, path, false), "{path}");
    }
    let git = looks(&mut names, "/w/.GIT", true)[1].next;
    let rule = names.look(git, b"HOOKS", true).protect.unwrap();
    assert_eq!(names.rests_on(rule, b"/w/.GIT/HOOKS", true), [1]);
}

#[test]
fn patterns_apply_below_the_target_of_a_link() {
    let mut names = names(&[], &["**/.config/fish", "**/.git/modules/**/config"], &[]);
    let found = looks(&mut names, "/h/.config", false);
    names.add_alias(found[0].next, found[1].next, b"/h/dot*files");
    assert!(names.settle().unwrap());
    let protected = |names: &mut NamePatterns, path| {
        looks(names, path, false).last().unwrap().protect.is_some()
    };
    assert!(protected(&mut names, "/h/dot*files/fish"));
    assert!(!protected(&mut names, "/h/dotxfiles/fish"), "a star in a path is a letter");
    let found = looks(&mut names, "/h/.config", false);
    names.add_alias(found[0].next, found[1].next, b"/h/dot*files");
    assert!(!names.settle().unwrap(), "known by now");
    names.add_path(NameRule::Deny, b"/h/x");
    assert!(names.settle().unwrap());
    assert!(looks(&mut names, "/h/x", false)[1].deny.is_some());
}

#[test]
fn names_that_are_no_utf8_match_byte_for_byte() {
    let pattern = Text::from_bytes(b"**/a\xff*\nb".to_vec()).unwrap();
    let mut names = NamePatterns::new(&[pattern], &[], &[], &[]).unwrap();
    let state = names.start(b"/", false).look.next;
    assert!(names.look(state, b"a\xff\xfe\nb", false).deny.is_some());
    assert!(names.look(state, b"a\xfe\nb", false).deny.is_none());
}

#[test]
fn a_hostile_pattern_takes_no_time() {
    let pattern = format!("/{}", ["**", "a*a*a*a*a*b"].repeat(10).join("/"));
    let path = format!("/{}", vec!["a".repeat(200); 40].join("/"));
    let mut names = names(&[&pattern], &[], &[]);
    let started = std::time::Instant::now();
    assert!(names.start(path.as_bytes(), false).look.deny.is_none());
    assert!(started.elapsed().as_secs() < 2);
    assert!(names.states.len() < 100);
}
