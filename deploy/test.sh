#!/usr/bin/env bash
# Checks all files in deploy/ and .github/workflows with the tools that read them, and runs the runnable ones: `test.sh [--all]`. Installs those
# tools first (test/setup.sh). Each check is also given an input that it must refuse. The last line names what only `--all` checks.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH=$PATH:/usr/sbin
case $* in
    "" | --all) all=$* ;;
    *) echo "usage: deploy/test.sh [--all]" >&2; exit 2 ;;
esac

deploy/test/setup.sh
tools=$PWD/target/tools/deploy
python=$tools/venv/bin/python
promtool=$(command -v promtool || echo "$tools/promtool")
work=$(mktemp -d)
trap 'end_checks; rm -rf "$work"' EXIT

die() {
    echo "deploy/test.sh: $*" >&2
    exit 1
}

. tests/beside.sh

# `refused WHAT COMMAND...`: fails if the command accepts WHAT.
refused() {
    local what=$1
    shift
    if "$@" >/dev/null 2>&1; then
        die "$what is accepted"
    fi
}

check_nginx() {
    deploy/test-nginx.sh
}

check_alerts() {
    "$promtool" check rules deploy/prometheus/alerts.yaml >/dev/null || die "promtool refuses alerts.yaml"
    "$promtool" test rules deploy/prometheus/alerts_test.yaml || die "the alerts differ from alerts_test.yaml"
    diff -u deploy/kubernetes/monitoring/prometheusrule.yaml <(deploy/prometheus/for-operator.sh) ||
        die "prometheusrule.yaml differs from the output of for-operator.sh: write it again"
    cp deploy/prometheus/*.yaml "$work"
    sed -i 's/mcp_resume_store_ready == 0/mcp_resume_store_ready == 1/' "$work/alerts.yaml"
    refused "an alert of an available store" "$promtool" test rules "$work/alerts_test.yaml"
    sed 's/condition=~"down|unknown"}) > 0/condition=~"down|unknown"}) > -1/' deploy/prometheus/alerts.yaml >"$work/alerts.yaml"
    refused "an alert of healthy replicas" "$promtool" test rules "$work/alerts_test.yaml"
    "$python" deploy/test/metrics.py "$promtool"
}

# systemd only warns of unknown keys in a unit.
verify_unit() {
    local said
    said=$(systemd-analyze verify --man=no "$1" 2>&1) && [ -z "$said" ] || { echo "$said" >&2; return 1; }
}

check_units() {
    check_unit mcp-resume.service serve
    "$binary" check --config deploy/systemd/mcp-resume.toml >/dev/null || die "mcp-resume.toml is wrong"
    stops_after mcp-resume.service mcp-resume.toml drain_timeout_secs || die "systemd kills mcp-resume.service in its drain"

    check_unit mcp-resume-stdio.service serve
    "$binary" check --config deploy/systemd/mcp-resume-stdio.toml >/dev/null || die "mcp-resume-stdio.toml is wrong"
    stops_after mcp-resume-stdio.service mcp-resume-stdio.toml drain_timeout_secs || die "systemd kills mcp-resume-stdio.service in its drain"
    runs_programs deploy/systemd/mcp-resume-stdio.service || die "mcp-resume-stdio.service does not let its servers work"
    refused "a unit for no programs" runs_programs deploy/systemd/mcp-resume.service

    check_unit mcp-resume-balancer@.service balance
    balances deploy/systemd/mcp-resume-balancer.toml || die "mcp-resume-balancer.toml is wrong"
    stops_after mcp-resume-balancer@.service mcp-resume-balancer.toml grace_secs || die "systemd kills the balancer before its responses end"
    cp deploy/systemd/mcp-resume-balancer* "$work"
    hands_over deploy/systemd || die "a balancer cannot hand over to the next one"

    for unit in mcp-resume.service mcp-resume-balancer@.service; do
        stays_up "deploy/systemd/$unit" || die "$unit has a start limit, or no memory limit"
        sed '/^StartLimitIntervalSec=/d' "deploy/systemd/$unit" >"$work/tired-$unit"
        refused "a unit with a start limit" stays_up "$work/tired-$unit"
        sed '/^MemoryMax=/d' "deploy/systemd/$unit" >"$work/greedy-$unit"
        refused "a unit without a memory limit" stays_up "$work/greedy-$unit"
    done

    refused "a drain that is longer" stops_after mcp-resume-balancer@.service mcp-resume.toml drain_timeout_secs
    sed -i 's/^grace_secs/grace/' "$work/mcp-resume-balancer.toml"
    refused "a balancer with an unknown key" balances "$work/mcp-resume-balancer.toml"
    sed -i '/^RuntimeDirectoryPreserve=/d' "$work/mcp-resume-balancer@.service"
    refused "a socket that is removed with the first balancer" hands_over "$work"
}

check_unit() {
    local unit=$1 role=$2
    # systemd checks that the program exists; the built one is elsewhere.
    sed "s|/usr/local/bin/mcp-resume|$binary|" "deploy/systemd/$unit" >"$work/$unit"
    grep -q "^ExecStart=$binary $role " "$work/$unit" || die "$unit runs another program"
    verify_unit "$work/$unit" || die "systemd does not understand $unit"
    may_do_little "$work/$unit" || die "$unit has too many privileges: systemd-analyze security lists them"
    sed 's/^ProtectSystem=/ProtectSytem=/' "$work/$unit" >"$work/broken-$unit"
    refused "a unit with an unknown key" verify_unit "$work/broken-$unit"
    sed '/^ProtectSystem=/d; /^SystemCallFilter=/d; /^PrivateUsers=/d' "$work/$unit" >"$work/open-$unit"
    refused "a unit with few restrictions" may_do_little "$work/open-$unit"
    echo "deploy: systemd accepts $unit"
}

may_do_little() {
    systemd-analyze security --offline=true --threshold=15 "$1" >/dev/null
}

# `stops_after UNIT CONFIG KEY`: true if systemd waits for longer than that key.
stops_after() {
    [ "$(value_of TimeoutStopSec "deploy/systemd/$1")" -gt "$(value_of "$3" "deploy/systemd/$2")" ]
}

# True if a unit restarts after any number of failures, and is limited to twice the held bytes, which are 1 GiB by default.
stays_up() {
    [ "$(value_of StartLimitIntervalSec "$1")" = 0 ] && [ "$(value_of MemoryMax "$1")" = 2G ]
}

# True if a unit ends its main process before the others, lets programs compile at run time, and gives them a home that they can write to.
runs_programs() {
    [ "$(value_of KillMode "$1")" = mixed ] && ! grep -q '^MemoryDenyWriteExecute=' "$1" &&
        [ "$(value_of Environment "$1")" = "HOME=/var/lib/$(value_of StateDirectory "$1")" ]
}

# `value_of KEY FILE`: the value of a key in a unit or a configuration.
value_of() {
    sed -n "s/^$1 \{0,1\}= \{0,1\}//p" "$2" | tr -d '"'
}

balances() {
    "$python" deploy/test/balances.py "$binary" "$1"
}

# True if the socket is in a directory of systemd's that has one user and survives the first instance.
hands_over() {
    local unit=$1/mcp-resume-balancer@.service
    [ "$(dirname "$(value_of upgrade_socket "$1/mcp-resume-balancer.toml")")" = "/run/$(value_of RuntimeDirectory "$unit")" ] &&
        [ "$(value_of RuntimeDirectoryPreserve "$unit")" = yes ] && [ -n "$(value_of User "$unit")" ]
}

compose() {
    "$tools/venv/bin/docker-compose" --file "$1" --project-directory deploy config --quiet
}

check_compose() {
    compose deploy/compose.yaml || die "compose refuses compose.yaml"
    # The variables are the proxy's whole configuration.
    "$python" - deploy/compose.yaml <<'PY' >"$work/environment"
import sys, yaml
for name, value in yaml.safe_load(open(sys.argv[1]))["services"]["mcp-resume"]["environment"].items():
    print(f"{name}={value}")
PY
    mapfile -t environment <"$work/environment"
    env -i "${environment[@]}" "$binary" check >/dev/null || die "the proxy refuses the configuration in compose.yaml"
    sed 's/stop_grace_period/stop_grace_time/' deploy/compose.yaml >"$work/compose.yaml"
    refused "a compose file with an unknown key" compose "$work/compose.yaml"
    echo "deploy: compose accepts compose.yaml"
}

check_image() {
    hadolint deploy/Dockerfile || die "hadolint refuses the Dockerfile"
    hadolint deploy/Dockerfile.stdio || die "hadolint refuses Dockerfile.stdio"
    sed 's/^USER .*/USER root/; s/:1.95-bookworm//' deploy/Dockerfile >"$work/Dockerfile"
    manifests_suffice "$work/manifests" || die "the Dockerfile copies too few files for the layer of dependencies"
    refused "an image of root" hadolint "$work/Dockerfile"
    "$python" deploy/test/image.py "$image"
}

# True if Cargo finds every target of the workspace in the files of the layer of dependencies, with the lock file unchanged. Nothing is
# built.
manifests_suffice() {
    mkdir -p "$1"
    sed -n 's/^COPY \(Cargo.*\|bench.*\|src.*\|deploy\/build-dependencies.sh .*\)$/\1/p' deploy/Dockerfile | while read -r line; do
        for file in $line; do
            [ -f "$file" ] && install -D "$file" "$1/$file"
        done
    done
    printf '#!/bin/sh\nexec cargo metadata --locked --offline --filter-platform x86_64-unknown-linux-gnu --format-version 1 >/dev/null\n' >"$1/cargo"
    chmod +x "$1/cargo"
    (cd "$1" && env -u CARGO_TARGET_DIR CARGO="$1/cargo" deploy/build-dependencies.sh balancer)
}

hadolint() {
    "$tools/venv/bin/hadolint" --no-color "$@"
}

# The static program of an image in the tests' profile, with the balancer and the dependencies of the other debug builds; `make image` makes
# the real ones, and checks the size. What a debugger reads would be copied and packed many times.
. tests/features.sh
image=$work/layout
PROFILE=dev deploy/build-static.sh "$image" "$FEATURES"
binary=$image/mcp-resume
strip "$binary"

# The longest first.
beside stdio_image "$python" deploy/test/stdio_image.py "$image"
beside release deploy/test/release.sh "$binary" $all
beside helm "$python" deploy/test/helm.py "$tools/venv/bin/kubectl" "$binary"
beside kubernetes "$python" deploy/test/kubernetes.py "$tools/venv/bin/kubectl" "$binary"
beside alerts check_alerts
beside image check_image
beside units check_units
beside nginx check_nginx
beside shared_store "$python" deploy/test/shared_store.py "$binary"
beside compose check_compose
beside workflows "$python" deploy/test/workflows.py "$tools/zizmor"
all_ended
[ -n "$all" ] || echo "deploy: only with --all: the bytes of two releases of the real program compared, and the balancer's image run"
