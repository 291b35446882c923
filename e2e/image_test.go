//go:build e2e

package e2e

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

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
