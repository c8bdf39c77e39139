#!/usr/bin/env bash
# Soaks the debug build of this tree for a minute and a quarter, and sees to it that a soak can fail: beside it, one whose streams are
# kept for as long as it takes must be told as growth.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

die() {
    echo "bench/test.sh: $*" >&2
    exit 1
}

cargo build --quiet --workspace --bins --locked --features mcp-resume/balancer
target=${CARGO_TARGET_DIR:-target}/debug
soak=(bench/soak --mcp-resume "$target/mcp-resume" --bench "$target/mcp-resume-bench" --short)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${soak[@]}" >"$work/steady" 2>&1 &
steady=$!
if "${soak[@]}" --secs 25 --retention-secs 25 >"$work/growing" 2>&1; then
    growing=steady
else
    growing=told
fi
wait "$steady" || { cat "$work/steady" >&2; die "a soak of what is kept for three seconds is not steady"; }
[ "$growing" = told ] || { cat "$work/growing" >&2; die "a soak of what is kept for its whole length is said to be steady"; }
for what in memory streams_kept held_bytes; do
    grep -q "^  $what grew from " "$work/growing" || { cat "$work/growing" >&2; die "$what is not said to have grown"; }
done
echo "bench: $(grep '^memory: ' "$work/steady"): steady; and what grows is told"
