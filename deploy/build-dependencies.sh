#!/bin/sh
# Builds what the program depends on, from the manifests alone: build-dependencies.sh [FEATURES]. The sources are stood in for by empty ones
# while it runs. For the layer of an image; PROFILE as in build-static.sh.
set -eu

features=${1:-}
profile=${PROFILE:-image}
cd "$(dirname "$0")/.."
[ ! -e src ] || { echo "build-dependencies.sh: there are sources, which it would overwrite" >&2; exit 1; }

# Of each package the targets that its manifest names, and a library.
for package in . bench bench/operations; do
    mkdir -p "$package/src"
    echo >"$package/src/lib.rs"
    echo 'fn main() {}' >"$package/src/main.rs"
    sed -n 's/^path = "\(.*\.rs\)"$/\1/p' "$package/Cargo.toml" | while read -r target; do
        mkdir -p "$package/$(dirname "$target")"
        echo 'fn main() {}' >"$package/$target"
    done
done
${CARGO:-cargo} build --locked --profile "$profile" --features "$features" --bin mcp-resume
rm -rf src bench/src bench/operations/src tests
# Cargo goes by times: what comes in place of these is built anew, whatever the time of its files.
rm -rf "${CARGO_TARGET_DIR:-target}"/*/.fingerprint/mcp-resume-*
