package check

import (
	"math/big"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestRanges(t *testing.T) {
	for text, c := range map[string]struct{ alerts, quiet []float64 }{
		"":          {nil, []float64{-1, 0, 1, 1e300}},
		"0":         {[]float64{-1, 1, 1000}, []float64{0}},
		"10":        {[]float64{-0.5, 10.5, 11}, []float64{0, 5, 10}},
		"0:10":      {[]float64{-0.5, 10.5, 11}, []float64{0, 5, 10}},
		":10":       {[]float64{-0.5, 10.5, 11}, []float64{0, 5, 10}},
		"10:":       {[]float64{-5, 0, 9.99}, []float64{10, 1e300}},
		"~:10":      {[]float64{10.01, 11}, []float64{-1e300, 0, 10}},
		"10:20":     {[]float64{9, 21, -10}, []float64{10, 15, 20}},
		"@10:20":    {[]float64{10, 15, 20}, []float64{9, 21}},
		"@10":       {[]float64{0, 5, 10}, []float64{-1, 11}},
		"@0":        {[]float64{0}, []float64{-1, 1}},
		"@~:10":     {[]float64{-1e300, 10}, []float64{10.5}},
		"@10:":      {[]float64{10, 1e300}, []float64{9}},
		"~:":        {nil, []float64{-1e300, 0, 1e300}},
		"@~:":       {[]float64{-1e300, 0, 1e300}, nil},
		":":         {[]float64{-1}, []float64{0, 1e300}},
		"-20:-10":   {[]float64{-21, -9, 0}, []float64{-20, -15, -10}},
		"1.5:2.25":  {[]float64{1.4, 2.3}, []float64{1.5, 2, 2.25}},
		"5:5":       {[]float64{4, 6}, []float64{5}},
		"-1:":       {[]float64{-2}, []float64{-1, 0}},
		".5:1.":     {[]float64{0.4, 1.1}, []float64{0.5, 1}},
		"00010:020": {[]float64{9, 21}, []float64{10, 20}},
	} {
		t.Run(text, func(t *testing.T) {
			var r Range
			err := r.Set(text)
			require.NoError(t, err)
			require.Equal(t, text, r.String())
			for _, n := range c.alerts {
				require.True(t, r.Alerts(n), "%v", n)
			}
			for _, n := range c.quiet {
				require.False(t, r.Alerts(n), "%v", n)
			}
		})
	}
}

func TestWrongRanges(t *testing.T) {
	for text, names := range map[string]string{
		"x":                             `"x" is not a number`,
		"@":                             `"" is not a number`,
		"~":                             `"~" is not a number`,
		"10:~":                          `"~" is not a number`,
		"@@1":                           `"@1" is not a number`,
		"1:2:3":                         `"2:3" is not a number`,
		"20:10":                         "start is greater than end",
		"-1":                            "start is greater than end", // 0 to -1
		"inf":                           `"inf" is not a number`,
		"NaN:":                          `"NaN" is not a number`,
		"1e3":                           `"1e3" is not a number`,
		"0x10":                          `"0x10" is not a number`,
		"1_000":                         `"1_000" is not a number`,
		"+5":                            `"+5" is not a number`,
		"1-2":                           `"1-2" is not a number`,
		"-":                             `"-" is not a number`,
		".":                             `"." is not a number`,
		" 10":                           `" 10" is not a number`,
		"10|x":                          `"10|x" is not a number`,
		"1,5":                           `"1,5" is not a number`,
		strings.Repeat("1", maxRange+1): "more than 40 characters",
	} {
		t.Run(text, func(t *testing.T) {
			var r Range
			err := r.Set(text)
			require.ErrorContains(t, err, names)
		})
	}
}

// The definition in the guidelines for plugins, read once more: by a pattern, in
// exact arithmetic, one rule after the other.
func guideline(text string, value *big.Rat) (alert, valid bool) {
	m := regexp.MustCompile(`^(@?)(?:(~|-?[0-9]+(?:\.[0-9]+)?)?(:))?(-?[0-9]+(?:\.[0-9]+)?)?$`).FindStringSubmatch(text)
	if m == nil || m[3] == "" && m[4] == "" {
		return false, false
	}
	exact := func(s string) *big.Rat {
		n, _ := new(big.Rat).SetString(s)
		return n
	}
	outside := false
	start := new(big.Rat)
	if m[2] != "" && m[2] != "~" {
		start = exact(m[2])
	}
	if m[2] != "~" && value.Cmp(start) < 0 {
		outside = true
	}
	if m[4] != "" {
		end := exact(m[4])
		if m[2] != "~" && end.Cmp(start) < 0 {
			return false, false
		}
		outside = outside || value.Cmp(end) > 0
	}
	if m[1] == "@" {
		return !outside, true
	}
	return outside, true
}

func TestRangesFollowTheGuideline(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// Quarters are exact in both arithmetics.
		number := rapid.Custom(func(t *rapid.T) string {
			n := big.NewRat(int64(rapid.IntRange(-80, 80).Draw(t, "quarters")), 4)
			if n.IsInt() {
				return n.Num().String()
			}
			return n.FloatString(2)
		})
		part := rapid.OneOf(number, number, rapid.SampledFrom([]string{"", "~", "@", ":", "x"}))
		text := rapid.SampledFrom([]string{"", "", "@"}).Draw(t, "at") + part.Draw(t, "start") +
			rapid.SampledFrom([]string{":", ":", ""}).Draw(t, "colon") + part.Draw(t, "end")
		if text == "" {
			t.Skip()
		}
		value := big.NewRat(int64(rapid.IntRange(-100, 100).Draw(t, "value")), 4)
		alert, valid := guideline(text, value)
		var r Range
		err := r.Set(text)
		require.Equal(t, valid, err == nil, "%q: %v", text, err)
		if valid {
			n, _ := value.Float64()
			require.Equal(t, alert, r.Alerts(n), "%q of %v", text, n)
		}
	})
}
