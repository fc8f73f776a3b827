/* The protocol by which several hosts send two rows of one chunk, for spin: every order of events is tried. Each step names the
   function that it stands for. Two workers, each on a host of its own; one that has no turn is frozen. A taker concludes what the
   dead left. The server crashes; a standby that lags is promoted. A person releases, amends, and accepts a loss.
   What a guard is for shows where it is left out: -DNO_FENCE, -DNO_CLAIM, -DNO_LEFT, -DNO_MAY_LEAVE. */
#ifndef TROUBLES
#define TROUBLES 2                     /* so many things go wrong, of any kind, at any moment; and one row in doubt is released */
#endif
#define NOBODY 2
mtype = { READY, IN_FLIGHT, IN_DOUBT, PAID, REPLACED }

/* What a database knows: states and attempts of rows (`state`), the newest lease of the chunk and its holder (`segment`). */
typedef Database { mtype row[2]; byte attempt[2]; byte segment; byte holder }
Database base, disk, standby;          /* what is seen; what is durable; what the standby has got so far */
byte life;                             /* `database_life()` */
byte seen_life[2];                     /* the life in which a worker made its connection */
bool answered[2];                      /* `roll_answer`: this host has shown what left in this life */
byte noted[4];                         /* `note`: the newest attempt that may have left, by host and row */
bool good[2], alive[2];                /* `Heartbeat.is_good` by the worker's clock, for half of a lease; `is_alive` by the server's */
bool has_ended[2];                     /* no process of this host lives */
byte troubles = TROUBLES, promotions = 1, releases = 1;

bool left[2];                          /* the truth: a first byte has left since a person released the row */
byte intended[2];                      /* and the newest attempt whose intent was ever committed */

#define copy(from, to) \
    to.row[0] = from.row[0]; to.row[1] = from.row[1]; to.attempt[0] = from.attempt[0]; to.attempt[1] = from.attempt[1]; \
    to.segment = from.segment; to.holder = from.holder
#define is_behind (standby.row[0] != disk.row[0] || standby.row[1] != disk.row[1] || standby.attempt[0] != disk.attempt[0] || \
    standby.attempt[1] != disk.attempt[1] || standby.segment != disk.segment || standby.holder != disk.holder)
#define is_over(r) (base.row[r] == PAID || base.row[r] == IN_DOUBT || base.row[r] == REPLACED)
#define all_over (is_over(0) && is_over(1))
#define roll_is_complete (answered[0] && answered[1])                    /* trigger `refuse_lease` */
#define is_free (base.holder == NOBODY || !alive[base.holder])           /* `take_lease` */
#define is_connected (seen_life[me] == life)
#define is_in_flight (base.row[r] == IN_FLIGHT && base.attempt[r] == attempt)

#ifdef NO_FENCE
#define is_fenced false
#else
#define is_fenced (base.segment != mine || base.holder != me)            /* `commit_facts`: sealed, or not where it was left */
#endif
#ifdef NO_CLAIM
#define is_claimed true
#else
#define is_claimed (base.row[r] == READY && base.attempt[r] == attempt - 1)      /* `move_row` */
#endif
#ifdef NO_LEFT
#define lacks(host, r) false
#else
#define lacks(host, r) (noted[2 * (host) + r] > base.attempt[r])         /* `check_left`: a commit is missing */
#endif
#ifdef NO_MAY_LEAVE
#define may_leave true
#else
#define may_leave good[me]                                               /* `ChainWriter.may_leave` */
#endif

inline interrupt(r) {                  /* `_taken_once`: what the lease before left in flight comes in doubt */
    if
    :: base.row[r] == IN_FLIGHT -> assert(intended[r] >= base.attempt[r]); base.row[r] = IN_DOUBT
    :: else
    fi
}

inline take_over(holder_now) {         /* `take_lease`, one transaction */
    base.segment++; base.holder = holder_now; interrupt(0); interrupt(1); copy(base, disk)
}

inline die() { troubles > 0 -> troubles--; alive[me] = false; goto start }

proctype worker(byte me) {
    byte mine, r, attempt;
    bool is_due[2];
start:                                 /* no lease and no memory: as it begins, and after any error or kill */
    atomic { has_ended[me] = true; good[me] = false; mine = 0; r = 0; attempt = 0; is_due[0] = false; is_due[1] = false }
end_ready:
    atomic { (!all_over || !answered[me]) && !lacks(me, 0) && !lacks(me, 1) -> has_ended[me] = false; seen_life[me] = life; answered[me] = true }  /* `RollCall.answer` */
end_waiting:
    if
    :: atomic { is_connected && roll_is_complete && is_free ->           /* `ChainWriter.lease_chunks`, then `due_of_chunk` */
            take_over(me); mine = base.segment; alive[me] = true; good[me] = true;
            is_due[0] = base.row[0] == READY; is_due[1] = base.row[1] == READY }
    :: atomic { !is_connected || all_over -> goto start }
    fi;
next:
    if
    :: atomic { is_due[0] -> r = 0; is_due[0] = false; attempt = base.attempt[0] + 1 }
    :: atomic { !is_due[0] && is_due[1] -> r = 1; is_due[1] = false; attempt = base.attempt[1] + 1 }
    :: atomic { !is_due[0] && !is_due[1] ->                              /* `finish_chunk` */
            if
            :: is_connected && base.segment == mine && base.holder == me -> base.holder = NOBODY; copy(base, disk)
            :: else
            fi;
            goto start }
    :: atomic { die() }
    fi;
intend:                                /* `ChainWriter.append` of an `Intended`, which calls `commit_facts` */
    if
    :: atomic { !is_connected || troubles > 0 ->
            if
            :: is_connected -> troubles--                                /* it does not get there */
            :: else
            fi;
            goto unknown }
    :: atomic { is_connected && is_fenced -> goto start }                /* PW001 */
    :: atomic { is_connected && !is_fenced && !is_claimed -> goto next } /* PW002 */
    :: atomic { is_connected && !is_fenced && is_claimed ->
            base.row[r] = IN_FLIGHT; base.attempt[r] = attempt; intended[r] = attempt; alive[me] = true; good[me] = true;
            if
            :: copy(base, disk)
            :: troubles > 0 -> troubles--; goto unknown                  /* it is seen, not yet durable, and its answer is lost */
            fi }
    fi;
    goto leave;
unknown:                               /* `GuardedSession.reconnect`, then `_fate_of` */
    if
    :: atomic { !is_connected && (lacks(me, 0) || lacks(me, 1)) -> goto start }    /* `JournalWentBack` */
    :: atomic { !is_connected && !lacks(me, 0) && !lacks(me, 1) -> seen_life[me] = life; answered[me] = true; goto unknown }
    :: atomic { is_connected && roll_is_complete ->
            copy(base, disk);          /* `flush`: what was read is durable from here on */
            if
            :: is_fenced -> goto start
            :: !is_fenced && is_in_flight
            :: !is_fenced && !is_in_flight -> goto intend
            fi }
    :: atomic { die() }
    fi;
leave:
    if
    :: atomic { may_leave -> noted[2 * me + r] = attempt; assert(!left[r]); left[r] = true }    /* `note`, the first byte */
    :: atomic { !may_leave ->          /* `OutcomeKind.NOT_SENT` */
            if
            :: is_connected && !is_fenced && is_in_flight -> base.row[r] = READY; copy(base, disk)
            :: else
            fi;
            goto start }
    :: atomic { die() }
    :: atomic { troubles > 0 -> noted[2 * me + r] = attempt; die() }
    fi;
    if
    :: atomic {                        /* the answer: `Concluded`; once the lease is lost it is a late word, and moves nothing */
            if
            :: is_connected && !is_fenced && is_in_flight -> base.row[r] = PAID; copy(base, disk); goto next
            :: else -> goto start
            fi }
    :: atomic { die() }
    fi
}

active proctype taker() {              /* `ChainWriter.conclude`, as `resume` calls it */
end:
    do
    :: atomic { roll_is_complete && base.holder != NOBODY && !alive[base.holder] -> take_over(NOBODY) }
    od
}

active proctype clock() {              /* half of a lease passes for the worker before all of it passes for the server */
end:
    do
    :: atomic { good[0] && troubles > 0 -> troubles--; good[0] = false }
    :: atomic { good[1] && troubles > 0 -> troubles--; good[1] = false }
    :: atomic { !good[0] && alive[0] -> alive[0] = false }
    :: atomic { !good[1] && alive[1] -> alive[1] = false }
    od
}

active proctype server() {
end:
    do
    :: atomic { troubles > 0 -> troubles--; copy(disk, base) }           /* a crash: what is not durable is gone */
    :: atomic { promotions > 0 && troubles > 0 && is_behind -> copy(disk, standby) }   /* what is durable arrives there, some time */
    :: atomic { promotions > 0 && troubles > 0 -> promotions--; troubles--; life++; copy(standby, base); copy(standby, disk);
            alive[0] = false; alive[1] = false; answered[0] = false; answered[1] = false }
    od
}

inline release(r) {                    /* `Journal.release`, of a row that a person settled as not received */
    releases > 0 && roll_is_complete && base.row[r] == IN_DOUBT ->
        releases--; base.row[r] = READY; left[r] = false; copy(base, disk)
}

inline amend(r) {                      /* `submit --amend`: another row is sent in its place, and here no failover loses that */
    troubles > 0 && roll_is_complete && base.row[r] == READY ->
        troubles--; base.row[r] = REPLACED; assert(!left[r]); left[r] = true; copy(base, disk); copy(base, standby)
}

inline accept_lost(host, r) {
    if
    :: lacks(host, r) -> assert(intended[r] >= noted[2 * host + r]); base.attempt[r] = noted[2 * host + r]; base.row[r] = IN_DOUBT
    :: else
    fi
}

inline accept_loss(host) {             /* `LossWriter.write`: the lost attempts of this host come in doubt, or hold
                                          their row, which is the same here; and no others */
    has_ended[host] && (lacks(host, 0) || lacks(host, 1)) && is_free ->
        take_over(NOBODY); accept_lost(host, 0); accept_lost(host, 1); copy(base, disk); answered[host] = true
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
        base.row[0] = READY; base.row[1] = READY; base.holder = NOBODY; copy(base, disk); copy(base, standby);
        answered[0] = true; answered[1] = true;
        run worker(0); run worker(1)
    }
}
