/*
 * A holder renews when it likes: each instant, or never again. So it may be slow, or dead. It sends one request at a
 * time, which may be late, lost, or wait in the log of etcd. It writes stamps, or (BARE) only when it takes the lock.
 */

/* A renewal without a stamp is on its way for at most request_timeout: that is a limit of the rules. */
#ifdef BARE
#define STAMPED 0
#define ON_ITS_WAY TIMEOUT
#else
#define STAMPED 1
#define ON_ITS_WAY LONGEST
#endif

inline send(h, what, stamp) {
  printf("  holder %d sends: %e\n", h, what);
  ho[h].kind = what; ho[h].dl = now + TTL + ho[h].off; ho[h].bare = !stamp; ho[h].left = TTL; ho[h].leftUp = TTL;
  ho[h].at = net; ho[h].way = 0;
  if
#ifdef F_LATE
  :: budget > 0 -> budget--; ho[h].way = ON_ITS_WAY; printf("  which is late\n")
#endif
  :: true
  fi
}

/* The request of h arrives. */
inline arrive(h) {
  if
  :: etcd == up -> execute(h)
  :: etcd == hang -> ho[h].at = log
  :: else -> idle(h)
  fi
}

/* h gets the answer that its write was executed. Its deadline counts from before that was sent. */
inline hear(h) {
  printf("  holder %d has the answer\n", h);
  ho[h].has = 1;
#ifdef NO_BEFORE_SENT
  ho[h].belief = TTL;
#else
  ho[h].belief = MAX(ho[h].belief, ho[h].left);
#endif
  idle(h)
}

#ifndef TRACE
proctype Hold(byte h) {
  byte i;
end:
  do
  :: atomic {
      acting && !ho[h].done -> ho[h].done = 1;
      if
      :: ho[h].at == log && etcd == up -> if :: execute(h) :: idle(h) /* lost with a leader */ fi
      :: ho[h].at == log && etcd != up && etcd != hang -> idle(h)
      :: ho[h].at == log && etcd == hang
      :: ho[h].at == net -> if :: arrive(h) :: ho[h].way > 0 -> ho[h].way-- fi
      :: ho[h].at == answer
      :: ho[h].at == none && ho[h].has && now <= UNTIL -> if :: send(h, renew, STAMPED) :: skip fi
      :: ho[h].at == none && !ho[h].has && (h > 0 -> lk.uuid == 0 && now > START : now == START) ->
        if :: send(h, acquire, 1) :: h > 0 fi
      :: else
      fi;
      /* What is not late happens in the same instant. */
      if :: ho[h].at == net && ho[h].way == 0 -> arrive(h) :: else fi;
      if
      :: ho[h].at == answer && ho[h].way > 0 -> if :: hear(h) :: ho[h].way-- fi
      :: ho[h].at == answer && ho[h].way == 0 ->
        if
        :: hear(h)
#ifdef F_ANSWER
        :: budget > 0 -> budget--; ho[h].way = LONGEST
#endif
        fi
      :: else
      fi;
      i = 0;
      exclusive()
    }
  od
}
#endif
