package config

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The table in docs/configuration.md must agree with the code. If it does not, the failure shows
// the rows to paste.
func TestDocsTable(t *testing.T) {
	doc, err := os.ReadFile(root + "docs/configuration.md")
	require.NoError(t, err)
	var documented, want []string
	for line := range strings.Lines(string(doc)) {
		if strings.HasPrefix(line, "| `") {
			documented = append(documented, strings.TrimSpace(line))
		}
	}
	c := Default()
	for _, k := range c.keys() {
		def := k.String()
		if def == "" {
			def = `""`
		}
		if k.fileOnly() {
			want = append(want, fmt.Sprintf("| `%s` | – | – | `[]` | %s |", k.name, k.help))
			continue
		}
		want = append(want, fmt.Sprintf("| `%s` | `--%s` | `%s` | `%s` | %s |", k.name, k.flag(), k.env(), def, k.help))
	}
	require.Equal(t, strings.Join(want, "\n"), strings.Join(documented, "\n"))
}
