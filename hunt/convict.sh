#!/usr/bin/env bash
# convict.sh [RULE…]: takes one rule after the other out of the daemon, and requires that the hunt reports the promises
# that docs/rules.yaml names for it, within HUNT_TIME (1m), or one of two more runs: an outage that is long enough for
# no-outage-allowance is rare. Without arguments: all rules that the hunt convicts.
set -euo pipefail
cd "$(dirname "$0")/.."
export HUNT_TIME=${HUNT_TIME:-1m}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
failed=0
while read -r rule promises; do
  [ $# = 0 ] || [[ " $* " == *" $rule "* ]] || continue
  for run in 1 2 3; do
    HUNT_WITHOUT=$rule ${GO:-go} test -count=1 -timeout 30m -tags hunt -v -run '^TestHunt$' ./hunt >"$log" 2>&1 || true
    if grep -qE "^ +hunt_test.go:[0-9]+: ($promises)\b" "$log"; then
      echo "$rule: convicted by run $run: $(grep -E '[0-9]+ violations: map' "$log" | sed 's/.*go:[0-9]*: //')"
      continue 2
    fi
  done
  echo "$rule: NOT CONVICTED by one of $promises:"
  tail -30 "$log"
  failed=1
done < <(awk '/^ +without:/ { gsub(/.*: |\047/, ""); rule = $0 }
              /^ +hunt: \047S/ { line = $0; p = ""; while (match(line, /S[0-9]/)) { p = p (p == "" ? "" : "|") substr(line, RSTART, 2); line = substr(line, RSTART + 2) }
                if (rule != "" && $0 !~ /TestRestores/) print rule, p; rule = "" }
              /^    - rule:/ { rule = "" }' docs/rules.yaml)
exit $failed
