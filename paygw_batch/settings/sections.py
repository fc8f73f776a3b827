"""Defines the base of every table of the configuration file, and the tables of operations and notifications."""

from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from paygw_batch.core.money import parse_amount


class Section(BaseModel):
    """A table of the file: frozen and strict; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def _path(value: object) -> object:
    return Path(value) if isinstance(value, str) else value


def _decimal(value: object) -> object:
    if not isinstance(value, str):
        raise ValueError('write the amount in quotes, as in "250000"')  # noqa: TRY004 (pydantic asks for ValueError)
    amount = parse_amount(value, minor_units=4)
    if amount is None:
        raise ValueError(f"{value!r} is not an amount")
    return amount


FilePath = Annotated[Path, BeforeValidator(_path)]
"""A path; relative ones are taken from the directory of the configuration file."""
AmountText = Annotated[Decimal, BeforeValidator(_decimal)]
Seconds = Annotated[float, Field(gt=0, le=3600)]
Address = Annotated[str, Field(pattern=r"^https?://[!-~]+$")]
CONTROL_PARTS = ("client_orderid", "amount", "currency")
"""The parts of a collection's control, by section 5 of the gateway's interface."""


class NotificationFieldsSection(Section):
    """`[notifications.fields]`: the names of a notification's fields; without it, the request's."""

    order_id: str | None = None
    amount: str | None = None
    currency: str | None = None
    status: str = "status"
    reference: str | None = None


_HASH_KEYS = frozenset({"hash_fields", "hash_separator", "hash_field"})
_HEADER_KEYS = frozenset({"header", "header_encoding", "header_prefix"})
_SECRET_KEYS = frozenset({"secret_env", "secret_file"})
_PUBLIC_KEYS = frozenset({"public_key_env", "public_key_file"})
_PROFILES: Mapping[str, tuple[frozenset[str], tuple[str, ...]]] = {
    "shared-secret-hash": (_HASH_KEYS | _SECRET_KEYS, ("sha256", "hmac-sha256", "sha1")),
    "header-hmac": (_HEADER_KEYS | _SECRET_KEYS, ("hmac-sha256", "hmac-sha512")),
    "header-rsa": (_HEADER_KEYS | _PUBLIC_KEYS, ("rsa-sha256", "rsa-sha512", "rsa-pss-sha256")),
}
"""The keys that each profile of `authenticity` uses beside `hash_algorithm`, and the algorithms that it knows."""


class NotificationsSection(Section):
    """`[notifications]`: how the gateway's notifications are received, and how one is proven.

    Without `authenticity` none is proven, and each is evidence that a person confirms. `on_unproven`: what is done
    about one that nothing proves.
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
    def _fits_its_profile(self) -> "NotificationsSection":
        if self.authenticity is None:
            return self
        keys, algorithms = _PROFILES[self.authenticity]
        others = frozenset().union(*(used for used, _ in _PROFILES.values())) - keys
        if unused := sorted(key for key in others if getattr(self, key) is not None):
            raise ValueError(f'{unused[0]} is not used by authenticity = "{self.authenticity}"; remove it')
        if self.hash_algorithm is not None and self.hash_algorithm not in algorithms:
            known = " or ".join(algorithms)
            raise ValueError(f'authenticity = "{self.authenticity}" takes hash_algorithm {known}')
        return self


ReplyPath = Annotated[str, Field(max_length=200, pattern=r"^[^.\s]+(\.[^.\s]+)*$")]
"""The name of a member of a reply, or a path to one: `error.message`."""
ReplyPaths = Annotated[list[ReplyPath], Field(min_length=1)]


class ReplySection(Section):
    """`[reply]`: the names of a reply's fields; without a key, the names of config/operations/.

    `amount_unit`: whether it repeats an amount as it was sent, in the currency's smallest unit, or another amount.
    """

    order_id: ReplyPaths | None = None
    amount: ReplyPaths | None = None
    amount_unit: Literal["major", "minor", "unchecked"] = "major"
    currency: ReplyPaths | None = None
    reference: ReplyPaths | None = None
    error_code: ReplyPaths | None = None
    message: ReplyPaths | None = None


class StatusEnquirySection(Section):
    """`[status_enquiry]`: whether and how the gateway is asked for the outcome of orders. Without `profile`, it is not.

    `not_found` lists the status words by which it says that it does not know an order.
    """

    profile: Literal["paynet-v4"] | None = None
    not_found: list[str] | None = None
    concurrency: Annotated[int, Field(ge=1, le=64)] = 4
    rate_per_s: Annotated[float, Field(gt=0)] = 10
    limit_min: Annotated[float, Field(gt=0, le=1440)] = 30


class PayinSection(Section):
    """`[payin]`: the values that every collection carries, and how its control hash is computed.

    Only `control_algorithm` has a default. `control_order` names what is hashed, and in which order. Where `secret` is
    among it, or `control_algorithm` is a keyed hash, an environment variable or a file holds the secret.
    """

    site_url: Address | None = None
    redirect_url: Address | None = None
    amount: Literal["number", "two-decimals"] | None = None
    control_order: list[Literal["client_orderid", "amount", "currency", "secret"]] | None = None
    control_separator: str | None = None
    control_amount: Literal["as-sent", "two-decimals", "minor-units"] | None = None
    control_algorithm: Literal["sha256", "hmac-sha256"] = "sha256"
    control_secret_env: str | None = None
    control_secret_file: FilePath | None = None

    @model_validator(mode="after")
    def _one_control(self) -> "PayinSection":
        order = self.control_order
        if order is not None and (len(set(order)) != len(order) or not {*order} >= {*CONTROL_PARTS}):
            raise ValueError(f"control_order names each of {', '.join(CONTROL_PARTS)} once, and secret at most once")
        if order is not None and "secret" in order and self.has_key:
            raise ValueError("with hmac-sha256 the secret is the key of the hash; take it out of control_order")
        if order is not None and not self.needs_secret and self.has_secret:
            raise ValueError("a secret is configured, and control_order does not say where it stands")
        return self

    @property
    def has_key(self) -> bool:
        """Whether the hash is a keyed one."""
        return self.control_algorithm == "hmac-sha256"

    @property
    def needs_secret(self) -> bool:
        """Whether the control cannot be computed without a secret."""
        return self.has_key or "secret" in (self.control_order or ())

    @property
    def has_secret(self) -> bool:
        """Whether a place is named that holds the secret."""
        return self.control_secret_env is not None or self.control_secret_file is not None

    def missing(self) -> list[str]:
        """Return the keys without which nothing can be collected."""
        keys = ("site_url", "redirect_url", "amount", "control_order", "control_separator", "control_amount")
        absent = [f"payin.{key}" for key in keys if getattr(self, key) is None]
        if self.needs_secret and not self.has_secret:
            absent.append("payin.control_secret_env or payin.control_secret_file")
        return absent


class _TermsSection(Section):
    """Values that the interface leaves to the operator in every operation, and limits that may be tightened."""

    purpose: str | None = None
    min_amount: AmountText | None = None
    max_amount: AmountText | None = None
    ipaddress: str | None = None
    order_desc: str | None = None
    operator: str | None = None
    optional: list[str] = Field(default_factory=list)
    also: list[str] = Field(default_factory=list)
    defaults: Mapping[str, str] = Field(default_factory=dict)


class PayoutTermsSection(_TermsSection):
    """`[countries.XX.payout]`."""

    form: str | None = None
    bank_account_pattern: str | None = None


class PayinTermsSection(_TermsSection):
    """`[countries.XX.payin]`: also the values that a sheet need not give row by row."""

    address1: str | None = None
    city: str | None = None
    zip_code: str | None = None
    merchant_data: str | None = None
