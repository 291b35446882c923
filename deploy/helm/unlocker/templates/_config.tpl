{{- define "unlocker.etcdTLSDir" -}}/etc/unlocker-secrets/etcd-tls{{- end -}}
{{- define "unlocker.etcdAuthDir" -}}/etc/unlocker-secrets/etcd-auth{{- end -}}

{{/* Directory of a listener's web configuration: (list "ops"). */}}
{{- define "unlocker.webConfigDir" -}}
{{- printf "/etc/unlocker-secrets/%s-listener" . -}}
{{- end -}}

{{/* The daemon's configuration file: .Values.config, and keys that other values determine. */}}
{{- define "unlocker.config" -}}
{{- $config := deepCopy .Values.config -}}
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
{{- toYaml (mergeOverwrite $config $set) -}}
{{- end -}}

{{/* Fails if a key is set in config: (list config section key why). */}}
{{- define "unlocker.refuse" -}}
{{- if dig (index . 1) (index . 2) "" (index . 0) -}}
{{- fail (printf "config.%s.%s: %s" (index . 1) (index . 2) (index . 3)) -}}
{{- end -}}
{{- end -}}

{{/* Relations between values that the schema cannot express; without them pods would not start or not work. */}}
{{- define "unlocker.validate" -}}
{{- $v := .Values -}}
{{- if not (dig "etcd" "endpoints" list $v.config) -}}
{{- fail "config.etcd.endpoints: list the etcd members, as in --set 'config.etcd.endpoints={https://etcd-0.etcd:2379}'" -}}
{{- end -}}
{{- if and $v.etcd.auth.existingSecret (not $v.etcd.auth.usernameKey) (not (dig "etcd" "username" "" $v.config)) -}}
{{- fail "etcd.auth.existingSecret: needs config.etcd.username, or etcd.auth.usernameKey" -}}
{{- end -}}
{{- if and $v.etcd.tls.existingSecret (ne (empty $v.etcd.tls.certKey) (empty $v.etcd.tls.keyKey)) -}}
{{- fail "etcd.tls: certKey and keyKey must be set together" -}}
{{- end -}}
{{- range $name := list "ops" "web" -}}
{{- $listener := get $v $name -}}
{{- if and $listener.webConfig.tlsSecret (not $listener.webConfig.existingSecret) -}}
{{- fail (printf "%s.webConfig.tlsSecret: needs %s.webConfig.existingSecret, whose web configuration names tls.crt and tls.key" $name $name) -}}
{{- end -}}
{{- $configured := or $listener.webConfig.existingSecret (dig $name "web_config_file" "" $v.config) -}}
{{- if and (eq $listener.scheme "https") (not $configured) -}}
{{- fail (printf "%s.scheme: https needs %s.webConfig.existingSecret" $name $name) -}}
{{- end -}}
{{- end -}}
{{- if and $v.ingress.enabled (not $v.web.enabled) -}}
{{- fail "ingress.enabled: requires web.enabled" -}}
{{- end -}}
{{- if and $v.ingress.enabled (not $v.ingress.hosts) -}}
{{- fail "ingress.hosts: name at least one host" -}}
{{- end -}}
{{- if and $v.web.enabled (eq (int $v.web.port) (int $v.ops.port)) -}}
{{- fail "web.port: must differ from ops.port" -}}
{{- end -}}
{{- if lt (int $v.terminationGracePeriodSeconds) (add (int $v.preStopSleepSeconds) 6 | int) -}}
{{- fail "terminationGracePeriodSeconds: must be at least preStopSleepSeconds + 6; the daemon needs up to five to stop" -}}
{{- end -}}
{{- end -}}
