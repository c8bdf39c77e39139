#!/usr/bin/env bash
# Checks each event of short calls through the debug build of this tree, and the memory that some thousands take. Then runs a soak of 75 s.
# Beside it runs a soak that must fail: its streams are kept for its whole length, which has to be reported as growth.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

die() {
    echo "bench/test.sh: $*" >&2
    exit 1
}

. tests/features.sh
cargo build --quiet --workspace --bin mcp-resume --bin mcp-resume-bench --locked --features "$FEATURES"
target=${CARGO_TARGET_DIR:-target}/debug
soak=(bench/soak --mcp-resume "$target/mcp-resume" --bench "$target/mcp-resume-bench" --short)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bench/run --mcp-resume "$target/mcp-resume" --bench "$target/mcp-resume-bench" --rounds 1 --secs 0.2 --calls 640 --paths direct,mcp-resume \
    --cases event-1,event-64,events-64,session-64,credential-64 >"$work/short" 2>&1 || { cat "$work/short" >&2; die "short calls fail"; }
bench/million --mcp-resume "$target/mcp-resume" --bench "$target/mcp-resume-bench" --calls 6400 --later-secs 1 >"$work/million" 2>&1 ||
    { cat "$work/million" >&2; die "finished calls take too much memory"; }
"${soak[@]}" >"$work/steady" 2>&1 &
steady=$!
if "${soak[@]}" --secs 25 --retention-secs 25 >"$work/growing" 2>&1; then
    growing=steady
else
    growing=reported
fi
wait "$steady" || { cat "$work/steady" >&2; die "a soak with a retention of three seconds is not steady"; }
[ "$growing" = reported ] || { cat "$work/growing" >&2; die "a soak whose streams are kept for its whole length is reported as steady"; }
for what in memory streams_kept held_bytes; do
    grep -q "^  $what grew from " "$work/growing" || { cat "$work/growing" >&2; die "the growth of $what is not reported"; }
done
echo "bench: $(grep '^memory: ' "$work/steady"): steady; growth is reported"
