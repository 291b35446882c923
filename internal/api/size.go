package api

import "unicode/utf8"

// MaxPage bounds the locks of a page or window as JSON, in bytes. Names are untrusted, and may make
// a thousand locks many megabytes.
const MaxPage = 1 << 20

// Fit returns the first of the locks, as many as MaxPage allows, but one at least. It clears the
// others, so that they take no memory.
func Fit(locks []Lock) []Lock {
	size := 0
	for i := range locks {
		if size += locks[i].size(); i > 0 && size > MaxPage {
			clear(locks[i:])
			return locks[:i]
		}
	}
	return locks
}

// fixedSize is more than what the JSON of a lock takes beside its text.
const fixedSize = 480

// size is at least the length of the JSON.
func (l *Lock) size() int {
	size := fixedSize
	texts := []string{l.Name, l.State, l.UUID, l.Hostname, l.Owner, l.Explanation, l.Urgency}
	for _, t := range l.Texts() {
		texts = append(texts, t.Value)
	}
	for _, text := range texts {
		for i := range len(text) {
			size += escaped(text[i])
		}
	}
	return size
}

// escaped is at least the length of a byte in JSON that is safe to print.
func escaped(b byte) int {
	switch {
	case b >= utf8.RuneSelf:
		return 3 // a character of two bytes takes six, one of four bytes twelve
	case b < ' ', b == '"', b == '\\', b == '<', b == '>', b == '&', b == 0x7f:
		return 6
	}
	return 1
}
