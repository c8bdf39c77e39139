#!/bin/sh
# Builds mcp-resume as one static file and lays out the contents of an image: build-static.sh DIRECTORY [FEATURES]. DIRECTORY then holds the
# binary, its TLS authorities, and the configuration of its resolver (lay-out.sh).
#
# The C library is glibc's archive from Debian's libc6-dev. Its resolver loads nothing at run time as long as `nsswitch.conf` names only
# files and dns, which glibc has built in since 2.34. PROFILE is the cargo profile (default: image).
set -eu

[ $# -ge 1 ] || { echo "usage: build-static.sh DIRECTORY [FEATURES]" >&2; exit 2; }
directory=$1
features=${2:-}
profile=${PROFILE:-image}
cd "$(dirname "$0")/.."

# For the program alone: macros and build scripts, which the compiler loads, cannot be static. Addresses stay random; packed relocations
# save half a megabyte.
cargo rustc --locked --profile "$profile" --features "$features" --bin mcp-resume -- \
    -C target-feature=+crt-static -C link-arg=-Wl,-z,pack-relative-relocs

folder=$profile
[ "$profile" != dev ] || folder=debug
deploy/lay-out.sh "$directory" "${CARGO_TARGET_DIR:-target}/$folder/mcp-resume"
