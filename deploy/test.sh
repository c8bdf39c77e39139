#!/usr/bin/env bash
# Checks everything in deploy/: what is said there is what the tools of its readers accept, and what runs is run. Gets those tools first
# (test/setup.sh). Each check is also shown something that it must refuse.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH=$PATH:/usr/sbin

deploy/test/setup.sh
tools=$PWD/target/tools/deploy
python=$tools/venv/bin/python
promtool=$(command -v promtool || echo "$tools/promtool")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

die() {
    echo "deploy/test.sh: $*" >&2
    exit 1
}

# `refused WHAT COMMAND...`: if the command accepts WHAT, it checks nothing.
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
    "$promtool" test rules deploy/prometheus/alerts_test.yaml || die "the alerts do not do what alerts_test.yaml says"
    diff -u deploy/kubernetes/monitoring/prometheusrule.yaml <(deploy/prometheus/for-operator.sh) ||
        die "prometheusrule.yaml is not what for-operator.sh makes of alerts.yaml: write it again"
    cp deploy/prometheus/*.yaml "$work"
    sed -i 's/mcp_resume_store_ready == 0/mcp_resume_store_ready == 1/' "$work/alerts.yaml"
    refused "an alert of a store that is there" "$promtool" test rules "$work/alerts_test.yaml"
    sed 's/condition="down"} > 0/condition="down"} > -1/' deploy/prometheus/alerts.yaml >"$work/alerts.yaml"
    refused "an alert of replicas that answer" "$promtool" test rules "$work/alerts_test.yaml"
    "$python" deploy/test/metrics.py "$promtool"
}

# systemd starts a unit with keys that it does not know, and says so.
verify_unit() {
    local said
    said=$(systemd-analyze verify --man=no "$1" 2>&1) && [ -z "$said" ] || { echo "$said" >&2; return 1; }
}

check_unit() {
    # The program must be there, and is wherever this was built.
    sed "s|/usr/local/bin/mcp-resume|$binary|" deploy/systemd/mcp-resume.service >"$work/mcp-resume.service"
    grep -q "^ExecStart=$binary serve" "$work/mcp-resume.service" || die "the unit runs another program"
    verify_unit "$work/mcp-resume.service" || die "systemd does not understand mcp-resume.service"
    systemd-analyze security --offline=true --threshold=15 "$work/mcp-resume.service" >/dev/null ||
        die "mcp-resume.service may do too much: systemd-analyze security says what"
    "$binary" check --config deploy/systemd/mcp-resume.toml >/dev/null || die "mcp-resume.toml is wrong"
    stops_after_the_drain
    sed 's/^ProtectSystem=/ProtectSytem=/' "$work/mcp-resume.service" >"$work/broken.service"
    refused "a unit with an unknown key" verify_unit "$work/broken.service"
    sed '/^ProtectSystem=/d; /^SystemCallFilter=/d; /^PrivateUsers=/d' "$work/mcp-resume.service" >"$work/open.service"
    refused "a unit that may do much" systemd-analyze security --offline=true --threshold=15 "$work/open.service"
    echo "deploy: systemd accepts mcp-resume.service"
}

stops_after_the_drain() {
    local drain stop
    drain=$(sed -n 's/^drain_timeout_secs = //p' deploy/systemd/mcp-resume.toml)
    stop=$(sed -n 's/^TimeoutStopSec=//p' deploy/systemd/mcp-resume.service)
    [ "$stop" -gt "$drain" ] || die "systemd waits for $stop s, and the drain takes $drain"
}

compose() {
    "$tools/venv/bin/docker-compose" --file "$1" --project-directory deploy config --quiet
}

check_compose() {
    compose deploy/compose.yaml || die "compose refuses compose.yaml"
    # Its variables are the proxy's whole configuration.
    "$python" - deploy/compose.yaml <<'PY' >"$work/environment"
import sys, yaml
for name, value in yaml.safe_load(open(sys.argv[1]))["services"]["mcp-resume"]["environment"].items():
    print(f"{name}={value}")
PY
    mapfile -t environment <"$work/environment"
    env -i "${environment[@]}" "$binary" check >/dev/null || die "compose.yaml configures what the proxy refuses"
    sed 's/stop_grace_period/stop_grace_time/' deploy/compose.yaml >"$work/compose.yaml"
    refused "a compose file with an unknown key" compose "$work/compose.yaml"
    echo "deploy: compose accepts compose.yaml"
}

check_image() {
    hadolint deploy/Dockerfile || die "hadolint refuses the Dockerfile"
    sed 's/^USER .*/USER root/; s/:1.95-bookworm//' deploy/Dockerfile >"$work/Dockerfile"
    refused "an image of root" hadolint "$work/Dockerfile"
    "$python" deploy/test/image.py "$work/image"
}

hadolint() {
    "$tools/venv/bin/hadolint" --no-color "$@"
}

# The same static program as in an image, but as the tests build it: `make image` makes the real one, and looks at its size.
PROFILE=dev deploy/build-static.sh "$work/image"
binary=$work/image/mcp-resume

check_nginx
check_alerts
check_unit
check_compose
"$python" deploy/test/kubernetes.py "$tools/venv/bin/kubectl" "$binary"
"$python" deploy/test/shared_store.py "$binary"
check_image
