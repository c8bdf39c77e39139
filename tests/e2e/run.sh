#!/usr/bin/env bash
# Runs the end-to-end suite: `run.sh [--all] [PYTEST ARGUMENTS]`. MCP_RESUME_BIN names the proxy's binary (default: the debug
# build of this tree, which is built first).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

"$here/setup.sh"
if [ -z "${MCP_RESUME_BIN:-}" ]; then
    # As in bench/test.sh for the whole workspace: with fewer packages the dependencies would have other features, and be built again.
    . "$here/../features.sh"
    cargo build --quiet --workspace --bin mcp-resume --locked --manifest-path "$here/../../Cargo.toml" --features "$FEATURES"
    export MCP_RESUME_BIN=$here/../../target/debug/mcp-resume
fi
cd "$here"
exec .venvs/driver/bin/python -m pytest "$@"
