{{- define "unlocker.etcdTLSDir" -}}/etc/unlocker-secrets/etcd-tls{{- end -}}
{{- define "unlocker.etcdAuthDir" -}}/etc/unlocker-secrets/etcd-auth{{- end -}}

{{/* Directory of a listener's web configuration: (list "ops"). */}}
{{- define "unlocker.webConfigDir" -}}
{{- printf "/etc/unlocker-secrets/%s-listener" . -}}
{{- end -}}

{{/* The daemon's configuration file: .Values.config, and keys that other values determine. */}}
{{- define "unlocker.config" -}}
{{- toYaml (mergeOverwrite (deepCopy .Values.config) (include "unlocker.determined" . | fromYaml)) -}}
{{- end -}}

{{/* The keys of the configuration that other values determine. */}}
{{- define "unlocker.determined" -}}
{{- $config := .Values.config -}}
{{- include "unlocker.refuse" (list $config "etcd" "password" "it would be readable in the ConfigMap; put it in a Secret and set etcd.auth.existingSecret") -}}
{{- include "unlocker.refuse" (list $config "ops" "listen" "set ops.port") -}}
{{- include "unlocker.refuse" (list $config "web" "listen" "set web.port, or web.enabled to false") -}}
{{- $etcd := dict -}}
{{- $tls := .Values.etcd.tls -}}
{{- if $tls.existingSecret -}}
{{- $files := dict -}}
{{- range $file, $key := dict "ca_file" $tls.caKey "cert_file" $tls.certKey "key_file" $tls.keyKey -}}
{{- if $key -}}
{{- $_ := set $files $file (printf "%s/%s" (include "unlocker.etcdTLSDir" $) $key) -}}
{{- if hasKey (dig "etcd" "tls" dict $config) $file -}}
{{- fail (printf "config.etcd.tls.%s: cannot be combined with etcd.tls.existingSecret" $file) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $_ := set $etcd "tls" $files -}}
{{- end -}}
{{- $auth := .Values.etcd.auth -}}
{{- if $auth.existingSecret -}}
{{- include "unlocker.refuse" (list $config "etcd" "password_file" "cannot be combined with etcd.auth.existingSecret") -}}
{{- $_ := set $etcd "password_file" (printf "%s/%s" (include "unlocker.etcdAuthDir" .) $auth.passwordKey) -}}
{{- end -}}
{{- $set := dict "etcd" $etcd
  "ops" (dict "listen" (printf ":%d" (int .Values.ops.port)))
  "web" (dict "listen" (ternary (printf ":%d" (int .Values.web.port)) "" .Values.web.enabled)) -}}
{{- range $name := list "ops" "web" -}}
{{- $listener := get $.Values $name -}}
{{- if $listener.webConfig.existingSecret -}}
{{- include "unlocker.refuse" (list $config $name "web_config_file" (printf "cannot be combined with %s.webConfig.existingSecret" $name)) -}}
{{- $_ := set (get $set $name) "web_config_file" (printf "%s/%s" (include "unlocker.webConfigDir" $name) $listener.webConfig.key) -}}
{{- end -}}
{{- end -}}
{{- toYaml $set -}}
{{- end -}}

{{/* Keys of the configuration as environment variables, which override a file: (list "UNLOCKER" keys). An empty variable counts as
unset; there is one key that can be empty, web.listen, which is an argument instead. */}}
{{- define "unlocker.keysEnv" -}}
{{- range $key, $value := index . 1 -}}
{{- $name := printf "%s_%s" (index $ 0) (upper $key) -}}
{{- if kindIs "map" $value -}}
{{- include "unlocker.keysEnv" (list $name $value) -}}
{{- else if $value }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Fails if a key is set in config: (list config section key why). */}}
{{- define "unlocker.refuse" -}}
{{- if dig (index . 1) (index . 2) "" (index . 0) -}}
{{- fail (printf "config.%s.%s: %s" (index . 1) (index . 2) (index . 3)) -}}
{{- end -}}
{{- end -}}
