#!/bin/sh
# Runs the sidecar under the benchmark's loads and writes what the compiler learns from it: profile.sh FILE [FEATURES...]. Each FEATURES is
# one build of the program that counts, by default one without features. PROFILE is the cargo profile (default: dist), and TARGET the target
# if cargo is to be given one. What is written fits only builds with the same three, because Cargo puts them into the names of functions.
#
# Needs the tools of bench/run without nginx, and llvm-profdata: rustup's component llvm-tools, or Debian's llvm-19 or later (LLVM_PROFDATA
# names another one). No load passes through the balancer, and code that never ran is compiled as rare.
set -eu

[ $# -ge 1 ] || { echo "usage: profile.sh FILE [FEATURES...]" >&2; exit 2; }
file=$(realpath -m "$1")
shift
[ $# -gt 0 ] || set -- ""
profile=${PROFILE:-dist}
cd "$(dirname "$0")/.."
made=$(realpath -m "${CARGO_TARGET_DIR:-target}")/profile

die() {
    echo "deploy/profile.sh: $*" >&2
    exit 1
}

load() {
    bench/run --paths "$1" --cases "$2" --secs "$3" --rounds 1 --clients 500 \
        --mcp-resume "$program" --bench "$made/load/release/mcp-resume-bench" >"$made/load.log" 2>&1 ||
        { cat "$made/load.log" >&2; die "the load $2 went wrong"; }
}

# Merges the counts with the first llvm-profdata that reads the format of this compiler.
merge() {
    host=$(rustc -vV | sed -n 's/^host: //p')
    ours=$(rustc --print sysroot)/lib/rustlib/$host/bin/llvm-profdata
    for tool in ${LLVM_PROFDATA:-} "$ours" llvm-profdata llvm-profdata-22 llvm-profdata-21 llvm-profdata-20 llvm-profdata-19; do
        if command -v "$tool" >/dev/null && "$tool" merge -o "$file.new" "$made"/counts/*.profraw 2>>"$made/merge.log"; then
            mv "$file.new" "$file"
            return
        fi
    done
    cat "$made/merge.log" >&2
    die "no llvm-profdata reads the profile (rustup component add llvm-tools, or Debian's llvm-19)"
}

mkdir -p "$made" "$(dirname "$file")"
: >"$made/merge.log"
stores=mcp-resume,disk
if command -v redis-server >/dev/null; then stores=$stores,redis; else echo "no redis-server: its store counts as rare" >&2; fi
# The load tool has its own folder, so that neither set of flags builds the other's crates again.
CARGO_TARGET_DIR=$made/load cargo build --release --locked --package mcp-resume-bench --bin mcp-resume-bench
rm -rf "$made/counts"
number=0
for features; do
    number=$((number + 1))
    # Counts of macros and build scripts are dropped.
    RUSTFLAGS="${RUSTFLAGS:-} -Cprofile-generate=$made/uncounted" CARGO_TARGET_DIR=$made \
        cargo build --profile "$profile" ${TARGET:+--target "$TARGET"} --locked --features "$features" --bin mcp-resume
    program=$made/${TARGET:+$TARGET/}$profile/mcp-resume
    export LLVM_PROFILE_FILE="$made/counts/$number-%p-%m.profraw"
    load mcp-resume json-64,json-1,paced,resume 3
    load "$stores" json-64,paced 1
    # A tenth of the time, because a burst has ten times as many events.
    load mcp-resume burst 0.3
    unset LLVM_PROFILE_FILE
done
merge
