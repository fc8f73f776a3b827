"""An endpoint is recognised in any spelling of its host."""

import pytest

from paygw_batch.core.endpoint_identity import EndpointIdentity, canonical_host

SAME = [
    ["gateway.example", "GATEWAY.Example", "gateway.example.", " gateway.example"],
    ["xn--mnchen-3ya.example", "münchen.example", "MÜNCHEN.example.", "XN--mnchen-3ya.EXAMPLE"],
    [
        *("127.0.0.1", "localhost", "LOCALHOST.", "127.0.0.2", "127.1", "0x7f000001", "2130706433", "0177.0.0.1"),
        *("[::1]", "::1", "0:0:0:0:0:0:0:1", "::ffff:127.0.0.1", "api.localhost", "0.0.0.0"),  # noqa: S104 - compared only
    ],
    ["[2001:db8::1]", "2001:0DB8:0:0::1", "2001:db8::1"],
    ["192.0.2.7", "::ffff:192.0.2.7", "192.0.519", "0xc0.0.2.7"],
]


@pytest.mark.parametrize("spellings", SAME, ids=lambda spellings: spellings[0])
def test_spellings_of_host_have_one_canonical_form(spellings: list[str]) -> None:
    (canonical,) = {canonical_host(text) for text in spellings}
    assert canonical_host(canonical) == canonical


def test_different_hosts_have_different_canonical_forms() -> None:
    different = ["gateway.example.org", "other.example", "1.2.3.4.5", "256.0.0.1", "", "x"]
    hosts = [canonical_host(text) for text in (*(spellings[0] for spellings in SAME), *different)]
    assert len(set(hosts)) == len(hosts)


def test_invalid_host_name_stays_unchanged() -> None:
    odd = "a" * 70 + ".example"
    assert canonical_host(odd) == odd


OURS = EndpointIdentity.create("gateway.example", "1234", "merchant")


@pytest.mark.parametrize(
    ("other", "is_same"),
    [
        (("Gateway.Example.", "1234", "another login"), True),
        *((("pay.example.net", "1234", "merchant"), True), (("gateway.example", "1235", "merchant"), True)),
        (("pay.example.net", "1234", "another login"), False),
        (("gateway.example", "1235", "another login"), False),
        *((("pay.example.net", "1235", "merchant"), False), (("gateway.example", "1235", None), False)),
    ],
)
def test_two_matching_parts_identify_merchant(other: tuple[str, str, str | None], is_same: bool) -> None:
    moved = EndpointIdentity.create(*other)
    assert OURS.has_same_merchant(moved) == moved.has_same_merchant(OURS) == is_same


def test_endpoint_with_one_changed_part_is_same_merchant() -> None:
    names = [OURS, EndpointIdentity.create("gateway.example", "1235", "merchant")]
    moved = EndpointIdentity.create("gateway.example", "1235", "another login")
    assert moved.matches_merchant(names)
    assert not moved.matches_merchant(names[:1])
    item, other = (EndpointIdentity.create(host, "1", key) for host, key in (("a.example", None), ("b.example", "")))
    assert not item.has_same_merchant(other), "missing consumer keys are not the same"


def test_endpoint_name_restores_host_and_id() -> None:
    ours = EndpointIdentity.create("127.0.0.1", "12/34", "merchant-login")
    assert ours.name == "localhost/12/34"
    assert EndpointIdentity.from_name("127.0.0.1/12/34").host == ours.host
    assert EndpointIdentity.from_name(ours.name) == EndpointIdentity("localhost", "12/34")
    assert "merchant-login" not in repr(ours), "only the digest of the consumer key is stored"
    assert len(ours.consumer_key_sha256) == 64


@pytest.mark.parametrize("host", ["gateway.example", "127.0.0.1", "192.0.2.7", "2001:db8::1"])
def test_different_port_is_same_gateway(host: str) -> None:
    own, moved = (EndpointIdentity.create(host, "1234", "merchant", port=port) for port in (None, 8443))
    assert moved.has_same_merchant(own)
    assert moved.host != own.host
    assert EndpointIdentity.from_name(moved.name).host == moved.host
    assert not moved.has_same_merchant(EndpointIdentity.create("other.example", "1234", "another login", port=8443))
