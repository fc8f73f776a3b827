"""Defines the tables of the configuration file."""

import re
from collections.abc import Mapping
from typing import Annotated, Literal
from urllib.parse import parse_qs, urlsplit

from pydantic import Field, model_validator

from paygw_batch.core.batch import LOOK_ALIKE_DAYS, REPEAT_DAYS
from paygw_batch.settings.sections import (
    AmountText,
    FilePath,
    PayinTermsSection,
    PayoutTermsSection,
    Seconds,
    Section,
)

MIN_READ_TIMEOUT_S = 60
"""Section 8 of the gateway's interface: mobile-money providers can take this long."""


class GatewaySection(Section):
    """`[gateway]`: who we are, where the gateway is, and how we speak with it."""

    base_url: str | None = None
    endpoint_id: str | None = None
    consumer_key: str | None = None
    private_key: FilePath | None = None
    private_key_passphrase_env: str | None = None
    private_key_passphrase_file: FilePath | None = None
    server_callback_url: str | None = None
    signature_profile: Literal["json-params", "raw-body"] | None = None
    connect_timeout_s: Seconds = 30
    read_timeout_s: Annotated[float, Field(le=3600)] = 60
    total_timeout_s: Seconds = 120
    ca_bundle: FilePath | None = None
    proxy: str | None = None

    @model_validator(mode="after")
    def _bounded(self) -> "GatewaySection":
        if self.read_timeout_s < MIN_READ_TIMEOUT_S:
            raise ValueError(
                f"read_timeout_s is {self.read_timeout_s:g}; providers can need {MIN_READ_TIMEOUT_S} seconds to "
                "answer, and giving up sooner would leave paid rows in doubt"
            )
        if self.total_timeout_s < self.read_timeout_s:
            raise ValueError("total_timeout_s must not be below read_timeout_s")
        return self


class SubmissionSection(Section):
    """`[submission]`: how fast, and when to stop."""

    concurrency: Annotated[int, Field(ge=1, le=1024)] = 16
    rate_per_s: Annotated[float, Field(ge=0)] = 0
    stop_after_in_doubt: Annotated[int, Field(ge=0)] = 5
    stop_after_rejected: Annotated[int, Field(ge=0)] = 10
    connections: Literal["fresh", "reuse"] = "fresh"
    quarantine_h: Annotated[float, Field(ge=0, le=87_600)] = 24


class JournalSection(Section):
    """`[journal]`: where the journal is: a file of this machine, or a database that several hosts share.

    `url` is the address of a PostgreSQL database, without a password. A process that shows no sign of life for
    `lease_s` may be taken over; it leases `chunk_rows` rows at a time.
    """

    path: FilePath | None = None
    url: str | None = None
    replication: Literal["none", "provider", "synchronous"] = "none"
    lease_s: Annotated[float, Field(ge=5, le=600)] = 30
    chunk_rows: Annotated[int, Field(ge=1, le=100_000)] = 1_000

    @model_validator(mode="after")
    def _in_one_place(self) -> "JournalSection":
        if self.url is None:
            return self
        if self.path is not None:
            raise ValueError("path and url are both set; a journal is in one place: leave one of them out")
        if not self.url.startswith(("postgresql://", "postgres://")):
            raise ValueError("url must begin with postgresql://")
        address = urlsplit(self.url)
        if ":" in address.netloc.rpartition("@")[0] or "password" in parse_qs(address.query):
            raise ValueError(
                "url holds a password; keep it out of the configuration: write it into a file of your own with mode "
                "0600 and name that file in the environment variable PGPASSFILE, or use a client certificate"
            )
        return self


class RetrySection(Section):
    """`[retry]`: under which order id a released row is sent again."""

    order_id: Literal["suffix", "same"] = "suffix"


class LimitsSection(Section):
    """`[limits]`: how large a sheet may be."""

    max_rows: Annotated[int, Field(ge=1)] = 1_000_000
    max_sheet_mib: Annotated[int, Field(ge=1)] = 1024


class SheetSection(Section):
    """`[sheet]`: how sheets are written here. `column_profile` names a file of config/columns/."""

    code_page: str | None = None
    column_profile: str | None = None
    repeat_days: Annotated[int, Field(ge=0, le=366)] = REPEAT_DAYS
    look_alike_days: Annotated[int, Field(ge=0, le=366)] = LOOK_ALIKE_DAYS


class StatementSection(Section):
    """`[statement]`: how the gateway writes its statements. `columns` maps its headings to ours."""

    columns: Mapping[str, Literal["order_id", "amount", "currency", "status", "answer", "time"]] = Field(
        default_factory=dict
    )


Keys = str | Annotated[list[str], Field(min_length=1)]
"""A person's public key, or several."""


class ApprovalSection(Section):
    """`[approval]`: which documents need approval, and by whom. A name maps to a public key, or to several.

    Without approvers nothing needs approval. A currency that `from_amount` does not list needs it from the first cent.
    """

    needed: Annotated[int, Field(ge=1)] = 1
    from_amount: Mapping[str, AmountText] = Field(default_factory=dict)
    expires_h: Annotated[float, Field(gt=0)] = 72
    changed_share: Annotated[float, Field(ge=0)] = 0.25
    makers: Mapping[str, Keys] = Field(default_factory=dict)
    approvers: Mapping[str, Keys] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _peopled(self) -> "ApprovalSection":
        if self.model_fields_set and not (self.makers and self.approvers):
            raise ValueError("name at least one key under makers and one under approvers")
        return self


_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_ORIGIN = re.compile(rf"(https://({_LABEL}\.)+{_LABEL}|https?://localhost)(:[1-9][0-9]{{0,4}})?", re.ASCII)
_ADDRESS = re.compile(r".*\.[0-9]+(:[0-9]+)?", re.ASCII)


class ConsoleSection(Section):
    """`[console]`: the web application, and who looks at its pages beside the makers and approvers of `[approval]`.

    `origin` is the address of its pages, for which people's passkeys are made. Auditors read, administrators look after
    the program; neither moves money. `sandbox_keys` is a folder with the key of each person, `NAME.pem`: where the
    built-in gateway is used, choosing a name from a list is signing with it.
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

    @model_validator(mode="after")
    def _can_have_passkeys(self) -> "ConsoleSection":
        """Refuse an origin that no browser makes passkeys for, or that browsers write in another way."""
        if self.origin is None:
            return self
        is_default_port = self.origin.endswith(":443" if self.origin.startswith("https") else ":80")
        if not _ORIGIN.fullmatch(self.origin) or _ADDRESS.fullmatch(self.origin) or is_default_port:
            raise ValueError(
                f"{self.origin!r} is no origin that passkeys are made for; write it as the browser does, "
                '"https://payouts.example.com" or "http://localhost:8443": a name in small letters, no number, '
                "no path, no default port"
            )
        return self


class ReportingSection(Section):
    """`[reporting]`: where a run reports: a log of JSON lines, a file for Prometheus (`.prom`), a hook.

    `hook` is a command without a shell; it gets the summary on its standard input.
    """

    log: FilePath | None = None
    metrics: FilePath | None = None
    hook: list[str] = Field(default_factory=list)
    hook_timeout_s: Seconds = 60


class SandboxSection(Section):
    """`[sandbox]`: the answers of the built-in gateway."""

    behaviour: FilePath | None = None


class CountrySection(Section):
    """`[countries.XX]`."""

    payout: PayoutTermsSection = PayoutTermsSection()
    payin: PayinTermsSection = PayinTermsSection()
