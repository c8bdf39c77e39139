#!/usr/bin/env bash
# Runs the tests in Rust: `rust.sh [--build | --all] [CARGO ARGUMENT...]`. `--build` compiles them alone. `--all` has more seeds and rounds, by the
# defaults of the tests; without it a run is short. Each test program runs under limit.py.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mode=${1:-}
case $mode in --build | --all) shift ;; esac
test=(cargo test --workspace --locked --features mcp-resume/balancer)

host=$(rustc -vV | sed -n 's/^host: //p')
variable=${host//-/_}
export "CARGO_TARGET_${variable^^}_RUNNER=$PWD/tests/limit.py"
# The short run: enough seeds to find each planted bug, and each kind of crash.
[ "$mode" = --all ] || export SIM_SEEDS=${SIM_SEEDS:-500} CRASH_ROUNDS=${CRASH_ROUNDS:-}
[ -n "${CRASH_ROUNDS:-}" ] || unset CRASH_ROUNDS

if [ "$mode" = --build ]; then
    exec "${test[@]}" --no-run "$@"
fi
tests/limit_test.py 2>&1 | tail -n 1
exec "${test[@]}" "$@"
