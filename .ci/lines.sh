#!/usr/bin/env bash
# lines.sh: how much production Go there is, comments and blanks counted: all files but tests, of the packages that
# the commands and users of the client link. What only tests link is not among them. It fails at 34,000 lines.
set -euo pipefail
cd "$(dirname "$0")/.."
{
  go list -deps -f '{{if .Module}}{{.Dir}}{{end}}' ./cmd/...
  go -C mutex list -f '{{.Dir}}' . ./protocol ./mutextest/...
  go -C deploy/release list -f '{{.Dir}}' ./...
  printf '%s\n' "$PWD"/mutex/{otel,prom}
} | sort -u | while read -r dir; do
  [[ $dir != "$PWD"/* ]] || find "$dir" -maxdepth 1 -name '*.go' ! -name '*_test.go'
done | xargs cat | wc -l | {
  read -r lines
  echo "$lines lines of production Go; $(git ls-files '*.go' | grep -v '_test\.go$' | xargs cat | wc -l) with what only tests link"
  [ "$lines" -lt 34000 ]
}
