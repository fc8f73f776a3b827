"""Reads the configuration file and the environment into frozen values.

A command-line flag overrides the environment variable `PAYGW_<KEY>`, which overrides the TOML file and the default.
Unknown keys are refused by name. The file contains no secrets: it names files and environment variables that do.
Settings that the gateway's interface leaves open (`signature_profile`, `[outcomes]`, `purpose`) have no default;
`missing_for_sending` names those that are absent.
"""

import difflib
import hashlib
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import SplitResult, urlsplit

from pydantic import BaseModel, Field, ValidationError, model_validator

from paygw_batch.core.endpoint_identity import EndpointIdentity
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.countries.data import validation_message
from paygw_batch.countries.rules import OperatorTerms, PurposeTerms
from paygw_batch.errors import ConfigurationError
from paygw_batch.language import say
from paygw_batch.processes import INHERITED_VARIABLES
from paygw_batch.settings.sections import (
    KEY_SCHEMES,
    ApprovalSection,
    ConsoleSection,
    CountrySection,
    EvidenceSection,
    GatewaySection,
    JournalSection,
    LimitsSection,
    NoticesSection,
    NotificationsSection,
    PayinSection,
    PayinTermsSection,
    PayoutTermsSection,
    ReplySection,
    ReportingSection,
    RetentionSection,
    RetrySection,
    SandboxSection,
    Section,
    SheetSection,
    StatementSection,
    StatusEnquirySection,
    SubmissionSection,
    TimetableSection,
)
from paygw_batch.settings.user_directories import state_directory
from paygw_batch.trusted_files import OtherUsers, read_and_check_access

SANDBOX = "sandbox"
"""The `base_url` that starts the built-in gateway for the duration of a run."""


_DEFAULT_PORTS = {"https": 443, "http": 80}


def _non_default_port(address: SplitResult) -> int | None:
    """Return the port of a URL, or None for the scheme's default. Invalid ports are refused elsewhere."""
    try:
        return address.port if address.port != _DEFAULT_PORTS.get(address.scheme) else None
    except ValueError:
        return None


class Settings(Section):
    """All settings of a run. All paths are absolute."""

    gateway: GatewaySection = GatewaySection()
    submission: SubmissionSection = SubmissionSection()
    journal: JournalSection = JournalSection()
    reply: ReplySection = ReplySection()
    outcomes: Mapping[str, Literal["paid", "accepted", "rejected"]] = Field(default_factory=dict)
    retry: RetrySection = RetrySection()
    retention: RetentionSection = RetentionSection()
    limits: LimitsSection = LimitsSection()
    sheet: SheetSection = SheetSection()
    columns: Mapping[str, str] = Field(default_factory=dict)
    countries: Mapping[str, CountrySection] = Field(default_factory=dict)
    statement: StatementSection = StatementSection()
    evidence: EvidenceSection = EvidenceSection()
    approval: ApprovalSection = ApprovalSection()
    reporting: ReportingSection = ReportingSection()
    notifications: NotificationsSection = NotificationsSection()
    notices: NoticesSection = NoticesSection()
    status_enquiry: StatusEnquirySection = StatusEnquirySection()
    sandbox: SandboxSection = SandboxSection()
    console: ConsoleSection = ConsoleSection()
    payin: PayinSection = PayinSection()
    timetable: TimetableSection = TimetableSection()

    @model_validator(mode="after")
    def _validate_timetable(self) -> "Settings":
        if self.timetable.model_fields_set and self.journal.url is None:
            raise ValueError(
                say("a timetable is run by workers; set [journal] url (docs/several-hosts.md), or use cron")
            )
        return self

    @model_validator(mode="after")
    def _validate_secret_variables(self) -> "Settings":
        if inherited := sorted(secret_variables(self) & INHERITED_VARIABLES):
            raise ValueError(
                say(
                    "a secret cannot be in the variable {handed_on}, which is passed to other programs",
                    handed_on=inherited[0],
                )
            )
        return self

    @property
    def uses_sandbox(self) -> bool:
        """Whether the built-in gateway replaces the real one."""
        return self.gateway.base_url == SANDBOX

    def words(self) -> Mapping[str, OutcomeKind]:
        """Return the meaning of each of the gateway's status words."""
        return {word: OutcomeKind(meaning) for word, meaning in self.outcomes.items()}

    def terms(self, operation: str) -> Mapping[str, OperatorTerms]:
        """Return the operator's terms for an operation, by country."""
        sections = {code: getattr(section, operation, None) for code, section in self.countries.items()}
        return {code: _operator_terms(terms) for code, terms in sections.items() if terms is not None}

    def urls(self) -> Mapping[str, str | None]:
        """Return the operator's own URLs, by field name."""
        return {
            "server_callback_url": self.gateway.server_callback_url,
            "site_url": self.payin.site_url,
            "redirect_url": self.payin.redirect_url,
        }

    def missing_for(self, operation: str) -> list[str]:
        """Return the missing keys for an operation, besides those of the gateway and of countries."""
        return self.payin.missing_keys() if operation == "payin" else []

    def endpoint(self) -> str:
        """Return the name of the endpoint to which payments are sent: `HOST[:PORT]/ENDPOINT_ID`."""
        return self.endpoint_identity().name

    def endpoint_identity(self) -> EndpointIdentity:
        """Return the identity of the endpoint to which payments are sent, however its host is spelled."""
        gateway = self.gateway
        port = None if self.uses_sandbox else _non_default_port(urlsplit(gateway.base_url or ""))
        return EndpointIdentity.create(self._host(), gateway.endpoint_id or "unset", gateway.consumer_key, port=port)

    def _host(self) -> str:
        return SANDBOX if self.uses_sandbox else urlsplit(self.gateway.base_url or "").hostname or "unset"

    def journal_place(self) -> str:
        """Return the journal's location for people: its path, or its database's address without the user."""
        if self.journal.url is None:
            return str(self.journal_path())
        address = urlsplit(self.journal.url)
        return f"{address.scheme}://{address.netloc.rpartition('@')[2]}{address.path}"

    def journal_path(self) -> Path:
        """Return the journal's path: the configured one, or one for each merchant in the user's state directory.

        The path does not depend on the port, so that a configuration with another port finds the same journal, and is
        refused. With `journal.url` there is no journal at this path, but other files of this host are next to it.
        """
        if self.journal.path is not None:
            return self.journal.path
        host = self._host()
        merchant = f"{host}/{self.gateway.consumer_key or 'unset'}"
        readable = "".join(c if c.isalnum() or c in ".-" else "_" for c in host)
        folder = f"{readable}-{hashlib.sha256(merchant.encode()).hexdigest()[:8]}"
        return state_directory() / folder / "journal.sqlite3"

    def known_journals_directory(self, journal: Path | None = None) -> Path:
        """Return the folder of the known journals and their sent logs, which is never next to a journal.

        Only the folder of a sandbox's journal (by default the configured one) is next to it, so that both are deleted
        together.
        """
        if self.uses_sandbox:
            path = journal or self.journal_path()
            return path.with_name(f"known.{path.name}")
        return state_directory() / "journals"

    def console_directory(self) -> Path:
        """Return the folder for sheets in preparation: the configured one, or one next to the journal."""
        return self.console.directory or self.journal_path().with_name("console")

    def console_runs_directory(self) -> Path:
        return self.console_directory() / "runs"

    def missing_for_sending(self) -> list[str]:
        """Return the missing keys that sending needs."""
        gateway = self.gateway
        required: dict[str, object] = {
            "gateway.base_url": gateway.base_url,
            "gateway.endpoint_id": gateway.endpoint_id,
            "gateway.consumer_key": gateway.consumer_key,
            "gateway.private_key": gateway.private_key or self.uses_sandbox,
            "gateway.server_callback_url": gateway.server_callback_url,
            "gateway.signature_profile": gateway.signature_profile,
            "outcomes": self.outcomes,
        }
        return [key for key, value in required.items() if not value]


_ENVIRONMENT_SECTIONS: Mapping[str, type[Section]] = {
    "gateway": GatewaySection,
    "submission": SubmissionSection,
    "retry": RetrySection,
    "limits": LimitsSection,
    "sheet": SheetSection,
}
_FILE_ONLY = ("submission", "quarantine_h")
"""A key that guards against a second payment, which the environment and the command line must not weaken."""
_PROFILE = ("sheet", "column_profile")
"""A key whose value is a name, or the path of a file that ends in .toml."""
_OTHER_VARIABLES = ("PAYGW_CONFIG", "PAYGW_IMAGE", "PAYGW_JOURNAL", "PAYGW_LANG", "PAYGW_APPROVAL_PASSPHRASE")


def environment_keys() -> Mapping[str, tuple[str, str]]:
    """Map each environment variable that sets a key to its section and key."""
    keys = {
        f"PAYGW_{key.upper()}": (section, key)
        for section, model in _ENVIRONMENT_SECTIONS.items()
        for key in model.model_fields
        if (section, key) not in {("retry", "order_id"), _FILE_ONLY}
    }
    keys["PAYGW_RETRY_ORDER_ID"] = ("retry", "order_id")
    return keys


def load_settings(
    file: Path | None,
    *,
    environ: Mapping[str, str],
    flags: Mapping[tuple[str, str], object] | None = None,
    distrusts: list[ConfigurationError] | None = None,
) -> Settings:
    """Load the settings from `file`, overridden by the environment and then by the command line's `flags`.

    Raises `ConfigurationError` with all wrong keys at once, and for a file that other users can write, because its
    writer decides where money goes (except with the built-in gateway). If `distrusts` is given, the error about other
    users is added to it instead.
    """
    source = None if file is None else read_and_check_access(file, str(file), OtherUsers.MAY_READ, max_bytes=1 << 20)
    tables = {} if file is None or source is None else _parse_tables(file, source.content)
    base_folder = file.resolve().parent if file is not None else Path.cwd()
    for (section, key), value in {**_environment_values(environ), **(flags or {})}.items():
        table = tables.setdefault(section, {})
        if not isinstance(table, dict):
            raise ConfigurationError(say("{file}: [{section}] must be a table.", file=file, section=section))
        table[key] = value
    settings = _validate_settings(tables, base_folder, "" if file is None else f"{file}: ")
    if source is not None and source.distrust is not None and not settings.uses_sandbox:
        if distrusts is None:
            raise source.distrust
        distrusts.append(source.distrust)
    return settings


def parse_settings(text: str, file: Path) -> Settings:
    """Parse the settings in `text`, which will become the configuration `file`, without environment and flags.

    Raises `ConfigurationError` with all wrong keys at once.
    """
    return _validate_settings(_parse_tables(file, text.encode()), file.resolve().parent, "")


def _validate_settings(tables: Mapping[str, Any], base_folder: Path, prefix: str) -> Settings:
    try:
        return Settings.model_validate(tables, context=base_folder)
    except ValidationError as error:
        raise ConfigurationError(prefix + " ".join(_describe_errors(error))) from None


def _parse_tables(file: Path, content: bytes) -> dict[str, Any]:
    try:
        return tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            say("{file} is not TOML: {error}.", file=file, error=error), hint=say("Correct that line.")
        ) from None


def _environment_values(environ: Mapping[str, str]) -> dict[tuple[str, str], object]:
    values: dict[tuple[str, str], object] = {}
    if "PAYGW_QUARANTINE_H" in environ:
        raise ConfigurationError(
            say("PAYGW_QUARANTINE_H is set, but an environment variable cannot set quarantine_h."),
            hint=say("Unset it. Only the configuration file can set [submission] quarantine_h."),
        )
    for name, (section, key) in environment_keys().items():
        text = environ.get(name)
        if text is None:
            continue
        annotation = _ENVIRONMENT_SECTIONS[section].model_fields[key].annotation
        value = _parse_variable(name, text, annotation)
        is_own_profile = (section, key) == _PROFILE and text.endswith(".toml")
        values[section, key] = _parse_path_variable(name, text) if is_own_profile else value
    if (path := environ.get("PAYGW_JOURNAL")) is not None:
        values["journal", "path"] = _parse_path_variable("PAYGW_JOURNAL", path)
    return values


def _parse_variable(name: str, text: str, annotation: Any) -> object:
    options = _annotated_types(annotation)
    try:
        if int in options:
            return int(text)
        if float in options:
            return float(text)
    except ValueError:
        raise ConfigurationError(say("{name} is {text!r}, which is not a number.", name=name, text=text)) from None
    if Path in options:
        is_address = str in options and text.startswith(KEY_SCHEMES)
        return text if is_address else _parse_path_variable(name, text)
    return text


def _annotated_types(annotation: Any) -> set[Any]:
    """Return the types that a value may have, including those inside `Annotated`."""
    return {annotation}.union(*map(_annotated_types, get_args(annotation)))


def _parse_path_variable(name: str, text: str) -> str:
    """Return the absolute path in a variable. Rejects an empty one, which would mean the current directory."""
    if not text.strip():
        raise ConfigurationError(
            say("{name} is empty, but must be a path.", name=name), hint=say("Set it to a path, or unset it.")
        )
    return str(Path(text).absolute())


def secret_variables(settings: Settings) -> frozenset[str]:
    """Return the environment variables with secrets that the configuration names."""
    settings_of_sections = (setting for _, section in settings if isinstance(section, Section) for setting in section)
    return frozenset(
        name for key, name in settings_of_sections if key.endswith("_env") and key != "public_key_env" and name
    )


def unknown_variables(environ: Mapping[str, str], settings: Settings) -> list[str]:
    """Return the `PAYGW_` variables that set no key and are probably misspelt."""
    configured = {*secret_variables(settings), settings.notifications.public_key_env}
    known_variables = {*environment_keys(), *_OTHER_VARIABLES, *configured}
    return sorted(name for name in environ if name.startswith("PAYGW_") and name not in known_variables)


def _describe_errors(error: ValidationError) -> Iterable[str]:
    for problem in error.errors(include_url=False, include_input=False):
        key = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            known_keys = _known_keys(problem["loc"][:-1])
            nearest = difflib.get_close_matches(str(problem["loc"][-1]), known_keys, n=1, cutoff=0.0)
            yield (
                say("{key} is not a known key; the nearest is {nearest}.", key=key, nearest=nearest[0])
                if nearest
                else say("{key} is not a known key.", key=key)
            )
        else:
            yield f"{key}: {validation_message(problem)}." if key else f"{validation_message(problem)}."


def _known_keys(location: tuple[int | str, ...]) -> list[str]:
    model: type[BaseModel] = Settings
    for part in location:
        if model is Settings and part == "countries":
            model = CountrySection
        elif isinstance(part, str) and part in model.model_fields:
            kinds = _annotated_types(model.model_fields[part].annotation)
            model = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), model)
    return [field.alias or name for name, field in model.model_fields.items()]


_USER_INFO = re.compile(r"(?<=://)[^/@\s]+@")
"""A name and a password in an address, which do not belong there and are never repeated."""


@dataclass(frozen=True, slots=True)
class SettingOrigin:
    """One setting: its dotted key, its value as text (empty if not set), and where it was set."""

    key: str
    value: str
    origin: str


def setting_origins(
    settings: Settings, file: Path | None, environ: Mapping[str, str], journal_origin: str | None
) -> Iterator[SettingOrigin]:
    """Yield every setting. `journal_origin` is the origin of the journal's path, if that is not the file.

    `settings` were read from `file`, so the file exists and is valid TOML.
    """
    file_keys = dict(_flatten_tables(tomllib.loads(file.read_text(encoding="utf-8")))) if file is not None else {}
    variables = {f"{section}.{key}": name for name, (section, key) in environment_keys().items() if name in environ}
    values = dict(_flatten_tables(settings.model_dump(by_alias=True)))
    values["journal.path"] = settings.journal_path()
    for key, value in values.items():
        if key == "journal.path" and journal_origin is not None:
            origin = journal_origin
        elif key in variables:
            origin = f"environment: {variables[key]}"
        else:
            origin = "file" if key in file_keys else "default"
        yield SettingOrigin(key, _USER_INFO.sub("...@", _format_value(value)), origin)


def _flatten_tables(tables: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in tables.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _flatten_tables(value, f"{key}.")
        else:
            yield key, value


def _format_value(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, str | Path | Decimal):
        return str(value)
    return json.dumps(value, ensure_ascii=False, default=str)


def _operator_terms(terms: PayoutTermsSection | PayinTermsSection) -> OperatorTerms:
    members = terms.model_dump()
    purposes = {word: PurposeTerms(**purpose) for word, purpose in members.pop("purposes", {}).items()}
    lists = {name: tuple(members[name]) for name in ("optional", "also", "also_numbers")}
    return OperatorTerms(**{**members, **lists, "purposes": purposes})
