#!/usr/bin/env bash
# Writes an image as an archive for `docker load` and `podman load`: `image.sh LAYOUT NAME ARCHITECTURE VERSION DIRECTORY`. LAYOUT comes from lay-out.sh.
# The bytes depend on the contents, SOURCE_DATE_EPOCH and the version of buildah.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
layout=$1 name=$2 architecture=$3 version=$4 directory=$5
tag=$name:$version

storage=$(mktemp -d)
trap 'rm -rf "$storage"' EXIT
options=(--root "$storage/root" --runroot "$storage/run" --storage-driver vfs)
find "$layout" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
buildah "${options[@]}" build --quiet --pull-never --isolation chroot --format docker --arch "$architecture" --timestamp "$SOURCE_DATE_EPOCH" \
    --identity-label=false --file "$here/Dockerfile" --target prebuilt --tag "localhost/$tag" "$layout" >/dev/null
buildah "${options[@]}" push --quiet "localhost/$tag" "docker-archive:$storage/archive.tar:$tag"

# The configuration names the containers of the build by random identifiers: its host name, its parent, and a comment in its history. An image needs none
# of them.
archive=$directory/$name-$version-$architecture.image.tar
python3 - "$storage/archive.tar" "$archive" "$tag" <<'PY'
import hashlib, io, json, os, sys, tarfile

source, target, tag = sys.argv[1:]
with tarfile.open(source) as built, tarfile.open(target, "w", format=tarfile.USTAR_FORMAT) as archive:

    def read(name):
        return built.extractfile(name).read()

    def write(name, content):
        entry = tarfile.TarInfo(name)
        entry.size, entry.mtime = len(content), int(os.environ["SOURCE_DATE_EPOCH"])
        archive.addfile(entry, io.BytesIO(content))

    def text(value):
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()

    [image] = json.loads(read("manifest.json"))
    config = json.loads(read(image["Config"]))
    for name in ["container", "container_config", "parent"]:
        config.pop(name, None)
    config["config"].pop("Hostname", None)
    for step in config["history"]:
        step.pop("comment", None)
    config = text(config)
    name = hashlib.sha256(config).hexdigest() + ".json"
    write(name, config)
    for layer in dict.fromkeys(image["Layers"]):
        write(layer, read(layer))
    write("manifest.json", text([{"Config": name, "RepoTags": [tag], "Layers": image["Layers"]}]))
PY
gzip -n "$archive"
