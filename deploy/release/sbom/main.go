// Command sbom writes the bill of materials of a Go binary to stdout, as CycloneDX 1.6 JSON.
// It lists the modules that are linked into the binary. It does not list modules that only
// tests need, or licenses, which a binary does not record. The same binary and arguments
// always give the same output.
//
//	sbom BINARY NAME VERSION DATE
package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

func run(args []string, out io.Writer) error {
	if len(args) != 4 {
		return errors.New("usage: sbom BINARY NAME VERSION DATE")
	}
	path := args[0]
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	bom := newBOM(info, sha256.Sum256(content), args[1], args[2], args[3])
	return cdx.NewBOMEncoder(out, cdx.BOMFileFormatJSON).SetPretty(true).SetEscapeHTML(false).EncodeVersion(bom, cdx.SpecVersion1_6)
}

func newBOM(info *debug.BuildInfo, sum [sha256.Size]byte, name, version, date string) *cdx.BOM {
	main := module(cdx.ComponentTypeApplication, &debug.Module{Path: info.Main.Path, Version: version})
	main.Name = name
	main.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}}
	var settings []cdx.Property
	for _, s := range info.Settings {
		settings = append(settings, cdx.Property{Name: "go:build:" + s.Key, Value: s.Value})
	}
	main.Properties = &settings

	stdlib := &debug.Module{Path: "stdlib", Version: strings.TrimPrefix(info.GoVersion, "go")}
	var libraries []cdx.Component
	var refs []string
	for _, m := range append([]*debug.Module{stdlib}, info.Deps...) {
		switch r := m.Replace; {
		case r == nil:
		case strings.HasPrefix(r.Path, "."): // a folder of this repository: the public client
			m = &debug.Module{Path: m.Path, Version: version}
		default:
			m = r
		}
		library := module(cdx.ComponentTypeLibrary, m)
		libraries, refs = append(libraries, library), append(refs, library.BOMRef)
	}

	bom := cdx.NewBOM()
	bom.SerialNumber = "urn:uuid:" + uuid(sum)
	bom.Metadata = &cdx.Metadata{Timestamp: date, Component: &main}
	bom.Components = &libraries
	bom.Dependencies = &[]cdx.Dependency{{Ref: main.BOMRef, Dependencies: &refs}}
	return bom
}

func module(kind cdx.ComponentType, m *debug.Module) cdx.Component {
	url := "pkg:golang/" + m.Path + "@" + strings.ReplaceAll(m.Version, "+", "%2B")
	c := cdx.Component{Type: kind, BOMRef: url, Name: m.Path, Version: m.Version, PackageURL: url}
	if m.Sum != "" {
		// A property rather than a hash: the sum in go.sum is not that of one file.
		c.Properties = &[]cdx.Property{{Name: "go:sum", Value: m.Sum}}
	}
	return c
}

// uuid derives a UUID of version 8 (RFC 9562) from a sum.
func uuid(sum [sha256.Size]byte) string {
	b := sum[:16]
	b[6] = b[6]&0x0f | 0x80
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
