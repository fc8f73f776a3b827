"""The commands that set up the program: `init`, `config` and `completion`."""

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

from paygw_batch.cli.help_texts import HelpCommand, HelpGroup
from paygw_batch.cli.invocation import Invocation, NamedFile
from paygw_batch.cli.options import complete_countries, force_option, settings_of
from paygw_batch.cli.screen.screen import Screen, prompted
from paygw_batch.cli.screen.streams import standard_output
from paygw_batch.core.batch import PAYOUT
from paygw_batch.countries.data import config_dir
from paygw_batch.countries.load import country_named, load_operation, load_rules
from paygw_batch.errors import ConfigurationError, InternalError, OutputError, PaygwError, UsageError
from paygw_batch.files import create_once, write_whole
from paygw_batch.gateway.address import operation_url
from paygw_batch.gateway.signing.key import SigningKey, new_private_key
from paygw_batch.journal import Identity
from paygw_batch.language import mark, mark_all, say
from paygw_batch.opening.gateway_access import key_place, made_in_token, passphrase, signer_key
from paygw_batch.opening.given_sheet import rules_of
from paygw_batch.opening.open_journal import place_of
from paygw_batch.settings.configuration import Settings, setting_origins, settings_of_text
from paygw_batch.settings.new_configuration import NewEndpoint, endpoint_text, operator_letter, sandbox_text
from paygw_batch.settings.sections import KEY_SCHEMES
from paygw_batch.settings.user_directories import default_configuration
from paygw_batch.sheet.write.template import write_example
from paygw_batch.show.outputs import OutputGuard, OutputKind, RequestedOutput
from paygw_batch.show.summary import ExitCode, Summary


@dataclass(frozen=True, slots=True)
class SetupPlaces:
    """The files that `init` writes. `letter` and `sheet` are None if they are not wanted."""

    configuration: Path
    letter: Path | None = None
    sheet: Path | None = None


@dataclass(frozen=True, slots=True)
class FirstSetup:
    """The result of `init`. `journal` is None, and `has_new_key` is False, if the journal or the key existed before."""

    settings: Settings
    places: SetupPlaces
    private_key: Path | str
    key: SigningKey
    has_new_key: bool
    journal: Identity | None
    letter: str

    @property
    def missing(self) -> list[str]:
        """The keys that the configuration lacks before anything can be sent, except those of unused countries."""
        used = [rule for code, rule in rules_of(self.settings, PAYOUT).items() if code in self.settings.countries]
        return [*self.settings.missing_to_send(), *(key for rule in used for key in rule.missing_terms)]


def set_up_endpoint(
    endpoint: NewEndpoint, places: SetupPlaces, *, environ: Mapping[str, str], force: bool
) -> FirstSetup:
    """Create the configuration, key and journal of a real endpoint, and the letter to its operator.

    An existing key or journal is used, and never replaced. The configuration is written last, so if it exists, the
    other files exist too.
    """
    text = endpoint_text(endpoint)
    settings = settings_of_text(text, places.configuration)
    payout_url = operation_url(endpoint.base_url, load_operation(PAYOUT), endpoint.endpoint_id)
    rules_of(settings, PAYOUT)
    _check_outputs(settings, places, force=force)
    private_key, secret = key_place(settings), _passphrase(settings, environ)
    has_new_key = made_in_token(settings, environ)
    is_to_be_written = isinstance(private_key, Path) and not private_key.exists()
    if not is_to_be_written:
        signer_key(settings, environ)
    journal = place_of(settings).make("init")
    if isinstance(private_key, Path) and is_to_be_written:
        _make_key(private_key, secret)
    key = signer_key(settings, environ)
    letter = operator_letter(endpoint, payout_url, key.public.public_key_pem().decode(), key.public.fingerprint())
    if places.letter is not None:
        write_whole(places.letter, letter.encode())
    write_whole(places.configuration, text.encode())
    return FirstSetup(settings, places, private_key, key, has_new_key or is_to_be_written, journal, letter)


def set_up_sandbox(places: SetupPlaces, *, journal: str | None, force: bool) -> FirstSetup:
    """Create the configuration, journal, throw-away key and example sheet of the built-in gateway."""
    shipped = (config_dir() / "sandbox.toml").read_text(encoding="utf-8")
    text = sandbox_text(shipped, journal)
    settings = settings_of_text(text, places.configuration)
    _check_outputs(settings, places, force=force)
    identity = place_of(settings).make("init")
    private_key = key_place(settings)
    key = signer_key(settings, {})
    if places.sheet is not None:
        rules = rules_of(settings, PAYOUT).values()
        write_example([rule for rule in rules if rule.form is not None], places.sheet)
    write_whole(places.configuration, text.encode())
    return FirstSetup(settings, places, private_key, key, has_new_key=False, journal=identity, letter="")


def require_no_configuration(path: Path, *, force: bool) -> None:
    """Raise `OutputError` if there is a configuration at `path`, unless `force` says that it may be replaced."""
    if path.is_file() and path.stat().st_size and not force:
        raise OutputError(
            say("There is already a configuration at {path}. Nothing was created.", path=path),
            hint=say(
                "Check it with `paygw-batch doctor`, name another file with --config, or replace it with --force."
            ),
        )


def _check_outputs(settings: Settings, places: SetupPlaces, *, force: bool) -> None:
    """Raise `OutputError` unless every file can be written. Only `force` replaces an existing configuration."""
    configuration = places.configuration
    require_no_configuration(configuration, force=force)
    try:
        configuration.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        about = {"path": configuration.parent, "reason": say(error.strerror or "unknown reason").lower()}
        raise OutputError(say("The folder {path} cannot be created: {reason}.", **about)) from None
    OutputGuard(settings, None, force).check(
        RequestedOutput(say("the configuration"), configuration, OutputKind.CONFIGURATION),
        RequestedOutput("--letter", places.letter, OutputKind.NEW),
        RequestedOutput(say("the example"), places.sheet, OutputKind.NEW),
    )


def _passphrase(settings: Settings, environ: Mapping[str, str]) -> bytes | None:
    """Return the passphrase of the key, or None if the person wants none."""
    variable = settings.gateway.private_key_passphrase_env
    secret = passphrase(settings, environ)
    if not secret and (variable or settings.gateway.private_key_passphrase_file):
        raise ConfigurationError(
            say("The variable {variable} holds no passphrase.", variable=variable)
            if variable
            else say("The passphrase file is empty."),
            hint=say("Nothing was created. Put the passphrase there, then run the command again."),
        )
    return secret


def _make_key(path: Path, secret: bytes | None) -> None:
    """Write a new private key (mode 0600) to `path`. Raises `ConfigurationError` if that is impossible."""
    try:
        create_once(path, new_private_key(secret))
    except OSError as error:
        reason = say(error.strerror or "unknown reason").lower()
        raise ConfigurationError(
            say("The private key {path} cannot be created: {reason}.", path=path, reason=reason),
            hint=say("Choose another file: --private-key FILE."),
        ) from None


EXAMPLE_SHEET = Path("sandbox-payroll.csv")
"""The example sheet that `init --sandbox` writes to the current directory, so that a person has a sheet to pay."""


_PRIVATE_KEY = "keys/merchant.pem"
"""The path of a new key, relative to the directory of the configuration."""
_NEEDED = {
    "base_url": mark("The gateway's base address (https://...)"),
    "endpoint_id": mark("Our endpoint id there"),
    "consumer_key": mark("Our consumer key (the login) there"),
    "server_callback_url": mark("Our address for the gateway's notifications (https://...)"),
}
"""The required options, each with its question. At a terminal a missing one is asked for; elsewhere it is an error."""
_COUNTRIES = mark("Countries that you pay in, by their codes (KE TZ ...; Enter: later)")
_PROFILE = mark("The signature covers json-params or raw-body (Enter: not known yet, the letter asks for it)")
_PASSPHRASE = mark("A file with a passphrase for the new key (Enter: none)")


_PROFILES = ("json-params", "raw-body")
_OPTION_NAMES: Mapping[str, str] = MappingProxyType({"countries": "--country", "outcomes": "--outcome"})
"""The options whose parameters have other names."""
_NOTHING = mark("Nothing was created.")


class _KeyPlace(NamedFile):
    """The path of a file, or the address of a key that is not in a file."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        is_address = isinstance(value, str) and value.startswith(KEY_SCHEMES)
        return value if is_address else super().convert(value, param, ctx)


@click.command("init", cls=HelpCommand)
@click.option("--sandbox", is_flag=True, help="Set up the built-in gateway to try things out: no money moves.")
@click.option("--base-url", metavar="URL", help="The gateway's base address, https://...")
@click.option("--endpoint-id", metavar="ID", help="Our endpoint id, issued by the gateway.")
@click.option("--consumer-key", metavar="TEXT", help="The merchant's login at the gateway.")
@click.option("--server-callback-url", metavar="URL", help="Our address for the gateway's notifications.")
@click.option(
    "--country",
    "countries",
    multiple=True,
    metavar="XX[=PURPOSE]",
    shell_complete=complete_countries,
    help="A country to pay in. Repeatable.",
)
@click.option("--signature-profile", type=click.Choice(_PROFILES), help="What the signature covers, if known.")
@click.option(
    "--outcome",
    "outcomes",
    multiple=True,
    metavar="WORD=MEANING",
    help="What a status word means: approved=paid. Repeatable.",
)
@click.option(
    "--private-key", type=_KeyPlace(), help="The key's file, or pkcs11:... or awskms:... An existing key is used."
)
@click.option("--pkcs11-module", type=NamedFile(), help="The module of the token's vendor, for pkcs11:...")
@click.option("--private-key-passphrase-env", metavar="NAME", help="The variable that holds the key's passphrase.")
@click.option("--private-key-passphrase-file", type=NamedFile(), help="The file that holds the key's passphrase.")
@click.option("--ca-bundle", type=NamedFile(), help="Certificate authorities to trust instead of the system's.")
@click.option("--proxy", metavar="URL", help="Proxy to the gateway: http://host:port.")
@click.option("--letter", type=NamedFile(), metavar="FILE", help="Also write the letter to a new file.")
@force_option
@click.pass_obj
def init_command(invocation: Invocation, /, *, sandbox: bool, letter: Path | None, force: bool, **answers: Any) -> None:
    """Set up an endpoint: its configuration, its key, its journal, and a letter to the gateway's operator.

    At a terminal, it asks for the options that you leave out. The configuration is written to --config, or to your
    own configuration file, which every command reads by default.
    """
    screen = Screen(invocation)
    configuration = invocation.config or default_configuration()
    journal = None if invocation.journal is None else str(invocation.journal.absolute())
    if sandbox:
        if answered := [name for name, value in answers.items() if value]:
            sentence = mark("--sandbox and {option} cannot be combined: the sandbox needs no answers.")
            raise UsageError(say(sentence, option=f"--{answered[0].replace('_', '-')}"))
        sheet = None if EXAMPLE_SHEET.exists() else EXAMPLE_SHEET
        done = set_up_sandbox(SetupPlaces(configuration, letter, sheet), journal=journal, force=force)
    else:
        if screen.asks():  # this comes before any question, so that nobody answers in vain
            require_no_configuration(configuration, force=force)
        completed = _completed(answers, screen)
        try:
            endpoint = _endpoint(completed, journal)
            done = set_up_endpoint(endpoint, SetupPlaces(configuration, letter), environ=os.environ, force=force)
        except PaygwError as error:
            if error.hint == say(ConfigurationError.default_hint):  # `doctor` has nothing to check yet
                error.hint = say(_NOTHING)
            _keep_answers(screen, completed, answers, invocation)
            raise
    _show(screen, done)
    screen.finish(Summary(ExitCode.DONE, _message(done, invocation), further=_told(done)))


def _completed(answers: Mapping[str, Any], screen: Screen) -> dict[str, Any]:
    """Return the answers, completed by a person at a terminal. Elsewhere raise `UsageError` with missing options."""
    missing = [name for name in _NEEDED if not answers[name]]
    if not screen.asks():
        if missing:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in missing)
            hint = say("Add these options, or run the command at a terminal. `paygw-batch init --sandbox` needs none.")
            raise UsageError(say("init needs {flags}. Nothing was created.", flags=flags), hint=hint)
        return dict(answers)
    completed = dict(answers)
    for name in missing:
        completed[name] = prompted(say(_NEEDED[name]), value_proc=_CHECKED.get(name, str.strip))
    if not missing:  # a person who gave every required option is not asked about the others
        return completed
    if not answers["countries"]:
        typed = prompted(say(_COUNTRIES), default="", show_default=False, value_proc=_typed_countries)
        completed["countries"] = _words_of_countries(typed)
    if not answers["signature_profile"]:
        typed = prompted(say(_PROFILE), default="", show_default=False, value_proc=_typed_profile)
        completed["signature_profile"] = typed
    if not answers["private_key_passphrase_env"] and not answers["private_key_passphrase_file"]:
        file = prompted(say(_PASSPHRASE), default="", show_default=False, value_proc=_typed_file)
        completed["private_key_passphrase_file"] = Path(file) if file else None
    return completed


def _keep_answers(
    screen: Screen, completed: Mapping[str, Any], typed: Mapping[str, Any], invocation: Invocation
) -> None:
    """Print the command with the answers as options, so that nobody has to type them again."""
    if completed == typed:
        return
    words = ["paygw-batch", *(["--config", str(invocation.config)] if invocation.config is not None else []), "init"]
    for name, value in completed.items():
        option = _OPTION_NAMES.get(name, f"--{name.replace('_', '-')}")
        for word in value if isinstance(value, list | tuple) else [value] if value else []:
            words += [option, str(word)]
    screen.say(say("Your answers are kept in this command:"))
    screen.verbatim(f"  {shlex.join(words)}")


def _typed_base_url(text: str) -> str:
    """Return a typed address, or raise `click.UsageError`, after which click asks again."""
    try:
        operation_url(text.strip(), load_operation(PAYOUT), "1")
    except PaygwError as error:
        raise click.UsageError(f"{error.message} {error.hint}".strip()) from None
    return text.strip()


def _typed_endpoint(text: str) -> str:
    if text.strip() in {"", ".", ".."}:
        raise click.UsageError(say("That is not an id. Write it as the gateway's operator issued it."))
    return text.strip()


def _typed_profile(text: str) -> str:
    if text.strip() not in {*_PROFILES, ""}:
        raise click.UsageError(say("Write json-params or raw-body, or press Enter."))
    return text.strip()


def _typed_file(text: str) -> str:
    """Return the absolute path of a typed file name, or an empty text."""
    path = Path(text.strip()).expanduser().absolute()
    if text.strip() and not path.is_file():
        raise click.UsageError(say("There is no file {path}.", path=path))
    return str(path) if text.strip() else ""


def _typed_callback(text: str) -> str:
    if not _is_address(text.strip()):
        raise click.UsageError(say("That is not an address. Write https://..."))
    return text.strip()


def _typed_countries(text: str) -> str:
    try:
        _countries(_words_of_countries(text))
    except UsageError as error:
        raise click.UsageError(f"{error.message} {error.hint}".strip()) from None
    return text


def _words_of_countries(text: str) -> list[str]:
    return [word.strip() for word in (text.split(",") if "," in text else text.split()) if word.strip()]


_CHECKED: Mapping[str, Callable[[str], str]] = MappingProxyType(
    {"base_url": _typed_base_url, "endpoint_id": _typed_endpoint, "server_callback_url": _typed_callback}
)
"""The functions that check answers at a prompt, by option. After an error, click shows it and asks again."""


def _is_address(text: str) -> bool:
    return text.startswith(("https://", "http://"))


def _endpoint(answers: Mapping[str, Any], journal: str | None) -> NewEndpoint:
    if answers["base_url"] == "sandbox":
        raise UsageError(say("Set up the built-in gateway with `paygw-batch init --sandbox`."), hint=say(_NOTHING))
    if not _is_address(answers["server_callback_url"]):
        raise UsageError(say("--server-callback-url is not an address. Write https://..."), hint=say(_NOTHING))
    countries = _countries(answers["countries"])
    rules = load_rules(PAYOUT, {})
    return NewEndpoint(
        base_url=answers["base_url"],
        endpoint_id=answers["endpoint_id"],
        consumer_key=answers["consumer_key"],
        server_callback_url=answers["server_callback_url"],
        private_key=_path(answers["private_key"]) or _PRIVATE_KEY,
        pkcs11_module=_path(answers["pkcs11_module"]),
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
    """Return the purpose of each country, by its code; None if not given. `words` name countries by code or name."""
    rules = load_rules(PAYOUT, {})
    codes = {name.casefold(): rule.code for rule in rules.values() for name in (rule.name, say(rule.name))}
    purposes = {}
    for country, _, purpose in (word.partition("=") for word in words):
        name = country.strip()
        purposes[codes.get(name.casefold()) or country_named(name, rules).code] = purpose.strip() or None
    return purposes


def _pair(text: str, flag: str, example: str) -> tuple[str, str]:
    left, equals, right = text.partition("=")
    if not left.strip() or not equals or not right.strip():
        raise UsageError(say("{flag} {text}: write it as {example}.", flag=flag, text=text, example=example))
    return left.strip(), right.strip()


def _path(path: Path | str | None) -> str | None:
    """Return the absolute path for the configuration, because people type paths from the current directory."""
    return str(path.absolute()) if isinstance(path, Path) else path


def _show(screen: Screen, done: FirstSetup) -> None:
    """Print the created paths, the public half of the key and the letter. The JSON has them as members."""
    if screen.as_json:
        return
    is_old = not done.has_new_key and not done.settings.uses_sandbox
    key = say("{path} (an existing key, used as it is)", path=done.private_key) if is_old else str(done.private_key)
    lines = [
        (say("Configuration:"), str(done.places.configuration)),
        (say("Private key:"), key),
        (say("Journal:"), str(done.settings.journal_path())),
        *([(say("Example sheet:"), str(done.places.sheet))] if done.places.sheet is not None else []),
    ]
    width = max(len(name) for name, _ in lines)
    for name, value in lines:
        screen.say(f"{name:<{width}} {value}")
    if done.letter:
        screen.say("")
        screen.say(say("The public half of the key, and the questions for the gateway's operator:"))
        screen.say("")
        screen.verbatim(done.letter.rstrip("\n"))


def _message(done: FirstSetup, invocation: Invocation) -> str:
    named = "" if invocation.config is None else f"--config {shlex.quote(str(invocation.config))} "
    if done.settings.uses_sandbox:
        return say(
            "The sandbox is ready; no money moves there. Pay a sheet: paygw-batch {named}submit {sheet}",
            named=named,
            sheet=EXAMPLE_SHEET,
        )
    if not done.missing:
        return say(
            "Setup is complete. Run `paygw-batch {named}doctor`, then: paygw-batch {named}submit SHEET --first 1",
            named=named,
        )
    return say(
        "Next: send the letter, and write the answers into {configuration} ({missing}). `paygw-batch {named}doctor` "
        "lists what is still missing. Then: paygw-batch {named}submit SHEET --first 1",
        configuration=done.places.configuration,
        missing=", ".join(done.missing),
        named=named,
    )


def _told(done: FirstSetup) -> dict[str, object]:
    """Return the members of the JSON summary. `made` says whether the journal is new."""
    path, sheet = str(done.settings.journal_path()), done.places.sheet
    name = done.settings.endpoint_identity().name
    journal = {"path": path, "endpoint": name, "made": done.journal is not None}
    return {
        "configuration": str(done.places.configuration),
        "private_key": str(done.private_key),
        "public_key": done.key.public.public_key_pem().decode(),
        "fingerprint": done.key.public.fingerprint(),
        "journal": journal if done.journal is None else {"id": done.journal.journal_id, **journal},
        "missing": done.missing,
        "letter": done.letter,
        "example_sheet": None if sheet is None else str(sheet),
    }


@click.group("config", cls=HelpGroup)
def config_command() -> None:
    """Show the settings that a command would use."""


@config_command.command("show", short_help="Show every setting and its origin.")
@click.pass_obj
@click.pass_context
def show(ctx: click.Context, invocation: Invocation) -> None:
    """Show every setting, its value and its origin: command line, environment, file or default.

    No secret is shown: the configuration names only the files and variables that hold secrets, and these are not
    read.
    """
    screen, settings = Screen(invocation, only_shows=True), settings_of(invocation)
    journal_origin = None
    if invocation.journal is not None:
        is_variable = ctx.find_root().get_parameter_source("journal") is ParameterSource.ENVIRONMENT
        journal_origin = "environment: PAYGW_JOURNAL" if is_variable else "command line"
    listed = list(setting_origins(settings, invocation.config, os.environ, journal_origin))
    lines = [(setting.key, setting.value or "-", setting.origin) for setting in listed]
    screen.table("", mark_all("setting", "value", "from"), lines)
    where, file = say("There is no configuration file."), None
    if invocation.config is not None:
        where, file = say("The file is {path}.", path=invocation.config), str(invocation.config)
    members = [{"key": setting.key, "value": setting.value or None, "from": setting.origin} for setting in listed]
    screen.finish(Summary(ExitCode.DONE, where, further={"configuration": file, "settings": members}))


PROGRAM = "paygw-batch"
VARIABLE = "_PAYGW_BATCH_COMPLETE"
"""The variable by which a shell asks the program for completions. Click derives it from the program's name."""


@click.command("completion", cls=HelpCommand)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_obj
@click.pass_context
def completion_command(ctx: click.Context, invocation: Invocation, *, shell: str) -> None:
    """Print the script that completes commands, options, batch ids and countries in SHELL.

    For bash, write `eval "$(paygw-batch completion bash)"` into ~/.bashrc; for zsh, the same with zsh into ~/.zshrc,
    after compinit. For fish, write the script to ~/.config/fish/completions/paygw-batch.fish.
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise InternalError(f"click completes nothing in {shell}")
    script = kind(ctx.find_root().command, {}, PROGRAM, VARIABLE).source()
    screen = Screen(invocation, only_shows=True)
    if screen.as_json:
        screen.finish(Summary(ExitCode.DONE, say("The script for {shell}.", shell=shell), further={"script": script}))
    standard_output().write(f"{script.strip()}\n")
