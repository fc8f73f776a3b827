"""Defines the tables of the configuration file as pydantic models."""

import hashlib
import os
import re
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, get_args
from urllib.parse import SplitResult, parse_qs, urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, model_validator

from paygw_batch.core.batch import LOOK_ALIKE_DAYS, REPEAT_DAYS
from paygw_batch.core.money import parse_amount
from paygw_batch.core.text import is_encoding
from paygw_batch.extras import install_command
from paygw_batch.language import ENGLISH, languages, say


class Section(BaseModel):
    """A table in the configuration file. It is frozen and strict, and refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def _parse_path(value: object) -> object:
    if not isinstance(value, str):
        return value
    if not value.strip() or "\0" in value:
        raise ValueError(
            say("the path is empty. Specify the path of a file, or leave out the key")
            if not value.strip()
            else say("this is not a path")
        )
    return Path(value)


KEY_SCHEMES = ("pkcs11:", "awskms:")
"""URI schemes of private keys in a token (RFC 7512) or in AWS KMS."""


def _parse_key_location(value: object) -> object:
    return value if isinstance(value, str) and value.startswith(KEY_SCHEMES) else _parse_path(value)


def _resolve_path(path: Any, info: ValidationInfo) -> Any:
    """Resolve a path relative to the configuration file's folder, which is the validation context."""
    if not isinstance(path, Path) or info.context is None:
        return path
    # Do not follow links, because the code that opens the file checks them.
    return Path(os.path.abspath(info.context / path))  # noqa: PTH100 (Path.resolve would follow them)


def _require_file_name(path: Path) -> Path:
    if not path.name:
        raise ValueError(say("this must be the path of a file"))
    return path


def _resolve_profile(name: str, info: ValidationInfo) -> str:
    return str(_resolve_path(Path(name), info)) if name.endswith(".toml") else name


def _resolve_statements(text: str, info: ValidationInfo) -> str:
    is_folder = text.startswith(FOLDER_PREFIX)
    return f"{FOLDER_PREFIX}{_resolve_path(Path(text.removeprefix(FOLDER_PREFIX)), info)}" if is_folder else text


def _parse_amount_text(value: object) -> object:
    if not isinstance(value, str):
        raise ValueError(say('write the amount in quotation marks, as in "250000"'))  # noqa: TRY004 (pydantic requires ValueError)
    amount = parse_amount(value, minor_units=4)
    if amount is None:
        raise ValueError(say("{value!r} is not an amount", value=value))
    return amount


def _validate_encoding(name: str) -> str:
    if not is_encoding(name):
        raise ValueError(say("{name!r} is not a text encoding. Use, for example, cp1252 or cp1256", name=name))
    return name


def _validate_time_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(say("{name!r} is not a time zone. Use a name such as Africa/Nairobi", name=name)) from None
    return name


Encoding = Annotated[str, AfterValidator(_validate_encoding)]
Numbers = Literal["comma", "point", "as-written"]
Names = Literal["words", "as-written"]
TimeZone = Annotated[str, AfterValidator(_validate_time_zone)]
FilePath = Annotated[Path, BeforeValidator(_parse_path), AfterValidator(_resolve_path)]
"""A path, relative to the folder of the configuration file."""
KeyLocation = Annotated[Path | str, BeforeValidator(_parse_key_location), AfterValidator(_resolve_path)]
"""The path of a private key, or its URI if it is not in a file."""
AmountText = Annotated[Decimal, BeforeValidator(_parse_amount_text)]
Seconds = Annotated[float, Field(gt=0, le=3600)]
HttpUrl = Annotated[str, Field(pattern=r"^https?://[!-~]+$")]
CONTROL_PARTS = ("client_orderid", "amount", "currency")
"""The parts of a collection's control hash (section 5 of the gateway's interface)."""


class NotificationFieldsSection(Section):
    """`[notifications.fields]`: the names of a notification's fields. They default to those in the request."""

    order_id: str | None = None
    amount: str | None = None
    currency: str | None = None
    status: str = "status"
    reference: str | None = None


_HASH_KEYS = frozenset({"hash_fields", "hash_separator", "hash_field"})
_HEADER_KEYS = frozenset({"header", "header_encoding", "header_prefix"})
_SECRET_KEYS = frozenset({"secret_env", "secret_file"})
_PUBLIC_KEYS = frozenset({"public_key_env", "public_key_file"})
_AUTHENTICITY_KEYS: Mapping[str, tuple[frozenset[str], tuple[str, ...]]] = {
    "shared-secret-hash": (_HASH_KEYS | _SECRET_KEYS, ("sha256", "hmac-sha256", "sha1")),
    "header-hmac": (_HEADER_KEYS | _SECRET_KEYS, ("hmac-sha256", "hmac-sha512")),
    "header-rsa": (_HEADER_KEYS | _PUBLIC_KEYS, ("rsa-sha256", "rsa-sha512", "rsa-pss-sha256")),
}
"""For each value of `authenticity`: the keys that it uses, other than `hash_algorithm`, and its algorithms."""


class NotificationsSection(Section):
    """`[notifications]`: how notifications are received and proven.

    Without `authenticity`, every notification is unproven. `on_unproven` says what to do after an unproven one.
    """

    port: Annotated[int, Field(ge=0, le=65535)] = 8087
    token_env: str | None = None
    token_file: FilePath | None = None
    authenticity: Literal["shared-secret-hash", "header-hmac", "header-rsa"] | None = None
    on_unproven: Literal["refresh"] | None = None
    hash_algorithm: (
        Literal["sha256", "hmac-sha256", "sha1", "hmac-sha512", "rsa-sha256", "rsa-sha512", "rsa-pss-sha256"] | None
    ) = None
    hash_fields: list[str] | None = None
    hash_separator: str | None = None
    hash_field: str | None = None
    header: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]+$", max_length=100)] | None = None
    header_encoding: Literal["hex", "base64"] | None = None
    header_prefix: Annotated[str, Field(pattern=r"^[ -~]*$", max_length=100)] | None = None
    secret_env: str | None = None
    secret_file: FilePath | None = None
    public_key_env: str | None = None
    public_key_file: FilePath | None = None
    max_body_kib: Annotated[int, Field(ge=1, le=1024)] = 64
    rate_per_s: Annotated[float, Field(gt=0)] = 200
    client_timeout_s: Annotated[float, Field(ge=1, le=60)] = 10
    fields: NotificationFieldsSection = NotificationFieldsSection()

    @model_validator(mode="after")
    def _validate_authenticity(self) -> "NotificationsSection":
        if self.authenticity is None:
            return self
        keys, algorithms = _AUTHENTICITY_KEYS[self.authenticity]
        other_keys = frozenset().union(*(used_keys for used_keys, _ in _AUTHENTICITY_KEYS.values())) - keys
        if unused := sorted(key for key in other_keys if getattr(self, key) is not None):
            values = {"unused": unused[0], "authenticity": self.authenticity}
            raise ValueError(
                say('{unused} is not used with authenticity = "{authenticity}". Remove this setting', **values)
            )
        if self.hash_algorithm is not None and self.hash_algorithm not in algorithms:
            values = {"authenticity": self.authenticity, "known": " or ".join(algorithms)}
            message = say('authenticity = "{authenticity}" can be used only with hash_algorithm {known}', **values)
            raise ValueError(message)
        return self


ReplyPath = Annotated[str, Field(max_length=200, pattern=r"^[^.\s]+(\.[^.\s]+)*$")]
"""The name of a member of a reply, or a path such as `error.message`."""
ReplyPaths = Annotated[list[ReplyPath], Field(min_length=1)]


class ReplySection(Section):
    """`[reply]`: the names of the fields in a reply. The defaults are in config/operations/.

    `amount_unit` is the unit of the amount in a reply, or `unchecked` if the amount may differ from the one sent.
    """

    order_id: ReplyPaths | None = None
    amount: ReplyPaths | None = None
    amount_unit: Literal["major", "minor", "unchecked"] = "major"
    currency: ReplyPaths | None = None
    reference: ReplyPaths | None = None
    error_code: ReplyPaths | None = None
    message: ReplyPaths | None = None


class StatusEnquirySection(Section):
    """`[status_enquiry]`: how to ask about orders. `not_found` lists the gateway's words for an unknown order."""

    profile: Literal["paynet-v4"] | None = None
    not_found: list[str] | None = None
    concurrency: Annotated[int, Field(ge=1, le=64)] = 4
    rate_per_s: Annotated[float, Field(gt=0)] = 10
    limit_min: Annotated[float, Field(gt=0, le=1440)] = 30


class PayinSection(Section):
    """`[payin]`: the values in every collection, and how its control hash is computed.

    Only `control_algorithm` has a default. `control_order` lists the hashed parts in order. If `secret` is one of them,
    or if the algorithm is keyed, the secret is in an environment variable or a file.
    """

    site_url: HttpUrl | None = None
    redirect_url: HttpUrl | None = None
    amount: Literal["number", "two-decimals"] | None = None
    control_order: list[Literal["client_orderid", "amount", "currency", "secret"]] | None = None
    control_separator: str | None = None
    control_amount: Literal["as-sent", "two-decimals", "minor-units"] | None = None
    control_algorithm: Literal["sha256", "hmac-sha256"] = "sha256"
    control_secret_env: str | None = None
    control_secret_file: FilePath | None = None

    @model_validator(mode="after")
    def _validate_control(self) -> "PayinSection":
        order = self.control_order
        if order is not None and (len(set(order)) != len(order) or not {*order} >= {*CONTROL_PARTS}):
            parts = ", ".join(CONTROL_PARTS)
            message = say("control_order must contain each of {parts} once, and secret at most once", parts=parts)
            raise ValueError(message)
        if order is not None and "secret" in order and self.is_keyed:
            raise ValueError(say("with hmac-sha256, the secret is the key of the hash. Remove it from control_order"))
        if order is not None and not self.needs_secret and self.has_secret:
            raise ValueError(say("a secret is configured, so control_order must contain secret"))
        return self

    @property
    def is_keyed(self) -> bool:
        return self.control_algorithm == "hmac-sha256"

    @property
    def needs_secret(self) -> bool:
        return self.is_keyed or "secret" in (self.control_order or ())

    @property
    def has_secret(self) -> bool:
        return self.control_secret_env is not None or self.control_secret_file is not None

    def missing_keys(self) -> list[str]:
        """Return the keys that collections need but that are not set."""
        keys = ("site_url", "redirect_url", "amount", "control_order", "control_separator", "control_amount")
        missing = [f"payin.{key}" for key in keys if getattr(self, key) is None]
        if self.needs_secret and not self.has_secret:
            missing.append("payin.control_secret_env or payin.control_secret_file")
        return missing


class PurposeSection(Section):
    """A purpose in `[countries.XX.payout.purposes]` with its mobile operator."""

    purpose: str
    operator: str | None = None


def _parse_purpose(value: object) -> object:
    return {"purpose": value} if isinstance(value, str) else value


class _TermsSection(Section):
    """The operator's terms that all operations share."""

    purpose: str | None = None
    min_amount: AmountText | None = None
    max_amount: AmountText | None = None
    ipaddress: str | None = None
    order_desc: str | None = None
    decimals: Annotated[int, Field(ge=0)] | None = None
    also_numbers: list[str] = Field(default_factory=list)
    former_numbers: bool = False
    operator: str | None = None
    optional: list[str] = Field(default_factory=list)
    also: list[str] = Field(default_factory=list)
    defaults: Mapping[str, str] = Field(default_factory=dict)


class PayoutTermsSection(_TermsSection):
    """`[countries.XX.payout]`: the operator's terms for payouts to a country."""

    form: str | None = None
    bank_account_pattern: str | None = None
    phone_is_account: bool | None = None
    purposes: Mapping[str, Annotated[PurposeSection, BeforeValidator(_parse_purpose)]] = Field(default_factory=dict)


class PayinTermsSection(_TermsSection):
    """`[countries.XX.payin]`: the operator's terms for collections, with defaults for rows."""

    address1: str | None = None
    city: str | None = None
    zip_code: str | None = None
    merchant_data: str | None = None


MIN_READ_TIMEOUT_S = 60
"""How long mobile-money providers can take, according to section 8 of the gateway's interface."""


class GatewaySection(Section):
    """`[gateway]`: our identity, the gateway's URL, and how to communicate with it.

    `private_key` may be a file, a key in a token (`pkcs11:...`, with `pkcs11_module`) or a key in AWS (`awskms:...`).
    A key that is not in a file makes up to `signing_concurrency` signatures at a time.
    """

    base_url: str | None = None
    endpoint_id: str | None = None
    consumer_key: str | None = None
    private_key: KeyLocation | None = None
    private_key_passphrase_env: str | None = None
    private_key_passphrase_file: FilePath | None = None
    pkcs11_module: FilePath | None = None
    signing_concurrency: Annotated[int, Field(ge=1, le=64)] = 4
    server_callback_url: str | None = None
    signature_profile: Literal["json-params", "raw-body"] | None = None
    connect_timeout_s: Seconds = 30
    read_timeout_s: Annotated[float, Field(le=3600)] = 60
    total_timeout_s: Seconds = 120
    ca_bundle: FilePath | None = None
    proxy: str | None = None

    @model_validator(mode="after")
    def _validate_timeouts(self) -> "GatewaySection":
        if self.read_timeout_s < MIN_READ_TIMEOUT_S:
            raise ValueError(
                say(
                    "read_timeout_s is {read_timeout_s:g}, which is too short. Providers can need {least} seconds to "
                    "answer, and giving up earlier would leave paid rows in doubt",
                    read_timeout_s=self.read_timeout_s,
                    least=MIN_READ_TIMEOUT_S,
                )
            )
        if self.total_timeout_s < self.read_timeout_s:
            raise ValueError(say("total_timeout_s must not be less than read_timeout_s"))
        return self


class SubmissionSection(Section):
    """`[submission]`: how fast requests are sent, and when a run stops."""

    concurrency: Annotated[int, Field(ge=1, le=1024)] = 16
    rate_per_s: Annotated[float, Field(ge=0)] = 0
    stop_after_in_doubt: Annotated[int, Field(ge=0)] = 5
    stop_after_rejected: Annotated[int, Field(ge=0)] = 10
    connections: Literal["fresh", "reuse"] = "fresh"
    quarantine_h: Annotated[float, Field(ge=0, le=87_600)] = 24


class JournalSection(Section):
    """`[journal]`: the journal's location, either a file on this machine or a database shared by several hosts.

    `url` is the URL of a PostgreSQL database, without a password. If a process is silent for `intent_lives_s`, its rows
    in flight are put in doubt. It may send a request only within half of that time after recording the intent.
    """

    path: (
        Annotated[Path, BeforeValidator(_parse_path), AfterValidator(_require_file_name), AfterValidator(_resolve_path)]
        | None
    ) = None
    url: str | None = None
    replication: Literal["synchronous", "asynchronous", "provider", "none"] | None = None
    intent_lives_s: Annotated[float, Field(ge=5, le=600)] = 30

    @model_validator(mode="after")
    def _validate_location(self) -> "JournalSection":
        if self.url is None:
            return self
        if self.path is not None:
            raise ValueError(say("path and url cannot both be set. Remove one of them"))
        if not self.url.startswith(("postgresql://", "postgres://")):
            raise ValueError(say("url must begin with postgresql://"))
        url_parts = urlsplit(self.url)
        if ":" in url_parts.netloc.rpartition("@")[0] or "password" in parse_qs(url_parts.query):
            raise ValueError(
                say(
                    "url must not contain a password. Write the password to a private file (mode 0600) and put its "
                    "path in the environment variable PGPASSFILE, or use a client certificate"
                )
            )
        if self.replication is None:
            raise ValueError(
                say(
                    'replication is not set. Set it to the way the database in url is replicated: "synchronous" '
                    '(a standby confirms each commit before a row is sent), "asynchronous" (a standby may lag '
                    'behind: after a failover, the rows that were sent last are in doubt), "provider" (the '
                    'database provider takes care of it) or "none" (there is no copy)'
                )
            )
        return self


def _validate_cron(expression: str) -> str:
    try:
        from croniter import croniter  # noqa: PLC0415 (in the extra `cluster`, needed only for a timetable)
    except ModuleNotFoundError:
        message = say("a timetable needs more packages. Install them: {command}", command=install_command("cluster"))
        raise ValueError(message) from None
    if len(expression.split()) != _CRON_FIELDS or not croniter.is_valid(expression):
        raise ValueError(
            say(
                "{expression!r} is not a time for a timetable. Write minute, hour, day, month and day of the week as "
                'in cron: "*/5 6-18 * * 1-5" is every 5 minutes from 6:00 to 18:55, Monday to Friday',
                expression=expression,
            )
        )
    return " ".join(expression.split())


_CRON_FIELDS = 5
Cron = Annotated[str, AfterValidator(_validate_cron)]
"""When a job is due, as the five fields of cron."""


class PickUpSection(Section):
    """An entry in `[[timetable.pick_up]]`: a folder whose sheets are submitted, as by `run-folder`, and when."""

    folder: FilePath
    at: Cron
    collect: bool = False


def pick_up_job_name(folder: Path) -> str:
    """Return the job name for a folder. It contains a digest, because job names have at most 40 bytes."""
    return f"pick_up {hashlib.sha256(bytes(folder)).hexdigest()[:8]}"


class BackupSection(Section):
    """`[timetable.backup]`: the folder for backups of the database, and when to make them."""

    folder: FilePath
    at: Cron


class TimetableSection(Section):
    """`[timetable]`: commands that workers run at set times, each on only one host.

    `time_zone` applies to all entries. Workers on this host run only commands that have an entry here.
    """

    time_zone: TimeZone | None = None
    pick_up: list[PickUpSection] = Field(default_factory=list)
    refresh: Cron | None = None
    verify: Cron | None = None
    backup: BackupSection | None = None

    @model_validator(mode="after")
    def _validate_entries(self) -> "TimetableSection":
        folders = [entry.folder for entry in self.pick_up]
        if self.model_fields_set and self.time_zone is None:
            raise ValueError(say('time_zone is not set. Set it, for example to "Africa/Nairobi"'))
        if len(set(folders)) < len(folders):
            raise ValueError(say("pick_up lists a folder twice. Write one entry for each folder"))
        return self


class RetrySection(Section):
    """`[retry]`: the order id under which a released row is sent again."""

    order_id: Literal["suffix", "same"] = "suffix"


class LimitsSection(Section):
    """`[limits]`: the maximum size of a sheet."""

    max_rows: Annotated[int, Field(ge=1)] = 1_000_000
    max_sheet_mib: Annotated[int, Field(ge=1)] = 1024


class SheetSection(Section):
    """`[sheet]`: the usual format of sheets. `column_profile` names a file in config/columns/."""

    encoding: Encoding | None = None
    numbers: Numbers | None = None
    names: Names | None = None
    column_profile: Annotated[str, Field(min_length=1), AfterValidator(_resolve_profile)] | None = None
    repeat_days: Annotated[int, Field(ge=0, le=366)] = REPEAT_DAYS
    look_alike_days: Annotated[int, Field(ge=0, le=366)] = LOOK_ALIKE_DAYS


class StatementSection(Section):
    """`[statement]`: the format of the gateway's statements. `columns` maps the gateway's headings to ours."""

    columns: Mapping[str, Literal["order_id", "amount", "currency", "status", "answer", "time"]] = Field(
        default_factory=dict
    )


FOLDER_PREFIX = "folder:"


class EvidenceSection(Section):
    """`[evidence]`: how a statement is proven to come from the gateway.

    Without `statements`, a person vouches for each statement. `signed` requires a signature by `statement_key`,
    stored next to the file. `folder:PATH` is a folder that only the gateway's transfer can write to.
    """

    statements: (
        Annotated[str, Field(pattern=rf"^(signed|{FOLDER_PREFIX}.+)$"), AfterValidator(_resolve_statements)] | None
    ) = None
    statement_key: FilePath | None = None

    @model_validator(mode="after")
    def _validate_statement_key(self) -> "EvidenceSection":
        if (self.statements == "signed") != (self.statement_key is not None):
            raise ValueError(say('statements = "signed" and statement_key must be set together'))
        return self

    @property
    def folder(self) -> Path | None:
        """The folder that only the gateway's transfer can write to, if configured."""
        is_folder = self.statements is not None and self.statements.startswith(FOLDER_PREFIX)
        return Path(self.statements.removeprefix(FOLDER_PREFIX)) if self.statements and is_folder else None


class RetentionSection(Section):
    """`[retention]`: the default age of payments whose payees `forget` erases. Nothing is erased automatically."""

    years: Annotated[int, Field(ge=1, le=100)] | None = None


Keys = str | list[str]
"""A person's public key or keys. The list is empty for a person who has not created a passkey yet."""


class ApprovalSection(Section):
    """`[approval]`: which documents need approval, and from whom. People's names map to their public keys.

    Without approvers, no document needs approval. Currencies missing from `from_amount` always need approval.
    """

    needed: Annotated[int, Field(ge=1)] = 1
    from_amount: Mapping[str, AmountText] = Field(default_factory=dict)
    expires_h: Annotated[float, Field(gt=0)] = 72
    changed_share: Annotated[float, Field(ge=0)] = 0.25
    makers: Mapping[str, Keys] = Field(default_factory=dict)
    approvers: Mapping[str, Keys] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _validate_people(self) -> "ApprovalSection":
        if self.model_fields_set and not (self.makers and self.approvers):
            raise ValueError(say("list at least one key under makers and one under approvers"))
        return self


_HOST_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_ORIGIN = re.compile(rf"(https://({_HOST_LABEL}\.)+{_HOST_LABEL}|https?://localhost)(:[1-9][0-9]{{0,4}})?", re.ASCII)
_IP_ADDRESS = re.compile(r".*\.[0-9]+(:[0-9]+)?", re.ASCII)


class ConsoleSection(Section):
    """`[console]`: the console, and its users other than the makers and approvers in `[approval]`.

    `origin` is the web origin of the pages, to which passkeys are bound. Auditors and administrators cannot pay. With
    the built-in gateway, a person signs in by choosing a name from a list, and `sandbox_keys` is a folder with each
    person's key, `NAME.pem`. `time_zone` defaults to the machine's.
    """

    origin: str | None = None
    port: Annotated[int, Field(ge=0, le=65535)] = 8460
    socket: FilePath | None = None
    directory: FilePath | None = None
    max_upload_mib: Annotated[int, Field(ge=1, le=1024)] = 64
    idle_min: Annotated[float, Field(gt=0, le=60)] = 15
    session_h: Annotated[float, Field(gt=0, le=12)] = 8
    auditors: Mapping[str, Keys] = Field(default_factory=dict)
    administrators: Mapping[str, Keys] = Field(default_factory=dict)
    sandbox_keys: FilePath | None = None
    time_zone: TimeZone | None = None

    @model_validator(mode="after")
    def _validate_origin(self) -> "ConsoleSection":
        """Reject an origin that cannot have passkeys, or that browsers write differently."""
        if self.origin is None:
            return self
        is_default_port = self.origin.endswith(":443" if self.origin.startswith("https") else ":80")
        if not _ORIGIN.fullmatch(self.origin) or _IP_ADDRESS.fullmatch(self.origin) or is_default_port:
            raise ValueError(
                say(
                    "{origin!r} is not an origin that passkeys can use. Write it as the browser does, "
                    '"https://payouts.example.com" or "http://localhost:8443": a host name in lower case, not an '
                    "IP address, with no path and no default port",
                    origin=self.origin,
                )
            )
        return self


class ReportingSection(Section):
    """`[reporting]`: how runs are reported: in a log (JSON lines), a Prometheus file (`.prom`) and by a hook.

    `hook` is a command that receives the summary on standard input. `payer` is the payer's name on remittance advices.
    """

    log: FilePath | None = None
    metrics: FilePath | None = None
    hook: list[str] = Field(default_factory=list)
    hook_timeout_s: Seconds = 60
    payer: Annotated[str, Field(pattern=r"^[^\p{C}\p{Zl}\p{Zp}]+$", max_length=100)] | None = None


def _validate_mail_server(text: str) -> str:
    """Validate the URL of a mail server: smtp (STARTTLS) or smtps (TLS from the first byte)."""
    url = text if "://" in text else f"smtp://{text}"
    parts = urlsplit(url)
    is_server = parts.scheme in {"smtp", "smtps"} and bool(parts.hostname) and not parts.path.strip("/")
    is_printable = re.fullmatch(r"[!-~]+", url) is not None  # `urlsplit` silently removes line breaks
    if not is_server or not _has_valid_port(parts) or parts.query or parts.fragment or not is_printable:
        raise ValueError(
            say('this is not a mail server. Write it like "smtp://mail.example.com:587" or "smtps://mail.example.com"')
        )
    if parts.username is not None:
        raise ValueError(say("the address must not contain a name or password. Set smtp_user and smtp_password_file"))
    return url


def _has_valid_port(url: SplitResult) -> bool:
    try:
        return url.port != 0
    except ValueError:
        return False


_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_MAILBOX = re.compile(rf"(?=[^@]{{1,64}}@.{{1,255}}$){_ATOM}(?:\.{_ATOM})*@{_LABEL}(?:\.{_LABEL})*", re.ASCII)
_SHOWN_LENGTH, _MAX_NAME = 100, 200


def _validate_mailbox(text: str) -> str:
    if not _MAILBOX.fullmatch(text):
        raise ValueError(
            say('{text!r} is not an e-mail address. Write it like "treasury@example.com"', text=text[:_SHOWN_LENGTH])
        )
    return text


_SENDER = re.compile(r'(?P<name>[^<>"]+?) *<(?P<address>[^<>]+)>')


def parse_sender(sender: str) -> tuple[str, str]:
    """Parse a sender such as `Payouts <payouts@example.com>` into a name, which may be empty, and an address."""
    match = _SENDER.fullmatch(sender)
    return ("", sender) if match is None else (match["name"], match["address"])


def _validate_sender(text: str) -> str:
    name, address = parse_sender(text)
    if name and not name.isprintable():
        raise ValueError(say("the sender's name must not contain a character that cannot be printed"))
    if len(name) > _MAX_NAME or "=?" in name:
        message = say(
            "the sender's name must have at most {count} characters, and must not contain =?", count=_MAX_NAME
        )
        raise ValueError(message)
    _validate_mailbox(address)
    return text


def validate_webhook_url(text: str) -> str:
    """Validate a webhook's URL. Raises `ValueError`, without quoting the URL, if it is invalid or unsafe."""
    url = urlsplit(text)
    if not re.fullmatch(r"[!-~]+", text) or not url.hostname or not _has_valid_port(url) or url.fragment:
        raise ValueError(say('this is not the address of a webhook. Write it like "https://hooks.example.com/payouts"'))
    if url.username is not None:
        raise ValueError(say("a webhook's address must not contain a name or password"))
    is_loopback = url.hostname in {"localhost", "127.0.0.1", "::1"}
    if url.scheme != "https" and not (url.scheme == "http" and is_loopback):
        raise ValueError(say("a webhook must begin with https:// (http:// is allowed only on this machine)"))
    return text


def _validate_language(name: str) -> str:
    if name not in languages():
        values = {"name": name, "languages": ", ".join(languages())}
        raise ValueError(say("{name!r} is not a supported language. Choose from {languages}", **values))
    return name


Mailbox = Annotated[str, AfterValidator(_validate_mailbox)]
OccasionKey = Literal["run_ended", "sheet_refused", "plan_waits", "in_doubt", "contradicted", "worker_died", "runs_out"]
OCCASIONS: tuple[OccasionKey, ...] = get_args(OccasionKey)
"""The occasions of notices, which are also the keys in `[notices]` that list recipients."""


class NoticesSection(Section):
    """`[notices]`: the recipients of e-mails for each occasion, and the webhook.

    The key of an occasion lists its recipients. `personal_data` lists recipients who may receive personal data.
    """

    smtp: Annotated[str, AfterValidator(_validate_mail_server)] | None = None
    smtp_user: Annotated[str, Field(min_length=1)] | None = None
    smtp_password_env: str | None = None
    smtp_password_file: FilePath | None = None
    sender: Annotated[str, AfterValidator(_validate_sender)] | None = Field(default=None, alias="from")
    run_ended: list[Mailbox] = Field(default_factory=list)
    sheet_refused: list[Mailbox] = Field(default_factory=list)
    plan_waits: list[Mailbox] = Field(default_factory=list)
    in_doubt: list[Mailbox] = Field(default_factory=list)
    contradicted: list[Mailbox] = Field(default_factory=list)
    worker_died: list[Mailbox] = Field(default_factory=list)
    runs_out: list[Mailbox] = Field(default_factory=list)
    in_doubt_h: Annotated[float, Field(ge=0, le=8760)] = 24
    personal_data: list[Mailbox] = Field(default_factory=list)
    language: Annotated[str, AfterValidator(_validate_language)] = ENGLISH
    webhook: Annotated[str, AfterValidator(validate_webhook_url)] | None = None
    webhook_env: str | None = None
    webhook_file: FilePath | None = None
    webhook_format: Literal["standard", "slack", "teams"] = "standard"
    webhook_for: list[OccasionKey] = Field(default_factory=lambda: list(OCCASIONS))
    webhook_secret_env: str | None = None
    webhook_secret_file: FilePath | None = None
    ca_bundle: FilePath | None = None

    @model_validator(mode="after")
    def _validate_notices(self) -> "NoticesSection":
        if self.recipients() and (self.smtp is None or self.sender is None):
            raise ValueError(say("with recipients, you must set smtp (the mail server) and from (the sender)"))
        if self.smtp_user is not None and self.smtp_password_env is None and self.smtp_password_file is None:
            raise ValueError(say("smtp_user is set, so you must also set smtp_password_env or smtp_password_file"))
        if unknown := sorted(set(self.personal_data) - self.recipients()):
            raise ValueError(say("personal_data lists {name}, who does not receive any notice", name=unknown[0]))
        if sum(webhook is not None for webhook in (self.webhook, self.webhook_env, self.webhook_file)) > 1:
            raise ValueError(say("webhook, webhook_env and webhook_file set the same address. Keep only one of them"))
        if self.webhook is not None and self.webhook_format != "standard":
            raise ValueError(
                say(
                    "anyone who has the address of a {format} webhook can write to it. Keep it out of the "
                    "configuration, in webhook_env or webhook_file",
                    format=self.webhook_format,
                )
            )
        if self.needs_secret and self.webhook_secret_env is None and self.webhook_secret_file is None:
            raise ValueError(say("the webhook is signed. Set its secret in webhook_secret_env or webhook_secret_file"))
        return self

    def recipients(self) -> frozenset[str]:
        return frozenset(mailbox for occasion in OCCASIONS for mailbox in self.mailboxes(occasion))

    def mailboxes(self, occasion: str) -> list[str]:
        addresses: list[str] = getattr(self, occasion)
        return addresses

    @property
    def has_webhook(self) -> bool:
        return (self.webhook or self.webhook_env or self.webhook_file) is not None

    @property
    def needs_secret(self) -> bool:
        return self.has_webhook and self.webhook_format == "standard"


class SandboxSection(Section):
    """`[sandbox]`: how the built-in gateway answers."""

    behaviour: FilePath | None = None


class CountrySection(Section):
    """`[countries.XX]`: the operator's terms for a country."""

    payout: PayoutTermsSection = PayoutTermsSection()
    payin: PayinTermsSection = PayinTermsSection()
