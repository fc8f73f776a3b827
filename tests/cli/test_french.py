"""A finance office works in French: what people read is French, and what programs read stays as it is."""

import html
import re
from pathlib import Path
from typing import Any

import openpyxl
import pytest

from paygw_batch.countries.load import load_rules
from paygw_batch.language import language, say, say_count, speaking
from paygw_batch.sheet.check.validate import validate
from paygw_batch.show.outputs import OutputKind, _is_ours
from tests.cli.conversing import converse
from tests.support.approving import plan_of
from tests.support.catalogue import english_in
from tests.support.program import SAMPLES, Program, kenyan_rows
from tests.support.sheet_values import of_rows

ROWS = [*kenyan_rows(2), *kenyan_rows(1, amount="9001", prefix="NO"), *kenyan_rows(1, amount="9007", prefix="LOST")]


def text_of_page(page: str) -> str:
    page = re.sub(r"(?s)<style>.*?</style>|<code>.*?</code>", " ", page)
    return html.unescape(re.sub(r"<[^>]+>", "\n", page))


def text_of_workbook(path: Path, *names: str) -> str:
    book = openpyxl.load_workbook(path)
    return "\n".join(str(cell) for name in names for line in book[name].values for cell in line if cell is not None)


def test_french_output_contains_no_english(careful: Program) -> None:
    told = []

    def french(*arguments: str | Path, exit_code: int = 0) -> None:
        result = careful.run("--lang", "fr", *arguments)
        assert result.exit_code == exit_code, result.output
        told.append(result.output)

    sheet, plan, home = careful.sheet(ROWS), plan_of(careful), careful.home
    page, plan_page, advice, book = home / "lot.html", home / "plan.html", home / "avis.html", home / "lot.xlsx"
    french("plan", sheet, "--out", plan, "--key", home / "ada.pem", "--report", plan_page)
    french("approve", plan, "--key", home / "ben.pem")
    french("submit", sheet, exit_code=5)
    french("status", exit_code=5)
    french("status", sheet, "--history", exit_code=5)
    french("resolve", "row", sheet, "5", "--as", "paid", "--evidence", "ticket 7", exit_code=4)
    french("reconcile", sheet, "--out", book, "--report", page, exit_code=4)
    french("find", "254712345001", "--advice", advice)
    screens = "\n".join(told)
    for expected in ("2 lignes attendent une décision", "1 incertaine, 2 payées, 1 rejetée", "Préparé par ada le"):
        assert expected in screens
    assert english_in(screens) == []
    for path in (page, plan_page, advice):
        text = path.read_text()
        assert '<html lang="fr">' in text
        assert english_in(text_of_page(text)) == []
    assert english_in(text_of_workbook(book, "Paiements", "Totaux")) == []
    assert "Réglée comme payée par" in text_of_workbook(book, "Paiements")
    csv = next(home.glob("payroll.reconciliation.csv")).read_text().splitlines()
    assert csv[0].startswith("row,client_orderid,country,currency,amount,account_name")
    assert ",in_doubt," in csv[4]
    kinds = (OutputKind.REPORT, page), (OutputKind.PLAN_PAGE, plan_page), (OutputKind.REMITTANCE, advice)
    assert all(_is_ours(kind, path) for kind, path in kinds)  # in whichever language, the next run may replace it


def test_defects_and_workbook_to_mend_are_french(program: Program) -> None:
    mended = program.home / "mended.xlsx"
    result = program.run("validate", SAMPLES / "to-mend.xlsx", "--rejects", mended, PAYGW_LANG="fr")
    assert result.exit_code == 3
    assert english_in(result.output) == []
    assert english_in(text_of_workbook(mended, openpyxl.load_workbook(mended).sheetnames[-1])) == []
    again = program.json("validate", mended)  # the list of problems is known again by a run in English
    assert again["sheet"] == "mended.xlsx"
    assert again["exit_code"] == 3


def test_french_json_translates_only_sentences(program: Program) -> None:
    def without_sentences(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without_sentences(one) for key, one in value.items() if key not in {"message", "seconds"}}
        return [without_sentences(one) for one in value] if isinstance(value, list) else value

    sheet = SAMPLES / "every-defect.csv"
    english, french = program.json("validate", sheet), program.json("--lang", "fr", "validate", sheet)
    assert without_sentences(french) == without_sentences(english)
    sentences = [(one["message"], two["message"]) for one, two in zip(
        english["defect_list"], french["defect_list"], strict=True)]  # fmt: skip
    assert sentences
    assert [pair for pair in sentences if pair[0] == pair[1]] == []
    assert english_in("\n".join(message for _, message in sentences)) == []


@pytest.mark.parametrize("words", [("submit", "--help"), ("status", "--nosuch"), ("nosuch",), ("submit",)])
def test_lang_option_works_in_any_position(program: Program, words: tuple[str, ...]) -> None:
    before, after = program.run("--lang", "fr", *words), program.run(*words, "--lang", "fr")
    assert before.output == after.output
    assert before.output.startswith("Utilisation\u00a0: paygw-batch")
    assert english_in(before.output) == []
    assert program.run(*words, "--lang=fr", PAYGW_LANG="en").output == after.output
    assert program.run(*words).output.startswith("Usage: ")


@pytest.mark.parametrize(
    "words",
    [
        ("submit", "payroll.csv", "--concurrency", "many"),
        ("submit", "payroll.csv", "--concurrency", "0"),
        ("limits", "--rate", "fast"),
        ("submit", "a.csv", "b.csv"),
        ("submit", "payroll.csv", "--force=yes"),
        ("submit", "payroll.csv", "--refrence", "x"),
        ("validate",),
        ("backup", "journal.sqlite3"),
        ("backup", "copy.sqlite3"),
        ("journal", "new"),
        ("journal", "adopt", "--yes"),
        ("journal", "roll-call"),
        ("verify",),
        ("invite", "Ada"),
        ("completion", "powershell"),
        ("--config", "bad.toml", "status"),
    ],
    ids=" ".join,
)
def test_answers_of_the_commands_are_in_french(program: Program, words: tuple[str, ...]) -> None:
    program.run("submit", program.sheet(kenyan_rows(1)))
    bad = program.home / "bad.toml"
    bad.write_text('[gateway]\nread_timeout_s = 3\nbase_urll = "x"\n[submission]\nconcurrency = "a"\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(program.home)
        result = program.run(*words, "--lang", "fr", COLUMNS="200", config="bad.toml" not in words)
    assert result.output
    assert english_in(result.output) == []


def test_answer_is_read_in_language_of_question(program: Program) -> None:
    sheet = program.sheet(kenyan_rows(2))
    program.run("submit", sheet)
    again = program.sheet(kenyan_rows(2, prefix="AGAIN"), "again.csv")
    shown, code = converse(program, "--lang", "fr", "submit", again, answers=[("[o/N]", "oui")])
    assert (code, len(program.record())) == (0, 4), shown


def test_unknown_language_lists_known_languages(program: Program) -> None:
    result = program.run("--lang", "xx", "status")
    assert result.exit_code == 2
    assert "'en'" in result.stderr
    assert "'fr'" in result.stderr


def test_lang_option_overrides_environment_and_system_language(program: Program) -> None:
    sheet = program.sheet(kenyan_rows(1))
    assert "1 row, no defect." in program.run("validate", sheet, LANG="fr_FR.UTF-8", LC_ALL="fr_FR.UTF-8").stdout
    assert "1 row, no defect." in program.run("--lang", "en", "validate", sheet, PAYGW_LANG="fr").stdout


def test_errors_of_a_sheet_are_in_french(program: Program) -> None:
    result = program.run("--lang", "fr", "validate", program.home / "absent.csv")
    first, second = result.stderr.splitlines()
    assert (
        first == f"Erreur\u00a0: {program.home}/absent.csv ne peut pas être lu\u00a0: Fichier ou dossier introuvable."
    )
    assert second == "Vérifiez le chemin."


def test_a_template_is_in_french(program: Program) -> None:
    out = program.home / "modele.xlsx"
    assert program.run("--lang", "fr", "template", "KE", "TZ", "--out", out).exit_code == 0
    assert english_in(text_of_workbook(out, "Aide")) == []
    assert openpyxl.load_workbook(out).sheetnames[:2] == ["Bénéficiaires", "Aide"]


def test_language_context_ends_with_its_block() -> None:
    with speaking("fr"):
        assert say("Nothing was sent.") == "Rien n'a été envoyé."
        assert say_count(0, "{count:,} row", "{count:,} rows") == "0 ligne"
        assert say_count(2_000, "{count:,} row", "{count:,} rows") == "2\u202f000 lignes"
    assert language() == "en"
    assert say_count(0, "{count:,} row", "{count:,} rows") == "0 rows"
    assert say("{braces} are filled, {{these}} are not.", braces="{x}") == "{x} are filled, {these} are not."
    with pytest.raises(FileNotFoundError), speaking("xx"):
        pass


def test_defects_are_written_in_context_language() -> None:
    """Pieces of a sheet are judged in threads: they say what the context says that asked for it."""
    rules = load_rules("payout", {})
    row = {"country": "KE", "client_orderid": "A-1", "amount": "1,500", "currency": "KES", "account_name": None}
    sheet = of_rows({**row, "account_number": "0722345", "phone": "+256712345678"})
    with speaking("fr"):
        french = validate(sheet, rules).defects["message"].to_list()
    english = validate(sheet, rules).defects["message"].to_list()
    assert any("n'est pas un nombre" in message or "peut se lire" in message for message in french)
    assert english_in("\n".join(french)) == []
    assert len(french) == len(english)
    assert not set(french) & set(english)


def test_setup_is_in_french(program: Program) -> None:
    """`init`, `doctor`, `sign` and `config`; the letter in `init` is for the gateway's operator, and is in English."""
    needed = ("--base-url", "https://gateway.example/base", "--endpoint-id", "77", "--consumer-key", "ACME")
    program.config.unlink()
    missing = program.run("--lang", "fr", "init", *needed)
    assert "init a besoin de --server-callback-url." in missing.stderr
    assert english_in(missing.output) == []
    made = program.run("--lang", "fr", "init", *needed, "--server-callback-url", "https://pay.example/callback")
    assert made.exit_code == 0, made.output
    before, _, letter = made.stdout.partition("To the operator of the payment gateway")
    assert english_in(before) == []
    assert english_in(letter.splitlines()[-1]) == []
    found = program.run("--lang", "fr", "doctor", COLUMNS="400")
    assert found.exit_code == 2
    assert english_in(found.output) == []
    assert english_in(program.run("--lang", "fr", "config", "show", COLUMNS="400").stdout.splitlines()[0]) == []


def test_doctor_and_sign_explain_in_french(careful: Program) -> None:
    sheet = careful.sheet(kenyan_rows(1))
    for command in (("doctor",), ("sign", sheet, "--explain")):
        result = careful.run("--lang", "fr", *command, COLUMNS="400")
        assert result.exit_code == 0, result.output
        assert english_in(result.output) == []
