//go:build e2e

package e2e

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
)

// TestDocumentedCommands executes every command of the documentation as it is written, except
// that values replace the words in capitals. A command must exit with 0 and print something,
// unless expected says otherwise.
//
// To document a command, write it. If it fails here although it is right, its page needs
// another scene, or the command an entry in expected.
func TestDocumentedCommands(t *testing.T) {
	t.Parallel()
	pages := documented(t)
	m := startDocsMachine(t)
	notes := slices.IndexFunc(pages, func(p page) bool { return p.path == chartReadme }) + 1
	var all []block
	for _, p := range pages {
		all = append(all, p.blocks()...)
	}
	commands, executed := 0, 0
	unused := map[string]bool{}
	for c := range maps.Keys(expected) {
		unused[c] = true
	}
	for c := range maps.Keys(notHere) {
		unused[c] = true
	}
	for i := 0; i < len(pages); i++ {
		if i == notes {
			printed := page{"deploy/helm/unlocker/templates/NOTES.txt", m.must("helm get notes unlocker -n unlocker", "/src")}
			require.NotEmpty(t, printed.blocks(), printed.text)
			pages, notes = slices.Insert(pages, i, printed), -1
		}
		var blocks []block
		for _, b := range pages[i].blocks() {
			if b.prose && (mentioned(b.commands[0], all) || b.commands[0] == api.LogStarted || b.commands[0] == api.LogFailed) {
				continue
			}
			commands += len(b.commands)
			for _, c := range b.commands {
				delete(unused, bare(c))
			}
			b.commands = slices.DeleteFunc(b.commands, func(c string) bool { return notHere[bare(c)] != "" })
			executed += len(b.commands)
			blocks = append(blocks, b)
		}
		m.execute(pages[i].path, blocks)
	}
	require.Empty(t, unused, "the documentation no longer has these commands")
	t.Logf("%d documented commands, %d executed here", commands, executed)
	for _, c := range slices.Sorted(maps.Keys(notHere)) {
		t.Logf("not here: %s: it %s", c, notHere[c])
	}
}

// What notHere says of a line of the gate is true, and the benchmarks that it names exist.
func TestCommandsThatAreNotExecutedHere(t *testing.T) {
	gate, nightly := read(t, "../.ci/run"), read(t, "../.ci/nightly")
	for c, why := range notHere {
		switch {
		case why == inTheGate:
			require.Regexp(t, " "+regexp.QuoteMeta(c)+"( E2E=.*)?\n", gate)
		case why == inNightly:
			require.Contains(t, nightly, " "+c+"\n")
		case strings.HasPrefix(c, "go test "):
			for name := range strings.SplitSeq(regexp.MustCompile(`(?:-bench|-run) '?([A-Z][\w|]*)`).FindStringSubmatch(c)[1], "|") {
				files := glob(t, filepath.Join("..", regexp.MustCompile(`\./\S+`).FindString(c), "*_test.go"))
				require.True(t, slices.ContainsFunc(files, func(f string) bool {
					return regexp.MustCompile(`func (Test|Benchmark)?\w*` + name + `\w*\(`).MatchString(read(t, f))
				}), c)
			}
		}
	}
}

// Alerts link to runbooks, which have the commands.
func TestAlertsHaveNoCommands(t *testing.T) {
	for _, a := range readAlerts(t) {
		for name, text := range a.Annotations {
			require.NotRegexp(t, `\b(kubectl|etcdctl|curl|systemctl|unlocker (list|show|unlock|check|pause|resume)) `, text, "%s: %s: put the command on the runbook", a.Alert, name)
		}
	}
}

const chartReadme = "deploy/helm/unlocker/README.md"

// bare returns a command without its comment.
func bare(command string) string {
	return strings.TrimSpace(regexp.MustCompile(`\s#\s.*$`).ReplaceAllString(strings.Join(strings.Fields(strings.ReplaceAll(command, "\\\n", " ")), " "), ""))
}

// docsMachine is a machine with the programs of the documentation and with the sources in /src.
type docsMachine struct {
	*machine
	env []string
}

func startDocsMachine(t *testing.T) *docsMachine {
	t.Helper()
	for _, name := range []string{"chronyd", "curl", "dbus-daemon", "htpasswd", "icinga2", "jq", "make", "openssl", "promtool", "python3", "script", "ssh", "sshd"} {
		program(t, name)
	}
	cache, err := os.UserCacheDir()
	require.NoError(t, err)
	tools := filepath.Join(cache, "unlocker-tools")
	built, err := exec.CommandContext(t.Context(), "../deploy/helm/kubernetes.sh", tools, "kube-apiserver", "kubectl", "node").CombinedOutput()
	if err != nil {
		missing(t, "the programs of Kubernetes cannot be built: %v\n%s", err, built)
	}
	links := map[string]string{"etcd": buildEtcd(t, newest), "etcdctl": buildEtcdTool(t, "etcdctl"), "etcdutl": buildEtcdTool(t, "etcdutl"), "helm": filepath.Join(tools, "helm-4.3.1")}
	if _, err := os.Stat(links["helm"]); err != nil {
		missing(t, "%v: deploy/helm/check.sh builds it", err)
	}
	for path := range strings.FieldsSeq(string(built)) {
		if name, _, found := strings.Cut(filepath.Base(path), "-1."); found {
			links[name] = path
		}
	}
	files := map[string]string{"unlocker": read(t, unlocker), "etc/hosts": hosts}
	for _, path := range strings.Split(strings.TrimSpace(run(t, "git", "-C", "..", "ls-files", "--cached", "--others", "--exclude-standard")), "\n") {
		files["src/"+path] = read(t, filepath.Join("..", path))
	}
	root := strings.TrimSpace(run(t, "go", "env", "GOROOT"))
	m := &docsMachine{machine: startMachine(t, "basic.target", installed(t, files), "--private-network"),
		env: []string{"HOME=" + os.Getenv("HOME"), "GOROOT=" + root, "GOFLAGS=-buildvcs=false", "GOPROXY=off"}}
	setup := "chmod +x /unlocker\n"
	for name, path := range links {
		setup += fmt.Sprintf("ln -sf %q /usr/local/bin/%s\n", path, name)
	}
	m.must(setup+"machine", "/")
	return m
}

// hosts are the names that the documentation uses for machines.
const hosts = `127.0.0.1 localhost worker-17.example.org grafana.example.com unlocker-0 unlocker-1
127.0.0.1 etcd-0 etcd-1 etcd-2 etcd-3 etcd-0.etcd etcd-1.etcd etcd-2.etcd
`

// shell runs a script with the functions of docs/lib.sh in a directory.
func (m *docsMachine) shell(script, dir string) (string, error) {
	m.t.Helper()
	return m.try(slices.Concat([]string{"env", "-i"}, m.env, []string{"bash", "-c",
		". /src/e2e/docs/lib.sh\nmkdir -p " + dir + " && cd " + dir + " || exit\n" + script})...)
}

func (m *docsMachine) must(script, dir string) string {
	m.t.Helper()
	began := time.Now()
	out, err := m.shell(script, dir)
	require.NoError(m.t, err, "%s\n%s", script, out)
	if took := time.Since(began); took > 3*time.Second {
		m.t.Logf("%.1f s: %s", took.Seconds(), script)
	}
	return out
}

// execute executes the commands of a page.
func (m *docsMachine) execute(path string, blocks []block) {
	m.t.Helper()
	s := scenes[path]
	dir := filepath.Join("/src", s.dir)
	if filepath.IsAbs(s.dir) {
		dir = s.dir
	}
	if s.once != "" {
		m.must(s.once, dir)
	}
	for _, b := range blocks {
		always := s.always
		if text := strings.Join(b.commands, " "); always == "" && regexp.MustCompile(`kubectl|helm`).MatchString(text) {
			always = "usual && locks && seen"
		} else if always == "" {
			always = "host && locks && seen"
		}
		if len(b.commands) > 0 {
			m.block(b, always, dir)
		}
	}
	m.must("end_background", dir)
	if s.after != "" {
		m.must(s.after, dir)
	}
}

// block executes a block, in one shell.
func (m *docsMachine) block(b block, always, dir string) {
	m.t.Helper()
	m.must(always, dir)
	values, script := m.values(b), ""
	for i, c := range b.commands {
		e := expected[bare(c)]
		how, args := "try", []string{strconv.Itoa(i), values.Replace(c)}
		switch {
		case e.until != "":
			how, args = "until_output", append([]string{e.until}, args...)
		case regexp.MustCompile(`unlocker unlock|exec -it |curl .*-u |systemctl edit`).MatchString(c):
			how = "terminal"
		}
		script += e.before + "\n" + how
		for _, a := range args {
			script += " " + quote(a)
		}
		script += "\n"
	}
	out, err := m.shell(script, dir)
	require.NoError(m.t, err, "%s\n%s", b, out)
	parts := strings.SplitAfter(out, "\x1f")
	require.Len(m.t, parts, len(b.commands)+1, "%s\n%s", b, out)
	for i, c := range b.commands {
		m.check(b, c, parts[i])
	}
}

// silent are commands that print nothing.
var silent = regexp.MustCompile(`^(\w+=|install |cp |sed .*>|systemctl (enable|restart|reload|stop|daemon-reload|edit)|bin/unlocker config print --output )`)

// check requires that a command did what is expected of it.
func (m *docsMachine) check(b block, command, answer string) {
	m.t.Helper()
	stdout, rest, _ := strings.Cut(strings.TrimSuffix(answer, "\x1f"), "\x1e")
	status, stderr, _ := strings.Cut(rest, "\n")
	_, code, _ := strings.Cut(status, " ")
	number, err := strconv.Atoi(code)
	require.NoError(m.t, err, answer)
	e := expected[bare(command)]
	if strings.Contains(command, "etcdctl txn") {
		e.output = `SUCCESS|"succeeded":true`
	}
	if e.codes == nil {
		e.codes = []int{0}
	}
	said := fmt.Sprintf("%s: %s\nexit code %d\n%s%s", b, command, number, stdout, stderr)
	if m.t.Log(strings.SplitN(said, "\n", 2)[0]); !slices.Contains(e.codes, number) {
		m.t.Errorf("this failed: %s", said)
	}
	if e.output != "" {
		require.Regexp(m.t, "(?s)"+e.output, stdout+stderr, said)
	} else if strings.TrimSpace(stdout) == "" && !silent.MatchString(command) {
		m.t.Errorf("this prints nothing: %s", said)
	}
}

// values returns the values of the words in capitals, if a block has any.
func (m *docsMachine) values(b block) *strings.Replacer {
	m.t.Helper()
	var pairs []string
	if regexp.MustCompile(`\b[A-Z]{3,}\b|\$ARG`).MatchString(strings.Join(b.commands, "\n")) {
		for line := range strings.Lines(m.must("values", "/")) {
			if word, value, found := strings.Cut(strings.TrimSpace(line), " "); found {
				pairs = append(pairs, word, value)
			}
		}
	}
	return strings.NewReplacer(pairs...)
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
