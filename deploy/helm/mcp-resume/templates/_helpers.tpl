{{/* The prefix of all names: the release's own, so that several releases have room in a namespace. */}}
{{- define "mcp-resume.prefix" -}}
{{- default .Release.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* Helm's labels, of every object. */}}
{{- define "mcp-resume.commonLabels" -}}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* The labels of a component: (list . "mcp-server"). */}}
{{- define "mcp-resume.labels" -}}
app.kubernetes.io/name: {{ index . 1 }}
app.kubernetes.io/part-of: mcp-resume
{{ include "mcp-resume.commonLabels" (index . 0) }}
{{- end -}}

{{- define "mcp-resume.selector" -}}
app.kubernetes.io/name: {{ index . 1 }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
{{- end -}}

{{- define "mcp-resume.podLabels" -}}
app.kubernetes.io/part-of: mcp-resume
{{ include "mcp-resume.selector" . }}
{{- end -}}

{{/* The labels of the pods with a sidecar: the chart's own, or those of an existing Deployment. Empty without either. */}}
{{- define "mcp-resume.serverSelector" -}}
{{- if .Values.server.enabled -}}
{{ include "mcp-resume.selector" (list . "mcp-server") }}
{{- else if .Values.server.podLabels -}}
{{ toYaml .Values.server.podLabels }}
{{- end -}}
{{- end -}}

{{/* An image: (list . .Values.image DEFAULT-TAG). */}}
{{- define "mcp-resume.image" -}}
{{- $image := index . 1 -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ default (index . 2) $image.tag }}
{{- end -}}
{{- end -}}

{{/* A value of a setting in the environment. All numbers of the configuration are whole. */}}
{{- define "mcp-resume.text" -}}
{{- if kindIs "slice" . -}}
{{ join "," . }}
{{- else if or (kindIs "bool" .) (kindIs "string" .) -}}
{{ . }}
{{- else -}}
{{ int64 . }}
{{- end -}}
{{- end -}}

{{/* Settings as variables, which are stronger than the file. */}}
{{- define "mcp-resume.settings" -}}
{{- range $section, $keys := . }}
{{- range $key, $value := $keys }}
{{- if eq (printf "%s.%s" $section $key) "upstream.headers" }}
- name: MCP_RESUME_UPSTREAM__HEADERS
  value: {{ toJson $value | quote }}
{{- else if kindIs "map" $value }}
{{- range $inner, $innerValue := $value }}
- name: {{ printf "MCP_RESUME_%s__%s__%s" $section $key $inner | upper }}
  value: {{ include "mcp-resume.text" $innerValue | quote }}
{{- end }}
{{- else }}
- name: {{ printf "MCP_RESUME_%s__%s" $section $key | upper }}
  {{- /* The items of this list may have commas. */}}
  value: {{ eq (printf "%s.%s" $section $key) "otel.headers" | ternary (toJson $value) (include "mcp-resume.text" $value) | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The listener's TLS: (dict "secret" NAME "clientCa" KEY). Variables, the mount and the volume of its Secret. */}}
{{- define "mcp-resume.tlsSettings" -}}
{{- if .secret }}
- name: MCP_RESUME_LISTEN__TLS__CERT
  value: /etc/mcp-resume-tls/tls.crt
- name: MCP_RESUME_LISTEN__TLS__KEY
  value: /etc/mcp-resume-tls/tls.key
{{- with .clientCa }}
- name: MCP_RESUME_LISTEN__TLS__CLIENT_CA
  value: /etc/mcp-resume-tls/{{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "mcp-resume.tlsMount" -}}
{{- if .secret }}
# A folder, and no file by subPath, which would keep its first contents.
- name: mcp-resume-tls
  mountPath: /etc/mcp-resume-tls
  readOnly: true
{{- end }}
{{- end -}}

{{- define "mcp-resume.tlsVolume" -}}
{{- with .secret }}
- name: mcp-resume-tls
  secret:
    secretName: {{ . }}
{{- end }}
{{- end -}}

{{/* The TLS of the clients' entrance: of the balancer, or of the sidecars. */}}
{{- define "mcp-resume.entranceTls" -}}
{{ ternary .Values.balancer .Values.sidecar .Values.balancer.enabled | dig "tls" "secret" "" }}
{{- end -}}

{{/* A number: of the settings, or else of a file of the chart: (list . SETTINGS SECTION KEY FILE). */}}
{{- define "mcp-resume.number" -}}
{{- $root := index . 0 -}}
{{- $key := index . 3 -}}
{{- $said := dig (index . 2) $key "" (index . 1) -}}
{{- if not (kindIs "string" $said) -}}
{{ int64 $said }}
{{- else -}}
{{- $line := regexFind (printf "(?m)^%s = [0-9_]+" $key) ($root.Files.Get (index . 4)) | required (printf "%s has no %s" (index . 4) $key) -}}
{{ regexFind "[0-9_]+$" $line | replace "_" "" }}
{{- end -}}
{{- end -}}

{{- define "mcp-resume.drainDelay" -}}
{{ include "mcp-resume.number" (list . .Values.sidecar.settings "replica" "drain_delay_secs" "files/sidecar.toml") }}
{{- end -}}

{{- define "mcp-resume.drainTimeout" -}}
{{ include "mcp-resume.number" (list . .Values.sidecar.settings "replica" "drain_timeout_secs" "files/sidecar.toml") }}
{{- end -}}

{{/* Twice streams.max_bytes_total. */}}
{{- define "mcp-resume.sidecarMemory" -}}
{{- $held := dig "streams" "max_bytes_total" 1073741824 .Values.sidecar.settings | int64 -}}
{{- $mebibytes := div (add (mul 2 $held) 1048575) 1048576 -}}
{{- if eq (mod $mebibytes 1024) 0 }}{{ div $mebibytes 1024 }}Gi{{ else }}{{ $mebibytes }}Mi{{ end -}}
{{- end -}}

{{/* 256 MiB and 64 KiB for each connection, and a seventh more. */}}
{{- define "mcp-resume.balancerMemory" -}}
{{- $connections := include "mcp-resume.number" (list . .Values.balancer.settings "limits" "connections" "files/balancer.toml") | int64 -}}
{{- $mebibytes := div (add (mul 8 (add 256 (div (add $connections 15) 16))) 6) 7 -}}
{{- if eq (mod $mebibytes 1024) 0 }}{{ div $mebibytes 1024 }}Gi{{ else }}{{ $mebibytes }}Mi{{ end -}}
{{- end -}}

{{/* Resources with a memory limit: (list RESOURCES DEFAULT). */}}
{{- define "mcp-resume.resources" -}}
{{- $limits := merge (dict) (index . 0).limits (dict "memory" (index . 1)) -}}
{{ toYaml (merge (dict "limits" $limits) (index . 0)) }}
{{- end -}}

{{- define "mcp-resume.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: ["ALL"]
{{- end -}}

{{/* No node or zone has all pods with these labels. */}}
{{- define "mcp-resume.spread" -}}
{{- $labels := . -}}
{{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
- maxSkew: 1
  topologyKey: {{ . }}
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels:
      {{- $labels | nindent 6 }}
{{- end }}
{{- end -}}

{{/* Where pods of a component may run: (dict with nodeSelector, tolerations, affinity, priorityClassName). */}}
{{- define "mcp-resume.placement" -}}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The configuration files. */}}
{{- define "mcp-resume.sidecarConfig" -}}
{{- $file := .Files.Get "files/sidecar.toml" -}}
{{- if dig "upstream" "sse_url" "" .Values.sidecar.settings -}}
{{- $file = regexReplaceAll "(?m)^url = .*$" $file "# sse_url comes from the environment." -}}
{{- end -}}
{{ $file }}
{{- range $tool, $keys := .Values.sidecar.tools }}
[tools.{{ toJson $tool }}]
{{- range $key, $value := $keys }}
{{ $key }} = {{ if kindIs "string" $value }}{{ toJson $value }}{{ else }}{{ include "mcp-resume.text" $value }}{{ end }}
{{- end }}
{{ end }}
{{- end -}}

{{- define "mcp-resume.balancerConfig" -}}
{{- $scheme := ternary "https" "http" (ne .Values.sidecar.tls.secret "") -}}
{{ .Files.Get "files/balancer.toml" | replace "http://mcp-sidecars" (printf "%s://%s-sidecars" $scheme (include "mcp-resume.prefix" .)) }}
{{- end -}}

{{- define "mcp-resume.redisSecret" -}}
{{ default (printf "%s-redis" (include "mcp-resume.prefix" .)) .Values.store.redis.existingSecret }}
{{- end -}}

{{/* The bundled Redis' users, with the password's hash as make-secret.sh writes it. */}}
{{- define "mcp-resume.redisUsers" -}}
{{- $on := printf "user mcp-resume on resetpass #%s resetkeys" (sha256sum .Values.store.redis.password) -}}
{{ regexReplaceAll "(?m)^user mcp-resume [^+~]*resetkeys" (.Files.Get "files/users.acl") $on }}
{{- end -}}

{{- define "mcp-resume.redisUrl" -}}
{{- if .Values.store.redis.bundled -}}
redis://mcp-resume:{{ .Values.store.redis.password }}@{{ include "mcp-resume.prefix" . }}-redis:6379
{{- else -}}
{{ .Values.store.redis.url }}
{{- end -}}
{{- end -}}

{{/* As limits.body_bytes, in nginx's notation. */}}
{{- define "mcp-resume.bodySize" -}}
{{- $bytes := dig "limits" "body_bytes" 16777216 .Values.sidecar.settings | int64 -}}
{{ div (add $bytes 1048575) 1048576 }}m
{{- end -}}

{{/* The namespace of a peer in a NetworkPolicy. */}}
{{- define "mcp-resume.namespace" -}}
- namespaceSelector:
    matchLabels:
      kubernetes.io/metadata.name: {{ . }}
{{- end -}}
