package table

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestIndexAgreesWithSorting compares the index with a slice that is sorted
// for each question.
func TestIndexAgreesWithSorting(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := index{key: func(e *entry) int64 { return int64(e.wake) }, pos: func(e *entry) *int32 { return &e.pos }}
		all := make([]*entry, 20)
		for i := range all {
			all[i] = &entry{}
		}
		var in []*entry
		wakes := func() []instant {
			keys := []instant{}
			for _, e := range in {
				keys = append(keys, e.wake)
			}
			slices.Sort(keys)
			return keys
		}
		pick := rapid.SampledFrom(all)
		t.Repeat(map[string]func(*rapid.T){
			"set": func(t *rapid.T) {
				e := pick.Draw(t, "entry")
				e.wake = instant(rapid.IntRange(-9, 9).Draw(t, "wake"))
				x.set(e)
				if !slices.Contains(in, e) {
					in = append(in, e)
				}
			},
			"remove": func(t *rapid.T) {
				e := pick.Draw(t, "entry")
				x.remove(e)
				require.Zero(t, e.pos)
				in = slices.DeleteFunc(in, func(o *entry) bool { return o == e })
			},
			"least": func(t *rapid.T) {
				n := rapid.IntRange(0, 25).Draw(t, "n")
				got := []instant{}
				x.smallest(n, func(e *entry) { got = append(got, e.wake) })
				require.Equal(t, wakes()[:min(n, len(in))], got)
			},
			"": func(t *rapid.T) {
				require.Equal(t, len(in), x.Len())
				if len(in) == 0 {
					require.Nil(t, x.top())
				} else {
					require.Equal(t, wakes()[0], x.top().wake)
				}
				for i, e := range x.entries {
					require.EqualValues(t, i+1, e.pos)
				}
			},
		})
	})
}
