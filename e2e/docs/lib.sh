# Functions for TestDocumentedCommands: what the commands of the documentation find on the machine. The machine is a systemd in namespaces of its own,
# with the ports, paths and names that the documentation uses.
export PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin:$GOROOT/bin TERM=dumb SYSTEMD_EDITOR=true UNLOCKER_OPS_LISTEN=${UNLOCKER_OPS_LISTEN:-127.0.0.1:9480} UNLOCKER_WEB_LISTEN=${UNLOCKER_WEB_LISTEN:-127.0.0.1:9481}
export KUBECONFIG=/run/docs/kubeconfig HELM_CACHE_HOME=/run/docs/helm HELM_CONFIG_HOME=/run/docs/helm HELM_DATA_HOME=/run/docs/helm
uuid=0b4f7e9a-1c2d-4e3f-8a9b-0123456789ab
chart=/src/deploy/helm/unlocker

await() { # COMMAND…, which may compile a program
  local i
  for i in $(seq 1500); do
    "$@" >/dev/null 2>&1 && return
    sleep 0.2
  done
  echo "after five minutes this still fails: $*" >&2
  "$@" >&2
}

service() { # NAME COMMAND…: runs a program until the machine ends
  systemctl stop "$1" 2>/dev/null
  systemctl reset-failed "$1" 2>/dev/null
  await eval "[ \"\$(systemctl show -P LoadState $1)\" = not-found ]" # a busy systemd forgets it later
  systemd-run --quiet --unit "$@"
}

run_etcd() { # NAME PORT FLAG…: with its data, if there are any
  service "$1" /usr/local/bin/etcd --log-level error --data-dir "/run/docs/$1" --listen-client-urls "http://127.0.0.1:$2" --advertise-client-urls "http://127.0.0.1:$2" \
    --listen-peer-urls "http://127.0.0.1:$(($2 + 1))" --initial-advertise-peer-urls "http://127.0.0.1:$(($2 + 1))" --initial-cluster "default=http://127.0.0.1:$(($2 + 1))" "${@:3}"
}

empty_etcd() { # FLAG…: the etcd of the locks
  systemctl kill --signal KILL etcd 2>/dev/null
  systemctl stop etcd 2>/dev/null # which waits until it has ended, and no longer writes
  rm -rf /run/docs/etcd
  run_etcd etcd 2379 "$@"
  await etcdctl endpoint health
}

lock() { # NAME UUID HOSTNAME FIELD VALUE …
  local name=$1
  { printf '\nput /mutexes/%s/uuid %s\nput /mutexes/%s/hostname %s\nput /mutexes/%s/owner billing\n' "$1" "$2" "$1" "$3" "$1"
    shift 3
    while [ $# -gt 0 ]; do printf 'put /mutexes/%s/%s %s\n' "$name" "$1" "$2"; shift 2; done
    printf '\n\n'; } | etcdctl --command-timeout=1m txn >/dev/null
}

locks() { # those that the pages speak of: billing/invoices is overdue, and a policy keeps kept/expired
  local now
  no_pauses
  now=$(date +%s)
  lock billing/invoices "$uuid" worker-17.example.org locked_at $((now - 60)) alert_at $((now - 30)) auto_unlock_at $((now + 3000)) pid 1 purpose invoices
  lock deploy/ms ms ci-4 auto_unlock_at 1795192010000
  lock nodate nodate ci-4 locked_at "$now"
  etcdctl --command-timeout=1m put /locks/deploy/694d9a3c1b7e5f02 '' >/dev/null
  lock kept/expired kept ci-4 locked_at $((now - 60)) auto_unlock_at $((now - 30))
}

seen() { # the last of them by the unit, whose watch may begin after them
  local last
  last=$(etcdctl get /mutexes/kept/expired/uuid -w json | jq '.kvs[0].mod_revision')
  await eval "[ \"\$(curl -sf -u ada:y localhost:9481/api/v1/status | jq .etcd.revision)\" -ge $last ]"
}

no_pauses() { etcdctl --command-timeout=1m del --prefix /unlocker/pause/ >/dev/null; }

pauses() { unlocker pause --for 1h --reason docs && unlocker pause --match 'deploy/**' --for 1h --reason docs; }

removals() { # PREFIX: locks that are due at once; several replicas remove them at the same time
  local i past
  no_pauses
  past=$(($(date +%s) - 60))
  for i in $(seq 12); do lock "$1/$i" "u-$i" ci-3 locked_at $((past - 60)) alive_at $((past - 1)) auto_unlock_at "$past"; done
}

gone() { [ -z "$(etcdctl get --prefix --keys-only "/mutexes/$1/")" ]; }

daemon() { # the unit, which sees the renewals of holders now
  systemctl is-active --quiet unlocker || systemctl start unlocker
  await curl -sf -u ada:y 'localhost:9481/api/v1/locks?silent=true'
}

certificate() { # NAME SUBJECT
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj "$2" -addext 'subjectAltName=IP:127.0.0.1' \
    -addext 'basicConstraints=critical,CA:TRUE' -keyout "/run/docs/$1.key" -out "/run/docs/$1.crt" 2>/dev/null
}

# As deploy/helm/install.sh runs it, and a stand-in for the nodes.
kubernetes() {
  local server=https://127.0.0.1:6443
  certificate server /CN=server
  certificate admin /O=system:masters/CN=admin
  openssl genrsa -out /run/docs/sa.key 2048 2>/dev/null
  run_etcd etcd-kubernetes 12379
  service apiserver /usr/local/bin/kube-apiserver --etcd-servers http://127.0.0.1:12379 --bind-address 127.0.0.1 --advertise-address 127.0.0.1 --secure-port 6443 \
    --endpoint-reconciler-type none --service-cluster-ip-range 10.0.0.0/24 --authorization-mode RBAC --kubelet-preferred-address-types InternalIP \
    --client-ca-file /run/docs/admin.crt --tls-cert-file /run/docs/server.crt --tls-private-key-file /run/docs/server.key --cert-dir /run/docs/certs \
    --service-account-key-file /run/docs/sa.key --service-account-signing-key-file /run/docs/sa.key --service-account-issuer https://kubernetes.default.svc
  cat >$KUBECONFIG <<K
apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: "$server", certificate-authority: /run/docs/server.crt}}]
users: [{name: admin, user: {client-certificate: /run/docs/admin.crt, client-key: /run/docs/admin.key}}]
contexts: [{name: test, context: {cluster: test, user: admin}}]
current-context: test
K
  await kubectl get --raw /readyz
  service node --setenv=PATH="$PATH" /usr/local/bin/node -kubeconfig $KUBECONFIG -dir /run/docs/pods -cert /run/docs/server.crt -key /run/docs/server.key
  kubectl apply -f - >/dev/null <<K
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: certificates.cert-manager.io}
spec:
  group: cert-manager.io
  scope: Namespaced
  names: {kind: Certificate, plural: certificates, singular: certificate}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
K
}

release() { # MODE: the chart with short times
  helm upgrade --install unlocker $chart --namespace unlocker --create-namespace --wait --timeout 5m --set 'config.etcd.endpoints={http://127.0.0.1:2379}' \
    --set config.reaper.mode="$1" --set config.reaper.settle=1s --set config.reaper.freshness=2s --set config.reaper.standby_delay=0s --set config.reaper.storm.min_locks=0 \
    --set 'config.policies[0].match=kept/**' --set-string 'config.policies[0].mode=off' >/run/docs/helm.log 2>&1 ||
    { cat /run/docs/helm.log >&2; return 1; }
}

# Pods whose logs have what the runbooks look for: removals, of which only one replica makes each, and a lost watch.
busy_release() {
  local i
  any 'not removed' || release enforce && daemon || return
  for i in $(seq 10); do
    any 'not removed' && break
    removals due
    await gone due
  done
  lost_watch
}
lost_watch() {
  each 'watch failed; relisting' && return
  systemctl kill --signal KILL etcd
  await each 'watch failed; relisting'
  run_etcd etcd 2379
  await etcdctl endpoint health
}
each() { # TEXT: in the log of each pod
  local pod
  for pod in $(kubectl -n unlocker get pods -l app.kubernetes.io/name=unlocker -o name); do kubectl -n unlocker logs "$pod" | grep -q "$1" || return; done
}
any() { kubectl -n unlocker logs -l app.kubernetes.io/name=unlocker --tail=-1 | grep -q "$1"; }

dry_release() { # pods that would remove locks
  release dry-run || return
  removals dry
  await each 'would remove'
  etcdctl del --prefix /mutexes/dry/ >/dev/null
}

refused_start() { # the reason is where the README says
  helm upgrade unlocker $chart --namespace unlocker --reuse-values --set 'extraArgs={--ops-web-config-file=absent}' >/dev/null 2>&1
  await eval 'kubectl -n unlocker describe pods -l app.kubernetes.io/name=unlocker | grep -A9 "Last State:" | grep "ops.web_config_file: open absent"'
}

no_release() { helm uninstall unlocker -n unlocker >/dev/null 2>&1 || true; }

no_pods() {
  kubectl -n unlocker scale deployment/unlocker --replicas=0 >/dev/null
  await eval '[ -z "$(kubectl -n unlocker get pods -l app.kubernetes.io/name=unlocker -o name)" ]'
}

removed='"lock removed","lock":"billing/invoices"'
journal() { journalctl -u unlocker -o cat | grep -q "$removed"; } # which journald writes a moment later: then the next round sees it
removed_by_each() { # the unit, and a pod, have removed billing/invoices: whichever is first does
  local i
  release enforce || return
  for i in $(seq 30); do
    expired || return
    journal && any "$removed" && return
  done
  return 1
}
expired() {
  local past=$(($(date +%s) - 60))
  lock billing/invoices "$uuid" worker-17.example.org locked_at $((past - 60)) alert_at $((past - 30)) alive_at $((past - 1)) auto_unlock_at "$past" purpose invoices
  await gone billing/invoices
}

host() { # etcd and the unit
  etcdctl endpoint health >/dev/null 2>&1 || empty_etcd
  daemon
}
usual() { # what all pages find: also a release with two pods
  host || return
  [ "$(kubectl -n unlocker get deployment unlocker -o 'jsonpath={.status.readyReplicas}' 2>/dev/null)" = 2 ] || release enforce
}

own_config() { # of the unit
  mkdir -p /etc/unlocker
  echo '{reaper: {settle: 1s, freshness: 2s, standby_delay: 0s, storm: {min_locks: 0}}, policies: [{match: kept/**, mode: "off"}], native_prefixes: [/locks/]}' >/etc/unlocker/unlocker.yaml
  printf 'UNLOCKER_OPS_LISTEN=127.0.0.1:9480\nUNLOCKER_WEB_LISTEN=127.0.0.1:9481\n' >/etc/default/unlocker
}

deadlock() { # of the holder of a lock that waits for it
  etcdctl put /unlocker/waiters/mutexes/billing/invoices//w "{\"uuid\": \"w\", \"hostname\": \"worker-3\",
    \"holds\": [\"$(etcdctl get --print-value-only /mutexes/billing/invoices/uuid)\"]}" >/dev/null
  await bash -c 'curl -s localhost:9481/api/v1/deadlocks | grep worker-3'
}

people_unlock() { # by the API of the unit; terminal gives y as the password
  cat >/etc/unlocker/web.yml <<'V'
basic_auth_users: {ada: '$2a$04$B/RbTx0QG/izM4KHns5Ug.UnylOOEnTGYc.FFuw8HzVhmQnitenv.'}
V
  printf 'UNLOCKER_WEB_ALLOW_UNLOCK=true\nUNLOCKER_WEB_WEB_CONFIG_FILE=/etc/unlocker/web.yml\n' >>/etc/default/unlocker
  systemctl restart unlocker
  daemon
}

client_files() {
  certificate client /CN=unlocker
  cp /run/docs/client.crt /etc/unlocker/client.pem
  cp /run/docs/client.crt tls.crt && cp /run/docs/client.key tls.key && cp /run/docs/client.crt ca.crt && echo secret >password
  kubectl create namespace unlocker >/dev/null 2>&1
  kubectl -n unlocker create secret generic etcd-client --from-file=tls.crt >/dev/null 2>&1
  echo '{"apiVersion": "cert-manager.io/v1", "kind": "Certificate", "metadata": {"name": "unlocker", "namespace": "unlocker"}}' | kubectl apply -f - >/dev/null
}

access_files() {
  echo secret >password
  echo root secret >root-password
  printf 'etcd: {username: unlocker, password_file: %s}\n' "$PWD/password" >/etc/unlocker/unlocker.yaml
}

operations_files() {
  echo '{config: {etcd: {endpoints: ["http://127.0.0.1:2379"]}, reaper: {settle: 1s}}}' >values.yaml
  echo 'reaper: {mode: dry-run}' >unlocker.yaml
  sha256sum values.yaml >sha256sums.txt
}

crash() { # the containers of all pods, once
  local pid
  for pid in $(ps --ppid "$(systemctl show node --property MainPID --value)" -o pid=); do kill -KILL "$pid"; done
  await restarted
}
restarted() { [ "$(kubectl -n unlocker get pods -o json | jq '[.items[] | select(.status.containerStatuses[0] | .ready and .lastState.terminated != null)] | length')" = 2 ]; }

# An etcd until it raises NOSPACE, mostly by earlier revisions of one key. It compacts as slowly as one that has 2 GiB of them.
fill() {
  empty_etcd --quota-backend-bytes 33554432 --compaction-batch-limit 5 --compaction-sleep-interval 200ms
  locks
  while head -c 1000000 /dev/zero | tr '\0' x | etcdctl --command-timeout=1m put /other/big >/dev/null 2>&1; do :; done
  etcdctl alarm list | grep -q NOSPACE
}

freed() { # after the commands against NOSPACE: the space is free, holders can write, and a repetition does no harm
  [ -z "$(etcdctl alarm list)" ] && [ "$(size)" -lt 8000000 ] && etcdctl put /other/small x >/dev/null || return
  etcdctl compact --physical 2 2>&1 | grep -q 'required revision has been compacted'
}
size() { etcdctl endpoint status -w json | jq '.[0].Status.dbSize'; }

# stand-ins for the words in capitals, one per line
values() {
  cat <<V
HOSTNAME worker-17.example.org
HOST 127.0.0.1
POD $(kubectl -n unlocker get pods -l app.kubernetes.io/name=unlocker -o name | head -1 | cut -d/ -f2)
NODE node-1
NAME billing/invoices
FIELD hostname
UUID $uuid
PID $(systemctl show unlocker --property MainPID --value)
SECRET etcd-client
\$ARG1\$ 0
\$ARG2\$ 20
REVISION 1
DIRECTORY /run/docs/restored
MEMBER default
CLUSTER default=http://127.0.0.1:2380
URL http://127.0.0.1:2380
CHART $chart
V
}

# try INDEX COMMAND: executes a command and marks the end of its output with its exit code.
try() {
  eval "$2" </dev/null 2>/run/docs/stderr
  printf '\036%s %s\n' "$1" $?
  cat /run/docs/stderr
  printf '\037'
}

# terminal INDEX COMMAND: the same at a terminal, where every question is answered with yes.
terminal() {
  printf 'y\ny\n' | SHELL=/bin/bash script -qec "$2" /dev/null | tr -d '\r' >/run/docs/stdout
  local code=${PIPESTATUS[1]}
  cat /run/docs/stdout
  printf '\036%s %s\n\037' "$1" "$code"
}

# until TEXT INDEX COMMAND: the same for a command that does not end. It continues until the end of the page.
until_output() {
  setsid bash -c "$3" </dev/null >"/run/docs/background-$2" 2>&1 &
  echo $! >>/run/docs/background
  await shown "$1" "/run/docs/background-$2" $!
  grep -qE "$1" "/run/docs/background-$2"
  local code=$?
  cat "/run/docs/background-$2"
  printf '\036%s %s\n\037' "$2" "$code"
}
shown() { grep -qE "$1" "$2" || ! kill -0 "$3"; }
end_background() {
  local pid
  [ -e /run/docs/background ] || return 0
  while read -r pid; do kill -TERM -- "-$pid" 2>/dev/null; done </run/docs/background
  rm -f /run/docs/background
}

# The rest of the machine: clients of the clock and of other hosts, and a stand-in for Grafana, which accepts a dashboard.
machine() {
  mkdir -p /run/docs/access /run/docs/release /run/docs/pods /run/sshd ~/.ssh
  own_config
  service docs-chronyd chronyd -d -x
  ssh-keygen -q -t ed25519 -N '' -f /run/docs/host-key && ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id_ed25519
  cp ~/.ssh/id_ed25519.pub /run/docs/authorized && printf 'StrictHostKeyChecking no\nLogLevel ERROR\n' >~/.ssh/config
  service docs-sshd /usr/sbin/sshd -D -h /run/docs/host-key -o AuthorizedKeysFile=/run/docs/authorized -o StrictModes=no -o PermitRootLogin=yes -o UsePAM=no
  service grafana python3 -c '
import http.server, json
class H(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert sent["dashboard"]["panels"] and self.headers["Authorization"]
        self.send_response(200); self.end_headers(); self.wfile.write(b"{\"status\":\"success\"}\n")
http.server.HTTPServer(("127.0.0.1", 80), H).serve_forever()'
  empty_etcd && kubernetes
}
