package docs_test

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// words are those that a reader from the field stumbles over, and what to say instead.
var words = []struct{ not, say string }{
	{`stood still|stands? still|standstill`, "stalled: the watch, the process"},
	{`moves again`, "resumed: the watch, the process"},
	{`another history`, "restored, or diverged: say which of them"},
	{`out of view|(is|are|not) in view\b`, "synced, loaded"},
	{`lost sight`, "watch failed; relisting"},
	{`(what|and what) becomes of|becomes of (it|a)\b`, "what will happen to; the outcome"},
	{`\bgo(es)? on (when|with|watching|working|without|meanwhile)\b`, "continues"},
	{`(?i)\b(some|any|every)body\b`, "say who: a user, an operator, a client, on-call"},
	{`(?i)\bby a person\b`, "manually, by a user"},
	{`\bby the clock of\b`, "according to the clock of"},
	{`\banew\b`, "again, restart, relist"},
	{`(?i)\bbeside (the|it|a|them|each)\b`, "in addition to, next to, during"},
	{`\bis no (lock|reason|hold|conflict|part|loss)\b`, "is not a lock"},
	{`has one place`, "has one slot, is a semaphore of one"},
	{`lets (its|the) deadline pass`, "misses its deadline"},
	{`(?i)\bwho (waits|comes along)\b`, "waiters; a newcomer that"},
	{`\bcancelled\b`, "canceled, as the Go library spells it"},
	{`tells whether`, "reports whether"},
}

// TestWords keeps the dialect out of all that is read: pages, messages, help, comments. The
// changelog tells of messages that had other words.
func TestWords(t *testing.T) {
	var patterns []*regexp.Regexp
	for _, w := range words { // also where a line, or that of a comment, ends in between
		patterns = append(patterns, regexp.MustCompile(strings.ReplaceAll(w.not, " ", `[\s/#*]+`)))
	}
	read := 0
	err := walk(func(path string, err error) error {
		if err != nil || !regexp.MustCompile(spoken).MatchString(path) || strings.HasSuffix(path, "words_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		read++
		for i, p := range patterns {
			for _, at := range p.FindAllIndex(text, -1) {
				t.Errorf("%s:%d: %q: say %s", path, 1+bytes.Count(text[:at[0]], []byte("\n")), text[at[0]:at[1]], words[i].say)
			}
		}
		return err
	})
	require.NoError(t, err)
	require.Greater(t, read, 100)
}

// spoken are the files of which every word is held.
const spoken = `\.(md|go|py|rb|tpl|gotmpl|html|js|css)$|openapi\.yaml$|^\.\./deploy/.*\.(yaml|txt)$|/testdata/.*\.txt$|config\.example\.yaml$`

// TestPatienceIsIntroduced: readers know it by another name.
func TestPatienceIsIntroduced(t *testing.T) {
	code := regexp.MustCompile("(?m)(?s:```.*?```)|`[^`\n]*`|^    .*$|^#.*$")
	first := regexp.MustCompile(`(?i)\bpatience\b`)
	pages := 0
	markdown(t, func(path, text string) {
		text = code.ReplaceAllString(text, "")
		at := first.FindStringIndex(text)
		if at == nil || strings.HasSuffix(path, "adr/README.md") || strings.HasSuffix(path, "safety-tests.md") { // titles only
			return
		}
		pages++
		if around := text[max(0, at[0]-200):min(len(text), at[1]+200)]; !strings.Contains(around, "TTL") {
			t.Errorf("%s: say at the first use of patience that others call it the TTL: %q", path, around)
		}
	})
	require.Greater(t, pages, 10)
}

// TestWidthOfMarkdown: prose is wrapped at 120 columns. Tables and code are as wide as they are.
func TestWidthOfMarkdown(t *testing.T) {
	markdown(t, func(path, text string) {
		fenced := false
		for i, line := range strings.Split(text, "\n") {
			if strings.HasPrefix(strings.TrimSpace(line), "```") {
				fenced = !fenced
			}
			if fenced || strings.HasPrefix(line, "    ") || strings.HasPrefix(strings.TrimSpace(line), "|") {
				continue
			}
			if width := utf8.RuneCountInString(line); width > 120 {
				t.Errorf("%s:%d: %d columns", path, i+1, width)
			}
		}
	})
}

// markdown calls f for each page.
func markdown(t *testing.T, f func(path, text string)) {
	t.Helper()
	err := walk(func(path string, err error) error {
		if err != nil || !strings.HasSuffix(path, ".md") {
			return err
		}
		text, err := os.ReadFile(path)
		f(path, string(text))
		return err
	})
	require.NoError(t, err)
}
