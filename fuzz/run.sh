#!/usr/bin/env bash
# Runs every fuzz target from the committed corpus: `run.sh SECONDS [TARGET...]`, two at a time. A failing input is printed and kept in
# target/fuzz/artifacts. New inputs stay in target/fuzz/corpus, for later runs. FUZZ_SEED makes runs repeatable; 0, the default, draws a
# seed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

CARGO_FUZZ=0.13.2
AT_A_TIME=2
MAX_INPUT_BYTES=4096

die() {
    echo "fuzz/run.sh: $*" >&2
    exit 1
}

seconds=${1:?usage: fuzz/run.sh SECONDS [TARGET...]}
shift
targets=("$@")
[ ${#targets[@]} -gt 0 ] || for corpus in fuzz/corpus/*/; do targets+=("$(basename "$corpus")"); done
[ ${#targets[@]} -gt 0 ] || die "there is no corpus"

# With Cargo's own variable the instrumented and the usual build would overwrite each other.
unset CARGO_TARGET_DIR
out=target/fuzz
tool=target/tools/cargo-fuzz-$CARGO_FUZZ

tests/cargo-tool.sh cargo-fuzz $CARGO_FUZZ
# cargo-fuzz has no --locked, and would silently update the lock file.
cargo metadata --quiet --locked --format-version 1 --manifest-path fuzz/Cargo.toml >/dev/null ||
    die "fuzz/Cargo.lock does not match the dependencies: cargo update --workspace --manifest-path fuzz/Cargo.toml"
# One build for all targets. Sanitizers need a nightly compiler, and there is no unsafe code here.
"$tool/bin/cargo-fuzz" build --sanitizer none --target-dir "$out" >&2
host=$(rustc -vV | sed -n 's/^host: //p')

fuzz() {
    local target=$1
    mkdir -p "$out/corpus/$target" "$out/artifacts/$target" "$out/logs"
    # New inputs go to the first folder; the committed one is only read.
    "$out/$host/release/$target" -max_total_time="$seconds" -seed="${FUZZ_SEED:-0}" -max_len=$MAX_INPUT_BYTES -timeout=10 \
        -artifact_prefix="$out/artifacts/$target/" "$out/corpus/$target" "fuzz/corpus/$target" \
        >"$out/logs/$target" 2>&1 && return
    echo "fuzz/run.sh: $target failed" >&2
    tail -n 40 "$out/logs/$target" >&2
    local input
    input=$(sed -n 's/.*Test unit written to //p' "$out/logs/$target" | tail -n 1)
    if [ -n "$input" ]; then
        echo "The input, $input:" >&2
        od -A d -c "$input" >&2
        echo "Again: $out/$host/release/$target $input" >&2
    fi
    return 1
}

failed=0
running=0
for target in "${targets[@]}"; do
    if [ $running = $AT_A_TIME ]; then
        wait -n || failed=1
        running=$((running - 1))
    fi
    fuzz "$target" &
    running=$((running + 1))
done
while [ $running -gt 0 ]; do
    wait -n || failed=1
    running=$((running - 1))
done
[ $failed = 0 ] || die "at least one target failed"
for target in "${targets[@]}"; do
    echo "fuzz: $target: $(grep -o 'Done .*' "$out/logs/$target" | tail -n 1)"
done
