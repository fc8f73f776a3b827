"""What every table of the configuration file is made of, and the tables of what comes in from outside a run."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


class Section(BaseModel):
    """A table of the file: frozen, strict, and deaf to keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def _path(value: object) -> object:
    return Path(value) if isinstance(value, str) else value


FilePath = Annotated[Path, BeforeValidator(_path)]
"""A path; relative ones are taken from the directory of the configuration file."""
Seconds = Annotated[float, Field(gt=0, le=3600)]


class NotificationFieldsSection(Section):
    """`[notifications.fields]`: under which names a notification tells what it is about; without it, the request's."""

    order_id: str | None = None
    amount: str | None = None
    currency: str | None = None
    status: str = "status"
    reference: str | None = None


class NotificationsSection(Section):
    """`[notifications]`: how the gateway's notifications are received, and what proves one.

    Without `authenticity` nothing does, and each is evidence that a person confirms.
    """

    port: Annotated[int, Field(ge=0, le=65535)] = 8087
    token_env: str | None = None
    token_file: FilePath | None = None
    authenticity: Literal["shared-secret-hash"] | None = None
    hash_algorithm: Literal["sha256", "hmac-sha256"] | None = None
    hash_fields: list[str] | None = None
    hash_separator: str | None = None
    hash_field: str | None = None
    secret_env: str | None = None
    secret_file: FilePath | None = None
    max_body_kib: Annotated[int, Field(ge=1, le=1024)] = 64
    rate_per_s: Annotated[float, Field(gt=0)] = 200
    client_timeout_s: Annotated[float, Field(ge=1, le=60)] = 10
    fields: NotificationFieldsSection = NotificationFieldsSection()


class StatusEnquirySection(Section):
    """`[status_enquiry]`: whether and how the gateway is asked what became of orders. Without `profile`, it is not.

    `not_found` lists the status words by which it says that it does not know an order.
    """

    profile: Literal["paynet-v4"] | None = None
    not_found: list[str] | None = None
    concurrency: Annotated[int, Field(ge=1, le=64)] = 4
    rate_per_s: Annotated[float, Field(gt=0)] = 10
    limit_min: Annotated[float, Field(gt=0, le=1440)] = 30
