#!/usr/bin/env bash
# consul.sh VERSION OUTDIR: builds Consul as OUTDIR/consul-VERSION from the Go module proxy, unless it exists. It builds
# in the folder of the module, as only the module's own go.sum has checksums of all that it needs. 1.16.2 is the newest
# version that is under the MPL and does not replace modules by folders, which the proxy does not have.
set -euo pipefail
version=$1 out=$2
binary=$out/consul-$version
[ -x "$binary" ] && exit 0
mkdir -p "$out"
work=$(mktemp -d "$out/build.XXXXXX") # others may build it at the same time
trap 'rm -rf "$work"' EXIT
cd "$work"
export GOFLAGS=-mod=readonly GOWORK=off CGO_ENABLED=0
go mod download "github.com/hashicorp/consul@v$version"
module=$(go list -m -f '{{.Dir}}' "github.com/hashicorp/consul@v$version")
go build -C "$module" -trimpath -ldflags '-s -w' -o "$work/consul" .
mv "$work/consul" "$binary" # only when complete
