//go:build e2e

package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/buildinfo"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What `make release` builds.
func TestRelease(t *testing.T) {
	t.Parallel()
	platforms := []string{"linux-amd64", "linux-arm64"}
	if !testing.Short() { // the gate runs make release
		platforms = append(platforms, "darwin-amd64", "darwin-arm64", "freebsd-amd64", "freebsd-arm64")
	}
	out := release(t, "v0.9.1", "PLATFORMS="+strings.ReplaceAll(strings.Join(platforms, " "), "-", "/"))
	sums := exec.CommandContext(t.Context(), "sha256sum", "--check", "--strict", "--quiet", "sha256sums.txt")
	sums.Dir = out
	said, err := sums.CombinedOutput()
	require.NoError(t, err, "%s", said)
	files, err := os.ReadDir(out)
	require.NoError(t, err)
	require.Equal(t, strings.Count(read(t, filepath.Join(out, "sha256sums.txt")), "\n"), len(files)-1, "each file but the sums has a sum")
	for _, platform := range platforms {
		t.Run(platform, func(t *testing.T) { testArchive(t, out, "unlocker-v0.9.1-"+platform) })
	}
	t.Run("image", func(t *testing.T) { testImage(t, filepath.Join(out, "unlocker-v0.9.1-image.tar"), "v0.9.1") })
	next := release(t, "v0.9.2", "PLATFORMS=linux/amd64")
	require.Equal(t, read(t, filepath.Join(next, "sha256sums.txt")), read(t, filepath.Join(release(t, "v0.9.2", "PLATFORMS=linux/amd64"), "sha256sums.txt")),
		"two runs give the same bytes")
	for name, p := range packagings {
		t.Run(name, func(t *testing.T) {
			program(t, p.program)
			testPackageContents(t, p, out)
			testPackage(t, p, filepath.Join(out, p.file["v0.9.1"]), filepath.Join(next, p.file["v0.9.2"]))
		})
	}
}

// release runs `make release`, with variables of make, and returns the directory of its output.
func release(t *testing.T, version string, variables ...string) string {
	t.Helper()
	out := t.TempDir()
	run(t, "make", append([]string{"-C", "..", "release", "DIST=" + out, "VERSION=" + version}, variables...)...)
	return out
}

// testArchive requires that an archive has what its users need, and a binary for its platform.
func testArchive(t *testing.T, out, name string) {
	files := untar(t, read(t, filepath.Join(out, name+".tar.gz")))
	for _, file := range []string{"LICENSE", "README.md", "CHANGELOG.md", "config.example.yaml", "docs/safety.md", "man/unlocker-serve.1", "completions/unlocker.zsh"} {
		require.NotEmpty(t, files[name+"/"+file], file)
	}
	_, unit := files[name+"/systemd/unlocker.service"]
	require.Equal(t, strings.Contains(name, "linux"), unit)
	info, err := buildinfo.Read(strings.NewReader(files[name+"/unlocker"]))
	require.NoError(t, err)
	var platform [2]string
	for _, s := range info.Settings {
		switch s.Key {
		case "GOOS":
			platform[0] = s.Value
		case "GOARCH":
			platform[1] = s.Value
		}
	}
	require.Equal(t, "unlocker-v0.9.1-"+strings.Join(platform[:], "-"), name)
	require.Contains(t, read(t, filepath.Join(out, name+".cdx.json")), `"bomFormat": "CycloneDX"`)
}

// untar returns the regular files of a tar, which may be compressed by gzip.
func untar(t *testing.T, archive string) map[string]string {
	t.Helper()
	var in io.Reader = strings.NewReader(archive)
	if strings.HasPrefix(archive, "\x1f\x8b") {
		var err error
		in, err = gzip.NewReader(in)
		require.NoError(t, err)
	}
	files := map[string]string{}
	for r := tar.NewReader(in); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		if h.Typeflag == tar.TypeReg {
			var content bytes.Buffer
			_, err = io.Copy(&content, r) //nolint:gosec // it is ours
			require.NoError(t, err)
			files[h.Name] = content.String()
		}
	}
}
