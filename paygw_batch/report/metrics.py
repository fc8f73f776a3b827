"""Writes the figures of a run in the text format of Prometheus, for the textfile collector of its node exporter.

Source: the "Text-based format" of Prometheus' exposition formats. Labels hold words of ours and currencies, never a
payee, an order or a file name.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime

from paygw_batch.report.summary import Summary

_METRICS = {
    "paygw_run_exit_code": "What the last run of a command ended with.",
    "paygw_run_end_timestamp_seconds": "When the last run of a command ended.",
    "paygw_run_duration_seconds": "How long the last run of a command took.",
    "paygw_run_sent_rows": "Rows that the last run of a command sent.",
    "paygw_batch_rows": "Rows of the batch of the last run, by state.",
    "paygw_batch_amount": "Sums of the batch of the last run, by currency and state.",
}


def metrics_text(command: str, summary: Summary, now: datetime) -> str:
    """Return the figures of a run as lines of text. Each metric has its help and type."""
    run = {"command": command}
    samples: dict[str, list[tuple[Mapping[str, str], str]]] = {
        "paygw_run_exit_code": [(run, str(int(summary.exit_code)))],
        "paygw_run_end_timestamp_seconds": [(run, str(int(now.timestamp())))],
        "paygw_run_duration_seconds": [(run, f"{summary.seconds:.3f}")],
        "paygw_run_sent_rows": [(run, str(summary.sent_this_run))],
        "paygw_batch_rows": [({**run, "state": state}, str(count)) for state, count in summary.states.items()],
        "paygw_batch_amount": [
            ({**run, "currency": currency, "state": state}, amount)
            for currency, sums in summary.totals.items()
            for state, amount in sums.items()
        ],
    }
    return "\n".join(_lines(samples)) + "\n"


def _lines(samples: Mapping[str, list[tuple[Mapping[str, str], str]]]) -> Iterator[str]:
    for name, values in samples.items():
        if not values:
            continue
        yield f"# HELP {name} {_METRICS[name]}"
        yield f"# TYPE {name} gauge"
        for labels, value in values:
            told = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
            yield f"{name}{{{told}}} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
