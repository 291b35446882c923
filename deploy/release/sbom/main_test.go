package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"runtime/debug"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/stretchr/testify/require"
)

func TestBillOfThisTest(t *testing.T) {
	path, err := os.Executable()
	require.NoError(t, err)
	args := []string{path, "unlocker", "v1.2.3", "2026-01-02T03:04:05Z"}
	var out, again bytes.Buffer
	require.NoError(t, run(args, &out))
	require.NoError(t, run(args, &again))
	require.Equal(t, out.String(), again.String())
	var b cdx.BOM
	require.NoError(t, cdx.NewBOMDecoder(&out, cdx.BOMFileFormatJSON).Decode(&b))
	require.Equal(t, cdx.SpecVersion1_6, b.SpecVersion)
	require.Equal(t, 1, b.Version)

	content, err := os.ReadFile(path)
	require.NoError(t, err)
	sum := sha256.Sum256(content)
	require.Equal(t, &[]cdx.Hash{{Algorithm: "SHA-256", Value: hex.EncodeToString(sum[:])}}, b.Metadata.Component.Hashes)
	require.Equal(t, "pkg:golang/github.com/etcd-unlocker/unlocker/deploy/release@v1.2.3", b.Metadata.Component.PackageURL)
	require.Equal(t, "2026-01-02T03:04:05Z", b.Metadata.Timestamp)
	require.Regexp(t, `^urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`, b.SerialNumber)

	require.Equal(t, "stdlib", (*b.Components)[0].Name, "a test binary records no modules: e2e tests those of unlocker")
}

func TestReplacedModuleIsNamed(t *testing.T) {
	b := newBOM(&debug.BuildInfo{
		GoVersion: "go1.26.0",
		Deps: []*debug.Module{
			{Path: "a", Version: "v1.0.0", Replace: &debug.Module{Path: "b", Version: "v2.0.0+incompatible", Sum: "h1:x"}},
			{Path: "ours", Version: "v0.0.0", Replace: &debug.Module{Path: "./ours", Version: "(devel)"}},
		},
	}, [32]byte{}, "n", "v3", "d")
	require.Equal(t, "pkg:golang/stdlib@1.26.0", (*b.Components)[0].PackageURL)
	require.Equal(t, cdx.Component{
		Type: "library", BOMRef: "pkg:golang/b@v2.0.0%2Bincompatible", Name: "b", Version: "v2.0.0+incompatible",
		PackageURL: "pkg:golang/b@v2.0.0%2Bincompatible", Properties: &[]cdx.Property{{Name: "go:sum", Value: "h1:x"}},
	}, (*b.Components)[1])
	require.Equal(t, "pkg:golang/ours@v3", (*b.Components)[2].PackageURL, "a folder has the version of the whole")
}

func TestWrongArguments(t *testing.T) {
	require.ErrorContains(t, run(nil, nil), "usage")
	require.Error(t, run([]string{"main.go", "n", "v", "d"}, nil), "not a binary")
	require.ErrorIs(t, run([]string{"absent", "n", "v", "d"}, nil), os.ErrNotExist)
}
