#!/bin/sh
# Builds the sidecar, optimized by a profile of itself under the benchmark's loads, as target/optimized/mcp-resume. It is built twice, which
# takes three times as long as a build. Needs what bench/run does, but for nginx, and llvm-profdata: rustup's component llvm-tools, or
# Debian's llvm-19 or later (LLVM_PROFDATA names another one). Without the balancer, which no load goes through: what never ran is
# compiled as what is rare.
set -eu

cd "$(dirname "$0")/.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
made=$target/optimized

die() {
    echo "deploy/build-optimized.sh: $*" >&2
    exit 1
}

# With flags of its own, so that what these builds compile stays apart from what others did.
build() {
    RUSTFLAGS="${RUSTFLAGS:-} $2" CARGO_TARGET_DIR="$made/$1" \
        cargo build --release --locked --bin mcp-resume
}

load() {
    bench/run --paths "$1" --cases "$2" --secs "$3" --rounds 1 --clients 500 \
        --mcp-resume "$made/counting/release/mcp-resume" --bench "$target/release/mcp-resume-bench" >"$made/load.log" 2>&1 ||
        { cat "$made/load.log" >&2; die "the load $2 went wrong"; }
}

# The first that reads what this compiler's programs write.
merge() {
    host=$(rustc -vV | sed -n 's/^host: //p')
    ours=$(rustc --print sysroot)/lib/rustlib/$host/bin/llvm-profdata
    for tool in ${LLVM_PROFDATA:-} "$ours" llvm-profdata llvm-profdata-22 llvm-profdata-21 llvm-profdata-20 llvm-profdata-19; do
        if command -v "$tool" >/dev/null && "$tool" merge -o "$1.new" "$made"/counts/*.profraw 2>>"$made/merge.log"; then
            mv "$1.new" "$1"
            return
        fi
    done
    cat "$made/merge.log" >&2
    die "no llvm-profdata reads the profile (rustup component add llvm-tools, or Debian's llvm-19)"
}

mkdir -p "$made"
: >"$made/merge.log"
cargo build --release --locked --package mcp-resume-bench
build counting "-Cprofile-generate=$made/counts"
# Macros and build scripts have counted as well.
rm -rf "$made/counts"
stores=mcp-resume,disk
if command -v redis-server >/dev/null; then stores=$stores,redis; else echo "no redis-server: its store counts as rare" >&2; fi
load mcp-resume json-64,json-1,paced,resume 3
load "$stores" json-64,paced 1
# A tenth as long, because its events are ten times as many.
load mcp-resume burst 0.3
merge "$made/mcp-resume.profdata"
build built "-Cprofile-use=$made/mcp-resume.profdata"
cp "$made/built/release/mcp-resume" "$made/mcp-resume"
echo "$made/mcp-resume"
