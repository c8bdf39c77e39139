#!/bin/sh
# Converts alerts.yaml for the Prometheus operator: for-operator.sh >../kubernetes/monitoring/prometheusrule.yaml
set -eu
cat <<'HEAD'
# Written by deploy/prometheus/for-operator.sh, of deploy/prometheus/alerts.yaml.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: mcp-resume
  labels:
    app.kubernetes.io/part-of: mcp-resume
spec:
HEAD
# The comments before the groups describe the plain file.
sed -n '/^groups:/,$ { /./ s/^/  /; p }' "$(dirname "$0")/alerts.yaml"
