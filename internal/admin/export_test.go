package admin

import "time"

// SetNow sets the clock of an Admin that nothing uses yet.
func (a *Admin) SetNow(now func() time.Time) { a.now = now }
