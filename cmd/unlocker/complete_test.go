package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

func TestCompletionOfNames(t *testing.T) {
	e := startEtcd(t, localetcd.Options{})
	e.take("billing/invoices", time.Hour, time.Hour)
	e.take("billing/ms", time.Hour, time.Hour)
	patient, cancel := context.WithTimeout(t.Context(), etcdtest.Soon) // not as a shell is
	defer cancel()
	for args, want := range map[string]string{
		"show bil":                "billing/invoices\nbilling/ms\n:4\n",
		"unlock billing/m":        "billing/ms\n:4\n",
		"history billing/i":       "billing/invoices\n:4\n",
		"lock ":                   "billing/invoices\nbilling/ms\n:4\n",
		"show billing/ms ":        ":4\n",
		"lock a -- ":              ":0\n",
		"list --sort ":            "name\nurgency\nhostname\nowner\nheld\nalert\nunlock\n:4\n",
		"list -o js":              "table\nwide\njson\nyaml\nname\njsonpath=\n:4\n",
		"show --prefix=/other/ b": ":4\n",
	} {
		t.Setenv("UNLOCKER_ETCD_ENDPOINTS", e.Endpoints()[0])
		code, stdout, _ := callIn(patient, nil, append([]string{"__complete"}, strings.Split(args, " ")...)...)
		require.Equal(t, exitOK, code)
		require.Equal(t, want, stdout, args)
	}
	for _, broken := range []string{"127.0.0.1:1", "https://" + e.Addr(0), "://"} {
		t.Setenv("UNLOCKER_ETCD_ENDPOINTS", broken)
		code, stdout, stderr := callIn(t.Context(), nil, "__complete", "show", "b")
		require.Equal(t, exitOK, code)
		require.Equal(t, ":4\n", stdout)
		require.Equal(t, "Completion ended with directive: ShellCompDirectiveNoFileComp\n", stderr)
	}
}

// In a real bash. What the package bash-completion would do is a function here.
func TestCompletionInBash(t *testing.T) {
	e := newEtcd(t)
	e.take("billing/in:voices", time.Hour, time.Hour)
	e.take("deploy/web-1", time.Hour, time.Hour)
	e.take("deploy/web-2", time.Hour, time.Hour)
	e.take("pwned-$(touch pwned)", time.Hour, time.Hour)
	s := e.newShell()
	require.NoError(t, os.Symlink(os.Args[0], filepath.Join(s.dir, "unlocker")))
	s.enter("PATH=$PWD:$PATH; COMP_WORDBREAKS=${COMP_WORDBREAKS//[:=]}\n", "$ ")
	s.enter(`_init_completion() { words=("${COMP_WORDS[@]}") cword=$COMP_CWORD cur=${COMP_WORDS[COMP_CWORD]}; }`+"\n", "$ ")
	s.enter(". <(unlocker completion bash); echo re\"\"ady\n", "ready")
	s.enter("unlocker show bil\t -o name\n", "\nbilling/in:voices\r\n")
	s.enter("unlocker show dep\t2 -o name\n", "\ndeploy/web-2\r\n")
	s.enter("unlocker show dep\t\t\t", "deploy/web-1  deploy/web-2")
	s.enter("1 -o name\n", "\ndeploy/web-1\r\n")
	s.enter("unlocker show pwn\t\n", `no lock "pwn" under`)
	s.enter("unlocker list --so\turg\t -o name\n", "billing/in:voices")
	require.NoFileExists(t, filepath.Join(s.dir, "pwned"))
	etcdtest.Eventually(t, func() bool { return strings.HasSuffix(s.screen(), "$ ") })
}
