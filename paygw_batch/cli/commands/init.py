"""`paygw-batch init`: from nothing to a configuration, a key, a letter to the gateway's operator, and a journal."""

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from paygw_batch.cli.completions import complete_countries
from paygw_batch.cli.invocation import Invocation
from paygw_batch.cli.options import force_option
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.compose.first_setup import EXAMPLE_SHEET, FirstSetup, SetupPlaces, set_up_endpoint, set_up_sandbox
from paygw_batch.core.batch import PAYOUT
from paygw_batch.countries.choice import country_named
from paygw_batch.countries.load import load_rules
from paygw_batch.errors import UsageError
from paygw_batch.report.summary import ExitCode, Summary
from paygw_batch.settings.new_configuration import NewEndpoint
from paygw_batch.settings.user_directories import default_configuration

_PRIVATE_KEY = "keys/merchant.pem"
"""Where a new key goes, from the configuration's own directory."""
_NEEDED = {
    "base_url": "The gateway's base address (https://...)",
    "endpoint_id": "Our endpoint id there",
    "consumer_key": "Our consumer key (the login) there",
    "server_callback_url": "Our address for the gateway's notifications (https://...)",
}
"""The required options, each with its question. A missing one is asked for at a terminal, and is an error elsewhere."""
_COUNTRIES = "Countries that you pay in, by their codes (KE TZ ...; Enter: later)"
_PROFILE = "What is signed: json-params or raw-body (Enter: not known yet, it is in the letter)"
_PASSPHRASE = "A file with a passphrase for the new key (Enter: none)"  # noqa: S105 (a question)


@click.command("init", short_help="Set up a new endpoint.")
@click.option("--sandbox", is_flag=True, help="Set up the built-in gateway, to play with: no money moves.")
@click.option("--base-url", metavar="URL", help="The gateway's base address, https://...")
@click.option("--endpoint-id", metavar="ID", help="Issued by the gateway.")
@click.option("--consumer-key", metavar="TEXT", help="The merchant's login at the gateway.")
@click.option("--server-callback-url", metavar="URL", help="Where the gateway sends notifications.")
@click.option(
    "--country",
    "countries",
    multiple=True,
    metavar="XX[=PURPOSE]",
    shell_complete=complete_countries,
    help="A country to pay in. Repeatable.",
)
@click.option(
    "--signature-profile", type=click.Choice(["json-params", "raw-body"]), help="What is signed, where that is known."
)
@click.option(
    "--outcome", "outcomes", multiple=True, metavar="WORD=MEANING", help="A status word: approved=paid. Repeatable."
)
@click.option("--private-key", type=click.Path(path_type=Path), help="The key's file. One that is there is used.")
@click.option("--private-key-passphrase-env", metavar="NAME", help="The variable that holds the key's passphrase.")
@click.option(
    "--private-key-passphrase-file", type=click.Path(path_type=Path), help="The file that holds the key's passphrase."
)
@click.option("--ca-bundle", type=click.Path(path_type=Path), help="Certificate authorities to trust instead.")
@click.option("--proxy", metavar="URL", help="http://host:port of a proxy to the gateway.")
@click.option("--letter", type=click.Path(path_type=Path), metavar="FILE", help="Also write the letter to a new file.")
@force_option
@click.pass_obj
def command(invocation: Invocation, /, *, sandbox: bool, letter: Path | None, force: bool, **answers: Any) -> None:
    """Write a configuration, make the key and the journal, and print the questions for the gateway's operator.

    At a terminal it asks for what the options do not say. The configuration goes to --config, or else to the user's
    own, which every command reads where --config names no other.
    """
    screen = Screen(invocation)
    configuration = invocation.config or default_configuration()
    journal = None if invocation.journal is None else str(invocation.journal.absolute())
    if sandbox:
        if given := [name for name, value in answers.items() if value]:
            raise UsageError(f"--sandbox takes no --{given[0].replace('_', '-')}: everything is filled in.")
        sheet = None if EXAMPLE_SHEET.exists() else EXAMPLE_SHEET
        done = set_up_sandbox(SetupPlaces(configuration, letter, sheet), journal=journal, force=force)
    else:
        endpoint = _endpoint(_completed(answers, screen), journal)
        places = SetupPlaces(configuration, letter)
        done = set_up_endpoint(endpoint, places, environ=os.environ, force=force)
    _show(screen, done)
    screen.finish(Summary(ExitCode.DONE, _message(done, invocation), further=_told(done)))


def _completed(answers: Mapping[str, Any], screen: Screen) -> dict[str, Any]:
    """Return the answers, completed by a person at a terminal; elsewhere raise `UsageError` naming the missing ones."""
    missing = [name for name in _NEEDED if not answers[name]]
    if not screen.asks():
        if missing:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in missing)
            raise UsageError(
                f"init needs {flags}: nobody can be asked here, and nothing was made.",
                hint="Give these options, or run the command at a terminal. `paygw-batch init --sandbox` needs none.",
            )
        return dict(answers)
    completed = dict(answers)
    for name in missing:
        completed[name] = click.prompt(_NEEDED[name]).strip()
    if not missing:  # all that is needed was said: a person who writes options is not asked about the rest
        return completed
    if not answers["countries"]:
        completed["countries"] = click.prompt(_COUNTRIES, default="", show_default=False).replace(",", " ").split()
    if not answers["signature_profile"]:
        chosen = click.Choice(["json-params", "raw-body", ""])
        completed["signature_profile"] = click.prompt(
            _PROFILE, default="", type=chosen, show_choices=False, show_default=False
        )
    if not answers["private_key_passphrase_env"] and not answers["private_key_passphrase_file"]:
        file = click.prompt(_PASSPHRASE, default="", show_default=False).strip()
        completed["private_key_passphrase_file"] = Path(file).expanduser() if file else None
    return completed


def _endpoint(answers: Mapping[str, Any], journal: str | None) -> NewEndpoint:
    if answers["base_url"] == "sandbox":
        raise UsageError("The built-in gateway is set up by `paygw-batch init --sandbox`.", hint="Nothing was made.")
    if not answers["server_callback_url"].startswith(("https://", "http://")):
        raise UsageError("--server-callback-url is no address: write https://...", hint="Nothing was made.")
    countries = _countries(answers["countries"])
    rules = load_rules(PAYOUT, {})
    return NewEndpoint(
        base_url=answers["base_url"],
        endpoint_id=answers["endpoint_id"],
        consumer_key=answers["consumer_key"],
        server_callback_url=answers["server_callback_url"],
        private_key=_path(answers["private_key"]) or _PRIVATE_KEY,
        signature_profile=answers["signature_profile"] or None,
        passphrase_env=answers["private_key_passphrase_env"],
        passphrase_file=_path(answers["private_key_passphrase_file"]),
        ca_bundle=_path(answers["ca_bundle"]),
        proxy=answers["proxy"],
        journal=journal,
        outcomes=dict(_pair(text, "--outcome", "approved=paid") for text in answers["outcomes"]),
        countries=countries,
        open_keys={code: tuple(key.rpartition(".")[2] for key in rules[code].missing_terms) for code in countries},
    )


def _countries(words: Sequence[str]) -> dict[str, str | None]:
    """Return the purpose of each country, None where it is not said."""
    rules = load_rules(PAYOUT, {})
    split = (word.partition("=") for word in words)
    return {country_named(code, rules).code: purpose.strip() or None for code, _, purpose in split}


def _pair(text: str, flag: str, example: str) -> tuple[str, str]:
    left, equals, right = text.partition("=")
    if not left.strip() or not equals or not right.strip():
        raise UsageError(f"{flag} {text}: write it as {example}.")
    return left.strip(), right.strip()


def _path(given: Path | None) -> str | None:
    """Return the absolute path for the configuration: a person types a path from the current directory."""
    return None if given is None else str(given.absolute())


def _show(screen: Screen, done: FirstSetup) -> None:
    """Print the paths of the setup, the key's public half and the letter. The JSON has them as members."""
    if screen.as_json:
        return
    screen.say(f"Configuration: {done.places.configuration}")
    is_old = not done.has_new_key and not done.settings.uses_sandbox
    screen.say(f"Private key:   {done.private_key}{' (it was there, and is used)' if is_old else ''}")
    screen.say(f"Journal:       {done.settings.journal_path()}")
    if done.places.sheet is not None:
        screen.say(f"Example sheet: {done.places.sheet}")
    if done.letter:
        screen.say("")
        screen.say("The public half of the key, and the questions for the gateway's operator:")
        screen.say("")
        for line in done.letter.splitlines():
            screen.say(line)


def _message(done: FirstSetup, invocation: Invocation) -> str:
    """Return the message of the command, with the next step."""
    named = "" if invocation.config is None else f"--config {shlex.quote(str(invocation.config))} "
    if done.settings.uses_sandbox:
        return f"The sandbox is ready; no money moves there. Pay a sheet: paygw-batch {named}submit {EXAMPLE_SHEET}"
    if not done.missing:
        return f"Everything is said. Look: paygw-batch {named}doctor. Then: paygw-batch {named}submit SHEET --first 1"
    return (
        f"Next: send the letter, and write the answers into {done.places.configuration} ({', '.join(done.missing)}). "
        f"`paygw-batch {named}doctor` says what is still missing. Then: paygw-batch {named}submit SHEET --first 1"
    )


def _told(done: FirstSetup) -> dict[str, object]:
    """Return the members of the JSON summary about the setup. `made` is whether the journal is new."""
    path, sheet = str(done.settings.journal_path()), done.places.sheet
    name = done.settings.endpoint_identity().name
    journal = {"path": path, "endpoint": name, "made": done.journal is not None}
    return {
        "configuration": str(done.places.configuration),
        "private_key": str(done.private_key),
        "public_key": done.key.public_key_pem().decode(),
        "fingerprint": done.key.fingerprint(),
        "journal": journal if done.journal is None else {"id": done.journal.journal_id, **journal},
        "missing": done.missing,
        "letter": done.letter,
        "example_sheet": None if sheet is None else str(sheet),
    }
