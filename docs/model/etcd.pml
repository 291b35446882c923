/* What etcd executes, and the judges: they know all that happened. */

inline bump() { rev = MAX(rev + 1, 4 * (now - shift)) }

/* The lock was written: removals that are on their way were decided before. */
inline written() {
  DISTURBED;
  printf("  etcd executes the request of holder %d: revision %d, deadline %d\n", lk.uuid - 1, rev, lk.dl - START);
  for (i : 0 .. REPLICAS - 1) { if :: re[i].at != none || re[i].stuck -> re[i].dirty = 1 :: else fi }
}

/* etcd executes the request of holder h. */
inline execute(h) {
  if
  :: ho[h].kind == acquire && lk.uuid == 0 -> bump(); lk.uuid = h + 1; lk.crev = rev; accept(h)
  :: ho[h].kind == renew && lk.uuid == h + 1 -> bump(); accept(h)
  :: else -> printf("  etcd refuses the request of holder %d\n", h); ho[h].has = 0; ho[h].belief = 0; idle(h)
  fi
}

inline accept(h) {
  lk.mod = rev; lk.dl = ho[h].dl; lk.bare = ho[h].bare;
  ho[h].rest = MAX(ho[h].rest, ho[h].left); ho[h].restUp = MAX(ho[h].restUp, ho[h].leftUp);
  ho[h].at = answer;
  written();
}

inline idle(h) {
  ho[h].at = none; ho[h].kind = 0; ho[h].dl = 0; ho[h].bare = 0; ho[h].way = 0; ho[h].left = 0; ho[h].leftUp = 0
}

/* The compares of a removal. */
#ifdef NO_UUID
#define SAME_UUID (lk.uuid != 0)
#else
#define SAME_UUID (lk.uuid == re[r].v.uuid)
#endif
#ifdef NO_DEADLINE
#define SAME_DEADLINE true
#else
#define SAME_DEADLINE (lk.dl == re[r].v.dl)
#endif
#ifdef NO_NEWEST
#define NOT_NEWER true
#else
#define NOT_NEWER (lk.mod <= re[r].v.mod)
#endif
#ifdef NO_PAUSE_COMPARE
#define NO_NEWER_PAUSE true
#else
#define NO_NEWER_PAUSE (pause <= re[r].vpause)
#endif

/* etcd executes the removal of replica r. */
inline remove(r) {
  if
  :: lk.uuid != 0 && SAME_UUID && SAME_DEADLINE && NOT_NEWER && NO_NEWER_PAUSE ->
    printf("  etcd removes the lock of holder %d\n", lk.uuid - 1);
    S1_only_the_dead = !re[r].dirty; assert(S1_only_the_dead);
#ifndef ONLY_S1
    S2_never_early = ho[lk.uuid - 1].rest == 0; assert(S2_never_early);
    S3_could_renew = ho[lk.uuid - 1].restUp == 0; assert(S3_could_renew);
    S3_paused = pause == 0; assert(S3_paused);
#endif
    REPORT_REMOVAL
    bump(); clear(lk)
  :: else
  fi;
  forget(r)
}

inline clear(l) { l.uuid = 0; l.crev = 0; l.mod = 0; l.dl = 0; l.bare = 0 }
inline copy(to, l) { to.uuid = l.uuid; to.crev = l.crev; to.mod = l.mod; to.dl = l.dl; to.bare = l.bare }

/* The removal of r is over. */
inline forget(r) {
  re[r].at = none; re[r].stuck = 0; re[r].way = 0; re[r].dirty = 0; re[r].vpause = 0; clear(re[r].v)
}

/* Holders look before they act: never may two believe that they have the lock. */
inline exclusive() {
#if HOLDERS > 1 && !defined(ONLY_S1)
  mutual_exclusion = ho[0].belief == 0 || ho[1].belief == 0; assert(mutual_exclusion)
#else
  skip
#endif
}
