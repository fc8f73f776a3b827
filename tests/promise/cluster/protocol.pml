/* The protocol of the journal in PostgreSQL, for spin: every order of events is tried. Each step names the function that it stands for.

   An intent is a fact with a unique key, (row, attempt), in the chain of the process that made it: the end of that chain says what
   became of a commit without an answer. It may leave only while it is young. Before its first byte leaves, it is written to a file of
   its host. Once the database has another life (a standby took over, a copy was restored), nobody sends there before every host on the
   roll has compared its file with it. The file then names that life, and takes no line from a process that is connected to another one.

   Two workers, each on a host of its own, send two rows; one that has no turn is frozen. Another process of its host compares the file
   at any moment. Anybody concludes intents that are old, or whose process has ended. The server crashes; a standby that lags is
   promoted, while the database before it may go on, for hosts that have not left it. A person releases, amends, and accepts a loss.

   Not here: claims, which keep nobody from anything; signs of life, which only spare rows; the desk, whose transactions are whole;
   clocks that differ by more than half of the age; a host that goes back to a life that its file has left; a copy that keeps the life of
   its original; a file that is put back; hosts that are retired or new; holds.

   What a guard is for shows where it is left out: -DNO_KEY, -DNO_CHAIN, -DNO_FLUSH, -DNO_MAY_LEAVE, -DNO_AGE, -DNO_LEFT, -DNO_ROLL,
   -DNO_LIFE. */
#ifndef TROUBLES
#define TROUBLES 2                     /* so many things go wrong, of any kind, at any moment; and one row in doubt is released */
#endif
#define NOBODY 2                       /* the owner of an intent whose process has ended: no other one takes it for its own */
#define NONE 3
mtype = { READY, IN_FLIGHT, IN_DOUBT, PAID, REPLACED }

/* What a database knows of each row: its state, its newest attempt, and whose intent that was (`state`); and which facts the chain has of
   the process that each worker is now (`head_hash`): an intent and an answer for each row. Another process has another chain. */
typedef Database { mtype row[2]; byte attempt[2]; byte owner[2]; byte head[2] }
Database base[2], disk, standby;       /* what is seen, by life; what is durable; what the standby has got so far */
byte life;                             /* `database_life()`, the newest one */
bool old_serves;                       /* the life before goes on, for hosts whose file still names it */
byte seen_life[2];                     /* the life in which a worker made its connection */
bool answered[2];                      /* `roll_answer`: this host has compared its file with the newest life */
byte noted[4], noted_life[2];          /* the file: the newest attempt that may have left, by host and row; the life it was compared with */
bool unsent[4];                        /* the file says besides that nothing of that attempt left */
bool good[4];                          /* by a worker's clock, half of the age has not passed since it asked for its intent of a row */
bool fresh[2];                         /* by the server's clock, all of it has not passed since the commit of the newest intent of a row, which
                                          was a sign of life of its process: `is_left` */
bool has_ended[2];                     /* no process of this host sends */
byte late_by = NONE, late_row, late_attempt, late_head;   /* a call on its way to the server, whose answer nobody waits for any more */
byte troubles = TROUBLES, promotions = 1, releases = 1;

bool left[2];                          /* the truth: a first byte has left since a person released the row */
byte intended[2];                      /* and the newest attempt whose intent was ever committed */

#define newest base[life]
#define here base[seen_life[me]]       /* what a worker sees */
#define copy(from, to) \
    to.row[0] = from.row[0]; to.row[1] = from.row[1]; to.attempt[0] = from.attempt[0]; to.attempt[1] = from.attempt[1]; \
    to.owner[0] = from.owner[0]; to.owner[1] = from.owner[1]; to.head[0] = from.head[0]; to.head[1] = from.head[1]
#define is_behind (standby.row[0] != disk.row[0] || standby.row[1] != disk.row[1] || standby.attempt[0] != disk.attempt[0] || \
    standby.attempt[1] != disk.attempt[1] || standby.owner[0] != disk.owner[0] || standby.owner[1] != disk.owner[1] || \
    standby.head[0] != disk.head[0] || standby.head[1] != disk.head[1])
#define is_over(r) (newest.row[r] == PAID || newest.row[r] == IN_DOUBT || newest.row[r] == REPLACED)
#define all_over (is_over(0) && is_over(1))
#define is_newest (seen_life[me] == life)
#define is_connected (is_newest || old_serves)
#define may_send (!is_newest || roll_is_complete)                        /* in the life before, it was */
#define is_in_flight (here.row[r] == IN_FLIGHT && here.attempt[r] == attempt && here.owner[r] == me)
#define chain_is_as_left (here.head[me] == mine)                         /* `commit_facts`, PW001 */

#define of_intent(r) (1 << (2 * (r)))
#define of_answer(r) (2 << (2 * (r)))

#ifdef NO_KEY
#define is_ready(database, r, wanted) true
#else
#define is_ready(database, r, wanted) (database.row[r] == READY && database.attempt[r] == wanted - 1)   /* `move_row`, `fact_one_intent` */
#endif
#ifdef NO_CHAIN
#define is_committed true
#else
#define is_committed (here.head[me] == (mine | of_intent(r)))             /* `FactWriter._is_committed` */
#endif
#ifdef NO_FLUSH
#define keep() skip
#else
#define keep() flush()                                                   /* `GuardedSession.flush` */
#endif
#ifdef NO_MAY_LEAVE
#define may_leave true
#else
#define may_leave good[2 * me + r]                                       /* `FactWriter.may_send` */
#endif
#ifdef NO_AGE
#define is_left(r) (newest.row[r] == IN_FLIGHT)
#else
#define is_left(r) (newest.row[r] == IN_FLIGHT && (!fresh[r] || newest.owner[r] == NOBODY))             /* `is_left` */
#endif
#ifdef NO_LEFT
#define lacks(host, r) false
#else
#define lacks(host, r) (noted[2 * (host) + r] > newest.attempt[r])       /* `check_sent_log`: what may have left from this host is missing */
#endif
#ifdef NO_ROLL
#define roll_is_complete true
#else
#define roll_is_complete (answered[0] && answered[1])                    /* `require_roll` */
#endif
#ifdef NO_LIFE
#define may_note true
#else
#define may_note (noted_life[me] == seen_life[me])                       /* `lock_incarnation` */
#endif

inline answer(host) { answered[host] = true; noted_life[host] = life }   /* `RollCall.answer` */

inline commit(database, r, wanted, whose) {            /* of an intent: it is seen */
    database.row[r] = IN_FLIGHT; database.attempt[r] = wanted; database.owner[r] = whose; fresh[r] = true;
    if
    :: whose != NOBODY -> database.head[whose] = database.head[whose] | of_intent(r)
    :: else
    fi;
    if
    :: intended[r] < wanted -> intended[r] = wanted
    :: else
    fi
}

inline flush() {                       /* what is seen is durable; of the life before, nothing is kept */
    if
    :: is_newest -> copy(newest, disk)
    :: else
    fi
}

inline conclude(outcome) { here.row[r] = outcome; mine = mine | of_answer(r); here.head[me] = mine; flush() }

inline leave_to_others(database) {     /* another process is not the one whose chain this was */
    database.head[me] = 0;
    if
    :: database.owner[0] == me -> database.owner[0] = NOBODY
    :: else
    fi;
    if
    :: database.owner[1] == me -> database.owner[1] = NOBODY
    :: else
    fi
}

inline drop_late() { late_by = NONE; late_row = 0; late_attempt = 0; late_head = 0 }

inline another() { good[2 * me + r] = false; r = 0; attempt = 0; goto next }

inline die() { troubles > 0 -> troubles--; goto start }

proctype worker(byte me) {
    byte r, attempt, mine;
    bool is_due[2];
start:                                 /* a process without memory: as it begins, and after any error or kill (`enrol`, `end_life`) */
    atomic {
        has_ended[me] = true; good[2 * me] = false; good[2 * me + 1] = false; r = 0; attempt = 0; mine = 0; is_due[0] = false; is_due[1] = false;
        leave_to_others(base[0]); leave_to_others(base[1]); leave_to_others(disk); leave_to_others(standby);
        if
        :: late_by == me -> late_by = NOBODY; late_head = 0
        :: else
        fi }
end_ready:
    if
    :: atomic { (!all_over || !answered[me]) && !lacks(me, 0) && !lacks(me, 1) -> has_ended[me] = false; seen_life[me] = life; answer(me) }
    :: atomic { old_serves && noted_life[me] < life -> has_ended[me] = false; seen_life[me] = noted_life[me] }     /* it has not left it */
    fi;
end_waiting:                           /* `PostgresEngineJournal.due` */
    if
    :: atomic { is_connected && may_send -> is_due[0] = here.row[0] == READY; is_due[1] = here.row[1] == READY }
    :: atomic { !is_connected || all_over -> goto start }
    fi;
next:                                  /* the age of an intent counts from here, however often it is asked for */
    if
    :: atomic { is_due[0] -> r = 0; is_due[0] = false; attempt = here.attempt[0] + 1; good[2 * me] = true }
    :: atomic { !is_due[0] && is_due[1] -> r = 1; is_due[1] = false; attempt = here.attempt[1] + 1; good[2 * me + 1] = true }
    :: atomic { !is_due[0] && !is_due[1] -> goto start }
    :: atomic { die() }
    fi;
intend:                                /* `FactWriter.append` of an `Intended`, which calls `commit_facts` */
    if
    :: atomic { !is_connected -> goto unknown }
    :: atomic { is_connected && troubles > 0 ->
            troubles--;
            if
            :: true                    /* it does not get there, or it does after we have looked */
            :: is_newest && late_by == NONE -> late_by = me; late_row = r; late_attempt = attempt; late_head = mine
            fi;
            goto unknown }
    :: atomic { is_connected && !chain_is_as_left -> goto unknown }      /* PW001: it came late */
    :: atomic { is_connected && chain_is_as_left && may_send && is_ready(here, r, attempt) ->
            commit(here, r, attempt, me);
            if
            :: flush()
            :: troubles > 0 -> troubles--; goto unknown                  /* it is seen, not yet durable, and its answer is lost */
            fi;
            mine = here.head[me] }
    :: atomic { is_connected && chain_is_as_left && !(may_send && is_ready(here, r, attempt)) -> another() }        /* PW008, PW002 */
    fi;
    goto note;
unknown:                               /* `GuardedSession.reconnect`, `FactWriter._is_committed` */
    if
    :: atomic { !is_newest && (lacks(me, 0) || lacks(me, 1)) -> goto start }       /* `JournalTooOld` */
    :: atomic { !is_newest && !lacks(me, 0) && !lacks(me, 1) -> seen_life[me] = life; answer(me); goto unknown }
    :: atomic { is_connected && may_send ->
            keep();
            if
            :: is_committed -> mine = here.head[me]
            :: !is_committed && chain_is_as_left -> goto intend
            :: !is_committed && !chain_is_as_left -> goto start
            fi }
    :: atomic { die() }
    fi;
note:                                  /* `ProcessSentLog.note`: a line in the file, durable before anything leaves */
    if
    :: atomic { may_note -> noted[2 * me + r] = attempt; unsent[2 * me + r] = false }
    :: atomic { !may_note && (lacks(me, 0) || lacks(me, 1)) -> goto start }
    :: atomic { !may_note && !lacks(me, 0) && !lacks(me, 1) ->           /* `IncarnationChanged`: connect again; is the commit there? */
            seen_life[me] = life; answer(me);
            if
            :: chain_is_as_left -> keep(); goto note
            :: else -> goto start
            fi }
    :: atomic { die() }
    fi;
    if
    :: atomic { may_leave -> assert(!left[r]); left[r] = true }          /* the first byte */
    :: atomic { !may_leave ->          /* `OutcomeKind.NOT_SENT` */
            if
            :: is_connected && is_in_flight && chain_is_as_left -> conclude(READY)
            :: else
            fi;
            if
            :: may_note -> unsent[2 * me + r] = true                     /* `GuardedSession.log_unsent` */
            :: true
            fi;
            goto start }
    :: atomic { die() }
    fi;
    if
    :: atomic {                        /* the gateway's answer: `Concluded`; once the row is in doubt it is a late word, and moves nothing */
            if
            :: is_connected && is_in_flight && chain_is_as_left -> conclude(PAID); another()
            :: else -> goto start
            fi }
    :: atomic { die() }
    fi
}

inline interrupt(r) {
    if
    :: is_left(r) -> assert(intended[r] >= newest.attempt[r]); newest.row[r] = IN_DOUBT
    :: else
    fi
}

active proctype taker() {              /* anybody: `FactWriter.mark_interrupted` */
end:
    do
    :: atomic { is_left(0) || is_left(1) -> interrupt(0); interrupt(1); copy(newest, disk) }
    od
}

#define ages(r) (fresh[r] && newest.row[r] == IN_FLIGHT && newest.owner[r] != NOBODY && !good[2 * newest.owner[r] + r])

active proctype clock() {              /* half of the age passes for the worker before all of it passes for the server */
end:
    do
    :: atomic { (good[0] || good[1]) && troubles > 0 -> troubles--; good[0] = false; good[1] = false }
    :: atomic { (good[2] || good[3]) && troubles > 0 -> troubles--; good[2] = false; good[3] = false }
    :: atomic { ages(0) -> fresh[0] = false }
    :: atomic { ages(1) -> fresh[1] = false }
    od
}

active proctype server() {
end:
    do
    :: atomic { troubles > 0 -> troubles--; copy(disk, newest); drop_late() }          /* a crash: what is not durable is gone */
    :: atomic { promotions > 0 && troubles > 0 && is_behind -> copy(disk, standby) }   /* what is durable arrives there, some time */
    :: atomic { promotions > 0 && troubles > 0 -> promotions--; troubles--; life++; copy(standby, newest); copy(standby, disk);
            old_serves = true; answered[0] = false; answered[1] = false; drop_late() }
    :: atomic { old_serves -> old_serves = false; copy(standby, base[0]) }             /* nobody looks there again */
    :: atomic { late_by != NONE ->     /* `commit_facts`: a process that was killed has not said its end */
            if
            :: roll_is_complete && is_ready(newest, late_row, late_attempt) && (late_by == NOBODY || newest.head[late_by] == late_head) ->
                commit(newest, late_row, late_attempt, late_by);
                if
                :: copy(newest, disk)
                :: true                /* it is seen, not yet durable */
                fi
            :: else
            fi;
            drop_late() }
    od
}

active proctype neighbour() {          /* another process of a host, which sends nothing: `RollCall.answer` */
end:
    do
    :: atomic { !answered[0] && !lacks(0, 0) && !lacks(0, 1) -> answer(0) }
    :: atomic { !answered[1] && !lacks(1, 0) && !lacks(1, 1) -> answer(1) }
    od
}

inline release(r) {                    /* `Journal.release`, of a row that a person settled as not received */
    releases > 0 && roll_is_complete && newest.row[r] == IN_DOUBT ->
        releases--; newest.row[r] = READY; left[r] = false; copy(newest, disk)
}

inline amend(r) {                      /* `submit --amend`: another row is sent in its place, and here no failover loses that */
    troubles > 0 && roll_is_complete && newest.row[r] == READY ->
        troubles--; newest.row[r] = REPLACED; assert(!left[r]); left[r] = true; copy(newest, disk); copy(newest, standby)
}

#define is_unsent(host, r) (unsent[2 * host + r] && newest.row[r] == IN_FLIGHT && newest.attempt[r] == noted[2 * host + r])
#define is_held(host, r) (newest.row[r] == IN_FLIGHT && !is_left(r) && (lacks(host, r) || is_unsent(host, r)))

inline accept_lost(host, r) {
    if
    :: is_unsent(host, r) -> newest.row[r] = READY                       /* nothing of it left, as this host knows */
    :: lacks(host, r) && unsent[2 * host + r] -> noted[2 * host + r] = newest.attempt[r]
    :: lacks(host, r) && !unsent[2 * host + r] ->
        assert(intended[r] >= noted[2 * host + r]); newest.attempt[r] = noted[2 * host + r]; newest.row[r] = IN_DOUBT
    :: else
    fi
}

inline accept_loss(host) {             /* `LossWriter.write`: the lost attempts of this host come in doubt, or hold their row, which is
                                          the same here; and no others */
    has_ended[host] && !answered[host] && (lacks(host, 0) || lacks(host, 1) || is_unsent(host, 0) || is_unsent(host, 1)) &&
    !is_held(host, 0) && !is_held(host, 1) ->
        accept_lost(host, 0); accept_lost(host, 1); copy(newest, disk); answer(host)
}

active proctype person() {
end:
    do
    :: atomic { release(0) } :: atomic { release(1) }
    :: atomic { amend(0) } :: atomic { amend(1) }
    :: atomic { accept_loss(0) } :: atomic { accept_loss(1) }
    od
}

active proctype judge() {              /* when nothing can happen any more, no row is lost: each is paid, replaced or in doubt */
end:
    timeout -> assert(all_over)
}

init {
    atomic {
        newest.row[0] = READY; newest.row[1] = READY; newest.owner[0] = NOBODY; newest.owner[1] = NOBODY;
        copy(newest, base[1]); copy(newest, disk); copy(newest, standby);
        answered[0] = true; answered[1] = true;
        run worker(0); run worker(1)
    }
}
