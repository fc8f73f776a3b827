"""Connects to the gateway: the configured one, or the built-in one for the duration of a run."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from paygw_batch.countries.rules import Rules
from paygw_batch.gateway.address import Connections, TransportSettings
from paygw_batch.gateway.http.transport import PayoutTransport
from paygw_batch.settings.configuration import Settings
from paygw_batch.wiring.notifications import callback_url
from paygw_batch.wiring.signing import Signing, signer_key, signer_of


@dataclass(frozen=True, slots=True)
class GatewayAccess:
    """The access to the gateway: `signing` prepares requests, `transport` sends them, inside the run's event loop."""

    signing: Signing
    transport: PayoutTransport
    base_url: str


def transport_settings(settings: Settings, base_url: str) -> TransportSettings:
    """Return how the gateway at `base_url` is reached."""
    gateway = settings.gateway
    return TransportSettings(
        base_url=base_url,
        connect_timeout_s=gateway.connect_timeout_s,
        read_timeout_s=gateway.read_timeout_s,
        total_timeout_s=gateway.total_timeout_s,
        connections=Connections(settings.submission.connections),
        ca_bundle=gateway.ca_bundle,
        proxy=gateway.proxy,
    )


@contextmanager
def gateway_of(settings: Settings, rules: Rules, environ: Mapping[str, str]) -> Iterator[GatewayAccess]:
    """Yield the access to the gateway, for the operation of `rules`.

    With `base_url = "sandbox"` the built-in one runs as long as the context lasts.

    Any fault of key, addresses or certificates shows here, before a journal is touched.
    """
    key = signer_key(settings, environ)
    with ExitStack() as stack:
        base_url = settings.gateway.base_url or ""
        if settings.uses_sandbox:
            from paygw_batch.sandbox.server import running_sandbox  # noqa: PLC0415 (as below)
            from paygw_batch.wiring.sandbox import sandbox_config  # noqa: PLC0415 (uvicorn, and all of the sandbox)

            base_url = stack.enter_context(running_sandbox(sandbox_config(settings, [rules], key, environ)))
        signer = signer_of(settings, rules, key, base_url, environ)
        signing = Signing(signer, rules, callback_url(settings, environ))
        yield GatewayAccess(signing, PayoutTransport(transport_settings(settings, base_url)), base_url)
