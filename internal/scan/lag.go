package scan

import "errors"

var errLagging = errors.New("the watch falls behind")

// lag follows by how many revisions a watch is behind. etcd hands a watch that is not current at most a batch in
// 100 ms (measured: 4,500 revisions a second). Where more is written it never catches up, and a new watch from the
// present revision does.
type lag struct {
	newest, behind int64
	grown          int
}

const (
	// lagBatch is the number of revisions in a batch of etcd.
	lagBatch = 1000
	// lagLooks is how often in a row the lag must have grown.
	lagLooks = 2
)

// grows is called at an interval with the newest revision of etcd, and the one that the watch has passed. It reports
// whether the watch has not even passed what was the newest one an interval ago, and is further behind each time.
func (l *lag) grows(newest, passed int64) bool {
	behind := newest - passed
	if l.grown++; passed >= l.newest || behind <= max(l.behind, lagBatch) {
		l.grown = 0
	}
	l.newest, l.behind = newest, behind
	return l.grown >= lagLooks
}
