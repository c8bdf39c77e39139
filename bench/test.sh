#!/usr/bin/env bash
# Checks each event of short calls through the debug build of this tree, the memory that some thousands take, calls of a host on stdio, and a
# soak. A second soak must fail: its streams are kept for its whole length, which has to be reported as growth. `test.sh [--all]`: the last
# line names what only `--all` checks.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
case $* in
    "" | --all) all=$* ;;
    *) echo "usage: bench/test.sh [--all]" >&2; exit 2 ;;
esac

die() {
    echo "bench/test.sh: $*" >&2
    exit 1
}

. tests/features.sh
cargo build --quiet --workspace --bin mcp-resume --bin mcp-resume-bench --locked --features "$FEATURES"
target=${CARGO_TARGET_DIR:-target}/debug
programs=(--mcp-resume "$target/mcp-resume" --bench "$target/mcp-resume-bench")
cases=event-1,events-64,session-64,credential-64
calls=1280
soak=(bench/soak "${programs[@]}" --shortest)
growth=(--retention-secs 20 --growth-alone)
if [ -n "$all" ]; then
    cases+=,event-64
    calls=6400
    soak=(bench/soak "${programs[@]}" --short)
    growth=(--secs 25 --retention-secs 25)
fi

work=$(mktemp -d)
. tests/beside.sh
trap 'end_checks; rm -rf "$work"' EXIT

check_short_calls() {
    bench/run "${programs[@]}" --rounds 1 --secs 0.2 --calls 640 --paths direct,mcp-resume --cases "$cases" >"$work/said" 2>&1 ||
        { cat "$work/said"; die "short calls fail"; }
    bench/million "${programs[@]}" --calls "$calls" --later-secs 1 >"$work/said" 2>&1 ||
        { cat "$work/said"; die "finished calls take too much memory"; }
}

check_steady() {
    "${soak[@]}" >"$work/said" 2>&1 || { cat "$work/said"; die "a soak with a short retention is not steady"; }
    echo "bench: $(grep '^memory: ' "$work/said"): steady"
}

check_growing() {
    if "${soak[@]}" "${growth[@]}" >"$work/said" 2>&1; then
        cat "$work/said"
        die "a soak whose streams are kept for its whole length is reported as steady"
    fi
    local figure
    for figure in memory streams_kept held_bytes; do
        grep -q "^  $figure grew from " "$work/said" || { cat "$work/said"; die "the growth of $figure is not reported"; }
    done
    echo "bench: growth is reported"
}

check_pipes() {
    bench/pipes "${programs[@]}" --rounds 1 --calls 50 --paths direct,connect-program,connect,connect-serve >"$work/said" 2>&1 ||
        { cat "$work/said"; die "calls through a host's pipe fail"; }
}

beside steady check_steady
beside growing check_growing
beside short_calls check_short_calls
beside pipes check_pipes
all_ended
[ -n "$all" ] || echo "bench: only with --all: a soak of 75 s, more calls for their memory, and calls of one event at concurrency 64"
