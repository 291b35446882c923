//go:build e2e

package e2e

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
)

// packaging is what differs between dpkg and rpm.
type packaging struct {
	program  string
	file     map[string]string // the package of a version, for this machine
	other    string            // that of the first version for arm64
	contents string            // lists the files of a package, with their modes and owners
	fields   string            // prints the name, version and architecture of a package, and its files of configuration
	install  string
	upgrade  string
	owned    string // lists the files of the package that is installed
	remove   string
	kept     string // the configuration after the removal
	purge    string
	defaults string
}

var packagings = map[string]packaging{
	"deb": {
		program:  "dpkg",
		file:     map[string]string{"v0.9.1": "unlocker_0.9.1_amd64.deb", "v0.9.2": "unlocker_0.9.2_amd64.deb"},
		other:    "unlocker_0.9.1_arm64.deb",
		contents: "dpkg-deb --contents",
		fields:   `f() { dpkg-deb --field $1 Package Version Architecture | cut -d" " -f2; dpkg-deb --info $1 conffiles; }; f`,
		install:  "dpkg --install",
		upgrade:  "dpkg --install",
		owned:    "dpkg-query --listfiles unlocker",
		remove:   "dpkg --remove unlocker",
		kept:     "/etc/unlocker/unlocker.yaml",
		purge:    "dpkg --purge unlocker",
		defaults: "/etc/default/unlocker",
	},
	"rpm": {
		program:  "rpm",
		file:     map[string]string{"v0.9.1": "unlocker-0.9.1-1.x86_64.rpm", "v0.9.2": "unlocker-0.9.2-1.x86_64.rpm"},
		other:    "unlocker-0.9.1-1.aarch64.rpm",
		contents: "rpm --query --list --verbose --package",
		fields:   `rpm --query --queryformat '%{NAME}\n%{VERSION}\n%{ARCH}\n[%{FILENAMES} %{FILEFLAGS:fflags}\n]' --package`,
		install:  "rpm --force-debian --nodeps --install",
		upgrade:  "rpm --force-debian --nodeps --upgrade",
		owned:    "rpm --query --list unlocker",
		remove:   "rpm --force-debian --erase unlocker",
		kept:     "/etc/unlocker/unlocker.yaml.rpmsave",
		purge:    "rm -r /etc/unlocker",
		defaults: "/etc/sysconfig/unlocker",
	},
}

// testPackageContents requires that the packages of both architectures have what they should.
func testPackageContents(t *testing.T, p packaging, out string) {
	shell := func(command, file string) string {
		return run(t, "sh", "-c", command+` "$0"`, filepath.Join(out, file))
	}
	file := p.file["v0.9.1"]
	list := shell(p.contents, file)
	require.Regexp(t, `(?m)^-rwxr-xr-x .*root.+root .*/usr/bin/unlocker$`, list)
	require.Regexp(t, `(?m)^-rw-r----- .*root.+unlocker .*/etc/unlocker/unlocker.yaml$`, list)
	for _, path := range []string{p.defaults, "/usr/lib/systemd/system/unlocker.service", "/usr/share/man/man1/unlocker-serve.1.gz", "/usr/share/doc/unlocker/config.example.yaml"} {
		require.Regexp(t, `(?m)^-rw-r--r-- .*root.+root .*`+path+`$`, list)
	}
	for _, path := range []string{"doc/unlocker/copyright|licenses/unlocker/LICENSE", "bash-completion/completions/unlocker",
		"site-functions/_unlocker|vendor-completions/_unlocker", "vendor_completions.d/unlocker.fish"} {
		require.Regexp(t, `(?m)/(`+path+`)$`, list)
	}

	fields := shell(p.fields, file)
	require.Regexp(t, `^unlocker\n0\.9\.1\n(amd64|x86_64)\n`, fields)
	require.Regexp(t, `(?m)^/etc/unlocker/unlocker.yaml( cn)?$`, fields)
	require.Regexp(t, `(?m)^`+p.defaults+`( cn)?$`, fields)

	paths := func(list string) (all []string) {
		for line := range strings.Lines(list) {
			all = append(all, line[strings.LastIndex(line, " "):])
		}
		return all
	}
	require.Equal(t, paths(list), paths(shell(p.contents, p.other)))
	require.Regexp(t, `^unlocker\n0\.9\.1\n(arm64|aarch64)\n`, shell(p.fields, p.other))
}

// testPackage installs, upgrades and removes a package on a machine with systemd. The files are those of two versions.
func testPackage(t *testing.T, p packaging, first, second string) {
	etcd := startEtcd(t, newest)
	m := startMachine(t, "basic.target", map[string]string{"v0.9.1": read(t, first), "v0.9.2": read(t, second)})
	shell := func(command string) string { return strings.TrimSpace(m.run("sh", "-euc", command)) }
	const config = "/etc/unlocker/unlocker.yaml"

	// Installed, nothing runs and nothing is enabled: the operator configures first.
	m.run("sh", "-euc", p.install+" /v0.9.1")
	require.Equal(t, "640 root:unlocker", shell("stat -c '%a %U:%G' "+config))
	require.Regexp(t, `^unlocker:x:[1-9]\d\d:[1-9]\d\d:unlocker:/nonexistent:/usr/sbin/nologin$`, shell("getent passwd unlocker"))
	require.Equal(t, "inactive", m.property("ActiveState"))
	require.Equal(t, "disabled", m.property("UnitFileState"))
	shell("/usr/bin/unlocker config check --config " + config)
	require.Contains(t, shell("/usr/bin/unlocker config print --config "+config), "mode: dry-run")
	require.Equal(t, "/usr/share/man/man1/unlocker-lock.1.gz", shell("man --where unlocker-lock"))
	require.Contains(t, shell("bash -euc '. /usr/share/bash-completion/completions/unlocker; complete -p unlocker'"), "unlocker")
	_, err := m.try("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "cat", config)
	require.Error(t, err, "the file may have a password")

	// The daemon reads the file, as the user of the package, and works.
	ops := etcdtest.FreeAddr(t)
	shell("cat >" + config + " <<E\netcd: {endpoints: ['" + etcd.addr + "']}\nreaper: {settle: 1s}\nops: {listen: '" + ops + "'}\nweb: {listen: '127.0.0.1:0'}\nE")
	edited := shell("cat " + config)
	shell("systemctl enable --now unlocker 2>&1")
	awaitReady(t, ops)
	past := time.Now().Add(-time.Hour)
	etcd.putLocks("due", 1, past, past)
	etcd.awaitGone("due/")
	before := m.property("MainPID")
	require.Equal(t, shell("id -u unlocker"), shell("stat -c %u /proc/"+before))

	// An upgrade keeps the configuration, and restarts the daemon.
	shell(p.upgrade + " /v0.9.2")
	require.Equal(t, edited, shell("cat "+config))
	require.Equal(t, "640 root:unlocker", shell("stat -c '%a %U:%G' "+config))
	require.Equal(t, "active", m.property("ActiveState"))
	require.Equal(t, "enabled", m.property("UnitFileState"))
	require.NotEqual(t, before, m.property("MainPID"))
	require.Contains(t, shell("/proc/"+m.property("MainPID")+"/exe version"), "version v0.9.2 ")
	awaitReady(t, ops)

	// A removal stops it, and leaves only what an operator has written.
	files := strings.Fields(shell("for f in $(" + p.owned + "); do [ -d $f ] || echo $f; done"))
	require.Contains(t, files, "/usr/bin/unlocker")
	after := m.property("MainPID")
	shell(p.remove + " 2>&1")
	require.Equal(t, "not-found", m.property("LoadState"))
	require.Empty(t, shell("[ ! -e /proc/"+after+" ] || echo it runs; ls -d /etc/systemd/system/*.wants/unlocker.service 2>/dev/null || true"))
	require.Equal(t, edited, shell("cat "+p.kept))
	shell(p.purge)
	require.Empty(t, shell("ls -d /etc/unlocker "+strings.Join(files, " ")+" 2>/dev/null || true"))
}
