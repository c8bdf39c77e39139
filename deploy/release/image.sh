#!/usr/bin/env bash
# Writes an image as an archive for `docker load` and `podman load`: `image.sh LAYOUT NAME ARCHITECTURE VERSION DIRECTORY`. LAYOUT comes from lay-out.sh.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
layout=$1 name=$2 architecture=$3 version=$4 directory=$5
tag=localhost/$name:$version-$architecture

storage=$(mktemp -d)
trap 'rm -rf "$storage"' EXIT
options=(--root "$storage/root" --runroot "$storage/run" --storage-driver vfs)
find "$layout" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
buildah "${options[@]}" build --quiet --pull-never --isolation chroot --format docker --arch "$architecture" --timestamp "$SOURCE_DATE_EPOCH" \
    --file "$here/Dockerfile" --target prebuilt --tag "$tag" "$layout" >/dev/null
archive=$directory/$name-$version-$architecture.image.tar
buildah "${options[@]}" push --quiet "$tag" "docker-archive:$archive:$name:$version"
gzip -9 -n "$archive"
