"""Planted bugs of the protocol: in the functions of the database, in its indexes, in statements, in the program."""

from collections.abc import Mapping
from types import MappingProxyType

from paygw_batch.core.lifecycle import Concluded
from paygw_batch.core.outcome import Outcome, OutcomeKind
from paygw_batch.journal.postgres.leasing.lease_writer import LeaseWriter, _Fate
from tests.cluster.protocol import ProtocolBug

_WRITER = "paygw_batch.journal.postgres.leasing.lease_writer"
_FENCE = "AND g.sealed_at IS NULL AND g.head_seq = u.seq AND g.head_hash = u.hash"
_NO_FENCE = {_FENCE: ""}
_NO_TRIGGER = (
    """CREATE OR REPLACE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'""",
)
_NOT_MISSED = (("paygw_batch.journal.postgres.replay._UNIQUE_WANTED", [("order_id_pkey",), ("segment_unsealed",)]),)
_CLAIM = """ AND t.facts = u.before
        AND (u.state <> 'in_flight' OR t.state = 'in_flight' OR (t.state = 'ready' AND t.attempt = u.attempt - 1))"""
_WRONG_CLAIM = {
    _CLAIM: "",
    "ON CONFLICT (instruction) DO NOTHING": """ON CONFLICT (instruction) DO UPDATE SET facts = excluded.facts,
        state = excluded.state, attempt = excluded.attempt, order_id = excluded.order_id""",
}
_OF_CHUNK = "WHERE c.number = %s AND p.state = 'in_flight'"
NO_INDEXES = ("DROP INDEX fact_one_intent", "DROP INDEX fact_nth")

NO_CLAIM = ProtocolBug(sql={"commit_facts": {**_NO_FENCE, **_WRONG_CLAIM}}, statements=_NO_TRIGGER)


def _put_back() -> Concluded:
    return Concluded(Outcome(OutcomeKind.NOT_SENT, "planted"))


def _always_committed(writer: LeaseWriter, staged: object) -> _Fate:
    del writer, staged
    return _Fate.COMMITTED


BUGS: Mapping[str, ProtocolBug] = MappingProxyType(
    {
        "rows in flight are put back": ProtocolBug(patches=((f"{_WRITER}.Interrupted", _put_back),)),
        "no fence": ProtocolBug(sql={"commit_facts": _NO_FENCE}, statements=_NO_TRIGGER),
        "no unique index, no fence, and a wrong claim": ProtocolBug(
            sql={"commit_facts": {**_NO_FENCE, **_WRONG_CLAIM}},
            statements=(*_NO_TRIGGER, *NO_INDEXES),
            patches=_NOT_MISSED,
        ),
        "a takeover puts rows of other chunks in doubt": ProtocolBug(
            rewritten={_OF_CHUNK: "WHERE c.number >= least(%s, 1) AND p.state = 'in_flight'"}
        ),
        "a takeover leaves what is in flight": ProtocolBug(
            sql={"take_lease": {"p_chain <= 0 OR NOT EXISTS (": "true OR NOT EXISTS ("}}
        ),
        "leases of the living are taken": ProtocolBug(
            sql={"take_lease": {"AND is_alive(old.worker)": "AND false"}},
        ),
        "an answer that is lost is taken for a commit": ProtocolBug(
            patches=((f"{_WRITER}.LeaseWriter._fate_of", _always_committed),)
        ),
    }
)
