"""Loads the merchant's RSA key for signing, and the gateway's for verifying.

All cryptography for the gateway is here. The module also parses the address of a key that is not in a file, `pkcs11:`
(RFC 7512) or `awskms:`, and explains why a key cannot be used.
"""

import base64
import hashlib
import json
import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import date
from enum import StrEnum
from pathlib import Path
from urllib.parse import unquote_to_bytes

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.padding import MGF1, PSS, PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import (
    RSAPrivateKey,
    RSAPublicKey,
    RSAPublicNumbers,
    generate_private_key,
)
from cryptography.hazmat.primitives.hashes import SHA256, SHA512
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_private_key,
    load_der_public_key,
    load_pem_private_key,
    load_pem_public_key,
)

from paygw_batch.errors import ConfigurationError, InternalError, SigningFailed
from paygw_batch.language import mark, say
from paygw_batch.trusted_files import OtherUsers, read_trusted_file

PKCS11 = "pkcs11:"
AWSKMS = "awskms:"


@dataclass(frozen=True, slots=True)
class TokenAddress:
    """The address of a private key in a token (RFC 7512). A field that is None matches any value."""

    uri: str
    token: str | None = None
    serial: str | None = None
    manufacturer: str | None = None
    model: str | None = None
    slot: int | None = None
    label: str | None = None
    key_id: bytes | None = None


_ADDRESS_FIELDS = {
    "token": "token",
    "serial": "serial",
    "manufacturer": "manufacturer",
    "model": "model",
    "slot-id": "slot",
    "object": "label",
    "id": "key_id",
}
"""Maps the supported attributes of RFC 7512 to the fields of `TokenAddress`."""
_PIN_ATTRIBUTES = ("pin-value", "pin-source")
_MODULE_ATTRIBUTES = ("module-path", "module-name")


def parse_token_address(uri: str) -> TokenAddress:
    """Parse a `pkcs11:` URI. Raises `ConfigurationError` if it is malformed or unsupported."""
    path, _, query = uri.removeprefix(PKCS11).partition("?")
    attributes = {**_parse_attributes(uri, path, ";"), **_parse_attributes(uri, query, "&")}
    if any(name in attributes for name in _PIN_ATTRIBUTES):
        raise ConfigurationError(
            say("The key's address contains a PIN or the location of one."),
            hint=say("Remove it: the PIN belongs in a file or an environment variable (docs/keys.md)."),
        )
    if any(name in attributes for name in _MODULE_ATTRIBUTES):
        raise ConfigurationError(
            say("The key's address contains a module."),
            hint=say("Remove it, and set the module separately (docs/keys.md)."),
        )
    if attributes.pop("type", b"private") != b"private":
        raise ConfigurationError(say("The key's address does not name a private key."), hint=say("Leave out `type`."))
    if unknown := sorted(attributes.keys() - _ADDRESS_FIELDS.keys()):
        raise _address_error(uri, unknown[0])
    if not attributes.keys() & {"object", "id"}:
        raise ConfigurationError(
            say("The key's address does not say which key in the token to use."),
            hint=say('Write it like "pkcs11:token=paygw;object=payouts".'),
        )
    fields = {_ADDRESS_FIELDS[name]: _parse_attribute_value(uri, name, value) for name, value in attributes.items()}
    return TokenAddress(uri, **fields)  # type: ignore[arg-type]


def parse_kms_key_id(address: str) -> str:
    """Return the key id, ARN or alias in an `awskms:` address. Raises `ConfigurationError` if there is none."""
    key_id = address.removeprefix(AWSKMS).strip()
    if not key_id or any(character.isspace() for character in key_id):
        raise ConfigurationError(
            say("gateway.private_key does not say which key to use."),
            hint=say('Write it like "awskms:alias/payouts", or with the key id or ARN.'),
        )
    return key_id


def _parse_attributes(uri: str, text: str, separator: str) -> Mapping[str, bytes]:
    attributes: dict[str, bytes] = {}
    for pair in filter(None, text.split(separator)):
        name, equals, value = pair.partition("=")
        if not equals or name in attributes:
            raise _address_error(uri, name)
        attributes[name] = unquote_to_bytes(value)
    return attributes


def _parse_attribute_value(uri: str, name: str, value: bytes) -> str | bytes | int:
    if name == "id":
        return value
    try:
        text = value.decode()
        return int(text) if name == "slot-id" else text
    except ValueError:
        raise _address_error(uri, name) from None


def _address_error(uri: str, name: str) -> ConfigurationError:
    return ConfigurationError(
        say("The part {name} of the key's address {uri} cannot be read.", uri=uri, name=name or "="),
        hint=say('Write it like "pkcs11:token=paygw;object=payouts" (RFC 7512).'),
    )


class KeyProblem(StrEnum):
    """Why a key cannot be used."""

    MODULE = "module"
    TOKEN_GONE = "token_gone"  # noqa: S105 (not a password)
    SEVERAL_TOKENS = "several_tokens"
    PIN_MISSING = "pin_missing"
    PIN_WRONG = "pin_wrong"
    PIN_LOCKED = "pin_locked"
    KEY_MISSING = "key_missing"
    SEVERAL_KEYS = "several_keys"
    WRONG_KIND = "wrong_kind"
    TOO_SHORT = "too_short"
    NO_REGION = "no_region"
    NO_CREDENTIALS = "no_credentials"
    EXPIRED = "expired"
    FORBIDDEN = "forbidden"
    DISABLED = "disabled"
    UNREACHABLE = "unreachable"
    THROTTLED = "throttled"
    SLOW = "slow"
    WRONG_SIGNATURE = "wrong_signature"
    BROKEN = "broken"


_MESSAGES = {
    KeyProblem.MODULE: (
        mark("The PKCS#11 module {detail} cannot be used."),
        mark("Set gateway.pkcs11_module to the token vendor's module, a file that ends in .so."),
    ),
    KeyProblem.TOKEN_GONE: (
        mark("The token for {key} was not found."),
        mark("Plug it in, or correct the token's name in gateway.private_key."),
    ),
    KeyProblem.SEVERAL_TOKENS: (
        mark("{key} matches several tokens."),
        mark("To choose one, add its serial number to gateway.private_key: `serial=...`."),
    ),
    KeyProblem.PIN_MISSING: (
        mark("No PIN is set for {key}."),
        mark("Set gateway.private_key_passphrase_env or gateway.private_key_passphrase_file."),
    ),
    KeyProblem.PIN_WRONG: (
        mark("The token rejected the PIN for {key}."),
        mark("Correct the PIN before you try again: the token locks itself after a few wrong attempts."),
    ),
    KeyProblem.PIN_LOCKED: (
        mark("The token for {key} is locked: a wrong PIN was entered too often, or the PIN has expired."),
        mark("Its security officer can set a new PIN with the vendor's tool."),
    ),
    KeyProblem.KEY_MISSING: (
        mark("There is no private key {key}."),
        mark("Correct gateway.private_key. To create a key in a token, you can use `paygw-batch init`."),
    ),
    KeyProblem.SEVERAL_KEYS: (
        mark("{key} matches several private keys."),
        mark("To choose one, add its id to gateway.private_key: `id=%01`."),
    ),
    KeyProblem.WRONG_KIND: (
        mark("{key} is not an RSA key for signing."),
        mark(
            "The gateway accepts only RSA signatures. Choose an RSA key for signing (KMS: SIGN_VERIFY), or create one."
        ),
    ),
    KeyProblem.TOO_SHORT: (
        mark("{key} has {detail} bits, but must have at least {needed}."),
        mark("Create a longer key, and send its public key to the gateway's operator."),
    ),
    KeyProblem.NO_REGION: (
        mark("The region of {key} is not set, or does not exist."),
        mark("Set AWS_REGION to the key's region, or use the key's ARN."),
    ),
    KeyProblem.NO_CREDENTIALS: (
        mark("AWS rejected the credentials for {key}, or there are none."),
        mark("Give this account a role or credentials, as for any AWS program (AWS_PROFILE, AWS_ACCESS_KEY_ID, ...)."),
    ),
    KeyProblem.EXPIRED: (
        mark("The AWS credentials for {key} have expired."),
        mark("Sign in to AWS again, or renew the credentials."),
    ),
    KeyProblem.FORBIDDEN: (
        mark("These AWS credentials are not allowed to use {key} ({detail})."),
        mark("Grant these credentials kms:Sign, kms:GetPublicKey and kms:DescribeKey on the key."),
    ),
    KeyProblem.DISABLED: (
        mark("{key} is disabled, or is scheduled for deletion."),
        mark("Enable the key in AWS, or choose another one."),
    ),
    KeyProblem.UNREACHABLE: (
        mark("AWS cannot be reached for {key} ({detail})."),
        mark("Check the region and the network (AWS_REGION, AWS_ENDPOINT_URL_KMS, a proxy)."),
    ),
    KeyProblem.THROTTLED: (
        mark("AWS temporarily refused to sign with {key}, because there were too many requests."),
        mark(
            "Wait, lower gateway.signing_concurrency, or ask AWS for a higher limit. Then run the same command again."
        ),
    ),
    KeyProblem.SLOW: (
        mark("{key} did not sign within {detail} seconds."),
        mark("Check that the token or the service still responds. Then run the same command again."),
    ),
    KeyProblem.WRONG_SIGNATURE: (
        mark("{key} returned a signature that does not match its public key."),
        mark("Do not use this key. The token, its module or the key itself is damaged."),
    ),
    KeyProblem.BROKEN: (
        mark("{key} cannot be used ({detail})."),
        mark("Look up this error in the documentation of the token's vendor or AWS."),
    ),
}


class KeyUnusable(ConfigurationError):
    """A key in a token or AWS cannot sign. `key` is its address. `detail` contains no secret or personal data."""

    def __init__(self, key: str, problem: KeyProblem, detail: str = "") -> None:
        self.key, self.problem, self.detail = key, problem, detail
        message, hint = _MESSAGES[problem]
        shown_detail = detail or say("no reason given")
        super().__init__(say(message, key=key, detail=shown_detail, needed=MIN_KEY_BITS), hint=say(hint))

    def to_error_line(self) -> bytes:
        """Encode the error as an ASCII line, for the process that requested signatures."""
        return json.dumps([self.key, self.problem, self.detail]).encode("ascii")

    def to_signing_failed(self) -> SigningFailed:
        return SigningFailed(self.message, hint=self.hint)


def parse_error_line(line: bytes) -> KeyUnusable:
    """Decode a line written by `KeyUnusable.to_error_line`."""
    key, problem, detail = json.loads(line)
    return KeyUnusable(key, KeyProblem(problem), detail)


MIN_KEY_BITS = 2048
NEW_KEY_BITS = 3072
"""The length of keys that this program creates."""
SIGNATURE_METHOD = "RSA-SHA256"
_PADDING, _DIGEST = PKCS1v15(), SHA256()


class KeyKind(StrEnum):
    """Where a private key is stored."""

    FILE = "file"
    PKCS11 = "pkcs11"
    """In a token, accessed through the vendor's PKCS#11 module."""
    AWSKMS = "awskms"
    """In the AWS Key Management Service."""


EXPIRY_WARNING_DAYS = 30
"""How many days before a key expires to begin warning users."""


@dataclass(frozen=True, slots=True)
class Custody:
    """Where a private key is stored, and whether it can be copied. `location` is for display."""

    kind: KeyKind
    location: str
    is_exportable: bool = False
    was_stored_elsewhere: bool = False
    """Whether a copy may exist elsewhere, because the key was imported or could once be exported."""
    expires: date | None = None

    def days_left(self, today: date) -> int | None:
        """Return the days until the key expires (negative if it has expired), or None if it never does."""
        return None if self.expires is None else (self.expires - today).days


@dataclass(frozen=True, slots=True)
class SigningCapacity:
    """The number of signing processes for a run, and of threads in each process.

    With a slow key, signatures are requested one by one, each with a time limit, and far enough ahead to keep all
    threads busy.
    """

    processes: int
    threads: int = 1
    is_slow: bool = False


@dataclass(frozen=True, slots=True)
class PublicHalf:
    """The public half of the merchant's RSA key."""

    _key: RSAPublicKey = field(repr=False)

    @property
    def bits(self) -> int:
        """The length of the modulus in bits."""
        return self._key.key_size

    @property
    def signature_characters(self) -> int:
        """The length of a signature in base64."""
        return 4 * -(-self.bits // 24)

    def public_key_pem(self) -> bytes:
        """Return the public key as PEM (SubjectPublicKeyInfo), for the gateway's operator."""
        return self._key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def fingerprint(self) -> str:
        """Return the SHA-256 of the public key (SubjectPublicKeyInfo, DER) in hex."""
        der = self._key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return hashlib.sha256(der).hexdigest()

    def verifies(self, text: str, signature: bytes) -> bool:
        """Return whether `signature` is a valid signature of `text` by this key."""
        try:
            self._key.verify(signature, text.encode(), _PADDING, _DIGEST)
        except InvalidSignature:
            return False
        return True


class SigningKey(ABC):
    """The merchant's RSA key in a file, a token or AWS. It signs, and reveals only its public half."""

    __slots__ = ()

    @property
    @abstractmethod
    def public(self) -> PublicHalf:
        """The public half of the key."""

    @property
    @abstractmethod
    def custody(self) -> Custody:
        """Where the private half is stored."""

    def sign(self, text: str) -> str:
        """Return the signature of `text` (RSASSA-PKCS1-v1_5, SHA-256) in base64. Raises `KeyUnusable`."""
        with self.open_signer() as sign:
            return sign(text)

    @abstractmethod
    def serialise(self) -> bytes:
        """Return the key as a line for a signing process. It may be passed only through standard input."""

    @abstractmethod
    def signing_capacity(self, cores: int) -> SigningCapacity:
        """Return the signing capacity for a long run on a machine with `cores` cores."""

    @abstractmethod
    def open_signer(self) -> AbstractContextManager[Callable[[str], str]]:
        """Return a context manager that yields a function to sign a text. Raises `KeyUnusable`."""


@dataclass(frozen=True, slots=True)
class PrivateKey(SigningKey):
    """A key loaded from a file. Thread-safe."""

    _key: RSAPrivateKey = field(repr=False)
    location: str = field(default="", repr=False)

    @property
    def public(self) -> PublicHalf:
        return PublicHalf(self._key.public_key())

    @property
    def custody(self) -> Custody:
        return Custody(KeyKind.FILE, self.location, is_exportable=True)

    @contextmanager
    def open_signer(self) -> Iterator[Callable[[str], str]]:
        yield lambda text: base64.b64encode(self._key.sign(text.encode(), _PADDING, _DIGEST)).decode("ascii")

    def serialise(self) -> bytes:
        """Return the private key itself (PKCS#8, DER, base64)."""
        der = self._key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
        return json.dumps({"kind": KeyKind.FILE, "der": base64.b64encode(der).decode("ascii")}).encode()

    def signing_capacity(self, cores: int) -> SigningCapacity:
        return SigningCapacity(cores)


def parse_public_half(der: bytes) -> PublicHalf | None:
    """Parse an RSA public key (SubjectPublicKeyInfo). Returns None if `der` is not one."""
    try:
        key = load_der_public_key(der)
    except (ValueError, UnsupportedAlgorithm):
        return None
    return PublicHalf(key) if isinstance(key, RSAPublicKey) else None


def build_public_half(modulus: bytes, exponent: bytes) -> PublicHalf:
    """Build a public key from big-endian numbers. Raises `ValueError` if they are invalid."""
    numbers = RSAPublicNumbers(int.from_bytes(exponent, "big"), int.from_bytes(modulus, "big"))
    return PublicHalf(numbers.public_key())


def deserialise_file_key(fields: dict[str, str]) -> PrivateKey:
    """Return the private key encoded by `PrivateKey.serialise`."""
    key = load_der_private_key(base64.b64decode(fields["der"]), None)
    if not isinstance(key, RSAPrivateKey):
        raise InternalError("a signing process was given something else than an RSA key")
    return PrivateKey(key)


class SignatureAlgorithm(StrEnum):
    """How the gateway signs its notifications."""

    RSA_SHA256 = "rsa-sha256"
    """RSASSA-PKCS1-v1_5 with SHA-256."""
    RSA_SHA512 = "rsa-sha512"
    """RSASSA-PKCS1-v1_5 with SHA-512."""
    RSA_PSS_SHA256 = "rsa-pss-sha256"
    """RSASSA-PSS with SHA-256, and MGF1 with SHA-256."""


@dataclass(frozen=True, slots=True)
class GatewayKey:
    """The gateway's public key, and the algorithm of its signatures."""

    _key: RSAPublicKey = field(repr=False)
    algorithm: SignatureAlgorithm

    def verifies(self, content: bytes, signature: bytes) -> bool:
        """Return whether `signature` is a valid signature of `content` by the gateway."""
        digest = SHA512() if self.algorithm is SignatureAlgorithm.RSA_SHA512 else SHA256()
        is_pss = self.algorithm is SignatureAlgorithm.RSA_PSS_SHA256
        padding = PSS(MGF1(digest), PSS.AUTO) if is_pss else PKCS1v15()
        try:
            self._key.verify(signature, content, padding, digest)
        except InvalidSignature:
            return False
        return True


def parse_gateway_key(pem: bytes, algorithm: SignatureAlgorithm, *, name: str) -> GatewayKey:
    """Parse the gateway's RSA public key. Raises `ConfigurationError` about `name` if `pem` is not one."""
    try:
        key = load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigurationError(
            say("{name} does not contain a readable public key.", name=name),
            hint=say("It must be PEM, with a line -----BEGIN PUBLIC KEY-----. Ask the gateway's operator for it."),
        ) from None
    if not isinstance(key, RSAPublicKey) or key.key_size < MIN_KEY_BITS:
        raise ConfigurationError(
            say("{name} is not an RSA key of at least {least} bits.", name=name, least=MIN_KEY_BITS)
        )
    return GatewayKey(key, algorithm)


def generate_key_pem(passphrase: bytes | None) -> bytes:
    """Generate an RSA key in PEM (PKCS#8), encrypted if `passphrase` is given."""
    key = generate_private_key(public_exponent=65537, key_size=NEW_KEY_BITS)
    encryption = BestAvailableEncryption(passphrase) if passphrase else NoEncryption()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)


def load_private_key(path: Path, passphrase: bytes | None = None) -> PrivateKey:
    """Load an RSA key from a PEM file (PKCS#1 or PKCS#8, encrypted or not).

    An unneeded passphrase is ignored. Raises `ConfigurationError` if the file is missing, accessible to other users or
    not an RSA private key in PEM, if the key is too short, or if the passphrase is wrong.
    """
    pem = read_trusted_file(path, say("The private key {path}", path=path), OtherUsers.NO_ACCESS)
    key = _load_key(path, pem, passphrase or None)
    if not isinstance(key, RSAPrivateKey):
        raise ConfigurationError(
            say("The private key {path} is not an RSA key.", path=path),
            hint=say("{method} needs an RSA key.", method=SIGNATURE_METHOD),
        )
    if key.key_size < MIN_KEY_BITS:
        raise ConfigurationError(
            say(
                "The private key {path} has {key_size} bits, but must have at least {least}.",
                path=path,
                key_size=key.key_size,
                least=MIN_KEY_BITS,
            ),
            hint=say(
                "Create a longer key (openssl genrsa -out {path} {bits}), and send its public key to the gateway's "
                "operator.",
                path=shlex.quote(str(path)),
                bits=NEW_KEY_BITS,
            ),
        )
    return PrivateKey(key, str(path))


_OTHER_FORMATS = (
    (rb"-----BEGIN OPENSSH PRIVATE KEY-----", mark("an OpenSSH key"), "ssh-keygen -p -m PEM -f {file}"),
    (rb"\A\x30.{1,5}?\x02\x01\x03", mark("a PKCS#12 file"), "openssl pkcs12 -in {file} -nocerts -out {new}"),
    (
        rb"\A\x30.{1,5}?(?:\x02\x01\x00|\x30.{1,5}?\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x05)",
        mark("a key in DER"),
        "openssl pkey -inform DER -in {file} -out {new}",
    ),
)
"""Other private key formats: how each begins, its name, and the command that converts it to PEM.

Binary files are recognised by the version in their ASN.1: 3 for a PKCS#12 file (RFC 7292), 0 for a bare key. An
encrypted key contains the id of its PKCS#5 scheme.
"""


def _reject_other_format(path: Path, content: bytes) -> None:
    """Raise `ConfigurationError` for a private key in another known format, with the command to convert it."""
    paths = {"file": shlex.quote(str(path)), "new": shlex.quote(f"{path}.pem")}
    for pattern, format_name, command in _OTHER_FORMATS:
        if re.search(pattern, content, re.DOTALL):
            raise ConfigurationError(
                say("The private key {path} is {what}, not PEM.", path=path, what=say(format_name)),
                hint=say("Convert it: `{command}`.", command=command.format(**paths)),
            )


def _load_key(path: Path, pem: bytes, passphrase: bytes | None) -> object:
    """Load a private key of any type. Errors omit the library's own message, which might quote the file."""
    _reject_other_format(path, pem)
    if b"-----BEGIN " not in pem:
        raise ConfigurationError(
            say("The private key {path} is not PEM.", path=path),
            hint=say("A PEM file contains the line -----BEGIN ... PRIVATE KEY-----."),
        )
    try:
        return load_pem_private_key(pem, passphrase)
    except TypeError:
        # The passphrase is missing, or the key does not need one.
        if passphrase is None:
            raise ConfigurationError(
                say("The private key {path} is encrypted, but no passphrase is set.", path=path),
                hint=say("Set gateway.private_key_passphrase_env or gateway.private_key_passphrase_file."),
            ) from None
        return _load_key(path, pem, None)
    except ValueError:
        if passphrase is not None and b"ENCRYPTED" in pem:
            raise ConfigurationError(
                say("The passphrase for the private key {path} is wrong, or the file is damaged.", path=path)
            ) from None
        raise ConfigurationError(say("The file {path} does not contain a readable private key.", path=path)) from None
    except UnsupportedAlgorithm:
        raise ConfigurationError(say("The private key {path} is of an unsupported type.", path=path)) from None
