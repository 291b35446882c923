// Command image writes an image for several architectures as an OCI layout, without a container engine. The image is
// that of the Dockerfile, whose labels it reads, but for its files: they are in a tar for each architecture. The same
// input always gives the same bytes. To take the place of those of a base image, it prints the CA certificates of Mozilla.
//
//	image roots >ca-certificates.crt
//	IMAGE=NAME:TAG VERSION=… REVISION=… BUILDDATE=… image DIR DOCKERFILE ARCH=TAR…
package main

import (
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

func run(args []string) error {
	if len(args) == 1 && args[0] == "roots" {
		return printRoots()
	}
	if len(args) < 3 {
		return errors.New("usage: image DIR DOCKERFILE ARCH=TAR…, or image roots")
	}
	dockerfile, err := os.ReadFile(args[1])
	if err != nil {
		return err
	}
	labels := map[string]string{}
	for _, l := range regexp.MustCompile(`(org\.opencontainers\.image\.\w+)="(.*)"`).FindAllStringSubmatch(string(dockerfile), -1) {
		labels[l[1]] = os.Expand(l[2], os.Getenv)
	}
	created, err := time.Parse(time.RFC3339, labels["org.opencontainers.image.created"])
	if err != nil {
		return err
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arg := range args[2:] {
		arch, path, _ := strings.Cut(arg, "=")
		layer, err := tarball.LayerFromFile(path, tarball.WithMediaType(types.OCILayer))
		if err != nil {
			return err
		}
		image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
		if image, err = mutate.ConfigFile(image, &v1.ConfigFile{
			OS: "linux", Architecture: arch, Created: v1.Time{Time: created}, RootFS: v1.RootFS{Type: "layers"}, Config: v1.Config{
				User: "65532:65532", WorkingDir: "/", Entrypoint: []string{"/unlocker"}, Cmd: []string{"serve"}, Labels: labels,
				ExposedPorts: map[string]struct{}{"9480/tcp": {}, "9481/tcp": {}},
			}}); err != nil {
			return err
		}
		history := v1.History{Created: v1.Time{Time: created}, CreatedBy: "deploy/release/release.sh"}
		if image, err = mutate.Append(image, mutate.Addendum{Layer: layer, History: history}); err != nil {
			return err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}}})
	}
	dir, err := layout.Write(args[0], empty.Index)
	if err != nil {
		return err
	}
	name := os.Getenv("IMAGE")
	return dir.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name[strings.LastIndex(name, ":")+1:]}))
}

func printRoots() (err error) {
	for root := range bundle.Roots() {
		if root.Constraint == nil { // PEM has no place for one
			err = errors.Join(err, pem.Encode(os.Stdout, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}))
		}
	}
	return err
}
