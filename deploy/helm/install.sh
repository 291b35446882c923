#!/usr/bin/env bash
# install.sh: installs each value set of ci/ on a real Kubernetes API server, upgrades it, and uninstalls it. The API server has no
# nodes, so no pod starts. It checks that the server accepts every object, including defaulting and admission, and that the pods meet
# the Pod Security Standard "restricted". It requires go, openssl, curl, python3, and the tools that check.sh builds.
set -euo pipefail
cd "$(dirname "$0")"
chart=$PWD/unlocker root=$(cd ../.. && pwd)
tools=${UNLOCKER_TOOLS:-$HOME/.cache/unlocker-tools}
etcd=${UNLOCKER_E2E_CACHE:-$HOME/.cache/unlocker-e2e}
helm=$tools/helm-4.3.1 operator=0.85.0
work=$(mktemp -d)
pids=()
stop() {
  # Their data is not needed, and without etcd the API server takes long to stop.
  for pid in "${pids[@]}"; do kill -KILL "$pid" 2>/dev/null || true; done
  wait 2>/dev/null || true
  rm -rf "$work"
}
trap stop EXIT

step() { printf '\n--- %s (%ss)\n' "$*" "$SECONDS"; }
die() { printf 'install.sh: %s\n' "$*" >&2; tail -5 "$work"/*.log >&2 2>/dev/null || true; exit 1; }

# free_ports prints three ports, below those that connections and servers are given.
free_ports() {
  python3 -c '
import random, socket
held = []
while len(held) < 3:
    s = socket.socket()
    try:
        s.bind(("127.0.0.1", random.randrange(15000, 32000)))
        held.append(s)
    except OSError:
        pass
print(*(s.getsockname()[1] for s in held))'
}

certificate() { # NAME SUBJECT
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj "$2" -addext 'subjectAltName=IP:127.0.0.1' \
    -addext 'basicConstraints=critical,CA:TRUE' -keyout "$work/$1.key" -out "$work/$1.crt" 2>/dev/null
}

# api METHOD PATH [FILE [TYPE]] prints the response, and fails if the server rejects the request.
api() {
  local body=()
  [ $# -lt 3 ] || body=(-H "Content-Type: ${4:-application/json}" --data-binary "@$3")
  curl -sS --fail-with-body --cacert "$work/server.crt" --cert "$work/admin.crt" --key "$work/admin.key" -X "$1" "${body[@]}" "$server$2"
}

step "etcd and kube-apiserver"
[ -x "$helm" ] || die "$helm is missing: run check.sh first"
"$root/e2e/etcd.sh" 3.7.3 "$etcd"
apiserver=$(./kubernetes.sh "$tools" kube-apiserver)
read -r peer client port <<<"$(free_ports)"
server=https://127.0.0.1:$port
"$etcd/etcd-3.7.3" --data-dir "$work/etcd" --listen-client-urls "http://127.0.0.1:$client" --advertise-client-urls "http://127.0.0.1:$client" \
  --listen-peer-urls "http://127.0.0.1:$peer" --initial-advertise-peer-urls "http://127.0.0.1:$peer" \
  --initial-cluster "default=http://127.0.0.1:$peer" >"$work/etcd.log" 2>&1 &
pids+=($!)
certificate server /CN=server
certificate admin /O=system:masters/CN=admin
openssl genrsa -out "$work/sa.key" 2048 2>/dev/null
"$apiserver" --etcd-servers "http://127.0.0.1:$client" --bind-address 127.0.0.1 --advertise-address 127.0.0.1 --secure-port "$port" \
  --endpoint-reconciler-type none --service-cluster-ip-range 10.0.0.0/24,fd00:1::/112 --authorization-mode RBAC \
  --client-ca-file "$work/admin.crt" --tls-cert-file "$work/server.crt" --tls-private-key-file "$work/server.key" --cert-dir "$work/certs" \
  --service-account-key-file "$work/sa.key" --service-account-signing-key-file "$work/sa.key" \
  --service-account-issuer https://kubernetes.default.svc >"$work/apiserver.log" 2>&1 &
pids+=($!)
for _ in $(seq 1200); do
  [ "$(api GET /readyz 2>/dev/null)" = ok ] && break
  sleep 0.25
done
[ "$(api GET /readyz 2>/dev/null)" = ok ] || die "kube-apiserver does not become ready"
cat >"$work/kubeconfig" <<K
apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: "$server", certificate-authority: "$work/server.crt"}}]
users: [{name: admin, user: {client-certificate: "$work/admin.crt", client-key: "$work/admin.key"}}]
contexts: [{name: test, context: {cluster: test, user: admin}}]
current-context: test
K
export KUBECONFIG=$work/kubeconfig HELM_CACHE_HOME=$work/helm HELM_CONFIG_HOME=$work/helm HELM_DATA_HOME=$work/helm

step "the resources of the Prometheus operator and of the Gateway API"
crds=$(cd "$work" && GOFLAGS=-mod=mod GOWORK=off go mod download -json "github.com/prometheus-operator/prometheus-operator@v$operator" |
  python3 -c 'import json, sys; print(json.load(sys.stdin)["Dir"])')/jsonnet/prometheus-operator
routes=$(cd "$work" && GOFLAGS=-mod=mod GOWORK=off go mod download -json sigs.k8s.io/gateway-api@v1.4.0 |
  python3 -c 'import json, sys; print(json.load(sys.stdin)["Dir"])')/config/crd/standard/gateway.networking.k8s.io_httproutes.yaml
for crd in servicemonitors podmonitors prometheusrules; do
  api POST /apis/apiextensions.k8s.io/v1/customresourcedefinitions "$crds/$crd-crd.json" >/dev/null || die "$crd"
done
api POST /apis/apiextensions.k8s.io/v1/customresourcedefinitions "$routes" application/yaml >/dev/null || die "httproutes"
for resource in monitoring.coreos.com/v1/{servicemonitors,podmonitors,prometheusrules} gateway.networking.k8s.io/v1/httproutes; do
  for _ in $(seq 480); do
    api GET "/apis/$resource" >/dev/null 2>&1 && break
    sleep 0.25
  done
done

# pod SET: sends the Deployment's pod through admission, as a dry run.
pod() {
  api GET "/apis/apps/v1/namespaces/$1/deployments" | python3 -c '
import json, sys
d = json.load(sys.stdin)["items"]
assert len(d) == 1, d
t = d[0]["spec"]["template"]
t["metadata"]["name"] = "pod"
print(json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": t["metadata"], "spec": t["spec"]}))' >"$work/pod.json"
  api POST "/api/v1/namespaces/$1/pods?dryRun=All" "$work/pod.json"
}

namespace() { # NAME [LABELS]
  printf '{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "%s", "labels": {%s}}}' "$1" "${2:-}" >"$work/namespace.json"
  api POST /api/v1/namespaces "$work/namespace.json" >/dev/null
  # The ServiceAccount controller does not run here.
  echo '{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}' >"$work/account.json"
  api POST "/api/v1/namespaces/$1/serviceaccounts" "$work/account.json" >/dev/null
}

namespace monitoring # one of the value sets uses it
for values in "$chart"/ci/*-values.yaml; do
  set=ci-$(basename "$values" -values.yaml)
  step "$set"
  namespace "$set" '"pod-security.kubernetes.io/enforce": "restricted"'
  "$helm" install unlocker "$chart" --namespace "$set" --values "$values" >"$work/$set.txt" 2>"$work/helm.log" || die "install: $(cat "$work/helm.log")"
  grep -E '^(STATUS|REVISION):' "$work/$set.txt"
  pod "$set" >"$work/answer" || die "the pod is rejected: $(cat "$work/answer")"
  change=config.log.format=logfmt
  if grep -q ^existingConfigMap "$values"; then change=podLabels.upgraded=yes; fi
  "$helm" upgrade unlocker "$chart" --namespace "$set" --values "$values" --set "$change" >/dev/null 2>"$work/helm.log" || die "upgrade: $(cat "$work/helm.log")"
  "$helm" get manifest unlocker --namespace "$set" | grep -E '^kind:' | sort | uniq -c
  "$helm" uninstall unlocker --namespace "$set" >/dev/null 2>"$work/helm.log" || die "uninstall: $(cat "$work/helm.log")"
done

step "a pod that may gain privileges is rejected"
# Otherwise the namespaces would enforce nothing.
python3 - "$work/pod.json" <<'P'
import json, sys
p = json.load(open(sys.argv[1]))
p["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
p["spec"]["serviceAccountName"] = p["spec"]["serviceAccount"] = "default"  # the chart's was uninstalled
json.dump(p, open(sys.argv[1], "w"))
P
if api POST "/api/v1/namespaces/$set/pods?dryRun=All" "$work/pod.json" >"$work/answer" 2>/dev/null; then die "it is accepted"; fi
python3 -c 'import json, sys; m = json.load(sys.stdin)["message"]; sys.exit(m) if "violates PodSecurity" not in m else print(m)' <"$work/answer" || die "rejected for another reason: $(cat "$work/answer")"

step "done"
