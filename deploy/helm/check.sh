#!/usr/bin/env bash
# check.sh: checks the chart as far as possible without a cluster. It builds missing tools from the Go module proxy into
# $UNLOCKER_TOOLS (~/.cache/unlocker-tools). It requires go, python3 with its module yaml and, if CI=true, promtool. `check.sh readme`
# regenerates README.md instead.
set -euo pipefail
cd "$(dirname "$0")"
here=$PWD root=$(cd ../.. && pwd) chart=$PWD/unlocker
tools=${UNLOCKER_TOOLS:-$HOME/.cache/unlocker-tools}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$tools"

helm=4.3.1 unittest=1.1.2 kubeconform=0.8.0 helmdocs=1.14.2 operator=0.85.0 gateway=1.4.0
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
    export GOFLAGS="${GOFLAGS:-} -mod=mod" GOWORK=off CGO_ENABLED=0
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

# schemas VERSION: makes the schemas of Kubernetes, of the Prometheus operator's resources and of HTTPRoute.
schemas() {
  local out=$tools/schemas-$1-$operator-$gateway dir crds routes
  [ -d "$out" ] && return
  dir=$(module k8s.io/kubernetes "$1")
  crds=$(module github.com/prometheus-operator/prometheus-operator "$operator")/jsonnet/prometheus-operator
  routes=$(module sigs.k8s.io/gateway-api "$gateway")/config/crd/standard/gateway.networking.k8s.io_httproutes.yaml
  rm -rf "$out.new"
  python3 schemas.py "$out.new" "$dir/api/openapi-spec/swagger.json" "$crds"/{servicemonitors,podmonitors,prometheusrules}-crd.json "$routes"
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
helm() { "$tools/helm-$helm" "$@"; }
(cd "$root" && go build -o "$work/daemon" ./cmd/unlocker)

step "helm lint --strict"
for set in $(values); do
  helm lint --strict --quiet "$chart" --values "$chart/ci/$set-values.yaml" || die "lint: $set"
done

step "helm unittest"
"$tools/helm-unittest-$unittest" --strict "$chart"

step "every manifest of every value set is valid for Kubernetes ${kubernetes[*]}"
for set in $(values); do
  for version in "${kubernetes[@]}"; do
    helm template chart "$chart" --namespace locks --kube-version "$version" --values "$chart/ci/$set-values.yaml" >"$work/$set.yaml"
    "$tools/kubeconform-$kubeconform" -strict -summary -schema-location "$tools/schemas-$version-$operator-$gateway/{{.ResourceKind}}{{.KindSuffix}}.json" \
      "$work/$set.yaml" || die "$set is not valid for Kubernetes $version"
  done
done

step "the schemas reject unknown fields"
cat "$work"/{all-on,platform}.yaml >"$work/all.yaml"
for change in s/readinessProbe:/readinesProbe:/ s/unhealthyPodEvictionPolicy:/unhealthyPodEviction:/ s/runAsNonRoot:/runAsNonroot:/ \
  s/targetLabels:/targetLabel:/ s/podTargetLabels:/podTargetLabel:/ s/backendRefs:/backendRef:/; do
  sed "$change" "$work/all.yaml" >"$work/changed.yaml"
  cmp -s "$work/all.yaml" "$work/changed.yaml" && die "$change changes nothing"
  if "$tools/kubeconform-$kubeconform" -strict -schema-location "$tools/schemas-${kubernetes[0]}-$operator-$gateway/{{.ResourceKind}}{{.KindSuffix}}.json" \
    "$work/changed.yaml" >/dev/null; then die "$change is valid"; fi
done
if helm template chart "$chart" --kube-version 1.29.9 --values "$chart/ci/default-values.yaml" >/dev/null 2>&1; then die "Kubernetes 1.29 is accepted"; fi

step "every object has the namespace, the labels and the annotations of all objects"
helm template chart "$chart" --namespace locks --values "$chart/ci/all-on-values.yaml" --set namespaceOverride=elsewhere --set extraManifests=null \
  --set httpRoute.enabled=true --set 'httpRoute.parentRefs[0].name=g' --set serviceMonitor.namespace=,prometheusRule.namespace=,grafanaDashboard.namespace= >"$work/common.yaml"
python3 - "$work/common.yaml" <<'P'
import sys, yaml
objects = [o for o in yaml.safe_load_all(open(sys.argv[1])) if o]
assert len(objects) == 13, [o["kind"] for o in objects]
for o in objects:
    m = o["metadata"]
    assert m["namespace"] == "elsewhere" and m["labels"]["team"] == "storage" and m["annotations"]["a.example.org/owner"] == "storage", o
P
if grep -F '.locks.svc' "$work/common.yaml"; then die "a URL has the namespace of the release"; fi

step "the daemon accepts each rendered configuration"
for set in $(values); do
  # The file, or one that everything else needs if the chart does not write it, and the variables with a value.
  python3 - "$work/$set.yaml" "$work/$set-unlocker.yaml" >"$work/$set-env" <<'P'
import sys, yaml
objects = [o for o in yaml.safe_load_all(open(sys.argv[1])) if o]
files = [o["data"]["unlocker.yaml"] for o in objects if o["kind"] == "ConfigMap" and "unlocker.yaml" in o["data"]]
open(sys.argv[2], "w").write(files[0] if files else "etcd: {endpoints: [etcd:2379], username: somebody}\nops: {listen: ':1'}\n")
pod = next(o for o in objects if o["kind"] == "Deployment")["spec"]["template"]["spec"]
for e in pod["containers"][0]["env"]:
    if e["name"].startswith("UNLOCKER_"):
        print(e["name"] + "=" + e.get("value", "somebody"))
P
  mapfile -t variables <"$work/$set-env"
  env "${variables[@]}" "$work/daemon" config check --config "$work/$set-unlocker.yaml" || die "$set: the daemon rejects its configuration"
  [ "$set" != platform ] || env "${variables[@]}" "$work/daemon" config print --config "$work/$set-unlocker.yaml" >"$work/printed"
done
grep -qx '  listen: :9480' "$work/printed" || die "the values do not override an existing configuration file: $(cat "$work/printed")"

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

# rules FILE prints the rules of a rendering.
rules() {
  python3 -c 'import sys, yaml
for o in yaml.safe_load_all(open(sys.argv[1])):
    if o and o["kind"] == "PrometheusRule":
        yaml.safe_dump(o["spec"], sys.stdout)' "$1"
}

# rule_test RULES TEST... runs promtool tests on these rules.
rule_test() {
  local rules=$1 file
  shift
  for file in "$@"; do
    sed "s|^rule_files: .*|rule_files: [$rules]|" "$file" >"$work/rule-test.yaml"
    promtool test rules "$work/rule-test.yaml" >"$work/rule-test" 2>&1 || die "$file with $rules: $(cat "$work/rule-test")"
  done
  echo "$# files of tests pass"
}

step "Prometheus accepts each rendered alert"
if command -v promtool >/dev/null; then
  for set in $(values); do
    rules "$work/$set.yaml" >"$work/$set-rules.yaml"
    [ -s "$work/$set-rules.yaml" ] || continue
    promtool check rules "$work/$set-rules.yaml" || die "$set: Prometheus rejects its alerts"
  done
  rule_test "$work/alerts-rules.yaml" "$here/testdata/alerts-test.yaml"
  # Without matchers the rules are those of deploy/prometheus, which have tests of their own. With these matchers, which all
  # series in the tests match, no rule may give another result.
  for matchers in '[]' '["job=~\".+\"", "cluster=\"\""]'; do
    helm template chart "$chart" --values "$chart/ci/default-values.yaml" --set prometheusRule.enabled=true \
      --set prometheusRule.dashboardURL=http://unlocker.example.com --set-json "prometheusRule.matchers=$matchers" >"$work/matched.yaml"
    rules "$work/matched.yaml" >"$work/matched-rules.yaml"
    [ "$matchers" != '[]' ] || cp "$work/matched-rules.yaml" "$work/plain-rules.yaml"
  done
  python3 - "$work/plain-rules.yaml" "$root/deploy/prometheus/unlocker.rules.yaml" <<'P'
import sys, yaml
plain, shipped = (yaml.safe_load(open(path))["groups"] for path in sys.argv[1:])
for groups in plain, shipped:
    for group in groups:
        for rule in group["rules"]:
            rule.pop("annotations", None)  # these have the URL of the dashboard
assert plain == shipped, "the rules without matchers are not those of deploy/prometheus"
P
  rule_test "$work/matched-rules.yaml" "$root"/deploy/prometheus/tests/*.yaml
  python3 - "$work/matched-rules.yaml" <<'P'
import re, sys, yaml
for rule in yaml.safe_load(open(sys.argv[1]))["groups"][0]["rules"]:
    texts = [(rule["expr"], r"\b(unlocker[_:][a-z_:]+|up)\b")]
    texts += [(text, r"unlocker[_:][a-z_:]+(?=\{)") for text in rule.get("annotations", {}).values()]
    for text, name in texts:
        for m in re.finditer(name, text):
            assert re.match(r"""\{job=~["']""", text[m.end():]), text
P
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

step "the daemon rejects the same relations between keys"
for file in "$here"/testdata/invalid-relation-*.yaml; do
  key=$(sed -n '1s/^# wants: config\.\([^:]*\):.*/\1/p' "$file")
  python3 -c 'import sys, yaml; yaml.safe_dump(yaml.safe_load(open(sys.argv[1]))["config"], sys.stdout)' "$file" >"$work/related.yaml"
  if "$work/daemon" config check --config "$work/related.yaml" >/dev/null 2>"$work/refused"; then die "$file: the daemon accepts it"; fi
  grep -qF -- "$key: " "$work/refused" || die "$file: the daemon names another key: $(cat "$work/refused")"
done
if helm template chart "$chart" >/dev/null 2>"$work/refused"; then die "empty endpoints are accepted"; fi
grep -q 'config.etcd.endpoints: list the etcd members' "$work/refused" || die "without endpoints: $(cat "$work/refused")"

step "the chart accepts the values in README.md"
python3 - "$chart" "$work" <<'P'
import json, pathlib, re, sys
chart, work = map(pathlib.Path, sys.argv[1:])
keys = json.loads((chart / "values.schema.json").read_text())["properties"]
found = [m for m in re.finditer(r"(?m)(?:^    .*\n)+", (chart / "README.md.gotmpl").read_text()) if m[0].split(":")[0].strip() in keys]
assert len(found) >= 4, found
for i, m in enumerate(found):
    (work / f"readme-{i}.yaml").write_text(re.sub("(?m)^    ", "", m[0]))
P
for file in "$work"/readme-*.yaml; do
  helm template chart "$chart" --set 'config.etcd.endpoints={https://etcd:2379}' --values "$file" >/dev/null || die "README.md: $(cat "$file")"
done

step "Artifact Hub lists the image that the chart uses"
grep -qF -- "image: \"$(python3 -c 'import sys, yaml
print(yaml.safe_load(yaml.safe_load(open(sys.argv[1]))["annotations"]["artifacthub.io/images"])[0]["image"])' "$chart/Chart.yaml")\"" "$work/default.yaml" ||
  die "Chart.yaml: artifacthub.io/images names another image"

step "helm prints no warnings about the chart"
helm lint "$chart" --values "$chart/ci/default-values.yaml" >/dev/null 2>"$work/warnings"
helm template chart "$chart" --values "$chart/ci/default-values.yaml" >/dev/null 2>>"$work/warnings"
helm package "$chart" --destination "$work" >/dev/null 2>>"$work/warnings"
[ ! -s "$work/warnings" ] || die "helm warns: $(cat "$work/warnings")"

step "the package contains the alerts and the dashboard, and no tests"
tar -xzf "$work"/unlocker-*.tgz -C "$work"
cmp "$root/deploy/prometheus/unlocker.rules.yaml" "$work/unlocker/files/unlocker.rules.yaml"
cmp "$root/deploy/grafana/unlocker.json" "$work/unlocker/files/dashboard.json"
if [ -e "$work/unlocker/tests" ] || [ -e "$work/unlocker/ci" ]; then die "the package contains tests"; fi

step "README.md is up to date with helm-docs"
docs --dry-run >"$work/README.md"
diff -u "$chart/README.md" "$work/README.md" || die "run deploy/helm/check.sh readme"

step "done"
