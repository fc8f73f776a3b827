"""Maker and checker in the simulated world: plans that are approved by others, by nobody, by their maker, too early."""

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from paygw_batch.approval.approval_keys import ApprovalKey, people_of, public_key_of
from paygw_batch.approval.plan_document import (
    NOT_ASKED_FOR,
    Approved,
    Content,
    PlanDocument,
    check_plan,
    content_and_people,
    needs_approval,
    unsigned_plan,
)
from paygw_batch.approval.signed_document import ApprovalPolicy, approve, signed
from paygw_batch.core.choices import Choices
from paygw_batch.errors import ApprovalError, PeopleForgotten
from paygw_batch.journal.journal import JournalReader
from paygw_batch.submit.plan import Plan, plan_submission
from tests.promise.simulation.disk import ENDPOINT
from tests.promise.simulation.gateway import QUARANTINE_H
from tests.promise.simulation.sheets import MINOR_UNITS

if TYPE_CHECKING:
    from tests.promise.simulation.world import SimWorld

MAKER = "amina"
PEOPLE = (MAKER, "brian", "carol")
EXPIRES_H = 20.0


@cache
def key_of(person: str) -> ApprovalKey:
    """Return the key of a person."""
    key = Ed25519PrivateKey.from_private_bytes(person.encode().ljust(32, b"."))
    return ApprovalKey(public_key_of(key.public_key()), key.sign)


class Approvals:
    """The plans of a world, as their files are, and who said yes to what, and when."""

    def __init__(self, world: "SimWorld") -> None:
        self._world = world
        self.policy = ApprovalPolicy(
            needed=world.rng.choice((1, 2)),
            from_amount={"KES": Decimal(0)},
            expires_h=EXPIRES_H,
            # The maker may approve what others make: nobody else here makes anything, so no approval of hers counts.
            people=people_of(
                {MAKER: key_of(MAKER).public.text}, {person: key_of(person).public.text for person in PEOPLE}
            ),
        )
        self._files: dict[str, str] = {}
        self._said_yes: dict[str, list[tuple[str, datetime]]] = {}

    def prepare(self, sheet: str, *, properly: bool) -> None:
        """Make the plan of a sheet, and have people approve it, or something else."""
        world, rng = self._world, self._world.rng
        if properly:
            approvers: Sequence[str] = PEOPLE[1:]
        else:
            approvers = rng.choice(
                ((), (MAKER,), ("brian",), ("brian", "brian"), (MAKER, "brian"), ("brian", "carol"), ("brian", "carol"))
            )
        # Sometimes the plan of another sheet gets this one's name.
        about = "longer" if not properly and rng.random() < 0.2 else sheet
        reader = world.disk.reader()
        try:
            plan = plan_submission(
                world.validated(about), reader, Choices(amend=world.amends), now=world.now, quarantine_h=QUARANTINE_H
            )
        except PeopleForgotten:
            return
        maker = key_of(MAKER)
        content, people = self._content(plan, reader)
        document = signed(unsigned_plan(content, [], maker.public, world.now(), people=people), maker)
        said_yes = []
        for person in approvers:
            try:
                document = approve(document, key_of(person), self.policy, world.now())
            except ApprovalError:
                continue
            said_yes.append((person, world.now()))
        self._said_yes[sheet] = said_yes if about == sheet else []
        self._files[sheet] = document.model_dump_json()

    def required(self, sheet: str, plan: Plan, journal: JournalReader) -> Approved:
        """Return who approved what a plan would open. Raises `ApprovalError` where not enough people did."""
        if plan.existing is not None:
            return NOT_ASKED_FOR
        world, now = self._world, self._world.now()
        content, _ = self._content(plan, journal)
        if not needs_approval(content, self.policy):
            return NOT_ASKED_FOR
        said_yes = self._said_yes.get(sheet, [])
        people = {
            person for person, at in said_yes if person != MAKER and 0 <= (now - at).total_seconds() < EXPIRES_H * 3600
        }
        world.judge.approved[sheet] = people if len(people) >= self.policy.needed else set()
        if sheet not in self._files:
            raise ApprovalError("There is no plan.", hint="Make one.")
        document = PlanDocument.model_validate_json(self._files[sheet])
        opened = next(iter(journal.batches(plan_sha256=document.digest())), None)
        return check_plan(document, content, self.policy, now, used=opened)

    def _content(self, plan: Plan, journal: JournalReader) -> tuple[Content, str]:
        return content_and_people(
            plan.validated,
            plan.sent_before,
            amended=len(plan.amendments),
            endpoint=ENDPOINT.name,
            journal_id=journal.head().journal_id,
            minor_units=MINOR_UNITS,
        )
