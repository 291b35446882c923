#!/usr/bin/env bash
# run.sh [python|ruby]...: tests the clients with a real etcd and the real daemon. PYTHON and RUBY
# name other interpreters, ETCD_VERSION another etcd. In CI everything must be installed.
set -euo pipefail
cd "$(dirname "$0")/.."
version=${ETCD_VERSION:-3.7.3}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/unlocker-e2e
e2e/etcd.sh "$version" "$cache"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
make --silent build BIN="$work"
export ETCD=$cache/etcd-$version UNLOCKER=$work/unlocker CERTS=$work/certs PYTHONDONTWRITEBYTECODE=1

# A CA, a certificate for 127.0.0.1, one for a client with and one without a CN, and a CA that signed none of them.
mkdir "$CERTS"
cert() { # cert NAME [ARGS…]: signed by ca.pem, or by itself
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj "/CN=$1" \
    -keyout "$CERTS/$1.key" -out "$CERTS/$1.pem" "${@:2}" 2>/dev/null
}
cert ca -addext keyUsage=critical,keyCertSign # which Python 3.13 requires
cert other -addext keyUsage=critical,keyCertSign
cert server -CA "$CERTS/ca.pem" -CAkey "$CERTS/ca.key" -addext subjectAltName=IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE
cert client -CA "$CERTS/ca.pem" -CAkey "$CERTS/ca.key" -addext basicConstraints=critical,CA:FALSE
cert nameless -subj /O=billing -CA "$CERTS/ca.pem" -CAkey "$CERTS/ca.key" -addext basicConstraints=critical,CA:FALSE

# needs PROGRAM: reports whether it is installed; in CI it must be.
needs() {
  command -v "$1" >/dev/null && return
  echo "$1 is not installed" >&2
  [ "${CI:-}" != true ] || exit 1
  return 1
}

# all PID…: waits for each, and fails if one of them did.
all() {
  local pid failed=0
  for pid; do wait "$pid" || failed=1; done
  return $failed
}

test_python() {
  local python=${PYTHON:-python3} file pids=() oldest
  needs "$python" || return 0
  echo "== $("$python" --version), etcd $version"
  export PYTHONPATH=clients/python/src:clients/python/tests
  for file in clients/python/tests/test_*.py; do
    "$python" -W error -m unittest "$(basename "$file" .py)" &
    pids+=($!)
  done
  # The oldest one, which Debian has not: of pyenv, for example. It tests what pip installs without the net.
  oldest=$(pyenv latest 3.9 2>/dev/null || true)
  if PYENV_VERSION=$oldest python3.9 --version; then
    (
      export PYENV_VERSION=$oldest PYTHONPATH=$work/pip:clients/python/tests
      python3.9 -m pip install --quiet --no-index --root-user-action ignore --target "$work/pip" ./clients/python
      exec python3.9 -W error -m unittest test_lock test_queue test_aio
    ) &
    pids+=($!)
  else
    echo "Python 3.9 is not installed: only the types are checked for it" >&2
  fi
  if needs mypy; then
    MYPYPATH=clients/python/src mypy --strict --enable-incomplete-feature=Unpack --python-version 3.9 --no-incremental --cache-dir=/dev/null \
      clients/python/src clients/python/conformance.py clients/python/backend.py &
    pids+=($!)
  fi
  all "${pids[@]}"
}

test_ruby() {
  local ruby=${RUBY:-ruby} pids=()
  needs "$ruby" || return 0
  echo "== $("$ruby" --version), etcd $version"
  "$ruby" -w -Iclients/ruby/lib clients/ruby/test/unlocker_mutex_test.rb &
  pids+=($!)
  "$ruby" -w -Iclients/ruby/lib clients/ruby/test/queue_test.rb &
  pids+=($!)
  # Once more, and for a part, with the types of sig/ checked at each call. rbs comes with Ruby.
  RBS_TEST_LOGLEVEL=error RBS_TEST_RAISE=true RBS_TEST_TARGET='UnlockerMutex::*' RBS_TEST_OPT='-I clients/ruby/sig' \
    "$ruby" -rrbs/test/setup -Iclients/ruby/lib -r./clients/ruby/test/queue_test.rb clients/ruby/test/unlocker_mutex_test.rb \
    -n '/test_(a_failed|alive_|try_lock_all|the_example|no_space|all_names|a_loss_says|the_block|wrong_logins|slots$|tickets_are)/' &
  pids+=($!)
  if needs puma && needs sidekiq && needs redis-server; then
    "$ruby" -w -Iclients/ruby/lib clients/ruby/test/servers_test.rb &
    pids+=($!)
  fi
  all "${pids[@]}"
}

# Side by side: they mostly wait.
clients=(${*:-python ruby}) pids=() failed=0
for client in "${clients[@]}"; do
  "test_$client" >"$work/$client.log" 2>&1 &
  pids+=($!)
done
for i in "${!clients[@]}"; do
  wait "${pids[$i]}" || failed=1
  cat "$work/${clients[$i]}.log"
done
exit $failed
