package output_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/admin/output"
	"github.com/etcd-unlocker/unlocker/internal/api"
)

func TestTemplates(t *testing.T) {
	for template, want := range map[string]string{
		`{.locks[1].name} {.locks[1].token}{"\n"}`:                  "billing/invoices 1234\n",
		`{range .locks[*]}{.state}{"\t"}{.keys}{"\n"}{end}`:         "malformed\t1\noverdue\t9\nexpired\t3\nheld\t4\nundated\t4\n",
		`{.locks[?(@.state=="overdue")].hostname}`:                  "worker-17.example.org",
		`{.locks[?(@.token>100)].name}`:                             "billing/invoices",
		`{.locks[3].name}|{.locks[3].hostname}|{.locks[3].owner}`:   `"e\x1b[2Jv\u202ei\nl\u200b"|"a\u009b31mb"|"\"q\""`,
		"{.locks[?(@.name==\"e\x1b[2Jv\u202ei\\nl\u200b\")].token}": "9",
		`{.locks[0].owner}{.nothing}`:                               "",
		`{.locks[*].token}`:                                         "0 1234 5 9 10",
		`{.locks[1].clock_offset}`:                                  "1.5",
		`{.locks[?(@.hostname=="1e3")].owner}`:                      "null",
		`{.locks[?(@.name=="schlüssel/日本語")]['name','state']}`:      "schlüssel/日本語 undated",
	} {
		all := locks()
		all[1].ClockOffset = 1.5
		require.Equal(t, want, list(t, output.Format("jsonpath="+template), all), template)
	}
	require.JSONEq(t, `{"locks":[]}`, list(t, "jsonpath={@}", nil))
	require.Equal(t, "0b4f7e9a-1c2d-4e3f-8a9b-0123456789ab", show(t, "jsonpath={.uuid}", detail()))
	err := output.List(&bytes.Buffer{}, output.Options{Format: "jsonpath={.locks[7]}", At: now}, slices.Values([]api.Lock{}))
	require.ErrorContains(t, err, "-o jsonpath={.locks[7]}: ")
}

func TestNoHeaders(t *testing.T) {
	for _, f := range []output.Format{output.Table, output.Wide} {
		var b bytes.Buffer
		require.NoError(t, output.List(&b, output.Options{Format: f, At: now, NoHeaders: true}, slices.Values(locks()[4:])))
		require.Regexp(t, `^schlüssel/日本語   undated   1e3   "?null"?   -   -   -`, b.String())
	}
}
