"""Maker and checker in the scenario: plans approved by others, by nobody, by their maker, or too early."""

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING

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
from paygw_batch.approval.signed_document import ApprovalPolicy, approve, sign_document
from paygw_batch.core.choices import Choices
from paygw_batch.errors import ApprovalError, PeopleForgotten
from paygw_batch.journal.journal import JournalReader
from paygw_batch.submit.plan import Plan, plan_submission
from tests.promise.simulation.disk import ENDPOINT
from tests.promise.simulation.gateway import QUARANTINE_H
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
            plan = plan_submission(
                scenario.validated(about),
                reader,
                Choices(amend=scenario.amends),
                now=scenario.now,
                quarantine_h=QUARANTINE_H,
            )
        except PeopleForgotten:
            return
        maker = key_of(MAKER)
        content, people = self._content(plan, reader)
        document = sign_document(build_plan(content, [], maker.public, scenario.now(), people=people), maker)
        said_yes = []
        for person in approvers:
            try:
                document = approve(document, key_of(person), self.policy, scenario.now())
            except ApprovalError:
                continue
            said_yes.append((person, scenario.now()))
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
        said_yes = self._said_yes.get(sheet, [])
        people = {
            person for person, at in said_yes if person != MAKER and 0 <= (now - at).total_seconds() < EXPIRES_H * 3600
        }
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
