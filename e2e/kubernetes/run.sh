#!/usr/bin/env bash
# run.sh: tests the chart on a full Kubernetes cluster with running pods. It installs the chart next to an etcd with TLS, runs helm test, upgrades it,
# and crashes the leader's pod while locks become due. It prints the measured times.
#
# It requires kubectl (KUBECONFIG), openssl, jq, helm as $HELM, and two images on the nodes: $UNLOCKER_IMAGE, and $ETCD_IMAGE with /etcd and /etcdctl.
# $CRASH is a command that takes the name of a pod and kills its daemon with SIGKILL on the node. Without it, the pod is force-deleted, which lets the
# daemon resign first. The script creates the namespace unlocker-e2e and deletes it. CI has no nodes; deploy/helm/install.sh tests against an API server there.
set -euo pipefail
cd "$(dirname "$0")/../.."
helm=${HELM:-helm} image=${UNLOCKER_IMAGE:-ghcr.io/etcd-unlocker/unlocker:0.1.0} etcd_image=${ETCD_IMAGE:-ex.test/etcd:3.7.3}
ns=unlocker-e2e work=$(mktemp -d)
k() { kubectl --namespace "$ns" "$@"; }
etcdctl() { k exec etcd -- /etcdctl --cacert /tls/ca.crt --cert /tls/tls.crt --key /tls/tls.key "$@"; }
step() { printf '\n--- %s (%ss)\n' "$*" "$SECONDS"; }
die() { printf 'run.sh: %s\n' "$*" >&2; k get pods -o wide >&2; k logs -l app.kubernetes.io/name=unlocker --tail 5 --prefix >&2; exit 1; }
finish() {
  kubectl delete namespace "$ns" --wait=true >/dev/null 2>&1 || true
  rm -rf "$work"
}
trap finish EXIT

step "an etcd with TLS that requires client certificates"
kubectl create namespace "$ns" >/dev/null
kubectl label namespace "$ns" pod-security.kubernetes.io/enforce=restricted >/dev/null
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=e2e -keyout "$work/ca.key" -out "$work/ca.crt" 2>/dev/null
for name in etcd unlocker; do
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$name" -keyout "$work/$name.key" -out "$work/$name.csr" 2>/dev/null
  openssl x509 -req -in "$work/$name.csr" -CA "$work/ca.crt" -CAkey "$work/ca.key" -CAcreateserial -days 2 -out "$work/$name.crt" \
    -extfile <(printf 'subjectAltName=DNS:etcd.%s.svc,DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n' "$ns") 2>/dev/null
  k create secret generic "$name-tls" --from-file=ca.crt="$work/ca.crt" --from-file=tls.crt="$work/$name.crt" --from-file=tls.key="$work/$name.key" >/dev/null
done
k apply -f - >/dev/null <<Y
apiVersion: v1
kind: Pod
metadata: {name: etcd, labels: {app: etcd}}
spec:
  automountServiceAccountToken: false
  securityContext: {runAsNonRoot: true, runAsUser: 65532, fsGroup: 65532, seccompProfile: {type: RuntimeDefault}}
  containers:
    - name: etcd
      image: $etcd_image
      imagePullPolicy: IfNotPresent
      command: [/etcd, --data-dir=/data, --listen-client-urls=https://0.0.0.0:2379, --advertise-client-urls=https://etcd.$ns.svc:2379, --client-cert-auth,
        --trusted-ca-file=/tls/ca.crt, --cert-file=/tls/tls.crt, --key-file=/tls/tls.key, --log-level=warn]
      securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
      volumeMounts: [{name: data, mountPath: /data}, {name: tls, mountPath: /tls}]
  volumes: [{name: data, emptyDir: {}}, {name: tls, secret: {secretName: etcd-tls}}]
---
apiVersion: v1
kind: Service
metadata: {name: etcd}
spec: {selector: {app: etcd}, ports: [{port: 2379}]}
Y
k wait --for=condition=Ready pod/etcd --timeout=120s >/dev/null
until etcdctl endpoint health >/dev/null 2>&1; do sleep 0.5; done

chart() { # COMMAND [FLAGS]
  "$helm" "$1" unlocker deploy/helm/unlocker --namespace "$ns" --wait --timeout 3m --set image.repository="${image%:*}" --set image.tag="${image##*:}" \
    --set "config.etcd.endpoints={https://etcd.$ns.svc:2379}" --set etcd.tls.existingSecret=unlocker-tls "${@:2}" 2>"$work/helm.log" || die "$(cat "$work/helm.log")"
}
step "helm install --wait"
start=$SECONDS
chart install >"$work/notes"
echo "ready after $((SECONDS - start)) s, including the 20 s of minReadySeconds"
sed -n '/^NOTES:/,$p' "$work/notes"
k get pods -l app.kubernetes.io/name=unlocker

step "helm test"
"$helm" test unlocker --namespace "$ns" --logs 2>&1 | grep -v 'symbolic link' | tail -12
k get pod -l app.kubernetes.io/name=unlocker -o json | jq -r '.items[0].spec.containers[0].env[]? | select(.name == "GOMEMLIMIT") | "GOMEMLIMIT is " + .value'

# lock NAME SECONDS: takes a lock in one transaction and prints its auto_unlock_at, which is SECONDS from now.
lock() {
  local now
  now=$(date +%s)
  printf '\nput /mutexes/%s/uuid %s\nput /mutexes/%s/hostname e2e\nput /mutexes/%s/locked_at %d\nput /mutexes/%s/auto_unlock_at %d\n\n\n' \
    "$1" "u-$1" "$1" "$1" "$now" "$1" $((now + $2)) | k exec -i etcd -- /etcdctl --cacert /tls/ca.crt --cert /tls/tls.crt --key /tls/tls.key txn >/dev/null
  echo $((now + $2))
}
# removal NAME: prints when the daemon's log says that the lock was removed, in seconds since the epoch.
removal() {
  local line
  for _ in $(seq 300); do
    line=$(k logs -l app.kubernetes.io/name=unlocker --tail=-1 2>/dev/null | jq -Rr --arg lock "$1" 'fromjson? | select(.msg == "lock removed" and .lock == $lock) | .time' | head -1)
    [ -z "$line" ] || { date -d "$line" +%s.%N; return; }
    sleep 0.2
  done
  die "lock $1 was not removed"
}
leader() { # prints the leader's pod, from the identity HOST_PID in the election key
  etcdctl get --prefix /unlocker/leader --sort-by CREATE --limit 1 --print-value-only | sed 's/_[0-9]*$//' | head -1
}

step "the leader removes a lock"
due=$(lock first 3)
at=$(removal first)
awk -v at="$at" -v due="$due" 'BEGIN { printf "first: removed %.2f s after auto_unlock_at (grace 2 s, clock_tolerance 2 s)\n", at - due }'

step "the leader's pod crashes"
pod=$(leader)
[ -n "$pod" ] || die "there is no leader"
due=$(lock second 4)
if [ -n "${CRASH:-}" ]; then
  $CRASH "$pod"
else
  k delete pod "$pod" --grace-period=0 --force >/dev/null 2>&1
fi
crashed=$(date +%s.%N)
at=$(removal second)
awk -v at="$at" -v due="$due" -v crashed="$crashed" 'BEGIN { printf "second: removed %.2f s after the crash, %.2f s after auto_unlock_at (grace 2 s, standby_delay 5 s)\n", at - crashed, at - due }'
k rollout status deployment -l app.kubernetes.io/name=unlocker --timeout 2m >/dev/null

step "an upgrade while locks become due"
due=$(lock third 6)
chart upgrade --set config.log.level=debug >/dev/null
at=$(removal third)
awk -v at="$at" -v due="$due" 'BEGIN { printf "third: removed %.2f s after auto_unlock_at, during a rollout\n", at - due }'
restarts=$(k get pods -l app.kubernetes.io/name=unlocker -o json | jq '[.items[].status.containerStatuses[].restartCount] | add')
[ "$restarts" = 0 ] || die "$restarts restarts"

step "done"
