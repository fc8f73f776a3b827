"""Makes the configuration, key and journal that a new user needs before the first run. The use case of `init`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from paygw_batch.compose.journal import make_journal
from paygw_batch.compose.operations import rules_of
from paygw_batch.compose.outputs import OutputGuard, OutputKind, Wanted
from paygw_batch.compose.secrets import passphrase
from paygw_batch.compose.signing import key_path
from paygw_batch.core.batch import PAYOUT
from paygw_batch.countries.load import config_dir
from paygw_batch.errors import ConfigurationError, OutputError
from paygw_batch.files import create_once, write_whole
from paygw_batch.gateway.address import gateway_origin
from paygw_batch.gateway.signing.key import PrivateKey, load_private_key, new_private_key
from paygw_batch.journal import Identity
from paygw_batch.settings.configuration import Settings, settings_of_text
from paygw_batch.settings.new_configuration import NewEndpoint, endpoint_text, sandbox_text
from paygw_batch.settings.operator_letter import operator_letter
from paygw_batch.sheet.write.example_sheet import write_example

EXAMPLE_SHEET = Path("sandbox-payroll.csv")
"""The example sheet that `init --sandbox` writes into the current directory, to have something to pay."""


@dataclass(frozen=True, slots=True)
class SetupPlaces:
    """The files that `init` writes. `letter` and `sheet` are None where none is wanted."""

    configuration: Path
    letter: Path | None = None
    sheet: Path | None = None


@dataclass(frozen=True, slots=True)
class FirstSetup:
    """The result of the setup. `journal` is None, and `has_new_key` False, for one that existed before."""

    settings: Settings
    places: SetupPlaces
    private_key: Path
    key: PrivateKey
    has_new_key: bool
    journal: Identity | None
    letter: str

    @property
    def missing(self) -> list[str]:
        """The configuration keys that are still needed before anything can be sent, but for unused countries."""
        used = [rule for code, rule in rules_of(self.settings, PAYOUT).items() if code in self.settings.countries]
        return [*self.settings.missing_to_send(), *(key for rule in used for key in rule.missing_terms)]


def set_up_endpoint(
    endpoint: NewEndpoint, places: SetupPlaces, *, environ: Mapping[str, str], force: bool
) -> FirstSetup:
    """Make configuration, key and journal of a real endpoint, and the letter to its operator.

    A key or a journal that is there already is used, and never replaced. The configuration comes last: where it is,
    the others are.
    """
    text = endpoint_text(endpoint)
    settings = settings_of_text(text, places.configuration)
    gateway_origin(endpoint.base_url)
    rules_of(settings, PAYOUT)
    _check_outputs(settings, places, force=force)
    private_key = key_path(settings)
    secret = _passphrase(settings, environ)
    has_new_key = not private_key.exists()
    if not has_new_key:
        load_private_key(private_key, secret)
    journal = make_journal(settings, "init")
    if has_new_key:
        _make_key(private_key, secret)
    key = load_private_key(private_key, secret)
    letter = operator_letter(endpoint, key.public_key_pem().decode(), key.fingerprint())
    if places.letter is not None:
        write_whole(places.letter, letter.encode())
    write_whole(places.configuration, text.encode())
    return FirstSetup(settings, places, private_key, key, has_new_key, journal, letter)


def set_up_sandbox(places: SetupPlaces, *, journal: str | None, force: bool) -> FirstSetup:
    """Make configuration and journal of the built-in gateway, with its throw-away key, and an example sheet."""
    shipped = (config_dir() / "sandbox.toml").read_text(encoding="utf-8")
    text = sandbox_text(shipped, journal)
    settings = settings_of_text(text, places.configuration)
    _check_outputs(settings, places, force=force)
    made = make_journal(settings, "init")
    private_key = key_path(settings)
    key = load_private_key(private_key)
    if places.sheet is not None:
        rules = rules_of(settings, PAYOUT).values()
        write_example([rule for rule in rules if rule.form is not None], places.sheet)
    write_whole(places.configuration, text.encode())
    return FirstSetup(settings, places, private_key, key, has_new_key=False, journal=made, letter="")


def _check_outputs(settings: Settings, places: SetupPlaces, *, force: bool) -> None:
    """Raise `OutputError` unless all can be written. A configuration that is there is replaced with force alone."""
    configuration = places.configuration
    if configuration.is_file() and configuration.stat().st_size and not force:
        raise OutputError(
            f"There is a configuration at {configuration} already: nothing was made.",
            hint="`paygw-batch doctor` looks at it. Name another file with --config, or replace it with --force.",
        )
    try:
        configuration.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{configuration.parent} cannot be made: {error.strerror}.") from None
    OutputGuard(settings, None, force).check(
        Wanted("the configuration", configuration, OutputKind.CONFIGURATION),
        Wanted("--letter", places.letter, OutputKind.NEW),
        Wanted("the example", places.sheet, OutputKind.NEW),
    )


def _passphrase(settings: Settings, environ: Mapping[str, str]) -> bytes | None:
    """Return the passphrase of the key; None where the person wants none."""
    variable = settings.gateway.private_key_passphrase_env
    secret = passphrase(settings, environ)
    if not secret and (variable or settings.gateway.private_key_passphrase_file):
        raise ConfigurationError(
            f"There is no passphrase in the variable {variable}." if variable else "The passphrase file is empty.",
            hint="Nothing was made. Put the passphrase there, and run the command again.",
        )
    return secret


def _make_key(path: Path, secret: bytes | None) -> None:
    """Write a new private key (mode 0600) to `path`, where there is none."""
    try:
        create_once(path, new_private_key(secret))
    except OSError as error:
        raise ConfigurationError(
            f"The private key {path} cannot be made: {error.strerror}.", hint="Name another place: --private-key FILE."
        ) from None
