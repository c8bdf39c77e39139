#!/usr/bin/env bash
# Installs the pinned peers of bench/peers into target/tools/peers; prints nothing if all are there already. Needs Node 20 and Python 3.11.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
tools=target/tools/peers
pins=bench/peers.d

die() {
    echo "bench/peers.d/setup.sh: $*" >&2
    exit 1
}

need() {
    command -v "$1" >/dev/null || die "$1 is not installed; the peers need $2"
}

# `fresh NAME FILE...`: true if NAME was installed from exactly these files.
fresh() {
    local made=$tools/$1.made
    shift
    [ "$(cat "$made" 2>/dev/null)" = "$(cat "$@" | sha256sum)" ]
}

made() {
    local made=$tools/$1.made
    shift
    cat "$@" | sha256sum >"$made"
}

get_npm_packages() {
    local lists=("$pins/package.json" "$pins/package-lock.json")
    fresh npm "${lists[@]}" && return
    echo "peers: npm packages"
    cp "${lists[@]}" "$pins/.npmrc" "$tools"
    (cd "$tools" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error) >/dev/null || die "npm could not install what package-lock.json pins"
    made npm "${lists[@]}"
}

get_python_packages() {
    local list=$pins/requirements.txt
    fresh python "$list" && return
    echo "peers: Python packages"
    rm -rf "$tools/venv"
    python3 -m venv "$tools/venv" || die "python3 cannot make a virtual environment (Debian: install python3-venv)"
    "$tools/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --only-binary :all: -r "$list" ||
        die "pip could not install what $list pins"
    made python "$list"
}

need node "Node 20 or later"
need npm "npm, which comes with Node"
need python3 "Python 3.11 or later"
mkdir -p "$tools"
get_npm_packages
get_python_packages
