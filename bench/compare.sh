#!/usr/bin/env bash
# compare.sh BASE [PATTERN]: runs the small benchmarks of the commit BASE and of the working tree in turn, COUNT (6) times each,
# and compares them with benchstat. A busy machine then slows both down.
set -euo pipefail
cd "$(dirname "$0")/.."
base=$1 pattern=${2:-.} work=$(mktemp -d)
trap 'git worktree remove --force "$work/base"; rm -rf "$work"' EXIT
git worktree add --quiet --detach "$work/base" "$base"
for _ in $(seq "${COUNT:-6}"); do
  for side in base here; do
    tree=$PWD
    [ $side = here ] || tree=$work/base
    (cd "$tree" && go test -run '^$' -short -bench "$pattern" -benchmem ./internal/...) | grep -E '^(Benchmark|pkg:|goos:|goarch:|cpu:)' >>"$work/$side"
  done
done
cd "$work" && go run golang.org/x/perf/cmd/benchstat@v0.0.0-20250813145418-2f7363a06fe1 base here
