#!/usr/bin/env bash
# test.sh quick|test|race [PATTERN…]: runs the tests of all modules, or of packages whose path has one of the patterns.
#
#   quick  the packages whose tests link no etcd, neither a real one nor the one in memory; without the race detector
#   test   all packages; with the race detector, unless they have only tests, or link the etcd server, which it makes 3.4
#          times as expensive
#   race   all packages with the race detector
#
# Random tests have the seed RAPID_SEED (1; 0 is a random one) and make RAPID_CHECKS (100) checks.
set -euo pipefail
cd "$(dirname "$0")/.."
mode=$1 pattern=$(IFS='|'; echo "${*:2}")
: "${GO:=go}"

# Compilers give way to the tests that run already: most of these wait for an etcd, and have time limits.
export GOFLAGS="${GOFLAGS:-} '-toolexec=nice -n 15'"

# The race detector needs the C compiler that go uses.
race=
! command -v "$($GO env CC | cut -d' ' -f1)" >/dev/null || race=-race

# tested prints the packages of the module with tests, each with three words about what these link. Those with the most
# files of tests, which take longest, come first. Of those that link the etcd server, only the simulator has virtual time.
tested() {
  $GO list -test -f '{{.ImportPath}} {{len .GoFiles}} {{len .TestGoFiles}} {{len .XTestGoFiles}} {{.Deps}}' ./... | awk -v mode="$mode" '
    $2 ~ /^\[/ { next } # compiled again for a test
    !sub(/\.test$/, "", $1) { code[$1] = $2; files[$1] = $3 + $4; next }
    {
      etcd = / go\.etcd\.io\/etcd\/server\// ? "server" : /\/memetcd[] ]/ ? "memory" : "none"
      if (mode == "quick" && etcd != "none") next
      race = mode == "race" || mode == "test" && etcd != "server" && code[$1]
      real = etcd == "server" && $1 !~ /\/sim$/
      print files[$1], race ? "race" : "plain", / pgregory\.net\/rapid[] ]/ ? "random" : "fixed", real ? "real" : "virtual", $1
    }' | grep -E " [^ ]*($pattern)[^ ]*$" | sort -rn | cut -d' ' -f2-
}

out=$(mktemp -d) pids=()
trap 'for pid in "${pids[@]}"; do kill -INT -- "-$pid" 2>/dev/null || true; done; rm -rf "$out"' EXIT

# attempt LOG PRIORITY FLAG…: runs go test, and once more if in each package that failed only the race detector of Go 1.26
# did, which crashes rarely in bubbles of synctest (golang/go#78156).
attempt() {
  nice -n "$2" "$GO" test -timeout 15m "${@:3}" >"$1" 2>&1 && return
  local crashes
  crashes=$(grep -c '^ThreadSanitizer: CHECK failed: ' "$1") && [ "$crashes" = "$(grep -c $'^FAIL\t' "$1")" ] &&
    ! grep -qE '^ *--- FAIL|^panic: |^WARNING: DATA RACE' "$1" || return
  nice -n "$2" "$GO" test -timeout 15m "${@:3}" >>"$1" 2>&1
}

# start PRIORITY FLAG…: runs go test in the background. Its output goes to a file, as those of the others would mix with
# it.
start() {
  set -m # a process group of its own, which does not ignore SIGINT as other background jobs do
  attempt "$out/${#pids[@]}" "$@" &
  set +m
  pids+=($!)
}

# Tests with an etcd mostly wait, and those without compute: both at the same time, and more than there are cores. What has
# no real time gives way. In a bubble of synctest one goroutine works at a time, so that it takes half the CPU on one core.
for module in go.mod mutex/go.mod mutex/*/go.mod bench/report/go.mod deploy/release/go.mod; do
  cd "$(dirname $module)"
  packages=$(tested) || packages=
  for kind in {race,plain}" "{fixed,random}" "{real,virtual}; do
    mapfile -t group < <(sed -n "s/^$kind //p" <<<"$packages")
    [ ${#group[@]} -gt 0 ] || continue
    flags=(-p 4 -parallel 8) seed=() priority=0
    case $kind in race*) flags=(-p 4 $race) ;; esac
    case $kind in *virtual) priority=10; [ "$mode" = race ] || flags+=(-cpu 1) ;; esac
    case $kind in *random*) seed=(-rapid.seed="${RAPID_SEED:-1}" -rapid.checks="${RAPID_CHECKS:-100}") ;; esac
    start $priority "${flags[@]}" "${group[@]}" "${seed[@]}"
  done
  cd "$OLDPWD"
done
failed=0
for i in "${!pids[@]}"; do
  wait "${pids[$i]}" || failed=1
  cat "$out/$i"
done
pids=()
exit $failed
