#!/bin/sh
# Writes what goes with a binary into packages: `extras.sh BINARY DIRECTORY`. DIRECTORY then has the completions, the manual pages, and the units with the
# place that packages give to the binary.
set -eu

[ $# = 2 ] || { echo "usage: extras.sh BINARY DIRECTORY" >&2; exit 2; }
binary=$1
directory=$2
mkdir -p "$directory/completions" "$directory/man" "$directory/systemd"
for shell in bash zsh fish; do
    "$binary" completions $shell >"$directory/completions/mcp-resume.$shell"
done
"$binary" man --output "$directory/man"
gzip -9 -n "$directory"/man/*.1
here=$(dirname "$0")
for unit in "$here"/../systemd/*.service; do
    # The steps of an installation by hand are the package's.
    sed -e 's|/usr/local/bin/|/usr/bin/|' -e '/^#   install -m 755/d' -e '/^#   install -m 644/d' -e '/^#   install -D -m 644/d' "$unit" \
        >"$directory/systemd/$(basename "$unit")"
done
