#!/bin/sh
# alerts.yaml as the Prometheus operator takes it: for-operator.sh >../kubernetes/monitoring/prometheusrule.yaml
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
# What comes before the groups is about the plain file.
sed -n '/^groups:/,$ { /./ s/^/  /; p }' "$(dirname "$0")/alerts.yaml"
