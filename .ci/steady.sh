#!/usr/bin/env bash
# steady.sh [N]: runs make test N (10) times, each time next to a second make test, and reports what failed.
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-10} failed=0
logs=$(mktemp -d)
# -count=1 in GOFLAGS: nothing comes from the cache of results.
export GOFLAGS="${GOFLAGS:-} -count=1"
for n in $(seq "$rounds"); do
  began=$SECONDS codes=()
  set -m # background jobs of a script ignore SIGINT otherwise, and so do their tests
  for side in a b; do
    make test >"$logs/$n$side" 2>&1 &
    pids[${#codes[@]}]=$!
    codes+=("$side")
  done
  set +m
  for i in 0 1; do
    if wait "${pids[$i]}"; then codes[i]=ok; else codes[i]=FAILED; failed=$((failed + 1)); fi
  done
  echo "round $n: ${codes[*]}, $((SECONDS - began)) s"
  grep -hE '^(--- FAIL|FAIL|panic:)' "$logs/$n"[ab] || true
done
echo "$failed of $((2 * rounds)) runs failed; the logs are in $logs"
[ $failed = 0 ]
