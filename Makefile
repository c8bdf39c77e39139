.PHONY: build optimized demo setup test sim crash soak fuzz lint fmt deny bench instructions image

# A job at a time: the steps share the build directory and the machine.
.NOTPARALLEL:

# How long `make fuzz` runs each target, and how long `make test` does.
FUZZ_SECS ?= 600
FUZZ_TEST_SECS := 20

CARGO_DENY := 0.20.2
DENY := target/tools/cargo-deny-$(CARGO_DENY)/bin/cargo-deny

# With both roles; without `--features balancer` it is the sidecar alone, which needs no cmake.
build:
	cargo build --release --locked --features balancer

# The sidecar alone, optimized by a profile of itself under load: target/optimized/mcp-resume. Takes three builds.
optimized:
	deploy/build-optimized.sh

# A call lost without the proxy and kept with it.
demo:
	cargo run --release --locked -- demo

# What the tests need besides cargo, npm and pip packages; names what it cannot get.
setup:
	tests/setup.sh

# Every test there is. The end-to-end suite gets its own SDKs.
test: setup
	cargo test --workspace --locked --features mcp-resume/balancer
	bench/test.sh
	deploy/test.sh
	FUZZ_SEED=1 fuzz/run.sh $(FUZZ_TEST_SECS)
	tests/e2e/run.sh

# mcp-resume:latest, for whom this machine's buildah keeps images; with FEATURES=balancer mcp-resume-balancer:latest. Both are tried, and the
# sidecar's has its size.
image: FEATURES ?=
image: NAME = mcp-resume$(if $(FEATURES),-$(FEATURES))
image:
	deploy/test/setup.sh
	deploy/build-static.sh target/$(NAME)-image "$(FEATURES)"
	target/tools/deploy/venv/bin/python deploy/test/image.py target/$(NAME)-image $(if $(FEATURES),,15000000)
	deploy/image.sh target/$(NAME)-image $(NAME)

# More seeds than the tests run: make sim SEEDS=100000 FROM=2000. A failure says how to see its seed alone.
sim: SEEDS ?= 20000
sim: FROM ?= 0
sim:
	SIM_SEEDS=$(SEEDS) SIM_FROM=$(FROM) cargo test --locked --test sim no_seed -- --nocapture

# Stores against processes that are killed, frozen and drained, as the tests run it. A failure says how to repeat its decisions.
crash:
	cargo test --locked --test crash -- --nocapture

# The same for long: so many rounds of each test, each ended after so many seconds at the latest. As many tests run at once as there are
# cores; each says once a minute how far it is. (What a proxy does in an hour of ordinary load is bench/soak's.)
soak: CRASH_ROUNDS ?= 500
soak: CRASH_SECS ?= 3600
soak:
	CRASH_ROUNDS=$(CRASH_ROUNDS) CRASH_SECS=$(CRASH_SECS) cargo test --locked --test crash -- --nocapture

# Arbitrary bytes for every parser of bytes from outside.
fuzz:
	fuzz/run.sh $(FUZZ_SECS)

# The balancer is built with cmake, which the set-up brings.
lint: setup
	cargo clippy --workspace --all-targets --locked --features mcp-resume/balancer,mcp-resume-bench/pingora -- -D warnings
	cargo clippy --locked -- -D warnings

fmt:
	cargo fmt --all

# Licences, bans and sources need no network; for known holes: cargo deny check advisories.
deny: $(DENY)
	$(DENY) --locked --log-level error check bans licenses sources

# Once, without optimisation: half the time to build, and it runs for a second or two either way.
$(DENY):
	cargo install --locked --debug --version $(CARGO_DENY) --root target/tools/cargo-deny-$(CARGO_DENY) \
		--target-dir target/tools/build cargo-deny
	rm -rf target/tools/build

# Beside nginx, which must be installed, and the direct path; about twelve minutes.
bench:
	cargo build --release --workspace --locked
	bench/run

# What an event costs between the sockets, against the committed figures; needs no quiet machine.
instructions: setup
	cargo build --release --locked -p mcp-resume-operations
	bench/instructions
