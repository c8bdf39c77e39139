#!/bin/sh
# Lays out the contents of an image of mcp-resume: `lay-out.sh DIRECTORY BINARY`. The binary must be static.
set -eu

[ $# = 2 ] || { echo "usage: lay-out.sh DIRECTORY BINARY" >&2; exit 2; }
directory=$1
binary=$2
authorities=${AUTHORITIES:-/etc/ssl/certs/ca-certificates.crt}

die() {
    echo "lay-out.sh: $*" >&2
    exit 1
}

[ -x "$binary" ] || die "$binary is no program"
[ -s "$authorities" ] || die "$authorities has no authorities (Debian: install ca-certificates)"
# An image without a loader cannot run dynamic binaries.
if readelf --program-headers "$binary" | grep -q INTERP; then
    die "$binary is not static"
fi

rm -rf "$directory"
mkdir -p "$directory/etc/ssl/certs"
cp "$binary" "$directory/mcp-resume"
cp "$authorities" "$directory/etc/ssl/certs/ca-certificates.crt"
echo "hosts: files dns" >"$directory/etc/nsswitch.conf"
chmod -R u=rwX,go=rX "$directory"
