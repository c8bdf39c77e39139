.PHONY: build optimized demo release release-check setup test test-all build-tests test-rust test-units test-fuzz test-e2e sim crash soak fuzz lint fmt \
	fmt-check deny bench instructions image site

# One job at a time: the steps share the build directory and the machine.
.NOTPARALLEL:

# Seconds for each target in `make fuzz`.
FUZZ_SECS ?= 600
# Seconds for each target in `make test-fuzz`.
FUZZ_TEST_SECS ?= 20

CARGO_DENY := 0.20.2
DENY := target/tools/cargo-deny-$(CARGO_DENY)/bin/cargo-deny

# Both roles. Without `--features balancer` the binary is the sidecar alone, and needs no cmake.
build:
	cargo build --release --locked --features balancer

# The sidecar alone, as a release has it, with a profile of itself under load: target/optimized/mcp-resume. Takes three builds.
optimized:
	deploy/build-optimized.sh

# A call lost without the proxy and kept with it.
demo:
	cargo run --release --locked -- demo

# Installs the system packages and tools of the tests; names those that it cannot install.
setup:
	tests/setup.sh

# Tests of every kind, in their short form. Installs their SDKs.
test: setup
	tests/run.sh

# All of them: the whole matrix of the end-to-end suite, all seeds, long soaks, packages and images, and fuzzing.
test-all: setup
	tests/run.sh --all

# Parts of `make test`.
build-tests: setup
	tests/rust.sh --build

test-rust: setup
	tests/rust.sh

# Modules alone, without what `setup` brings.
test-units:
	cargo test --locked --lib -p mcp-resume -p mcp-resume-base -p mcp-resume-child -p mcp-resume-config -p mcp-resume-identity -p mcp-resume-metrics \
		-p mcp-resume-protocol -p mcp-resume-server -p mcp-resume-store -p mcp-resume-tls

test-e2e: setup
	tests/e2e/run.sh

# Each fuzz target for some seconds, the same inputs in each run.
test-fuzz: setup
	FUZZ_SEED=1 fuzz/run.sh $(FUZZ_TEST_SECS)

# The documents as a site with a search: target/site/index.html. Fails for a broken link.
site:
	docs/site/build.py

# mcp-resume:latest in buildah's store on this machine; with FEATURES=balancer mcp-resume-balancer:latest. Both images are run, and the
# sidecar's size is limited.
image: FEATURES ?=
image: NAME = mcp-resume$(if $(FEATURES),-$(FEATURES))
image:
	deploy/test/setup.sh
	deploy/build-static.sh target/$(NAME)-image "$(FEATURES)"
	target/tools/deploy/venv/bin/python deploy/test/image.py target/$(NAME)-image $(if $(FEATURES),,22000000)
	deploy/image.sh target/$(NAME)-image $(NAME)

# All files of a release, for x86-64 and arm64 Linux, in target/release-files: deploy/release/README.md. A profile of the program under load guides
# the compiler.
release:
	deploy/release/build.sh target/release-files

# Builds the release a second time with the same profile, in a directory of its own, and compares.
release-check:
	CARGO_TARGET_DIR=target/again PROFDATA="$$(ls target/release-files/*.profdata)" deploy/release/build.sh target/release-again
	diff -r target/release-files target/release-again

# More seeds than the tests run: make sim SEEDS=100000 FROM=2000. A failure prints the command for its seed alone.
sim: SEEDS ?= 20000
sim: FROM ?= 0
sim:
	SIM_SEEDS=$(SEEDS) SIM_FROM=$(FROM) cargo test --locked --test sim no_seed -- --nocapture

# Stores against processes that are killed, frozen and drained, as the tests run it. A failure prints the command that repeats its
# decisions.
crash:
	cargo test --locked --test crash -- --nocapture

# The long form: CRASH_ROUNDS rounds of each test, each ended after CRASH_SECS seconds at the latest. A test runs on each core, and reports
# its progress once a minute. (bench/soak is an hour of ordinary load.)
soak: CRASH_ROUNDS ?= 500
soak: CRASH_SECS ?= 3600
soak:
	CRASH_ROUNDS=$(CRASH_ROUNDS) CRASH_SECS=$(CRASH_SECS) cargo test --locked --test crash -- --nocapture

# Arbitrary bytes for every parser of external bytes.
fuzz:
	fuzz/run.sh $(FUZZ_SECS)

# The balancer is built with cmake, which `setup` installs. The last two lines check each role with the dependency features that its package
# asks for: those of the benchmarks are not among them.
lint: setup
	cargo clippy --workspace --all-targets --locked --features mcp-resume/balancer,mcp-resume-bench/pingora -- -D warnings
	cargo clippy --locked -- -D warnings
	cargo clippy --locked --features balancer -- -D warnings

fmt:
	cargo fmt --all

fmt-check:
	cargo fmt --all --check

# Licences, bans and sources need no network; for known vulnerabilities: cargo deny check advisories.
deny: $(DENY)
	$(DENY) --locked --log-level error check bans licenses sources

$(DENY):
	tests/cargo-tool.sh cargo-deny $(CARGO_DENY)

# Benchmarks beside nginx, which must be installed, and the direct path; about twenty minutes.
bench:
	cargo build --profile dist --workspace --locked
	bench/run

# Instructions of an event between the sockets, against the committed figures; needs no quiet machine.
instructions: setup
	cargo build --profile dist --locked -p mcp-resume-operations --bin mcp-resume-operations
	bench/instructions
