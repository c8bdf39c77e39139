#!/usr/bin/env bash
# Makes a release of a static binary, installs each package in a place of its own, and runs what it has installed: `release.sh BINARY [--all]`.
#
# Two releases of one commit have equal bytes. A short stand-in for the program is packed twice for that, since the real one takes a minute. With --all
# the real one is, and the image of the balancer runs as well.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
PATH=$PATH:/usr/sbin:/sbin
work=$(mktemp -d)
all=${2:-}

die() {
    echo "deploy/test/release.sh: $*" >&2
    exit 1
}

. tests/beside.sh
trap 'end_checks; rm -rf "$work"' EXIT

target=x86_64-unknown-linux-gnu
program=$work/binaries/$target/mcp-resume
mkdir -p "$work/binaries/$target" "$work/stand-in/$target"
strip -o "$program" "$1"
printf '#!/bin/sh\nexec %q "$@"\n' "$program" >"$work/stand-in/$target/mcp-resume"
chmod +x "$work/stand-in/$target/mcp-resume"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
release=$work/release
said="mcp-resume $version"

# `make_release BINARIES DIRECTORY`
make_release() {
    BINARIES=$1 WITHOUT_CRATE=1 deploy/release/build.sh "$2" "$target" >"$work/log" 2>&1 || { cat "$work/log" >&2; die "no release is made"; }
}
if [ -n "$all" ]; then
    images=(mcp-resume mcp-resume-balancer) packed=$work/binaries one=$release
    make_release "$packed" "$release"
else
    images=(mcp-resume) packed=$work/stand-in one=$work/one
    IMAGES=${images[*]} make_release "$work/binaries" "$release"
    make_release "$packed" "$one"
fi
sleep 1.1 # the next second, in which an archive with the time of its making would differ
make_release "$packed" "$work/again"
diff -r "$one" "$work/again" || die "two releases of one commit differ"
(cd "$release" && sha256sum --quiet --check SHA256SUMS) || die "SHA256SUMS is wrong"

# `serves PROGRAM...`: runs `PROGRAM... serve` until it is ready, and ends it.
serves() {
    local running admin=
    "$@" serve --upstream http://127.0.0.1:9/mcp --listen 127.0.0.1:0 --admin 127.0.0.1:0 >"$work/log" 2>&1 &
    running=$!
    for _ in $(seq 600); do
        admin=$(sed -n 's|^admin on http://||p' "$work/log")
        if [ -n "$admin" ] && "$program" health --live --admin "$admin" >/dev/null 2>&1; then
            kill -TERM "$running"
            wait "$running" || die "$* ended with $?"
            return
        fi
        kill -0 "$running" 2>/dev/null || break
        sleep 0.1
    done
    kill "$running" 2>/dev/null || true
    cat "$work/log" >&2
    die "$* does not serve"
}

# The binary alone, in a root directory without anything else.
check_archive() {
    mkdir "$work/archive" "$work/empty"
    tar -C "$work/archive" -xzf "$release/mcp-resume-$version-x86_64-unknown-linux-gnu.tar.gz"
    unpacked=$work/archive/mcp-resume-$version-x86_64-unknown-linux-gnu
    cp "$unpacked/mcp-resume" "$work/empty"
    [ "$(chroot "$work/empty" /mcp-resume --version)" = "$said" ] || die "the binary needs more than itself"
    for file in LICENSE README.md CHANGELOG.md config.example.toml completions/mcp-resume.bash man/mcp-resume-serve.1.gz; do
        [ -s "$unpacked/$file" ] || die "the archive has no $file"
    done
}

# `installed ROOT`: checks what a package has put into a root directory, with its unit, and runs the program there as a user without privileges.
installed() {
    local root=$1 unit=$1/usr/lib/systemd/system/mcp-resume.service
    # As every system has it.
    mkdir -p "$root/dev"
    mknod -m 666 "$root/dev/random" c 1 8
    mknod -m 666 "$root/dev/urandom" c 1 9
    [ "$(chroot --userspec=65534:65534 "$root" /usr/bin/mcp-resume --version)" = "$said" ] || die "the program in $root does not run"
    grep -q '^ExecStart=/usr/bin/mcp-resume serve' "$unit" || die "the unit runs another program"
    chroot "$root" /usr/bin/mcp-resume check --config /etc/mcp-resume/mcp-resume.toml >/dev/null || die "the configuration in $root is wrong"
    # systemd looks for the program where the unit says.
    local unit_said
    sed "s|/usr/bin/mcp-resume|$root/usr/bin/mcp-resume|" "$unit" >"$work/mcp-resume.service"
    unit_said=$(systemd-analyze verify --man=no "$work/mcp-resume.service" 2>&1) && [ -z "$unit_said" ] || die "systemd does not understand the unit: $unit_said"
    for file in share/bash-completion/completions/mcp-resume share/man/man1/mcp-resume.1.gz share/doc/mcp-resume/copyright; do
        [ -s "$root/usr/$file" ] || die "the package has no $file"
    done
    serves chroot --userspec=65534:65534 "$root" /usr/bin/mcp-resume
}

check_deb() {
    debian=$work/debian
    mkdir -p "$debian/var/lib/dpkg/info" "$debian/var/lib/dpkg/updates"
    touch "$debian/var/lib/dpkg/status"
    in_debian() {
        dpkg --root="$debian" --force-script-chrootless --log=/dev/null "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2; die "dpkg $* failed"; }
    }
    in_debian --install "$release"/mcp-resume_*_amd64.deb
    installed "$debian"
    echo "# mine" >>"$debian/etc/mcp-resume/mcp-resume.toml"
    in_debian --force-confold --install "$release"/mcp-resume_*_amd64.deb
    grep -q "# mine" "$debian/etc/mcp-resume/mcp-resume.toml" || die "an update of the .deb overwrites the configuration"
    in_debian --remove mcp-resume
    [ ! -e "$debian/usr/bin/mcp-resume" ] && [ -e "$debian/etc/mcp-resume/mcp-resume.toml" ] || die "the removal of the .deb leaves the program, or takes the configuration"
    in_debian --purge mcp-resume
    [ ! -e "$debian/etc/mcp-resume/mcp-resume.toml" ] || die "the purge of the .deb leaves its configuration"
    echo "deploy: the .deb installs, runs and is removed"
}

check_rpm() {
    fedora=$work/fedora
    mkdir "$fedora"
    in_fedora() {
        rpm --root "$fedora" --dbpath /var/lib/rpm "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2; die "rpm $* failed"; }
    }
    # Its scripts need a shell, which this root has not.
    in_fedora --install --nodeps --noscripts "$release"/mcp-resume-*.x86_64.rpm
    installed "$fedora"
    [ "$(rpm -qp --queryformat "%{BUILDHOST}" "$release"/mcp-resume-*.x86_64.rpm)" = localhost ] || die "the .rpm names this machine"
    in_fedora --erase --noscripts mcp-resume
    [ ! -e "$fedora/usr/bin/mcp-resume" ] || die "the removal of the .rpm leaves the program"
    for script in after-install before-remove after-remove; do
        sh -n "deploy/release/$script.sh"
    done
    echo "deploy: the .rpm installs, runs and is removed"
}

# `connects COMMAND...`: a launcher hands the program its arguments, stdin, stdout and exit code.
connects() {
    local code=0
    # shellcheck disable=SC2016  # the program looks for the variable
    echo '{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}' |
        "$@" connect https://mcp.example.com/mcp --header 'X-Key: ${MCP_RESUME_TEST_NOPE}' >"$work/said" 2>"$work/log" || code=$?
    [ $code = 2 ] || die "$* connect ends with $code"
    grep -q MCP_RESUME_TEST_NOPE "$work/said" || die "$* connect does not answer its host"
}

check_wheel() {
    # PyPI refuses a wheel whose metadata are wrong.
    target/tools/deploy/venv/bin/python - "$release"/mcp_resume-*.whl <<'PY' || die "the metadata of the wheel are wrong"
import sys, zipfile
from packaging.metadata import Metadata

wheel = zipfile.ZipFile(sys.argv[1])
[name] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
Metadata.from_email(wheel.read(name))
PY
    # By the pip of the tools: an own one takes seconds.
    python3 -m venv --without-pip "$work/python"
    target/tools/deploy/venv/bin/pip --python "$work/python/bin/python" install --quiet --disable-pip-version-check --no-index "$release"/mcp_resume-*manylinux*x86_64*.whl || die "pip refuses the wheel"
    [ "$(env -i "$work/python/bin/mcp-resume" --version)" = "$said" ] || die "the wheel's program does not run"
    serves "$work/python/bin/mcp-resume"
    # As from PyPI, with an index of this release alone.
    in_uv() {
        env HOME="$work/home" UV_CACHE_DIR="$work/uv" UV_PYTHON_DOWNLOADS=never target/tools/deploy/venv/bin/uvx --no-config --offline --quiet \
            --no-index --find-links "$release" "$@"
    }
    mkdir "$work/home"
    [ "$(in_uv mcp-resume --version)" = "$said" ] || die "uvx does not run the wheel"
    connects in_uv mcp-resume
    echo "deploy: the wheel installs and runs, and uvx runs it"
}

check_npm() {
    mkdir "$work/npm" "$work/home"
    (
        cd "$work/npm"
        npm init --yes >/dev/null
        npm install --silent --no-audit --no-fund --omit=optional "$release/mcp-resume-linux-x64-$version.tgz" "$release/mcp-resume-$version.tgz" >/dev/null ||
            die "npm refuses the packages"
    )
    [ "$(cd "$work/npm" && npx --no-install mcp-resume --version)" = "$said" ] || die "the npm package's program does not run"
    serves node "$work/npm/node_modules/mcp-resume/bin/mcp-resume.js"
    connects node "$work/npm/node_modules/mcp-resume/bin/mcp-resume.js"
    code=0
    (cd "$work/npm" && npx --no-install mcp-resume serve --listen nowhere >/dev/null 2>&1) || code=$?
    [ $code = 2 ] || die "the npm package's program hides an exit code: $code"
    rm -r "$work/npm/node_modules/mcp-resume-linux-x64"
    if node "$work/npm/node_modules/mcp-resume/bin/mcp-resume.js" --version >"$work/log" 2>&1; then
        die "the npm package runs without a program"
    fi
    grep -q "no program for linux-x64" "$work/log" || die "the npm package does not say what is missing"
    # As from npm's registry, in which the packages of some platforms are missing.
    python3 deploy/test/npm_registry.py "$release" "$work/port" &
    local registry=$!
    for _ in $(seq 600); do
        [ ! -s "$work/port" ] || break
        sleep 0.1
    done
    in_npm() {
        (cd "$work/home" && env HOME="$work/home" npm_config_cache="$work/npm-cache" npm_config_registry="http://127.0.0.1:$(cat "$work/port")" npx --yes "$@")
    }
    [ "$(in_npm mcp-resume --version)" = "$said" ] || die "npx does not run the package"
    kill "$registry"
    wait "$registry" 2>/dev/null || true
    echo "deploy: the npm packages install and run, and npx runs them"
}

check_images() {
    storage=(--root "$work/images/root" --runroot "$work/images/run" --storage-driver vfs)
    for image in "${images[@]}"; do
        # Debian's buildah reads no compressed archive.
        gunzip <"$release/$image-$version-amd64.image.tar.gz" >"$work/image.tar"
        container=$(buildah "${storage[@]}" from --quiet "docker-archive:$work/image.tar") || die "buildah refuses the image of $image"
        [ "$(buildah "${storage[@]}" images --quiet --no-trunc "localhost/$image:$version")" != "" ] || die "the image of $image has another tag"
        root=$(buildah "${storage[@]}" mount "$container")
        [ "$(chroot --userspec=65532:65532 "$root" /mcp-resume --version)" = "$said" ] || die "the program in the image of $image does not run"
        buildah "${storage[@]}" inspect --type image --format '{{.Docker.Config.Healthcheck.Test}} {{.Docker.Config.Hostname}}.' "localhost/$image:$version" |
            grep -qx '\[CMD /mcp-resume health\] \.' || die "the image of $image has no health check, or a host name"
        buildah "${storage[@]}" umount "$container" >/dev/null
        buildah "${storage[@]}" rm "$container" >/dev/null
    done
    echo "deploy: the images load and run"
}

beside npm check_npm
beside wheel check_wheel
beside deb check_deb
beside rpm check_rpm
beside images check_images
beside archive check_archive
all_ended
