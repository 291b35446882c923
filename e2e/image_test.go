//go:build e2e

package e2e

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"crypto/x509"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// arguments returns the arguments of all instructions of this kind in the Dockerfile.
func arguments(t *testing.T, instruction string) (all []string) {
	for _, m := range regexp.MustCompile(`(?m)^`+instruction+` (.*)$`).FindAllStringSubmatch(read(t, "../Dockerfile"), -1) {
		all = append(all, m[1])
	}
	require.NotEmpty(t, all, instruction)
	return all
}

// CI does not build images, so no other test fails if a package that the binary needs is not
// copied.
func TestDockerfileCopiesWhatTheBinaryNeeds(t *testing.T) {
	var copied []string
	sent := strings.Split(read(t, "../.dockerignore"), "\n")
	for _, line := range arguments(t, "COPY") {
		if strings.HasPrefix(line, "--from=") {
			continue
		}
		sources := strings.Fields(line)
		for _, source := range sources[:len(sources)-1] {
			room, _, _ := strings.Cut(source, "/")
			require.True(t, slices.Contains(sent, "!"+source) || slices.Contains(sent, "!"+room), "%s is not sent", source)
			copied = append(copied, source)
		}
	}
	require.Subset(t, copied, []string{"go.mod", "go.sum"})

	root, err := filepath.Abs("..")
	require.NoError(t, err)
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f",
		`{{if and .Module (or .Module.Main .Module.Replace)}}{{.Dir}}{{range .EmbedFiles}} {{.}}{{end}}{{end}}`, "./cmd/unlocker")
	list.Dir = root
	out, err := list.Output()
	require.NoError(t, err)
	packages := strings.Split(strings.TrimSpace(string(out)), "\n")
	require.Greater(t, len(packages), 10)
	for _, p := range packages {
		dir, err := filepath.Rel(root, strings.Fields(p)[0])
		require.NoError(t, err)
		require.True(t, slices.ContainsFunc(copied, func(c string) bool { return dir == c || strings.HasPrefix(dir, c+"/") }), "%s is not copied", dir)
		require.NotContains(t, p, "testdata", ".dockerignore excludes it")
	}
}

func TestDockerfileAgreesWithMakefileAndConfiguration(t *testing.T) {
	stamps := regexp.MustCompile(`common/version\.(\w+)=|\$\(VPKG\)\.(\w+)=`)
	stamped := func(path string) (names []string) {
		for _, m := range stamps.FindAllStringSubmatch(read(t, path), -1) {
			names = append(names, m[1]+m[2])
		}
		return names
	}
	require.NotEmpty(t, stamped("../Makefile"))
	require.ElementsMatch(t, stamped("../Makefile"), stamped("../Dockerfile"))

	defaults := read(t, "../config.example.yaml")
	ports := strings.Fields(arguments(t, "EXPOSE")[0])
	require.Len(t, ports, 2)
	for _, port := range ports {
		require.Contains(t, defaults, `listen: ":`+port+`"`)
	}
}

// The chart takes the image that the Makefile builds.
func TestImageHasTheTagOfTheChart(t *testing.T) {
	var chart struct {
		AppVersion string `yaml:"appVersion"`
	}
	readYAML(t, "../deploy/helm/unlocker/Chart.yaml", &chart)
	var values struct {
		Image struct{ Registry, Repository, Tag string }
	}
	readYAML(t, "../deploy/helm/unlocker/values.yaml", &values)
	require.Empty(t, values.Image.Tag)
	image := strings.TrimPrefix(values.Image.Registry+"/", "/") + values.Image.Repository + ":" + chart.AppVersion
	require.Contains(t, run(t, "make", "--no-print-directory", "-C", "..", "-n", "image"), " -t "+image+" .\n")
	require.Contains(t, read(t, "../README.md"), "docker-image "+image+"`")
}

// blob is what an OCI layout says of a blob.
type blob struct {
	MediaType, Digest string
	Size              int
	Annotations       map[string]string
	Platform          struct{ OS, Architecture string }
}

// testImage requires that an image is that of the Dockerfile, for both architectures, and runs its binary.
func testImage(t *testing.T, path, version string) {
	files := untar(t, read(t, path))
	require.JSONEq(t, `{"imageLayoutVersion": "1.0.0"}`, files["oci-layout"])
	used := 2 // index.json and oci-layout
	get := func(b blob, mediaType string) string {
		content := files["blobs/"+strings.ReplaceAll(b.Digest, ":", "/")]
		require.Equal(t, b.Digest, fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(content))))
		require.Len(t, content, b.Size)
		require.Equal(t, "application/vnd.oci.image."+mediaType, b.MediaType)
		used++
		return content
	}
	var index, image struct{ Manifests []blob }
	require.NoError(t, json.Unmarshal([]byte(files["index.json"]), &index))
	require.Len(t, index.Manifests, 1)
	chart := regexp.MustCompile(` -t (\S+):(\S+) \.\n`).FindStringSubmatch(run(t, "make", "--no-print-directory", "-C", "..", "-n", "image"))
	require.Equal(t, map[string]string{"io.containerd.image.name": chart[1] + ":" + chart[2], "org.opencontainers.image.ref.name": chart[2]}, index.Manifests[0].Annotations)
	require.NoError(t, json.Unmarshal([]byte(get(index.Manifests[0], "index.v1+json")), &image))
	require.Len(t, image.Manifests, 2)
	for i, arch := range []string{"amd64", "arm64"} {
		require.Equal(t, struct{ OS, Architecture string }{"linux", arch}, image.Manifests[i].Platform)
		var manifest struct {
			Config blob
			Layers []blob
		}
		require.NoError(t, json.Unmarshal([]byte(get(image.Manifests[i], "manifest.v1+json")), &manifest))
		require.Len(t, manifest.Layers, 1)
		packed, err := gzip.NewReader(strings.NewReader(get(manifest.Layers[0], "layer.v1.tar+gzip")))
		require.NoError(t, err)
		layer, err := io.ReadAll(packed)
		require.NoError(t, err)
		testImageConfig(t, get(manifest.Config, "config.v1+json"), arch, version, sha256.Sum256(layer))
		root := untar(t, string(layer))
		require.Len(t, root, 3)
		info, err := buildinfo.Read(strings.NewReader(root["unlocker"]))
		require.NoError(t, err)
		require.Contains(t, info.Settings, debug.BuildSetting{Key: "GOARCH", Value: arch})
		if arch == runtime.GOARCH {
			testImageRuns(t, layer, version)
		}
	}
	require.Len(t, files, used, "a blob that nothing refers to")
}

func testImageConfig(t *testing.T, text, arch, version string, layer [sha256.Size]byte) {
	var config struct {
		Architecture, OS string
		Created          time.Time
		Config           struct {
			User, WorkingDir string
			Entrypoint, Cmd  []string
			ExposedPorts     map[string]any
			Labels           map[string]string
		}
		RootFS struct {
			Type    string
			DiffIDs []string `json:"diff_ids"` //nolint:tagliatelle // as OCI has it
		}
	}
	require.NoError(t, json.Unmarshal([]byte(text), &config))
	require.Equal(t, "linux "+arch, config.OS+" "+config.Architecture)
	require.Equal(t, "layers", config.RootFS.Type)
	require.Equal(t, []string{fmt.Sprintf("sha256:%x", layer)}, config.RootFS.DiffIDs)

	quoted := func(words []string) string { return `["` + strings.Join(words, `", "`) + `"]` }
	require.Equal(t, arguments(t, "USER")[0], config.Config.User)
	require.Equal(t, arguments(t, "ENTRYPOINT")[0], quoted(config.Config.Entrypoint))
	require.Equal(t, arguments(t, "CMD")[0], quoted(config.Config.Cmd))
	require.Contains(t, arguments(t, "WORKDIR"), config.Config.WorkingDir)
	var ports []string
	for _, port := range strings.Fields(arguments(t, "EXPOSE")[0]) {
		ports = append(ports, port+"/tcp")
	}
	require.ElementsMatch(t, ports, slices.Collect(maps.Keys(config.Config.ExposedPorts)))
	const of = "org.opencontainers.image."
	require.Len(t, config.Config.Labels, strings.Count(read(t, "../Dockerfile"), of))
	require.Equal(t, "Apache-2.0", config.Config.Labels[of+"licenses"])
	require.Equal(t, version, config.Config.Labels[of+"version"])
	require.Equal(t, strings.TrimSpace(run(t, "git", "rev-parse", "HEAD")), config.Config.Labels[of+"revision"])
	require.Equal(t, config.Created.Format(time.RFC3339), config.Config.Labels[of+"created"])
}

// testImageRuns runs the binary with nothing but the files of the image, as its user.
func testImageRuns(t *testing.T, layer []byte, version string) {
	root := t.TempDir()
	unpack := exec.CommandContext(t.Context(), "tar", "--extract", "--same-permissions", "--directory", root)
	unpack.Stdin = bytes.NewReader(layer)
	out, err := unpack.CombinedOutput()
	require.NoError(t, err, "%s", out)
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM([]byte(read(t, filepath.Join(root, "etc/ssl/certs/ca-certificates.crt")))))
	require.Greater(t, len(roots.Subjects()), 100) //nolint:staticcheck // it is not the system's pool
	require.NoError(t, os.Chmod(filepath.Dir(root), 0o755))
	if os.Geteuid() != 0 {
		missing(t, "chroot needs root")
	}
	said := run(t, "chroot", "--userspec=65532:65532", root, "/unlocker", "version")
	require.Contains(t, said, "unlocker, version "+version+" ")
}

// The bill of materials lists the modules that are linked into the binary.
func TestBillOfMaterials(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "-C", "../deploy/release", "run", "./sbom", unlocker, "unlocker", "v1.2.3", "2026-01-02T03:04:05Z").Output()
	require.NoError(t, err)
	var bill struct {
		Components []struct{ Name, Version string }
	}
	require.NoError(t, json.Unmarshal(out, &bill))
	var listed, linked []string
	for _, c := range bill.Components {
		listed = append(listed, c.Name+" "+c.Version)
	}
	out, err = exec.CommandContext(t.Context(), "go", "version", "-m", unlocker).Output()
	require.NoError(t, err)
	for line := range strings.Lines(string(out)) {
		f := append(strings.Fields(line), "") // a line may be empty
		last := len(linked) - 1
		switch {
		case f[0] == "dep":
			linked = append(linked, f[1]+" "+f[2])
		case f[0] == "=>" && strings.HasPrefix(f[1], "./"): // a folder has the version of the whole
			linked[last] = strings.Fields(linked[last])[0] + " v1.2.3"
		case f[0] == "=>":
			linked[last] = f[1] + " " + f[2]
		case f[0] == unlocker+":":
			linked = append(linked, "stdlib "+strings.TrimPrefix(f[1], "go"))
		}
	}
	require.Greater(t, len(linked), 20)
	require.ElementsMatch(t, linked, listed)
	require.NotContains(t, strings.Join(listed, "\n"), "etcd/server")
}
