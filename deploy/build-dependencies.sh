#!/bin/sh
# Builds the program's dependencies from the manifests alone: build-dependencies.sh [FEATURES]. Empty files stand in for the sources
# meanwhile. For a layer of the image; PROFILE as in build-static.sh.
set -eu

features=${1:-}
profile=${PROFILE:-image}
cd "$(dirname "$0")/.."
[ -z "$(find src -name '*.rs' 2>/dev/null)" ] || { echo "build-dependencies.sh: there are sources, which it would overwrite" >&2; exit 1; }

# The targets that each package's manifest names, and a library.
for package in . src/* bench bench/operations; do
    # A folder of `src` is a crate whose library is beside its manifest.
    case $package in src/*) echo >"$package/lib.rs" && continue ;; esac
    mkdir -p "$package/src"
    echo >"$package/src/lib.rs"
    echo 'fn main() {}' >"$package/src/main.rs"
    sed -n 's/^path = "\(.*\.rs\)"$/\1/p' "$package/Cargo.toml" | while read -r target; do
        mkdir -p "$package/$(dirname "$target")"
        echo 'fn main() {}' >"$package/$target"
    done
done
${CARGO:-cargo} build --locked --profile "$profile" --features "$features" --bin mcp-resume
find src -name '*.rs' -delete
rm -rf bench/src bench/operations/src tests
# Without fingerprints Cargo rebuilds the real sources, regardless of the times of their files.
rm -rf "${CARGO_TARGET_DIR:-target}"/*/.fingerprint/mcp-resume*
