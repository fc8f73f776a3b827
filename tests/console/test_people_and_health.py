"""Tests the pages of people, health and workers, and that actions and refusals are audited or not done."""

import json
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from unittest.mock import Mock

import pytest

from paygw_batch.clock import timestamp
from paygw_batch.console.console_app import console_app
from paygw_batch.console.pages import people_page
from paygw_batch.console.pages.people_page import HEALTH_FOLDER
from paygw_batch.console.start_run import last_run
from paygw_batch.errors import AuditUnwritable
from paygw_batch.journal import SharedWork, TimetableJob, UnfinishedRun, WorkerStatus
from paygw_batch.journal.location import JournalLocation
from paygw_batch.journal.port import GateState, GateStop, GateStopKind
from paygw_batch.settings.configuration import Settings
from paygw_batch.settings.sections import pick_up_job_name
from tests.console.preparing import EIGHT_DEFECTS, digest, sheet, sign_sheet, upload_sheet
from tests.support.clusters import ClusterProgram
from tests.support.patience import PATIENCE_S, wait_until
from tests.support.people import (
    ADMINISTRATOR,
    APPROVER,
    AUDITOR,
    MAKER,
    ORIGIN,
    House,
    Person,
    audit_entries,
    create_sandbox,
)
from tests.support.postgres_server import PostgresServer
from tests.support.scripted_scenario import NOW

pytestmark = pytest.mark.usefixtures("in_process_checks")


def shown_trail(page: str) -> list[tuple[str, str, str]]:
    """Return the action, subject and result of each entry on the page, newest first."""
    lines = re.findall(r'<tr><td class="number" data-label="No.">\d+</td>(.*?)</tr>', page)
    cells = [re.sub(r"<[^>]+>", "", line.replace("</td>", "|")).split("|") for line in lines]
    return [(act, about, result) for _, _, act, about, result, _ in cells]


def replace_program(house: House, script: str) -> None:
    house.console = replace(house.console, program=("/bin/sh", "-c", script, "paygw-batch"))
    house.app = console_app(house.console)


def test_audit_page_shows_sheet_row_and_column(house: House, ada: Person) -> None:
    draft = upload_sheet(ada, sheet(wrong=EIGHT_DEFECTS), "november.csv")
    ada.post(f"{draft}/mend", row="4", column="amount", text="1250.00")
    ada.post(f"{draft}/leave-out", row="5")
    ada.ask("POST", f"{draft}/mend", data={"csrf": ada.token(), "row": "9"}, headers={"origin": ORIGIN})
    page = house.person(AUDITOR).get("/people").text
    assert shown_trail(page)[1:6] == [
        ("correct cell", "november.csv, row 9", "refused: not found"),
        ("correct cell", "november.csv, row 9", "refused: not found"),  # Actions are recorded before they are done.
        ("leave out", "november.csv, row 5", "done"),
        ("correct cell", "november.csv, row 4, Amount", "done"),
        ("upload", "november.csv", "done"),
    ]
    assert draft.rpartition("/")[2] not in page
    ada.post(f"{draft}/remove")
    assert shown_trail(ada.get("/people").text)[2][1] == "a sheet that was removed, row 9"


def test_audit_trail_shows_refused_start(house: House, ada: Person, ben: Person) -> None:
    draft = upload_sheet(ada, sheet(2), "november.csv")
    sign_sheet(ada, draft)
    ben.post(f"{draft}/approve", digest=digest(ben, draft))
    replace_program(house, "exit 8")
    ben = house.person(APPROVER)
    assert ben.post(f"{draft}/start", digest=digest(ben, draft)).status_code == 303
    refused = "refused: the signatures are invalid or out of date"
    wait_until(lambda: shown_trail(ben.get("/people").text)[:2] == [("start", "november.csv", refused)] * 2)
    ben.ask("POST", "/orders/0123456789abcdef/agree", data={"csrf": ben.token()}, headers={"origin": ORIGIN})
    entry = ("agree to order", "an order that was removed", "refused: the page was out of date")
    assert shown_trail(ben.get("/people").text)[0] == entry


def test_people_page_shows_last_backup(house: House, ada: Person) -> None:
    assert ada.get("/workers").status_code == 404  # A journal that is a file has no workers.
    assert 'href="/workers"' not in ada.get("/").text
    assert "none known" in ada.get("/people").text
    assert house.program.run("backup", house.program.home / "copy.sqlite3").exit_code == 0
    assert "(0 minutes ago)" in ada.get("/people").text


def test_health_page_runs_check_and_shows_result(house: House) -> None:
    checks = [("disk space", "wrong", "The disk is full."), ("clock", "ok", "it is noon")]
    found = [dict(zip(("check", "state", "found"), check, strict=True)) for check in checks]
    summary = json.dumps({"exit_code": 2, "message": "1 of 2 checks failed.", "checks": found})
    replace_program(house, f"echo '{summary}'")
    tom = house.person(ADMINISTRATOR)
    assert tom.post("/people/check", check="doctor").status_code == 303
    run = last_run(house.console.directory / HEALTH_FOLDER, "doctor")
    assert run is not None
    wait_until(lambda: not run.is_alive)
    page = tom.get("/people").text
    texts = ("1 of 2 checks failed.", "<strong>disk space</strong>: The disk is full.", "it is noon")
    assert [text in page for text in texts] == [True, True, False]
    assert tom.post("/people/check", check="submit").status_code == 404
    assert "Check now" not in house.person(AUDITOR).get("/people").text


def test_sign_ins_and_refusals_are_audited(house: House) -> None:
    house.person(MAKER).ask("POST", "/sign-out", headers={"origin": ORIGIN})
    person, stranger, token = house.person(MAKER), house.stranger(), "T" * 43
    person.post("/sign-out", csrf=person.token("/"))
    for path, form, origin in (
        *(("/sign-in", {"name": "Eve"}, ORIGIN), ("/sign-in", {"name": MAKER}, "https://evil.test")),
        *(("/sign-in/passkey", {"nonce": "x"}, ORIGIN), (f"/invitation/{token}", {}, ORIGIN)),
    ):
        stranger.ask("POST", path, data=form, headers={"origin": origin})
    signed_in, acts = (MAKER, "sign in", "sandbox", "done"), ("choose person", "choose person", "use passkey")
    assert audit_entries(house) == [
        *(signed_in, (MAKER, "sign out", "", "refused"), signed_in, (MAKER, "sign out", "", "done")),
        *(("", act, "", "refused") for act in (*acts, "take invitation")),
    ]


def test_action_is_refused_without_audit_trail(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    person = house.person(MAKER)
    token = person.token("/")

    unwritable = Mock(side_effect=AuditUnwritable("The audit trail cannot be written. Nothing was done."))
    with monkeypatch.context() as patched:
        patched.setattr(JournalLocation, "add_audit_entry", unwritable)
        answer = person.post("/sign-out", csrf=token)
        assert (answer.status_code, "Nothing was done" in answer.text) == (409, True)
        form = {"name": MAKER}
        assert house.stranger().ask("POST", "/sign-in", data=form, headers={"origin": ORIGIN}).status_code == 409
    assert person.get("/").status_code == 200


GATE = GateState(50.0, 8, "amina", timestamp(NOW), [], "", 0, 0, None, "")
WORKER = WorkerStatus("nairobi-1", 4711, timestamp(NOW - timedelta(minutes=2)), timestamp(NOW), True, "b" * 16, 600)
RUN = UnfinishedRun("b" * 16, "salaries.csv", 12_345, is_urgent=True, is_stopped=False)


def test_workers_page_averages_rate_since_worker_start() -> None:
    page = people_page.page_values(SharedWork([WORKER], [RUN], GATE), [], Settings.model_validate({}), NOW)
    assert page["workers"] == [(WORKER, "salaries.csv", 300)]
    assert (page["rate_per_s"], page["in_flight"], page["stop_reason"]) == (50, 8, "")
    stop = GateStop(GateStopKind.REQUESTED, 0, "A person stopped the run.")
    unset = replace(GATE, rate_per_s=None, concurrency=None, stop=stop, stopped_at=timestamp(NOW))
    page = people_page.page_values(SharedWork([], [], unset), [], Settings.model_validate({}), NOW)
    assert (page["rate_per_s"], page["in_flight"], page["work"].gate.stopped_at) == (0, 16, timestamp(NOW))
    assert "A person stopped the run." in page["stop_reason"]


def test_timetable_jobs_are_described_by_task() -> None:
    timetable = {"time_zone": "Africa/Nairobi", "pick_up": [{"folder": "/srv/in", "at": "0 * * * *"}]}
    journal = {"url": "postgresql://db/paygw", "replication": "none"}
    settings = Settings.model_validate({"journal": journal, "timetable": timetable})
    names = ("verify", pick_up_job_name(Path("/srv/in")), pick_up_job_name(Path("/srv/other")))
    jobs = [TimetableJob(name, False, 0, None, "nairobi-1", None, timestamp(NOW), 0) for name in names]
    page = people_page.page_values(SharedWork([], [], GATE), jobs, settings, NOW)
    folders = ("Pay the sheets in the folder in", "Pay the sheets in a folder on another machine")
    assert page["jobs"] == list(zip(("Verify the whole journal", *folders), jobs, strict=True))


def test_workers_page_shows_running_worker(tmp_path: Path, postgres_server: PostgresServer) -> None:
    program = ClusterProgram(tmp_path, create_sandbox(tmp_path).config)
    database = postgres_server.new_database()
    program.write_url(postgres_server.url(database))
    program.make_journal()
    house = House(program)
    tom = house.person(AUDITOR)
    assert "No worker is running" in tom.get("/workers").text
    worker = program.start("work")
    wait_until(lambda: "<td>working</td>" in tom.get("/workers").text or worker.poll() is not None)
    page = tom.get("/workers").text
    assert ('aria-current="page">Workers' in page, "<td>working</td>" in page) == (True, True)
    worker.terminate()
    worker.communicate(timeout=PATIENCE_S)
    assert worker.returncode == 0
    house.console.sessions.close()
    postgres_server.drop_database(database)
