// Command sbom writes the bill of materials of a Go binary, as CycloneDX JSON, to
// stdout. It tells what the linker put into the binary and nothing else: neither
// modules of go.mod that only tests need, nor licences, which a binary does not know.
// The same binary and date give the same bytes.
//
//	sbom BINARY NAME VERSION DATE
package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"
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
	bill := newBill(info, sha256.Sum256(content), args[1], args[2], args[3])
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(bill)
}

// The part of CycloneDX 1.6 that is used: https://cyclonedx.org/docs/1.6/json/
type (
	bill struct {
		Schema       string       `json:"$schema"`
		Format       string       `json:"bomFormat"`
		SpecVersion  string       `json:"specVersion"`
		SerialNumber string       `json:"serialNumber"`
		Version      int          `json:"version"`
		Metadata     metadata     `json:"metadata"`
		Components   []component  `json:"components"`
		Dependencies []dependency `json:"dependencies"`
	}
	metadata struct {
		Timestamp string    `json:"timestamp"`
		Component component `json:"component"`
	}
	component struct {
		Type       string     `json:"type"`
		Ref        string     `json:"bom-ref"`
		Name       string     `json:"name"`
		Version    string     `json:"version"`
		PackageURL string     `json:"purl"`
		Hashes     []hash     `json:"hashes,omitempty"`
		Properties []property `json:"properties,omitempty"`
	}
	hash struct {
		Algorithm string `json:"alg"`
		Content   string `json:"content"`
	}
	property struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}
	dependency struct {
		Ref       string   `json:"ref"`
		DependsOn []string `json:"dependsOn"`
	}
)

func newBill(info *debug.BuildInfo, sum [sha256.Size]byte, name, version, date string) bill {
	main := module("application", &debug.Module{Path: info.Main.Path, Version: version})
	main.Name = name
	main.Hashes = []hash{{"SHA-256", hex.EncodeToString(sum[:])}}
	for _, s := range info.Settings {
		main.Properties = append(main.Properties, property{"go:build:" + s.Key, s.Value})
	}
	stdlib := module("library", &debug.Module{Path: "stdlib", Version: strings.TrimPrefix(info.GoVersion, "go")})
	libraries := []component{stdlib}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		libraries = append(libraries, module("library", m))
	}
	needs := dependency{Ref: main.Ref}
	for _, l := range libraries {
		needs.DependsOn = append(needs.DependsOn, l.Ref)
	}
	return bill{
		Schema: "http://cyclonedx.org/schema/bom-1.6.schema.json",
		Format: "CycloneDX", SpecVersion: "1.6", SerialNumber: "urn:uuid:" + uuid(sum), Version: 1,
		Metadata:   metadata{Timestamp: date, Component: main},
		Components: libraries, Dependencies: []dependency{needs},
	}
}

func module(kind string, m *debug.Module) component {
	url := "pkg:golang/" + m.Path + "@" + strings.ReplaceAll(m.Version, "+", "%2B")
	c := component{Type: kind, Ref: url, Name: m.Path, Version: m.Version, PackageURL: url}
	if m.Sum != "" {
		// The sum of go.sum, which is that of a module and not of a file.
		c.Properties = []property{{"go:sum", m.Sum}}
	}
	return c
}

// uuid makes one of a sum: version 8 of RFC 9562, whose bits are ours to choose.
func uuid(sum [sha256.Size]byte) string {
	b := sum[:16]
	b[6] = b[6]&0x0f | 0x80
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
