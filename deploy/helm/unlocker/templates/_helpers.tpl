{{- define "unlocker.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* 50 characters leave room for suffixes. */}}
{{- define "unlocker.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "unlocker.namespace" -}}
{{- .Values.namespaceOverride | default .Release.Namespace -}}
{{- end -}}

{{/* Constant for the life of a release, because a Deployment's selector is immutable. */}}
{{- define "unlocker.selectorLabels" -}}
app.kubernetes.io/name: {{ include "unlocker.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: daemon
{{- end -}}

{{/* Takes the root and the component: (list $ "ops"). */}}
{{- define "unlocker.labels" -}}
{{- $root := index . 0 -}}
{{- $labels := dict
  "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-")
  "app.kubernetes.io/name" (include "unlocker.name" $root)
  "app.kubernetes.io/instance" $root.Release.Name
  "app.kubernetes.io/version" ($root.Chart.AppVersion | replace "+" "_")
  "app.kubernetes.io/component" (index . 1)
  "app.kubernetes.io/part-of" "unlocker"
  "app.kubernetes.io/managed-by" $root.Release.Service -}}
{{- toYaml (merge $labels $root.Values.commonLabels) -}}
{{- end -}}

{{/* Metadata of an object. Takes root and component and, optionally, name or suffix, namespace, labels and annotations. */}}
{{- define "unlocker.metadata" -}}
name: {{ .name | default (printf "%s%s" (include "unlocker.fullname" .root) (.suffix | default "")) | quote }}
namespace: {{ .namespace | default (include "unlocker.namespace" .root) | quote }}
labels:
  {{- $labels := include "unlocker.labels" (list .root .component) | fromYaml }}
  {{- toYaml (merge $labels (.labels | default dict)) | nindent 2 }}
{{- with merge (dict) (.annotations | default dict) .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "unlocker.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (ternary (include "unlocker.fullname" .) "default" .Values.serviceAccount.create) -}}
{{- end -}}

{{- define "unlocker.image" -}}
{{- $repository := .Values.image.repository -}}
{{- with .Values.global.imageRegistry | default .Values.image.registry -}}
{{- $repository = printf "%s/%s" (trimSuffix "/" .) (regexReplaceAll "^([^/]*[.:][^/]*|localhost)/" $repository "") -}}
{{- end -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" $repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{/* Seconds of a Go duration, with a fraction. */}}
{{- define "unlocker.seconds" -}}
{{- $units := dict "h" 3600.0 "m" 60.0 "s" 1.0 "ms" 0.001 "us" 0.000001 "µs" 0.000001 "ns" 0.000000001 -}}
{{- $sum := 0.0 -}}
{{- range regexFindAll "[0-9.]+[a-zµ]+" (toString .) -1 -}}
{{- $sum = addf $sum (mulf (regexFind "[0-9.]+" . | float64) (get $units (regexFind "[a-zµ]+" .))) -}}
{{- end -}}
{{- $sum -}}
{{- end -}}

{{- define "unlocker.minReadySeconds" -}}
{{- if kindIs "invalid" .Values.minReadySeconds -}}
{{- add (include "unlocker.seconds" (dig "reaper" "settle" "15s" .Values.config) | float64 | ceil | int64) 5 -}}
{{- else -}}
{{- .Values.minReadySeconds -}}
{{- end -}}
{{- end -}}

{{- define "unlocker.webPath" -}}
{{- dig "web" "path_prefix" "" .Values.config | trimAll "/" | printf "/%s" -}}
{{- end -}}

{{/* URL inside the cluster, without a trailing slash. */}}
{{- define "unlocker.webURL" -}}
{{- printf "%s://%s-web.%s.svc:%d%s" .Values.web.scheme (include "unlocker.fullname" .) (include "unlocker.namespace" .)
  (int .Values.web.service.port) (include "unlocker.webPath" . | trimSuffix "/") -}}
{{- end -}}

{{/* URL at which users reach the web listener, without a trailing slash; empty if it is not known. */}}
{{- define "unlocker.dashboardURL" -}}
{{- if .Values.prometheusRule.dashboardURL -}}
{{- trimSuffix "/" .Values.prometheusRule.dashboardURL -}}
{{- else if and .Values.ingress.enabled .Values.ingress.hosts -}}
{{- printf "%s://%s%s" (ternary "https" "http" (gt (len .Values.ingress.tls) 0)) (first .Values.ingress.hosts)
  (include "unlocker.webPath" . | trimSuffix "/") -}}
{{- end -}}
{{- end -}}

{{/* A file of the chart, with links to this release. */}}
{{- define "unlocker.file" -}}
{{- $root := index . 0 -}}
{{- $text := $root.Files.Get (index . 1) -}}
{{- if not $text -}}
{{- fail (printf "%s is missing from the chart" (index . 1)) -}}
{{- end -}}
{{- $text
  | replace "http://unlocker.example.com" (include "unlocker.dashboardURL" $root | default "http://unlocker.example.com")
  | replace "https://github.com/etcd-unlocker/unlocker/blob/main/docs/runbooks/" (printf "%s/" (trimSuffix "/" $root.Values.prometheusRule.runbookURL)) -}}
{{- end -}}

{{/* What the Services have in common: (list $ values). */}}
{{- define "unlocker.serviceSpec" -}}
selector:
  {{- include "unlocker.selectorLabels" (index . 0) | nindent 2 }}
{{- with (index . 1).ipFamilyPolicy }}
ipFamilyPolicy: {{ . }}
{{- end }}
{{- with (index . 1).ipFamilies }}
ipFamilies:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Ports of the endpoints, as JSON. A unix socket has none; it gets 2379 rather than a rule for all ports. */}}
{{- define "unlocker.etcdPorts" -}}
{{- $ports := list -}}
{{- range .Values.config.etcd.endpoints -}}
{{- $ports = append $ports (regexFind "[0-9]+/?$" . | trimSuffix "/" | default "2379" | int) -}}
{{- end -}}
{{- $ports | default (list 2379) | uniq | toJson -}}
{{- end -}}

{{- define "unlocker.testLabels" -}}
app.kubernetes.io/name: {{ include "unlocker.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: test
{{- end -}}
