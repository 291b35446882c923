/* A replica: what it learns, when a lock is due, the gate, and its removal. First the rules that may be taken out. */

#define LIVE(r) (now - re[r].sign <= TOL)
/* Late knowledge means patience, although an earlier observation of the clock is known. */
#ifdef NO_LATE
#define LATE(live) 0
#else
#define LATE(live) !(live)
#endif
#ifdef F_RESTORE
#define SEEN rev
#else
#define SEEN 0
#endif
#ifdef NO_HISTORY
#define DIVERGED(r) false
#else
#define DIVERGED(r) (backupRev < re[r].seen) /* it does not have the newest write that was seen */
#endif
#ifdef NO_RECENT
#define RECENT false
#else
#define RECENT (re[r].k.bare && re[r].end[i] + TIMEOUT >= re[r].learned)
#endif
#define PATIENCE (re[r].k.bare -> CAP : TTL)
#ifdef NO_GRACE
#define GRACE_ 0
#else
#define GRACE_ GRACE
#endif
#ifdef NO_SETTLE
#define SETTLED(at) true
#else
#define SETTLED(at) (now - (at) > SETTLE)
#endif
#ifdef NO_FRESH
#define SHOWS true
#else
#define SHOWS (now - re[r].sign <= FRESH)
#endif
#ifdef NO_OVERDUE
#define PROBED (re[r].good != 0)
#else
#define PROBED (re[r].good != 0 && now - re[r].good <= GRACE)
#endif
#ifdef NO_PAUSE
#define PAUSED false
#else
#define PAUSED (re[r].pause != 0)
#endif
#define OPEN (re[r].listed && !re[r].broken && SETTLED(re[r].listedAt) && SETTLED(re[r].bad) && SHOWS && PROBED && \
  !re[r].failing && !re[r].alarmed && !PAUSED)
#ifdef NO_CONFIRM
#define CONFIRMED true
#else
#define CONFIRMED (re[r].good >= due && re[r].good >= re[r].opened)
#endif
/* Nothing may depend on who leads: a replica removes when the lock is due, or up to STANDBY later. */
#ifdef NO_STANDBY
#define MAY_WAIT true
#else
#define MAY_WAIT (now - due < STANDBY)
#endif

#define CONNECTED(r) (re[r].cut == 0 && (etcd == up || etcd == alarm))

/* It looks at the watch. */
inline watch(r) { look(r); re[r].sign = now }

/* It learns what the watch or a listing shows, which after a silence of more than the tolerance is late knowledge. */
inline look(r) {
  if
  :: re[r].broken && re[r].listed && DIVERGED(r) ->
    clear(re[r].k); re[r].late = 0; re[r].measured = 0; re[r].ahead = 0; re[r].learned = 0; re[r].listed = 0; re[r].opened = 0;
    if :: re[r].stuck -> forget(r) :: else fi; /* its verdict is of the etcd of before */
    for (i : 0 .. OUTAGES - 1) { re[r].length[i] = 0; re[r].end[i] = 0; re[r].orev[i] = 0 }
  :: else
  fi;
  if
  :: !re[r].listed || re[r].broken -> learn(r, 0)
  :: else -> learn(r, LIVE(r))
  fi;
  if :: !re[r].listed -> re[r].listed = 1; re[r].listedAt = now :: else fi;
  re[r].broken = 0; re[r].seen = SEEN; re[r].pause = pause
}

/* It learns what etcd shows, if that is new. A stamp that is observed live shows the holder's clock. */
inline learn(r, live) {
  if
  :: lk.uuid == re[r].k.uuid && lk.crev == re[r].k.crev && lk.mod == re[r].k.mod && re[r].listed
  :: else ->
    if :: lk.uuid != re[r].k.uuid || lk.crev != re[r].k.crev || !re[r].listed -> re[r].measured = 0; re[r].ahead = 0 :: else fi;
    re[r].learned = now; re[r].late = LATE(live);
    if
    :: (live) && lk.uuid != 0 && !lk.bare -> re[r].measured = 1; re[r].ahead = lk.dl - TTL - now
    :: else
    fi;
    copy(re[r].k, lk);
    printf("  replica %d learns revision %d, late: %d\n", r, lk.mod, re[r].late);
    if :: lk.uuid == 0 -> re[r].late = 0; re[r].learned = 0 :: else fi
  fi
}

/* It probes, each instant: the request passes through etcd's log as a renewal does. */
inline probe(r) {
  if :: re[r].since == 0 -> re[r].since = now :: else fi;
  if
  :: etcd == up && re[r].cut == 0 ->
    if
    :: now - re[r].since > 1 || re[r].alarmed ->
      if :: re[r].length[0] == 0 -> i = 0 :: re[r].length[0] != 0 && re[r].length[1] == 0 -> i = 1 :: else -> i = 2 fi;
      re[r].length[i] = now - re[r].since; re[r].end[i] = now; re[r].orev[i] = rev
    :: else
    fi;
    re[r].good = now; re[r].since = now; re[r].failing = 0; re[r].alarmed = 0; re[r].seenAlarm = 0
  :: etcd == alarm && re[r].cut == 0 ->
    re[r].failing = 0; re[r].seenAlarm = 1; re[r].trouble = now;
#ifndef NO_ALARM
    re[r].alarmed = 1; re[r].bad = now
#endif
  :: etcd == down && re[r].cut == 0 || (etcd == hang || re[r].cut > 0) && re[r].good != 0 && now - re[r].good > TIMEOUT ->
    re[r].failing = 1; re[r].bad = now; re[r].trouble = now
  :: else /* no answer yet */
  fi;
  if
  :: now - re[r].sign > FRESH ->
    re[r].trouble = now;
#ifndef NO_FRESH
    re[r].bad = now
#endif
  :: else
  fi
}

/* When the lock is due by rules 4 to 6. */
inline decide(r) {
  due = 0; patience = 0;
#ifndef NO_ALLOWANCE
  for (i : 0 .. OUTAGES - 1) {
    if :: re[r].length[i] > 0 && (re[r].orev[i] >= re[r].k.mod || RECENT) -> due = due + re[r].length[i] :: else fi;
    if
    :: re[r].length[i] > 0 && re[r].end[i] > re[r].learned ->
      patience = patience + (re[r].length[i] < re[r].end[i] - re[r].learned -> re[r].length[i] : re[r].end[i] - re[r].learned)
    :: else
    fi
  }
#endif
  due = due + re[r].k.dl + GRACE_;
#ifdef NO_OBSERVATION
  due = due - re[r].wall;
#else
  if
  :: re[r].measured && re[r].ahead - re[r].wall < -TOL -> due = due - re[r].ahead
  :: else -> due = due - re[r].wall
  fi;
#endif
#ifndef NO_PATIENCE
  if
  :: re[r].late || !re[r].measured -> patience = patience + re[r].learned + PATIENCE + GRACE; due = MAX(due, patience)
  :: else
  fi;
#endif
  patience = 0
}

/* Its removal is sent: S3 as the judge sees it. */
inline depart(r) {
  printf("  replica %d sends the removal\n", r);
#ifndef ONLY_S1
  S3_blind = now - re[r].sign <= FRESH && now - re[r].good <= GRACE && !re[r].seenAlarm; assert(S3_blind);
  S3_settled = now - re[r].trouble > SETTLE && now - re[r].listedAt > SETTLE; assert(S3_settled);
#endif
  re[r].stuck = 0; re[r].at = net; re[r].way = 0;
#ifdef F_REMOVAL
  if :: budget > 0 -> budget--; re[r].way = LONGEST; printf("  it is late\n") :: true fi;
#endif
  travel(r)
}

inline travel(r) {
  if
  :: re[r].cut > 0
  :: re[r].cut == 0 && re[r].way > 0 -> if :: reach(r) :: re[r].way-- fi
  :: re[r].cut == 0 && re[r].way == 0 -> reach(r)
  fi
}

/* Its removal reaches etcd, which removes keys also under the alarm NOSPACE. */
inline reach(r) {
  if
  :: etcd == up || etcd == alarm -> remove(r)
  :: etcd == hang -> re[r].at = log
  :: etcd == down -> lose(r)
  fi
}

/* Its removal is lost. A library that repeats it does not ask the gate. */
inline lose(r) {
#ifdef NO_ONCE
  re[r].at = log /* and is sent again as soon as etcd serves */
#else
  forget(r)
#endif
}

inline act(r) {
  if
  :: OPEN ->
    if :: re[r].opened == 0 -> re[r].opened = now :: else fi;
    if :: re[r].good >= re[r].opened -> re[r].opened = 1 :: else fi
  :: else -> re[r].opened = 0
  fi;
  if
  :: re[r].at == net -> travel(r)
#ifdef NO_ONCE
  :: re[r].at == log && (etcd == up || etcd == alarm) -> depart(r)
#else
  :: re[r].at == log && (etcd == up || etcd == alarm) -> if :: remove(r) :: lose(r) fi
#endif
  :: re[r].at == log && etcd == down -> lose(r)
  :: re[r].at == log && etcd == hang
#ifdef NO_DEPARTURE
  :: re[r].stuck -> if :: depart(r) :: re[r].way > 0 -> re[r].way-- fi
#else
  :: re[r].stuck && re[r].opened != 0 -> if :: depart(r) :: re[r].way > 0 -> re[r].way-- fi
  :: re[r].stuck && re[r].opened == 0 -> forget(r)
#endif
  :: re[r].at == none && !re[r].stuck && re[r].opened != 0 && re[r].k.uuid != 0 ->
    decide(r);
    if
    :: due <= now && CONFIRMED ->
      copy(re[r].v, re[r].k); re[r].vpause = re[r].pause;
      if
      :: depart(r)
#ifdef F_STUCK
      :: budget > 0 -> budget--; re[r].stuck = 1; re[r].way = LONGEST; printf("  the removal of replica %d waits in the client\n", r)
#endif
      fi
    :: due > now || !CONFIRMED || MAY_WAIT
    fi
  :: else
  fi;
  due = 0; i = 0
}

proctype Daemon(byte r) {
  byte i;
  short due, patience;
end:
  do
  :: atomic {
      acting && re[r].phase == 0 ->
      re[r].phase = (re[r].on -> 1 : 2);
      if
      :: re[r].on ->
        if
        :: re[r].lag == 0 && CONNECTED(r) -> watch(r)
        :: re[r].lag > 0 && CONNECTED(r) && now - re[r].sign > FRESH -> if :: look(r) /* it lists the locks */ :: true fi
        :: else
        fi;
        probe(r)
      :: else -> /* a request that was sent before it was killed */ if :: re[r].at != none -> act(r) :: else fi
      fi;
      i = 0
    }
  :: atomic {
      acting && re[r].phase == 1 -> re[r].phase = 2;
      LOOK_AGAIN
      act(r)
    }
  od
}
