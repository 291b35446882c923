#!/usr/bin/env bash
# release.sh OUT: called by `make release`. For each of PLATFORMS it writes to OUT an archive and the SBOM of its
# binary, and for Linux a deb and an rpm; then the image for these, the packages of the clients for Python and Ruby, and
# the checksums of all files. The builds are reproducible: the same commit and the same Go version give the same bytes.
# VERSION, REVISION, LDFLAGS, IMAGE and SOURCE_DATE_EPOCH come from the Makefile.
set -euo pipefail
out=$(realpath -m "$1")
cd "$(dirname "$0")/../.."
: "${VERSION:?}" "${REVISION:?}" "${LDFLAGS:?}" "${IMAGE:?}" "${SOURCE_DATE_EPOCH:?}"
platforms=${PLATFORMS:-linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 freebsd/amd64 freebsd/arm64}
date=$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)

# Settings of the machine that would change the binary. Only LDFLAGS contain data from git, so the
# sources without their history give the same binary.
export LC_ALL=C TZ=UTC CGO_ENABLED=0 GOFLAGS=-mod=readonly GOWORK=off GOEXPERIMENT= GOAMD64=v1 GOARM64=v8.0
umask 022
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

build() { # OS ARCH FILE
  GOOS=$1 GOARCH=$2 go build -trimpath -buildvcs=false -ldflags "$LDFLAGS" -o "$3" ./cmd/unlocker
}

# packages ARCH DIR: a deb and an rpm of the folder of an archive. Their versions begin with a digit, and have no dash:
# v1.0.0-rc.1 is 1.0.0~rc.1, which is before 1.0.0, and commits after a tag, or without one, are 1.0.0+3.gabc and 0~abc.
packages() {
  cp deploy/release/package/* "$2/"
  sed -i 's|/usr/local/bin/|/usr/bin/|' "$2/systemd/unlocker.service"
  gzip -n -9 "$2"/man/*
  chmod -R u=rwX,go=rX "$2"
  local packager version
  version=$(sed -E 's/^v//; s/-dirty$/+dirty/; s/-([0-9]+)-g/+\1.g/; s/-/~/g; /^[0-9]+\./!s/^/0~/' <<<"$VERSION")
  for packager in deb rpm; do
    (cd "$2" && ARCH=$1 VERSION=$version "$work/nfpm" package --packager $packager --target "$out/" >/dev/null)
  done
}

# archive OUT DIR NAME…: a tar whose bytes depend only on what is in it.
archive() {
  tar --create --directory "$2" --format ustar --sort name --mtime "@$SOURCE_DATE_EPOCH" \
    --owner 0 --group 0 --numeric-owner --mode u=rwX,go=rX --file "$1" "${@:3}"
}

# A binary for this machine, which prints the shell completions, the manual pages, and the tools.
build "$(go env GOHOSTOS)" "$(go env GOHOSTARCH)" "$work/here"
mkdir "$work/man"
MAN_DIR=$work/man go test -count=1 -ldflags "$LDFLAGS" -run '^TestManualPages$' ./cmd/unlocker
go -C deploy/release build -o "$work/" ./sbom ./image github.com/goreleaser/nfpm/v2/cmd/nfpm

mkdir -p "$out"
rm -f "$out"/unlocker[-_]* "$out"/sha256sums.txt
layers=()
for platform in $platforms; do
  os=${platform%/*} arch=${platform#*/}
  name=unlocker-$VERSION-$os-$arch
  dir=$work/$name
  mkdir -p "$dir/completions"
  build "$os" "$arch" "$dir/unlocker"
  cp LICENSE README.md CHANGELOG.md config.example.yaml "$dir/"
  cp -r docs "$dir/"
  [ "$os" != linux ] || cp -r deploy/systemd "$dir/"
  for shell in bash zsh fish; do
    "$work/here" completion "$shell" >"$dir/completions/unlocker.$shell"
  done
  cp -r "$work/man" "$dir/"
  "$work/sbom" "$dir/unlocker" unlocker "$VERSION" "$date" >"$out/$name.cdx.json"
  archive - "$work" "$name" | gzip -n >"$out/$name.tar.gz"
  [ "$os" = linux ] || continue
  packages "$arch" "$dir"
  mkdir -p "$work/root/etc/ssl/certs"
  cp "$dir/unlocker" "$work/root/"
  echo nonroot:x:65532:65532:nonroot:/:/sbin/nologin >"$work/root/etc/passwd"
  "$work/image" roots >"$work/root/etc/ssl/certs/ca-certificates.crt"
  archive "$work/$arch.tar" "$work/root" etc unlocker
  layers+=("$arch=$work/$arch.tar")
done
if [ ${#layers[@]} -gt 0 ]; then
  BUILDDATE=$date "$work/image" "$work/oci" Dockerfile "${layers[@]}"
  archive "$out/unlocker-$VERSION-image.tar" "$work/oci" blobs index.json oci-layout
fi
SOURCE_DATE_EPOCH=$SOURCE_DATE_EPOCH clients/package.sh "$out"
(cd "$out" && sha256sum unlocker[-_]* >sha256sums.txt)
cat "$out/sha256sums.txt"
