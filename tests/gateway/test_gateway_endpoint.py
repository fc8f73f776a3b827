"""Accepted and refused addresses of the gateway."""

import pytest
from oauthlib.oauth1.rfc5849.signature import base_string_uri

from paygw_batch.errors import ConfigurationError
from paygw_batch.gateway.address import Origin, operation_url, parse_gateway_url, parse_proxy_url
from tests.support.gateway_cases import OPERATION

GATEWAY = Origin("https", "gateway.example", 443)


@pytest.mark.parametrize(
    ("base_url", "origin", "path"),
    [
        *((url, "https://gateway.example", "") for url in ("https://gateway.example", "https://gateway.example/")),
        ("HTTPS://Gateway.EXAMPLE:443/Sub/path/", "https://gateway.example", "/Sub/path"),
        *((url, url, "") for url in ("https://gateway.example:8443", "https://192.0.2.7", "http://127.0.0.1:8080")),
        ("https://[2001:DB8::1]:444/a", "https://[2001:db8::1]:444", "/a"),
        *(("http://localhost", "http://localhost", ""), ("http://[::1]:8080", "http://[::1]:8080", "")),
        ("http://127.9.9.9:80", "http://127.9.9.9", ""),
    ],
)
def test_gateway_url_is_normalised(base_url: str, origin: str, path: str) -> None:
    result, rest = parse_gateway_url(base_url)
    assert (str(result), rest) == (origin, path)


@pytest.mark.parametrize(
    "base_url",
    [
        *("", "gateway.example", "ftp://gateway.example", "https://", "https:///path"),
        *("https://user:hunter2@gateway.example", "https://hunter2@gateway.example"),
        *("https://gateway.example?key=hunter2", "https://gateway.example/#hunter2", "https://gateway.example:0"),
        *("https://gateway.example:65536", "https://gateway.example:port", "https://gateway..example"),
        *("https://.gateway.example", "https://gateway.example.", "https://-gateway.example"),
        f"https://{'a' * 64}.example",
        f"https://{'a.' * 127}example",
        *("https://gatew\u0430y.example", "https://gateway.example/a b", "https://gateway.example\n"),
        *(" https://gateway.example", "https://gateway.example\r\nHost: evil.example", "https://[::1"),
        *("https://[12345::]", "https://gateway.example\\@evil.example", "https://gateway.example/a/../b"),
        *("https://gateway.example/./a", "https://gateway.example/a/%2E%2e/b", "https://gateway.example/a%2F..%2Fb"),
    ],
)
def test_malformed_url_is_refused_without_quoting_it(base_url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"gateway\.base_url") as caught:
        parse_gateway_url(base_url)
    assert "hunter2" not in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize("host", ["gateway.example", "192.0.2.7", "0.0.0.0", "localhost.example", "[2001:db8::1]"])  # noqa: S104 (it is refused)
def test_plain_http_is_refused_except_for_loopback(host: str) -> None:
    with pytest.raises(ConfigurationError, match="unencrypted"):
        parse_gateway_url(f"http://{host}:8080")


def test_proxy_url_must_be_plain_http() -> None:
    assert parse_proxy_url("http://Proxy.example:3128/", gateway=GATEWAY) == Origin("http", "proxy.example", 3128)
    for proxy in ("https://proxy.example:3128", "http://proxy.example:3128/path", "proxy.example:3128"):
        with pytest.raises(ConfigurationError, match=r"gateway\.proxy"):
            parse_proxy_url(proxy, gateway=GATEWAY)
    with pytest.raises(ConfigurationError, match=r"gateway\.proxy") as caught:
        parse_proxy_url("http://user:hunter2@proxy.example:3128", gateway=GATEWAY)
    assert "hunter2" not in str(caught.value)
    with pytest.raises(ConfigurationError, match="does not use https://"):
        parse_proxy_url("http://proxy.example:3128", gateway=Origin("http", "127.0.0.1", 80))


@pytest.mark.parametrize(
    ("base_url", "endpoint_id", "url"),
    [
        ("https://gateway.example", "1234", "https://gateway.example/paynet/api/v4/payout/1234"),
        ("https://Gateway.example:443/", "1234", "https://gateway.example/paynet/api/v4/payout/1234"),
        ("https://gateway.example/sub", "a/b?c", "https://gateway.example/sub/paynet/api/v4/payout/a%2Fb%3Fc"),
        ("http://127.0.0.1:80", "é", "http://127.0.0.1/paynet/api/v4/payout/%C3%A9"),
    ],
)
def test_sent_url_matches_signed_url(base_url: str, endpoint_id: str, url: str) -> None:
    assert operation_url(base_url, OPERATION, endpoint_id) == url
    assert base_string_uri(url) == url


@pytest.mark.parametrize("endpoint_id", ["", ".", ".."])
def test_endpoint_id_cannot_change_url_path(endpoint_id: str) -> None:
    with pytest.raises(ConfigurationError, match="endpoint_id"):
        operation_url("https://gateway.example", OPERATION, endpoint_id)


@pytest.mark.parametrize(
    ("before", "paths"),
    [
        ("", ("/paynet", "/paynet/api/v4/payout", "/paynet/api/v4/payout/1234", "/paynet/api/v2/sale-form/1234/")),
        ("", ("/PayNet/api", "/%70aynet/api", "/api/v4", "/v4/payout/1234", "/Payout/")),
        ("/proxy", ("/proxy/paynet/api/v4", "/proxy/api/v4/payout/1234")),
    ],
)
def test_base_url_with_operation_path_is_refused(before: str, paths: tuple[str, ...]) -> None:
    for path in paths:
        with pytest.raises(ConfigurationError, match="part of an operation's path") as caught:
            operation_url(f"https://gateway.example{path}", OPERATION, "1234")
        assert caught.value.hint.endswith(f" https://gateway.example{before}")


def test_base_url_may_have_path() -> None:
    for path in ("/paynets/v4", "/payout-gateway", "/payout/v1", "/api"):
        url = operation_url(f"https://gateway.example{path}", OPERATION, "1")
        assert url == f"https://gateway.example{path}{OPERATION.path.replace('{endpoint_id}', '1')}"
