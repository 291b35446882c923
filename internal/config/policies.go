package config

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/bmatcuk/doublestar/v4"
	"go.yaml.in/yaml/v3"
)

// Policy is an exception from Reaper for the locks whose name it matches. In a Config that Load returned, Mode and Grace are those in force:
// taken from Reaper where the file does not give them.
type Policy struct {
	Match string        // Match is a doublestar pattern for the whole name, without the prefix: * stops at a slash, ** does not.
	Mode  string        // Mode is "enforce", "dry-run" or "off".
	Grace time.Duration // Grace is as in Reaper, with the same bounds.
}

// keys is the table of a policy's keys; at is the policy's own name.
func (p *Policy) keys(at string) []key {
	return []key{
		fileOnly(bind(text(), at+".match", &p.Match, "", checkMatch, "")),
		fileOnly(bind(text(), at+".mode", &p.Mode, "", oneOf(modes()...), "")),
		fileOnly(bind(duration(), at+".grace", &p.Grace, 0, upTo(maxWait), "")),
	}
}

// modes are what the reaper may do with locks that are due.
func modes() []string { return []string{"enforce", "dry-run", "off"} }

func policyName(i int) string { return fmt.Sprintf("policies[%d]", i) }

// policyKeys are the keys of all policies that c has now, bound to them.
func (c Config) policyKeys() []key {
	var all []key
	for i := range c.Policies {
		all = append(all, c.Policies[i].keys(policyName(i))...)
	}
	return all
}

// inherit fills in what the policies leave to the reaper.
func (c Config) inherit(given map[string]string) {
	for i := range c.Policies {
		p := &c.Policies[i]
		if p.Mode == "" {
			p.Mode = c.Reaper.Mode
		}
		if given[policyName(i)+".grace"] == "" {
			p.Grace = c.Reaper.Grace
		}
	}
}

// policies makes room: its text is their number, and each of their keys is set by itself, as every other key is.
func policies() kind[[]Policy] {
	return kind[[]Policy]{
		name:   "policies",
		shape:  shape{wants: "a list of mappings", list: true, mappings: true},
		parse:  parseRoom,
		format: func(l []Policy) string { return strconv.Itoa(len(l)) },
		show:   showPolicies,
	}
}

func parseRoom(s string) ([]Policy, error) {
	n, err := parseInt(s)
	if err != nil || n <= 0 {
		return nil, err
	}
	return make([]Policy, n), nil
}

func showPolicies(l []Policy) any {
	all := []printed{}
	for _, p := range l {
		all = append(all, printed(p))
	}
	return all
}

// printed is a policy on its way into the output of YAML.
type printed Policy

// MarshalYAML writes the policy's keys as those of every other section are written.
func (p printed) MarshalYAML() (any, error) {
	own := &yaml.Node{Kind: yaml.MappingNode}
	for _, k := range (*Policy)(&p).keys("") {
		var v yaml.Node
		if err := v.Encode(k.show()); err != nil {
			return nil, err
		}
		own.Content = append(own.Content, scalar(strings.TrimPrefix(k.name, ".")), &v)
	}
	return own, nil
}

// checkMatch refuses what can match no name: a policy that never applies is a safety that is not there.
func checkMatch(s string) error {
	switch {
	case s == "":
		return errors.New("must not be empty")
	case strings.HasPrefix(s, "/") || strings.HasSuffix(s, "/"):
		return fmt.Errorf("%q matches no lock: a name neither begins nor ends with a slash, and the prefix is not part of it", s)
	case !doublestar.ValidatePattern(s):
		return fmt.Errorf("%q is no valid pattern", s)
	}
	return nil
}
