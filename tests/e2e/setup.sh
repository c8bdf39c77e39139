#!/usr/bin/env bash
# Installs the pinned SDKs of the end-to-end suite from npm, PyPI and crates.io, in separate environments if they conflict. Does nothing
# if all are there already. Needs Node 20, Python 3.11, Rust, Redis, nginx, haproxy, openssl.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
# Debian has servers where a user's PATH does not lead.
PATH=$PATH:/usr/sbin

die() {
    echo "tests/e2e/setup.sh: $*" >&2
    exit 1
}

need() {
    command -v "$1" >/dev/null || die "$1 is not installed; the suite needs $2"
}

need node "Node 20 or later"
need npm "npm, which comes with Node"
need cargo "a Rust toolchain"
need redis-server "Redis 6.2 or later (Debian: redis-server)"
need nginx "nginx (Debian: nginx-light)"
need haproxy "haproxy"
need openssl "openssl"

node -e 'process.exit(Number(process.versions.node.split(".")[0]) >= 20 ? 0 : 1)' ||
    die "Node $(node --version) is too old; the suite needs Node 20 or later"

python=""
for candidate in python3.11 python3; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        python=$candidate
        break
    fi
done
[ -n "$python" ] || die "no Python 3.11 or later is installed"

# `fresh WHERE FILE...`: true if WHERE/.made was written for exactly these files.
fresh() {
    local where=$1
    shift
    [ -f "$where/.made" ] && [ "$(cat "$where/.made")" = "$(cat "$@" | sha256sum)" ]
}

made() {
    local where=$1
    shift
    cat "$@" | sha256sum >"$where/.made"
}

npm_packages() {
    fresh node_modules package.json package-lock.json && return
    echo "e2e: npm packages"
    npm ci --no-audit --no-fund --loglevel=error || die "npm could not install what package-lock.json pins"
    made node_modules package.json package-lock.json
}

# `python_packages LIST`: the environment of one list.
python_packages() {
    local list=$1 name venv
    name=$(basename "$list" .txt)
    venv=.venvs/$name
    fresh "$venv" "$list" && return
    echo "e2e: Python packages for $name"
    rm -rf "$venv"
    "$python" -m venv "$venv" || die "$python cannot make a virtual environment (Debian: install python3-venv)"
    "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps -r "$list" ||
        die "pip could not install what $list pins"
    made "$venv" "$list"
}

rmcp_programs() {
    local where
    for where in clients servers; do
        cargo build --quiet --locked --manifest-path "$where/rmcp/Cargo.toml" --target-dir clients/rmcp/target ||
            die "the programs on rmcp do not build"
    done
}

# All at the same time: each waits for the network and for other programs. `set -m` makes a group of each.
started=()
stop() {
    for group in "${started[@]}"; do
        kill -- "-$group" 2>/dev/null || true
    done
}
trap stop EXIT
trap 'exit 1' INT TERM

beside() {
    set -m
    "$@" </dev/null &
    set +m
    started+=($!)
}

beside rmcp_programs
beside npm_packages
for list in requirements/*.txt; do
    beside python_packages "$list"
done
for _ in "${started[@]}"; do
    wait -n || exit 1
done
trap - EXIT
