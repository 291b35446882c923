/* Time, and what goes wrong. */

#define END_OR(x, max) if :: x >= max -> x = 0 :: x < max -> x++ :: x = 0 fi

#define OTHER (REPLICAS - 1)

/* A limit of the rules: a restore is not noticed if it loses only writes that a replica has not seen. */
#ifdef LIMIT_UNSEEN
#define KNOWN(r) true
#else
#define KNOWN(r) (!re[r].on || !re[r].listed || re[r].seen >= lk.mod)
#endif

#ifdef TRACE
#include "trace.pml"
#else
inline faults() {
  if
  :: etcd != up -> END_OR(outage, LONGEST); if :: outage == 0 -> etcd = up; printf("  etcd: up\n") :: else fi
  :: else
  fi;
  for (i : 0 .. REPLICAS - 1) {
    if :: re[i].lag > 0 -> END_OR(re[i].lag, LAG) :: else fi;
    if :: re[i].cut > 0 -> END_OR(re[i].cut, LONGEST) :: else fi;
    if :: !re[i].on -> END_OR(re[i].off, LONGEST); if :: re[i].off == 0 -> re[i].on = 1; re[i].sign = now; printf("  replica %d starts\n", i) :: else fi :: else fi
  }
  do
  :: break
#ifdef F_ETCD
  :: budget > 0 && etcd == up -> budget--; outage = 1; if :: etcd = down :: etcd = hang :: etcd = alarm fi; printf("  etcd: %e\n", etcd)
#endif
#ifdef F_LAG
  :: budget > 0 && re[0].lag == 0 -> budget--; re[0].lag = 1; printf("  the watch of replica 0 lags\n")
  :: budget > 0 && re[OTHER].lag == 0 && OTHER > 0 -> budget--; re[OTHER].lag = 1; printf("  the watch of replica %d lags\n", OTHER)
#endif
#ifdef F_CUT
  :: budget > 0 && re[0].cut == 0 -> budget--; re[0].cut = 1; printf("  replica 0 is cut off\n")
  :: budget > 0 && re[OTHER].cut == 0 && OTHER > 0 -> budget--; re[OTHER].cut = 1; printf("  replica %d is cut off\n", OTHER)
#endif
#ifdef F_KILL
  :: budget > 0 && re[0].on -> budget--; kill(0)
  :: budget > 0 && re[OTHER].on && OTHER > 0 -> budget--; kill(OTHER)
#endif
#ifdef F_WALL
  :: budget > 0 -> budget--; if :: re[0].wall = re[0].wall + STEP :: re[0].wall = re[0].wall - STEP fi; printf("  the clock of replica 0 is set: %d ahead\n", re[0].wall)
#endif
#ifdef F_CLOCK
  :: budget > 0 -> budget--; ho[0].off = ho[0].off - STEP; printf("  the clock of holder 0 is set: %d ahead\n", ho[0].off)
#endif
#ifdef F_PAUSE
  :: budget > 0 && etcd == up && pause == 0 -> budget--; bump(); pause = rev; printf("  a user pauses removals\n")
#endif
#ifdef F_RESTORE
  :: !saved -> saved = 1; copy(backup, lk); backupRev = rev; backupPause = pause; backupAt = now; printf("  a backup of etcd is made\n");
    if :: bump() /* others write */ :: true fi
  :: budget > 0 && saved && !restored && backupAt < now && KNOWN(0) && KNOWN(OTHER) -> budget--; restore()
#endif
  od;
  i = 0
}
#endif

inline kill(r) {
  printf("  replica %d is killed\n", r);
  re[r].on = 0; re[r].off = 1; re[r].listed = 0; re[r].broken = 0; re[r].failing = 0; re[r].alarmed = 0; re[r].lag = 0; re[r].cut = 0;
  clear(re[r].k); re[r].late = 0; re[r].measured = 0; re[r].ahead = 0; re[r].learned = 0;
  re[r].sign = 0; re[r].listedAt = 0; re[r].seen = 0; re[r].pause = 0; re[r].good = 0; re[r].since = 0; re[r].bad = 0; re[r].opened = 0;
  re[r].trouble = 0; re[r].seenAlarm = 0;
  for (j : 0 .. OUTAGES - 1) { re[r].length[j] = 0; re[r].end[j] = 0; re[r].orev[j] = 0 }
  j = 0;
  if :: re[r].stuck -> forget(r) :: else fi
}

/* etcd is restored in place. Others may have written past what it had; KEEP: removals on their way survive that. */
inline restore() {
  printf("  etcd is restored to the backup of t=%d\n", backupAt - START);
  restored = 1; copy(lk, backup); rev = backupRev; pause = backupPause;
  if :: shift = now - backupAt :: shift = 0 fi;
  DISTURBED;
  for (j : 0 .. HOLDERS - 1) { if :: ho[j].at != none -> idle(j) :: else fi }
  for (j : 0 .. REPLICAS - 1) {
    re[j].broken = 1; re[j].lag = 0; re[j].cut = 0;
    if :: re[j].on && backupRev < re[j].seen -> re[j].trouble = now :: else fi;
#ifdef KEEP
    if :: re[j].at != none -> re[j].dirty = lk.uuid != re[j].v.uuid || lk.mod != re[j].v.mod || lk.dl != re[j].v.dl :: else fi
#else
    if :: re[j].at != none -> forget(j) :: else fi
#endif
  }
  j = 0
}

/* What is so long ago that it does not matter any more is forgotten, so that there are fewer states. */
inline tidy(r) {
  if :: now - re[r].bad > SETTLE + 1 -> re[r].bad = 0 :: else fi;
  if :: now - re[r].trouble > SETTLE + 1 -> re[r].trouble = 0 :: else fi;
  if :: re[r].listed && now - re[r].listedAt > SETTLE + 1 -> re[r].listedAt = 1 :: else fi;
#ifndef F_RESTORE
  for (j : 0 .. OUTAGES - 1) {
    if
    :: re[r].end[j] > 0 && re[r].orev[j] < lk.mod && re[r].orev[j] < re[r].k.mod && re[r].end[j] + TIMEOUT < re[r].learned ->
      re[r].length[j] = 0; re[r].end[j] = 0; re[r].orev[j] = 0
    :: else
    fi
  }
  j = 0
#endif
}

#ifdef S6
#define BOUND (TTL + GRACE + 2 * STEP + LONGEST + 1 + STANDBY + SETTLE + 1)
#endif

inline tick() {
  printf("t=%d\n", now + 1 - START);
#ifdef S6
  quiet++;
  if :: etcd != up || pause != 0 || re[0].lag + re[0].cut + re[0].off + re[OTHER].lag + re[OTHER].cut + re[OTHER].off > 0 -> quiet = 0 :: else fi;
  S6_soon = lk.uuid == 0 || quiet < BOUND; assert(S6_soon);
#endif
  now++; acting = 0;
  for (i : 0 .. HOLDERS - 1) {
    ho[i].done = 0; LESS(ho[i].left); LESS(ho[i].rest); LESS(ho[i].belief);
    if :: etcd == up -> LESS(ho[i].leftUp); LESS(ho[i].restUp) :: else fi
  }
  for (i : 0 .. REPLICAS - 1) { re[i].phase = 0; tidy(i) }
  i = 0
}

/* Nothing can happen any more. */
#define OVER (HOLDERS == 1 && lk.uuid == 0 && now > START && ho[0].at == none)

#define DONE (ho[0].done && ho[HOLDERS - 1].done && re[0].phase == 2 && re[REPLICAS - 1].phase == 2)

init {
  byte i, j;
  atomic {
    CHOOSE
    if OFFSETS fi;
#if HOLDERS > 1
    ho[1].off = OFFSET_B;
#endif
    for (i : 0 .. REPLICAS - 1) {
      re[i].on = 1; re[i].listed = 1; re[i].listedAt = START - SETTLE - 1; re[i].good = START - 1; re[i].since = START - 1; re[i].sign = START - 1;
      if WALLS fi;
      run Daemon(i)
    }
    for (i : 0 .. HOLDERS - 1) { run Hold(i) }
    i = 0
  }
  do
  :: now < LAST && !OVER ->
    atomic { faults(); acting = 1 };
    d_step { DONE -> tick() }
  :: else -> break
  od
  REPORT_END
}
