"""Keys in tokens: SoftHSM 2, with a separate token for each test."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

WHERE = (
    "/usr/lib/softhsm/libsofthsm2.so",
    "/usr/lib/x86_64-linux-gnu/softhsm/libsofthsm2.so",
    "/usr/lib/aarch64-linux-gnu/softhsm/libsofthsm2.so",
    "/usr/lib64/pkcs11/libsofthsm2.so",
    "/opt/homebrew/lib/softhsm/libsofthsm2.so",
)
HOW_TO_GET_IT = "NO SOFTHSM: the tests of keys in tokens were left out. `apt-get install softhsm2` installs it."
PIN = "271828"
LABEL = "paygw"


def find_softhsm() -> Path | None:
    result = [Path(place) for place in WHERE if Path(place).exists()]
    return result[0] if result and shutil.which("softhsm2-util") else None


@dataclass(frozen=True)
class Token:
    """A token in a folder. A process needs `environ` to find it."""

    folder: Path
    module: Path

    @classmethod
    def create_in(cls, folder: Path) -> "Token":
        """Return a new token called `LABEL`, with the PIN `PIN` and without keys."""
        module = find_softhsm()
        assert module is not None
        token = cls(folder, module)
        token.slots.mkdir(parents=True)
        token.configuration.write_text(f"directories.tokendir = {token.slots}\nlog.level = ERROR\n")
        token._run_tool("--init-token", "--free", "--label", LABEL, "--pin", PIN, "--so-pin", "31415926")
        return token

    @property
    def slots(self) -> Path:
        """The folder of SoftHSM's tokens. Moving it away unplugs them."""
        return self.folder / "slots"

    @property
    def configuration(self) -> Path:
        return self.folder / "softhsm2.conf"

    @property
    def environ(self) -> Mapping[str, str]:
        return {"SOFTHSM2_CONF": str(self.configuration)}

    def import_key(self, pem: Path, name: str = "payouts", key_id: str = "01") -> None:
        self._run_tool("--import", str(pem), "--token", LABEL, "--label", name, "--id", key_id, "--pin", PIN)

    def _run_tool(self, *arguments: str) -> None:
        environ = {**os.environ, **self.environ}
        subprocess.run(["softhsm2-util", *arguments], env=environ, check=True, capture_output=True)


def make_person_key(token: Token, label: str, kind: str) -> None:
    """Create a person's key in a token, on a curve or `rsa`, as a vendor's tool does."""
    import pkcs11  # noqa: PLC0415 (an extra)
    from pkcs11 import Attribute, KeyType, Mechanism  # noqa: PLC0415
    from pkcs11.util.ec import encode_named_curve_parameters  # noqa: PLC0415

    module = pkcs11.lib(str(token.module))
    try:
        with module.get_token(token_label=LABEL).open(rw=True, user_pin=PIN) as session:
            if kind == "rsa":
                session.generate_keypair(KeyType.RSA, 2048, store=True, label=label, id=label.encode())
                return
            is_edwards = kind == "ed25519"
            curve = bytes.fromhex("06032b6570") if is_edwards else encode_named_curve_parameters(kind)
            parameters = session.create_domain_parameters(
                KeyType.EC_EDWARDS if is_edwards else KeyType.EC, {Attribute.EC_PARAMS: curve}, local=True
            )
            mechanism = Mechanism.EC_EDWARDS_KEY_PAIR_GEN if is_edwards else Mechanism.EC_KEY_PAIR_GEN
            parameters.generate_keypair(store=True, label=label, id=label.encode(), mechanism=mechanism)
    finally:
        module.finalize()
