package records

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
)

// The digest is of what is compared: what a user has agreed to is what is removed.
func TestSelect(t *testing.T) {
	digest := func(silent bool, locks ...api.Lock) string { return Select(slices.Values(locks), silent).Digest }
	a, b := api.Lock{Name: "a", UUID: "u", Token: 3, Revision: 3}, api.Lock{Name: "b", UUID: "v", Token: 4, Revision: 5}
	seen := map[string]string{}
	for what, d := range map[string]string{
		"both":              digest(false, a, b),
		"both, silent":      digest(true, a, b),
		"one":               digest(false, a),
		"another uuid":      digest(false, a, api.Lock{Name: "b", UUID: "w", Token: 4, Revision: 5}),
		"taken again":       digest(false, a, api.Lock{Name: "b", UUID: "v", Token: 6, Revision: 6}),
		"renewed, silent":   digest(true, a, api.Lock{Name: "b", UUID: "v", Token: 4, Revision: 6}),
		"a name like a sum": digest(false, api.Lock{Name: "a\" {UUID:u Token:3 Newest:0}\n\"b", UUID: "v", Token: 4, Revision: 5}),
	} {
		require.Len(t, d, 64)
		require.Empty(t, seen[d], what)
		seen[d] = what
	}
	require.Equal(t, digest(false, a, b), digest(false, a, api.Lock{Name: "b", UUID: "v", Token: 4, Revision: 6, State: "overdue"}), "renewed")

	s := Select(slices.Values([]api.Lock{{Name: "orphan", Revision: 3}, {Name: "malformed", Token: 4}, {Name: strings.Repeat("n", 5000) + "…", UUID: "u", Token: 5}}), false)
	require.Equal(t, api.Selection{Locks: []api.Lock{}, Left: 3}, s)
}
