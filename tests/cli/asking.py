"""Configures status enquiries, and a sandbox that answers them."""

from tests.support.program import Program, sandbox_toml

BEHAVIOUR = """
[enquiry]
later = { processing = "approved", sandbox-limbo = "declined" }

[[rule]]
amount_whole = 9002
status = "processing"

[[rule]]
amount_whole = 9007
fault = "drop_after"

[[rule]]
amount_whole = 9008
fault = "drop_before"

[[rule]]
amount_whole = 9010
status = "sandbox-limbo"
"""


AMOUNTS = ("9002", "9007", "9008", "9010", "100")


def configure_enquiries(program: Program, section: str) -> None:
    (program.home / "behaviour.toml").write_text(BEHAVIOUR)
    program.config.write_text(f'{sandbox_toml()}\n[sandbox]\nbehaviour = "behaviour.toml"\n{section}')
