#!/usr/bin/env bash
# etcd.sh VERSION OUTDIR: builds the etcd server of a version from the Go module
# proxy as OUTDIR/etcd-VERSION, unless it exists. It uses a temporary module,
# because `go install` rejects modules with replace directives.
set -euo pipefail
version=$1 out=$2
binary=$out/etcd-$version
[ -x "$binary" ] && exit 0
mkdir -p "$out"
module=$(mktemp -d "$out/build.XXXXXX") # others may build it at the same time
trap 'rm -rf "$module"' EXIT
cd "$module"
export GOFLAGS="${GOFLAGS:-} -mod=mod" GOWORK=off CGO_ENABLED=0
go mod init e2e.test/etcd
go get -tool "go.etcd.io/etcd/server/v3@v$version"
go build -trimpath -ldflags '-s -w' -o "$module/etcd" go.etcd.io/etcd/server/v3
mv "$module/etcd" "$binary" # only when complete
