#!/usr/bin/env bash
# Runs all tests: `run.sh [--all]`. Without `--all` the end-to-end suite runs pairs of its values, and simulations, crash tests, soaks and packages have
# their short forms.
#
# Tests wait for timers and processes for much of their time, so two lanes run side by side: the tests in Rust with the documents, and the end-to-end
# suite with benchmarks and deployment. The first failure ends both. The output of a part is printed when it has ended, and is in target/tests/ while
# it runs. The last lines say how long each part took, and how much processor time it used.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

all=()
case ${1:-} in
    "") ;;
    --all) all=(--all) ;;
    *) echo "usage: tests/run.sh [--all]" >&2; exit 2 ;;
esac
logs=target/tests
rm -rf "$logs"
mkdir -p "$logs"
: >"$logs/times"

# `part NAME COMMAND...`: runs a part of the tests, and notes its time.
part() {
    local name=$1 status=0 begun=$SECONDS used
    shift
    TIMEFORMAT='%U %S'
    used=$({ time "$@" >"$logs/$name" 2>&1 </dev/null; } 2>&1) || status=$?
    echo "── $name: $* ($(date -u +%T))"
    # The end of the output is enough if the part passes.
    if [ $status = 0 ]; then tail -n 40 "$logs/$name"; else cat "$logs/$name"; fi
    printf '%-22s %6d s %8.0f s\n' "$name" $((SECONDS - begun)) "$(awk '{print $1 + $2}' <<<"${used##*$'\n'}")" >>"$logs/times"
    return $status
}

# `beside NAME COMMAND...`: starts the command in a group of its own, and sets NAME to its process. `set -m` makes the group.
beside() {
    set -m
    "${@:2}" </dev/null &
    set +m
    started+=($!)
    printf -v "$1" %s $!
}

# Every group ends with the script, by success or failure.
started=()
finish() {
    for group in "${started[@]}"; do
        kill -- "-$group" 2>/dev/null || true
    done
}
trap finish EXIT
trap 'exit 1' INT TERM HUP

# Waits for both of two processes; fails as soon as one has failed.
both() {
    local first other=$1
    wait -n -p first "$1" "$2"
    [ "$first" = "$other" ] && other=$2
    wait "$other"
}

install() {
    part install-sdks tests/e2e/setup.sh
    part install-deploy deploy/test/setup.sh
}

# The programs of the end-to-end suite have the features of the tests, but none of the simulation.
compile() {
    part compile-tests tests/rust.sh --build
    . tests/features.sh
    part compile-programs cargo build --workspace --bin mcp-resume --bin mcp-resume-bench --locked --features "$FEATURES"
    cp target/debug/mcp-resume target/debug/mcp-resume-bench "$logs/"
}

in_rust() {
    part rust tests/rust.sh "${all[@]}"
    part docs env MCP_RESUME_BIN="$PWD/$logs/mcp-resume" docs/test.sh
}

with_programs() {
    part end-to-end env MCP_RESUME_BIN="$PWD/$logs/mcp-resume" tests/e2e/run.sh "${all[@]}"
    part deploy deploy/test.sh "${all[@]}"
    part bench bench/test.sh "${all[@]}"
}

beside first install
beside second compile
both "$first" "$second"
beside first in_rust
beside second with_programs
both "$first" "$second"
if [ ${#all[@]} -gt 0 ]; then
    part fuzz env FUZZ_SEED=1 fuzz/run.sh "${FUZZ_TEST_SECS:-60}"
fi

echo
printf '%-22s %8s %10s\n' part wall processor
cat "$logs/times"
echo "all tests pass: $SECONDS s"
