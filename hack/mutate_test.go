//go:build nightly

// Package hack_test has what developers run by hand.
package hack_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMutate changes the package in the directory MUTATE, in one place at a time, and runs its tests with each change,
// an overlay of the build. At least one test must fail for each, but for those that survivors.txt explains. See
// docs/testing.md.
//
//	make mutate PKG=./internal/verdict
func TestMutate(t *testing.T) {
	if os.Getenv("MUTATE") == "" {
		t.Skip("without MUTATE")
	}
	dir := filepath.Join("..", os.Getenv("MUTATE"))
	p := newPackage(t, dir)
	explained := explanations(t, filepath.ToSlash(filepath.Clean(os.Getenv("MUTATE"))))
	all := p.mutants(t)
	var mu sync.Mutex
	count := map[string]int{}
	t.Run("all", func(t *testing.T) { // returns when the parallel ones have
		for _, m := range all {
			t.Run(m.at, func(t *testing.T) {
				t.Parallel()
				outcome := p.try(t, m)
				mu.Lock()
				defer mu.Unlock()
				switch {
				case outcome == survived && explained[m.key]:
					outcome = "survived, explained"
				case outcome == survived:
					t.Errorf("SURVIVED: %s", m.key)
				case explained[m.key]:
					t.Errorf("survivors.txt explains what %s: %s", outcome, m.key)
				}
				count[outcome]++
			})
		}
	})
	t.Logf("%s: %d changes, %v", os.Getenv("MUTATE"), len(all), count)
	for key := range explained {
		require.True(t, slices.ContainsFunc(all, func(m mutant) bool { return m.key == key }), "survivors.txt explains what the code does not have: %s", key)
	}
}

// survived is the outcome of a change that no test notices.
const survived = "survived"

// mutant is one change of one file: text instead of the bytes from begin to end.
type mutant struct {
	file, at   string
	key        string // names it in survivors.txt, also when lines have moved
	begin, end int
	text       string
}

// explanations returns the keys of the survivors that survivors.txt explains, of a package.
func explanations(t *testing.T, pkg string) map[string]bool {
	f, err := os.Open("survivors.txt")
	require.NoError(t, err)
	defer f.Close()
	keys, in := map[string]bool{}, ""
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line := lines.Text()
		switch {
		case strings.HasPrefix(line, "# "):
			in = strings.TrimPrefix(line, "# ")
		case in == pkg && strings.Contains(line, " | "):
			keys[line] = true
		}
	}
	require.NoError(t, lines.Err())
	return keys
}

// goPackage is a package, and how long its tests take.
type goPackage struct {
	dir     string
	files   []string
	args    []string
	timeout time.Duration
}

func newPackage(t *testing.T, dir string) *goPackage {
	cmd := exec.CommandContext(t.Context(), "go", "list", "-f", `{{join .GoFiles "\n"}}`, ".")
	cmd.Dir = dir
	out, err := cmd.Output()
	require.NoError(t, err)
	p := &goPackage{dir: dir, files: strings.Fields(string(out)), args: []string{"-test.failfast"}, timeout: 10 * time.Minute}
	cmd = exec.CommandContext(t.Context(), "go", "list", "-test", "-deps", ".")
	cmd.Dir = dir
	out, err = cmd.Output()
	require.NoError(t, err)
	if strings.Contains(string(out), "pgregory.net/rapid") {
		p.args = append(p.args, "-rapid.seed=1", "-rapid.nofailfile", "-rapid.shrinktime=0s")
	}
	start := time.Now()
	program, failure := p.build(t, "")
	require.Empty(t, failure)
	built := time.Now()
	require.NoError(t, p.run(t, program), "the tests fail without a change")
	p.timeout = 3*time.Since(built) + 20*time.Second
	t.Logf("%s: build %s, tests %s", dir, built.Sub(start).Round(time.Millisecond), time.Since(built).Round(time.Millisecond))
	return p
}

// try returns what the tests make of a mutant.
func (p *goPackage) try(t *testing.T, m mutant) string {
	path, err := filepath.Abs(m.file)
	require.NoError(t, err)
	source, err := os.ReadFile(path)
	require.NoError(t, err)
	edited, overlay := filepath.Join(t.TempDir(), "edited.go"), filepath.Join(t.TempDir(), "overlay.json")
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{path: edited}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(edited, []byte(string(source[:m.begin])+m.text+string(source[m.end:])), 0o644))
	require.NoError(t, os.WriteFile(overlay, replace, 0o644))
	program, failure := p.build(t, overlay)
	if failure != "" {
		return "does not compile"
	}
	switch err := p.run(t, program); {
	case errors.Is(err, context.DeadlineExceeded):
		return "does not end"
	case err != nil:
		return "is killed"
	}
	return survived
}

// build returns the test program, or why there is none.
func (p *goPackage) build(t *testing.T, overlay string) (program, failure string) {
	program = filepath.Join(t.TempDir(), "program")
	cmd := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay", overlay, "-o", program, ".")
	cmd.Dir = p.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", string(out)
	}
	return program, ""
}

func (p *goPackage) run(t *testing.T, program string) error {
	ctx, cancel := context.WithTimeout(t.Context(), p.timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, p.args...)
	cmd.Dir = p.dir
	cmd.WaitDelay = 5 * time.Second // for a child that has its output
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		failed := regexp.MustCompile(`(?m)^ *--- FAIL: (\S+)|^(panic: .*)`).FindString(string(out))
		t.Logf("killed: %s", strings.TrimSpace(failed))
	}
	return err
}

// swaps are the operators that are tried instead of one.
var swaps = map[token.Token][]token.Token{
	token.LSS: {token.LEQ, token.GEQ}, token.LEQ: {token.LSS, token.GTR},
	token.GTR: {token.GEQ, token.LEQ}, token.GEQ: {token.GTR, token.LSS},
	token.EQL: {token.NEQ}, token.NEQ: {token.EQL},
	token.LAND: {token.LOR}, token.LOR: {token.LAND},
	token.ADD: {token.SUB}, token.SUB: {token.ADD}, token.MUL: {token.QUO}, token.QUO: {token.MUL}, token.REM: {token.MUL},
	token.AND: {token.OR}, token.OR: {token.AND}, token.AND_NOT: {token.AND}, token.SHL: {token.SHR}, token.SHR: {token.SHL},
	token.ADD_ASSIGN: {token.SUB_ASSIGN}, token.SUB_ASSIGN: {token.ADD_ASSIGN}, token.OR_ASSIGN: {token.AND_ASSIGN},
	token.AND_ASSIGN: {token.OR_ASSIGN}, token.AND_NOT_ASSIGN: {token.AND_ASSIGN},
	token.INC: {token.DEC}, token.DEC: {token.INC},
}

// mutants returns all changes of the package.
func (p *goPackage) mutants(t *testing.T) (all []mutant) {
	for _, name := range p.files {
		file := filepath.Join(p.dir, name)
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		fset, seen := token.NewFileSet(), map[string]int{}
		parsed, err := parser.ParseFile(fset, file, source, parser.SkipObjectResolution)
		require.NoError(t, err)
		lines := strings.Split(string(source), "\n")
		add := func(from, to token.Pos, text, what string) {
			pos := fset.Position(from)
			key := name + " | " + strings.TrimSpace(lines[pos.Line-1]) + " | " + what
			if seen[key]++; seen[key] > 1 {
				key += fmt.Sprintf(" (%d)", seen[key])
			}
			all = append(all, mutant{file, fmt.Sprintf("%s:%d:%d %s", name, pos.Line, pos.Column, what), key, pos.Offset, fset.Position(to).Offset, text})
		}
		code := func(n ast.Node) string {
			return string(source[fset.Position(n.Pos()).Offset:fset.Position(n.End()).Offset])
		}
		ast.Inspect(parsed, func(n ast.Node) bool { return inspect(n, add, code) })
	}
	return all
}

// inspect adds the changes of a node, and reports whether those inside of it count.
func inspect(n ast.Node, add func(from, to token.Pos, text, what string), code func(ast.Node) string) bool {
	swap := func(at token.Pos, op token.Token) {
		for _, to := range swaps[op] {
			add(at, at+token.Pos(len(op.String())), to.String(), op.String()+" to "+to.String())
		}
	}
	remove := func(n ast.Stmt) { add(n.Pos(), n.End(), "{}", "without "+strings.Join(strings.Fields(code(n)), " ")) }
	condition := func(c ast.Expr) {
		switch c.(type) {
		case *ast.BinaryExpr, *ast.UnaryExpr, nil: // have their own
		default:
			add(c.Pos(), c.End(), "!("+code(c)+")", "not "+code(c))
		}
	}
	switch n := n.(type) {
	case *ast.BinaryExpr:
		swap(n.OpPos, n.Op)
		for _, side := range []ast.Expr{n.X, n.Y} { // without one of the two
			switch n.Op {
			case token.LAND:
				add(side.Pos(), side.End(), "("+code(side)+" || true)", "true for "+code(side))
			case token.LOR:
				add(side.Pos(), side.End(), "(("+code(side)+") && false)", "false for "+code(side))
			}
		}
	case *ast.UnaryExpr:
		if n.Op == token.NOT || n.Op == token.SUB {
			add(n.Pos(), n.End(), "("+code(n.X)+")", "without "+n.Op.String())
		}
	case *ast.CallExpr:
		if f, ok := n.Fun.(*ast.Ident); ok && (f.Name == "min" || f.Name == "max") {
			other := map[string]string{"min": "max", "max": "min"}[f.Name]
			add(f.Pos(), f.End(), other, f.Name+" to "+other)
		}
	case *ast.Ident:
		if n.Name == "true" || n.Name == "false" {
			add(n.Pos(), n.End(), "!"+n.Name, "not "+n.Name)
		}
	case *ast.IncDecStmt:
		swap(n.TokPos, n.Tok)
		remove(n)
	case *ast.AssignStmt:
		swap(n.TokPos, n.Tok)
		if n.Tok != token.DEFINE {
			remove(n)
		}
	case *ast.ExprStmt:
		if ignored(n.X) {
			return false
		}
		remove(n)
	case *ast.DeferStmt:
		if !ignored(n.Call) {
			remove(n)
		}
	case *ast.BranchStmt, *ast.SendStmt:
		remove(n.(ast.Stmt))
	case *ast.ReturnStmt:
		if len(n.Results) == 0 {
			remove(n)
		}
	case *ast.IfStmt:
		condition(n.Cond)
	case *ast.ForStmt:
		condition(n.Cond)
	}
	return true
}

// ignored reports whether a statement logs, as tests require what matters and not each line, or locks a mutex, which is
// for the race detector: make race.
func ignored(x ast.Expr) bool {
	call, ok := x.(*ast.CallExpr)
	if !ok {
		return false
	}
	f, ok := call.Fun.(*ast.SelectorExpr)
	return ok && regexp.MustCompile(`^((Debug|Info|Warn|Error|Log|LogAttrs)(Context)?|R?(Lock|Unlock))$`).MatchString(f.Sel.Name)
}
