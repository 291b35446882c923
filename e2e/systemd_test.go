//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
)

const systemd = "../deploy/systemd"

// maxExposure is ten times the maximum exposure of the unit in systemd-analyze security.
const maxExposure = "12"

func TestSystemdUnitIsValidAndHardened(t *testing.T) {
	analyze := program(t, "systemd-analyze")
	unit := filepath.Join(t.TempDir(), "unlocker.service")
	text := read(t, systemd+"/unlocker.service")
	require.Contains(t, text, "ExecStart=/usr/local/bin/unlocker ")
	write(t, unit, strings.ReplaceAll(text, "/usr/local/bin/unlocker", unlocker))
	for _, dropIn := range dropIns(t) {
		write(t, filepath.Join(unit+".d", filepath.Base(dropIn)), read(t, dropIn))
	}
	out, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", unit).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Empty(t, string(out))

	out, err = exec.CommandContext(t.Context(), analyze, "security", "--offline=true", "--threshold="+maxExposure, unit).CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Log(string(regexp.MustCompile(`Overall exposure.*`).Find(out)))
}

func dropIns(t *testing.T) []string {
	paths, err := filepath.Glob(systemd + "/*.conf")
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	return paths
}

// The daemon ignores unknown variables, so it would not report a misspelled one.
func TestSystemdFilesUseExistingVariablesAndFlags(t *testing.T) {
	help, err := exec.CommandContext(t.Context(), unlocker, "serve", "--help").Output()
	require.NoError(t, err)
	known := read(t, "../docs/configuration.md")
	text := read(t, systemd+"/unlocker.default") + read(t, systemd+"/unlocker.service")
	for _, dropIn := range dropIns(t) {
		text += read(t, dropIn)
	}
	variables := regexp.MustCompile(`\bUNLOCKER_[A-Z_]+[A-Z]\b`).FindAllString(text, -1)
	require.Greater(t, len(variables), 5)
	for _, v := range variables {
		require.Contains(t, known, "`"+v+"`")
	}
	start := regexp.MustCompile(`(?m)^ExecStart=\S+ (.*)$`).FindStringSubmatch(text)
	require.NotNil(t, start)
	flags := regexp.MustCompile(`--[a-z-]+`).FindAllString(start[1], -1)
	require.NotEmpty(t, flags)
	for _, f := range flags {
		require.Regexp(t, `(?m)^ +`+f+` `, string(help))
	}
}

// systemd runs the shipped unit: the daemon works with all restrictions of the unit, and with
// a password that only root can read.
func TestSystemdRunsTheUnit(t *testing.T) {
	etcd := startEtcd(t, newest)
	etcd.enableAuth("unlocker", "secret")
	ops := etcdtest.FreeAddr(t)
	m := startMachine(t, "unlocker.service", installed(t, map[string]string{
		"etc/unlocker/unlocker.yaml":                               "reaper: {settle: 1s}\n",
		"etc/unlocker/etcd-password":                               "secret\n",
		"etc/default/unlocker":                                     "UNLOCKER_ETCD_ENDPOINTS=" + etcd.addr + "\nUNLOCKER_OPS_LISTEN=" + ops + "\nUNLOCKER_WEB_LISTEN=127.0.0.1:0\n",
		"etc/systemd/system/unlocker.service.d/etcd-password.conf": read(t, systemd+"/etcd-password.conf"),
	}))
	awaitReady(t, ops)
	past := time.Now().Add(-time.Hour)
	etcd.putLocks("due", 3, past, past)
	etcd.awaitGone("due/")

	status := m.run("cat", "/proc/"+m.property("MainPID")+"/status")
	require.Regexp(t, `(?m)^Uid:\t[1-9]\d{4}\t`, status)
	require.Regexp(t, `(?m)^CapBnd:\t0+$`, status)
	require.Regexp(t, `(?m)^NoNewPrivs:\t1$`, status)
	require.Regexp(t, `(?m)^Seccomp:\t2$`, status)

	m.run("systemctl", "stop", "unlocker")
	require.Equal(t, "success", m.property("Result"))
	require.Eventually(t, func() bool { // journald reads when it likes
		removed := 0
		for line := range strings.Lines(m.run("journalctl", "-u", "unlocker", "-o", "cat")) {
			var l map[string]any
			if json.Unmarshal([]byte(line), &l) == nil && l["msg"] == api.LogRemoved {
				removed++
			}
		}
		return removed == 3
	}, soon, poll, "the journal must have a line for each removal")

	m.run("sh", "-c", "echo UNLOCKER_REAPER_MODE=brave >>/etc/default/unlocker")
	_, err := m.try("systemctl", "start", "unlocker")
	require.Error(t, err, "systemctl must say that the configuration is refused")
	require.Equal(t, "failed", m.property("ActiveState"))
	require.Equal(t, "2", m.property("ExecMainStatus"))
	require.Equal(t, "0", m.property("NRestarts"), "a restart does not fix the configuration")
}

// awaitReady waits until the daemon has listed the locks.
func awaitReady(t *testing.T, ops string) {
	t.Helper()
	require.Eventually(t, func() bool {
		resp, err := http.Get("http://" + ops + "/readyz")
		return err == nil && resp.Body.Close() == nil && resp.StatusCode == http.StatusOK
	}, soon, poll)
}

// enableAuth enables authentication, with a user that may read and write the locks, the keys of
// the election and the records of removals, and read the pauses.
func (s *server) enableAuth(user, password string) {
	s.t.Helper()
	ctx := s.t.Context()
	for name, pw := range map[string]string{"root": "root", user: password} {
		_, err := s.client.RoleAdd(ctx, name)
		require.NoError(s.t, err)
		_, err = s.client.UserAdd(ctx, name, pw)
		require.NoError(s.t, err)
		_, err = s.client.UserGrantRole(ctx, name, name)
		require.NoError(s.t, err)
	}
	for _, below := range []string{prefix, "/unlocker/leader" + prefix, "/unlocker/audit" + prefix} {
		_, err := s.client.RoleGrantPermission(ctx, user, below, clientv3.GetPrefixRangeEnd(below), clientv3.PermissionType(clientv3.PermReadWrite))
		require.NoError(s.t, err)
	}
	pauses := "/unlocker/pause" + prefix
	_, err := s.client.RoleGrantPermission(ctx, user, pauses, clientv3.GetPrefixRangeEnd(pauses), clientv3.PermissionType(clientv3.PermRead))
	require.NoError(s.t, err)
	_, err = s.client.AuthEnable(ctx)
	require.NoError(s.t, err)
	s.client, err = clientv3.New(clientv3.Config{Endpoints: []string{s.addr}, Username: "root", Password: "root", Logger: zap.NewNop()})
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = s.client.Close() })
}

// machine is a systemd in its own namespaces, with an overlay over the root of this system
// that is discarded at the end. It shares the network, unless an argument of nspawn says no.
type machine struct {
	t    *testing.T
	init string
}

// boot mounts an overlay with the files of a tree ($2) over the root of this system, and boots
// it as far as a unit needs. It runs in a mount namespace; $1 is an empty directory, and the
// other arguments are for nspawn and for systemd.
const boot = `
mount -t tmpfs tmpfs "$1" && mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
cp -r "$2/." "$1/root/"
chmod -f 600 "$1/root/etc/unlocker/etcd-password" || true
chmod -f 755 "$1/root/usr/local/bin/unlocker" || true
root=$1
shift 2
exec systemd-nspawn --quiet --register=no --keep-unit --console=pipe --directory "$root/root" --boot "$@" systemd.mask=timers.target </dev/null`

// installed adds the unit and the binary to the files of a machine.
func installed(t *testing.T, files map[string]string) map[string]string {
	files["etc/systemd/system/unlocker.service"] = read(t, systemd+"/unlocker.service")
	files["usr/local/bin/unlocker"] = read(t, unlocker)
	return files
}

// startMachine boots a machine with the files, and waits for the systemd unit.
func startMachine(t *testing.T, unit string, files map[string]string, arguments ...string) *machine {
	t.Helper()
	program(t, "systemd-nspawn")
	if os.Geteuid() != 0 {
		missing(t, "systemd-nspawn needs root")
	}
	tree := t.TempDir()
	for path, text := range files {
		write(t, filepath.Join(tree, path), text)
	}
	p := start(t, program(t, "unshare"), slices.Concat([]string{"--mount", "--propagation", "private", "sh", "-euc", boot, "sh", t.TempDir(), tree},
		arguments, []string{"systemd.unit=" + unit})...)
	m := &machine{t: t}
	pid := strconv.Itoa(p.cmd.Process.Pid)
	t.Cleanup(func() { // killing init ends all processes of the machine, and nspawn
		if init, err := strconv.Atoi(m.init); err == nil {
			_ = syscall.Kill(init, syscall.SIGKILL)
			<-p.done
		}
	})
	require.Eventually(t, func() bool {
		children, err := os.ReadFile("/proc/" + pid + "/task/" + pid + "/children")
		m.init = strings.TrimSpace(string(children))
		comm, _ := os.ReadFile("/proc/" + m.init + "/comm")
		return err == nil && strings.HasPrefix(string(comm), "systemd") && m.active(unit)
	}, soon, poll)
	return m
}

// run runs a command in the machine and returns its output.
func (m *machine) run(args ...string) string {
	m.t.Helper()
	out, err := m.try(args...)
	require.NoError(m.t, err, "%s: %s", args, out)
	return out
}

// hung is after which a command in a machine is ended, so that the test names it.
const hung = 5 * time.Minute

func (m *machine) try(args ...string) (string, error) {
	args = append([]string{"--target", m.init, "--mount", "--pid", "--uts", "--ipc", "--cgroup", "--net", "--"}, args...)
	ctx, cancel := context.WithTimeout(m.t.Context(), hung)
	defer cancel()
	cmd := exec.CommandContext(ctx, "nsenter", args...)
	cmd.WaitDelay = time.Second // what it has started may keep its output open
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		err = fmt.Errorf("it has not ended after %v: %w", hung, err)
	}
	return string(out), err
}

func (m *machine) active(unit string) bool {
	_, err := m.try("systemctl", "is-active", unit)
	return err == nil
}

func (m *machine) property(name string) string {
	out, _ := m.try("systemctl", "show", "unlocker", "--value", "--property", name)
	return strings.TrimSpace(out)
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(text)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
}
