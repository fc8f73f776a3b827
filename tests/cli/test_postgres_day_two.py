"""Plans, approvals, enquiries and notifications with a journal in PostgreSQL."""

import os
from collections import Counter

import psycopg
import pytest

from paygw_batch.api import Payouts
from tests.cli.listening import AUTHENTIC, count_acknowledged, merchant_and_gateway, run_listener
from tests.support.approving import plan_file, policy, prepare_sheet, submit_and_expect_refusal
from tests.support.clusters import ClusterProgram, journal_url
from tests.support.patience import wait_until
from tests.support.program import Program, kenyan_rows


class Listening(ClusterProgram):
    """A user's machine that moves to a database when its journal is created."""

    database = ""

    def make_journal(self, **environ: str) -> None:
        self.write_url(self.database)
        super().make_journal(**environ)


ROWS = 30
BEHAVIOUR = """
default = { status = "processing", delay_s = 0.01 }
notification = [
    { status = "approved", times = 2 },
    { status = "declined", forged = true, order_id = "PAY-.*5" },
]
"""


def count_findings(url: str) -> Counter[str]:
    """Count the messages by finding, read from the tables themselves."""
    with psycopg.connect(url) as connection:
        query = "SELECT finding, count(*) FROM paygw.fact WHERE source = 'notification' GROUP BY 1"
        return Counter(dict(connection.execute(query).fetchall()))


def test_every_kind_of_notification_is_applied_once(cluster: ClusterProgram) -> None:
    cluster = Listening(cluster.home, cluster.config)
    cluster.database = journal_url(cluster)
    with (
        merchant_and_gateway(cluster, behaviour=BEHAVIOUR, notifications=AUTHENTIC) as (port, callbacks),
        run_listener(cluster, port),
    ):
        sheet = cluster.sheet(kenyan_rows(ROWS))
        assert cluster.json("submit", sheet)["exit_code"] in {0, 5}
        expected = {"approved": 2 * ROWS, "declined": 3}
        wait_until(lambda: count_acknowledged(callbacks) == expected, f"heard: {count_acknowledged(callbacks)}")
        wait_until(lambda: count_findings(journal_url(cluster)).total() == 2 * ROWS + 3, "not all was taken in")
    counts = count_findings(journal_url(cluster))
    assert (counts["moved"], counts["forged"], counts["repeated"] + counts["late"]) == (ROWS, 3, ROWS)
    assert cluster.json("status", sheet)["states"] == {"paid": ROWS}
    assert cluster.json("verify")["exit_code"] == 0


def test_plan_is_approved_by_code_on_another_host(cluster: ClusterProgram) -> None:
    cluster.config.write_text(cluster.config.read_text() + policy(cluster.home, needed=2))
    sheet = cluster.sheet(kenyan_rows(3))
    summary = cluster.json("plan", sheet, "--out", plan_file(cluster), "--key", cluster.home / "ada.pem")
    code = summary["message"].split("paygw-batch approve ")[-1].split()[0]
    home = cluster.home / "another host"
    home.mkdir(mode=0o700)
    elsewhere = Program(home, home / "paygw.toml")
    elsewhere.config.write_text(cluster.config.read_text())
    looked = elsewhere.json("approve", code)
    assert (looked["rows"], looked["totals"]) == (3, summary["totals"])
    assert "1 of 2" not in looked["message"]
    by_ben = elsewhere.json("approve", code, "--key", cluster.home / "ben.pem")
    assert "1 of 2 required approvals" in by_ben["message"]
    assert "needs 2 valid approvals but has 1" in submit_and_expect_refusal(cluster)
    spaced = " ".join(code[start : start + 4] for start in range(0, 16, 4))
    by_cleo = elsewhere.json("approve", spaced, "--key", cluster.home / "cleo.pem")
    assert "2 of 2 required approvals" in by_cleo["message"]
    # The file has no approval, so the plan in the database counts. It opens one batch, once.
    assert cluster.json("submit", sheet)["states"] == {"paid": 3}
    assert cluster.json("verify")["exit_code"] == 0


def test_approvals_on_two_plan_copies_are_combined(cluster: ClusterProgram) -> None:
    cluster.config.write_text(cluster.config.read_text() + policy(cluster.home, needed=2))
    sheet, copy = prepare_sheet(cluster), cluster.home / "copy.plan.json"
    copy.write_bytes(plan_file(cluster).read_bytes())
    assert cluster.json("approve", copy, "--key", cluster.home / "ben.pem")["exit_code"] == 0
    payouts = Payouts(cluster.config, environ={**os.environ, **cluster.environ})
    assert payouts.approve(plan_file(cluster), cluster.home / "cleo.pem").approvals == 2
    copy.unlink()
    assert cluster.json("submit", sheet)["states"] == {"paid": 3}


def test_worker_sends_approved_batch_without_new_approval(cluster: ClusterProgram) -> None:
    config = cluster.config.read_text()
    cluster.config.write_text(config + policy(cluster.home))
    sheet = prepare_sheet(cluster, "ben")
    assert cluster.json("submit", sheet, "--detach")["states"] == {"ready": 3}
    later = cluster.sheet(kenyan_rows(2, prefix="LATER", amount="4000.00"), "later.csv")
    plan = cluster.home / "later.plan.json"
    cluster.json("plan", later, "--out", plan, "--key", cluster.home / "ada.pem")
    assert cluster.json("approve", plan, "--key", cluster.home / "ben.pem")["exit_code"] == 0
    cluster.config.write_text(config + policy(cluster.home))  # Ada, Ben and Cleo have other keys now
    assert cluster.run("work", "--once").exit_code == 0
    assert cluster.json("status", sheet)["states"] == {"paid": 3}
    assert cluster.json("submit", later, "--detach")["exit_code"] == 8
    assert cluster.run("work", "--once").exit_code == 0
    assert len(cluster.record()) == 3


def test_database_plan_is_immutable_and_bound_to_sheet(cluster: ClusterProgram) -> None:
    cluster.config.write_text(cluster.config.read_text() + policy(cluster.home))
    sheet = cluster.sheet(kenyan_rows(3))
    summary = cluster.json("plan", sheet, "--out", plan_file(cluster), "--key", cluster.home / "ada.pem")
    code = summary["message"].split("paygw-batch approve ")[-1].split()[0]
    plan_file(cluster).unlink()
    refusal = cluster.run("submit", cluster.sheet(kenyan_rows(4), name="other.csv"), "--plan", code)
    assert (refusal.exit_code, "does not match" in refusal.stderr) == (8, True), refusal.output
    missing = cluster.run("approve", "0123456789abcdef", "--key", cluster.home / "ben.pem")
    assert (missing.exit_code, "has no plan" in missing.stderr) == (8, True), missing.output
    with psycopg.connect(journal_url(cluster), autocommit=True) as connection:
        with pytest.raises(psycopg.errors.RaiseException, match="never changed"):
            connection.execute("UPDATE paygw.plan_document SET content = ''")
        forged = """INSERT INTO paygw.plan_document (plan, version, code, content)
            SELECT plan, 2, code, replace(content, '"rows": 3', '"rows": 2') FROM paygw.plan_document"""
        connection.execute(forged)
    assert cluster.run("submit", sheet, "--plan", code).exit_code == 8, "what is not signed counts for nothing"
    assert cluster.record() == []
