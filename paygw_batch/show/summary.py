"""Builds a command's final summary and chooses its exit code."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import Path
from typing import Any

from paygw_batch.errors import PaygwError
from paygw_batch.language import say, say_count


class ExitCode(IntEnum):
    """The program's exit code. If several codes apply, `worst_code` chooses one."""

    DONE = 0
    UNEXPECTED = 1
    USAGE = 2
    DEFECTS = 3
    SOME_REJECTED = 4
    PERSON_NEEDED = 5
    STOPPED_EARLY = 6
    JOURNAL = 7
    APPROVAL = 8
    INTERRUPTED = 130


_PRECEDENCE = (
    ExitCode.UNEXPECTED,
    ExitCode.USAGE,
    ExitCode.JOURNAL,
    ExitCode.APPROVAL,
    ExitCode.DEFECTS,
    ExitCode.PERSON_NEEDED,
    ExitCode.STOPPED_EARLY,
    ExitCode.INTERRUPTED,
    ExitCode.SOME_REJECTED,
    ExitCode.DONE,
)


def worst_code(codes: set[ExitCode]) -> ExitCode:
    """Return the code with the highest precedence, or `DONE` if there are no codes."""
    return next((code for code in _PRECEDENCE if code in codes), ExitCode.DONE)


def exit_code_for(states: Mapping[str, int], *, interrupted: bool = False, contradictions: int = 0) -> ExitCode:
    """Return a batch's exit code, given the number of its rows in each state.

    After an interruption, unsent rows mean `INTERRUPTED` rather than `STOPPED_EARLY`. `contradictions` is the number of
    messages that need a decision.
    """
    codes = {ExitCode.DONE}
    if states.get("in_doubt") or states.get("held") or contradictions:
        codes.add(ExitCode.PERSON_NEEDED)
    if interrupted:
        codes.add(ExitCode.INTERRUPTED)
    elif states.get("ready") or states.get("in_flight"):
        codes.add(ExitCode.STOPPED_EARLY)
    if states.get("rejected") or states.get("returned") or states.get("invalid"):
        codes.add(ExitCode.SOME_REJECTED)
    return worst_code(codes)


@dataclass(frozen=True, slots=True)
class Summary:
    """A command's result. `totals` are exact sums by currency and state, as text with the currency's decimals."""

    exit_code: ExitCode
    message: str
    batch: str | None = None
    sheet: str | None = None
    rows: int = 0
    states: Mapping[str, int] = field(default_factory=dict)
    totals: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    defects: int = 0
    known: int = 0
    sent_this_run: int = 0
    seconds: float = 0.0
    reconciliation: Path | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    option: str = ""
    """The option that lets a refused sheet through (`PaygwError.option`). Not in the JSON object."""
    is_under_way: bool = False
    """Whether workers are still sending the batch. Not in the JSON object."""

    def as_json(self) -> dict[str, Any]:
        return {
            "batch": self.batch,
            "sheet": self.sheet,
            "rows": self.rows,
            "states": dict(self.states),
            "totals": {currency: dict(sums) for currency, sums in self.totals.items()},
            "defects": self.defects,
            "known": self.known,
            "sent_this_run": self.sent_this_run,
            "seconds": round(self.seconds, 3),
            "reconciliation": None if self.reconciliation is None else str(self.reconciliation),
            "exit_code": int(self.exit_code),
            "message": self.message,
            **self.extra,
        }


def error_summary(error: BaseException, interrupt_message: str) -> Summary:
    """Return the summary of a failed command. `interrupt_message` is its message if a person interrupted it."""
    if isinstance(error, RunFailed):
        return error.summary
    if isinstance(error, PaygwError):
        return Summary(ExitCode(error.exit_code), error.message, extra={"code": error.code} if error.code else {})
    if isinstance(error, KeyboardInterrupt):
        return Summary(ExitCode.INTERRUPTED, interrupt_message)
    return Summary(ExitCode.UNEXPECTED, say("Unexpected error ({kind}).", kind=type(error).__name__))


class RunFailed(PaygwError):
    """An error ended a run that may have sent rows. `summary` contains what is known about them."""

    def __init__(self, error: BaseException, interrupt_message: str, run_summary: Summary) -> None:
        """Add `error` to `run_summary`, whose message is kept only if rows were sent."""
        error_result = error_summary(error, interrupt_message)
        message = error_result.message
        if run_summary.sent_this_run and not isinstance(error, RunFailed):
            count_text = say_count(
                run_summary.sent_this_run,
                "This run sent {count:,} row before it ended.",
                "This run sent {count:,} rows before it ended.",
            )
            rerun_text = say("You can safely run the same command again: it never pays a row twice.")
            message = " ".join(filter(None, (message, count_text, run_summary.message, rerun_text)))
        super().__init__(message)
        extra = {**run_summary.extra, **error_result.extra}
        self.summary = replace(run_summary, exit_code=error_result.exit_code, message=message, extra=extra)
        self.error: BaseException = error.error if isinstance(error, RunFailed) else error
