package admin

import (
	"context"
	"strings"
	"time"
	"unicode"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/terminal"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Limits of Names. A shell asks for names while somebody waits.
const (
	namesTimeout = 2 * time.Second
	namesPage    = 1000 // keys
	namesPages   = 5
	maxNames     = 200
)

// Names returns names of locks that begin with a text, for a shell to complete: not
// many more than maxNames. Where there are more, the longest beginning that the names have in common is still
// that of all, so that a shell that goes on to it leaves none out.
// Names that are not safe to print, or in which a character means something to a
// shell, are left out. It takes at most 2 s, or until the deadline of ctx if that has one.
func (a *Admin) Names(ctx context.Context, begin string) ([]string, error) {
	if _, limited := ctx.Deadline(); !limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, namesTimeout)
		defer cancel()
	}
	from := a.config.Prefix + begin
	end := clientv3.GetPrefixRangeEnd(from)
	s := search{admin: a, begin: begin, from: from, end: end, seen: make(map[string]bool)}
	for pages := 0; !s.done && len(s.names) < maxNames && pages < namesPages; pages++ {
		if err := s.page(ctx, namesPage); err != nil {
			return nil, err
		}
	}
	err := s.complete(ctx)
	return s.names, err
}

// search collects names from keys.
type search struct {
	admin            *Admin
	begin, from, end string
	done             bool
	names            []string
	seen             map[string]bool
}

// complete adds names until no other name shortens the beginning that they have in common. It
// returns none if that takes too many requests.
func (s *search) complete(ctx context.Context) error {
	for requests := 0; !s.done && len(s.names) > 0; requests++ {
		common := commonBeginning(s.names)
		if len(common) <= len(s.begin) {
			return nil
		}
		if requests == maxNames {
			s.names = nil
			return nil
		}
		s.from = max(s.from, clientv3.GetPrefixRangeEnd(s.admin.config.Prefix+common))
		if err := s.page(ctx, 1); err != nil {
			return err
		}
	}
	return nil
}

func (s *search) page(ctx context.Context, limit int64) error {
	resp, err := s.admin.client.Get(ctx, s.from, clientv3.WithRange(s.end), clientv3.WithKeysOnly(), clientv3.WithLimit(limit))
	if err != nil {
		return err
	}
	for _, kv := range resp.Kvs {
		if limit > 1 && len(s.names) == maxNames {
			return nil
		}
		s.from = string(kv.Key) + "\x00"
		name, field, valid := s.admin.layout.Split(kv.Key)
		if valid && protocol.ParseField(field) != protocol.FieldUnknown {
			s.add(string(name))
		}
	}
	s.done = !resp.More
	return nil
}

func (s *search) add(name string) {
	if !s.seen[name] && strings.HasPrefix(name, s.begin) && typable(name) {
		s.seen[name] = true
		s.names = append(s.names, name)
	}
}

// typable reports whether a name can be typed as it is in any shell, and is not a flag.
func typable(name string) bool {
	return terminal.Quote(name) == name && !strings.HasPrefix(name, "-") && !strings.ContainsFunc(name, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("/._-:+%,", r)
	})
}

func commonBeginning(names []string) string {
	common := names[0]
	for _, name := range names {
		for !strings.HasPrefix(name, common) {
			common = common[:len(common)-1]
		}
	}
	return common
}
