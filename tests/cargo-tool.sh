#!/usr/bin/env bash
# Installs one version of a program on crates.io: `cargo-tool.sh NAME VERSION [ARGUMENT...]`. Its binary is then
# target/tools/NAME-VERSION/bin/NAME. PyPI has some prebuilt for common machines; `cargo-tools/` has the hashes of the accepted files. Cargo
# builds all others, with the further arguments.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

name=${1:?usage: tests/cargo-tool.sh NAME VERSION [ARGUMENT...]}
version=${2:?usage: tests/cargo-tool.sh NAME VERSION [ARGUMENT...]}
folder=target/tools/$name-$version

[ -x "$folder/bin/$name" ] && exit
rm -rf "$folder"
list=tests/cargo-tools/$name.txt
if [ -f "$list" ]; then
    if python3 -m venv "$folder" &&
        "$folder/bin/pip" install --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes -r "$list" &&
        "$folder/bin/$name" --version | grep -F "$version"; then
        exit
    fi >&2
    echo "tests/cargo-tool.sh: $name $version could not be installed from PyPI" >&2
fi
echo "tests/cargo-tool.sh: Cargo builds $name $version, which takes minutes" >&2
rm -rf "$folder"
# Without optimisation, in half the time: the tools run for seconds either way.
cargo install --quiet --locked --debug --version "$version" --root "$folder" --target-dir target/tools/build "${@:3}" "$name"
rm -rf target/tools/build
