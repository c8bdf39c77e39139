#!/usr/bin/env bash
# Writes npm packages: `npm.sh BINARY TARGET VERSION DIRECTORY` that of a platform, `npm.sh all VERSION DIRECTORY` the one that users install, which has the
# others as optional dependencies: npm installs the one whose `os` and `cpu` fit.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
platforms=(linux-x64 linux-arm64 darwin-x64 darwin-arm64)

# npm gives each file the same time, and so the same bytes to the same contents.
pack() {
    cp LICENSE "$work"
    (cd "$work" && npm pack --silent --pack-destination "$1" >/dev/null)
}

about='"license": "Apache-2.0", "description": "A reverse proxy that makes MCP servers resumable"'
if [ "$1" = all ]; then
    version=$2 directory=$3
    cp -r deploy/release/npm/. "$work"
    cp README.md "$work"
    optional=$(for platform in "${platforms[@]}"; do printf '"mcp-resume-%s": "%s", ' "$platform" "$version"; done)
    cat >"$work/package.json" <<JSON
{"name": "mcp-resume", "version": "$version", $about, "bin": {"mcp-resume": "bin/mcp-resume.js"}, "files": ["bin"],
 "engines": {"node": ">=18"}, "optionalDependencies": {${optional%, }}}
JSON
    pack "$directory"
    exit
fi

binary=$1 target=$2 version=$3 directory=$4
case $target in
    x86_64-*) cpu=x64 ;;
    aarch64-*) cpu=arm64 ;;
    *) echo "deploy/release/npm.sh: no processor of npm's for $target" >&2; exit 1 ;;
esac
case $target in
    *-linux-*) os=linux ;;
    *-darwin) os=darwin ;;
    *) echo "deploy/release/npm.sh: no system of npm's for $target" >&2; exit 1 ;;
esac
mkdir -p "$work/bin"
cp "$binary" "$work/bin/mcp-resume"
echo "The program of the package mcp-resume for $os on $cpu." >"$work/README.md"
cat >"$work/package.json" <<JSON
{"name": "mcp-resume-$os-$cpu", "version": "$version", $about, "os": ["$os"], "cpu": ["$cpu"], "files": ["bin"], "preferUnplugged": true}
JSON
pack "$directory"
