# One command each. A fresh machine needs Python ≥ 3.11, Rust and a C compiler; each command sets up
# the rest.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
CORE   := $(shell find core/src core/bin core/build.rs core/Cargo.toml core/Cargo.lock \
  src/paddock/policy/syscalls.tsv src/paddock/policy/git.tsv src/paddock/policy/landlock.tsv \
  2>/dev/null)

# A static musl starts in half the time of a static glibc. Without its target the host's own serves.
# The target of the other architecture is for lint: it has to compile, and its filters are tested on
# this one. So is the target of another system, where the programs only print that they refuse.
MUSL      := $(shell uname -m)-unknown-linux-musl
OTHER     := $(if $(filter x86_64,$(shell uname -m)),aarch64,x86_64)-unknown-linux-musl
FOREIGN   := x86_64-apple-darwin
HAVE       = $(shell test -d "$$(rustc --print sysroot)/lib/rustlib/$(1)" && echo yes)
ifneq ($(call HAVE,$(MUSL))$(call HAVE,$(OTHER))$(call HAVE,$(FOREIGN)),yesyesyes)
$(shell rustup target add $(MUSL) $(OTHER) $(FOREIGN) >/dev/null 2>&1)
endif
ifeq ($(call HAVE,$(MUSL)),yes)
export CARGO_BUILD_TARGET := $(MUSL)
# Statically linked, so it fits either C library.
WHEEL_TAGS := --compatibility manylinux2014 musllinux_1_2
endif

.PHONY: setup test test-rust stress lint lint-python lint-rust deny bench demo wheel clean

setup: $(VENV)/.installed

$(VENV)/.tools: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check "maturin>=1.7,<2" "uv>=0.5"
	touch $@

# Editable: Python is read from src/, the core is built in release mode and put beside the scripts.
# uv installs the packages of the tests with 2 s of processor time, pip with 20 s. uv copies, because
# a hard link would leave the installed programs writable through uv's cache.
$(VENV)/.installed: $(VENV)/.tools $(CORE)
	PATH="$(CURDIR)/$(BIN):$$PATH" UV_LINK_MODE=copy \
	  $(BIN)/maturin develop --release --quiet --uv --extras dev
	touch $@

# Each worker has a tester of its own, which only root can make. A worker takes whole files, the
# longest first (tests/support/longest_first.py), so that all workers end together. Tests also wait
# for timers and disks, so there is one worker more than processors.
WORKERS ?= $(shell expr $$(nproc) + 1)
PARALLEL := $(if $(filter 0,$(shell id -u)),-n $(WORKERS) --dist loadfile --no-loadscope-reorder)

# Side by side: the end of a release build keeps one processor busy.
test:
	$(MAKE) --no-print-directory -j2 setup test-rust
	$(BIN)/python -m pytest $(PARALLEL)

CARGO_TEST := cargo test --quiet --locked --manifest-path core/Cargo.toml

# The tests of the library run one after the other. Some of them fork. A child that is forked while
# another test runs keeps that test's sockets open.
test-rust:
	$(CARGO_TEST) --features force-unsupported --test unsupported_system
	$(CARGO_TEST) --lib -- --test-threads=1
	$(CARGO_TEST) --bin paddock --test '*'

# The random tests, for hours: whole fault tables, new seeds of the aftermath machine, new rounds of
# HTTP, new texts for shells, long races, new calls on files, hours at terminals. STRESS=1 is a
# short run of each (CI).
STRESS ?= 20
PLAYED := tests/system/files/aftermath/test_random_programs.py
STRESSED := tests/system/files/faults $(PLAYED)::test_nothing_planted_runs_and_no_secret_leaves \
  tests/system/network/test_protocol.py tests/unit/shell/test_random_texts.py \
  tests/system/approvals/test_random_terminals.py \
  tests/system/exec/test_exec_races.py::test_no_unjudged_program_runs \
  tests/system/files/test_write_races.py::test_no_unjudged_name_is_made \
  tests/system/files/test_write_races.py::test_no_unjudged_name_is_made_by_two_runs \
  tests/system/files/test_judged_calls.py::test_file_calls_answer_as_without_paddock

stress: setup
	PADDOCK_STRESS=$(STRESS) $(BIN)/python -m pytest -s $(STRESSED)

# Side by side with -j2: the end of a release build keeps one processor busy.
lint: lint-python lint-rust

lint-python: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

lint-rust:
	cargo fmt --check --manifest-path core/Cargo.toml
	cargo clippy --quiet --locked --all-targets --manifest-path core/Cargo.toml -- -D warnings
	$(if $(call HAVE,$(OTHER)),\
	  cargo check --quiet --locked --manifest-path core/Cargo.toml --target $(OTHER))
	$(if $(call HAVE,$(FOREIGN)),\
	  cargo check --quiet --locked --all-targets --manifest-path core/Cargo.toml \
	    --target $(FOREIGN))

# Not part of lint: cargo-deny takes minutes to build, and the crates change rarely.
deny:
	cd core && cargo deny check licenses bans sources

bench: setup
	$(BIN)/python bench/run.py

demo: setup
	$(BIN)/python demo/run.py

wheel: $(VENV)/.tools
	$(BIN)/maturin build --release $(WHEEL_TAGS) --out dist

clean:
	rm -rf $(VENV) core/target dist
