package page

import (
	"github.com/etcd-unlocker/unlocker/internal/api"
)

// Dashboard is the page / with the locks that match a filter, the most urgent first.
type Dashboard struct {
	Status api.Status
	Filter Filter
	api.LockPage
}

func (Dashboard) template() string { return "locks" }

// stateCount is the number of locks in a state.
type stateCount struct {
	State string
	N     int
}

// Counts returns the number of locks in each state, the most urgent first.
func (document) Counts(s api.Status) (all []stateCount) {
	for _, state := range api.StatesByUrgency() {
		all = append(all, stateCount{state, s.Locks[state]})
	}
	return all
}

// Total returns the number of locks in all states.
func (v Dashboard) Total() (n int) {
	for _, in := range v.Status.Locks {
		n += in
	}
	return n
}

// Native is the page /native.
type Native struct{ api.NativeList }

func (Native) template() string { return "native" }

// Health is the page /health.
type Health struct {
	Status api.Status
}

func (Health) template() string { return "health" }

// Problem is the page of an error.
type Problem struct {
	// Status is the HTTP status, Text says what is wrong.
	Status int
	Text   string
}

func (Problem) template() string { return "problem" }
