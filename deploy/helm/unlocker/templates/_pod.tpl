{{/* What the daemon's pods and the test pod have in common. */}}
{{- define "unlocker.podSpec" -}}
serviceAccountName: {{ include "unlocker.serviceAccountName" . | quote }}
automountServiceAccountToken: false
# Otherwise a Service named unlocker would add UNLOCKER_… variables to the pods.
enableServiceLinks: false
{{- with concat (.Values.global.imagePullSecrets | default list) .Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - {{ ternary (dict "name" .) . (kindIs "string" .) | toJson }}
  {{- end }}
{{- end }}
securityContext:
  {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.hostAliases }}
hostAliases:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.dnsPolicy }}
dnsPolicy: {{ . }}
{{- end }}
{{- with .Values.dnsConfig }}
dnsConfig:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The daemon's container, except its name. */}}
{{- define "unlocker.container" -}}
image: {{ include "unlocker.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
# `kubectl describe pod` shows why the daemon did not start.
terminationMessagePolicy: FallbackToLogsOnError
args:
  - serve
  - --config=/etc/unlocker/unlocker.yaml
  {{- if and .Values.existingConfigMap (not .Values.web.enabled) }}
  - --web-listen=
  {{- end }}
  {{- with .Values.extraArgs }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
env:
  {{- include "unlocker.memoryEnv" . | nindent 2 }}
  {{- with include "unlocker.configEnv" . | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with .Values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .Values.extraEnvFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
ports:
  - name: ops
    containerPort: {{ .Values.ops.port }}
    protocol: TCP
  {{- if .Values.web.enabled }}
  - name: web
    containerPort: {{ .Values.web.port }}
    protocol: TCP
  {{- end }}
livenessProbe:
  {{- include "unlocker.probe" (list . "/livez") | nindent 2 }}
  {{- toYaml .Values.livenessProbe | nindent 2 }}
readinessProbe:
  {{- include "unlocker.probe" (list . "/readyz") | nindent 2 }}
  {{- toYaml .Values.readinessProbe | nindent 2 }}
{{- with .Values.preStopSleepSeconds }}
lifecycle:
  preStop:
    sleep:
      seconds: {{ . }}
{{- end }}
resources:
  {{- toYaml .Values.resources | nindent 2 }}
securityContext:
  {{- toYaml .Values.securityContext | nindent 2 }}
volumeMounts:
  {{- include "unlocker.volumeMounts" . | nindent 2 }}
  {{- with .Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "unlocker.probe" -}}
{{- $root := index . 0 -}}
{{- if eq $root.Values.ops.probe "tcp" -}}
tcpSocket:
  port: ops
{{- else -}}
httpGet:
  path: {{ index . 1 }}
  port: ops
  scheme: {{ upper $root.Values.ops.scheme }}
{{- end -}}
{{- end -}}

{{/* MEMORY_LIMIT_MIB is in units of 1,048,576 bytes, GOMEMLIMIT of 1,000,000: that leaves 4.6 % of the limit for memory outside the Go runtime. */}}
{{- define "unlocker.memoryEnv" -}}
{{- if .Values.goMemLimit -}}
- name: GOMEMLIMIT
  value: {{ .Values.goMemLimit | quote }}
{{- else -}}
- name: MEMORY_LIMIT_MIB
  valueFrom:
    resourceFieldRef:
      containerName: unlocker
      resource: limits.memory
      divisor: 1Mi
- name: GOMEMLIMIT
  value: $(MEMORY_LIMIT_MIB)000000B
{{- end }}
{{- end -}}

{{- define "unlocker.configEnv" -}}
{{- if .Values.existingConfigMap -}}
{{- include "unlocker.keysEnv" (list "UNLOCKER" (include "unlocker.determined" . | fromYaml)) -}}
{{- end -}}
{{- with .Values.etcd.auth -}}
{{- if and .existingSecret .usernameKey }}
- name: UNLOCKER_ETCD_USERNAME
  valueFrom:
    secretKeyRef:
      name: {{ .existingSecret | quote }}
      key: {{ .usernameKey | quote }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "unlocker.volumeMounts" -}}
- name: config
  mountPath: /etc/unlocker
  readOnly: true
{{- if .Values.etcd.tls.existingSecret }}
- name: etcd-tls
  mountPath: {{ include "unlocker.etcdTLSDir" . }}
  readOnly: true
{{- end }}
{{- if .Values.etcd.auth.existingSecret }}
- name: etcd-auth
  mountPath: {{ include "unlocker.etcdAuthDir" . }}
  readOnly: true
{{- end }}
{{- range $name := list "ops" "web" }}
{{- if (get $.Values $name).webConfig.existingSecret }}
- name: {{ $name }}-listener
  mountPath: {{ include "unlocker.webConfigDir" $name }}
  readOnly: true
{{- end }}
{{- end }}
{{- end -}}

{{/* Modes are decimal, because YAML 1.1 and 1.2 disagree on octal numbers: 288 is 0440. */}}
{{- define "unlocker.volumes" -}}
- name: config
  configMap:
    name: {{ .Values.existingConfigMap | default (include "unlocker.fullname" .) | quote }}
{{- with .Values.etcd.tls.existingSecret }}
- name: etcd-tls
  secret:
    secretName: {{ . | quote }}
    defaultMode: 288
{{- end }}
{{- with .Values.etcd.auth }}
{{- if .existingSecret }}
- name: etcd-auth
  secret:
    secretName: {{ .existingSecret | quote }}
    defaultMode: 288
    items:
      - key: {{ .passwordKey | quote }}
        path: {{ .passwordKey | quote }}
{{- end }}
{{- end }}
{{- range $name := list "ops" "web" }}
{{- with (get $.Values $name).webConfig }}
{{- if .existingSecret }}
- name: {{ $name }}-listener
  projected:
    defaultMode: 288
    sources:
      - secret:
          name: {{ .existingSecret | quote }}
      {{- if .tlsSecret }}
      - secret:
          name: {{ .tlsSecret | quote }}
      {{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}
