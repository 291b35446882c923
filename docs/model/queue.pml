/*
 * Waiting in order: the tickets of ../protocol.md. Each transaction of etcd is one step. Waiter 0 lives; at most HANGS
 * times a waiter hangs (it keeps its lease, and may continue) or dies (its lease expires), also while an attempt is on its
 * way. A waiter that does not hang acts within a second. See README.md.
 */
#ifndef WAITERS
#define WAITERS 3
#endif
#ifndef HANGS
#define HANGS 2
#endif
#ifndef BARGES
#define BARGES 1 /* how often a client without tickets takes the lock */
#endif

byte owner;                     /* 1 + the number of the waiter, OTHER for a client without tickets, 0 if the lock is free */
#define OTHER (WAITERS + 1)
byte line[WAITERS], tickets;    /* the tickets, in the order of their create_revision */
byte hangs, barges;

typedef Waiter {
  bit waits, dead;
  byte hung;                    /* 1: it will continue, 2: it will not */
  bit flies, valid;             /* an attempt in turn is on its way; its ticket still exists */
  bit gaveUp;                   /* it gave up while that was so */
  byte over;                    /* the ticket that it passes over: 1 + number */
  bit rightly;                  /* all before it hung when it sent that */
  byte one, two;                /* the waiters before it, as it knows: 1 + number, 0 for none */
}
Waiter w[WAITERS];

hidden byte in_order, nobody_waits, refused_after_giving_up;
bool gets;

#define GONE(j) (w[j].hung || w[j].dead)

inline find(x) { at = 0; do :: at < tickets && line[at] != x -> at++ :: else -> break od }

inline drop(x) {
  find(x);
  if
  :: at < tickets ->
    tickets--;
    do :: at < tickets -> line[at] = line[at + 1]; at++ :: else -> break od;
    line[tickets] = 0; w[x].valid = 0
  :: else
  fi;
  at = 0
}

/* x reads the tickets before its own. */
inline read(x) {
  find(x);
  w[x].one = (at > 0 -> line[at - 1] + 1 : 0); w[x].two = (at > 1 -> line[at - 2] + 1 : 0);
  at = 0
}

inline has(x) {
  printf("  waiter %d has the lock\n", x);
  owner = x + 1; w[x].waits = 0; w[x].one = 0; w[x].two = 0;
  if :: x == 0 -> gets = 1 :: else fi
}

#ifdef NO_NEWCOMER
#define NOBODY true
#else
#define NOBODY (tickets == 0)
#endif
/* Without a ticket: take what is free if there are no tickets, or put one. */
inline come(x) {
  if
  :: owner == 0 && NOBODY -> nobody_waits = tickets == 0; assert(nobody_waits); has(x)
  :: else -> printf("  waiter %d puts a ticket, after %d others\n", x, tickets); line[tickets] = x; tickets++; read(x)
  fi
}

/* Nobody who lives is before x: then it sees the lock free for a second. */
#define ALONE(x) (tickets > 0 && (line[0] == x || GONE(line[0]) && tickets > 1 && (line[1] == x || GONE(line[1]) && line[2] == x)))
#define QUEUED(x) (tickets > 0 && line[0] == x || tickets > 1 && line[1] == x || tickets > 2 && line[2] == x)

/* x tries to take the lock, and to delete its own ticket, and the one that it passes over. */
inline attempt(x, passes) { printf("  waiter %d tries, and passes over %d\n", x, passes - 1); w[x].flies = 1; w[x].valid = 1; w[x].over = passes; w[x].rightly = ALONE(x) }

#ifdef NO_TICKET
#define TICKET true
#else
#define TICKET w[x].valid
#endif
inline arrive(x) {
  w[x].flies = 0;
  if
  :: owner == 0 && TICKET ->
    refused_after_giving_up = !w[x].gaveUp; assert(refused_after_giving_up);
    in_order = w[x].rightly; assert(in_order);
    if :: w[x].over > 0 && w[x].over != x + 1 -> drop(w[x].over - 1) :: else fi;
    drop(x); has(x)
  :: else
  fi;
  w[x].valid = 0; w[x].over = 0; w[x].gaveUp = 0; w[x].rightly = 0
}

#ifdef NO_TURN
#define FIRST(x) true
#else
#define FIRST(x) (w[x].one == 0)
#endif
#ifdef NO_PASS
#define PASSES(x) false
#else
#define PASSES(x) (w[x].one != 0 && w[x].two == 0 && ALONE(x))
#endif
#ifdef NO_ANY
#define ANY(x) false
#else
#define ANY(x) (w[x].two != 0 && ALONE(x))
#endif
#define ACTS(x) (!GONE(x) && w[x].waits && !w[x].flies)

proctype Wait(byte x) {
  byte at;
end:
  do
  :: atomic { !GONE(x) && !w[x].waits && owner != x + 1 && !w[x].flies -> w[x].waits = 1; come(x) }
  :: atomic { !GONE(x) && owner == x + 1 -> printf("  waiter %d releases\n", x); owner = 0; if :: x == 0 -> gets = 0 :: else fi } /* releases */
  :: atomic { ACTS(x) && QUEUED(x) && owner == 0 && FIRST(x) -> attempt(x, 0) }
  :: atomic { ACTS(x) && QUEUED(x) && owner == 0 && PASSES(x) -> attempt(x, w[x].one) }
  :: atomic { ACTS(x) && QUEUED(x) && owner == 0 && ANY(x) -> attempt(x, line[0] + 1) }
  :: atomic { ACTS(x) && owner != 0 && w[x].one == owner && w[x].two == 0 -> w[x].one = 0 } /* the one before it has the lock */
  :: atomic { ACTS(x) && QUEUED(x) && w[x].two != 0 && !QUEUED(w[x].two - 1) -> read(x); printf("  waiter %d reads its place: %d, %d before it\n", x, w[x].one - 1, w[x].two - 1) }
#ifndef NO_REQUEUE
  :: atomic { ACTS(x) && !QUEUED(x) -> come(x) } /* its ticket is gone */
#endif
  :: atomic { x > 0 && !GONE(x) && w[x].waits -> printf("  waiter %d gives up\n", x); w[x].waits = 0; w[x].gaveUp = w[x].flies; drop(x); w[x].one = 0; w[x].two = 0 }
  :: atomic { hangs < HANGS && !GONE(x) && w[x].waits -> printf("  waiter %d hangs or dies\n", x); hangs++; if :: w[x].hung = 1 :: x > 0 -> w[x].hung = 2 :: x > 0 -> w[x].dead = 1 fi }
  :: atomic { w[x].hung == 1 -> printf("  waiter %d continues\n", x); w[x].hung = 0 } /* it continues */
  od
}

/* etcd executes what x has sent, and ends its lease when it is dead. */
proctype Etcd(byte x) {
  byte at;
end:
  do
  :: atomic { w[x].flies -> arrive(x) }
  :: atomic { w[x].dead && QUEUED(x) -> drop(x) }
  od
}

/* The daemon removes the locks of the dead. */
proctype Daemon() {
end:
  do
  :: atomic { owner != 0 && owner != OTHER && GONE(owner - 1) -> owner = 0; printf("  the lock is removed\n") }
  od
}

/* A client without tickets compares the uuid alone. */
proctype Barge() {
end:
  do
  :: atomic { owner == 0 && barges < BARGES -> barges = (BARGES < 100 -> barges + 1 : 0); owner = OTHER }
  :: atomic { owner == OTHER -> owner = 0 }
  od
}

init { atomic { run Wait(0); run Wait(1); run Wait(2); run Etcd(0); run Etcd(1); run Etcd(2); run Daemon(); run Barge() } }

ltl waiters_get_it { [] (w[0].waits -> <> gets) }
