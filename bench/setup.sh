#!/usr/bin/env bash
# Gets what draws plots, pinned, into target/tools/bench; prints nothing where all is there already.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tools=target/tools/bench
list=bench/requirements.txt

die() {
    echo "bench/setup.sh: $*" >&2
    exit 1
}

made=$(sha256sum "$list")
[ "$(cat "$tools/made" 2>/dev/null)" = "$made" ] && exit
echo "bench: tools from PyPI" >&2
rm -rf "$tools"
mkdir -p "$tools"
python3 -m venv "$tools/venv" || die "python3 cannot make a virtual environment (Debian: install python3-venv)"
"$tools/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --only-binary :all: -r "$list" ||
    die "pip could not install what $list pins"
echo "$made" >"$tools/made"
