#!/usr/bin/env bash
# Gets what the tests need and no package manager of theirs brings: on Debian, as root, by apt. What cannot be had is named, and
# the tests do not begin.
set -euo pipefail
PATH=$PATH:/usr/sbin

missing=()
packages=()

# `want WHAT PACKAGE COMMAND...`: if the command fails, WHAT is missing and PACKAGE has it ("-": none of Debian's).
want() {
    local what=$1 package=$2
    shift 2
    "$@" >/dev/null 2>&1 && return
    missing+=("$what")
    [ "$package" = - ] || packages+=("$package")
}

check() {
    missing=()
    packages=()
    want "cargo (Rust 1.95 or later: https://rustup.rs)" - cargo --version
    want "node 20 or later (https://nodejs.org)" - node -e 'process.exit(Number(process.versions.node.split(".")[0]) < 20 ? 1 : 0)'
    want "npm" - npm --version
    want "a C compiler, which Rust links with" gcc cc --version
    want "a C++ compiler, for the fuzzer" g++ c++ --version
    want "Python 3.11 or later" python3 python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'
    want "Python's venv with pip" python3-venv python3 -c 'import ensurepip, venv'
    want "cmake, which the balancer is built with" cmake cmake --version
    want "nginx" nginx-light nginx -v
    want "haproxy" haproxy haproxy -v
    want "redis-server 6.2 or later" redis-server redis-server --version
    want "ip, for network namespaces" iproute2 ip -V
    want "openssl" openssl openssl version
    want "authorities for TLS" ca-certificates test -s /etc/ssl/certs/ca-certificates.crt
    want "buildah" buildah buildah --version
    want "systemd-analyze" systemd systemd-analyze --version
    want "ip" iproute2 ip -V
    want "unshare" util-linux unshare --version
    want "rpm" rpm rpm --version
    want "valgrind" valgrind valgrind --version
    want "Chromium" chromium chromium --version
    want "ChromeDriver" chromium-driver chromedriver --version
}

check
if [ ${#packages[@]} -gt 0 ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "tests/setup.sh: installing ${packages[*]}"
    export DEBIAN_FRONTEND=noninteractive
    { apt-get update -qq && apt-get install -qq -y --no-install-recommends "${packages[@]}"; } >&2 ||
        echo "tests/setup.sh: apt-get could not install ${packages[*]}" >&2
    check
fi
if [ ${#missing[@]} -gt 0 ]; then
    echo "tests/setup.sh: the tests need what is not here:" >&2
    printf '  %s\n' "${missing[@]}" >&2
    [ ${#packages[@]} = 0 ] || echo "On Debian, as root: apt-get install ${packages[*]}" >&2
    exit 1
fi
