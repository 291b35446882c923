# variants.sh: what check.sh checks. It is sourced. First what holds, then the same with a rule taken out.

check holds  'no fault, all clocks' removal CLOCKS FAULTS=0
check breaks 'without the grace' removal CLOCKS FAULTS=0 NO_GRACE
check breaks 'without the clock observation' removal CLOCKS FAULTS=0 NO_OBSERVATION

check holds  'outages, late renewals' removal F=etcd,late
check breaks 'without the outage allowance' removal F=etcd FAULTS=1 NO_ALLOWANCE
check breaks 'without the probe that confirms' removal F=etcd FAULTS=1 NO_CONFIRM
check breaks 'without settle' removal F=etcd FAULTS=1 NO_SETTLE
check breaks 'without the hold of an alarm' removal F=etcd FAULTS=1 NO_ALARM
check holds  'renewals without a stamp' removal F=etcd,late BARE
check breaks 'without outages before such a renewal' removal F=etcd,late BARE NO_RECENT

check holds  'the watch lags, a clock is set' removal F=lag,clock CLOCKS
check breaks 'without patience for late knowledge' removal F=lag,clock NO_LATE
check breaks 'without freshness' removal F=lag FAULTS=1 NO_FRESH
check holds  'the replica restarts, is cut off' removal F=kill,cut,wall
check breaks 'without patience' removal F=kill FAULTS=1 CLOCKS NO_PATIENCE

check holds  'late removals' removal F=removal,stuck,etcd
check breaks 'without the last look at the gate' removal F=stuck,etcd NO_DEPARTURE
check breaks 'without overdue probes' removal F=stuck,etcd NO_OVERDUE
check breaks 'with removals that a library repeats' removal F=etcd,removal NO_ONCE
check holds  'pauses' removal F=pause,removal,etcd
check breaks 'without pauses' removal F=pause FAULTS=1 NO_PAUSE
check breaks 'without the compare of the pauses' removal F=pause,removal NO_PAUSE_COMPARE

check holds  'a renewal with the same deadline' removal F=removal,clock STEP=6 UNTIL=17
check breaks 'without the compare of the revision' removal F=removal,clock STEP=6 UNTIL=17 NO_NEWEST
check holds  'a restore that removals survive' removal F=restore,removal KEEP ONLY_S1 UNTIL=17
check breaks 'without the compare of the deadline' removal F=restore,removal KEEP ONLY_S1 UNTIL=17 NO_DEADLINE
check holds  'the same with another holder' removal F=restore,removal KEEP ONLY_S1 HOLDERS=2 OFFSET_B=-7 UNTIL=9
check breaks 'without the compare of the uuid' removal F=restore,removal KEEP ONLY_S1 HOLDERS=2 OFFSET_B=-7 UNTIL=9 NO_UUID

check holds  'a restore' removal F=restore CLOCKS FAULTS=1
check holds  'a restore, and the watch lags' removal F=restore,lag
check breaks 'without the history of etcd' removal F=restore FAULTS=1 NO_HISTORY
check limit  'a restore that loses what no one saw' removal F=restore FAULTS=1 LIMIT_UNSEEN

check holds  'all faults but restores: one' removal F=etcd,lag,cut,kill,wall,clock,pause,late,removal,stuck FAULTS=1 CLOCKS
check holds  'two replicas' removal F=etcd,lag,kill,late,removal FAULTS=1 REPLICAS=2
check holds  'two replicas, soon' removal F=etcd,lag,cut,kill,wall S6 REPLICAS=2 FAULTS=1 LAST=50
check breaks 'where only the leader removes' removal F=kill S6 REPLICAS=2 FAULTS=1 LAST=50 NO_STANDBY
check holds  'two holders' removal F=etcd,late,answer HOLDERS=2 FAULTS=1
check breaks 'a deadline that counts from the answer' removal F=etcd,answer HOLDERS=2 NO_BEFORE_SENT

check holds  'waiters get it' queue
check breaks 'newcomers do not look for tickets' queue NO_NEWCOMER
check breaks 'without the compare of the ticket' queue NO_TICKET
check breaks 'out of turn' queue NO_TURN
check breaks 'without passing over' queue NO_PASS
check breaks 'only the second passes over' queue NO_ANY
check breaks 'without another ticket' queue NO_REQUEUE
check limit  'clients without tickets, without end' queue BARGES=100
