"""Sets up an endpoint from nothing: its configuration, its key, its journal, and a letter to the gateway's operator."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from paygw_batch.core.batch import PAYOUT
from paygw_batch.countries.data import config_dir
from paygw_batch.countries.load import load_operation
from paygw_batch.errors import ConfigurationError, OutputError
from paygw_batch.files import create_once, write_whole
from paygw_batch.gateway.address import operation_url
from paygw_batch.gateway.signing.key import SigningKey, new_private_key
from paygw_batch.journal import Identity
from paygw_batch.language import say
from paygw_batch.settings.configuration import Settings, settings_of_text
from paygw_batch.settings.new_configuration import NewEndpoint, endpoint_text, operator_letter, sandbox_text
from paygw_batch.sheet.write.template import write_example
from paygw_batch.wiring.gateway import key_place, made_in_token, passphrase, signer_key
from paygw_batch.wiring.journal import place_of
from paygw_batch.wiring.outputs import OutputGuard, OutputKind, RequestedOutput
from paygw_batch.wiring.sheet import rules_of


@dataclass(frozen=True, slots=True)
class SetupPlaces:
    """The files that `init` writes. `letter` and `sheet` are None if not wanted."""

    configuration: Path
    letter: Path | None = None
    sheet: Path | None = None


@dataclass(frozen=True, slots=True)
class FirstSetup:
    """The result of the setup. `journal` is None, and `has_new_key` False, if it existed before."""

    settings: Settings
    places: SetupPlaces
    private_key: Path | str
    key: SigningKey
    has_new_key: bool
    journal: Identity | None
    letter: str

    @property
    def missing(self) -> list[str]:
        """The configuration keys still needed before anything can be sent, except those of unused countries."""
        used = [rule for code, rule in rules_of(self.settings, PAYOUT).items() if code in self.settings.countries]
        return [*self.settings.missing_to_send(), *(key for rule in used for key in rule.missing_terms)]


def set_up_endpoint(
    endpoint: NewEndpoint, places: SetupPlaces, *, environ: Mapping[str, str], force: bool
) -> FirstSetup:
    """Create the configuration, key and journal of a real endpoint, and the letter to its operator.

    An existing key or journal is used, never replaced. The configuration is written last: if it exists, so do the
    others.
    """
    text = endpoint_text(endpoint)
    settings = settings_of_text(text, places.configuration)
    payout_url = operation_url(endpoint.base_url, load_operation(PAYOUT), endpoint.endpoint_id)
    rules_of(settings, PAYOUT)
    _check_outputs(settings, places, force=force)
    private_key = key_place(settings)
    secret = _passphrase(settings, environ)
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
    """Create the configuration and journal of the built-in gateway, with its throw-away key, and an example sheet."""
    shipped = (config_dir() / "sandbox.toml").read_text(encoding="utf-8")
    text = sandbox_text(shipped, journal)
    settings = settings_of_text(text, places.configuration)
    _check_outputs(settings, places, force=force)
    made = place_of(settings).make("init")
    private_key = key_place(settings)
    key = signer_key(settings, {})
    if places.sheet is not None:
        rules = rules_of(settings, PAYOUT).values()
        write_example([rule for rule in rules if rule.form is not None], places.sheet)
    write_whole(places.configuration, text.encode())
    return FirstSetup(settings, places, private_key, key, has_new_key=False, journal=made, letter="")


def require_no_configuration(path: Path, *, force: bool) -> None:
    """Raise `OutputError` if there is a configuration at `path` that may not be replaced (`force`)."""
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
        reason = say(error.strerror or "unknown reason").lower()
        raise OutputError(
            say("The folder {path} cannot be created: {reason}.", path=configuration.parent, reason=reason)
        ) from None
    OutputGuard(settings, None, force).check(
        RequestedOutput(say("the configuration"), configuration, OutputKind.CONFIGURATION),
        RequestedOutput("--letter", places.letter, OutputKind.NEW),
        RequestedOutput(say("the example"), places.sheet, OutputKind.NEW),
    )


def _passphrase(settings: Settings, environ: Mapping[str, str]) -> bytes | None:
    """Return the passphrase of the key; None if the person wants none."""
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
    """Write a new private key (mode 0600) to `path`, which must not exist."""
    try:
        create_once(path, new_private_key(secret))
    except OSError as error:
        reason = say(error.strerror or "unknown reason").lower()
        raise ConfigurationError(
            say("The private key {path} cannot be created: {reason}.", path=path, reason=reason),
            hint=say("Choose another file: --private-key FILE."),
        ) from None
