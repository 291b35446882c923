package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/version"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// TestManualPages writes the manual pages into MAN_DIR, for `make man` and the release. Their date is that of
// SOURCE_DATE_EPOCH, so that the same commit gives the same pages.
func TestManualPages(t *testing.T) {
	epoch, err := strconv.ParseInt(cmp.Or(os.Getenv("SOURCE_DATE_EPOCH"), "0"), 10, 64)
	require.NoError(t, err)
	dir := cmp.Or(os.Getenv("MAN_DIR"), t.TempDir())
	root := newRoot()
	completeTree(root)
	writePages(t, root, dir, time.Unix(epoch, 0).UTC())
	for _, name := range []string{"unlocker", "unlocker-list", "unlocker-config-check", "unlocker-lock"} {
		require.FileExists(t, filepath.Join(dir, name+".1"))
	}
}

func writePages(t *testing.T, cmd *cobra.Command, dir string, date time.Time) {
	page := page{}
	page.write(cmd, date)
	require.NoError(t, os.WriteFile(filepath.Join(dir, dashed(cmd)+".1"), []byte(page.String()), 0o644)) //nolint:gosec // it is for all users
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			writePages(t, sub, dir, date)
		}
	}
}

func dashed(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// page is a manual page in the macros of man(7).
type page struct{ strings.Builder }

func (p *page) line(format string, args ...any) { fmt.Fprintf(p, format+"\n", args...) }

func (p *page) write(cmd *cobra.Command, date time.Time) {
	cmd.InitDefaultHelpFlag()
	p.line(`.TH %s 1 %s "unlocker %s" "User Commands"`, roff(strings.ToUpper(dashed(cmd))), date.Format(time.DateOnly), roff(version.Version))
	p.line(".SH NAME\n%s \\- %s", roff(dashed(cmd)), roff(cmd.Short))
	p.line(".SH SYNOPSIS\n%s", roff(cmd.UseLine()))
	p.line(".SH DESCRIPTION")
	long := cmd.Long
	if long == "" {
		long = cmd.Short + "."
	}
	p.text(long)
	if cmd.HasAvailableFlags() {
		p.line(".SH OPTIONS")
		cmd.Flags().VisitAll(p.option)
	}
	if cmd.Example != "" {
		p.line(".SH EXAMPLES")
		p.text(cmd.Example)
	}
	p.seeAlso(cmd)
}

// text writes paragraphs, and as they are those that have indented lines.
func (p *page) text(help string) {
	for i, paragraph := range strings.Split(strings.ReplaceAll(strings.Trim(help, "\n"), "\t", "    "), "\n\n") {
		if i > 0 {
			p.line(".PP")
		}
		literal := strings.Contains("\n"+paragraph, "\n  ")
		if literal {
			p.line(".nf")
		}
		for line := range strings.SplitSeq(paragraph, "\n") {
			p.line("%s", roff(line))
		}
		if literal {
			p.line(".fi")
		}
	}
}

func (p *page) option(f *pflag.Flag) {
	if f.Hidden {
		return
	}
	name, usage := pflag.UnquoteUsage(f)
	flag := `\fB` + roff("--"+f.Name) + `\fR`
	if f.Shorthand != "" {
		flag = `\fB` + roff("-"+f.Shorthand) + `\fR, ` + flag
	}
	if name != "" {
		flag += ` \fI` + roff(name) + `\fR`
	}
	switch f.DefValue {
	case "", "[]", "0", "0s", "false":
	default:
		usage += " (default " + f.DefValue + ")"
	}
	p.line(".TP\n%s\n%s", flag, roff(usage))
}

func (p *page) seeAlso(cmd *cobra.Command) {
	var pages []string
	if cmd.HasParent() {
		pages = append(pages, roff(dashed(cmd.Parent())))
	}
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			pages = append(pages, roff(dashed(sub)))
		}
	}
	p.line(".SH SEE ALSO\n.BR %s (1)", strings.Join(pages, " (1),\n.BR "))
}

func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s)
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		return `\&` + s
	}
	return s
}
