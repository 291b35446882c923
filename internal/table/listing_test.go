package table

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

func TestFirstListingCountsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.put("a", fields(time.Minute, time.Minute))
		w.put("b", fields(-time.Minute, -time.Minute))
		w.listing(false)
		require.Zero(t, w.counted())
		w.pass(grace)
		require.Equal(t, []string{"b"}, w.taken())
	})
}

func TestListingAfterAnInterruptedWatch(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		for _, name := range []string{"gone", "taken-gone", "again", "kept"} {
			w.put(name, fields(time.Hour, time.Hour))
		}
		w.put("taken-gone", holder(0).renews(-time.Minute))
		w.put("orphan", map[string]string{"alert_at": at(0)})
		w.listing(false)
		token := w.token("taken-gone")
		w.pass(2 * time.Second)
		require.Equal(t, []string{"taken-gone"}, w.taken())

		w.del("gone")
		w.del("taken-gone")
		w.del("again")
		w.put("again", fields(time.Minute, time.Minute))
		w.put("new", fields(time.Minute, time.Minute))
		w.del("orphan")
		w.listing(false)
		require.Equal(t, counted{acquired: 2, released: 2}, w.counted(), "no drift where nobody watched")
		require.Equal(t, []Gone{{Name: "taken-gone", Token: token, At: w.gone()[0].At, Past: w.gone()[0].Past}}, w.gone())
		require.NotNil(t, w.gone()[0].Past)
		require.ElementsMatch(t, observed{2, 2, 2}, *w.held)
		w.listing(false)
		require.Equal(t, counted{acquired: 2, released: 2}, w.counted())
	})
}

func TestTakenOrphanDeletedWhileNobodyWatched(t *testing.T) {
	for name, after := range map[string]func(*world){
		"deleted":  func(w *world) { w.del("a") },
		"replaced": func(w *world) { w.del("a"); w.put("a", fields(time.Hour, time.Hour)) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				w.put("a", map[string]string{"alert_at": at(0)})
				w.listing(false)
				w.pass(orphanGrace)
				require.Equal(t, []string{"a"}, w.taken())
				after(w)
				w.listing(false)
				require.Equal(t, []Gone{{Name: "a", At: w.gone()[0].At}}, w.gone())
			})
		})
	}
}

func TestEventsUpToTheListingAreDropped(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		events := w.put("b", fields(time.Minute, time.Minute))
		events = append(events, w.del("b")...)
		events = append(events, w.put("a", fields(time.Minute, time.Minute))...)
		w.listing(false)
		w.live(events) // a watch from R replays R
		require.Zero(t, w.counted())
		require.Equal(t, []string{"a"}, w.names())
		require.EqualValues(t, 5, w.get("a").Keys)
		require.False(t, w.observation("a").Measured)
	})
}

func TestDriftCountsOnlyDuringAWatch(t *testing.T) {
	for _, resync := range []bool{false, true} {
		inBubble(t, func(t *testing.T, w *world) {
			w.put("a", fields(time.Minute, time.Minute))
			w.put("b", fields(time.Minute, time.Minute))
			w.put("c", fields(time.Minute, time.Minute))
			w.listing(false)
			w.del("a")                         // its events are lost
			w.put("b", deadline(2*time.Hour))  // likewise
			w.put("d", fields(time.Minute, 0)) // likewise
			w.listing(resync)
			var want counted
			want.acquired, want.released = 1, 1
			if resync {
				want.drift = 3
			}
			require.Equal(t, want, w.counted())
			require.Equal(t, protocol.TimestampOf(present().Add(2*time.Hour)), w.get("b").AutoUnlockAt())
			w.listing(true)
			require.Equal(t, want, w.counted(), "corrected once")
		})
	}
}

// Lost events of which the fields that decide show nothing are corrected as well.
func TestListingCorrectsWhatNoFieldShows(t *testing.T) {
	t.Run("a write", func(t *testing.T) {
		inBubble(t, func(t *testing.T, w *world) {
			f := fields(0, time.Second)
			f["status"] = "x"
			w.live(w.put("a", f))
			w.put("a", map[string]string{"status": "y"})
			w.listing(true)
			require.EqualValues(t, 1, w.counted().drift)
			require.Equal(t, w.rev, w.get("a").Revision, "or no removal of it would ever succeed")
			require.False(t, w.observation("a").Late, "a status is not a sign of the holder")
			w.pass(time.Second + grace)
			require.Equal(t, []string{"a"}, w.taken())
		})
	})
	t.Run("a deletion", func(t *testing.T) {
		inBubble(t, func(t *testing.T, w *world) {
			f := fields(time.Minute, time.Minute)
			f["status"] = "x"
			w.live(w.put("a", f))
			w.del("a", "status")
			w.listing(true)
			require.EqualValues(t, 1, w.counted().drift)
			require.EqualValues(t, 5, w.get("a").Keys)
			w.release("a")
			require.Empty(t, w.names(), "no key remains")
		})
	})
	t.Run("a field instead of another", func(t *testing.T) {
		inBubble(t, func(t *testing.T, w *world) {
			f := fields(time.Minute, time.Minute)
			f["purpose"] = "x"
			w.live(w.put("a", f))
			w.del("a", "purpose")
			w.put("a", map[string]string{"unknown": "x"})
			w.live(w.put("a", map[string]string{"hostname": f["hostname"]}))
			w.listing(true)
			require.EqualValues(t, 1, w.counted().drift)
			w.live(w.del("a", "uuid"))
			require.Equal(t, protocol.Malformed, w.state("a"), "an orphan has no unknown field")
		})
	})
	t.Run("an acquisition with the same values", func(t *testing.T) {
		inBubble(t, func(t *testing.T, w *world) {
			f := fields(time.Minute, time.Minute)
			w.live(w.put("a", f))
			w.del("a")
			w.put("a", f)
			w.live(w.put("a", map[string]string{"status": "x"}))
			w.listing(true)
			require.Equal(t, w.token("a"), w.get("a").Token)
			require.EqualValues(t, 1, w.counted().drift)
		})
	})
	t.Run("an orphan", func(t *testing.T) {
		inBubble(t, func(t *testing.T, w *world) {
			w.live(w.put("a", map[string]string{"alert_at": at(0)}))
			w.pass(orphanGrace - 1)
			w.put("a", map[string]string{"purpose": "x"})
			w.listing(true)
			require.Equal(t, orphanGrace, w.get("a").OrphanIn, "something writes it")
		})
	})
	t.Run("the end of a uuid", func(t *testing.T) {
		inBubble(t, func(t *testing.T, w *world) {
			w.acquire("a", time.Hour, time.Hour)
			w.pass(time.Minute)
			w.del("a", "uuid")
			w.listing(true)
			require.Equal(t, orphanGrace, w.get("a").OrphanIn)
		})
	})
	t.Run("nothing", func(t *testing.T) {
		inBubble(t, func(t *testing.T, w *world) {
			f := fields(time.Minute, time.Minute)
			f["status"] = "x"
			w.live(w.put("a", f))
			w.live(w.del("a", "status"))
			w.listing(true)
			require.Zero(t, w.counted().drift, "a listing does not show when a key was deleted")
			require.Equal(t, w.rev, w.get("a").Revision)
		})
	})
}

// Each field that people or rules see is corrected, also where a later event arrived.
func TestListingCorrectsEachField(t *testing.T) {
	for name, value := range map[string]func() string{
		"uuid":           func() string { return "another" },
		"hostname":       func() string { return "h2" },
		"owner":          func() string { return "mail" },
		"locked_at":      func() string { return at(time.Second) },
		"alert_at":       func() string { return at(time.Second) },
		"auto_unlock_at": func() string { return at(time.Second) },
		"alive_at":       func() string { return at(time.Second) },
		"alive_at, bad":  func() string { return "garbage" },
	} {
		for _, later := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, later event: %t", name, later), func(t *testing.T) {
				field, _, _ := strings.Cut(name, ",")
				inBubble(t, func(t *testing.T, w *world) {
					f := fields(time.Minute, time.Minute)
					f["owner"], f["alive_at"], f["status"] = "web", at(0), "x"
					w.live(w.put("a", f))
					w.put("a", map[string]string{field: value()})
					if later {
						w.live(w.put("a", map[string]string{"status": "y"}))
					}
					w.listing(true)
					require.Equal(t, w.collect()[0], w.get("a").Lock)
					require.EqualValues(t, 1, w.counted().drift)
				})
			})
		}
	}
}

// A lost renewal is found by either of its fields, whatever came later.
func TestListingCorrectsALostRenewal(t *testing.T) {
	for name, renewal := range map[string]func() map[string]string{
		"another deadline":    func() map[string]string { return deadline(time.Hour) },
		"another alive_at":    func() map[string]string { return holder(time.Second).renews(time.Minute) },
		"both of one renewal": func() map[string]string { return holder(time.Second).renews(time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				f := fields(time.Minute, time.Minute)
				if name != "another deadline" {
					f["alive_at"] = at(0)
				}
				w.live(w.put("a", f))
				w.put("a", renewal())
				w.live(w.put("a", map[string]string{"hostname": "h1"}))
				w.listing(true)
				require.Equal(t, w.collect()[0], w.get("a").Lock)
				require.True(t, w.observation("a").Late)
			})
		})
	}
}

// A renewal that was lost is a sign of life also where it wrote the same values again.
func TestS2_AListingShowsARenewalWithTheSameValues(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquire("a", time.Minute, time.Minute)
		again := map[string]string{"auto_unlock_at": w.get("a").AutoUnlockText()}
		require.False(t, w.observation("a").Late)
		time.Sleep(time.Minute)
		w.put("a", again)
		w.listing(true)
		require.True(t, w.observation("a").Late)
		require.Zero(t, w.observation("a").Age)
	})
}

func TestListingCorrectsALease(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquire("a", time.Minute, time.Minute)
		w.put("a", map[string]string{"hostname": "h1"}) // its event is lost, and it had a lease
		kv := w.locks["a"]["hostname"]
		kv.Lease = 7
		w.locks["a"]["hostname"] = kv
		w.live(w.put("a", map[string]string{"alert_at": at(time.Minute)}))
		w.listing(true)
		require.Equal(t, protocol.Malformed, w.state("a"))
	})
}

func TestListingThatFindsALockOrphanedCountsItsRelease(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquire("a", time.Minute, time.Minute)
		w.listing(false)
		w.del("a", "uuid")
		w.listing(false)
		require.Equal(t, counted{acquired: 1, released: 1}, w.counted())
	})
}

// While a listing is in progress next to a watch, locks come, go and change.
func TestEventsDuringAListing(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		for _, name := range []string{"deleted", "again", "renewed", "listed-then-deleted", "kept"} {
			w.acquire(name, time.Minute, time.Minute)
		}
		require.NoError(t, w.Begin(w.ctx, w.rev, true))
		seen := w.collect()
		w.release("deleted")
		w.release("again")
		w.acquire("again", time.Hour, time.Hour)
		w.renew("renewed", time.Hour, time.Hour)
		w.acquire("new", time.Minute, time.Minute)
		require.NoError(t, w.List(w.ctx, seen))
		w.release("listed-then-deleted")
		require.NoError(t, w.End(w.ctx))
		w.check()
		require.Equal(t, counted{acquired: 7, renewed: 1, released: 3}, w.counted())
		require.Equal(t, []string{"again", "kept", "new", "renewed"}, w.names())
		require.Equal(t, w.token("again"), w.get("again").Token)
		require.Equal(t, time.Hour+grace, w.due("renewed"), "the event is newer than the listing")
		require.True(t, w.observation("renewed").Measured)
		w.listing(true)
		require.Zero(t, w.counted().drift)
	})
}

// What a listing that did not finish contained is not believed by the next one.
func TestBrokenListing(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.put("a", fields(time.Minute, time.Minute))
		w.listing(false)
		for range 300 {
			require.NoError(t, w.Begin(w.ctx, w.rev, false))
			require.NoError(t, w.List(w.ctx, w.collect()))
		}
		w.del("a")
		w.listing(false)
		require.Empty(t, w.names())
		require.EqualValues(t, 1, w.counted().released)
	})
}

func TestForgetBeginsAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.listing(false)
		w.acquire("a", -time.Minute, -time.Minute)
		w.acquire("b", time.Minute, time.Minute)
		require.Equal(t, []string{"a"}, w.taken())
		token := w.token("a")
		require.NoError(t, w.Forget(w.ctx))
		require.Empty(t, w.names())
		require.Equal(t, []Gone{{Name: "a", Token: token, At: w.gone()[0].At}}, w.gone())
		before := w.counted()
		w.etcd = newEtcd() // of a lower revision
		w.rev = 0
		w.put("b", fields(time.Minute, time.Minute))
		w.put("c", fields(time.Minute, time.Minute))
		w.listing(false)
		require.Equal(t, before, w.counted())
		require.Equal(t, []string{"b", "c"}, w.names())
		require.False(t, w.observation("b").Measured, "what was known is from before the restore")
		w.acquire("d", time.Minute, time.Minute)
		require.Equal(t, before.acquired+1, w.counted().acquired)
	})
}

// History F2: etcd was restored while we ran, from a backup that is older than what we
// saw, at a higher revision.
func TestS3_AListingOlderThanWhatWasSeenIsAnotherHistory(t *testing.T) {
	for name, c := range map[string]struct {
		backup, since func(*world)
		older         bool
	}{
		"renewed since": {
			func(w *world) { w.acquire("a", time.Minute, time.Minute) },
			func(w *world) { w.renew("a", time.Hour, time.Hour) }, true,
		},
		"renewed with the same values since": {
			func(w *world) { w.acquire("a", time.Minute, time.Minute) },
			func(w *world) { w.live(w.put("a", deadline(time.Minute))) }, true,
		},
		"renewed with the same values, and another key, since": {
			func(w *world) { w.acquire("a", time.Minute, time.Minute) },
			func(w *world) {
				w.live(w.put("a", map[string]string{"status": "x", "auto_unlock_at": at(time.Minute)}))
			}, true,
		},
		"taken again since": {
			func(w *world) { w.acquire("a", time.Minute, time.Minute) },
			func(w *world) { w.release("a"); w.acquire("a", time.Minute, time.Minute) }, true,
		},
		"orphaned since": {
			func(w *world) { w.acquire("a", time.Minute, time.Minute) },
			func(w *world) { w.live(w.del("a", "uuid")) }, true,
		},
		"orphan written since": {
			func(w *world) { w.live(w.put("a", deadline(0))) },
			func(w *world) { w.live(w.put("a", deadline(time.Minute))) }, true,
		},
		"renewed after a deletion": {
			func(w *world) { w.acquire("a", time.Minute, time.Minute) },
			func(w *world) { w.live(w.del("a", "alert_at")); w.renew("a", time.Hour, time.Hour) }, true,
		},
		"renewed after a deletion and a listing": {
			func(w *world) {
				w.acquire("a", time.Minute, time.Minute)
				w.live(w.put("a", map[string]string{"status": "x"}))
			},
			func(w *world) {
				w.live(w.del("a", "status"))
				w.put("a", map[string]string{"purpose": "x"}) // its event is lost
				w.listing(true)
			}, true,
		},
		"nothing since": {
			func(w *world) { w.acquire("a", time.Minute, time.Minute) },
			func(*world) {}, false,
		},
		// A listing does not show when a key was deleted, so that this may be the same
		// history.
		"only a deletion since": {
			func(w *world) {
				w.acquire("a", time.Minute, time.Minute)
				w.live(w.put("a", map[string]string{"status": "x"}))
			},
			func(w *world) { w.live(w.del("a", "status")) }, false,
		},
		"orphaned before": {
			func(w *world) { w.live(w.put("a", deadline(0))) },
			func(w *world) { w.acquire("a", time.Minute, time.Minute) }, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				w.live(w.put("other", fields(time.Minute, time.Minute)))
				c.backup(w)
				backup := w.snapshot()
				c.since(w)
				require.NoError(t, w.Begin(w.ctx, w.rev+1_000_000, false))
				err := w.List(w.ctx, backup.collect())
				if c.older {
					require.ErrorIs(t, err, ErrOlder)
				} else {
					require.NoError(t, err)
				}
				require.NoError(t, w.End(w.ctx))
			})
		})
	}
}

// A lock whose renewal etcd no longer has may be handed out before the restore is known: it gets its patience.
func TestS2_AnOlderLockIsLateKnowledge(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquire("a", time.Minute, time.Minute)
		backup := w.snapshot()
		w.renew("a", time.Hour, time.Hour)
		<-time.After(time.Second)
		w.etcd = backup
		w.rev += 1_000_000
		require.False(t, w.observation("a").Late)
		require.ErrorIs(t, w.list(false), ErrOlder)
		require.True(t, w.observation("a").Late)
		require.Zero(t, w.observation("a").Age)
	})
}

// An older holder's lock shows a restore, also if it was renewed since.
func TestS3_AnOlderHolderIsAnotherHistory(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquire("a", time.Minute, time.Minute)
		backup := w.snapshot()
		w.release("a")
		w.acquire("a", time.Minute, time.Minute)
		w.etcd = backup
		w.rev += 1_000_000
		w.put("a", holder(0).renews(time.Hour))
		require.ErrorIs(t, w.list(false), ErrOlder)
	})
}

// The same history is not taken for another one where the last events were lost.
func TestS3_ALostWriteIsNotAnotherHistory(t *testing.T) {
	reacquired := func(w *world) { w.del("a"); w.put("a", fields(time.Hour, time.Hour)) }
	for name, lost := range map[string]func(*world){
		"write":           func(w *world) { w.put("a", map[string]string{"status": "x"}) },
		"renewal":         func(w *world) { w.put("a", holder(0).renews(time.Hour)) },
		"deletion":        func(w *world) { w.del("a", "alert_at") },
		"release":         func(w *world) { w.del("a") },
		"last written":    func(w *world) { w.live(w.put("a", map[string]string{"status": "x"})); w.del("a", "status") },
		"reacquisition":   reacquired,
		"end of the uuid": func(w *world) { w.del("a", "uuid") },
		"end of the deadline": func(w *world) {
			w.renew("a", time.Hour, time.Hour)
			w.del("a", "auto_unlock_at", "alert_at", "alive_at")
		},
		"acquisition over an orphan":      func(w *world) { w.live(w.del("a", "uuid")); w.put("a", map[string]string{"uuid": "x"}) },
		"reacquisition before a write":    func(w *world) { reacquired(w); w.live(w.put("a", map[string]string{"status": "x"})) },
		"reacquisition before a deletion": func(w *world) { reacquired(w); w.live(w.del("a", "alert_at")) },
		"acquisition before a write": func(w *world) {
			w.put("b", fields(time.Hour, time.Hour))
			w.live(w.put("b", map[string]string{"status": "x"}))
		},
		"renewal before a deletion": func(w *world) {
			w.live(w.put("a", map[string]string{"status": "x"}))
			w.put("a", holder(0).renews(time.Hour))
			w.live(w.del("a", "status"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, beside := range []bool{false, true} {
				inBubble(t, func(_ *testing.T, w *world) {
					w.acquire("a", time.Minute, time.Minute)
					lost(w)
					w.listing(beside)
				})
			}
		})
	}
}

// The watch lost the acquisition, and shows another event while a listing is in progress that has the
// lock: it is no deletion.
func TestAListingAddsALockWhoseAcquisitionWasLost(t *testing.T) {
	for name, event := range map[string]func(*world) []Event{
		"renewal":             func(w *world) []Event { return w.put("a", map[string]string{"auto_unlock_at": at(2 * time.Minute)}) },
		"deletion of a field": func(w *world) []Event { return w.del("a", "alert_at") },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				w.listing(false)
				w.put("a", holder(0).acquires(time.Minute))
				require.NoError(t, w.Begin(w.ctx, w.rev, true))
				listed := w.collect()
				w.live(event(w))
				require.NoError(t, w.List(w.ctx, listed))
				require.NoError(t, w.End(w.ctx))
				require.Equal(t, []string{"a"}, w.names())
			})
		})
	}
}

// The end of a lock whose acquisition was lost is that of an orphan.
func TestTheEndOfALockThatWasNotSeenIsNoRelease(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.put("a", fields(time.Minute, time.Minute))
		w.live(w.put("a", map[string]string{"status": "x"}))
		w.release("a")
		require.Zero(t, w.counted())
		require.Empty(t, *w.held)
	})
}

// Nothing of a lock is left in the next one of its name, also where both come at once.
func TestNothingIsLeftOfALock(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		f := fields(time.Minute, time.Minute)
		f["backtrace"], f["owner"] = strings.Repeat("x", 100<<10), "web"
		w.live(w.put("a", f))
		require.True(t, w.get("a").Large())
		w.live(append(w.del("a"), w.put("a", map[string]string{"uuid": "x"})...))
		require.Equal(t, w.collect()[0], w.get("a").Lock)
	})
}
