#!/usr/bin/env bash
# Builds a release: `build.sh DIRECTORY [TARGET...]`. DIRECTORY then has, for each target, the static binary in an archive, and for Linux a `.deb`, an `.rpm`
# and two images (the sidecar, and the balancer variant); a wheel and an npm package for each target, the npm package that chooses among them, the crate, an
# SBOM and SHA256SUMS. The compiler is guided by a profile of the program under load (deploy/profile.sh), which is a file of the release too. With
# the same profile all files have the same bytes in each run: `make release-check` builds them a second time.
#
# Linux is built for glibc, as a static binary, with Debian's compilers. Targets are x86_64-unknown-linux-gnu and aarch64-unknown-linux-gnu by default.
# aarch64-apple-darwin and x86_64-apple-darwin need Apple's SDK: README.md.
#
# PROFILE is the cargo profile (default: image). BINARIES is a directory with binaries that are built already, as TARGET/mcp-resume; WITHOUT_IMAGES and
# WITHOUT_CRATE leave out the images, and the crate with its SBOM; IMAGES names the images to make (default: both). The tests use them. PROFDATA is the
# profile of an earlier run, or `none` for a release that no profile guides; with BINARIES there is none.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

[ $# -ge 1 ] || { echo "usage: deploy/release/build.sh DIRECTORY [TARGET...]" >&2; exit 2; }
directory=$(realpath -m "$1")
shift
targets=("$@")
[ $# -gt 0 ] || targets=(x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu)
profile=${PROFILE:-image}
folder=$profile
[ "$profile" != dev ] || folder=debug

die() {
    echo "deploy/release/build.sh: $*" >&2
    exit 1
}

deploy/release/setup.sh "${targets[@]}"
python=$PWD/target/tools/release/venv/bin/python
nfpm=$PWD/target/tools/release/venv/bin/nfpm
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
[ -n "$version" ] || die "Cargo.toml has no version"

# The time of the commit is that of all files; in a tree without its history that of the lock file.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat --format=%Y Cargo.lock)}
export SOURCE_DATE_EPOCH CARGO_INCREMENTAL=0
# Paths of this machine are in no binary: those of the checkout, of the build directory, of crates, and of the standard library if its source is installed.
built=$(realpath -m "${CARGO_TARGET_DIR:-target}")
profdata=$PWD/target/release.profdata
crates=${CARGO_HOME:-$HOME/.cargo}
library=$(rustc --print sysroot)/lib/rustlib/src/rust
revision=$(rustc -vV | sed -n 's/^commit-hash: //p')
# The last prefix that fits counts.
export RUSTFLAGS="--remap-path-prefix=$PWD=/mcp-resume --remap-path-prefix=$built=/mcp-resume/target"
RUSTFLAGS+=" --remap-path-prefix=$crates=/cargo --remap-path-prefix=$library=/rustc/$revision"
export CFLAGS="-ffile-prefix-map=$PWD=/mcp-resume -ffile-prefix-map=$built=/mcp-resume/target -ffile-prefix-map=$crates=/cargo"
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=${CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER:-aarch64-linux-gnu-gcc}

# `binary TARGET FEATURES FILE`: builds one binary.
binary() {
    local target=$1 features=$2 file=$3 guided= options=(-C strip=symbols)
    if [ -n "${BINARIES:-}" ]; then
        cp "$BINARIES/$target/mcp-resume" "$file"
        return
    fi
    case $target in
        *-linux-gnu) options+=(-C target-feature=+crt-static -C link-arg=-Wl,-z,pack-relative-relocs -C link-arg=-Wl,--build-id=none) ;;
    esac
    [ ! -f "$profdata" ] || [ "$target" != "${targets[0]}" ] || guided=" -Cprofile-use=$profdata"
    # A crate with C is built again for each value, and no binary has a date.
    RUSTFLAGS=$RUSTFLAGS$guided SOURCE_DATE_EPOCH=0 cargo rustc --quiet --locked --profile "$profile" --features "$features" \
        --target "$target" --bin mcp-resume -- "${options[@]}"
    cp "${CARGO_TARGET_DIR:-target}/$target/$folder/mcp-resume" "$file"
    case $target in
        *-linux-gnu) ! readelf --program-headers "$file" | grep -q INTERP || die "$file is not static" ;;
    esac
}

# `archive FILE DIRECTORY`: an archive whose bytes depend on the contents alone.
archive() {
    tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --format=ustar -C "$(dirname "$2")" -cf - "$(basename "$2")" |
        gzip -n >"$1"
}

# `beside COMMAND...`: starts a command, which packs what is built. They are waited for at the end.
packing=()
beside() {
    "$@" &
    packing+=($!)
}

rm -rf "$directory"
mkdir -p "$directory"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The profile has one place in the checkout: the flag that names it is part of what Cargo compares. It guides the first target, on which the
# program can run; other targets have other names for the same functions.
rm -f "$profdata"
case ${BINARIES:+none}${PROFDATA:-} in
    none*) ;;
    "")
        sets=(balancer)
        [ -n "${WITHOUT_IMAGES:-}" ] || sets+=("")
        PROFILE=$profile TARGET=${targets[0]} deploy/profile.sh "$profdata" "${sets[@]}"
        ;;
    *) cp "$PROFDATA" "$profdata" ;;
esac

# Both roles are in each binary; the image of the sidecar alone is smaller.
for target in "${targets[@]}"; do
    echo "release: mcp-resume $version for $target"
    mkdir -p "$work/$target"
    binary "$target" balancer "$work/$target/mcp-resume"
done
native=$work/${targets[0]}/mcp-resume
"$native" --version >/dev/null || die "the first target has to be this machine's: its program writes completions and pages"
deploy/release/extras.sh "$native" "$work/extras"

for target in "${targets[@]}"; do
    name=mcp-resume-$version-$target
    mkdir -p "$work/$name"
    cp "$work/$target/mcp-resume" LICENSE README.md CHANGELOG.md config.example.toml "$work/$name"
    cp -r "$work/extras/completions" "$work/extras/man" "$work/$name"
    beside archive "$directory/$name.tar.gz" "$work/$name"
    beside "$python" deploy/release/make_wheel.py "$work/$target/mcp-resume" "$target" "$version" "$directory"
    beside deploy/release/npm.sh "$work/$target/mcp-resume" "$target" "$version" "$directory"
    case $target in
        x86_64-*-linux-*) architecture=amd64 ;;
        aarch64-*-linux-*) architecture=arm64 ;;
        *) continue ;;
    esac
    for kind in deb rpm; do
        beside env ARCH="$architecture" VERSION="$version" BINARY="$work/$target/mcp-resume" EXTRAS="$work/extras" \
            "$nfpm" package --config deploy/release/nfpm.yaml --packager "$kind" --target "$directory" >/dev/null
    done
    if [ -z "${WITHOUT_IMAGES:-}" ]; then
        binary "$target" "" "$work/$target/mcp-resume-sidecar"
        for image in ${IMAGES:-mcp-resume mcp-resume-balancer}; do
            program=$work/$target/mcp-resume
            [ "$image" = mcp-resume-balancer ] || program+=-sidecar
            deploy/lay-out.sh "$work/$image-$architecture" "$program"
            beside deploy/release/image.sh "$work/$image-$architecture" "$image" "$architecture" "$version" "$directory"
        done
    fi
done
beside deploy/release/npm.sh all "$version" "$directory"

if [ -z "${WITHOUT_CRATE:-}" ]; then
    crates=(mcp-resume)
    for manifest in src/*/Cargo.toml; do crates+=("mcp-resume-$(basename "$(dirname "$manifest")")"); done
    # Together, since each names the others by their version.
    cargo package --quiet --locked --no-verify --allow-dirty "${crates[@]/#/--package=}" --target-dir "$work/crate"
    for crate in "${crates[@]}"; do cp "$work/crate/package/$crate-$version.crate" "$directory"; done
    deploy/release/sbom.sh "$directory/mcp-resume-$version.cdx.json"
fi

for one in "${packing[@]}"; do
    wait "$one" || die "a package is not made: see above"
done
[ ! -f "$profdata" ] || cp "$profdata" "$directory/mcp-resume-$version.profdata"
(cd "$directory" && sha256sum -- * >SHA256SUMS)
echo "release: $(find "$directory" -type f | wc -l) files in $directory"
