# common.sh: what .ci/run and .ci/nightly share. It is sourced.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# Compilers give way to tests, which have time limits: without caches they have all of both cores for minutes.
export CI=true GOFLAGS="${GOFLAGS:--buildvcs=false} '-toolexec=nice -n 15'"
# First in PATH, so that the linter installed below is used.
PATH=$(go env GOPATH)/bin:$PATH

logs=$(mktemp -d)
declare -A running=() # the names of the started steps by process
trap 'for pid in "${!running[@]}"; do kill -- "-$pid" 2>/dev/null || true; done; rm -rf "$logs"' EXIT

# step NAME COMMAND…: runs a step, and prints what it took.
step() {
  printf '\n=== %s (at %ss)\n' "$1" "$SECONDS"
  TIMEFORMAT="--- $1: %lR, %U s + %S s of CPU"
  time "${@:2}"
}

# start NAME COMMAND…: starts a step in the background. Its output goes to a file, which finish prints.
start() {
  set -m # a process group of its own, which does not ignore SIGINT as other background jobs do
  (step "$@") >"$logs/$1" 2>&1 &
  set +m
  running[$!]=$1
}

# failures prints what failed by the log of a step, for the end of the gate's log: a test that ran out of time is named far
# above its goroutines, and what a test logs hides its error.
failures() {
  grep -E -A 12 '^ *--- FAIL|^panic: |^FAIL|^\s+Test\S* \([0-9hms.]+\)$|Error Trace:|: this (failed|prints)|^(FAIL|ERROR): |^ +[0-9]+\) (Failure|Error):' "$1" |
    cut -c 1-500 | tail -n 150 || true
}

# finish [NAME…] waits for all started steps but those named, and prints each one when it has ended. It fails if one of
# them has.
finish() {
  local pid code failed=() awaited again=
  while true; do
    awaited=()
    for pid in "${!running[@]}"; do [[ " $* " == *" ${running[$pid]} "* ]] || awaited+=("$pid"); done
    [ ${#awaited[@]} -gt 0 ] || break
    code=0
    wait -n -p pid "${awaited[@]}" || code=$?
    cat "$logs/${running[$pid]}"
    [ $code = 0 ] || failed+=("${running[$pid]}")
    [ $code = 0 ] || again+=$(failures "$logs/${running[$pid]}")$'\n'
    unset "running[$pid]"
  done
  [ ${#failed[@]} = 0 ] || { printf '\n=== FAILED: %s\n%s' "${failed[*]}" "$again"; return 1; }
}

tidy() {
  local module
  for module in go.mod */go.mod */*/go.mod; do
    [ ! -e "$module" ] || go -C "$(dirname "$module")" mod tidy -diff
  done
}

install() {
  local need=() program
  command -v make >/dev/null || need+=(make)
  command -v gcc >/dev/null || need+=(gcc libc6-dev)
  command -v promtool >/dev/null || need+=(prometheus)
  command -v prometheus-alertmanager >/dev/null || need+=(prometheus-alertmanager)
  command -v icinga2 >/dev/null || need+=(icinga2-bin monitoring-plugins-basic)
  command -v systemd-nspawn >/dev/null || need+=(systemd systemd-container)
  command -v rpm >/dev/null || need+=(rpm)
  command -v script >/dev/null || need+=(bsdutils)
  command -v chronyd >/dev/null || need+=(chrony)
  command -v sshd >/dev/null || need+=(openssh-server openssh-client)
  command -v htpasswd >/dev/null || need+=(apache2-utils)
  command -v dbus-daemon >/dev/null || need+=(dbus)
  command -v ruby >/dev/null || need+=(ruby)
  command -v node >/dev/null || need+=(nodejs)
  command -v npm >/dev/null || need+=(npm)
  command -v chromium >/dev/null || need+=(chromium)
  command -v ruby >/dev/null && ruby -e 'require "minitest"' 2>/dev/null || need+=(ruby-minitest)
  command -v puma >/dev/null || need+=(puma)
  command -v sidekiq >/dev/null || need+=(ruby-sidekiq)
  command -v redis-server >/dev/null || need+=(redis-server)
  for program in curl jq openssl python3 mypy; do
    command -v $program >/dev/null || need+=($program)
  done
  python3 -c 'import yaml' 2>/dev/null || need+=(python3-yaml)
  python3 -m pip --version >/dev/null 2>&1 || need+=(python3-pip)
  if [ ${#need[@]} -gt 0 ]; then
    ( # Only the programs are needed: keep Debian from starting daemons. An existing
      # policy is kept.
      policy=/usr/sbin/policy-rc.d
      if [ ! -e "$policy" ] && [ ! -L "$policy" ]; then
        trap 'rm -f "$policy"' EXIT
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod +x "$policy"
      fi
      apt-get update -qq
      DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${need[@]}" >/dev/null
    )
  fi
  local lint=v2.15.0
  [[ "$(golangci-lint version 2>/dev/null)" == *"version ${lint#v} "* ]] ||
    go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$lint
  # What the tests of the pages look for faults of accessibility with.
  local axe=${XDG_CACHE_HOME:-$HOME/.cache}/unlocker-tools/axe-core-4.14.1
  if [ ! -e "$axe/axe.min.js" ]; then
    mkdir -p "$axe"
    npm pack --silent --pack-destination "$axe" axe-core@${axe##*-} >/dev/null
    echo "1477dafa598d8d065f273d6af302aa203c02e83131707b7fa648cd41bd3d6b734f8c22a0dab86ee6a6f64b8afbe804b214d36db85a2826965edfb3a0b9d546b5  $axe/axe-core-${axe##*-}.tgz" | sha512sum --check --quiet
    tar -xzf "$axe/axe-core-${axe##*-}.tgz" -C "$axe" --strip-components=1 package/axe.min.js
  fi
}
