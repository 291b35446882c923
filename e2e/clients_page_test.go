//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// clientsImports are those of the code of docs/clients.md, and of the tests on it.
const clientsImports = `package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/mutex"
)

`

const clientsTestImports = `package main

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/etcd-unlocker/unlocker/mutex/mutextest"
)

`

// TestClientsPage compiles the code of docs/clients.md in a module of its own, and runs it: with an etcd in memory, SQLite
// and an object store.
func TestClientsPage(t *testing.T) {
	t.Parallel()
	code, tests := clientsImports+"func main() {}\n\n", clientsTestImports
	page := read(t, "../docs/clients.md")
	for _, m := range regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(page, -1) {
		if strings.HasPrefix(m[1], "func Test") {
			tests += m[1]
		} else {
			code += m[1] + "\n"
		}
	}
	harness := read(t, "testdata/clients/main_test.go")
	for _, statement := range regexp.MustCompile("(?m)^    (CREATE TABLE .*)$").FindAllStringSubmatch(page, -1) {
		require.Contains(t, harness, statement[1])
	}
	p := consumer{t: t, dir: t.TempDir()}
	module, err := filepath.Abs("../mutex")
	require.NoError(t, err)
	for name, text := range map[string]string{"main.go": code, "page_test.go": tests, "main_test.go": harness} {
		require.NoError(t, os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o600))
	}
	p.run("mod", "init", "clients.test")
	p.run("mod", "edit", "-require=modernc.org/sqlite@v1.62.0", "-require=go.etcd.io/etcd/client/v3@"+clientReleases[len(clientReleases)-1],
		"-require=github.com/etcd-unlocker/unlocker/mutex@v0.0.0", "-replace=github.com/etcd-unlocker/unlocker/mutex="+module)
	p.run("mod", "tidy")
	p.run("vet", ".")
	t.Log(p.run("test", "-v", "."))
}
