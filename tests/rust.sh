#!/usr/bin/env bash
# Runs the tests in Rust: `rust.sh [--build | --all] [CARGO ARGUMENT...]`. `--build` compiles them alone. `--all` has all seeds of the
# simulations; without it there are 300. Each test program runs under limit.py.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mode=${1:-}
case $mode in --build | --all) shift ;; esac
test=(cargo test --workspace --locked --features mcp-resume/balancer)

host=$(rustc -vV | sed -n 's/^host: //p')
variable=${host//-/_}
export "CARGO_TARGET_${variable^^}_RUNNER=$PWD/tests/limit.py"
# The short run. Crash tests have all of their rounds: with fewer, some kinds of crash do not happen.
[ "$mode" = --all ] || export SIM_SEEDS=${SIM_SEEDS:-300}

if [ "$mode" = --build ]; then
    exec "${test[@]}" --no-run "$@"
fi
tests/limit_test.py 2>&1 | tail -n 1
exec "${test[@]}" "$@"
