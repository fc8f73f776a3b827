"""Planted bugs of the protocol: in the functions of the database, in its indexes, in statements, in the program."""

from collections.abc import Mapping
from types import MappingProxyType

from paygw_batch.core.lifecycle import Concluded
from paygw_batch.core.outcome import Outcome, OutcomeKind
from paygw_batch.journal.postgres.leasing.chain_writer import ChainWriter, _Fate
from tests.cluster.protocol import ProtocolBug

_WRITER = "paygw_batch.journal.postgres.leasing.chain_writer"
_CHUNKS = "paygw_batch.journal.postgres.leasing.chunk_journal"
_FENCE = "AND g.sealed_at IS NULL AND g.head_seq = u.seq AND g.head_hash = u.hash"
_NO_FENCE = {_FENCE: ""}
_NO_TRIGGER = (
    """CREATE OR REPLACE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'""",
)
_LEFT = [("order_id_pkey",), ("run_unfinished",), ("segment_unsealed",)]
_NOT_MISSED = (("paygw_batch.journal.postgres.verify._UNIQUE_WANTED", _LEFT),)
_WRONG_CLAIM = {
    "m.before = state.state AND": "(m.attempts = 1 OR m.before = state.state) AND",
    "NEW.attempt = state.attempt + m.attempts": "(m.attempts = 1 OR NEW.attempt = state.attempt)",
    "(m.attempts = 0 OR NEW.order_id =": "(true OR NEW.order_id =",
}
"""An intent moves its row wherever that is."""
_REFUSAL = "THEN\n            RAISE EXCEPTION 'a row is no longer where"
_NOT_REFUSED = {
    f"IF cardinality(refused) > 0 {_REFUSAL}": f"IF false {_REFUSAL}",
    "IF refused IS NOT NULL THEN": "IF false THEN",
}
"""Intents are kept wherever their rows are."""
_GUARD = "IF FOUND THEN\n            RAISE EXCEPTION 'an answer is of"
_ANSWERS_OF_OTHERS = {_GUARD: _GUARD.replace("FOUND", "false")}
"""Without this guard of the database no bug of the program can put a row back that another process sent."""
_OF_CHUNK = "WHERE c.number = %s ORDER BY 1"
NO_INDEX = "DROP INDEX fact_one_intent"

NO_CLAIM = ProtocolBug(
    sql={"commit_facts": {**_NO_FENCE, **_NOT_REFUSED}, "move_row": _WRONG_CLAIM}, statements=_NO_TRIGGER
)


def _put_back() -> Concluded:
    return Concluded(Outcome(OutcomeKind.NOT_SENT, "planted"))


def _whenever_it_is_ready(journal: object, age_s: float) -> bool:
    del journal, age_s
    return True


def _always_committed(writer: ChainWriter, before: object, after: object) -> _Fate:
    del writer, before, after
    return _Fate.COMMITTED


BUGS: Mapping[str, ProtocolBug] = MappingProxyType(
    {
        "a lease that is not asked before sending": ProtocolBug(
            patches=((f"{_CHUNKS}.ChunkJournal.may_leave", _whenever_it_is_ready),)
        ),
        "rows in flight are put back": ProtocolBug(
            sql={"commit_facts": _ANSWERS_OF_OTHERS}, patches=((f"{_WRITER}.Interrupted", _put_back),)
        ),
        "no fence": ProtocolBug(sql={"commit_facts": _NO_FENCE}, statements=_NO_TRIGGER),
        "no unique index, no fence, and a wrong claim": ProtocolBug(
            sql=NO_CLAIM.sql, statements=(*_NO_TRIGGER, NO_INDEX), patches=_NOT_MISSED
        ),
        "a takeover puts rows of other chunks in doubt": ProtocolBug(
            rewritten={_OF_CHUNK: "WHERE c.number >= least(%s, 1) ORDER BY 1"}
        ),
        "a takeover leaves what is in flight": ProtocolBug(
            sql={"take_lease": {"p_chain <= 0 OR NOT EXISTS (": "true OR NOT EXISTS ("}}
        ),
        "leases of the living are taken": ProtocolBug(
            sql={"take_lease": {"AND is_alive(old.worker)": "AND false"}},
        ),
        "an answer that is lost is taken for a commit": ProtocolBug(
            patches=((f"{_WRITER}.ChainWriter._fate_of", _always_committed),)
        ),
    }
)
