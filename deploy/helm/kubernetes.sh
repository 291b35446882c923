#!/usr/bin/env bash
# kubernetes.sh OUTDIR PROGRAM…: builds kube-apiserver, kubectl, or node (e2e/kubernetes/node, which stands in for the nodes of a cluster) from the
# Go module proxy as OUTDIR/PROGRAM-VERSION, unless it exists. It prints the path of each.
set -euo pipefail
version=1.36.3 out=$1
source=$(cd "$(dirname "$0")/../../e2e/kubernetes/node" && pwd)
shift
mkdir -p "$out"
exec 9>"$out/kubernetes.lock"
flock 9 # another may be building the same
missing=()
for program in "$@"; do
  suffix=$version
  [ "$program" != node ] || suffix=$version-$(cat "$source"/*.go | sha256sum | cut -c1-12)
  echo "$out/$program-$suffix"
  [ -x "$out/$program-$suffix" ] || missing+=("$program $out/$program-$suffix")
done
[ ${#missing[@]} -gt 0 ] || exit 0
module=$(mktemp -d)
trap 'rm -rf "$module"' EXIT
cd "$module"
export GOFLAGS="${GOFLAGS:-} -mod=mod" GOWORK=off CGO_ENABLED=0
go mod init install.test/kubernetes 2>/dev/null
go mod download "k8s.io/kubernetes@v$version"
theirs=$(go env GOMODCACHE)/cache/download/k8s.io/kubernetes/@v/v$version.mod
# The Kubernetes module replaces its staging modules with directories of its repository. They are published as v0 of the same release.
{
  echo 'module install.test/kubernetes'
  grep -E '^(go|godebug) ' "$theirs"
  sed -n '/^godebug ($/,/^)$/p' "$theirs"
  echo "require k8s.io/kubernetes v$version"
  sed -nE "s|^[[:space:]]+(k8s.io/[a-z-]+) => .*|replace \1 => \1 v0.${version#1.}|p" "$theirs"
} >go.mod
mkdir node
cp "$source"/*.go node
sed -i '/^\/\/go:build ignore$/d' node/*.go
printf '//go:build tools\n\npackage tools\n\nimport (\n\t_ "k8s.io/kubernetes/cmd/kube-apiserver"\n\t_ "k8s.io/kubernetes/cmd/kubectl"\n)\n' >tools.go
go mod tidy -e >/dev/null 2>&1
for line in "${missing[@]}"; do
  read -r program path <<<"$line"
  package=k8s.io/kubernetes/cmd/$program
  [ "$program" != node ] || package=./node
  echo "building $program $version" >&2
  go build -trimpath -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=v$version -X k8s.io/client-go/pkg/version.gitVersion=v$version" -o "$path.new" "$package"
  mv "$path.new" "$path" # only when complete
done
