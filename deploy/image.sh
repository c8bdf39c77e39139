#!/bin/sh
# Makes an image from a binary built on this machine, without docker, network or a privileged daemon: image.sh DIRECTORY TAG [BUILDAH
# OPTIONS]. DIRECTORY comes from build-static.sh or lay-out.sh. Needs buildah.
set -eu

[ $# -ge 2 ] || { echo "usage: image.sh DIRECTORY TAG [BUILDAH OPTIONS]" >&2; exit 2; }
directory=$1
tag=$2
shift 2
# Only Docker's format has health checks. The other stages are neither needed nor pulled.
exec buildah "$@" build --quiet --pull-never --isolation chroot --format docker \
    --file "$(dirname "$0")/Dockerfile" --target prebuilt --tag "$tag" "$directory"
