"""Completes the words that a person begins to type in a shell: batches of the journal, and countries."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from paygw_batch.errors import PaygwError


def complete_batches(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Return the batches whose id begins so, the newest first; else files, because a batch has its sheet's name too.

    A shell shows no error, so where there is no journal, nothing is completed.
    """
    found: list[CompletionItem[str]] = []
    with suppress(PaygwError):
        found = [
            CompletionItem(batch, help=sheet_name)
            for batch, sheet_name in _batches(ctx.find_root().params)
            if batch.startswith(incomplete)
        ]
    return found or [CompletionItem(incomplete, type="file")]


def complete_countries(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Return the codes of the countries that begin so."""
    from paygw_batch.countries.load import config_dir  # noqa: PLC0415 (not before a shell asks)

    codes = sorted(file.stem for file in (config_dir() / "countries").glob("*.toml"))
    return [CompletionItem(code) for code in codes if code.startswith(incomplete.upper())]


def _batches(shared: dict[str, Any]) -> list[tuple[str, str]]:
    """Return id and sheet of every batch, the newest first. `shared` are the options before the command."""
    from paygw_batch.cli.invocation import Invocation  # noqa: PLC0415 (not before a shell asks)
    from paygw_batch.cli.options import settings_of  # noqa: PLC0415 (as above)
    from paygw_batch.compose.journal import journal_to_read  # noqa: PLC0415 (as above)
    from paygw_batch.settings.user_directories import own_configuration  # noqa: PLC0415 (as above)

    config: Path | None = shared.get("config") or own_configuration()
    settings = settings_of(Invocation(config, shared.get("journal"), as_json=False, quiet=True, verbose=False))
    with journal_to_read(settings) as journal:
        return [(record.batch, record.sheet_name) for record in reversed(journal.batches())]
