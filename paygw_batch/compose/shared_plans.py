"""Finds plans in the database of the journal, and keeps them there: an approver on another host sees them."""

import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from paygw_batch.compose.journal import database_place
from paygw_batch.errors import ApprovalError
from paygw_batch.journal import KeptPlan
from paygw_batch.language import say
from paygw_batch.run.approval import Content, PlanDocument, payout_code
from paygw_batch.run.signed_document import ApprovalPolicy, read_document, signatures_of
from paygw_batch.settings.configuration import Settings

_CODE = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class SharedPlan:
    """A plan in the database: the document, and the version that it was read from."""

    document: PlanDocument
    kept: KeptPlan


def code_in(settings: Settings, name: Path) -> str | None:
    """Return the code of a plan that a person typed in the place of a file, with or without blanks; None for a file."""
    if settings.journal.url is None:
        return None
    code = re.sub(r"[ -]", "", str(name)).lower()
    return code if _CODE.fullmatch(code) and not name.exists() else None


def share_plan(settings: Settings, document: PlanDocument, before: KeptPlan | None = None) -> bool:
    """Keep a plan in the database, as the next version of the one `before`; return whether there is a database.

    Raises `ApprovalError` where another person has approved it since it was read.
    """
    if (place := database_place(settings)) is None:
        return False
    from paygw_batch.journal import keep_postgres_plan  # noqa: PLC0415 (psycopg)

    if keep_postgres_plan(place, payout_code(document.content), document.model_dump_json(indent=1), before):
        return True
    raise ApprovalError(
        say("Another person has signed at the same moment: nothing was written."),
        hint=say("Run the same command again."),
    )


def shared_plan(settings: Settings, code: str) -> SharedPlan | None:
    """Return the newest plan with a code in the database; None where there is none, or no database."""
    if (place := database_place(settings)) is None:
        return None
    from paygw_batch.journal import newest_postgres_plan  # noqa: PLC0415 (psycopg)

    if (kept := newest_postgres_plan(place, code)) is None:
        return None
    return SharedPlan(read_document(Path(code), PlanDocument, data=kept.content.encode()), kept)


def required_plan(settings: Settings, code: str) -> SharedPlan:
    """Return the newest plan with a code in the database. Raises `ApprovalError` where there is none."""
    if (found := shared_plan(settings, code)) is None:
        raise ApprovalError(
            say("The database of the journal has no plan {code}.", code=code),
            hint=say(
                "Nothing was approved. A plan is there once `paygw-batch plan` has made it with [journal] url set."
            ),
        )
    return found


def best_plan(
    settings: Settings, content: Content, file: Path, policy: ApprovalPolicy, now: datetime
) -> PlanDocument | None:
    """Return the plan of a payout: in its file or in the database, the one with more approvals; None where none is."""
    named = code_in(settings, file)
    if named is not None and named != payout_code(content):
        raise ApprovalError(
            say("The plan {code} is about other content than this sheet.", code=named),
            hint=say("Nothing was sent. Make a new plan of this sheet, and have it approved."),
        )
    found = [read_document(file, PlanDocument)] if file.exists() else []
    if (shared := shared_plan(settings, payout_code(content))) is not None:
        found.append(shared.document)
    return max(
        found, key=lambda one: (one.content == content, len(signatures_of(one, policy, now).valid)), default=None
    )
