"""Plans and orders of several people in a scenario: approved by others, nobody or their maker, too early or late."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from paygw_batch.approval.approval_keys import ApprovalKey, build_people, encode_public_key
from paygw_batch.approval.plan_document import (
    NO_APPROVAL,
    PlanApproval,
    PlanContent,
    PlanDocument,
    build_content_and_people,
    build_plan,
    check_plan,
    needs_approval,
)
from paygw_batch.approval.signed_document import ApprovalPolicy, Document, approve, sign_document
from paygw_batch.clock import timestamp
from paygw_batch.core.choices import Choices
from paygw_batch.core.lifecycle import Basis, State
from paygw_batch.errors import ApprovalError, PeopleForgotten, UsageError
from paygw_batch.journal.journal import JournalReader
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal
from paygw_batch.journal.values import BatchRecord
from paygw_batch.settle.match_statement import StatementMatcher
from paygw_batch.settle.resolve import Settlement, check_releasable, check_settlements, settle
from paygw_batch.settle.row_order import (
    Decision,
    RowAct,
    RowContent,
    RowOrder,
    order_in_force,
    row_content,
    unsigned_order,
)
from paygw_batch.settle.statement import Statement, read_statement
from paygw_batch.submit.plan import Plan, plan_submission
from tests.promise.simulation.disk import ENDPOINT
from tests.promise.simulation.gateway import QUARANTINE_H, WORDS
from tests.promise.simulation.judge import row_of
from tests.promise.simulation.sheets import MINOR_UNITS

if TYPE_CHECKING:
    from tests.promise.simulation.scenario import Scenario

MAKER = "amina"
PEOPLE = (MAKER, "brian", "carol")
EXPIRES_H = 20.0


@cache
def key_of(person: str) -> ApprovalKey:
    key = Ed25519PrivateKey.from_private_bytes(person.encode().ljust(32, b"."))
    return ApprovalKey(encode_public_key(key.public_key()), key.sign)


def approve_by(
    document: Document, people: Sequence[str], policy: ApprovalPolicy, now: datetime
) -> tuple[Document, list[tuple[str, datetime]]]:
    """Let people approve a document, as far as they may. Return it, and who has, when."""
    said_yes = []
    for person in people:
        with suppress(ApprovalError):
            document = approve(document, key_of(person), policy, now)
            said_yes.append((person, now))
    return document, said_yes


def recent_approvers(said_yes: Sequence[tuple[str, datetime]], now: datetime) -> set[str]:
    return {person for person, at in said_yes if 0 <= (now - at).total_seconds() < EXPIRES_H * 3600} - {MAKER}


class Approvals:
    """The plans of a scenario as files, with the approvals of each and their times."""

    def __init__(self, scenario: "Scenario") -> None:
        self._scenario = scenario
        self.policy = ApprovalPolicy(
            needed=scenario.rng.choice((1, 2)),
            from_amount={"KES": Decimal(0)},
            expires_h=EXPIRES_H,
            # The maker may approve others' plans. Nobody else makes plans here, so no approval by the maker counts.
            people=build_people(
                {MAKER: key_of(MAKER).public.text}, {person: key_of(person).public.text for person in PEOPLE}
            ),
        )
        self._files: dict[str, str] = {}
        self._said_yes: dict[str, list[tuple[str, datetime]]] = {}

    def prepare(self, sheet: str, *, properly: bool) -> None:
        """Make the plan of a sheet and have people approve it, or a variation of it."""
        scenario, rng = self._scenario, self._scenario.rng
        if properly:
            approvers: Sequence[str] = PEOPLE[1:]
        else:
            approvers = rng.choice(
                ((), (MAKER,), ("brian",), ("brian", "brian"), (MAKER, "brian"), ("brian", "carol"), ("brian", "carol"))
            )
        # Sometimes another sheet's plan gets the name of this one.
        about = "longer" if not properly and rng.random() < 0.2 else sheet
        reader = scenario.disk.reader()
        try:
            checked, choices = scenario.validated(about), Choices(amend=scenario.amends)
            plan = plan_submission(checked, reader, choices, now=scenario.now, quarantine_h=QUARANTINE_H)
        except PeopleForgotten:
            return
        maker = key_of(MAKER)
        content, people = self._content(plan, reader)
        document = sign_document(build_plan(content, [], maker.public, scenario.now(), people=people), maker)
        document, said_yes = approve_by(document, approvers, self.policy, scenario.now())
        self._said_yes[sheet] = said_yes if about == sheet else []
        self._files[sheet] = document.model_dump_json()

    def required(self, sheet: str, plan: Plan, journal: JournalReader) -> PlanApproval:
        """Return the approvals of a plan. Raises `ApprovalError` if there are too few."""
        if plan.existing is not None:
            return NO_APPROVAL
        scenario, now = self._scenario, self._scenario.now()
        content, _ = self._content(plan, journal)
        if not needs_approval(content, self.policy):
            return NO_APPROVAL
        people = recent_approvers(self._said_yes.get(sheet, []), now)
        scenario.judge.approved[sheet] = people if len(people) >= self.policy.needed else set()
        if sheet not in self._files:
            raise ApprovalError("There is no plan.", hint="Make one.")
        document = PlanDocument.model_validate_json(self._files[sheet])
        opened = next(iter(journal.batches(plan_sha256=document.digest())), None)
        return check_plan(document, content, self.policy, now, opened_batch=opened)

    def _content(self, plan: Plan, journal: JournalReader) -> tuple[PlanContent, str]:
        return build_content_and_people(
            plan.validated,
            plan.sent_before,
            amended=len(plan.amendments),
            endpoint=ENDPOINT.name,
            journal_id=journal.head().journal_id,
            minor_units=MINOR_UNITS,
        )


@dataclass(frozen=True, slots=True)
class MadeOrder:
    """An order as a file, with its approvals and their times."""

    order: RowOrder
    said_yes: Sequence[tuple[str, datetime]]


class Orders:
    """The orders of a scenario to settle or release rows. Each may be carried out at once, much later, or again."""

    def __init__(self, scenario: "Scenario", policy: ApprovalPolicy) -> None:
        self._scenario = scenario
        self._policy = policy
        self._made: list[MadeOrder] = []

    def settle(self, journal: SqliteJournal, record: BatchRecord, words: list[tuple[int, Settlement]]) -> None:
        settlements = [settlement for _, settlement in words]
        try:
            check_settlements(journal, record, settlements, quarantine_h=QUARANTINE_H, now=self._scenario.now)
        except UsageError:
            return
        if settlements:
            self._decide(journal, record, [Decision.from_settlement(one) for one in settlements])

    def release(self, journal: SqliteJournal, record: BatchRecord) -> None:
        """Release rejected rows, except those whose early rejection the gateway's record contradicts."""
        judge, decisions = self._scenario.judge, []
        for row in journal.rows(record.number, states={State.REJECTED}):
            number = row_of(row.client_orderid)
            if number not in judge.called_early or judge.rows[number].nonce not in judge.paid_nonces:
                decisions.append(Decision(row.row, RowAct.RELEASE, "looked at"))
        if decisions:
            self._decide(journal, record, decisions)

    def settle_forged(self, journal: SqliteJournal, record: BatchRecord, settlements: list[Settlement]) -> bool:
        """Make an order with a forged statement of the gateway, carry it out, and return whether that worked.

        The maker names an existing statement or none. The approvers check nothing.
        """
        typing, now = self._scenario.typing, self._scenario.now()
        statement = None
        if self._scenario.statements and typing.random() < 0.5:
            statement = read_statement(self._scenario.statements[-1].path, {}, encoding=None)
        decisions = [Decision.from_settlement(settlement) for settlement in settlements]
        content = row_content(journal, record, decisions, statement=statement, endpoint=ENDPOINT.name)
        is_untrue = int(content.rows[0].client_orderid.encode().hex(), 16) % 3 == len(settlements) % 3
        if is_untrue:  # a person's statement about attempts that were sent long before
            early = timestamp(now - timedelta(days=30))
            rows = [row.model_copy(update={"sent_at": early, "basis": Basis.PERSON}) for row in content.rows]
            content = content.model_copy(update={"rows": rows})
        try:
            self._settle(journal, self._signed(content, PEOPLE[1:]))
        except (ApprovalError, UsageError):
            return False
        if is_untrue:
            raise self._scenario.judge.found("I17", "an order was carried out that gives its rows another time")
        return True

    def _decide(self, journal: SqliteJournal, record: BatchRecord, decisions: Sequence[Decision]) -> None:
        """Make an order that some people approve. Then carry out the newest order, an older one, or none."""
        content, rng = row_content(journal, record, decisions, endpoint=ENDPOINT.name), self._scenario.rng
        both = PEOPLE[1:]
        self._made.append(self._signed(content, rng.choice(((), (MAKER,), ("brian",), both, both, both))))
        if rng.random() < 0.2:
            return
        made = self._made[-1] if rng.random() < 0.7 else rng.choice(self._made)
        try:
            if made.order.is_release:
                self._release(journal, made)
            else:
                self._settle(journal, made)
        except (ApprovalError, UsageError):
            return

    def _signed(self, content: RowContent, approvers: Sequence[str]) -> MadeOrder:
        now = self._scenario.now()
        order = sign_document(unsigned_order(content, key_of(MAKER).public, now), key_of(MAKER))
        return MadeOrder(*approve_by(order, approvers, self._policy, now))

    def _settle(self, journal: SqliteJournal, made: MadeOrder) -> None:
        scenario, order = self._scenario, made.order
        accepted = self._in_force(journal, order)
        if order.cites_gateway:
            terms: dict[str, Any] = {"words": WORDS, "minor_units": MINOR_UNITS, "quarantine_h": QUARANTINE_H}
            reader = StatementMatcher(journal, accepted.batch, **terms, now=scenario.now)
            order.require_confirmed_by(self._statement(order), reader.match)
        check_settlements(journal, accepted.batch, order.settlements, quarantine_h=QUARANTINE_H, now=scenario.now)
        self._check_approval(made)
        states = {row.row: row for row in journal.rows(accepted.batch.number)}
        numbers = {settlement.row: row_of(states[settlement.row].client_orderid) for settlement in order.settlements}
        for settlement in order.settlements:
            was_ready = states[settlement.row].state is State.READY
            scenario.judge.settle(numbers[settlement.row], settlement.resolution, was_ready=was_ready)
        words, signed = order.settlements, accepted.signed_order
        settle(journal, accepted.batch, words, by=accepted.by, now=scenario.now, order=signed)
        scenario.judge.held -= set(numbers.values())

    def _in_force(self, journal: SqliteJournal, order: RowOrder) -> Any:
        return order_in_force(order, journal, self._policy, self._scenario.now(), by="amina", endpoint=ENDPOINT.name)

    def _statement(self, order: RowOrder) -> Statement | None:
        """Return the statement that an order names, read and verified again."""
        for file in self._scenario.statements:
            one = read_statement(file.path, {}, encoding=None, rule=self._scenario.statement_rule)
            if one.sha256 == order.content.statement_sha256:
                return one
        return None

    def _release(self, journal: SqliteJournal, made: MadeOrder) -> None:
        scenario, order = self._scenario, made.order
        accepted = self._in_force(journal, order)
        batch, numbers = accepted.batch, order.numbers
        check_releasable(journal, batch, numbers, quarantine_h=QUARANTINE_H, now=scenario.now)
        self._check_approval(made)
        rows = [row_of(row.client_orderid) for row in journal.rows(batch.number, numbers=numbers)]
        released = partial(journal.release, batch.number, list(numbers), cutoff=scenario.cutoff(journal))
        suffix = scenario.rng.random() < 0.7
        released(suffix=suffix, by=accepted.by, at=scenario.at(), order=accepted.signed_order)
        for number in rows:
            scenario.judge.release(number)

    def _check_approval(self, made: MadeOrder) -> None:
        """I12: an order is valid only with recent approvals of enough people other than its maker."""
        people = recent_approvers(made.said_yes, self._scenario.now())
        if len(people) < self._policy.needed:
            raise self._scenario.judge.found("I12", f"an order is carried out by the word of {sorted(people)}")
