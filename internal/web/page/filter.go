package page

import (
	"cmp"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/etcd-unlocker/unlocker/internal/api"
)

// Filter is what the dashboard was asked for.
type Filter struct{ api.Query }

// defaultLimit is the number of locks on the dashboard unless limit says otherwise.
const defaultLimit = 100

// query returns the parameters of the filter, with one of them replaced.
func (f Filter) query(name, value string) string {
	values := url.Values{}
	all := map[string]string{"state": f.State(), "q": f.Contains, "hostname": f.Hostname, "owner": f.Owner}
	if f.Limit != defaultLimit {
		all["limit"] = strconv.Itoa(f.Limit)
	}
	all[name] = value
	for name, value := range all {
		if value != "" {
			values.Set(name, value)
		}
	}
	return "?" + values.Encode()
}

// State returns the states of the filter as one parameter.
func (f Filter) State() string { return strings.Join(f.States, ",") }

// Is reports whether only this state is shown.
func (f Filter) Is(state string) bool { return slices.Equal(f.States, []string{state}) }

// InState returns the query for the locks in a state.
func (f Filter) InState(state string) string { return f.query("state", state) }

// OfOwner returns the query for the locks of a service.
func (f Filter) OfOwner(owner string) string { return f.query("owner", owner) }

// OnHost returns the query for the locks of a host.
func (f Filter) OnHost(host string) string { return f.query("hostname", host) }

// Page returns the query of another page.
func (f Filter) Page(after string) string { return f.query("after", after) }

// Set reports whether the filter leaves out locks.
func (f Filter) Set() bool { return cmp.Or(f.State(), f.Contains, f.Hostname, f.Owner) != "" }

// Limits are the numbers of rows to choose from.
func (f Filter) Limits() []int {
	limits := []int{defaultLimit, 250, 1000}
	if !slices.Contains(limits, f.Limit) {
		limits = append(limits, f.Limit)
	}
	return limits
}
