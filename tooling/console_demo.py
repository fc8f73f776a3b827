"""Open the console with a choice of people, a sheet with defects, and a gateway that sometimes fails.

python tooling/console_demo.py            # serve the pages until interrupted
python tooling/console_demo.py FOLDER     # keep everything in FOLDER, and continue there next time

No money moves, and nothing leaves this machine.
"""

import base64
import sys
import tempfile
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from paygw_batch.cli.start import main as program

ROOT = Path(__file__).resolve().parents[1]
PEOPLE = ("Ada Wanjiru", "Ben Okello", "Grace Njeri", "Tom Mutua")
BEHAVIOUR = """# Some rows are declined, some come into doubt; each answer takes a moment: there is something to see.
[default]
status = "approved"
delay_s = 0.4

[[rule]]
every_nth = 50
status = "declined"
message = "The account does not exist."
commits = false

[[rule]]
every_nth = 70
fault = "garbage"
"""
DEFECTS = {
    4: ("amount", '"1,250.00"'),
    18: ("amount", "12-Jan"),
    24: ("country", "Kenya"),
    41: ("name", ""),
    59: ("currency", "USD"),
    91: ("id", "NOV-90"),
}
"""Row of the sample sheet -> the column of its wrong cell, and the text."""


def create_demo(folder: Path) -> Path:
    """Create the configuration, a key for each person, and the sample sheet; return the configuration."""
    keys = folder / "keys"
    keys.mkdir(mode=0o700)
    lines = [_create_key(keys, name) for name in PEOPLE]
    text = (ROOT / "config/sandbox.toml").read_text(encoding="utf-8").replace("../sandbox-state/", "state/")
    text += f"""
[sandbox]
behaviour = "behaviour.toml"

[approval.makers]
{lines[0]}

[approval.approvers]
{lines[1]}

[console]
sandbox_keys = "keys"

[console.auditors]
{lines[2]}

[console.administrators]
{lines[3]}
"""
    (folder / "behaviour.toml").write_text(BEHAVIOUR, encoding="utf-8")
    (folder / "payroll-november.csv").write_text(build_sample_sheet(200), encoding="utf-8")
    config = folder / "paygw.toml"
    config.write_text(text, encoding="utf-8")
    return config


def build_sample_sheet(rows: int) -> str:
    """Return a sheet with a few typical spreadsheet defects."""
    names = ("Achieng Otieno", "Kamau Njoroge", "Wambui Mwangi", "Halima Abdi", "Kiptoo Cheruiyot", "Zawadi Musa")
    lines = ["Country,Client Order ID,Amount,Currency,Account Name,Account Number,Phone"]
    for n in range(1, rows + 1):
        cells = {
            "country": "KE",
            "id": f"NOV-{n}",
            "amount": f"{3000 + 37 * n}.00",
            "currency": "KES",
            "name": names[n % len(names)],
        }
        if n in DEFECTS:
            column, wrong = DEFECTS[n]
            cells[column] = wrong
        lines.append(f"{','.join(cells.values())},254712{n:06},+254712{n:06}")
    return "\n".join(lines) + "\n"


def _create_key(folder: Path, name: str) -> str:
    key = Ed25519PrivateKey.generate()
    path = folder / f"{name}.pem"
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    path.chmod(0o600)
    public = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return f'"{name}" = "{base64.b64encode(public).decode()}"'


def main() -> None:
    """Prepare a new folder, and serve the pages."""
    chosen = sys.argv[1:2]
    folder = Path(chosen[0]).absolute() if chosen else Path(tempfile.mkdtemp(prefix="paygw-console-"))
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    config = folder / "paygw.toml"
    if not config.exists():
        create_demo(folder)
    print(f"A sheet to upload: {folder / 'payroll-november.csv'}", flush=True)
    print("Open http://127.0.0.1:8460 and choose a person. Ctrl-C ends it.", flush=True)
    sys.argv = ["paygw-batch", "--config", str(config), "console"]
    program()


if __name__ == "__main__":
    main()
