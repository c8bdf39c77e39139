{{/* Requirements that the schema cannot express, or whose reason it cannot tell. */}}
{{- define "mcp-resume.validate" -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" (include "mcp-resume.prefix" .)) -}}
{{- fail "the release's name begins with no letter, or has a dot, which names of Services may not: set nameOverride" -}}
{{- end -}}
{{- if not (hasKey .Values "podNetworks") -}}
{{- fail "podNetworks is required: the networks of your pods' addresses, as [\"10.244.0.0/16\"]" -}}
{{- end -}}
{{- if not .Values.image.repository -}}
{{- fail "image.repository is required: your image of mcp-resume" -}}
{{- end -}}
{{- if .Values.server.enabled -}}
{{- if not .Values.server.image.repository -}}
{{- fail "server.image.repository is required: your MCP server; with a Deployment of its own set server.enabled to false" -}}
{{- end -}}
{{- if not (or .Values.server.image.tag .Values.server.image.digest) -}}
{{- fail "server.image.tag or server.image.digest is required" -}}
{{- end -}}
{{- if .Values.server.podLabels -}}
{{- fail "server.podLabels is for server.enabled: false" -}}
{{- end -}}
{{- else if not .Values.server.podLabels -}}
{{- if or .Values.balancer.enabled .Values.ingress.enabled .Values.gateway.enabled .Values.monitoring.serviceMonitor.enabled -}}
{{- fail "server.podLabels is required with server.enabled: false: the labels of your Deployment's pods" -}}
{{- end -}}
{{- if and (eq .Values.store.kind "redis") .Values.store.redis.bundled .Values.networkPolicy.enabled -}}
{{- fail "server.podLabels is required with server.enabled: false and the bundled Redis, whose NetworkPolicy admits these pods" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.balancer.enabled (not .Values.balancer.image.repository) -}}
{{- fail "balancer.image.repository is required: your image of mcp-resume with the balancer" -}}
{{- end -}}
{{- if eq .Values.store.kind "redis" -}}
{{- $redis := .Values.store.redis -}}
{{- if and $redis.existingSecret (or $redis.password $redis.url) -}}
{{- fail "store.redis.existingSecret takes the place of store.redis.password and store.redis.url" -}}
{{- end -}}
{{- if $redis.bundled -}}
{{- if not (or $redis.password $redis.existingSecret) -}}
{{- fail "store.redis.password or store.redis.existingSecret is required" -}}
{{- end -}}
{{- if $redis.url -}}
{{- fail "store.redis.url is for store.redis.bundled: false" -}}
{{- end -}}
{{- else -}}
{{- if not (or $redis.url $redis.existingSecret) -}}
{{- fail "store.redis.url or store.redis.existingSecret is required without the bundled Redis" -}}
{{- end -}}
{{- if $redis.password -}}
{{- fail "store.redis.password is for the bundled Redis: write it into store.redis.url" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $name, $tls := dict "sidecar" .Values.sidecar.tls "balancer" .Values.balancer.tls -}}
{{- if and $tls.clientCa (not $tls.secret) -}}
{{- fail (printf "%s.tls.clientCa is a key of the Secret in %s.tls.secret, which is required" $name $name) -}}
{{- end -}}
{{- end -}}
{{- if .Values.balancer.enabled -}}
{{- if and .Values.sidecar.tls.clientCa (not .Values.balancer.tls.clientSecret) -}}
{{- fail "balancer.tls.clientSecret is required with sidecar.tls.clientCa: sidecars refuse a balancer without a certificate" -}}
{{- end -}}
{{- if and .Values.balancer.tls.clientSecret (not .Values.sidecar.tls.clientCa) -}}
{{- fail "balancer.tls.clientSecret is for sidecar.tls.clientCa: no sidecar asks for a certificate" -}}
{{- end -}}
{{- else if or .Values.balancer.tls.secret .Values.balancer.tls.clientSecret -}}
{{- fail "balancer.tls is for balancer.enabled: true; without a balancer clients reach the sidecars: sidecar.tls" -}}
{{- end -}}
{{- $delay := include "mcp-resume.drainDelay" . | int64 -}}
{{- $timeout := include "mcp-resume.drainTimeout" . | int64 -}}
{{- if le $timeout $delay -}}
{{- fail "replica.drain_timeout_secs counts from the beginning of the drain, as replica.drain_delay_secs: it has to be longer" -}}
{{- end -}}
{{- if and .Values.balancer.enabled (le $delay 35) -}}
{{- fail "replica.drain_delay_secs has to exceed 35 with the balancer: answers of the DNS may be 30 s old, and it asks every 5 s" -}}
{{- end -}}
{{- range list "ingress" "gateway" -}}
{{- $entrance := index $.Values . -}}
{{- if and $entrance.enabled (not $entrance.host) -}}
{{- fail (printf "%s.host is required" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
