"""The command `paygw-batch sandbox`, which runs the built-in gateway on loopback."""

import os
import shlex
from pathlib import Path

import click

from paygw_batch.cli.help_texts import HelpCommand
from paygw_batch.cli.invocation import Invocation, NamedFile, WholeNumber
from paygw_batch.cli.options import settings_of
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.countries.load import operation_names
from paygw_batch.language import say
from paygw_batch.opening.gateway_access import key_place, signer_key
from paygw_batch.opening.given_sheet import require_gateway, rules_of
from paygw_batch.sandbox.configured import sandbox_config
from paygw_batch.sandbox.server import serve
from paygw_batch.show.summary import ExitCode, Summary


@click.command("sandbox", cls=HelpCommand)
@click.option("--port", type=WholeNumber(0, 65535), default=0, help="Port on loopback; 0: any free one.")
@click.option("--behaviour", type=NamedFile(), help="TOML file of rules for its answers.")
@click.pass_obj
def sandbox_command(invocation: Invocation, *, port: int, behaviour: Path | None) -> None:
    """Run the built-in gateway on loopback until interrupted.

    It expects exactly what the configuration would send, moves no money, and records what it accepted.
    """
    screen = Screen(invocation)
    settings = settings_of(
        invocation, {("sandbox", "behaviour"): None if behaviour is None else str(behaviour.absolute())}
    )
    require_gateway(settings)
    key = signer_key(settings, os.environ)
    served = [rules_of(settings, name) for name in operation_names() if not settings.missing_for(name)]
    config = sandbox_config(settings, served, key, os.environ)
    records = ", ".join(str(each.record_path) for each in config.served)

    def ready(base_url: str) -> None:
        screen.say(
            say(
                "The sandbox answers at {base_url}; what it accepts is written to {records}.",
                base_url=base_url,
                records=records,
            )
        )
        screen.say(say("To submit to it from another terminal, with the same configuration and a separate journal:"))
        screen.say(
            say(
                "  PAYGW_BASE_URL={base_url} PAYGW_PRIVATE_KEY={key_place} paygw-batch --journal FILE ... submit SHEET",
                base_url=base_url,
                key_place=shlex.quote(str(key_place(settings))),
            )
        )

    serve(config, port, ready=ready)
    screen.finish(Summary(ExitCode.DONE, say("The sandbox has stopped.")))
