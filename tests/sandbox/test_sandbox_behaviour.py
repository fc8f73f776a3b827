"""The choice of answers to orders, and refused behaviour files."""

import re
from pathlib import Path
from typing import Any

import pytest

from paygw_batch.errors import ConfigurationError
from paygw_batch.sandbox.form import Order
from paygw_batch.sandbox.reply import Answer, AnswerChooser, default_behaviour, load_behaviour, parse_behaviour
from paygw_batch.sandbox.verifier import MAX_BODY_BYTES
from tests.support.checkout import ROOT


def order(amount: str = "100", order_id: str = "A-1", country: str = "KE") -> Order:
    return Order(order_id, country, "KES", amount, "254712345678", "TEST-KE")


def parse_choice(text: str) -> AnswerChooser:
    return AnswerChooser(parse_behaviour(text, name="behaviour.toml"))


@pytest.mark.parametrize("decimals", ["", ".0", ".99"])
@pytest.mark.parametrize("rule", default_behaviour().rule, ids=lambda rule: str(rule.amount_whole))
def test_shipped_rules_use_integer_part_of_amount(rule: Any, decimals: str) -> None:
    answer = AnswerChooser(default_behaviour()).choose(order(f"{rule.amount_whole}{decimals}"))
    assert answer == rule


@pytest.mark.parametrize("amount", ["1", "900.1", "9000.99", "9013", "90010", "19001", "999999999999999"])
def test_shipped_rules_approve_other_amounts(amount: str) -> None:
    assert AnswerChooser(default_behaviour()).choose(order(amount)) == Answer()
    assert parse_choice("").choose(order()) == Answer(status="approved", http_status=200, commits=True)


def test_first_matching_rule_determines_answer() -> None:
    rules = enumerate(('country = "UG"', 'order_id = "A-.*"', 'order_id = "A-1"'))
    text = "".join(f"[[rule]]\n{rule}\nstatus = '{number}'\n" for number, rule in rules)
    chosen = parse_choice(text + '[default]\nstatus = "default"\n')
    orders = order(country="UG"), order(), order(order_id="B-1")
    assert [chosen.choose(one).status for one in orders] == ["0", "1", "default"]


KENYA = 'country = "KE"\n'
CONDITIONS = {
    "the whole id fits": (*('order_id = "A-1"', "yes no no"), [order(order_id=i) for i in ("A-1", "A-12", "XA-1")]),
    "all conditions fit": (
        f'{KENYA}amount_whole = 5\norder_id = "A.*"',
        "yes no no no",
        [order("5.50"), order("6"), order("5", country="UG"), order("5", order_id="B")],
    ),
    "the n-th order of those that fit": (
        f"{KENYA}every_nth = 3",
        "no no no no yes no",
        [order(country=country) for country in ("KE", "UG", "KE", "UG", "KE", "KE")],
    ),
}


@pytest.mark.parametrize("case", CONDITIONS)
def test_rule_answers_only_matching_orders(case: str) -> None:
    rule, expected, orders = CONDITIONS[case]
    chosen = parse_choice(f'[[rule]]\n{rule}\nstatus = "yes"\n[default]\nstatus = "no"\n')
    assert [chosen.choose(one).status for one in orders] == expected.split()


def test_behaviour_file_supports_every_answer_field() -> None:
    chosen = parse_choice(
        """
        [default]
        status = "held"
        http_status = 503
        delay_s = 1.5
        drip_interval_s = 2
        headers = { Retry-After = "7" }
        error_code = "E1"
        message = "Later."
        fault = "slow_drip"
        commits = false
        """
    )
    assert chosen.choose(order()).model_dump() == {
        "status": "held",
        "http_status": 503,
        "delay_s": 1.5,
        "drip_interval_s": 2,
        "fault": "slow_drip",
        "headers": {"Retry-After": "7"},
        "error_code": "E1",
        "message": "Later.",
        "commits": False,
    }


WRONG_DEFAULTS = (
    *("amount_whole = 1", "fault = 'explode'", "http_status = 99", "http_status = 600", "delay_s = -1"),
    *("delay_s = nan", "drip_interval_s = 0", "status = ''"),
)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[[rule]]\namount_whol = 1\n", "rule.0.amount_whol is not a known key. Did you mean amount_whole?"),
        ("[[rules]]\n", "rules is not a known key. Did you mean rule?"),
        *(("[[rule]]\nstatus = 'x'\n", "a rule needs"), ("[[rule]]\norder_id = '('\n", "order_id")),
        ("[default\n", "not valid TOML"),
        *((f"[[rule]]\namount_whole = {text}\n", "rule.0.amount_whole") for text in ("'9001'", "9001.5", "-1")),
        ("[[rule]]\nevery_nth = 0\n", "rule.0.every_nth"),
        ("[default]\nfault = 'drop_before'\ncommits = true\n", "drop_before"),
        ('[default]\nheaders = { Content-Length = "5" }\n', "Content-Length"),
        *((f"[default]\nheaders = {{ {it} }}\n", "default.headers") for it in ('"X Y" = "1"', 'X = "\\r\\n"', "X = 1")),
        *((f"[default]\n{line}\n", f"default.{line.split()[0]}") for line in WRONG_DEFAULTS),
    ],
)
def test_error_in_behaviour_file_names_key(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "behaviour.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as refused:
        load_behaviour(path)
    assert refused.value.message.startswith("behaviour.toml")
    assert named in refused.value.message


def test_unreadable_behaviour_file_is_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes(b"# caf\xe9\n")
    for name in ("missing.toml", "latin.toml", "."):
        with pytest.raises(ConfigurationError):
            load_behaviour(tmp_path / name)


def test_documented_behaviour_matches_shipped_rules() -> None:
    text = (ROOT / "docs/sandbox.md").read_text(encoding="utf-8")
    documented = re.findall(r"^\| (9[0-9]{3}) \| `([a-z0-9_-]+)`.*? \| (yes|no) \|", text, re.MULTILINE)
    rules = default_behaviour().rule
    shipped = [(str(one.amount_whole), one.fault or one.status, "yes" if one.commits else "no") for one in rules]
    assert documented == shipped
    (example,) = re.findall(r"((?:    [^\n]+\n|\n)*    \[default\]\n(?:    [^\n]+\n|\n)+)", text)
    behaviour = parse_behaviour(example, name="docs/sandbox.md")
    assert (behaviour.default.delay_s, [rule.every_nth for rule in behaviour.rule]) == (0.05, [1000])
    assert f"{MAX_BODY_BYTES:,} bytes" in text
