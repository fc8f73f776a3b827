"""`paygw-batch sandbox`: runs the built-in gateway on loopback."""

import os
import shlex
from pathlib import Path

import click

from paygw_batch.cli.help_texts import HelpCommand
from paygw_batch.cli.invocation import Invocation, PathType, WholeNumber
from paygw_batch.cli.options import settings_for
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.countries.load import operation_names
from paygw_batch.language import say
from paygw_batch.opening.gateway_access import key_location, load_signing_key
from paygw_batch.opening.given_sheet import require_sending_settings, rules_for
from paygw_batch.sandbox.configured import sandbox_config
from paygw_batch.sandbox.server import serve
from paygw_batch.show.summary import ExitCode, Summary


@click.command("sandbox", cls=HelpCommand)
@click.option("--port", type=WholeNumber(0, 65535), default=0, help="Port on loopback (0 picks a free port).")
@click.option("--behaviour", type=PathType(), help="TOML file with rules for the sandbox's replies.")
@click.pass_obj
def sandbox_command(invocation: Invocation, *, port: int, behaviour: Path | None) -> None:
    """Run the built-in gateway on loopback until interrupted.

    The sandbox expects exactly the requests that this configuration would send. It moves no money, and records accepted
    orders.
    """
    screen = Screen(invocation)
    options = {("sandbox", "behaviour"): None if behaviour is None else str(behaviour.absolute())}
    settings = settings_for(invocation, options)
    require_sending_settings(settings)
    key = load_signing_key(settings, os.environ)
    rule_sets = [rules_for(settings, name) for name in operation_names() if not settings.missing_for(name)]
    config = sandbox_config(settings, rule_sets, key, os.environ)
    records = ", ".join(str(operation.record_path) for operation in config.operations)

    def report_ready(base_url: str) -> None:
        screen.say(
            say(
                "The sandbox is running at {base_url}. Accepted orders are recorded in {records}.",
                base_url=base_url,
                records=records,
            )
        )
        screen.say(
            say("To submit to the sandbox from another terminal, with the same configuration and a separate journal:")
        )
        screen.say(
            say(
                "  PAYGW_BASE_URL={base_url} PAYGW_PRIVATE_KEY={key_place} paygw-batch --journal FILE ... submit SHEET",
                base_url=base_url,
                key_place=shlex.quote(str(key_location(settings))),
            )
        )

    serve(config, port, on_ready=report_ready)
    screen.finish(Summary(ExitCode.DONE, say("The sandbox has stopped.")))
