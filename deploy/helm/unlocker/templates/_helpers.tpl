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

{{- define "unlocker.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (ternary (include "unlocker.fullname" .) "default" .Values.serviceAccount.create) -}}
{{- end -}}

{{- define "unlocker.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{/* Seconds of a Go duration, rounded up. */}}
{{- define "unlocker.seconds" -}}
{{- $units := dict "h" 3600.0 "m" 60.0 "s" 1.0 "ms" 0.001 "us" 0.000001 "µs" 0.000001 "ns" 0.000000001 -}}
{{- $sum := 0.0 -}}
{{- range regexFindAll "[0-9.]+[a-zµ]+" (toString .) -1 -}}
{{- $sum = addf $sum (mulf (regexFind "[0-9.]+" . | float64) (get $units (regexFind "[a-zµ]+" .))) -}}
{{- end -}}
{{- ceil $sum | int64 -}}
{{- end -}}

{{- define "unlocker.minReadySeconds" -}}
{{- if kindIs "invalid" .Values.minReadySeconds -}}
{{- add (include "unlocker.seconds" (dig "reaper" "settle" "15s" .Values.config)) 5 -}}
{{- else -}}
{{- .Values.minReadySeconds -}}
{{- end -}}
{{- end -}}

{{- define "unlocker.webPath" -}}
{{- dig "web" "path_prefix" "" .Values.config | trimAll "/" | printf "/%s" -}}
{{- end -}}

{{/* URL inside the cluster, without a trailing slash. */}}
{{- define "unlocker.webURL" -}}
{{- printf "%s://%s-web.%s.svc:%d%s" .Values.web.scheme (include "unlocker.fullname" .) .Release.Namespace
  (int .Values.web.service.port) (include "unlocker.webPath" . | trimSuffix "/") -}}
{{- end -}}

{{/* URL at which people reach the web listener, without a trailing slash. */}}
{{- define "unlocker.dashboardURL" -}}
{{- if .Values.prometheusRule.dashboardURL -}}
{{- trimSuffix "/" .Values.prometheusRule.dashboardURL -}}
{{- else if and .Values.ingress.enabled .Values.ingress.hosts -}}
{{- printf "%s://%s%s" (ternary "https" "http" (gt (len .Values.ingress.tls) 0)) (first .Values.ingress.hosts)
  (include "unlocker.webPath" . | trimSuffix "/") -}}
{{- else -}}
{{- include "unlocker.webURL" . -}}
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
  | replace "http://unlocker.example.com" (include "unlocker.dashboardURL" $root)
  | replace "https://github.com/etcd-unlocker/unlocker/blob/main/docs/runbooks/" (printf "%s/" (trimSuffix "/" $root.Values.prometheusRule.runbookURL)) -}}
{{- end -}}

{{/* Ports of the endpoints, as JSON. A unix socket has none; it gets 2379 rather than a rule for all ports. */}}
{{- define "unlocker.etcdPorts" -}}
{{- $ports := list -}}
{{- range .Values.config.etcd.endpoints -}}
{{- $ports = append $ports (regexFind "[0-9]+/?$" . | trimSuffix "/" | default "2379" | int) -}}
{{- end -}}
{{- uniq $ports | toJson -}}
{{- end -}}

{{- define "unlocker.testLabels" -}}
app.kubernetes.io/name: {{ include "unlocker.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: test
{{- end -}}
