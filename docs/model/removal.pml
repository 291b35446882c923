/*
 * When may a lock be removed? The rules of ../safety.md, in discrete time: a tick is about a second. See README.md.
 *
 * At each instant the environment makes faults, at most FAULTS in a run, then each holder and each replica acts once, in
 * any order. Nothing happens between two instants. Rules are taken out with -DNO_…; F_… allow a kind of fault.
 */
#ifndef TTL
#define TTL 4 /* of each holder */
#endif
#ifndef GRACE
#define GRACE 2
#endif
#ifndef TOL
#define TOL 2 /* clock_tolerance */
#endif
#ifndef SETTLE
#define SETTLE 2
#endif
#ifndef FRESH
#define FRESH 3 /* freshness */
#endif
#ifndef STANDBY
#define STANDBY 1 /* standby_delay */
#endif
#ifndef TIMEOUT
#define TIMEOUT 3 /* request_timeout */
#endif
#ifndef CAP
#define CAP 5 /* the patience of a renewal without a stamp: 5 minutes */
#endif
#ifndef STEP
#define STEP 3 /* by how much a clock is set */
#endif
#ifndef LONGEST
#define LONGEST 3 /* an outage, a cut, a request on its way */
#endif
#ifndef LAG
#define LAG 5 /* of a watch */
#endif
#ifndef FAULTS
#define FAULTS 2
#endif
#ifndef REPLICAS
#define REPLICAS 1
#endif
#ifndef HOLDERS
#define HOLDERS 1
#endif
#ifndef START
#define START 8 /* the first instant; 0 is never */
#endif
#ifndef UNTIL
#define UNTIL (START + 6) /* the last instant at which a holder sends something */
#endif
#ifndef LAST
#define LAST (START + 18)
#endif
#ifndef OFFSET_B
#define OFFSET_B (-5) /* by how much the clock of the second holder is ahead */
#endif
/* By how much the clock of the first holder is ahead, and our wall clocks are. */
#ifdef CLOCKS
#define OFFSETS :: ho[0].off = -TOL :: ho[0].off = -3 :: ho[0].off = 3
#define WALLS :: true :: re[i].wall = 3 :: re[i].wall = -3
#else
#define OFFSETS :: ho[0].off = -TOL
#define WALLS :: true
#endif
#define OUTAGES 3 /* that a replica remembers: no more can happen */

#define MAX(a, b) ((a) > (b) -> (a) : (b))
#define LESS(a) a = ((a) > 0 -> (a) - 1 : 0)

mtype = { up, down, hang, alarm };      /* etcd; down refuses, hang keeps what is sent in its log */
mtype = { none, net, log, answer };     /* where a request is */
mtype = { acquire, renew };

typedef Lock { byte uuid, crev, mod; short dl; bit bare } /* uuid 0: free; bare: renewed without a stamp */

/* Etcd. Revisions are an order, so that they need not count the writes. */
mtype etcd = up;
byte now = START, rev, shift, outage, budget = FAULTS;
Lock lk;
byte pause;                             /* the revision of a pause of all locks, 0 for none */
bit acting;                             /* the environment has made its faults */
bit restored, saved;
Lock backup;
byte backupRev, backupPause, backupAt;

typedef Holder {
  short off;                            /* its clock is ahead */
  bit has, done;
  mtype at = none, kind;                /* of its request */
  short dl; bit bare;
  byte way;                             /* for how long that may still be on its way */
  byte left, leftUp;                    /* what is left of TTL since it was sent: of time, and of time in which etcd served */
  byte rest, restUp;                    /* the same since the last write that was executed was sent */
  byte belief;                          /* for how long it believes that it has the lock */
}
Holder ho[HOLDERS];

typedef Replica {
  bit on, listed, broken, failing, alarmed;
  byte phase;                           /* of the instant: 0 before it looked, 1 before it judged, 2 done */
  byte lag, cut, off;                   /* for how long already */
  short wall;                           /* its wall clock is ahead */
  Lock k; bit late, measured; short ahead; byte learned; /* what it knows of the lock; ahead: the holder's clock, of time */
  byte sign, listedAt, seen, pause;
  byte good, bad;                       /* when the last good probe began, when there was last trouble */
  byte since;                           /* good or, if there is none, when the first probe began */
  byte opened;                          /* since when the gate is open, 0 if it is closed, 1 if a good probe began since */
  byte length[OUTAGES], end[OUTAGES], orev[OUTAGES];
  mtype at = none; bit stuck;           /* of its removal, which may be stuck in the client */
  Lock v; byte vpause, way;    /* the verdict it was made on */
  bit dirty;                            /* the lock was written since */
  byte trouble; bit seenAlarm;          /* what the judge knows: bad and alarmed, whatever rule is taken out */
}
Replica re[REPLICAS];

#ifdef S6
byte quiet;                             /* for how long nothing has gone wrong, and no holder has written */
#define DISTURBED quiet = 0
#else
#define DISTURBED skip
#endif
hidden byte S1_only_the_dead, S2_never_early, S3_could_renew, S3_paused, S3_blind, S3_settled, S6_soon, mutual_exclusion;

#ifdef TRACE
#define CHOOSE select(which : 0 .. TRACES - 1);
#define LOOK_AGAIN if :: re[r].lag == 0 && CONNECTED(r) -> watch(r) :: true fi; i = 0;
#define REPORT_REMOVAL c_code { printf("removed %d %d\n", now.which, now.now); };
#define REPORT_END ; if :: lk.uuid != 0 -> c_code { printf("removed %d 0\n", now.which); } :: else fi
#else
#define CHOOSE
#define LOOK_AGAIN
#define REPORT_REMOVAL
#define REPORT_END
#endif

#include "etcd.pml"
#include "holder.pml"
#include "replica.pml"
#include "environment.pml"
