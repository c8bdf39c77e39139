#!/bin/sh
# Builds the sidecar as a release has it, with a profile of itself under load (profile.sh), as target/optimized/mcp-resume.
set -eu

cd "$(dirname "$0")/.."
made=$(realpath -m "${CARGO_TARGET_DIR:-target}")/optimized
deploy/profile.sh "$made/mcp-resume.profdata"
RUSTFLAGS="${RUSTFLAGS:-} -Cprofile-use=$made/mcp-resume.profdata" CARGO_TARGET_DIR="$made/built" \
    cargo build --profile dist --locked --bin mcp-resume
cp "$made/built/dist/mcp-resume" "$made/mcp-resume"
echo "$made/mcp-resume"
