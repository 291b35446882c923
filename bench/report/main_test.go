package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const output = `goos: linux
BenchmarkPeers/due/bare-2 1 1.511 median-ms 1.000 x-bare
BenchmarkPeers/due/etcd-lease-2-2 1 491.3 median-ms
BenchmarkPeers/growth/1000-2 1 1.5 ready-s 20 scrape-ms
BenchmarkPeers/growth/100000-2 1 6.544 ready-s 25.68 scrape-ms
PASS
`

func TestTablesAndPlots(t *testing.T) {
	dir := t.TempDir()
	var tables strings.Builder
	if err := run(strings.NewReader(output), &tables, dir); err != nil {
		t.Fatal(err)
	}
	const want = `
### Peers/due

| | median-ms | x-bare |
|---|---|---|
| bare | 1.51 | 1 |
| etcd-lease-2 | 491 |  |

### Peers/growth

| | ready-s | scrape-ms |
|---|---|---|
| 1000 | 1.5 | 20 |
| 100000 | 6.54 | 25.7 |
`
	if tables.String() != want {
		t.Errorf("got %s", tables.String())
	}
	for name, text := range map[string]string{"Peers-due-median-ms": "etcd-lease", "Peers-growth-ready-s": "50.9 for each further million", "Peers-growth-scrape-ms": "in thousands"} {
		svg, err := os.ReadFile(filepath.Join(dir, name+".svg"))
		if err != nil || !strings.Contains(string(svg), text) {
			t.Errorf("%s: %v in %d bytes", name, err, len(svg))
		}
	}
	if err := run(strings.NewReader("PASS\n"), &tables, dir); err == nil {
		t.Error("no benchmark has run, and there is no error")
	}
}
