# One command each. Everything a fresh machine with Python ≥ 3.11, Rust and a C compiler needs is set up on the way.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
CORE   := $(shell find core/src core/build.rs core/launch.ld core/profiles core/Cargo.toml core/Cargo.lock src/paddock/policy/syscalls.tsv src/paddock/journal/secrets.tsv 2>/dev/null)

# A static musl starts in half the time of a static glibc. Where its target can not be had, the host's own serves.
# The other architecture's is for lint: it has to compile, and its filters are tested on this one. So is another system's,
# for which the programs compile to a refusal.
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

# What a start and an exec run through, as bench/train.py saw it: a thirtieth of a launch. A profile is one compiler's, and changes nothing
# but the time; cargo's own files can not name it, because crates are compiled in many directories. The seldom halves of functions go
# where nobody looks.
PROFILE := $(wildcard $(CURDIR)/core/profiles/$(word 2,$(shell rustc --version)).profdata)
ifneq ($(PROFILE),)
$(VENV)/.installed wheel symbols: export CARGO_TARGET_X86_64_UNKNOWN_LINUX_MUSL_RUSTFLAGS := -Cprofile-use=$(PROFILE) \
	-Cllvm-args=-disable-vp -Cllvm-args=-no-pgo-warn-mismatch -Cllvm-args=-enable-split-machine-functions
endif

.PHONY: setup test stress lint lint-python lint-rust deny bench symbols demo wheel clean

setup: $(VENV)/.installed

$(VENV)/.tools: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check "maturin>=1.7,<2"
	touch $@

# Editable: Python is read from src/, the core is built in release mode and put beside the scripts.
$(VENV)/.installed: $(VENV)/.tools $(CORE)
	$(BIN)/maturin develop --release --quiet --extras dev
	touch $@

# Each with a tester of its own, whom only root can make.
WORKERS := $(if $(filter 0,$(shell id -u)),-n 2 --dist loadfile)

test: setup
	cargo test --quiet --locked --manifest-path core/Cargo.toml --features force-unsupported --test unsupported
	cargo test --quiet --locked --manifest-path core/Cargo.toml
	$(BIN)/python -m pytest $(WORKERS)

# The long versions: all calls of the fault table, so many hundreds of programs of the aftermath machine, so many rounds of HTTP.
STRESS ?= 20
stress: setup
	PADDOCK_STRESS=$(STRESS) $(BIN)/python -m pytest -s tests/faults tests/aftermath tests/network/test_protocol.py tests/unit/decide

# Side by side with -j2: the end of a release build keeps one processor busy.
lint: lint-python lint-rust

lint-python: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

lint-rust:
	cargo fmt --check --manifest-path core/Cargo.toml
	cargo clippy --quiet --locked --all-targets --manifest-path core/Cargo.toml -- -D warnings
	$(if $(call HAVE,$(OTHER)),cargo check --quiet --locked --manifest-path core/Cargo.toml --target $(OTHER))
	$(if $(call HAVE,$(FOREIGN)),cargo check --quiet --locked --all-targets --manifest-path core/Cargo.toml --target $(FOREIGN))

# Not part of lint: cargo-deny takes minutes to build, and the crates change rarely.
deny:
	cd core && cargo deny check licenses bans sources

bench: setup
	$(BIN)/python bench/run.py

# The core as it is installed but not stripped, for bench/layout.py.
symbols:
	CARGO_PROFILE_RELEASE_STRIP=false cargo build --release --quiet --locked --manifest-path core/Cargo.toml --bin paddock-core \
		--target-dir core/target/symbols

demo: setup
	$(BIN)/python demo/run.py

wheel: $(VENV)/.tools
	$(BIN)/maturin build --release $(WHEEL_TAGS) --out dist

clean:
	rm -rf $(VENV) core/target dist
