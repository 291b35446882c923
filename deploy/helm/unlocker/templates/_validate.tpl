{{/* Relations between values that the schema cannot express; without them pods would not start or not work. */}}
{{- define "unlocker.validate" -}}
{{- $v := .Values -}}
{{- if $v.existingConfigMap -}}
{{- if ne (toJson $v.config) (toJson (dict "etcd" (dict "endpoints" list))) -}}
{{- fail "existingConfigMap: cannot be combined with config" -}}
{{- end -}}
{{- else if not (dig "etcd" "endpoints" list $v.config) -}}
{{- fail "config.etcd.endpoints: list the etcd members, as in --set 'config.etcd.endpoints={https://etcd-0.etcd:2379}'" -}}
{{- end -}}
{{- if and $v.etcd.auth.existingSecret (not $v.etcd.auth.usernameKey) (not (dig "etcd" "username" "" $v.config)) (not $v.existingConfigMap) -}}
{{- fail "etcd.auth.existingSecret: needs config.etcd.username, or etcd.auth.usernameKey" -}}
{{- end -}}
{{- if and $v.etcd.tls.existingSecret (ne (empty $v.etcd.tls.certKey) (empty $v.etcd.tls.keyKey)) -}}
{{- fail "etcd.tls: certKey and keyKey must be set together" -}}
{{- end -}}
{{- range (dig "etcd" "endpoints" list $v.config) -}}
{{- if and (hasPrefix "http://" .) (or $v.etcd.tls.existingSecret (dig "etcd" "tls" "" $v.config)) -}}
{{- fail (printf "config.etcd.endpoints: %s is plain text and cannot be combined with TLS" .) -}}
{{- end -}}
{{- end -}}
{{- range $name := list "ops" "web" -}}
{{- $listener := get $v $name -}}
{{- if and $listener.webConfig.tlsSecret (not $listener.webConfig.existingSecret) -}}
{{- fail (printf "%s.webConfig.tlsSecret: needs %s.webConfig.existingSecret, whose web configuration names tls.crt and tls.key" $name $name) -}}
{{- end -}}
{{- $configured := or $listener.webConfig.existingSecret (dig $name "web_config_file" "" $v.config) $v.existingConfigMap -}}
{{- if and (eq $listener.scheme "https") (not $configured) -}}
{{- fail (printf "%s.scheme: https needs %s.webConfig.existingSecret" $name $name) -}}
{{- end -}}
{{- end -}}
{{- $web := dig "web" dict $v.config -}}
{{- if and $web.allow_unlock (not $v.web.enabled) -}}
{{- fail "config.web.allow_unlock: requires web.enabled" -}}
{{- end -}}
{{- if and $web.allow_unlock (not (or $v.web.webConfig.existingSecret $web.web_config_file $web.user_header)) -}}
{{- fail "config.web.allow_unlock: needs users or client certificates in web.webConfig.existingSecret, or config.web.user_header" -}}
{{- end -}}
{{- if and $web.user_header (not $web.allow_unlock) -}}
{{- fail "config.web.user_header: has no effect without config.web.allow_unlock" -}}
{{- end -}}
{{- if and $v.ingress.enabled (not $v.web.enabled) -}}
{{- fail "ingress.enabled: requires web.enabled" -}}
{{- end -}}
{{- if and $v.ingress.enabled (not $v.ingress.hosts) -}}
{{- fail "ingress.hosts: name at least one host" -}}
{{- end -}}
{{- if and $v.httpRoute.enabled (not $v.web.enabled) -}}
{{- fail "httpRoute.enabled: requires web.enabled" -}}
{{- end -}}
{{- if and $v.httpRoute.enabled (not $v.httpRoute.parentRefs) -}}
{{- fail "httpRoute.parentRefs: name at least one Gateway" -}}
{{- end -}}
{{- if and $v.podMonitor.enabled $v.serviceMonitor.enabled -}}
{{- fail "podMonitor.enabled: cannot be combined with serviceMonitor.enabled: each replica would be scraped twice" -}}
{{- end -}}
{{- if and $v.web.enabled (eq (int $v.web.port) (int $v.ops.port)) -}}
{{- fail "web.port: must differ from ops.port" -}}
{{- end -}}
{{- if lt (int $v.terminationGracePeriodSeconds) (add (int $v.preStopSleepSeconds) 6 | int) -}}
{{- fail "terminationGracePeriodSeconds: must be at least preStopSleepSeconds + 6; the daemon needs up to five to stop" -}}
{{- end -}}
{{- range $v.prometheusRule.matchers -}}
{{- $label := regexFind "^[a-zA-Z0-9_]+" . -}}
{{- if has $label (list "__name__" "instance" "pod" "lock" "hostname" "owner" "state" "reason" "alarm" "trigger" "by" "certificate" "prefix") -}}
{{- fail (printf "prometheusRule.matchers: %s is not a label that all series of a release have in common, as cluster is" $label) -}}
{{- end -}}
{{- end -}}
{{- include "unlocker.validateConfig" $v.config -}}
{{- end -}}

{{/* The relations between keys of the configuration that the daemon requires. */}}
{{- define "unlocker.validateConfig" -}}
{{- $tolerance := dig "reaper" "clock_tolerance" "2s" . -}}
{{- $interval := dig "reaper" "probe_interval" "1s" . -}}
{{- $graces := list (list "config.reaper.grace" (dig "reaper" "grace" "2s" .)) -}}
{{- range $i, $policy := .policies -}}
{{- with $policy.grace -}}
{{- $graces = append $graces (list (printf "config.policies[%d].grace" $i) .) -}}
{{- end -}}
{{- end -}}
{{- range $graces -}}
{{- $grace := include "unlocker.seconds" (index . 1) | float64 -}}
{{- if lt $grace (include "unlocker.seconds" $tolerance | float64) -}}
{{- fail (printf "%s: must be at least config.reaper.clock_tolerance (%s), not %s" (index . 0) $tolerance (index . 1)) -}}
{{- end -}}
{{- if gt (include "unlocker.seconds" $interval | float64) (divf $grace 2) -}}
{{- fail (printf "config.reaper.probe_interval: must be at most half of %s (%s), not %s" (index . 0) (index . 1) $interval) -}}
{{- end -}}
{{- end -}}
{{- if dig "reaper" "storm" "min_locks" 10 . -}}
{{- $window := dig "reaper" "storm" "window" "1m" . -}}
{{- $delay := dig "reaper" "storm" "delay" "2m" . -}}
{{- range $key, $value := dict "window" $window "delay" $delay -}}
{{- if eq (include "unlocker.seconds" $value | float64) 0.0 -}}
{{- fail (printf "config.reaper.storm.%s: must be more than 0 unless config.reaper.storm.min_locks is 0" $key) -}}
{{- end -}}
{{- end -}}
{{- if lt (include "unlocker.seconds" $delay | float64) (divf (include "unlocker.seconds" $window) 2) -}}
{{- fail (printf "config.reaper.storm.delay: must be at least half of config.reaper.storm.window (%s), not %s" $window $delay) -}}
{{- end -}}
{{- end -}}
{{- $level := dig "log" "level" "info" . -}}
{{- if and (eq (dig "reaper" "mode" "enforce" .) "enforce") (has $level (list "warn" "error")) -}}
{{- fail (printf "config.log.level: must be info or debug where config.reaper.mode is enforce, not %s" $level) -}}
{{- end -}}
{{- $prefix := dig "prefix" "/mutexes/" . -}}
{{- $key := dig "election" "key" "" . | default (printf "/unlocker/leader%s" $prefix) -}}
{{- $candidates := printf "%s/" (trimSuffix "/" $key) -}}
{{- if and (dig "election" "enabled" true .) (or (hasPrefix $prefix $candidates) (hasPrefix $candidates $prefix)) -}}
{{- fail (printf "config.election.key: %q and the prefix of the locks, %q, must not be under each other" $key $prefix) -}}
{{- end -}}
{{- end -}}
