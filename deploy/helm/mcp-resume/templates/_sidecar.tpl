{{/*
Named templates for the pod of an MCP server: the chart's own, and those of Deployments in other charts, which call them with
(index .Subcharts "mcp-resume"). README.md has an example.
*/}}

{{/* Of the Deployment's spec. */}}
{{- define "mcp-resume.minReadySeconds" -}}
{{/* The balancer finds a new pod by its name, and CoreDNS may answer from a cache of up to 30 s. The next pod is told to end only when all
balancers can find this one. */ -}}
minReadySeconds: {{ include "mcp-resume.drainDelay" . }}
{{- end -}}

{{/* Of the pod's annotations: a changed configuration is rolled out like a new image. */}}
{{- define "mcp-resume.podAnnotations" -}}
checksum/config: {{ printf "%s\n%s" (include "mcp-resume.sidecarConfig" .) (toJson .Values.podNetworks) | sha256sum }}
{{- if and (eq .Values.store.kind "redis") (not .Values.store.redis.existingSecret) }}
checksum/store: {{ include "mcp-resume.redisUrl" . | sha256sum }}
{{- end }}
{{- end -}}

{{/* Of the pod's spec. */}}
{{- define "mcp-resume.podSettings" -}}
# replica.drain_timeout_secs, counted from the beginning of the drain, and 30 s for the server's own shutdown afterwards.
terminationGracePeriodSeconds: {{ add (include "mcp-resume.drainTimeout" .) 30 }}
# Keeps the variables of a service called mcp-resume out of the environment.
enableServiceLinks: false
{{- end -}}

{{/* Of the pod's initContainers: a native sidecar, which starts before the server and ends after it. */}}
{{- define "mcp-resume.sidecar" -}}
{{- $prefix := include "mcp-resume.prefix" . -}}
- name: mcp-resume
  image: {{ include "mcp-resume.image" (list . .Values.image .Chart.AppVersion) }}
  {{- if ne .Values.image.pullPolicy "IfNotPresent" }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  {{- end }}
  restartPolicy: Always
  args: ["serve", "--config", "/etc/mcp-resume/mcp-resume.toml"]
  env:
    - name: MCP_RESUME_REPLICA__NAME
      valueFrom:
        fieldRef:
          fieldPath: metadata.name
    - name: MCP_RESUME_LISTEN__TRUSTED_PROXIES
      valueFrom:
        configMapKeyRef:
          name: {{ $prefix }}-network
          key: pods
    {{- if .Values.balancer.enabled }}
    # Session names with their owner.
    - name: MCP_RESUME_REPLICA__WRAP_SESSIONS
      value: "true"
    {{- end }}
    {{- if eq .Values.store.kind "disk" }}
    - name: MCP_RESUME_STORE__KIND
      value: disk
    - name: MCP_RESUME_STORE__PATH
      value: /var/lib/mcp-resume/store
    {{- else if eq .Values.store.kind "redis" }}
    - name: MCP_RESUME_STORE__KIND
      value: redis
    - name: MCP_RESUME_STORE__URL
      valueFrom:
        secretKeyRef:
          name: {{ include "mcp-resume.redisSecret" . }}
          key: url
    {{- end }}
    {{- with include "mcp-resume.tlsSettings" .Values.sidecar.tls | trim }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- with include "mcp-resume.settings" .Values.sidecar.settings | trim }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- with .Values.sidecar.env }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  ports:
    - name: mcp
      containerPort: 8080
    - name: admin
      containerPort: 9464
    - name: metrics
      containerPort: 9465
  # Liveness, not readiness: the sidecar is ready once it has reached the server, and the server starts only after this probe has succeeded.
  startupProbe:
    httpGet:
      path: /livez
      port: admin
    periodSeconds: 1
    failureThreshold: 60
  livenessProbe:
    httpGet:
      path: /livez
      port: admin
    periodSeconds: 10
    failureThreshold: 6
  # Readiness of the whole pod: the server was reached, the store accepts writes, no drain has begun.
  readinessProbe:
    httpGet:
      path: /readyz
      port: admin
    periodSeconds: 2
    failureThreshold: 2
  securityContext:
    {{- if not .Values.server.enabled }}
    # The server keeps its user.
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    seccompProfile:
      type: RuntimeDefault
    {{- end }}
    {{- include "mcp-resume.restricted" . | nindent 4 }}
  resources:
    {{- include "mcp-resume.resources" (list .Values.sidecar.resources (include "mcp-resume.sidecarMemory" .)) | nindent 4 }}
  volumeMounts:
    - name: {{ include "mcp-resume.configVolume" . }}
      mountPath: /etc/mcp-resume
      readOnly: true
    {{- if eq .Values.store.kind "disk" }}
    - name: mcp-resume-store
      mountPath: /var/lib/mcp-resume
    {{- end }}
    {{- with include "mcp-resume.tlsMount" .Values.sidecar.tls | trim }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- with .Values.sidecar.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{- define "mcp-resume.configVolume" -}}
{{ ternary "config" "mcp-resume" .Values.server.enabled }}
{{- end -}}

{{/* Of the pod's volumes. */}}
{{- define "mcp-resume.volumes" -}}
- name: {{ include "mcp-resume.configVolume" . }}
  configMap:
    name: {{ include "mcp-resume.prefix" . }}-sidecar
{{- if and (eq .Values.store.kind "disk") (not .Values.server.enabled) }}
# Survives a crash of the sidecar, but not its pod.
- name: mcp-resume-store
  emptyDir: {}
{{- end }}
{{- with include "mcp-resume.tlsVolume" .Values.sidecar.tls | trim }}
{{ . }}
{{- end }}
{{- with .Values.sidecar.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The server's container: a hook that answers when the drain is over. The server is told to end only then, and the sidecar only after the
server has ended. */}}
{{- define "mcp-resume.lifecycle" -}}
preStop:
  httpGet:
    path: /drain
    port: 9464
    httpHeaders:
      - name: X-Drain
        value: "1"
{{- end -}}
