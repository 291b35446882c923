//go:build e2e

package e2e

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The newest release of each client library of etcd. The tests of the module itself run with the
// oldest one that it requires.
var clientReleases = []string{"v3.5.35", "v3.6.8", "v3.7.3"}

const (
	// addedModules is how many modules a user of package mutex has at most in the module graph, in addition
	// to those of etcd's client.
	addedModules = 15
	// addedBytes is how much package mutex adds at most to a binary that uses etcd's client.
	addedBytes = 500 << 10
)

// consumer is a module of a user, built by the go command with requirements of its own.
type consumer struct {
	t       *testing.T
	dir     string
	modules []string
	size    int64
	env     []string
}

// buildConsumer builds a user's program with a release of etcd's client.
func buildConsumer(t *testing.T, client string, files map[string]string) consumer {
	t.Helper()
	p := consumer{t: t, dir: t.TempDir()}
	for name, text := range files {
		require.NoError(t, os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o600))
	}
	p.run("mod", "init", "consumer.test")
	p.run("mod", "edit", "-go=1.23.0", "-require=go.etcd.io/etcd/client/v3@"+client)
	if strings.Contains(files["main.go"], "unlocker/mutex") {
		module, err := filepath.Abs("../mutex")
		require.NoError(t, err)
		for _, dir := range []string{"", "/otel", "/prom"} {
			p.run("mod", "edit", "-replace="+importMutex+dir+"="+module+dir)
			if strings.Contains(files["main.go"], importMutex+dir+`"`) {
				p.run("mod", "edit", "-require="+importMutex+dir+"@v0.0.0")
			}
		}
	}
	p.run("mod", "tidy")
	require.Equal(t, client, p.run("list", "-m", "-f", "{{.Version}}", "go.etcd.io/etcd/client/v3"), "the user's release")
	p.modules = strings.Fields(p.run("list", "-m", "-f", "{{.Path}}", "all"))
	p.run("build", "-trimpath", "-ldflags=-s -w", "-o", "program", ".")
	binary, err := os.Stat(filepath.Join(p.dir, "program"))
	require.NoError(t, err)
	p.size = binary.Size()
	return p
}

// run runs the go command in the user's module.
func (p consumer) run(args ...string) string {
	p.t.Helper()
	cmd := exec.CommandContext(p.t.Context(), "go", args...)
	cmd.Dir = p.dir
	cmd.Env = append(append(os.Environ(), "GOFLAGS="+os.Getenv("GOFLAGS")+" -mod=mod", "GOWORK=off", "CGO_ENABLED=0"), p.env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(p.t, err, "go %s:\n%s%s", strings.Join(args, " "), out, stderr.String())
	return strings.TrimSpace(string(out))
}

func (p consumer) goLine() string { return p.run("list", "-m", "-f", "{{.GoVersion}}") }

// bareClient uses etcd's client alone.
const bareClient = `package main

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
)

func main() {
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{"127.0.0.1:2379"}})
	if err == nil {
		_, err = etcd.Txn(context.Background()).Then(clientv3.OpPut("a", "1")).Commit()
		fmt.Println(<-etcd.Watch(context.Background(), "a"))
	}
	fmt.Println(err)
}
`

// readmeOfMutex returns the program of its README, and the test of that.
func readmeOfMutex(t *testing.T) map[string]string {
	t.Helper()
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(read(t, "../mutex/README.md"), -1)
	require.Len(t, blocks, 2)
	return map[string]string{"main.go": blocks[0][1], "main_test.go": blocks[1][1]}
}

// TestConsumer builds what a user builds, with each release of etcd's client that package mutex supports:
// it works, it keeps the user's release and Go version, and it stays small.
func TestConsumer(t *testing.T) {
	t.Parallel()
	for _, client := range clientReleases {
		t.Run(client, func(t *testing.T) {
			alone := buildConsumer(t, client, map[string]string{"main.go": bareClient})
			with := buildConsumer(t, client, readmeOfMutex(t))
			t.Logf("%d modules instead of %d, %d kB more than %d kB", len(with.modules), len(alone.modules), (with.size-alone.size)>>10, alone.size>>10)
			require.LessOrEqual(t, len(with.modules), len(alone.modules)+addedModules)
			require.LessOrEqual(t, with.size, alone.size+addedBytes)
			require.Equal(t, alone.goLine(), with.goLine())
			for _, module := range with.modules {
				require.NotContains(t, module, "etcd/server")
				require.NotEqual(t, "github.com/etcd-unlocker/unlocker", module)
			}
			require.Contains(t, with.run("test", "-v", "."), "--- PASS: TestInvoices")
		})
	}
}

// TestConsumerOfEachName builds a module that uses each exported name of package mutex, of mutextest and of the adapters,
// with the oldest versions that these require.
func TestConsumerOfEachName(t *testing.T) {
	text := read(t, "testdata/names.go.txt")
	p := buildConsumer(t, "v3.5.21", map[string]string{"main.go": text}) // the oldest client
	require.Equal(t, "1.23.0", p.goLine(), "no module raises the version of Go")
	file, err := parser.ParseFile(token.NewFileSet(), "names.go", text, 0)
	require.NoError(t, err)
	used := map[string]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr: // mutex.New, (*mutex.Lock).Name, mutex.Holder.String
			used[strings.NewReplacer("(", "", ")", "", "*", "").Replace(types.ExprString(n))] = true
		case *ast.CompositeLit:
			for _, e := range n.Elts {
				if pair, keyed := e.(*ast.KeyValueExpr); keyed {
					used[types.ExprString(n.Type)+"."+types.ExprString(pair.Key)] = true
				}
			}
		}
		return true
	})
	for pkg, dir := range map[string]string{"mutex": "../mutex", "mutextest": "../mutex/mutextest", "otel": "../mutex/otel", "prom": "../mutex/prom"} {
		names := exported(t, dir)
		require.NotEmpty(t, names)
		for _, name := range names {
			require.True(t, used[pkg+"."+name], "testdata/names.go.txt does not use %s.%s", pkg, name)
		}
	}
}

// exported returns the exported names of a package: of functions, types, constants, variables, methods and fields.
func exported(t *testing.T, dir string) (names []string) {
	t.Helper()
	paths, err := filepath.Glob(dir + "/*.go")
	require.NoError(t, err)
	add := func(owner string, idents ...*ast.Ident) {
		for _, id := range idents {
			if id.IsExported() && (owner == "" || ast.IsExported(owner)) {
				names = append(names, strings.TrimPrefix(owner+"."+id.Name, "."))
			}
		}
	}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		require.NoError(t, err)
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				owner := ""
				if d.Recv != nil {
					owner = strings.TrimPrefix(types.ExprString(d.Recv.List[0].Type), "*")
				}
				add(owner, d.Name)
			case *ast.GenDecl:
				for _, s := range d.Specs {
					switch s := s.(type) {
					case *ast.ValueSpec:
						add("", s.Names...)
					case *ast.TypeSpec:
						add("", s.Name)
						if fields, is := s.Type.(*ast.StructType); is {
							for _, f := range fields.Fields.List {
								add(s.Name.Name, f.Names...)
							}
						}
					}
				}
			}
		}
	}
	return names
}
