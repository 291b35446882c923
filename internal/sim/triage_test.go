package sim

import (
	"fmt"
	"os"
	"regexp"
	"runtime/debug"
	"strconv"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestTriage(t *testing.T) {
	n, _ := strconv.Atoi(os.Getenv("TRIAGE"))
	if n == 0 {
		t.Skip()
	}
	from, _ := strconv.Atoi(os.Getenv("FROM"))
	debug.SetGCPercent(800)
	g := rapid.Custom(draw)
	classes := map[string]int{}
	var mu sync.Mutex
	var s sums
	start := time.Now()
	digits := regexp.MustCompile(`[0-9.]+(h|ms|µs|s|m)?([0-9.]+(s|m))?([0-9.]+s)?`)
	t.Run("w", func(t *testing.T) {
		for w := range 2 {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				for i := from + w; i < from+n; i += 2 {
					h := g.Example(i)
					j := run(t, h, without{})
					mu.Lock()
					s.add(j)
					for _, v := range j.violations {
						c := v.promise + " " + digits.ReplaceAllString(v.text, "#")
						classes[c]++
						if classes[c] <= 2 {
							fmt.Printf("#%d %s at %s: %s\n%s\n", i, v.promise, v.at, v.text, h)
						}
					}
					mu.Unlock()
				}
			})
		}
	})
	for c, n := range classes {
		fmt.Println(n, c)
	}
	fmt.Println(s, time.Since(start))
}
