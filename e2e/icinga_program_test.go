//go:build e2e

package e2e

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
)

// icinga is an Icinga with its own directories, the shipped configuration and a REST API.
type icinga struct {
	t    *testing.T
	dir  string
	base string
	http *http.Client
}

const (
	icingaNode     = "e2e"
	icingaPassword = "for this test only"
)

// newIcinga prepares the directories. hosts is added to the shipped configuration.
func newIcinga(t *testing.T, hosts string) *icinga {
	t.Helper()
	program(t, "icinga2")
	dir, err := os.MkdirTemp("", "unlocker-e2e-icinga-") // the user nagios cannot read t.TempDir
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	i := &icinga{t: t, dir: dir}
	for _, sub := range []string{"data", "data/certs", "log", "cache", "spool", "run"} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, sub), 0o755))
	}
	binary, err := os.ReadFile(unlocker)
	require.NoError(t, err)
	i.write("unlocker", string(binary), 0o755)
	shipped, err := os.ReadFile("../deploy/icinga/unlocker.conf")
	require.NoError(t, err)
	i.write("unlocker.conf", string(shipped), 0o644)
	i.write("hosts.conf", hosts, 0o644)

	host, port, err := net.SplitHostPort(etcdtest.FreeAddr(t))
	require.NoError(t, err)
	i.base = "https://" + net.JoinHostPort(host, port) + "/v1/"
	i.write("icinga2.conf", fmt.Sprintf(`
const NodeName = %[1]q
const UnlockerCommand = %[2]q
include <itl>
object Endpoint NodeName { }
object Zone NodeName { endpoints = [ NodeName ] }
object CheckerComponent "checker" { }
object ApiListener "api" { bind_host = %[3]q; bind_port = %[4]s }
object ApiUser "e2e" { password = %[5]q; permissions = [ "objects/query/*", "actions/reschedule-check" ] }
include "unlocker.conf"
include "hosts.conf"
`, icingaNode, filepath.Join(dir, "unlocker"), host, port, icingaPassword), 0o644)
	return i
}

func (i *icinga) write(name, text string, mode os.FileMode) {
	i.t.Helper()
	path := filepath.Join(i.dir, name)
	require.NoError(i.t, os.WriteFile(path, []byte(text), mode))
	require.NoError(i.t, os.Chmod(path, mode))
	require.NoError(i.t, os.Chmod(i.dir, 0o755))
}

// command returns an icinga2 with the directories. If root starts it, it runs as nagios, as
// the Debian package does.
func (i *icinga) command(args ...string) *exec.Cmd {
	i.t.Helper()
	runAs := "nagios"
	if os.Geteuid() != 0 {
		me, err := user.Current()
		require.NoError(i.t, err)
		runAs = me.Username
	}
	for name, value := range map[string]string{"ConfigDir": "", "DataDir": "data", "LogDir": "log", "CacheDir": "cache", "SpoolDir": "spool", "InitRunDir": "run"} {
		args = append(args, "-D", name+"="+filepath.Join(i.dir, value))
	}
	args = append(args, "-D", "RunAsUser="+runAs, "-D", "RunAsGroup="+runAs)
	cmd := exec.Command("icinga2", args...) // not by a context, which would not end its workers
	cmd.Dir = i.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

func (i *icinga) must(args ...string) string {
	i.t.Helper()
	out, err := i.command(args...).CombinedOutput()
	require.NoError(i.t, err, "icinga2 %v: %s", args, out)
	return string(out)
}

// own makes the user as whom Icinga runs the owner of all files.
func (i *icinga) own() {
	i.t.Helper()
	if os.Geteuid() != 0 {
		return
	}
	out, err := exec.CommandContext(i.t.Context(), "chown", "-R", "nagios:nagios", i.dir).CombinedOutput()
	require.NoError(i.t, err, "%s", out)
}

func (i *icinga) validate() string {
	i.t.Helper()
	i.own()
	return i.must("daemon", "-C", "-c", filepath.Join(i.dir, "icinga2.conf"))
}

// certify makes the certificates of the REST API.
func (i *icinga) certify() {
	i.t.Helper()
	certs := filepath.Join(i.dir, "data/certs", icingaNode)
	i.own()
	i.must("pki", "new-ca")
	i.must("pki", "new-cert", "--cn", icingaNode, "--key", certs+".key", "--csr", certs+".csr")
	i.must("pki", "sign-csr", "--csr", certs+".csr", "--cert", certs+".crt")
	ca, err := os.ReadFile(filepath.Join(i.dir, "data/ca/ca.crt"))
	require.NoError(i.t, err)
	i.write("data/certs/ca.crt", string(ca), 0o644)
	pool := x509.NewCertPool()
	require.True(i.t, pool.AppendCertsFromPEM(ca))
	i.http = &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: icingaNode}, DisableKeepAlives: true}}
}

// run starts Icinga until the test ends.
func (i *icinga) run() {
	i.t.Helper()
	i.certify()
	i.validate()
	var log bytes.Buffer
	cmd := i.command("daemon", "-x", "warning", "-c", filepath.Join(i.dir, "icinga2.conf"))
	cmd.Stdout, cmd.Stderr = &log, &log
	require.NoError(i.t, cmd.Start())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cmd.Wait() // it is killed
	}()
	i.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // which also ends its workers
		select {
		case <-done:
		case <-time.After(soon):
		}
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // the rest of its process group
		<-done
		if i.t.Failed() {
			i.t.Logf("icinga2:\n%s", log.String())
		}
	})
	require.Eventually(i.t, func() bool { return i.call(http.MethodGet, "objects/hosts", nil) == nil }, soon, poll)
}

// call sends a request to the REST API.
func (i *icinga) call(method, path string, into any) error {
	req, err := http.NewRequestWithContext(i.t.Context(), method, i.base+path, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "application/json")
	req.SetBasicAuth("e2e", icingaPassword)
	resp, err := i.http.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s", method, path, resp.Status)
	}
	if into == nil {
		return nil
	}
	return json.NewDecoder(resp.Body).Decode(into)
}

// result is the result of a check as Icinga has it.
type result struct {
	State       float64  `json:"state"`
	ExitStatus  float64  `json:"exit_status"`
	Output      string   `json:"output"`
	Performance []string `json:"performance_data"`
	Command     []string `json:"command"`
}

// last returns the newest result of a service, or an empty one before the first.
func (i *icinga) last(service string) (result, error) {
	var answer struct {
		Results []struct {
			Attrs struct {
				Last *result `json:"last_check_result"`
			} `json:"attrs"`
		} `json:"results"`
	}
	err := i.call(http.MethodGet, "objects/services/"+url.PathEscape("locks!"+service)+"?attrs=last_check_result", &answer)
	if err != nil || len(answer.Results) != 1 || answer.Results[0].Attrs.Last == nil {
		return result{}, err
	}
	return *answer.Results[0].Attrs.Last, nil
}

// await makes Icinga check a service until its output begins with output.
func (i *icinga) await(service, output string) result {
	i.t.Helper()
	var last result
	require.Eventually(i.t, func() bool {
		err := i.call(http.MethodPost, "actions/reschedule-check?force=true&type=Service&service="+url.PathEscape("locks!"+service), nil) // Icinga does not decode + as a space
		if err == nil {
			last, err = i.last(service)
		}
		return err == nil && strings.HasPrefix(last.Output, output)
	}, soon, 500*time.Millisecond, "%s: want %q, got %v", service, output, &last)
	return last
}
