/*
 * What happened in histories of the simulator, in place of the free choices of the environment. The replicas are as ever.
 * ../../internal/sim/replay_test.go writes script.h, with a row for each tick of each history, and TRACES, how many there
 * are. Printed is in which ticks a lock can be removed, 0 for never.
 */
short which;                            /* history */
bit dead;                               /* is a replica */
c_decl { \#include "script.h" }
#define ROW(column) c_expr { script[now.which][now.now][column] }

inline faults() {
  if :: ROW(0) == 0 -> etcd = up :: ROW(0) == 1 -> etcd = down :: ROW(0) == 2 -> etcd = hang :: ROW(0) == 3 -> etcd = alarm fi;
  if :: ROW(1) && pause == 0 -> bump(); pause = rev :: else fi;
  re[0].wall = ROW(2); re[0].cut = ROW(3); re[0].lag = ROW(4); dead = ROW(5); lives(0);
  re[1].wall = ROW(6); re[1].cut = ROW(7); re[1].lag = ROW(8); dead = ROW(9); lives(1)
}

inline lives(r) {
  if
  :: dead && re[r].on -> kill(r)
  :: !dead && !re[r].on -> re[r].on = 1; re[r].off = 0; re[r].sign = now
  :: else
  fi
}

/* The holder does what etcd executed: sent a while ago, in which etcd served some ticks. */
proctype Hold(byte h) {
  byte i;
end:
  do
  :: atomic {
      acting && !ho[h].done -> ho[h].done = 1;
      if
      :: ROW(10) ->
        ho[h].kind = (now == START -> acquire : renew);
        ho[h].dl = ROW(11); ho[h].bare = ROW(12); ho[h].left = ROW(13); ho[h].leftUp = ROW(14);
        execute(h);
        if :: ho[h].at != none -> idle(h) :: else fi
      :: else
      fi;
      i = 0
    }
  od
}
