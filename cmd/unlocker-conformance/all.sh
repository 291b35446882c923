#!/usr/bin/env bash
# all.sh PROGRAM DRIVER…: judges all drivers at the same time, each with an etcd of its own, and two checks
# of each at a time: more are too many for two cores that do other work. It prints each result whole.
# A driver is a command with its arguments, after flags of PROGRAM.
set -euo pipefail
program=$1
shift
logs=$(mktemp -d)
pids=() failed=0
trap 'kill "${pids[@]}" 2>/dev/null || true; rm -rf "$logs"' EXIT
for i in $(seq 0 $(($# - 1))); do
  driver=${*:i+1:1}
  "$program" --parallel 2 $driver >"$logs/$i" 2>&1 &
  pids+=($!)
done
for i in "${!pids[@]}"; do
  echo "== ${*:i+1:1}"
  wait "${pids[$i]}" || failed=1
  cat "$logs/$i"
done
exit $failed
