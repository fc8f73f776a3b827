"""Mobile numbers: the generated data is current, and means the same to Python and polars."""

import re
from types import ModuleType

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paygw_batch.countries.data import config_dir
from paygw_batch.countries.load import load_rules
from tests.support.checkout import import_script
from tests.support.long_part import example_count

NUMBERS = {code: rule.numbers for code, rule in load_rules("payout", {}).items()}


def is_valid_number(code: str, national: str) -> bool:
    return re.fullmatch(NUMBERS[code].pattern, national) is not None


@pytest.fixture
def generator() -> ModuleType:
    """Return the script that writes the file, as a module."""
    phonenumbers = pytest.importorskip("phonenumbers", reason="only the script that writes the file needs it")
    text = (config_dir() / "mobile-numbers.toml").read_text(encoding="utf-8")
    if f"phonenumbers {phonenumbers.__version__};" not in text:
        pytest.skip(f"the file was made with another version than phonenumbers {phonenumbers.__version__}")
    return import_script("tooling/mobile_numbers.py")


def test_number_files_match_script(generator: ModuleType) -> None:
    assert (config_dir() / "mobile-numbers.toml").read_text(encoding="utf-8") == generator.render_numbers_document()
    assert (config_dir() / "mobile-operators.toml").read_text(encoding="utf-8") == generator.render_operators_document()


@pytest.mark.parametrize("code", sorted(NUMBERS))
def test_number_pattern_matches_only_whole_ascii_example(code: str) -> None:
    assert re.fullmatch(r"\(\?:[0-9()|?:\[\]{},-]+\)", NUMBERS[code].pattern)
    example = NUMBERS[code].example
    assert is_valid_number(code, example)
    assert not is_valid_number(code, example[:-1])
    assert not is_valid_number(code, example + "0")


@pytest.mark.parametrize(
    ("code", "valid", "invalid"),
    [
        ("KE", ("712345678", "110123456"), ("0712345678", "612345678")),
        ("TZ", ("754123456",), ("641234567",)),
        *(("UG", ("772123456",), ()), ("GH", ("244123456",), ()), ("NG", ("8031234567",), ("8001234567",))),
        *(("ZM", ("971234567",), ()), ("RW", ("788123456",), ()), ("EG", ("1012345678",), ())),
        *(("ZA", ("821234567",), ("82123",)), ("BF", ("70123456", "01234567"), ())),
        *(("CI", ("0712345678",), ("712345678",)), ("BN", ("0197123456",), ("97123456",))),
        *(("SN", ("771234567",), ()), ("GN", ("621234567",), ())),
    ],
)
def test_known_numbers_follow_numbering_plans(code: str, valid: tuple[str, ...], invalid: tuple[str, ...]) -> None:
    assert all(is_valid_number(code, national) for national in valid)
    assert not any(is_valid_number(code, national) for national in invalid)


@pytest.mark.parametrize("code", sorted(NUMBERS))
@given(data=st.data())
@settings(max_examples=example_count(60))
def test_polars_and_python_accept_same_numbers(code: str, data: st.DataObject) -> None:
    numbers = NUMBERS[code]
    good = data.draw(st.from_regex(numbers.pattern, fullmatch=True))
    other = data.draw(st.text("0123456789", min_size=4, max_size=12))
    assert len(good) in numbers.national_lengths
    assert good.startswith("0") <= numbers.keeps_zero
    judged = pl.Series([good, other, f"{good}\n", f"x{good}"]).str.contains(f"^{numbers.pattern}$").to_list()
    assert judged == [True, is_valid_number(code, other), False, False]
