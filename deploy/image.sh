#!/bin/sh
# Makes an image of a binary that was built here, without docker, network or privileges of a daemon: image.sh DIRECTORY TAG [BUILDAH
# OPTIONS]. DIRECTORY is what build-static.sh or lay-out.sh made. Needs buildah.
set -eu

[ $# -ge 2 ] || { echo "usage: image.sh DIRECTORY TAG [BUILDAH OPTIONS]" >&2; exit 2; }
directory=$1
tag=$2
shift 2
# The health check is a thing of Docker's format. Nothing of the other stages is needed, nor pulled.
exec buildah "$@" build --quiet --pull-never --isolation chroot --format docker \
    --file "$(dirname "$0")/Dockerfile" --target prebuilt --tag "$tag" "$directory"
