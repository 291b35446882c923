//go:build e2e

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// imports are those of the code of a page.
func imports(packages ...string) string {
	return "package main\n\nimport (\n\t\"" + strings.Join(packages, "\"\n\t\"") + "\"\n)\n\n"
}

const (
	importMutex = "github.com/etcd-unlocker/unlocker/mutex"
	importEtcd  = "go.etcd.io/etcd/client/v3"
)

// testPage compiles the Go code of a page in a module of its own, and runs the tests of it that are in the page and in a
// directory of testdata.
func testPage(t *testing.T, path, tests string, requirements []string, head, testHead string, env ...string) {
	t.Helper()
	page := read(t, path)
	for _, m := range regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(page, -1) {
		if strings.HasPrefix(m[1], "func Test") {
			testHead += m[1]
		} else {
			head += m[1] + "\n"
		}
	}
	p := consumer{t: t, dir: t.TempDir(), env: env}
	module, err := filepath.Abs("../mutex")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"main.go": head + "func main() {}\n", "page_test.go": testHead, "main_test.go": read(t, filepath.Join("testdata", tests, "main_test.go")), "page.md": page,
	} {
		if err := os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p.run("mod", "init", "page.test")
	args := []string{"mod", "edit", "-require=" + importEtcd + "@" + clientReleases[len(clientReleases)-1],
		"-require=" + importMutex + "@v0.0.0", "-replace=" + importMutex + "=" + module, "-replace=" + importMutex + "/prom=" + module + "/prom"}
	for _, r := range requirements {
		args = append(args, "-require="+r)
	}
	p.run(args...)
	p.run("mod", "tidy")
	p.run("vet", ".")
	t.Log(p.run("test", "-v", "."))
}

// TestClientsPage runs the code of docs/clients.md: with an etcd in memory, SQLite and an object store, and as processes on
// a real etcd with a daemon.
func TestClientsPage(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t, newest)
	d := startDaemon(t, etcd.addr)
	testPage(t, "../docs/clients.md", "clients", []string{"modernc.org/sqlite@v1.62.0", importMutex + "/prom@v0.0.0"},
		imports("context", "database/sql", "errors", "fmt", "log/slog", "net/http", "strings", "time", importEtcd, importMutex, importMutex+"/prom",
			"github.com/prometheus/client_golang/prometheus"),
		imports("context", "errors", "testing", "testing/synctest", importMutex+"/mutextest"), "ETCD="+etcd.addr, "ETCD_PID="+strconv.Itoa(etcd.process.cmd.Process.Pid), "DAEMON="+d.base)
}

// TestPagesInPythonAndRuby runs the rest of the code of both pages, on a real etcd.
func TestPagesInPythonAndRuby(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t, newest)
	for _, c := range []struct{ page, language, program, file string }{
		{"clients", "python", "python3", "page.py"}, {"clients", "ruby", "ruby", "page.rb"}, {"migration", "python", "python3", "page.py"},
	} {
		page := read(t, filepath.Join("../docs", c.page+".md"))
		if _, err := exec.LookPath(c.program); err != nil {
			missing(t, "%v", err)
		}
		head, tests, _ := strings.Cut(read(t, filepath.Join("testdata", c.page, c.file)), "# The code of the page is here.\n")
		for _, m := range regexp.MustCompile("(?s)```"+c.language+"\n(.*?)```").FindAllStringSubmatch(page, -1) {
			head += m[1] + "\n"
		}
		script := filepath.Join(t.TempDir(), c.file)
		require.NoError(t, os.WriteFile(script, []byte(head+tests), 0o600))
		cmd := exec.CommandContext(t.Context(), c.program, script)
		cmd.Env = append(os.Environ(), "ETCD=http://"+etcd.addr, "PYTHONPATH=../clients/python/src", "RUBYLIB=../clients/ruby/lib")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		t.Logf("%s: %s: %s", c.page, c.language, out)
	}
}

// TestMigration follows docs/migration.md with a program that has an old lock, on a real etcd with a daemon: fleets of
// processes of two versions at a time.
func TestMigration(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t, newest)
	d := startDaemon(t, etcd.addr)
	testPage(t, "../docs/migration.md", "migration", []string{
		"github.com/go-redsync/redsync/v4@v4.18.1", "github.com/redis/go-redis/v9@v9.23.0", "github.com/alicebob/miniredis/v2@v2.40.0",
	}, imports("context", "log/slog", "time", importMutex), "package main\n", "ETCD="+etcd.addr)
	require.Zero(t, d.metric("unlocker_forced_unlocks_total", "trigger", "expiry"), "no living holder lost its lock")
}
