#!/bin/sh
# Builds the sidecar with a profile of itself under the benchmark's loads, as target/optimized/mcp-resume. Takes the time of three builds.
# Needs the tools of bench/run without nginx, and llvm-profdata: rustup's component llvm-tools, or Debian's llvm-19 or later (LLVM_PROFDATA
# names another one). The balancer is left out, since no load passes through it, and code that never ran is compiled as rare.
set -eu

cd "$(dirname "$0")/.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
made=$target/optimized

die() {
    echo "deploy/build-optimized.sh: $*" >&2
    exit 1
}

# Builds with the given flags in a target directory of its own, apart from other builds.
build() {
    RUSTFLAGS="${RUSTFLAGS:-} $2" CARGO_TARGET_DIR="$made/$1" \
        cargo build --release --locked --bin mcp-resume
}

load() {
    bench/run --paths "$1" --cases "$2" --secs "$3" --rounds 1 --clients 500 \
        --mcp-resume "$made/counting/release/mcp-resume" --bench "$target/release/mcp-resume-bench" >"$made/load.log" 2>&1 ||
        { cat "$made/load.log" >&2; die "the load $2 went wrong"; }
}

# Merges the counts with the first llvm-profdata that reads the format of this compiler.
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
# Drops the counts of macros and build scripts.
rm -rf "$made/counts"
stores=mcp-resume,disk
if command -v redis-server >/dev/null; then stores=$stores,redis; else echo "no redis-server: its store counts as rare" >&2; fi
load mcp-resume json-64,json-1,paced,resume 3
load "$stores" json-64,paced 1
# A tenth of the time, because a burst has ten times as many events.
load mcp-resume burst 0.3
merge "$made/mcp-resume.profdata"
build built "-Cprofile-use=$made/mcp-resume.profdata"
cp "$made/built/release/mcp-resume" "$made/mcp-resume"
echo "$made/mcp-resume"
