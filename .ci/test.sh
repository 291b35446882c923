#!/usr/bin/env bash
# test.sh quick|test|race [PATTERN…]: runs the tests of all modules, or of packages whose path has one of the patterns.
#
#   quick  the packages whose tests link no etcd, neither a real one nor the one in memory; without the race detector
#   test   all packages; with the race detector, unless they link the etcd server, which it makes 3.4 times as expensive
#   race   all packages with the race detector
#
# Random tests have the seed RAPID_SEED (1; 0 is a random one) and make RAPID_CHECKS (100) checks.
set -euo pipefail
cd "$(dirname "$0")/.."
mode=$1 pattern=$(IFS='|'; echo "${*:2}")
: "${GO:=go}"

# The race detector needs the C compiler that go uses.
race=
! command -v "$($GO env CC | cut -d' ' -f1)" >/dev/null || race=-race

# tested prints the packages of the module with tests, each with two words about what these link.
tested() {
  $GO list -test -f '{{if eq .Name "main"}}{{.ImportPath}} {{.Deps}}{{end}}' ./... | awk -v mode="$mode" '
    !sub(/\.test$/, "", $1) { next }
    {
      etcd = / go\.etcd\.io\/etcd\/server\// ? "server" : /\/memetcd[] ]/ ? "memory" : "none"
      if (mode == "quick" && etcd != "none") next
      print mode == "race" || mode == "test" && etcd != "server" ? "race" : "plain", / pgregory\.net\/rapid[] ]/ ? "random" : "fixed", $1
    }' | grep -E " [^ ]*($pattern)[^ ]*$" | sort -r
}

failed=0
for module in go.mod mutex/go.mod; do
  [ -e $module ] || continue
  cd "$(dirname $module)"
  packages=$(tested) || packages=
  for kind in "race fixed" "race random" "plain fixed" "plain random"; do
    mapfile -t group < <(sed -n "s/^$kind //p" <<<"$packages")
    [ ${#group[@]} -gt 0 ] || continue
    # Tests with an etcd mostly wait: more of them at a time than there are cores.
    flags=(-p 4 -parallel 8) seed=()
    case $kind in race*) flags=(-p 8 $race) ;; esac
    case $kind in *random) seed=(-rapid.seed="${RAPID_SEED:-1}" -rapid.checks="${RAPID_CHECKS:-100}") ;; esac
    $GO test "${flags[@]}" -timeout 15m "${group[@]}" "${seed[@]}" || failed=1
  done
  cd "$OLDPWD"
done
exit $failed
