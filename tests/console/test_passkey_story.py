"""A passkey's whole way in a real browser: it is made, signs in, approves a plan, and `submit` verifies it offline."""

from collections.abc import Callable, Iterator
from pathlib import Path
from secrets import token_urlsafe

import pytest

from paygw_batch.clock import utc_now
from tests.cli.approving import plan_of, policy, prepared
from tests.cli.program import Program, sandbox_toml
from tests.console.browsers import Desk
from tests.console.passkey_pages import PasskeyPages

NewDesk = Callable[..., Desk]


@pytest.fixture
def pages(program: Program) -> Iterator[PasskeyPages]:
    """A company where ada made a plan with her key in a file, and pages for it."""
    program.config.write_text(sandbox_toml() + policy(program.home))
    prepared(program)
    found = PasskeyPages(program, plan_of(program))
    with found.served():
        program.config.write_text(f'{program.config.read_text()}\n[console]\norigin = "{found.origin}"\n')
        yield found


def made(pages: PasskeyPages, desk: Desk, name: str) -> str:
    """Let a person who is invited make a passkey, and return its line."""
    token = token_urlsafe(32)
    pages.invitations.invite(name, token, utc_now())
    desk.page.goto(f"{pages.origin}/invitation/{token}")
    desk.page.get_by_role("button", name="Make my passkey").click()
    line: str = desk.page.locator("#line").inner_text()
    desk.page.goto(f"{pages.origin}/invitation/{token}")
    assert desk.page.get_by_role("heading").inner_text() == "This link was used, or is too old"
    return line


def listed(program: Program, line: str) -> None:
    """Put the line of a passkey into the configuration, as its administrator does: cleo has it beside her file."""
    old = program.config.read_text()
    own = next(text for text in old.splitlines() if text.startswith("cleo = "))
    program.config.write_text(old.replace(own, f'cleo = [{own.removeprefix("cleo = ")}, "{line}"]'))


def signed_in(pages: PasskeyPages, desk: Desk) -> str:
    desk.page.goto(f"{pages.origin}/sign-in")
    desk.page.get_by_role("button", name="Sign in with your passkey").click()
    desk.page.wait_for_function("document.querySelector('h1').textContent !== 'Sign in'")
    return str(desk.page.get_by_role("heading").inner_text())


def ran(program: Program, *arguments: str | Path) -> tuple[int, str]:
    """Run a command as a process; return its exit code and its output, on one line."""
    process = program.start(*arguments)
    output, _ = process.communicate()
    return process.returncode, " ".join(output.split())


def submitted(program: Program) -> int:
    return ran(program, "submit", program.home / "payroll.csv")[0]


def test_a_person_makes_a_passkey_signs_in_and_approves_and_submit_verifies_it(
    pages: PasskeyPages, new_desk: NewDesk
) -> None:
    desk = new_desk()
    line = made(pages, desk, "Cleo Achieng")
    assert desk.passkeys() == 1
    assert signed_in(pages, desk) == "Nobody"  # the configuration does not know the passkey yet
    listed(pages.program, line)
    assert signed_in(pages, desk) == "Signed in as cleo"

    assert submitted(pages.program) == 8
    desk.page.goto(f"{pages.origin}/approve")
    desk.require_accessible()
    code = desk.page.locator("#code").inner_text()
    assert f"The code of this plan is {code}" in ran(pages.program, "approve", pages.plan)[1]
    desk.page.get_by_role("button", name="Approve with my passkey").click()
    desk.page.get_by_role("heading", name="Approved").wait_for()
    assert "Approved by cleo at " in ran(pages.program, "approve", pages.plan)[1]
    assert submitted(pages.program) == 0
    assert len(pages.program.record()) == 3


def test_where_the_owner_is_not_recognised_nothing_is_signed_and_the_page_says_so(
    pages: PasskeyPages, new_desk: NewDesk
) -> None:
    desk = new_desk()
    listed(pages.program, made(pages, desk, "Cleo Achieng"))
    assert signed_in(pages, desk) == "Signed in as cleo"
    before = pages.posts
    desk.recognise(is_owner=False)
    desk.page.goto(f"{pages.origin}/approve")
    problem = desk.page.get_by_role("alert")
    assert problem.count() == 0
    button = desk.page.get_by_role("button", name="Approve with my passkey")
    button.click()
    problem.wait_for()
    assert problem.inner_text() == "Nothing was signed, and nothing was sent."
    assert button.is_enabled()
    assert (pages.posts, submitted(pages.program)) == (before, 8)


def test_a_passkey_of_another_person_is_nobody(pages: PasskeyPages, new_desk: NewDesk) -> None:
    cleo, eve = new_desk(), new_desk()
    listed(pages.program, made(pages, cleo, "Cleo Achieng"))
    made(pages, eve, "Eve")
    assert signed_in(pages, eve) == "Nobody"
    assert signed_in(pages, cleo) == "Signed in as cleo"
