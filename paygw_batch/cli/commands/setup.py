"""The commands for setup: `init`, `config` and `completion`."""

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click
from click.core import ParameterSource
from click.shell_completion import get_completion_class

from paygw_batch.cli.help_texts import HelpCommand, HelpGroup, print_and_exit
from paygw_batch.cli.invocation import Invocation, PathType
from paygw_batch.cli.options import complete_countries, force_option, settings_for
from paygw_batch.cli.screen.screen import Screen, ask_for_text
from paygw_batch.core.batch import PAYOUT
from paygw_batch.countries.data import config_dir
from paygw_batch.countries.load import find_country, load_operation, load_rules
from paygw_batch.errors import ConfigurationError, InternalError, OutputError, PaygwError, UsageError
from paygw_batch.files import create_if_missing, write_atomically
from paygw_batch.gateway.address import operation_url
from paygw_batch.gateway.signing.key import SigningKey, generate_key_pem
from paygw_batch.journal import Identity
from paygw_batch.language import mark, mark_all, say
from paygw_batch.opening.gateway_access import ensure_token_key, key_location, load_passphrase, load_signing_key
from paygw_batch.opening.given_sheet import rules_for
from paygw_batch.opening.open_journal import journal_location
from paygw_batch.settings.configuration import Settings, parse_settings, setting_origins
from paygw_batch.settings.new_configuration import (
    NewEndpoint,
    render_endpoint_configuration,
    render_letter,
    render_sandbox_configuration,
)
from paygw_batch.settings.sections import KEY_SCHEMES
from paygw_batch.settings.user_directories import default_configuration_path
from paygw_batch.sheet.write.template import write_example
from paygw_batch.show.outputs import OutputGuard, OutputKind, RequestedOutput
from paygw_batch.show.summary import ExitCode, Summary


@dataclass(frozen=True, slots=True)
class SetupFiles:
    """The files that `init` writes. `letter` and `sheet` are None if not requested."""

    configuration: Path
    letter: Path | None = None
    sheet: Path | None = None


@dataclass(frozen=True, slots=True)
class SetupResult:
    """The result of `init`. `journal` is None if it already existed. `has_new_key` is True if a key was created."""

    settings: Settings
    files: SetupFiles
    private_key: Path | str
    key: SigningKey
    has_new_key: bool
    journal: Identity | None
    letter: str

    @property
    def missing_settings(self) -> list[str]:
        """The settings still missing for sending. Countries that are not configured are ignored."""
        rules = [rule for code, rule in rules_for(self.settings, PAYOUT).items() if code in self.settings.countries]
        return [*self.settings.missing_for_sending(), *(key for rule in rules for key in rule.missing_terms)]


def set_up_endpoint(
    endpoint: NewEndpoint, files: SetupFiles, *, environ: Mapping[str, str], force: bool
) -> SetupResult:
    """Create an endpoint's configuration, key and journal, and the letter to the gateway's operator.

    An existing key or journal is used, never replaced. The configuration is written last.
    """
    text = render_endpoint_configuration(endpoint)
    settings = parse_settings(text, files.configuration)
    payout_url = operation_url(endpoint.base_url, load_operation(PAYOUT), endpoint.endpoint_id)
    rules_for(settings, PAYOUT)
    _prepare_outputs(settings, files, force=force)
    private_key, passphrase = key_location(settings), _require_passphrase(settings, environ)
    has_new_key = ensure_token_key(settings, environ)
    needs_key_file = isinstance(private_key, Path) and not private_key.exists()
    if not needs_key_file:
        load_signing_key(settings, environ)
    journal = journal_location(settings).create("init")
    if isinstance(private_key, Path) and needs_key_file:
        _create_key(private_key, passphrase)
    key = load_signing_key(settings, environ)
    letter = render_letter(endpoint, payout_url, key.public.public_key_pem().decode(), key.public.fingerprint())
    if files.letter is not None:
        write_atomically(files.letter, letter.encode())
    write_atomically(files.configuration, text.encode())
    return SetupResult(settings, files, private_key, key, has_new_key or needs_key_file, journal, letter)


def set_up_sandbox(files: SetupFiles, *, journal: str | None, force: bool) -> SetupResult:
    """Create the built-in gateway's configuration, journal, throw-away key and example sheet."""
    template = (config_dir() / "sandbox.toml").read_text(encoding="utf-8")
    text = render_sandbox_configuration(template, journal)
    settings = parse_settings(text, files.configuration)
    _prepare_outputs(settings, files, force=force)
    identity = journal_location(settings).create("init")
    private_key = key_location(settings)
    key = load_signing_key(settings, {})
    if files.sheet is not None:
        rules = rules_for(settings, PAYOUT).values()
        write_example([rule for rule in rules if rule.form is not None], files.sheet)
    write_atomically(files.configuration, text.encode())
    return SetupResult(settings, files, private_key, key, has_new_key=False, journal=identity, letter="")


def require_no_configuration(path: Path, *, force: bool) -> None:
    """Raise `OutputError` if a configuration exists at `path`, unless `force` is set."""
    if path.is_file() and path.stat().st_size and not force:
        message = say("There is already a configuration at {path}. Nothing was created.", path=path)
        hint = say("Check it with `paygw-batch doctor`, choose another file with --config, or replace it with --force.")
        raise OutputError(message, hint=hint)


def _prepare_outputs(settings: Settings, files: SetupFiles, *, force: bool) -> None:
    configuration = files.configuration
    require_no_configuration(configuration, force=force)
    try:
        configuration.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        values = {"path": configuration.parent, "reason": say(error.strerror or "unknown reason").lower()}
        raise OutputError(say("The folder {path} cannot be created: {reason}.", **values)) from None
    OutputGuard(settings, None, force).check(
        RequestedOutput(say("the configuration"), configuration, OutputKind.CONFIGURATION),
        RequestedOutput("--letter", files.letter, OutputKind.NEW),
        RequestedOutput(say("the example"), files.sheet, OutputKind.NEW),
    )


def _require_passphrase(settings: Settings, environ: Mapping[str, str]) -> bytes | None:
    variable = settings.gateway.private_key_passphrase_env
    passphrase = load_passphrase(settings, environ)
    if not passphrase and (variable or settings.gateway.private_key_passphrase_file):
        raise ConfigurationError(
            say("The variable {variable} does not contain a passphrase.", variable=variable)
            if variable
            else say("The passphrase file is empty."),
            hint=say("Nothing was created. Add the passphrase, then run the command again."),
        )
    return passphrase


def _create_key(path: Path, passphrase: bytes | None) -> None:
    try:
        create_if_missing(path, generate_key_pem(passphrase))
    except OSError as error:
        reason = say(error.strerror or "unknown reason").lower()
        message = say("The private key {path} cannot be created: {reason}.", path=path, reason=reason)
        raise ConfigurationError(message, hint=say("Choose another file: --private-key FILE.")) from None


EXAMPLE_SHEET = Path("sandbox-payroll.csv")
"""The example sheet that `init --sandbox` writes to the current directory."""

_DEFAULT_KEY_FILE = "keys/merchant.pem"
"""The path of a new key, relative to the configuration's folder."""
_REQUIRED_QUESTIONS = {
    "base_url": mark("The gateway's base address (https://...)"),
    "endpoint_id": mark("Your endpoint id at the gateway"),
    "consumer_key": mark("Your consumer key (login) at the gateway"),
    "server_callback_url": mark("Your address for the gateway's notifications (https://...)"),
}
"""The question for each required option. It is asked at a terminal. Elsewhere, a missing option is an error."""
_COUNTRIES_QUESTION = mark("Countries to pay in, such as KE TZ (Enter to skip)")
_PROFILE_QUESTION = mark("Signature profile, json-params or raw-body (Enter to skip; the letter asks for it)")
_PASSPHRASE_QUESTION = mark("File with a passphrase for the new key (Enter for none)")

_PROFILES = ("json-params", "raw-body")
_OPTION_NAMES: Mapping[str, str] = MappingProxyType({"countries": "--country", "outcomes": "--outcome"})
"""The options whose names differ from their parameters."""
_NOTHING_CREATED = mark("Nothing was created.")


class _KeyLocation(PathType):
    """A parameter type for the path of a key file, or the URI of a key in a token or a key service."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        is_uri = isinstance(value, str) and value.startswith(KEY_SCHEMES)
        return value if is_uri else super().convert(value, param, ctx)


@click.command("init", cls=HelpCommand)
@click.option("--sandbox", is_flag=True, help="Set up the built-in gateway to try things out. No money moves.")
@click.option("--base-url", metavar="URL", help="The gateway's base address, https://...")
@click.option("--endpoint-id", metavar="ID", help="Your endpoint id, issued by the gateway's operator.")
@click.option("--consumer-key", metavar="TEXT", help="Your login at the gateway.")
@click.option("--server-callback-url", metavar="URL", help="Your address for the gateway's notifications.")
@click.option(
    "--country",
    "countries",
    multiple=True,
    metavar="XX[=PURPOSE]",
    shell_complete=complete_countries,
    help="A country to pay in. Repeatable.",
)
@click.option("--signature-profile", type=click.Choice(_PROFILES), help="Signature profile, if you know it.")
@click.option(
    "--outcome",
    "outcomes",
    multiple=True,
    metavar="WORD=MEANING",
    help="Meaning of one of the gateway's status words, such as approved=paid. Repeatable.",
)
@click.option(
    "--private-key", type=_KeyLocation(), help="Key file, pkcs11:... or awskms:... An existing key is reused."
)
@click.option("--pkcs11-module", type=PathType(), help="For pkcs11:... keys, the token vendor's module.")
@click.option("--private-key-passphrase-env", metavar="NAME", help="The variable that contains the key's passphrase.")
@click.option("--private-key-passphrase-file", type=PathType(), help="The file that contains the key's passphrase.")
@click.option("--ca-bundle", type=PathType(), help="Certificate authorities to trust instead of the system's.")
@click.option("--proxy", metavar="URL", help="Proxy to the gateway: http://host:port.")
@click.option("--letter", type=PathType(), metavar="FILE", help="Also write the letter to a new file.")
@force_option
@click.pass_obj
def init_command(invocation: Invocation, /, *, sandbox: bool, letter: Path | None, force: bool, **answers: Any) -> None:
    """Set up an endpoint: its configuration, its key, its journal, and a letter to the gateway's operator.

    At a terminal, the command asks for the options that you leave out. The configuration is written to the --config
    file, or to your own configuration file, which every command reads by default.
    """
    screen = Screen(invocation)
    configuration = invocation.config or default_configuration_path()
    journal = None if invocation.journal is None else str(invocation.journal.absolute())
    if sandbox:
        if given_options := [name for name, value in answers.items() if value]:
            template = mark("{option} cannot be used with --sandbox, which needs no answers.")
            raise UsageError(say(template, option=f"--{given_options[0].replace('_', '-')}"))
        sheet = None if EXAMPLE_SHEET.exists() else EXAMPLE_SHEET
        result = set_up_sandbox(SetupFiles(configuration, letter, sheet), journal=journal, force=force)
    else:
        if screen.can_ask():  # checked before any questions are asked
            require_no_configuration(configuration, force=force)
        complete_answers = _ask_for_missing_answers(answers, screen)
        try:
            endpoint = _build_endpoint(complete_answers, journal)
            result = set_up_endpoint(endpoint, SetupFiles(configuration, letter), environ=os.environ, force=force)
        except PaygwError as error:
            if error.hint == say(ConfigurationError.default_hint):  # `doctor` has nothing to check yet
                error.hint = say(_NOTHING_CREATED)
            _print_answers_as_command(screen, complete_answers, answers, invocation)
            raise
    _show_setup(screen, result)
    screen.finish(Summary(ExitCode.DONE, _next_step_message(result, invocation), extra=_setup_as_json(result)))


def _ask_for_missing_answers(answers: Mapping[str, Any], screen: Screen) -> dict[str, Any]:
    """Ask for missing answers at a terminal. Elsewhere, raise `UsageError` naming the missing options."""
    missing = [name for name in _REQUIRED_QUESTIONS if not answers[name]]
    if not screen.can_ask():
        if missing:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in missing)
            hint = say("Add these options, or run the command at a terminal. `paygw-batch init --sandbox` needs none.")
            raise UsageError(say("init needs {flags}. Nothing was created.", flags=flags), hint=hint)
        return dict(answers)
    completed = dict(answers)
    for name in missing:
        completed[name] = ask_for_text(say(_REQUIRED_QUESTIONS[name]), value_proc=_ANSWER_PARSERS.get(name, str.strip))
    if not missing:  # ask for optional answers only if a required one was missing
        return completed
    if not answers["countries"]:
        answer = ask_for_text(say(_COUNTRIES_QUESTION), default="", show_default=False, value_proc=_validate_countries)
        completed["countries"] = _split_countries(answer)
    if not answers["signature_profile"]:
        answer = ask_for_text(say(_PROFILE_QUESTION), default="", show_default=False, value_proc=_parse_profile)
        completed["signature_profile"] = answer
    if not answers["private_key_passphrase_env"] and not answers["private_key_passphrase_file"]:
        file = ask_for_text(say(_PASSPHRASE_QUESTION), default="", show_default=False, value_proc=_parse_file)
        completed["private_key_passphrase_file"] = Path(file) if file else None
    return completed


def _print_answers_as_command(
    screen: Screen, complete_answers: Mapping[str, Any], given_options: Mapping[str, Any], invocation: Invocation
) -> None:
    if complete_answers == given_options:
        return
    words = ["paygw-batch", *(["--config", str(invocation.config)] if invocation.config is not None else []), "init"]
    for name, value in complete_answers.items():
        option = _OPTION_NAMES.get(name, f"--{name.replace('_', '-')}")
        for word in value if isinstance(value, list | tuple) else [value] if value else []:
            words += [option, str(word)]
    screen.say(say("To run this again with the same answers:"))
    screen.print_verbatim(f"  {shlex.join(words)}")


def _parse_base_url(text: str) -> str:
    try:
        operation_url(text.strip(), load_operation(PAYOUT), "1")
    except PaygwError as error:
        raise click.UsageError(f"{error.message} {error.hint}".strip()) from None
    return text.strip()


def _parse_endpoint_id(text: str) -> str:
    if text.strip() in {"", ".", ".."}:
        raise click.UsageError(say("That is not a valid id. Enter it exactly as the gateway's operator issued it."))
    return text.strip()


def _parse_profile(text: str) -> str:
    if text.strip() not in {*_PROFILES, ""}:
        raise click.UsageError(say("Enter json-params or raw-body, or press Enter to skip."))
    return text.strip()


def _parse_file(text: str) -> str:
    """Return the absolute path of a file, or an empty string if there is no answer."""
    path = Path(text.strip()).expanduser().absolute()
    if text.strip() and not path.is_file():
        raise click.UsageError(say("The file {path} does not exist.", path=path))
    return str(path) if text.strip() else ""


def _parse_callback_url(text: str) -> str:
    if not _is_url(text.strip()):
        raise click.UsageError(say("That is not a web address. Enter it as https://..."))
    return text.strip()


def _validate_countries(text: str) -> str:
    try:
        _parse_purposes(_split_countries(text))
    except UsageError as error:
        raise click.UsageError(f"{error.message} {error.hint}".strip()) from None
    return text


def _split_countries(text: str) -> list[str]:
    return [word.strip() for word in (text.split(",") if "," in text else text.split()) if word.strip()]


_ANSWER_PARSERS: Mapping[str, Callable[[str], str]] = MappingProxyType(
    {"base_url": _parse_base_url, "endpoint_id": _parse_endpoint_id, "server_callback_url": _parse_callback_url}
)
"""The parsers of answers at a prompt, by option. Click shows the parser's error and asks again."""


def _is_url(text: str) -> bool:
    return text.startswith(("https://", "http://"))


def _build_endpoint(answers: Mapping[str, Any], journal: str | None) -> NewEndpoint:
    if answers["base_url"] == "sandbox":
        message = say("To set up the built-in gateway, run `paygw-batch init --sandbox`.")
        raise UsageError(message, hint=say(_NOTHING_CREATED))
    if not _is_url(answers["server_callback_url"]):
        raise UsageError(say("--server-callback-url must be a web address: https://..."), hint=say(_NOTHING_CREATED))
    countries = _parse_purposes(answers["countries"])
    rules = load_rules(PAYOUT, {})
    return NewEndpoint(
        base_url=answers["base_url"],
        endpoint_id=answers["endpoint_id"],
        consumer_key=answers["consumer_key"],
        server_callback_url=answers["server_callback_url"],
        private_key=_absolute_path(answers["private_key"]) or _DEFAULT_KEY_FILE,
        pkcs11_module=_absolute_path(answers["pkcs11_module"]),
        signature_profile=answers["signature_profile"] or None,
        passphrase_env=answers["private_key_passphrase_env"],
        passphrase_file=_absolute_path(answers["private_key_passphrase_file"]),
        ca_bundle=_absolute_path(answers["ca_bundle"]),
        proxy=answers["proxy"],
        journal=journal,
        outcomes=dict(_parse_pair(text, "--outcome", "approved=paid") for text in answers["outcomes"]),
        countries=countries,
        open_keys={code: tuple(key.rpartition(".")[2] for key in rules[code].missing_terms) for code in countries},
    )


def _parse_purposes(words: Sequence[str]) -> dict[str, str | None]:
    """Parse words such as `COUNTRY` or `COUNTRY=PURPOSE`. Map each country's code to its purpose, or None."""
    rules = load_rules(PAYOUT, {})
    codes = {name.casefold(): rule.code for rule in rules.values() for name in (rule.name, say(rule.name))}
    purposes = {}
    for country, _, purpose in (word.partition("=") for word in words):
        name = country.strip()
        purposes[codes.get(name.casefold()) or find_country(name, rules).code] = purpose.strip() or None
    return purposes


def _parse_pair(text: str, flag: str, example: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name.strip() or not equals or not value.strip():
        raise UsageError(say("{flag} {text}: write it like {example}.", flag=flag, text=text, example=example))
    return name.strip(), value.strip()


def _absolute_path(path: Path | str | None) -> str | None:
    """Make a path absolute, because relative paths in a configuration are resolved against its folder."""
    return str(path.absolute()) if isinstance(path, Path) else path


def _show_setup(screen: Screen, result: SetupResult) -> None:
    if screen.as_json:
        return
    key_text = str(result.private_key)
    if not result.has_new_key and not result.settings.uses_sandbox:
        key_text = say("{path} (an existing key, used as it is)", path=result.private_key)
    lines = [
        (say("Configuration:"), str(result.files.configuration)),
        (say("Private key:"), key_text),
        (say("Journal:"), str(result.settings.journal_path())),
        *([(say("Example sheet:"), str(result.files.sheet))] if result.files.sheet is not None else []),
    ]
    width = max(len(name) for name, _ in lines)
    for name, value in lines:
        screen.say(f"{name:<{width}} {value}")
    if result.letter:
        screen.say("")
        screen.say(say("The public key and the questions for the gateway's operator:"))
        screen.say("")
        screen.print_verbatim(result.letter.rstrip("\n"))


def _next_step_message(result: SetupResult, invocation: Invocation) -> str:
    config_option = "" if invocation.config is None else f"--config {shlex.quote(str(invocation.config))} "
    if result.settings.uses_sandbox:
        return say(
            "The sandbox is ready. No money moves there. To pay a sheet, run: paygw-batch {named}submit {sheet}",
            named=config_option,
            sheet=EXAMPLE_SHEET,
        )
    if not result.missing_settings:
        return say(
            "Setup is complete. Run `paygw-batch {named}doctor`, then run: paygw-batch {named}submit SHEET --first 1",
            named=config_option,
        )
    return say(
        "Next, send the letter to the gateway's operator and add the answers to {configuration} ({missing}). To see "
        "what is still missing, run `paygw-batch {named}doctor`. Then run: paygw-batch {named}submit SHEET --first 1",
        configuration=result.files.configuration,
        missing=", ".join(result.missing_settings),
        named=config_option,
    )


def _setup_as_json(result: SetupResult) -> dict[str, object]:
    path, sheet = str(result.settings.journal_path()), result.files.sheet
    name = result.settings.endpoint_identity().name
    journal = {"path": path, "endpoint": name, "made": result.journal is not None}
    return {
        "configuration": str(result.files.configuration),
        "private_key": str(result.private_key),
        "public_key": result.key.public.public_key_pem().decode(),
        "fingerprint": result.key.public.fingerprint(),
        "journal": journal if result.journal is None else {"id": result.journal.journal_id, **journal},
        "missing": result.missing_settings,
        "letter": result.letter,
        "example_sheet": None if sheet is None else str(sheet),
    }


@click.group("config", cls=HelpGroup)
def config_command() -> None:
    """Show the settings that a command would use."""


@config_command.command("show", short_help="Show every setting and its origin.")
@click.pass_obj
@click.pass_context
def show_settings(ctx: click.Context, invocation: Invocation) -> None:
    """Show every setting with its value and its origin: command line, environment, file or default.

    Secrets are never shown. The configuration contains only the names of the files and variables that hold them, and
    the command does not read these.
    """
    screen, settings = Screen(invocation, is_read_only=True), settings_for(invocation)
    journal_origin = None
    if invocation.journal is not None:
        is_from_environment = ctx.find_root().get_parameter_source("journal") is ParameterSource.ENVIRONMENT
        journal_origin = "environment: PAYGW_JOURNAL" if is_from_environment else "command line"
    all_settings = list(setting_origins(settings, invocation.config, os.environ, journal_origin))
    lines = [(setting.key, setting.value or "-", setting.origin) for setting in all_settings]
    screen.table("", mark_all("setting", "value", "origin"), lines)
    message, file = say("There is no configuration file."), None
    if invocation.config is not None:
        message, file = say("The configuration file is {path}.", path=invocation.config), str(invocation.config)
    entries = [{"key": setting.key, "value": setting.value or None, "from": setting.origin} for setting in all_settings]
    screen.finish(Summary(ExitCode.DONE, message, extra={"configuration": file, "settings": entries}))


PROGRAM = "paygw-batch"
COMPLETION_VARIABLE = "_PAYGW_BATCH_COMPLETE"
"""The environment variable that a shell sets to request completions. Click derives it from the program's name."""


@click.command("completion", cls=HelpCommand)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_obj
@click.pass_context
def completion_command(ctx: click.Context, invocation: Invocation, *, shell: str) -> None:
    """Print the script that completes commands, options, batch ids and countries in SHELL.

    For bash, add `eval "$(paygw-batch completion bash)"` to ~/.bashrc. For zsh, add the same line with zsh to ~/.zshrc,
    after compinit. For fish, save the script as ~/.config/fish/completions/paygw-batch.fish.
    """
    completion_class = get_completion_class(shell)
    if completion_class is None:
        raise InternalError(f"click completes nothing in {shell}")
    script = completion_class(ctx.find_root().command, {}, PROGRAM, COMPLETION_VARIABLE).source()
    screen = Screen(invocation, is_read_only=True)
    if screen.as_json:
        screen.finish(Summary(ExitCode.DONE, say("The script for {shell}.", shell=shell), extra={"script": script}))
    print_and_exit(ctx, script.strip())
