"""Build tools and package managers do inside exactly what they do outside.

Each tool builds a small project at the same path: once outside, and once in each tier. The exit
code and the tree must be the same: names, modes, link counts, targets of links and contents. All
packages are local files.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.features import need, need_program
from tests.support.sandbox import SandboxRunner
from tests.support.tester import SEARCH_PATH

MAVEN_PLUGINS = Path("/usr/share/maven-repo/org/apache/maven/plugins")
Entry = tuple[int, int, bytes]  # mode, link count, content


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    files: Mapping[str, str | bytes]
    script: str
    made: tuple[str, ...]  # the build worked only if these exist
    timed: tuple[str, ...] = ()  # the content of these parts of paths has times or process numbers
    cache: str | None = None  # a tree that is not compared: the runs inside begin with a copy


C_FILES = {
    "src/a.h": "int b(void);\n",
    "src/a.c": '#include "a.h"\nint main(void) { return b(); }\n',
    "src/b.c": "int b(void) { return 0; }\n",
}
CMAKE = {
    **C_FILES,
    "CMakeLists.txt": """
cmake_minimum_required(VERSION 3.20)
project(small C)
configure_file(src/a.h generated.h COPYONLY)
add_library(b STATIC src/b.c)
add_executable(app src/a.c)
target_link_libraries(app b)
install(TARGETS app DESTINATION bin)
enable_testing()
add_test(NAME runs COMMAND app)
""",
}
MAKEFILE = """
app: a.o b.o
\t$(CC) -o $@ $^
%.o: src/%.c
\t$(CC) -c -o $@ $<
install: app
\tinstall -D -m 755 app out/bin/app
\tinstall -D -m 600 src/a.h out/include/a.h
\tln -sf bin/app out/app
clean:
\trm -rf *.o app out
"""


def package_tarball() -> bytes:
    """An npm package with files that its author's own tools obey, a program and a script."""
    metadata = {
        "name": "dep",
        "version": "1.0.0",
        "bin": {"dep": "bin/dep.js"},
        "scripts": {"postinstall": "echo made > made"},
    }
    files = {
        "package.json": json.dumps(metadata),
        "bin/dep.js": "#!/usr/bin/env node\nconsole.log('dep')\n",
        ".travis.yml": "language: node_js\n",
        ".github/workflows/ci.yml": "on: push\n",
        ".vscode/settings.json": "{}\n",
    }
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return made.getvalue()


def wheel() -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        facts = "tiny-1.0.dist-info"
        archive.writestr("tiny.py", "def main():\n    print('tiny')\n")
        archive.writestr(f"{facts}/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        archive.writestr(
            f"{facts}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{facts}/entry_points.txt", "[console_scripts]\ntiny = tiny:main\n")
        archive.writestr(f"{facts}/RECORD", "")
    return made.getvalue()


NODE_FILES: Mapping[str, str | bytes] = {
    "package.json": json.dumps(
        {
            "name": "app",
            "version": "1.0.0",
            "scripts": {"build": "dep"},
            "dependencies": {"dep": "file:./dep.tgz"},
        }
    ),
    "dep.tgz": package_tarball(),
}
WHEELS: Mapping[str, str | bytes] = {"wheels/tiny-1.0-py3-none-any.whl": wheel()}
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>small</groupId><artifactId>small</artifactId><version>1</version>
<properties><project.build.sourceEncoding>UTF-8</project.build.sourceEncoding></properties>
</project>
"""
MAVEN_SETTINGS = """<settings><mirrors><mirror><id>local</id><mirrorOf>*</mirrorOf>
<url>file:///usr/share/maven-repo</url></mirror></mirrors></settings>
"""

MAKE = Build(
    files={**C_FILES, "Makefile": MAKEFILE},
    script="make -j2 install && make && out/app && make clean && make install",
    made=("out/bin/app", "out/include/a.h"),
)
CMAKE_BUILD = Build(
    files=CMAKE,
    script="cmake -S . -B build && cmake --build build && "
    "cmake --install build --prefix out && cd build && ctest",
    made=("out/bin/app", "build/generated.h"),
    timed=("/Testing/", "/CMakeFiles/CMakeOutput.log", "/CMakeFiles/CMakeConfigureLog.yaml"),
)
NINJA = Build(
    files=CMAKE,
    script="cmake -G Ninja -S . -B build && ninja -C build && "
    "ninja -C build -t clean && ninja -C build",
    made=("build/app", "build/.ninja_log"),
    timed=(".ninja_", "/CMakeFiles/CMakeOutput.log", "/CMakeFiles/CMakeConfigureLog.yaml"),
)
CARGO = Build(
    files={
        "Cargo.toml": '[package]\nname="small"\nversion="0.1.0"\nedition="2021"\n'
        '[dependencies]\ndep={path="dep"}\n',
        "src/main.rs": 'fn main() { println!("{}", dep::x()) }\n',
        "dep/Cargo.toml": '[package]\nname="dep"\nversion="0.1.0"\nedition="2021"\n'
        'build="build.rs"\n',
        "dep/src/lib.rs": 'include!(concat!(env!("OUT_DIR"), "/x.rs"));\n',
        "dep/build.rs": 'fn main() { let out = std::env::var("OUT_DIR").unwrap();\n'
        'std::fs::write(out + "/x.rs", "pub fn x() -> i32 { 3 }").unwrap() }\n',
    },
    script="export CARGO_HOME=$PWD/home CARGO_INCREMENTAL=0 && cargo run --offline && "
    "cargo clean --offline -p small && cargo build --offline",
    made=("target/debug/small", "Cargo.lock"),
    timed=("/.fingerprint/", "/.rustc_info.json", "home/"),
)
GO = Build(
    files={
        "go.mod": "module small.example/app\ngo 1.18\nrequire small.example/dep v0.0.0\n"
        "replace small.example/dep => ./dep\n",
        "main.go": 'package main\nimport "small.example/dep"\nfunc main() { println(dep.X()) }\n',
        "dep/go.mod": "module small.example/dep\ngo 1.18\n",
        "dep/dep.go": "package dep\nfunc X() int { return 3 }\n",
    },
    script="export GOFLAGS=-buildvcs=false GOCACHE=$PWD/cache GOPATH=$PWD/path "
    "GOTOOLCHAIN=local GOPROXY=off GOTELEMETRY=off && "
    "go build -o app . && ./app && go list ./... && go mod tidy && touch dep/dep.go && "
    "go build -o app .",
    made=("app", "cache/README"),
    cache="cache",
)
NPM = Build(
    files=NODE_FILES,
    script="export npm_config_update_notifier=false npm_config_audit=false npm_config_fund=false "
    "npm_config_offline=true && npm install && node_modules/.bin/dep && npm ci",
    made=("node_modules/dep/made", "node_modules/.bin/dep", "node_modules/dep/.travis.yml"),
)
PNPM = Build(
    files=NODE_FILES,
    script="pnpm install --offline --store-dir store --reporter silent && node_modules/.bin/dep",
    made=("node_modules/dep/.travis.yml", "node_modules/.bin/dep", "pnpm-lock.yaml"),
    timed=("/.modules.yaml", "/.pnpm-workspace-state", "store/"),
)
PIP = Build(
    files=WHEELS,
    script="/usr/bin/python3 -m venv --without-pip venv && "
    "pip='/usr/bin/python3 -m pip --isolated --python venv/bin/python' && "
    "get='install -q --disable-pip-version-check --no-index --find-links wheels tiny' && "
    "$pip $get && venv/bin/tiny",
    made=("venv/bin/tiny",),
    timed=(".pyc",),
)
UV = Build(
    files=WHEELS,
    script="export UV_CACHE_DIR=$PWD/cache UV_OFFLINE=1 UV_NO_CONFIG=1 && "
    "uv venv -q -p /usr/bin/python3 venv && "
    "uv pip install -q -p venv --no-index --find-links wheels tiny && venv/bin/tiny && "
    "uv pip uninstall -q -p venv tiny && "
    "uv pip install -q -p venv --no-index --find-links wheels tiny",
    made=("venv/bin/tiny",),
    timed=(".pyc", "/uv_cache.json", "/RECORD"),  # RECORD has the hash of uv_cache.json
    cache="cache",
)
MAVEN = Build(
    files={"pom.xml": POM, "settings.xml": MAVEN_SETTINGS, "src/main/resources/r.txt": "r\n"},
    script="export MAVEN_OPTS='-XX:TieredStopAtLevel=1 -XX:+UseSerialGC' && "
    "mvn -B -q -s settings.xml -Dmaven.repo.local=$PWD/repo process-resources",
    made=("target/classes/r.txt", "repo/org/apache/maven"),
    timed=("repo/",),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRunner:
    """Runs a build in the project directory, outside and in each tier, and compares the trees."""

    sandbox: SandboxRunner
    tools: Path  # copies of tools that the tester can not reach at their own paths

    def compare(self, build: Build, *, tool: Path | None = None) -> None:
        search = SEARCH_PATH if tool is None else f"{tool}:{SEARCH_PATH}"
        words = ["/usr/bin/env", f"PATH={search}", "sh", "-ec", build.script]
        self._lay_out(build)
        outside = self.sandbox.outside(words)
        assert outside.exit_code == 0, str(outside)
        assert not [name for name in build.made if not (self._project / name).exists()]
        expected = self._tree(build)
        if build.cache is not None:
            shutil.move(self._project / build.cache, self._kept)
        for tier in ("landlock", "full"):
            self._lay_out(build)
            inside = replace(self.sandbox, tier=tier).inside(words, "-r", f"{self.tools}/**")
            assert inside.exit_code == 0, f"{tier}: {inside}"
            assert "refused" not in inside.stderr, f"{tier}: {inside}"
            assert different(expected, self._tree(build)) == {}, f"{tier}: {inside}"

    @property
    def _project(self) -> Path:
        return self.sandbox.tree.project

    @property
    def _kept(self) -> Path:
        return self.sandbox.tree.root / "kept"

    def _lay_out(self, build: Build) -> None:
        shutil.rmtree(self._project)
        for name, content in build.files.items():
            path = self._project / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        if build.cache is not None and self._kept.exists():
            subprocess.run(["cp", "-a", self._kept, self._project / build.cache], check=True)
        self.sandbox.tree.make(self._project)

    def _tree(self, build: Build) -> dict[str, Entry]:
        return dict(_entries(self._project, build))


def _entries(root: Path, build: Build) -> Iterator[tuple[str, Entry]]:
    for parent, directories, files in os.walk(root):
        if Path(parent) == root:
            directories[:] = [name for name in directories if name != build.cache]
        for name in (*directories, *files):
            path = Path(parent, name)
            shown, facts = str(path.relative_to(root)), path.lstat()
            content, links = b"", 0
            if stat.S_ISLNK(facts.st_mode):
                content = os.fsencode(path.readlink())
            elif stat.S_ISREG(facts.st_mode):
                links = facts.st_nlink
                if not any(part in f"/{shown}" for part in build.timed):
                    content = path.read_bytes()
            yield shown, (facts.st_mode, links, content)


def different(one: dict[str, Entry], other: dict[str, Entry]) -> dict[str, tuple[Any, Any]]:
    names = sorted({*one, *other})
    return {
        name: (one.get(name), other.get(name)) for name in names if one.get(name) != other.get(name)
    }


@pytest.fixture(scope="module", name="tools")
def _tools() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="paddock-tools-", dir="/var/tmp"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def builds(sandbox: SandboxRunner, host: dict[str, Any], tools: Path) -> BuildRunner:
    need("namespaces", host["namespaces"]["usable"], str(host["namespaces"]))
    return BuildRunner(sandbox=sandbox, tools=tools)


def test_make_builds_inside_what_it_builds_outside(builds: BuildRunner) -> None:
    need_program("make")
    builds.compare(MAKE)


def test_cmake_builds_inside_what_it_builds_outside(builds: BuildRunner) -> None:
    need_program("cmake")
    builds.compare(CMAKE_BUILD)


def test_ninja_builds_inside_what_it_builds_outside(builds: BuildRunner) -> None:
    need_program("cmake")
    need_program("ninja")
    builds.compare(NINJA)


def test_cargo_builds_inside_what_it_builds_outside(builds: BuildRunner) -> None:
    builds.compare(CARGO, tool=_rust(builds.tools))


def test_go_builds_inside_what_it_builds_outside(builds: BuildRunner) -> None:
    go = shutil.which("go", path=f"{SEARCH_PATH}:/usr/local/go/bin")
    need("go", go is not None, "no go on this machine")
    builds.compare(GO, tool=Path(str(go)).parent)


def test_npm_installs_inside_what_it_installs_outside(builds: BuildRunner) -> None:
    need_program("npm")
    builds.compare(NPM)


def test_pnpm_installs_inside_what_it_installs_outside(builds: BuildRunner) -> None:
    need_program("pnpm")
    builds.compare(PNPM)


def test_pip_installs_inside_what_it_installs_outside(builds: BuildRunner) -> None:
    has_pip = subprocess.run(
        ["/usr/bin/python3", "-c", "import pip, venv"], check=False, capture_output=True
    )
    need("pip", has_pip.returncode == 0, "/usr/bin/python3 has no pip")
    builds.compare(PIP)


def test_uv_installs_inside_what_it_installs_outside(builds: BuildRunner) -> None:
    """The uv of the virtual environment of the tests, which the tester can not always reach."""
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{SEARCH_PATH}")
    need("uv", uv is not None, "no uv on this machine")
    place = builds.tools / "uv"
    place.mkdir()
    shutil.copy(str(uv), place)
    builds.compare(UV, tool=place)


def test_maven_builds_inside_what_it_builds_outside(builds: BuildRunner) -> None:
    need_program("mvn")
    plugin = MAVEN_PLUGINS / "maven-resources-plugin"
    need("maven-plugin", plugin.exists(), f"no {plugin}")
    builds.compare(MAVEN)


def _rust(tools: Path) -> Path:
    """The programs of the Rust toolchain. A toolchain in the home of root is linked to a place that
    the tester reaches.
    """
    rustc = shutil.which("rustc")
    need("cargo", rustc is not None and shutil.which("cargo") is not None, "no cargo")
    shown = subprocess.check_output([str(rustc), "--print", "sysroot"], text=True)
    source, target = Path(shown.strip()), tools / "rust"
    host = next(
        line.partition(": ")[2]
        for line in subprocess.check_output([str(rustc), "-vV"], text=True).splitlines()
        if line.startswith("host: ")
    )
    link = _linked_or_copied(source, target)
    for program in ("cargo", "rustc"):
        link(source / "bin" / program)
    for library in (*(source / "lib").glob("*.so*"), source / "lib/rustlib" / host):
        link(library)
    return target / "bin"


def _linked_or_copied(source: Path, target: Path) -> Callable[[Path], None]:
    def link(path: Path) -> None:
        place = target / path.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        linked = subprocess.run(["cp", "-al", path, place], check=False, capture_output=True)
        if linked.returncode != 0:
            shutil.rmtree(place, ignore_errors=True)
            subprocess.run(["cp", "-a", path, place], check=True)

    return link
