package verdict

import "time"

// Pause is what keeps a lock while a person has paused the removal of some locks.
type Pause struct {
	// Until is when it ends by itself; zero if there is none.
	Until time.Time
	// Words say whose it is and why.
	Words string
}
