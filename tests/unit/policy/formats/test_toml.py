"""The TOML reader: valid policies, and the message for each mistake."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paddock.errors import PolicyError
from paddock.policy import Request, load
from paddock.policy.model import Access, Action, Effect, NetworkMode, Widen, Workspace
from tests.unit.policy.user_dirs import UserDirs

SHA = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_every_section_reaches_the_model(dirs: UserDirs) -> None:
    policy = dirs.load_text(
        f"""
        [meta]
        version = 1
        default_action = "ask"
        on_policy_error = "deny"
        on_supervisor_timeout_ms = 250
        ask_timeout_s = 300
        workdir = "<cwd>/sub"
        [filesystem]
        read_globs = ["/a/**"]
        write_globs = ["/b"]
        allow_globs = ["<cwd>/**"]
        exec_globs = ["/c/**?"]
        deny_globs = ["**/.env"]
        workspace = "cow"
        require_enforced = false
        no_bootstrap_reads = true
        widen = "never"
        [network]
        mode = "filtered"
        allowed_hosts = ["*.github.com", "@pypi", "[::1]"]
        denied_hosts = ["gist.github.com"]
        allowed_local_ports = [5432]
        kernel_pin = true
        [network.routes.openai]
        upstream = "https://api.openai.com"
        endpoint_rules = [{{ method = "post", path = "/v1/**" }}]
        [syscalls]
        block = ["mbind"]
        allow = ["read"]
        [env]
        pass = ["FOO"]
        deny = ["BAR_*"]
        set = {{ CI = "1" }}
        [limits]
        memory_mb = 1
        wall_s = 2
        [audit]
        enabled = true
        dir = "/var/tmp/j-${{UID}}"
        [[rule]]
        id = "r"
        action = "deny"
        reason = "why"
        exe_sha256_not = ["{SHA.upper()}"]
        uid = [0, 1000]
        [tools]
        read_only = true
        path_rules = [{{ action = "ask", path = "<cwd>/**", op = "write" }}]
        """
    )
    files, network = policy.filesystem, policy.network
    own = [g for g in files.grants if "p.toml" in str(g.source)]
    assert [(g.access, g.pattern, g.optional, g.workspace) for g in own] == [
        (Access.READ, "/a/**", False, False),
        (Access.WRITE, "/b", False, False),
        (Access.ALLOW, f"{dirs.work}/**", False, True),
        (Access.EXEC, "/c/**", True, False),
    ]
    assert files.denies[-1].pattern == "**/.env"
    assert files.workspace is not None
    assert files.workspace.value is Workspace.COW
    assert files.widen is not None
    assert files.widen.value is Widen.NEVER
    assert files.require_enforced is not None
    assert files.require_enforced.value is False
    assert policy.meta.default_action is not None
    assert policy.meta.default_action.value is Action.ASK
    assert policy.workdir is not None
    assert policy.workdir.value == f"{dirs.work}/sub"
    assert network is not None
    assert network.mode is not None
    assert network.mode.value is NetworkMode.FILTERED
    assert network.routes[0].endpoint_rules is not None
    assert network.routes[0].endpoint_rules[0].method == "POST"
    assert policy.syscalls.allow is not None
    assert [call.value for call in policy.syscalls.allow] == ["read"]
    assert dict(policy.env.set)["CI"].value == "1"
    assert [(limit.name, limit.value) for limit in policy.limits] == [
        ("memory_mb", 1),
        ("wall_s", 2),
    ]
    assert policy.audit.dir is not None
    assert policy.audit.dir.value == f"/var/tmp/j-{dirs.origin.uid}"
    (rule,) = policy.rules
    assert (rule.id, rule.reason) == ("r", "why")
    assert [(m.key, m.values, m.negate) for m in rule.matches] == [
        ("exe_sha256", (SHA,), True),
        ("uid", ("0", "1000"), False),
    ]
    assert policy.tools.read_only is not None
    assert policy.tools.read_only.value is True
    assert [(one.action, one.path, one.op) for one in policy.tools.path_rules] == [
        (Action.ASK, f"{dirs.work}/**", Effect.WRITE)
    ]
    assert policy.tools.allowed_paths is None


def test_every_value_knows_file_line_and_key(dirs: UserDirs) -> None:
    policy = dirs.load_text('[filesystem]\nread_globs = [\n  "/a",\n  "/b",\n]\n')
    source = policy.filesystem.grants[-1].source
    assert (source.line, source.key) == (4, "filesystem.read_globs[1]")
    assert str(source).endswith("p.toml:4")


def test_a_grant_may_be_a_table_with_more_to_say(dirs: UserDirs) -> None:
    policy = dirs.load_text(
        "[filesystem]\nread_globs = [\n  '/a',\n  { path = '~/b/**?', execute = false },\n"
        "  { path = '/c' },\n]\n"
        "write_globs = [{ path = '/d', execute = false }, { path = '/e/**', create = true }]\n"
        "allow_globs = [{ path = '/f', create = false }]\n"
    )
    grants = {grant.pattern: grant for grant in policy.filesystem.grants}
    closed = grants[f"{dirs.home}/b/**"]
    assert (closed.execute, closed.optional) == (False, True)
    assert (closed.source.line, closed.source.key) == (4, "filesystem.read_globs[1].path")
    assert [grants[path].execute for path in ("/a", "/c", "/d")] == [True, True, True]
    assert [grants[path].create for path in ("/a", "/e/**", "/f")] == [False, True, False]


def test_absent_and_empty_host_lists_are_two_things(dirs: UserDirs) -> None:
    absent, empty = (
        dirs.load_text("[network]\n"),
        dirs.load_text("[network]\nallowed_hosts = []\n"),
    )
    assert absent.network is not None
    assert empty.network is not None
    assert (absent.network.allowed_hosts, empty.network.allowed_hosts) == (None, ())


def test_version_may_be_absent(dirs: UserDirs) -> None:
    absent, one = (
        dirs.load_text("[limits]\nwall_s = 5\n"),
        dirs.load_text("[limits]\nwall_s = 5\n[meta]\nversion = 1\n"),
    )
    assert absent.limits == one.limits


MISTAKES = [
    # text, line, words of the message, hint
    ("[meta]\nversion = 2\n", 2, "meta.version", None),
    ("[meta]\nversion = true\n", 2, "expected a whole number, found true or false", None),
    ("[meta]\ndefault_action = 'maybe'\n", 2, "'maybe' is not one of allow, deny, ask", None),
    ("[meta]\non_policy_error = 'allow'\n", 2, "never allows a program", "deny"),
    ("[meta]\ninherit = []\n", 2, "no profile is given", "base"),
    ("[meta]\ninherit = 3\n", 2, "expected a list, found a whole number", None),
    ("[meta]\ninherit = ['']\n", 2, "the name is empty", None),
    ("\n[metta]\n", 2, "metta: unknown section", "'meta'"),
    ("[filesystem]\nread_glob = []\n", 2, "filesystem.read_glob: unknown key", "'read_globs'"),
    ("[filesystem]\nread_globs = '/a'\n", 2, "expected a list, found a text", None),
    (
        "[filesystem]\nread_globs = [\n'/a',\n3]\n",
        4,
        "filesystem.read_globs[1]: expected a text",
        None,
    ),
    (
        "[filesystem]\nread_globs = ['/a', [1]]\n",
        2,
        "read_globs[1]: expected a text or a table, found a list",
        None,
    ),
    ("[filesystem]\nread_globs = [{ execute = false }]\n", 2, "a grant needs a path", None),
    (
        "[filesystem]\nread_globs = [\n{ path = '/a', exec = false }]\n",
        3,
        "unknown key",
        "'execute'",
    ),
    (
        "[filesystem]\nread_globs = [{ path = '/a', execute = 1 }]\n",
        2,
        "expected true or false",
        None,
    ),
    ("[filesystem]\nread_globs = [{ path = 'a/b' }]\n", 2, "not an absolute pattern", "<cwd>/a/b"),
    (
        "[filesystem]\nexec_globs = [{ path = '/a', execute = false }]\n",
        2,
        "contradicts a grant to execute",
        "remove it",
    ),
    (
        "[filesystem]\nwrite_globs = [{ path = '/a', execute = true }]\n",
        2,
        "cannot have execute",
        "allow_globs",
    ),
    (
        "[filesystem]\nread_globs = [{ path = '/a', create = true }]\n",
        2,
        "create needs a grant that allows writing",
        "allow",
    ),
    (
        "[filesystem]\nallow_globs = [{ path = '/a?', create = true }]\n",
        2,
        "cannot be optional",
        "'?'",
    ),
    (
        "[filesystem]\nallow_globs = [{ path = '/a/*', create = true }]\n",
        2,
        "one whole directory",
        "/x/**",
    ),
    (
        "[filesystem]\nallow_globs = [{ path = '<tmp>/a', create = true }]\n",
        2,
        "one whole directory",
        None,
    ),
    ("[filesystem]\nread_globs = ['a/b']\n", 2, "not an absolute pattern", "<cwd>/a/b"),
    ("[filesystem]\nread_globs = ['/a/../b']\n", 2, "'..' is not allowed", None),
    (
        "[filesystem]\nread_globs = ['/**/x']\n",
        2,
        "would open the whole machine",
        "name the directories",
    ),
    ("[filesystem]\nread_globs = ['/*']\n", 2, "would open the whole machine", None),
    ("[filesystem]\nprotect_globs = ['**/*']\n", 2, "would protect every path", "read_globs"),
    ("[filesystem]\nprotect_globs = ['/**']\n", 2, "would protect every path", "read_globs"),
    ("[filesystem]\nprotect_globs = ['<tmp>/x']\n", 2, "private temporary", "remove"),
    ("[filesystem]\nopen_protected = ['**/*']\n", 2, "every protected name", None),
    ("[filesystem]\nopen_protected = ['.vscode']\n", 2, "not an absolute pattern", "<cwd>/.vscode"),
    ("[syscalls]\nnamespaces = 1\n", 2, "true or false", None),
    ("[filesystem]\nread_globs = ['**']\n", 2, "not an absolute pattern", None),
    ("[filesystem]\nread_globs = ['**/x']\n", 2, "would open the whole machine", None),
    ("[filesystem]\nread_globs = ['']\n", 2, "empty", None),
    ("[filesystem]\nread_globs = ['?']\n", 2, "empty", None),
    ("[filesystem]\nread_globs = ['/a??']\n", 2, "ends in '?'", None),
    ("[filesystem]\nread_globs = ['<cmd>/x']\n", 2, "not an absolute", "'<cwd>'"),
    ("[filesystem]\nread_globs = ['~bob/x']\n", 2, "only '~/', your own home", None),
    ("[filesystem]\nread_globs = ['$NOPE/x']\n", 2, "NOPE is not set", "$$"),
    ("[filesystem]\nread_globs = ['${NOPE}/x']\n", 2, "NOPE is not set", None),
    ("[filesystem]\nread_globs = ['/a/$/x']\n", 2, "without a variable name", "$$"),
    ("[filesystem]\nread_globs = ['${HOME/x']\n", 2, "not a variable", None),
    ('[filesystem]\nread_globs = ["/a\\u0000b"]\n', 2, "NUL", None),
    ("[filesystem]\ndeny_globs = ['/**']\n", 2, "would deny every path", None),
    ("filesystem = 'off'\n", 1, "cannot turn the file layer off", "--off landlock"),
    ("filesystem = 3\n", 1, "expected a table, found a whole number", None),
    ("[network]\nmode = 'open'\n", 2, "not one of none, filtered, host", None),
    ("[network]\nallowed_hosts = ['https://x/']\n", 2, "not a host", "write 'x'"),
    ("[network]\nallowed_hosts = ['a.*.com']\n", 2, "a '*' must be alone or at the start", None),
    ("[network]\ndefault = 'open'\n", 2, "not one of allow, deny, ask", None),
    ("[network]\nallowed_local_ports = [0]\n", 2, "0 is not between 1 and 65535", None),
    ("[network.routes.x]\ncredential_key = 'k'\n", 1, "no upstream", None),
    ("[network.routes.x]\nupstream = 'ftp://x'\n", 2, "not an http or https address", None),
    (
        "[network.routes.x]\nupstream = 'https://x'\ninject_mode = 'heder'\n",
        3,
        "not one of",
        "'header'",
    ),
    (
        "[network.routes.x]\nupstream = 'https://x'\nendpoint_rules = [{ method = 'GET' }]\n",
        3,
        "a method and a path",
        None,
    ),
    (
        (
            "[network.routes.x]\nupstream = 'https://x'\nendpoint_rules = [\n{ method = 'GET', "
            "path = 'v1' }]\n"
        ),
        4,
        "'/'",
        None,
    ),
    ("[network]\nroutes = 3\n", 2, "expected a table", None),
    ("[syscalls]\nblock = ['ptrce']\n", 2, "unknown system call 'ptrce'", "'ptrace'"),
    ("[env]\npass = ['A=B']\n", 2, "not the name of an environment variable", None),
    ("[env]\npass = ['']\n", 2, "not the name", None),
    ("[env]\nset = { 'A*' = 'x' }\n", 2, "full name", None),
    ("[env]\nset = { A = 1 }\n", 2, "env.set.A: expected a text", None),
    ("[env.set]\nB = '1'\nA = '$NOPE'\n", 3, "NOPE is not set", None),
    ("[limits]\nmemory_mb = 0\n", 2, "not between 1", None),
    ("[limits]\nmemory_mb = 1.5\n", 2, "expected a whole number, found a float", None),
    ("[limits]\nmemroy_mb = 1\n", 2, "unknown key", "'memory_mb'"),
    ("[audit]\nenabled = false\n", 2, "cannot turn the journal off", "--off audit"),
    ("[audit]\ndir = 'relative'\n", 2, "not an absolute", None),
    ("[audit]\ndir = '/a/*'\n", 2, "not a plain absolute path", None),
    ("[[rule]]\naction = 'allow'\n", 1, "every rule needs an id", None),
    ("[[rule]]\nid = 'a'\n", 1, "has no action", "write 'allow', 'deny' or 'ask'"),
    ("[[rule]]\nid = 'a'\naction = 'permit'\n", 3, "not one of", None),
    (
        (
            "[[rule]]\nid = 'a'\naction = 'deny'\nuid = 0\n[[rule]]\nid = 'a'\naction = 'deny'\n"
            "uid = 1\n"
        ),
        6,
        "is already in line 1",
        None,
    ),
    (
        "[[rule]]\nid = 'a'\naction = 'deny'\nreason = 'x'\n",
        2,
        "has no condition",
        "default_action",
    ),
    (
        "[[rule]]\nid = 'a'\naction = 'deny'\nexe_glob = '<tmp>/*'\n",
        4,
        "only during a run",
        None,
    ),
    (
        "[[rule]]\nid = 'a'\naction = 'deny'\nexe_glob = '${NO_SUCH}/x'\n",
        4,
        "NO_SUCH is not set",
        None,
    ),
    (
        "[[rule]]\nid = 'a'\naction = 'deny'\nargv_host_in = ['a', '@pypi']\n",
        4,
        "each host separately",
        None,
    ),
    ("[[rule]]\nid = 'a'\naction = 'deny'\nargv_host_in = 'https://a'\n", 4, "not a host", None),
    ('[[rule]]\nid = "a"\naction = "deny"\nargv_contains = "\\u0000"\n', 4, "NUL", None),
    ('[[rule]]\nid = "a\\u0000"\naction = "deny"\nuid = 0\n', 2, "NUL", None),
    ("[[rule]]\nid = 'a'\naction = 'deny'\nparent_argv = '(?=x)'\n", 4, "look-around", None),
    ("[meta]\ndefault_action = 'maybe'\n", 2, "not one of", None),
    ("[meta]\non_policy_error = 'allow'\n", 2, "never allows a program", None),
    ("[meta]\non_supervisor_timeout_ms = 0\n", 2, "not between", None),
    ("[syscalls]\ntrace = 'yes'\n", 2, "true or false", None),
    (
        "[[rule]]\nid = 'a'\naction = 'deny'\nargv_regx = 'x'\n",
        4,
        "rule[0].argv_regx: unknown key",
        "'argv_regex'",
    ),
    (
        "[[rule]]\nid = 'a'\naction = 'deny'\nargv_regex = ['x',\n'(']\n",
        5,
        "not a regular expression",
        None,
    ),
    ("[[rule]]\nid = 'a'\naction = 'deny'\nexe = 'git'\n", 4, "not an absolute", None),
    (
        "[[rule]]\nid = 'a'\naction = 'deny'\nexe_basename = '/usr/bin/git'\n",
        4,
        "contains no '/'",
        "exe_glob",
    ),
    ("[[rule]]\nid = 'a'\naction = 'deny'\nexe_sha256 = 'abc'\n", 4, "64 hex digits", None),
    (
        "[[rule]]\nid = 'a'\naction = 'deny'\nuid = '0'\n",
        4,
        "expected a whole number, found a text",
        None,
    ),
    ("[[rule]]\nid = 'a'\naction = 'deny'\nuid = []\n", 4, "never matches", None),
    ("[[rule]]\nid = 'a'\naction = 'deny'\nexe_basename = []\n", 4, "never matches", None),
    ("[[rule]]\nid = 'a'\naction = 'deny'\nexe_glob = '/a/../b'\n", 4, "'..'", None),
    ("rule = 3\n", 1, "expected a list", None),
    ("rule = [3]\n", 1, "rule[0]: expected a table", None),
    ("[tools]\nread_only = 1\n", 2, "expected true or false", None),
    ("[tools]\npath_rules = [{ path = '/a' }]\n", 2, "no action", None),
    (
        "[tools]\npath_rules = [{ action = 'deny', path = '/a', op = 'raed' }]\n",
        2,
        "not one of",
        "'read'",
    ),
    ("[tools]\ncommand_rules = [{ action = 'deny' }]\n", 2, "needs exe", None),
    (
        "[tools]\ncommand_rules = [{ action = 'deny', argv_regex = '(?=x)' }]\n",
        2,
        "look-around",
        None,
    ),
    ("[tools]\ndenied_commands = [' ']\n", 2, "empty", None),
    ("[container]\nuid = -1\n", 2, "not between 0", None),
    ("[container]\ncap_allow = ['CAP_NOPE']\n", 2, "unknown capability", None),
    ("[container]\nusername = 'a b'\n", 2, "not a plain name", None),
    ("'odd key\t' = 1\n", 1, "unknown section", None),
]


@pytest.mark.parametrize(
    ("text", "line", "words", "hint"), MISTAKES, ids=[m[0][:60] for m in MISTAKES]
)
def test_an_invalid_policy_is_an_error_with_its_line(
    dirs: UserDirs, text: str, line: int, words: str, hint: str | None
) -> None:
    error = dirs.refuse(text)
    assert error.where == f"{dirs.root}/policies/p.toml:{line}"
    assert words in error.message
    assert error.exit_code == 125
    if hint is not None:
        assert hint in (error.hint or "")


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("[meta]\nversion = \n", 2, "not valid TOML"),
        ("a = 1\n\na = 2\n", 3, "'a' is given twice"),
        ("[meta]\n[env]\n[meta]\n", 3, "this section is given twice"),
        ('[filesystem]\nread_globs = ["/a",\n', 2, "the file ends too early"),
        ('[env]\nset = { A = "x\n', 2, "not valid TOML"),
        ("x = " + "[" * 5000, None, "nested too deeply"),
        ("x = " + "1" * 5000, None, "not valid TOML"),
    ],
)
def test_invalid_toml_is_an_error_with_its_line(
    dirs: UserDirs, text: str, line: int | None, words: str
) -> None:
    error = dirs.refuse(text)
    assert words in error.message
    assert (error.where or "").endswith("p.toml" if line is None else f"p.toml:{line}")


@pytest.mark.parametrize(
    ("data", "line"), [(b"[meta]\n\xff\n", 2), (b"# x\n\n\0", 3), (b"\xc3", 1)]
)
def test_bytes_that_are_not_text_are_an_error_with_their_line(
    dirs: UserDirs, data: bytes, line: int
) -> None:
    assert (dirs.refuse(data).where or "").endswith(f"p.toml:{line}")


def test_a_value_that_names_a_terminal_command_is_escaped_in_the_message(dirs: UserDirs) -> None:
    error = dirs.refuse('[syscalls]\nblock = ["\\u001b[2K"]\n')
    assert "\x1b" not in error.message


def test_both_spellings_of_a_variable_mean_the_same(dirs: UserDirs) -> None:
    dirs.environ["PLACE"] = "/srv/x"
    one = dirs.load_text(
        "[filesystem]\nread_globs = ['$HOME/p', '$PLACE/y', '~/q', '/u/$USER$$x']\n"
    )
    two = dirs.load_text(
        "[filesystem]\nread_globs = ['${HOME}/p', '${PLACE}/y', '${HOME}/q', '/u/${USER}$$x']\n"
    )
    expected = [f"{dirs.home}/p", "/srv/x/y", f"{dirs.home}/q", "/u/ada$x"]
    assert (
        [g.pattern for g in one.filesystem.grants]
        == [g.pattern for g in two.filesystem.grants]
        == expected
    )


def test_home_pattern_ignores_the_environment(dirs: UserDirs) -> None:
    dirs.environ.update(HOME="/", USER="root", UID="0")
    policy = dirs.load_text("[filesystem]\nallow_globs = ['$HOME/p', '/$USER/$UID']\n")
    assert [g.pattern for g in policy.filesystem.grants] == [
        f"{dirs.home}/p",
        f"/ada/{dirs.origin.uid}",
    ]


@pytest.mark.parametrize("value", ["/srv/*", "/srv/**", "/srv/../etc", "<tmp>/x"])
def test_a_variable_brings_in_text_and_never_syntax(dirs: UserDirs, value: str) -> None:
    dirs.environ["PLACE"] = value
    assert (
        "PLACE" in dirs.refuse("[filesystem]\nread_globs = ['$PLACE']\n").message or ".." in value
    )


def test_a_workspace_whose_name_holds_a_wildcard_is_refused(dirs: UserDirs) -> None:
    odd = dirs.root / "a*b"
    odd.mkdir()
    with pytest.raises(PolicyError, match="current directory contains"):
        load(Request(), replace(dirs.origin, cwd=str(odd)))


def test_regular_expressions_are_not_expanded(dirs: UserDirs) -> None:
    policy = dirs.load_text("[[rule]]\nid = 'a'\naction = 'deny'\nargv_regex = '^git$HOME( |$)'\n")
    assert policy.rules[0].matches[0].values == ("^git$HOME( |$)",)
