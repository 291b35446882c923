#!/usr/bin/env bash
# package.sh OUT: builds the packages of the clients into OUT: a wheel and an sdist, and a gem. It needs python3 and gem,
# and no net. The same commit gives the same bytes.
set -euo pipefail
mkdir -p "$1"
out=$(realpath "$1")
cd "$(dirname "$0")"
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 315532800)}
rm -f "$out"/unlocker_mutex-*
(cd python && python3 -B -c 'import sys, backend; backend.build_wheel(sys.argv[1]), backend.build_sdist(sys.argv[1])' "$out")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r ruby/. ../LICENSE "$work"
chmod -R u=rwX,go=rX "$work"
cd "$work"
gem build --quiet --strict unlocker_mutex.gemspec
mv unlocker_mutex-*.gem "$out"
