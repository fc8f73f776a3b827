"""Reads the configuration file and the environment into frozen values.

A command-line flag overrides the environment variable `PAYGW_<KEY>`, which overrides the TOML file and the default.
Unknown keys are refused. The file contains no secrets. It names the files and environment variables that contain them.
Settings that the gateway's interface does not define (`signature_profile`, `[outcomes]`, `purpose`) have no default.
`missing_for_sending` lists the missing ones.
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
"""The `base_url` that starts the built-in gateway for a run."""


_DEFAULT_PORTS = {"https": 443, "http": 80}


def _non_default_port(url: SplitResult) -> int | None:
    """Return the port of a URL, or None for the scheme's default or an invalid port, which is refused elsewhere."""
    try:
        return url.port if url.port != _DEFAULT_PORTS.get(url.scheme) else None
    except ValueError:
        return None


class Settings(Section):
    """All settings of a run. Paths are absolute."""

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
            raise ValueError(say("a timetable needs workers. Set [journal] url (docs/several-hosts.md), or use cron"))
        return self

    @model_validator(mode="after")
    def _validate_secret_variables(self) -> "Settings":
        if inherited := sorted(secret_variables(self) & INHERITED_VARIABLES):
            message = say(
                "a secret cannot be in the variable {handed_on}, because other programs can read it",
                handed_on=inherited[0],
            )
            raise ValueError(message)
        return self

    @property
    def uses_sandbox(self) -> bool:
        """Whether the built-in gateway replaces the real one."""
        return self.gateway.base_url == SANDBOX

    def words(self) -> Mapping[str, OutcomeKind]:
        """Map the gateway's status words to outcomes."""
        return {word: OutcomeKind(meaning) for word, meaning in self.outcomes.items()}

    def terms(self, operation: str) -> Mapping[str, OperatorTerms]:
        """Return the operator's terms for an operation, by country."""
        sections = {code: getattr(section, operation, None) for code, section in self.countries.items()}
        return {code: _operator_terms(terms) for code, terms in sections.items() if terms is not None}

    def urls(self) -> Mapping[str, str | None]:
        """Return the merchant's own URLs, by field name."""
        return {
            "server_callback_url": self.gateway.server_callback_url,
            "site_url": self.payin.site_url,
            "redirect_url": self.payin.redirect_url,
        }

    def missing_for(self, operation: str) -> list[str]:
        """Return the missing keys that only this operation needs."""
        return self.payin.missing_keys() if operation == "payin" else []

    def endpoint(self) -> str:
        """Return the name of the configured endpoint: `HOST[:PORT]/ENDPOINT_ID`."""
        return self.endpoint_identity().name

    def endpoint_identity(self) -> EndpointIdentity:
        """Return the identity of the configured endpoint, regardless of how its host is spelled."""
        gateway = self.gateway
        port = None if self.uses_sandbox else _non_default_port(urlsplit(gateway.base_url or ""))
        return EndpointIdentity.create(self._host(), gateway.endpoint_id or "unset", gateway.consumer_key, port=port)

    def _host(self) -> str:
        return SANDBOX if self.uses_sandbox else urlsplit(self.gateway.base_url or "").hostname or "unset"

    def journal_label(self) -> str:
        """Return a label for the journal: its path, or the URL of its database without the user."""
        if self.journal.url is None:
            return str(self.journal_path())
        url = urlsplit(self.journal.url)
        return f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}"

    def journal_path(self) -> Path:
        """Return the journal's path: the configured one, or the merchant's in the user's state directory.

        The path does not depend on the port, so that a configuration with another port finds the same journal and is
        refused. With `journal.url`, there is no journal at this path, but its folder contains other files of this host.
        """
        if self.journal.path is not None:
            return self.journal.path
        host = self._host()
        merchant = f"{host}/{self.gateway.consumer_key or 'unset'}"
        safe_host = "".join(c if c.isalnum() or c in ".-" else "_" for c in host)
        folder = f"{safe_host}-{hashlib.sha256(merchant.encode()).hexdigest()[:8]}"
        return state_directory() / folder / "journal.sqlite3"

    def known_journals_directory(self, journal: Path | None = None) -> Path:
        """Return the directory of known journals and their sent logs. For the sandbox, it is next to the journal."""
        if self.uses_sandbox:
            path = journal or self.journal_path()
            return path.with_name(f"known.{path.name}")
        return state_directory() / "journals"

    def console_directory(self) -> Path:
        """Return the directory for sheets in preparation. By default, it is next to the journal."""
        return self.console.directory or self.journal_path().with_name("console")

    def console_runs_directory(self) -> Path:
        return self.console_directory() / "runs"

    def missing_for_sending(self) -> list[str]:
        """Return the keys that sending needs but that are not set."""
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
_FILE_ONLY_KEY = ("submission", "quarantine_h")
"""A key that protects against paying twice, which the environment and flags must not weaken."""
_PROFILE_KEY = ("sheet", "column_profile")
"""A key whose value is a name or, if it ends in .toml, a path."""
_VARIABLES_WITHOUT_KEY = ("PAYGW_CONFIG", "PAYGW_IMAGE", "PAYGW_JOURNAL", "PAYGW_LANG", "PAYGW_APPROVAL_PASSPHRASE")


def environment_keys() -> Mapping[str, tuple[str, str]]:
    """Map each environment variable to the section and key that it sets."""
    keys = {
        f"PAYGW_{key.upper()}": (section, key)
        for section, model in _ENVIRONMENT_SECTIONS.items()
        for key in model.model_fields
        if (section, key) not in {("retry", "order_id"), _FILE_ONLY_KEY}
    }
    keys["PAYGW_RETRY_ORDER_ID"] = ("retry", "order_id")
    return keys


def load_settings(
    file: Path | None,
    *,
    environ: Mapping[str, str],
    flags: Mapping[tuple[str, str], object] | None = None,
    trust_errors: list[ConfigurationError] | None = None,
) -> Settings:
    """Load the settings from `file`. The environment overrides them, and the command line's `flags` override both.

    Raises `ConfigurationError`, naming all wrong keys. Also raises it if other users can write to the file, and so
    redirect payments, unless the gateway is the built-in one. If `trust_errors` is given, that error is added to it
    instead.
    """
    source = None if file is None else read_and_check_access(file, str(file), OtherUsers.MAY_READ, max_bytes=1 << 20)
    tables = {} if file is None or source is None else _parse_tables(file, source.content)
    base_folder = file.resolve().parent if file is not None else Path.cwd()
    for (section, key), value in {**_environment_values(environ), **(flags or {})}.items():
        table = tables.setdefault(section, {})
        if not isinstance(table, dict):
            raise ConfigurationError(say("{file}: [{section}] must be a table.", file=file, section=section))
        table[key] = value
    settings = _validate_settings(tables, base_folder, [] if file is None else [str(file)], environ)
    if source is not None and source.trust_error is not None and not settings.uses_sandbox:
        if trust_errors is None:
            raise source.trust_error
        trust_errors.append(source.trust_error)
    return settings


def parse_settings(text: str, file: Path) -> Settings:
    """Parse settings before they are written to `file`. Raises `ConfigurationError`, naming all wrong keys."""
    return _validate_settings(_parse_tables(file, text.encode()), file.resolve().parent, [], {})


def _validate_settings(
    tables: Mapping[str, Any], base_folder: Path, files: list[str], environ: Mapping[str, str]
) -> Settings:
    try:
        return Settings.model_validate(tables, context=base_folder)
    except ValidationError as error:
        sections = {location[0] for problem in error.errors() if (location := problem["loc"])}
        variables = [
            name for name, (section, _) in environment_keys().items() if name in environ and section in sections
        ]
        prefix = f"{', '.join(files + variables)}: " if files or variables else ""
        raise ConfigurationError(prefix + " ".join(_describe_errors(error))) from None


def _parse_tables(file: Path, content: bytes) -> dict[str, Any]:
    try:
        return tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        message = say("{file} is not valid TOML: {error}.", file=file, error=error)
        raise ConfigurationError(message, hint=say("Correct that line.")) from None


def _environment_values(environ: Mapping[str, str]) -> dict[tuple[str, str], object]:
    values: dict[tuple[str, str], object] = {}
    if "PAYGW_QUARANTINE_H" in environ:
        message = say("PAYGW_QUARANTINE_H is set, but quarantine_h cannot be set by an environment variable.")
        hint = say("Unset it. Only the configuration file can set [submission] quarantine_h.")
        raise ConfigurationError(message, hint=hint)
    for name, (section, key) in environment_keys().items():
        text = environ.get(name)
        if text is None:
            continue
        annotation = _ENVIRONMENT_SECTIONS[section].model_fields[key].annotation
        value = _parse_variable(name, text, annotation)
        is_profile_file = (section, key) == _PROFILE_KEY and text.endswith(".toml")
        values[section, key] = _parse_path_variable(name, text) if is_profile_file else value
    if (path := environ.get("PAYGW_JOURNAL")) is not None:
        values["journal", "path"] = _parse_path_variable("PAYGW_JOURNAL", path)
    return values


def _parse_variable(name: str, text: str, annotation: Any) -> object:
    types = _annotated_types(annotation)
    try:
        if int in types:
            return int(text)
        if float in types:
            return float(text)
    except ValueError:
        raise ConfigurationError(say("{name} is {text!r}, but it must be a number.", name=name, text=text)) from None
    if Path in types:
        is_key_uri = str in types and text.startswith(KEY_SCHEMES)
        return text if is_key_uri else _parse_path_variable(name, text)
    return text


def _annotated_types(annotation: Any) -> set[Any]:
    """Return all types in an annotation, including those inside `Annotated`."""
    return {annotation}.union(*map(_annotated_types, get_args(annotation)))


def _parse_path_variable(name: str, text: str) -> str:
    """Return a variable's value as an absolute path. Rejects empty text, which would mean the current directory."""
    if not text.strip():
        message = say("{name} is empty, but it must be a path.", name=name)
        raise ConfigurationError(message, hint=say("Set it to a path, or unset it."))
    return str(Path(text).absolute())


def secret_variables(settings: Settings) -> frozenset[str]:
    """Return the names of the environment variables that contain secrets."""
    all_settings = (setting for _, section in settings if isinstance(section, Section) for setting in section)
    return frozenset(name for key, name in all_settings if key.endswith("_env") and key != "public_key_env" and name)


def unknown_variables(environ: Mapping[str, str], settings: Settings) -> list[str]:
    """Return the `PAYGW_` variables that set no key and are probably misspelt."""
    configured_variables = {*secret_variables(settings), settings.notifications.public_key_env}
    known_variables = {*environment_keys(), *_VARIABLES_WITHOUT_KEY, *configured_variables}
    return sorted(name for name in environ if name.startswith("PAYGW_") and name not in known_variables)


def _describe_errors(error: ValidationError) -> Iterable[str]:
    for problem in error.errors(include_url=False, include_input=False):
        key = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            known_keys = _known_keys(problem["loc"][:-1])
            nearest = difflib.get_close_matches(str(problem["loc"][-1]), known_keys, n=1, cutoff=0.0)
            yield (
                say("{key} is not a known key. Did you mean {nearest}?", key=key, nearest=nearest[0])
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
            types = _annotated_types(model.model_fields[part].annotation)
            model = next((type_ for type_ in types if isinstance(type_, type) and issubclass(type_, BaseModel)), model)
    return [field.alias or name for name, field in model.model_fields.items()]


_USER_INFO = re.compile(r"(?<=://)[^/@\s]+@")
"""Matches a user name and password in a URL, which must never be shown."""


@dataclass(frozen=True, slots=True)
class SettingOrigin:
    """A setting: its dotted key, its value as text (empty if not set), and where it was set."""

    key: str
    value: str
    origin: str


def setting_origins(
    settings: Settings, file: Path | None, environ: Mapping[str, str], journal_origin: str | None
) -> Iterator[SettingOrigin]:
    """Yield every setting with its origin. `settings` must have been loaded from `file`.

    `journal_origin` is the origin of the journal's path, if it overrides the file.
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
    values = terms.model_dump()
    purposes = {word: PurposeTerms(**purpose) for word, purpose in values.pop("purposes", {}).items()}
    tuples = {name: tuple(values[name]) for name in ("optional", "also", "also_numbers")}
    return OperatorTerms(**{**values, **tuples, "purposes": purposes})
