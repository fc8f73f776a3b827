"""French output: texts for people are French, and data for programs is unchanged."""

import html
import re
from pathlib import Path
from typing import Any

import openpyxl
import pytest

from paygw_batch.countries.load import load_rules
from paygw_batch.language import language, language_context, say, say_count
from paygw_batch.sheet.check.validate import validate
from paygw_batch.show.outputs import OutputKind, _is_own_output
from tests.cli.conversing import converse
from tests.support.approving import plan_file
from tests.support.catalogue import find_english
from tests.support.program import SAMPLES, Program, kenyan_rows
from tests.support.sheet_values import build_sheet

ROWS = [*kenyan_rows(2), *kenyan_rows(1, amount="9001", prefix="NO"), *kenyan_rows(1, amount="9007", prefix="LOST")]


def page_text(page: str) -> str:
    page = re.sub(r"(?s)<style>.*?</style>|<code>.*?</code>", " ", page)
    return html.unescape(re.sub(r"<[^>]+>", "\n", page))


def workbook_text(path: Path, *names: str) -> str:
    book = openpyxl.load_workbook(path)
    return "\n".join(str(cell) for name in names for line in book[name].values for cell in line if cell is not None)


def test_french_output_is_fully_translated(approving_company: Program) -> None:
    outputs = []

    def french(*arguments: str | Path, exit_code: int = 0) -> None:
        result = approving_company.run("--lang", "fr", *arguments)
        assert result.exit_code == exit_code, result.output
        outputs.append(result.output)

    sheet, plan, home = approving_company.sheet(ROWS), plan_file(approving_company), approving_company.home
    page, plan_page, advice, book = home / "lot.html", home / "plan.html", home / "avis.html", home / "lot.xlsx"
    french("plan", sheet, "--out", plan, "--key", home / "ada.pem", "--report", plan_page)
    french("approve", plan, "--key", home / "ben.pem")
    french("submit", sheet, exit_code=5)
    french("status", exit_code=5)
    french("status", sheet, "--history", exit_code=5)
    french("resolve", "row", sheet, "5", "--as", "paid", "--evidence", "ticket 7", exit_code=4)
    french("reconcile", sheet, "--out", book, "--report", page, exit_code=4)
    french("find", "254712345001", "--advice", advice)
    screens = "\n".join(outputs)
    for expected in ("2 lignes attendent une décision", "1 incertaine, 2 payées, 1 rejetée", "Préparé par ada le"):
        assert expected in screens
    assert find_english(screens) == []
    for path in (page, plan_page, advice):
        text = path.read_text()
        assert '<html lang="fr">' in text
        assert find_english(page_text(text)) == []
    assert find_english(workbook_text(book, "Paiements", "Totaux")) == []
    assert "comme payée" in workbook_text(book, "Paiements")
    csv = next(home.glob("payroll.reconciliation.csv")).read_text().splitlines()
    assert csv[0].startswith("row,client_orderid,country,currency,amount,account_name")
    assert ",in_doubt," in csv[4]
    kinds = (OutputKind.REPORT, page), (OutputKind.PLAN_PAGE, plan_page), (OutputKind.REMITTANCE, advice)
    assert all(_is_own_output(kind, path) for kind, path in kinds)  # the next run may replace it, in any language


def test_defects_rejects_and_template_are_french(program: Program) -> None:
    corrected, template = program.home / "mended.xlsx", program.home / "modele.xlsx"
    result = program.run("validate", SAMPLES / "to-mend.xlsx", "--rejects", corrected, PAYGW_LANG="fr")
    assert (result.exit_code, find_english(result.output)) == (3, [])
    assert find_english(workbook_text(corrected, openpyxl.load_workbook(corrected).sheetnames[-1])) == []
    again = program.json("validate", corrected)  # a run in English recognizes its list of problems
    assert (again["sheet"], again["exit_code"]) == ("mended.xlsx", 3)
    assert program.run("--lang", "fr", "template", "KE", "TZ", "--out", template).exit_code == 0
    assert find_english(workbook_text(template, "Aide")) == []
    assert openpyxl.load_workbook(template).sheetnames[:2] == ["Bénéficiaires", "Aide"]


def test_french_json_translates_only_sentences(program: Program) -> None:
    def without_sentences(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without_sentences(item) for key, item in value.items() if key not in {"message", "seconds"}}
        return [without_sentences(item) for item in value] if isinstance(value, list) else value

    sheet = SAMPLES / "every-defect.csv"
    english, french = program.json("validate", sheet), program.json("--lang", "fr", "validate", sheet)
    assert without_sentences(french) == without_sentences(english)
    sentences = [(item["message"], two["message"]) for item, two in zip(
        english["defect_list"], french["defect_list"], strict=True)]  # fmt: skip
    assert sentences
    assert [pair for pair in sentences if pair[0] == pair[1]] == []
    assert find_english("\n".join(message for _, message in sentences)) == []


@pytest.mark.parametrize("words", [("submit", "--help"), ("status", "--nosuch"), ("nosuch",), ("submit",)])
def test_lang_option_works_in_any_position(program: Program, words: tuple[str, ...]) -> None:
    before, after = program.run("--lang", "fr", *words), program.run(*words, "--lang", "fr")
    assert before.output == after.output
    assert before.output.startswith("Utilisation\u00a0: paygw-batch")
    assert find_english(before.output) == []
    assert program.run(*words, "--lang=fr", PAYGW_LANG="en").output == after.output
    assert program.run(*words).output.startswith("Usage: ")


@pytest.mark.share(4)
@pytest.mark.parametrize(
    "words",
    [
        *("submit payroll.csv --concurrency many", "submit payroll.csv --concurrency 0", "limits --rate fast"),
        *("submit a.csv b.csv", "submit payroll.csv --force=yes", "submit payroll.csv --refrence x", "validate"),
        *("backup journal.sqlite3", "backup copy.sqlite3", "journal new", "journal adopt --yes", "journal roll-call"),
        *("verify", "doctor", "sign payroll.csv --explain", "invite Ada", "completion powershell"),
        "--config bad.toml status",
    ],
)
def test_command_output_is_in_french(program: Program, words: str) -> None:
    program.run("submit", program.sheet(kenyan_rows(1)))
    bad = program.home / "bad.toml"
    bad.write_text('[gateway]\nread_timeout_s = 3\nbase_urll = "x"\n[submission]\nconcurrency = "a"\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(program.home)
        result = program.run(*words.split(), "--lang", "fr", COLUMNS="200", config="bad.toml" not in words)
    assert result.output
    assert find_english(result.output) == []


def test_prompt_accepts_answer_in_its_language(program: Program) -> None:
    sheet = program.sheet(kenyan_rows(2))
    program.run("submit", sheet)
    again = program.sheet(kenyan_rows(2, prefix="AGAIN"), "again.csv")
    shown, code = converse(program, "--lang", "fr", "submit", again, answers=[("[o/N]", "oui")])
    assert (code, len(program.record())) == (0, 4), shown


def test_lang_option_overrides_environment_and_system_language(program: Program) -> None:
    sheet = program.sheet(kenyan_rows(1))
    assert "1 row, no defects." in program.run("validate", sheet, LANG="fr_FR.UTF-8", LC_ALL="fr_FR.UTF-8").stdout
    assert "1 row, no defects." in program.run("--lang", "en", "validate", sheet, PAYGW_LANG="fr").stdout


def test_language_context_restores_previous_language() -> None:
    with language_context("fr"):
        assert say("Nothing was sent.") == "Rien n'a été envoyé."
        assert say_count(0, "{count:,} row", "{count:,} rows") == "0 ligne"
        assert say_count(2_000, "{count:,} row", "{count:,} rows") == "2\u202f000 lignes"
    assert language() == "en"
    assert say_count(0, "{count:,} row", "{count:,} rows") == "0 rows"
    assert say("{braces} are filled, {{these}} are not.", braces="{x}") == "{x} are filled, {these} are not."
    with pytest.raises(FileNotFoundError), language_context("xx"):
        pass


def test_defects_are_written_in_context_language() -> None:
    """Parts of a sheet are checked in threads, which must use the language of the context that started them."""
    rules = load_rules("payout", {})
    row = {"country": "KE", "client_orderid": "A-1", "amount": "1,500", "currency": "KES", "account_name": None}
    sheet = build_sheet({**row, "account_number": "0722345", "phone": "+256712345678"})
    with language_context("fr"):
        french = validate(sheet, rules).defects["message"].to_list()
    english = validate(sheet, rules).defects["message"].to_list()
    assert any("n'est pas un nombre" in message or "peut signifier" in message for message in french)
    assert find_english("\n".join(french)) == []
    assert len(french) == len(english)
    assert not set(french) & set(english)


def test_setup_is_in_french(program: Program) -> None:
    """`init`, `doctor`, `sign` and `config` are French; only the letter to the gateway's operator is English."""
    needed = ("--base-url", "https://gateway.example/base", "--endpoint-id", "77", "--consumer-key", "ACME")
    program.config.unlink()
    missing = program.run("--lang", "fr", "init", *needed)
    assert "init a besoin de --server-callback-url." in missing.stderr
    assert find_english(missing.output) == []
    result = program.run("--lang", "fr", "init", *needed, "--server-callback-url", "https://pay.example/callback")
    assert result.exit_code == 0, result.output
    before, _, letter = result.stdout.partition("To the operator of the payment gateway")
    assert find_english(before) == []
    assert find_english(letter.splitlines()[-1]) == []
    found = program.run("--lang", "fr", "doctor", COLUMNS="400")
    assert found.exit_code == 2
    assert find_english(found.output) == []
    assert find_english(program.run("--lang", "fr", "config", "show", COLUMNS="400").stdout.splitlines()[0]) == []
