"""Common programs work under exec rules."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import tempfile
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.support.features import need, need_program
from tests.support.gate import Gate, rule
from tests.support.jail import roots_reach_put_aside
from tests.support.sandbox import Word
from tests.support.tester import Outcome

# Typical rules: some denials by path, by argument, by content or by parent, and the rest allowed.
RULES = (
    rule(
        "no-push",
        "deny",
        exe_basename="git",
        argv_regex=r"^git( -[^ ]+)* push( |$)",
        reason="leaves the machine",
    ),
    rule("no-curl", "deny", exe_basename=["curl", "wget", "nc"]),
    rule("no-remote", "deny", exe_basename="git", argv_contains="clone", argv_regex="https?://"),
    rule("no-root", "deny", exe_basename=["sudo", "su", "doas"]),
    rule("no-content", "deny", exe_sha256="0" * 64),
    rule("no-shell-from", "deny", exe_basename="sh", parent_exe="/usr/bin/nothing"),
    rule("no-odd-place", "deny", exe_basename="make", cwd_glob="/nowhere/**"),
)


def run(gate: Gate, script: str) -> Outcome:
    """Runs the script. No program is killed or denied."""
    words = ["bash", "-euc", script]
    # A clone has its own configuration, which is protected by default.
    flags = ["-x", f"{gate.project}/**", "--open-protected", "**/.git/config"]
    outcome = gate.inside(words, *RULES, flags=flags, timeout_s=180)
    assert outcome.exit_code == 0, str(outcome)
    wrong = [
        event
        for event in gate.execs()
        if event["event"] == "exec.attack" or event["action"] == "deny"
    ]
    assert wrong == [], str(outcome)
    return outcome


CRATE = {
    "crate/Cargo.toml": (
        '[package]\nname = "small"\nversion = "0.1.0"\nedition = "2021"\n[workspace]\n'
    ),
    "crate/build.rs": 'fn main() { println!("cargo:rustc-env=BUILT=yes"); }\n',
    "crate/src/main.rs": 'fn main() { println!("{}", env!("BUILT")); }\n',
}


def copied(gate: Gate, files: dict[str, str]) -> None:
    for name, text in files.items():
        gate.sandbox.tree.put(gate.project / name, text)


def test_git(gate: Gate) -> None:
    need_program("git")
    script = """
        export GIT_AUTHOR_NAME=x GIT_AUTHOR_EMAIL=x@x GIT_COMMITTER_NAME=x GIT_COMMITTER_EMAIL=x@x
        mkdir one && cd one && git init -q . && echo 1 > a && git add a && git commit -qm first
        git switch -qc side && echo 2 > b && git add b && git commit -qm second && echo 3 >> b && \
git commit -qam third
        git switch -q - && echo 4 > c && git add c && git commit -qm fourth
        git switch -q side && git rebase -q - && git log --oneline | wc -l
        two=${TMPDIR:-/tmp}/two && git clone -q . $two && cd $two && git log --oneline | wc -l
        git gc -q && git fsck 2> /dev/null > /dev/null && git grep -c 4
    """
    assert run(gate, script).stdout.splitlines() == ["4", "4", "c:1"]


def test_make_with_many_compilers_at_once(gate: Gate) -> None:
    need_program("gcc"), need_program("make")
    files = {f"m{index}.c": f"int f{index}(void) {{ return {index}; }}\n" for index in range(16)}
    calls = "".join(f"int f{index}(void);" for index in range(16))
    files["main.c"] = (
        f'#include <stdio.h>\n{calls}int main(void) {{ printf("%d\\n", f3() + f15()); '
        f"return 0; }}\n"
    )
    files["Makefile"] = "OBJ := $(patsubst %.c,%.o,$(wildcard *.c))\nprog: $(OBJ)\n\tgcc -o $@ $^\n"
    copied(gate, files)
    assert run(gate, "make -s -j8 && ./prog").stdout == "18\n"


def test_cargo(gate: Gate) -> None:
    """Runs as a user who can run the program, often only the user who started the tests."""
    script = "command -v cargo > /dev/null && rustc --print sysroot"
    own = gate.sandbox.tester.run(["sh", "-c", script])
    found = (
        own
        if own.exit_code == 0
        else gate.sandbox.tester.run(["sh", "-c", script], as_root=True, env=dict(os.environ))
    )
    need("cargo", found.exit_code == 0, "no cargo on this machine")
    toolchain = found.stdout.strip()
    place = Path(tempfile.mkdtemp(prefix="paddock-crate-", dir="/var/tmp"))
    try:
        for name, text in CRATE.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(text)
        shutil.copy(gate.policy(*RULES[:2]), place / "gate.toml")
        if found is own:
            gate.sandbox.tester.give(place)
        build = "export CARGO_HOME=$PWD/.c && cargo build -q --offline && target/debug/small"
        flags: list[Word] = [
            "-r",
            f"{toolchain}/**",
            "-x",
            f"{toolchain}/**",
            "-x",
            f"{place}/**",
            "--audit-log",
            place / "journal",
        ]
        argv = gate.command(["bash", "-euc", build], place / "gate.toml", *flags)
        env = {"PATH": f"{toolchain}/bin:/usr/bin:/bin"}
        with roots_reach_put_aside() if found is not own else nullcontext():
            outcome = gate.sandbox.tester.run(
                argv, cwd=place / "crate", env=env, as_root=found is not own
            )
        assert outcome.stdout == "yes\n", str(outcome)
    finally:
        shutil.rmtree(place)


def test_npm_and_node(gate: Gate) -> None:
    need_program("npm"), need_program("node")
    copied(gate, {
        "lib/package.json": json.dumps(
            {"name": "lib", "version": "1.0.0", "bin": {"tool": "tool.js"},
            "scripts": {"postinstall": "node -e 1"}}
        ),
        "lib/tool.js": "#!/usr/bin/env node\nconsole.log('tool', process.argv[2])\n",
        "app/package.json": json.dumps(
            {"name": "app", "version": "1.0.0", "dependencies": {"lib": "file:../lib"},
             "scripts": {"go": "tool x && node many.js"}}
        ),
        "app/many.js": """
            const { execFile, spawnSync } = require('child_process')
            Promise.all([...Array(20).keys()].map(i => new Promise((done, bad) =>
              execFile('/bin/echo', [i], (error, out) =>
                error ? bad(error) : done(+out))))).then(all => {
                console.log(all.reduce((a, b) => a + b), spawnSync('sh', ['-c', 'exit 3']).status)
                try { require('child_process').execFileSync('/usr/bin/wget') }
                catch (error) { console.log(error.code) }
            })
        """,
    })  # fmt: skip
    (gate.project / "lib" / "tool.js").chmod(0o755)
    script = """
        cd app && export npm_config_cache=$PWD/.npm npm_config_update_notifier=false
        npm install --offline --silent --no-audit --no-fund
        npm run --silent go
    """
    flags = ["-x", f"{gate.project}/**"]
    outcome = gate.inside(["bash", "-euc", script], *RULES[:2], flags=flags, timeout_s=180)
    assert outcome.exit_code == 0, str(outcome)
    expected = ["tool x", "190 3", "EACCES" if shutil.which("wget", path="/usr/bin") else "ENOENT"]
    assert outcome.stdout.splitlines()[-3:] == expected, str(outcome)


def test_many_processes_of_python(gate: Gate) -> None:
    """Workers start programs with every function of the library, as a parallel test run does."""
    copied(gate, {
        "many.py": """
            import multiprocessing, os, subprocess, sys

            def one(number):
                words = [sys.executable, "-c", f"print({number})"]
                by_vfork = subprocess.check_output(words, text=True)
                by_shell = subprocess.check_output(
                    f"echo {number}", shell=True, text=True, preexec_fn=os.getpid)
                pid = os.posix_spawn("/bin/true", ["true"], os.environ)
                return int(by_vfork) + int(by_shell) + os.waitpid(pid, 0)[1]

            if __name__ == "__main__":
                for method in sys.argv[1:]:
                    with multiprocessing.get_context(method).Pool(3) as pool:
                        print(method, sum(pool.map(one, range(12))))
        """.replace("\n            ", "\n"),
    })  # fmt: skip
    # The last function needs a unix socket, which only the full tier has.
    methods = ["fork", "spawn", *(["forkserver"] if gate.sandbox.tier == "full" else [])]
    outcome = run(gate, f"python3 many.py {' '.join(methods)}")
    assert outcome.stdout.splitlines() == [f"{method} 132" for method in methods]


def test_pytest_with_workers(gate: Gate) -> None:
    lib = gate.project / "lib"
    lib.mkdir()
    for name in (
        "pytest",
        "_pytest",
        "py",
        "pluggy",
        "iniconfig",
        "packaging",
        "pygments",
        "xdist",
        "execnet",
    ):
        spec = importlib.util.find_spec(name)
        need(name, spec is not None, "the tests' own environment has it")
        origin = Path(str(spec and spec.origin))
        if origin.name == "__init__.py":
            shutil.copytree(origin.parent, lib / name)
        else:
            shutil.copy(origin, lib)
    gate.sandbox.tester.give(lib)
    copied(gate, {"test_many.py": """
        import os, subprocess, sys, pytest

        @pytest.mark.parametrize("number", range(24))
        def test_one(number):
            assert "PYTEST_XDIST_WORKER" in os.environ
            words = [sys.executable, "-c", f"print({number})"]
            assert subprocess.check_output(words, text=True) == f"{number}\\n"
    """.replace("\n        ", "\n")})  # fmt: skip
    outcome = run(
        gate,
        "PYTHONPATH=$PWD/lib python3 -m pytest -q -p no:cacheprovider -p xdist.plugin -n 2 "
        "test_many.py",
    )
    assert "24 passed" in outcome.stdout, str(outcome)


GO = """
package main
import ("fmt"; "os/exec"; "strings"; "sync")
func main() {
    var wait sync.WaitGroup; var lock sync.Mutex; total := 0
    for i := 0; i < 40; i++ {
        wait.Add(1)
        go func(i int) {
            defer wait.Done()
            out, err := exec.Command("echo", strings.Repeat("x", i)).Output()
            if err != nil { panic(err) }
            lock.Lock(); total += len(out) - 1; lock.Unlock()
        }(i)
    }
    for spin := 0; spin < 1e8; spin++ {}
    wait.Wait(); fmt.Println(total)
    fmt.Println(exec.Command("curl").Run() != nil)
}
"""


@pytest.fixture(scope="module")
def go_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built outside, where the compiled library is kept between test runs."""
    go = next(
        (place for place in ("/usr/local/go/bin/go", "/usr/bin/go") if Path(place).exists()), None
    )
    need("go", go is not None, "no go on this machine")
    place = tmp_path_factory.mktemp("go")
    (place / "main.go").write_text(GO)
    subprocess.run([str(go), "build", "-o", "small", "main.go"], cwd=place, check=True)
    return place / "small"


def test_a_go_program(gate: Gate, go_program: Path) -> None:
    """Threads, a signal to itself every few milliseconds, and vfork."""
    shutil.copy(go_program, gate.project / "small")
    outcome = gate.inside(["./small"], *RULES[:2], flags=["-x", f"{gate.project}/**"])
    assert outcome.stdout == "780\ntrue\n", str(outcome)


def test_a_java_program(gate: Gate) -> None:
    """Java starts programs by its own helper (jspawnhelper)."""
    need_program("java"), need_program("javac")
    copied(gate, {
        "Small.java": """
            import java.util.stream.*;
            public class Small {
                static int one(int i) {
                    try {
                        Process p = new ProcessBuilder("expr", "" + i, "+", "1").start();
                        String out = new String(p.getInputStream().readAllBytes()).trim();
                        return p.waitFor() == 0 ? Integer.parseInt(out) : -1000;
                    } catch (Exception error) { throw new RuntimeException(error); }
                }
                public static void main(String[] args) throws Exception {
                    System.out.println(IntStream.range(0, 24).parallel().map(Small::one).sum());
                    try { new ProcessBuilder("curl").start(); System.out.println("ran"); }
                    catch (java.io.IOException error) { System.out.println("refused"); }
                }
            }
        """,
    })  # fmt: skip
    outcome = gate.inside(
        ["bash", "-euc", "javac -J-Xshare:auto Small.java && java -cp . Small"], *RULES[:2],
        flags=["-x", f"{gate.project}/**"], timeout_s=240,
    )  # fmt: skip
    assert outcome.stdout == "300\nrefused\n", str(outcome)


@pytest.mark.parametrize("program", ["perl", "awk", "find"])
def test_small_tools_that_start_others(gate: Gate, program: str) -> None:
    need_program(program)
    scripts = {
        "perl": (
            "perl -e 'print `echo $_` for 1..20; system(q(true)); open(P, q(-|), q(echo), "
            "q(p)); "
            "print <P>'"
        ),
        "awk": 'awk \'BEGIN { while (("seq 20" | getline x) > 0) print x; print "p" | "cat" }\'',
        "find": (
            "touch f{1..20}; find . -name 'f*' -exec echo {} + | wc -w; "
            "seq 20 | xargs -P4 -n1 true; echo p"
        ),
    }
    lines = run(gate, scripts[program]).stdout.splitlines()
    assert lines[-1] == "p"
    assert lines[:-1] == (["20"] if program == "find" else [str(number) for number in range(1, 21)])
