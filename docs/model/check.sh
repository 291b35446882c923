#!/usr/bin/env bash
# check.sh [PATTERN] checks the models with SPIN, or only the variants whose name matches. Each is to hold, to break when
# a rule is taken out, or to show a documented limit of the rules. It prints a table, and the shortest part of a story of
# each counterexample with STORY=1. README.md describes all.
set -euo pipefail
cd "$(dirname "$0")"
here=$PWD work=$(mktemp -d) failed=0
trap 'rm -rf "$work"' EXIT

# check holds|breaks|limit NAME MODEL FLAG…: the flags are those of the model; F lists faults, as in F=etcd,late.
check() {
  local want=$1 name=$2 model=$3 f flags=() start=$SECONDS errors states why verdict=ok
  [[ $name =~ $pattern ]] || return 0
  for f in "${@:4}"; do
    case $f in
    F=*) for f in $(tr , " " <<<"${f#F=}"); do flags+=("-DF_${f^^}"); done ;;
    *) flags+=("-D$f") ;;
    esac
  done
  mkdir "$work/run" && cd "$work/run"
  OPT=$([ "$want" = holds ] && echo -O1 || echo -O0) "$here/search.sh" "$here/$model.pml" "${flags[@]}" >pan.out 2>&1 || true
  errors=$(sed -n 's/.*errors: \([0-9]*\).*/\1/p' pan.out) states=$(awk '/states, stored/ {print $1}' pan.out)
  why=$(sed -n 's/^pan:1: //p' pan.out | sed 's/assertion violated //; s/ (at depth.*//')
  case $want in
  holds) [ "$errors" = 0 ] && ! grep -q 'Search not completed\|memory limit\|max search depth' pan.out || verdict=FAILED ;;
  *) [ "${errors:-0}" -gt 0 ] && [[ $why =~ ^(S[1-6]_|mutual|acceptance|in_order|nobody_waits|refused) ]] || verdict=FAILED ;;
  esac
  [ $verdict = ok ] || { failed=1; tail -n 40 pan.out >&2; }
  printf '| %-6s | %-38s | %11s | %4ds | %-23s | %s |\n' "$want" "$name" "${states:-?}" $((SECONDS - start)) "${why:--}" $verdict
  [ -z "${STORY-}" ] || [ "$want" = holds ] ||
    spin -t "${flags[@]}" -k "$model.pml.trail" "$here/$model.pml" | sed 's/^ *//; /^spin: /q; /^#processes/q'
  cd "$here" && rm -rf "$work/run"
}

pattern=${1-.}
command -v spin >/dev/null || { echo 'check.sh: spin is needed (apt-get install spin)' >&2; exit 1; }
printf '| %-6s | %-38s | %11s | %5s | %-23s | %s |\n' to variant states time property verdict
printf '|--------|----------------------------------------|-------------|-------|-------------------------|---------|\n'
# shellcheck source=variants.sh
source ./variants.sh
exit $failed
