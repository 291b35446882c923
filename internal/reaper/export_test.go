package reaper

const UpdateInterval = updateInterval

// Open counts the attempts that Run has not finished: those whose answer has come but
// not their event, and others.
func (r *Reaper) Open() (answered, others int) {
	r.tally.mu.Lock()
	defer r.tally.mu.Unlock()
	for _, a := range r.tally.open {
		if a.answered && a.gone == nil {
			answered++
		} else {
			others++
		}
	}
	return answered, others
}

// Unanswered counts the attempts that ended without an answer, and may still turn out to have deleted their lock.
func (r *Reaper) Unanswered() int {
	r.tally.mu.Lock()
	defer r.tally.mu.Unlock()
	return len(r.tally.unanswered)
}

// Braking is braking.
func (r *Reaper) Braking(name string) (forced, limit int) { return r.braking(name) }

// Ends returns how many ends of its count are known of a name.
func (r *Reaper) Ends(name string) int {
	_, s := r.streak(name)
	return len(s.ends)
}

// Streaks returns the number of names that a brake counts.
func (r *Reaper) Streaks() int {
	r.brakes.mu.Lock()
	defer r.brakes.mu.Unlock()
	return len(r.brakes.streaks)
}
