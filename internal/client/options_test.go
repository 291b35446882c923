package client

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
)

// A proxy would answer in the daemon's place. Go reads its settings once for a
// process, so that no test here could have them matter.
func TestNoProxy(t *testing.T) {
	c, err := New(Options{URLs: []string{"http://127.0.0.1:1"}, Timeout: enough})
	require.NoError(t, err)
	require.Nil(t, c.http.Transport.(*http.Transport).Proxy)
}

func TestBasicAuth(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "icinga" || password != " hush\n" {
			write(w, http.StatusUnauthorized, api.Error{})
			return
		}
		write(w, http.StatusOK, status())
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(file, []byte(" hush\n\r\n"), 0o600))
	o := Options{URLs: []string{server.URL}, Username: "icinga", PasswordFile: file}
	require.NoError(t, ask(t, o))
	o.Username = "nagios"
	require.EqualError(t, ask(t, o), "answers 401 Unauthorized")
}

func TestPathPrefix(t *testing.T) {
	f := newFake(t, "")
	server := httptest.NewServer(http.StripPrefix("/sub/unlocker", f.Config.Handler))
	defer server.Close()
	require.NoError(t, ask(t, Options{URLs: []string{server.URL + "/sub/unlocker/"}}))
	require.ErrorContains(t, ask(t, Options{URLs: []string{server.URL}}), "404")
}

func TestWrongOptions(t *testing.T) {
	dir := t.TempDir()
	empty, text := filepath.Join(dir, "empty"), filepath.Join(dir, "text")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	require.NoError(t, os.WriteFile(text, []byte("hello"), 0o600))
	const fine = "http://127.0.0.1:1"
	for names, o := range map[string]Options{
		"a URL and a positive timeout":               {Timeout: 1},
		"positive timeout":                           {URLs: []string{fine}},
		"credentials: use":                           {URLs: []string{"http://u:hush@host"}, Timeout: 1},
		"malformed URL":                              {URLs: []string{"http://u:hush@host:port"}, Timeout: 1},
		"must begin with http://":                    {URLs: []string{fine, "ftp://hush"}, Timeout: 1},
		"such as http://127.0.0.1:9481/x":            {URLs: []string{"127.0.0.1:9481/x/"}, Timeout: 1},
		"such as http://localhost:9481":              {URLs: []string{"localhost:9481"}, Timeout: 1},
		"must begin with http://HOST":                {URLs: []string{"u:hush@localhost:9481"}, Timeout: 1},
		"HOST or https://HOST":                       {URLs: []string{"localhost:9481?token=hush"}, Timeout: 1},
		"begin with http://HOST":                     {URLs: []string{"http:///x"}, Timeout: 1},
		"no query":                                   {URLs: []string{fine + "?token=hush"}, Timeout: 1},
		"no query and":                               {URLs: []string{fine + "?"}, Timeout: 1},
		"no fragment":                                {URLs: []string{fine + "#hush"}, Timeout: 1},
		"certificate and key must be given together": {URLs: []string{fine}, Timeout: 1, CertFile: text},
		"certificate and key must":                   {URLs: []string{fine}, Timeout: 1, KeyFile: text},
		"absent-ca":                                  {URLs: []string{fine}, Timeout: 1, CAFile: filepath.Join(dir, "absent-ca")},
		"CA cert":                                    {URLs: []string{fine}, Timeout: 1, CAFile: text},
		"client cert":                                {URLs: []string{fine}, Timeout: 1, CertFile: text, KeyFile: text},
		"user name and password file must":           {URLs: []string{fine}, Timeout: 1, Username: "u"},
		"password file must be":                      {URLs: []string{fine}, Timeout: 1, PasswordFile: text},
		"empty is empty":                             {URLs: []string{fine}, Timeout: 1, Username: "u", PasswordFile: empty},
		fmt.Sprintf("open %s/absent-password", dir):  {URLs: []string{fine}, Timeout: 1, Username: "u", PasswordFile: dir + "/absent-password"},
	} {
		t.Run(names, func(t *testing.T) {
			_, err := New(o)
			require.ErrorContains(t, err, names)
			require.NotContains(t, err.Error(), "hush")
		})
	}
}
