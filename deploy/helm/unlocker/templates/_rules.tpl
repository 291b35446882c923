{{/* A rule of files/unlocker.rules.yaml as the values want it: (list $ rule change), where change is that of its alert. */}}
{{- define "unlocker.rule" -}}
{{- $values := (index . 0).Values.prometheusRule -}}
{{- $rule := index . 1 -}}
{{- $change := index . 2 -}}
{{- $_ := set $rule "expr" ($change.expr | default (include "unlocker.matchExpr" (list $values.matchers $rule.expr))) -}}
{{- if hasKey $change "threshold" -}}
{{- if not (contains "# threshold" $rule.expr) -}}
{{- fail (printf "prometheusRule.alerts.%s.threshold: its expression has no threshold; set expr" $rule.alert) -}}
{{- end -}}
{{- $_ := set $rule "expr" (regexReplaceAll "[0-9][0-9 *]* # threshold" $rule.expr (printf "%s # threshold" (toJson $change.threshold))) -}}
{{- end -}}
{{- if $rule.alert -}}
{{- $severity := ternary (dict "severity" $change.severity) dict (not (empty $change.severity)) -}}
{{- $_ := set $rule "labels" (merge $severity ($change.labels | default dict) $values.additionalRuleLabels $rule.labels) -}}
{{- if not (include "unlocker.dashboardURL" (index . 0)) -}}
{{- $_ := unset $rule.annotations "dashboard_url" -}}
{{- end -}}
{{- range $name, $text := $rule.annotations -}}
{{- $_ := set $rule.annotations $name (include "unlocker.matchText" (list $values.matchers $text)) -}}
{{- end -}}
{{- $_ := set $rule "annotations" (merge (dict) ($change.annotations | default dict) $rule.annotations) -}}
{{- end -}}
{{- toYaml (merge (pick $change "for" "keep_firing_for") $rule) -}}
{{- end -}}

{{/* An expression with the matchers in each of its selectors, and with their labels in each aggregation and match: (list matchers expr). */}}
{{- define "unlocker.matchExpr" -}}
{{- $expr := index . 1 -}}
{{- with index . 0 -}}
{{- $expr = regexReplaceAll "\\b(unlocker[_:][a-z_:]+|up)\\b" $expr (printf "${1}{%s}" (join "," .)) | replace "}{" "," -}}
{{- $labels := list -}}
{{- range . -}}
{{- $labels = append $labels (regexFind "^[a-zA-Z0-9_]+" .) -}}
{{- end -}}
{{- range without (uniq $labels) "job" "namespace" -}}
{{- $expr = $expr | replace "(job, namespace" (printf "(job, namespace, %s" .) -}}
{{- end -}}
{{- end -}}
{{- $expr -}}
{{- end -}}

{{/* A text with the matchers in the selectors of its queries, which are quoted by ": (list matchers text). */}}
{{- define "unlocker.matchText" -}}
{{- $text := index . 1 -}}
{{- with index . 0 -}}
{{- $text = regexReplaceAll "(unlocker[_:][a-z_:]+)\\{" $text (printf "${1}{%s," (join "," . | replace "\"" "'")) -}}
{{- end -}}
{{- $text -}}
{{- end -}}
