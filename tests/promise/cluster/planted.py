"""Planted bugs of the protocol: in the database's functions and indexes, and in the program."""

from collections.abc import Mapping
from types import MappingProxyType

from paygw_batch.core.lifecycle import Concluded
from paygw_batch.core.outcome import Outcome, OutcomeKind
from paygw_batch.journal.postgres.fact_writer import FactWriter, StagedFacts
from tests.promise.cluster.protocol import ProtocolBug

_WRITER = "paygw_batch.journal.postgres.fact_writer"
_NOT_MISSED = (("paygw_batch.journal.postgres.verify._UNIQUE_WANTED", [("order_id_pkey",), ("run_unfinished",)]),)
_WRONG_CLAIM = {
    "m.before = state.state AND": "(m.attempts = 1 OR m.before = state.state) AND",
    "NEW.attempt = state.attempt + m.attempts": "(m.attempts = 1 OR NEW.attempt = state.attempt)",
    "(m.attempts = 0 OR NEW.order_id =": "(true OR NEW.order_id =",
}
"""An intent moves its row in any state."""
_REFUSAL = "THEN\n            RAISE EXCEPTION 'a row is no longer where"
_NOT_REFUSED = {
    f"IF cardinality(refused) > 0 {_REFUSAL}": f"IF false {_REFUSAL}",
    "IF refused IS NOT NULL THEN": "IF false THEN",
    "OR (me.run IS NULL AND": "OR (false AND",
}
"""Intents are kept in any state of their rows, whoever holds the decision lock."""
_GUARD = "IF FOUND THEN\n            RAISE EXCEPTION 'an answer is of"
_ANSWERS_OF_OTHERS = {_GUARD: _GUARD.replace("FOUND", "false")}
"""Without this guard of the database, a bug of the program can make another process's row ready again."""
NO_INDEX = "DROP INDEX fact_one_intent"

NO_CLAIM = ProtocolBug(sql={"commit_facts": _NOT_REFUSED, "move_row": _WRONG_CLAIM})


def _treat_as_unsent() -> Concluded:
    return Concluded(Outcome(OutcomeKind.NOT_SENT, "planted"))


def _accept_any_age(writer: FactWriter, age_s: float) -> bool:
    del writer, age_s
    return True


def _assume_committed(writer: FactWriter, before: object, after: object) -> bool:
    del writer, before, after
    return True


def _take_all_rows(writer: FactWriter, staged: StagedFacts) -> list[tuple[int, int, str, bool]]:
    del writer
    return [(seq, 0, "", True) for seq in range(staged.before.seq + 1, staged.end.seq + 1)]


BUGS: Mapping[str, ProtocolBug] = MappingProxyType(
    {
        "an intent leaves however old it is": ProtocolBug(
            patches=((f"{_WRITER}.FactWriter.may_leave", _accept_any_age),)
        ),
        "rows in flight are put back": ProtocolBug(
            sql={"commit_facts": _ANSWERS_OF_OTHERS}, patches=((f"{_WRITER}.Interrupted", _treat_as_unsent),)
        ),
        "no unique index, no refusal, and a wrong claim": ProtocolBug(
            sql=NO_CLAIM.sql, statements=(NO_INDEX,), patches=_NOT_MISSED
        ),
        "an answer that is lost is taken for a commit": ProtocolBug(
            patches=(
                (f"{_WRITER}.FactWriter._is_committed", _assume_committed),
                (f"{_WRITER}.FactWriter._find_added_facts", _take_all_rows),
            )
        ),
        "a commit is no sign of life": ProtocolBug(sql={"commit_facts": {", seen_at = clock_timestamp()": ""}}),
        "rows in flight are never left": ProtocolBug(sql={"is_left": {"NOT is_alive(p_process)": "false"}}),
        "the decision lock of the living is taken": ProtocolBug(
            sql={"take_desk": {"AND is_alive(holder)": "AND false"}}
        ),
    }
)
