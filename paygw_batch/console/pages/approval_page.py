"""Shows a payout before it is sent: its maker signs it, another person approves it, and it is started."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from starlette.responses import Response

from paygw_batch.compose.actions.check_payout import MEANT, MENDED
from paygw_batch.compose.actions.follow_payout import running_now
from paygw_batch.compose.actions.payout_folder import PayoutFolder
from paygw_batch.compose.actions.start_run import last_summary, start_run, started_run
from paygw_batch.compose.approvals import required_policy
from paygw_batch.compose.operator import in_words
from paygw_batch.console.pages.document_signing import (
    approved_by,
    enough_approve,
    form_of_approver,
    form_of_maker,
    has_approved,
    signatures_now,
    signed_by_maker,
)
from paygw_batch.console.pages.preparing import RUNS, changing, checked, checked_or_reading, folder, opened_batch
from paygw_batch.console.permissions import Act
from paygw_batch.console.visits import Visit
from paygw_batch.errors import UsageError
from paygw_batch.language import mark, say
from paygw_batch.report.plan_page import comparison, differences, kinds_of_warnings
from paygw_batch.run.approval import PlanDocument, PlanFinding, needs_approval, payout_code
from paygw_batch.run.signed_document import write_document
from paygw_batch.sheet.check.catalogue import WARNINGS, meaning_of
from paygw_batch.sheet.check.mending import LEFT_OUT

SHOWN_FINDINGS = 200
"""How many changes of one kind a page shows; the most dangerous are first."""
_CORRECTIONS = frozenset({MENDED, LEFT_OUT, MEANT})
"""The codes of corrections among the findings of a plan."""
_OPEN_AT_FIRST = 2
_OLD = mark("The page is too old: something was changed since. Open it again, and look once more.")


def payout_plan(visit: Visit) -> Response:
    """Show the payout to the person who prepared it and to the one who approves it."""
    found = folder(visit)
    summary, document = checked_or_reading(visit, found), found.plan or found.draft
    if summary is not None and found.plan is not None and (batch := opened_batch(visit, summary)) is not None:
        return visit.go_to(f"/payouts/{batch}")
    if summary is None or summary["error"] is not None or document is None:
        return visit.go_to(f"/sheets/{found.number}")
    stage = stage_of(visit, found)
    return visit.page("plan.html", **_shown(visit, found, document, summary, stage))


def sign(visit: Visit) -> Response:
    """Sign the payout as its maker."""
    with changing(visit) as found:
        checked(visit, found)
        draft = found.draft
        if draft is None or payout_code(draft.content) != visit.form.get("code"):
            raise UsageError(say(_OLD), hint="")
        if found.plan is None:
            write_document(signed_by_maker(visit, draft), found.plan_file)
            found.note(replace(found.uploaded, sent_back=""))
    return visit.go_to(f"/sheets/{found.number}/plan")


def approve_payout(visit: Visit) -> Response:
    """Approve the payout as another person."""
    with changing(visit, Act.APPROVE) as found:
        document = _same_plan(visit, found)
        write_document(approved_by(visit, document), found.plan_file)
    return visit.go_to(f"/sheets/{found.number}/plan")


def _to_sign(visit: Visit, document: PlanDocument, stage: str) -> Mapping[str, str] | None:
    """Return the parts of the form that asks for the passkey of the person at the page; None where it asks for none."""
    match stage:
        case "to_sign":
            return form_of_maker(visit, document)
        case "to_approve":
            return form_of_approver(visit, document)
        case _:
            return None


def send_back(visit: Visit) -> Response:
    """Send the payout back to its maker, with a reason: the signature counts for nothing any more."""
    with changing(visit, Act.APPROVE) as found:
        _same_plan(visit, found)
        reason = in_words(visit.form.get("reason", ""), say("The reason"))
        found.forget_plan(f"{visit.member.name}: {reason}")
        found.forget_check()
    return visit.go_to("/")


def start(visit: Visit) -> Response:
    """Start the payout, in another process. Asked twice, it is started once."""
    found = folder(visit)
    summary = checked(visit, found)
    document = _same_plan(visit, found)
    stage = stage_of(visit, found)
    if stage not in {"approved", "failed"}:
        return visit.go_to(f"/sheets/{found.number}/plan")
    console, uploaded = visit.console, found.uploaded
    command = [*console.program, "--json", "submit", str(found.sheet), "--wait", "--skip-invalid", "--force"]
    command += ["--plan", str(found.plan_file), "--mended", str(found.mending_file)]
    command += ["--expect-rows", str(uploaded.stated_rows)] if uploaded.stated_rows is not None else []
    for currency, amount in uploaded.stated_sums.items():
        command += ["--expect-total", f"{currency}={amount}"]
    command += ["--out", str(found.path / f"{found.sheet.stem}.reconciliation.csv"), "--by", visit.member.name]
    for option, value in (("--sheet", uploaded.worksheet), ("--reference", uploaded.reference)):
        command += [option, value] if value else []
    if document.repeats_meant:
        command.append("--repeats-meant")
    start_run(console.directory / RUNS, str(summary["batch"]), command, by=visit.member.name, environ=visit.environ)
    return visit.go_to(f"/sheets/{found.number}/plan")


def stage_of(visit: Visit, found: PayoutFolder) -> str:
    """Return how far a payout in preparation is: `mending, to_sign, to_approve, approved, starting` or `failed`."""
    summary, document = found.checked, found.plan
    if summary is None or summary["error"] is not None or not summary["is_ready"]:
        return "mending"
    if document is None:
        return "to_sign"
    run = started_run(visit.console.directory / RUNS, str(summary["batch"]))
    if run is not None and run.is_alive:
        return "starting"
    if not is_approved(visit, document):
        return "to_approve"
    return "approved" if run is None else "failed"


def is_approved(visit: Visit, document: PlanDocument) -> bool:
    """Whether enough people approve of a plan now, or it needs nobody."""
    policy = required_policy(visit.console.settings)
    return not needs_approval(document.content, policy) or enough_approve(visit, document)


def _same_plan(visit: Visit, found: PayoutFolder) -> PlanDocument:
    document = found.plan
    if document is None or document.digest() != visit.form.get("digest"):
        raise UsageError(say(_OLD), hint="")
    return document


def _shown(
    visit: Visit, found: PayoutFolder, document: PlanDocument, summary: Mapping[str, Any], stage: str
) -> dict[str, Any]:
    uploaded, policy = found.uploaded, required_policy(visit.console.settings)
    signatures = signatures_now(visit, document) if stage not in {"mending", "to_sign"} else None
    content = document.content
    running = running_now(visit.console.settings)
    people = {currency: rows for currency, rows, _ in summary["totals"]}
    return {
        "uploaded": uploaded,
        "number": found.number,
        "stage": stage,
        "content": content,
        "sums": [(currency, people.get(currency, 0), amount) for currency, amount in content.totals.items()],
        "payable": content.rows - content.invalid,
        "known": summary["known"],
        "code": payout_code(content),
        "passkey": _to_sign(visit, document, stage),
        "digest": document.digest(),
        "repeats_meant": document.repeats_meant,
        "comparison": comparison(document),
        "changes": [
            (heading, ones[:SHOWN_FINDINGS], len(ones), place < _OPEN_AT_FIRST)
            for place, (heading, ones) in enumerate(differences(document))
        ],
        "corrections": _of(document, MENDED),
        "left_out": _of(document, LEFT_OUT),
        "meant": _of(document, MEANT),
        "warnings": [
            (_meaning(kind.code), kind) for kind in kinds_of_warnings(document) if kind.code not in _CORRECTIONS
        ],
        "signatures": signatures,
        "approvers": [] if signatures is None else [person.name for person in signatures.valid],
        "needed": policy.needed if needs_approval(content, policy) else 0,
        "is_own": visit.may(Act.MEND, uploaded.by),
        "can_approve": visit.may(Act.APPROVE, uploaded.by),
        "can_start": visit.may(Act.START),
        "has_approved": stage != "to_sign" and has_approved(visit, document),
        "other_run": "" if running is None else running.since,
        "failure": _failure(visit, summary) if stage == "failed" else "",
    }


def _of(document: PlanDocument, code: str) -> Sequence[PlanFinding]:
    return [one for one in document.findings if one.code == code]


def _meaning(code: str) -> tuple[str, str]:
    try:
        meaning = meaning_of(code, WARNINGS)
    except KeyError:
        return code, ""
    return meaning.label[:1].upper() + meaning.label[1:].replace("_", " "), meaning.suggestion


def _failure(visit: Visit, summary: Mapping[str, Any]) -> str:
    """Return why the last run of a payout ended before it had written anything down."""
    told = last_summary(visit.console.directory / RUNS, str(summary["batch"]))
    message = "" if told is None else str(told.get("message", ""))
    return message if message and "`" not in message else say("The run ended before anything was sent.")
