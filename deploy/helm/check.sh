#!/usr/bin/env bash
# check.sh: checks the chart as far as possible without a cluster. It builds missing tools from the Go module proxy into
# $UNLOCKER_TOOLS (~/.cache/unlocker-tools). It requires go, python3 and, if CI=true, promtool. `check.sh readme` regenerates
# README.md instead.
set -euo pipefail
cd "$(dirname "$0")"
here=$PWD root=$(cd ../.. && pwd) chart=$PWD/unlocker
tools=${UNLOCKER_TOOLS:-$HOME/.cache/unlocker-tools}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$tools"

helm=4.3.1 unittest=1.1.2 kubeconform=0.8.0 helmdocs=1.14.2 operator=0.85.0
# The oldest and the newest supported Kubernetes.
kubernetes=(1.30.14 1.36.3)

step() { printf '\n--- %s (%ss)\n' "$*" "$SECONDS"; }
die() { printf 'check.sh: %s\n' "$*" >&2; exit 1; }

# build NAME-VERSION PACKAGE MODULE VERSION [go mod edit flags]: in a temporary module, because `go install` rejects
# modules with replace directives. Moved into place only when complete.
build() {
  local name=$1 package=$2 module=$3 version=$4 dir
  shift 4
  [ -x "$tools/$name" ] && return
  echo "building $name"
  dir=$(mktemp -d "$work/module.XXXX")
  (
    cd "$dir"
    export GOFLAGS=-mod=mod GOWORK=off CGO_ENABLED=0
    go mod init chart.test/tool 2>/dev/null
    [ $# -eq 0 ] || go mod edit "$@"
    go get "$module@v$version" >/dev/null 2>&1 || go get "$module@v$version"
    go build -trimpath -ldflags '-s -w' -o tool "$package"
  )
  mv "$dir/tool" "$tools/$name"
}

# module PATH VERSION: downloads a module and prints its directory.
module() {
  (cd "$work" && GOFLAGS=-mod=mod GOWORK=off go mod download -json "$1@v$2") |
    python3 -c 'import json, sys; m = json.load(sys.stdin); sys.exit(m["Error"]) if m.get("Error") else print(m["Dir"])'
}

# schemas VERSION: makes the schemas of Kubernetes and of the Prometheus operator's resources.
schemas() {
  local out=$tools/schemas-$1-$operator dir crds
  [ -d "$out" ] && return
  dir=$(module k8s.io/kubernetes "$1")
  crds=$(module github.com/prometheus-operator/prometheus-operator "$operator")/jsonnet/prometheus-operator
  rm -rf "$out.new"
  python3 schemas.py "$out.new" "$dir/api/openapi-spec/swagger.json" "$crds"/{servicemonitors,prometheusrules}-crd.json
  mv "$out.new" "$out"
}

values() { # prints the names of the value sets
  local f
  for f in "$chart"/ci/*-values.yaml; do basename "$f" -values.yaml; done
}

step tools
build "helm-$helm" helm.sh/helm/v4/cmd/helm helm.sh/helm/v4 $helm
build "helm-docs-$helmdocs" github.com/norwoodj/helm-docs/cmd/helm-docs github.com/norwoodj/helm-docs $helmdocs
docs() { "$tools/helm-docs-$helmdocs" --chart-search-root "$chart" --sort-values-order file --log-level warning "$@"; }
if [ "${1:-}" = readme ]; then
  docs
  exit
fi
build "helm-unittest-$unittest" github.com/helm-unittest/helm-unittest/cmd/helm-unittest github.com/helm-unittest/helm-unittest $unittest \
  -replace github.com/vmware-labs/yaml-jsonpath=github.com/helm-unittest/yaml-jsonpath@v0.4.0
build "kubeconform-$kubeconform" github.com/yannh/kubeconform/cmd/kubeconform github.com/yannh/kubeconform $kubeconform
for version in "${kubernetes[@]}"; do schemas "$version"; done
# Both warn on stderr about each file that is a symbolic link.
unlinked() {
  local failed=0
  "$@" 2>"$work/stderr" || failed=$?
  grep -v 'found symbolic link' "$work/stderr" >&2 || true
  return $failed
}
helm() { unlinked "$tools/helm-$helm" "$@"; }
(cd "$root" && go build -o "$work/daemon" ./cmd/unlocker)

step "helm lint --strict"
for set in $(values); do
  helm lint --strict --quiet "$chart" --values "$chart/ci/$set-values.yaml" || die "lint: $set"
done

step "helm unittest"
unlinked "$tools/helm-unittest-$unittest" --strict "$chart"

step "every manifest of every value set is valid for Kubernetes ${kubernetes[*]}"
for set in $(values); do
  for version in "${kubernetes[@]}"; do
    helm template chart "$chart" --namespace locks --kube-version "$version" --values "$chart/ci/$set-values.yaml" >"$work/$set.yaml"
    "$tools/kubeconform-$kubeconform" -strict -summary -schema-location "$tools/schemas-$version-$operator/{{.ResourceKind}}{{.KindSuffix}}.json" \
      "$work/$set.yaml" || die "$set is not valid for Kubernetes $version"
  done
done

step "the schemas reject unknown fields"
for change in s/readinessProbe:/readinesProbe:/ s/unhealthyPodEvictionPolicy:/unhealthyPodEviction:/ s/metricRelabelings:/metricRelabeling:/ s/runAsNonRoot:/runAsNonroot:/; do
  sed "$change" "$work/all-on.yaml" >"$work/changed.yaml"
  cmp -s "$work/all-on.yaml" "$work/changed.yaml" && die "$change changes nothing"
  if "$tools/kubeconform-$kubeconform" -strict -schema-location "$tools/schemas-${kubernetes[0]}-$operator/{{.ResourceKind}}{{.KindSuffix}}.json" \
    "$work/changed.yaml" >/dev/null; then die "$change is valid"; fi
done
if helm template chart "$chart" --kube-version 1.29.9 --values "$chart/ci/default-values.yaml" >/dev/null 2>&1; then die "Kubernetes 1.29 is accepted"; fi

step "the daemon accepts each rendered configuration"
for set in $(values); do
  python3 - "$work/$set.yaml" >"$work/$set-unlocker.yaml" <<'P'
import re, sys
block = re.search(r"^  unlocker\.yaml: \|\n((?:    .*\n|\n)+)", open(sys.argv[1]).read(), re.M)
print(re.sub(r"^    ", "", block[1], flags=re.M))
P
  name=
  if grep -q 'name: UNLOCKER_ETCD_USERNAME' "$work/$set.yaml"; then name=UNLOCKER_ETCD_USERNAME=somebody; fi
  env $name "$work/daemon" config check --config "$work/$set-unlocker.yaml" || die "$set: the daemon rejects its configuration"
done

step "the binary knows each argument of the daemon and of helm test"
for set in $(values); do
  # The arguments of each container named unlocker, one line per container.
  awk '/^---/ { ours = 0 } / - name: unlocker$/ { ours = 1 } !/^ *(#|- )/ { if (open) print ""; open = 0 }
       open && /^ *- / { sub(/^ *- /, ""); printf "%s\037", $0 } ours && /^ *args:$/ { open = 1; ours = 0 }' "$work/$set.yaml" >"$work/$set-args"
  [ -s "$work/$set-args" ] || die "$set: no arguments found"
  while IFS=$'\x1f' read -r -a args; do
    # With --help, flags are parsed and nothing else is done.
    "$work/daemon" "${args[@]}" --help >/dev/null || die "$set: the binary rejects ${args[*]}"
    echo "${args[*]}"
  done <"$work/$set-args"
done

step "Prometheus accepts each rendered alert"
if command -v promtool >/dev/null; then
  for set in $(values); do
    sed -n '/^kind: PrometheusRule$/,/^---$/p' "$work/$set.yaml" | sed -n '/^spec:$/,/^---$/s/^  //p' >"$work/$set-rules.yaml"
    [ -s "$work/$set-rules.yaml" ] || continue
    promtool check rules "$work/$set-rules.yaml" || die "$set: Prometheus rejects its alerts"
    checked=yes
  done
  [ "${checked:-}" ] || die "no value set has alerts"
else
  [ "${CI:-}" != true ] || die "promtool is not installed"
  echo "skipped: promtool is not installed"
fi

step "invalid values are rejected, with the message given in the file"
for file in "$here"/testdata/invalid-*.yaml; do
  wants=$(sed -n '1s/^# wants: //p' "$file")
  [ -n "$wants" ] || die "$file: has no line \"# wants:\""
  if helm template chart "$chart" --values "$chart/ci/default-values.yaml" --values "$file" >/dev/null 2>"$work/refused"; then
    die "$file is accepted"
  fi
  grep -qF -- "$wants" "$work/refused" || die "$file is rejected with another message: $(cat "$work/refused")"
  count=$((${count:-0} + 1))
done
echo "$count invalid files"
if helm template chart "$chart" >/dev/null 2>"$work/refused"; then die "empty endpoints are accepted"; fi
grep -q 'config.etcd.endpoints: list the etcd members' "$work/refused" || die "without endpoints: $(cat "$work/refused")"

step "the package contains the files that are symbolic links here"
helm package "$chart" --destination "$work" >/dev/null
tar -xzf "$work"/unlocker-*.tgz -C "$work"
for file in unlocker.rules.yaml dashboard.json; do
  [ ! -L "$work/unlocker/files/$file" ] && cmp "$chart/files/$file" "$work/unlocker/files/$file" || die "$file is missing from the package or differs"
done
if [ -e "$work/unlocker/tests" ] || [ -e "$work/unlocker/ci" ]; then die "the package contains tests"; fi

step "README.md is up to date with helm-docs"
docs --dry-run >"$work/README.md"
diff -u "$chart/README.md" "$work/README.md" || die "run deploy/helm/check.sh readme"

step "done"
