"""Recognises phone and wallet numbers in every way of writing, and writes them in the one form of the wire."""

from dataclasses import dataclass
from functools import reduce
from operator import add, or_

import polars as pl

from paygw_batch.countries.rules import CountryRule, FieldKind, MobileNumbers
from paygw_batch.sheet.clean import bare

_ACCOUNT_LETTERS = "^[A-Za-z0-9 ./-]+$"
"""The characters of a bank account; an operator's pattern allows no other."""
_HIDDEN = "[Xx\u00d7#\u2022\u25cf\u2219\u00b7?_\uff0a\uff38\uff58\uff03]"
"""Characters of other programs for a hidden digit; the wire gets a * for each."""


@dataclass(frozen=True, slots=True)
class PhoneColumn:
    """A number column of one country, over a `prepared` frame. The expressions are null if the column is.

    `source` is the column that its values are in.
    """

    name: str
    source: str
    kind: FieldKind
    numbers: MobileNumbers
    bank_account_pattern: str | None

    @classmethod
    def of(cls, rule: CountryRule, name: str, kind: FieldKind) -> "PhoneColumn":
        """Return the column `name` as `rule` wants it."""
        is_account = kind is FieldKind.WALLET
        source = (rule.account_from if is_account else "") or name
        return cls(name, source, kind, rule.numbers, rule.bank_account_pattern if is_account else None)

    @property
    def _digits(self) -> pl.Expr:
        digits = pl.col(bare(self.source))
        return digits.str.replace_all(_HIDDEN, "*") if self.kind is FieldKind.MASKED_PHONE else digits

    @property
    def _prefix(self) -> str:
        """The pattern of everything that may precede a national number: the dialling code, or the trunk zero."""
        trunk = f"|{self.numbers.trunk_prefix}" if self.numbers.trunk_prefix else ""
        return rf"(?:(?:\+|00)?{self.numbers.dialling_code}{trunk})"

    @property
    def _ways(self) -> tuple[pl.Expr, ...]:
        """The ways a number can be written: with the dialling code, with the trunk zero, without, with a zero lost."""
        n = self.numbers
        international = self._digits.str.contains(rf"^(?:\+|00)?{n.dialling_code}{n.pattern}$")
        trunk = [self._digits.str.contains(f"^{n.trunk_prefix}{n.pattern}$")] if n.trunk_prefix else []
        plain = self._digits.str.contains(f"^{n.pattern}$")
        return (international, *trunk, plain, *([self._zero_lost_inside] if n.keeps_zero else []))

    @property
    def _zero_lost_inside(self) -> pl.Expr:
        return pl.concat_str(pl.lit("0"), self._digits).str.contains(f"^{self.numbers.pattern}$")

    @property
    def is_bank_account(self) -> pl.Expr:
        """Whether the whole value is a bank account as the operator describes one; it is then taken as it is."""
        if self.bank_account_pattern is None:
            return pl.lit(value=False)
        text = pl.col(self.source)
        return text.str.contains(_ACCOUNT_LETTERS) & text.str.contains(f"^(?:{self.bank_account_pattern})$")

    @property
    def is_valid(self) -> pl.Expr:
        """Whether exactly one valid number, or a bank account, can be meant."""
        n = self.numbers
        mobile = self._digits.str.contains(rf"^{self._prefix}?{n.pattern}$")  # all ways at once: one pattern is cheaper
        if n.keeps_zero:
            mobile |= self._zero_lost_inside
        if len(n.national_lengths) > 1:  # else the length alone shows in which way a number is written
            mobile &= reduce(add, (way.cast(pl.UInt8) for way in self._ways)) == 1
        return mobile | self.is_bank_account | self._is_masked

    @property
    def _is_masked(self) -> pl.Expr:
        """Whether some digits of the number are hidden, and there are as many as a whole one has."""
        if self.kind is not FieldKind.MASKED_PHONE:
            return pl.lit(value=False)
        nothing_seen = self._masked.str.contains(r"^\*+$")
        return self._masked.str.contains(r"\*").fill_null(value=False) & ~nothing_seen.fill_null(value=False)

    @property
    def _masked(self) -> pl.Expr:
        """The national significant number, in which digits may be hidden; null if the value is nothing like it."""
        n = self.numbers
        lengths = "|".join(f"[0-9*]{{{length}}}" for length in n.national_lengths)
        return self._digits.str.extract(rf"^{self._prefix}({lengths})$")

    @property
    def lost_its_zero(self) -> pl.Expr:
        """Whether a valid number lacks the leading zero it has inside the country: a spreadsheet has eaten it."""
        n = self.numbers
        ways = ([self._digits.str.contains(f"^{n.pattern}$")] if n.trunk_prefix else []) + (
            [self._zero_lost_inside] if n.keeps_zero else []
        )
        return reduce(or_, ways) & ~self.is_bank_account if ways else pl.lit(value=False)

    def of_another_operator(self, operator: pl.Expr) -> tuple[pl.Expr, pl.Expr]:
        """Return whether a valid mobile number was first given to another operator, and to which one."""
        operators = self.numbers.operators
        # Rust takes the first alternative that fits: the longest ones are first.
        starts = "|".join(sorted(operators, key=lambda start: (-len(start), start)))
        start = self._national.str.extract(f"^({starts})")
        owner = start.replace_strict(dict(operators), default=None, return_dtype=pl.String)
        return (owner != operator).fill_null(value=False) & ~self.is_bank_account, owner

    @property
    def _national(self) -> pl.Expr:
        """The national significant number of a valid mobile number."""
        n = self.numbers
        if len(n.national_lengths) == 1:
            national = self._digits.str.tail(n.national_lengths[0])
        else:
            national = self._digits.str.replace(rf"^{self._prefix}?({n.pattern})$", "${1}")
        if n.keeps_zero:
            zero = pl.when(self._zero_lost_inside).then(pl.lit("0")).otherwise(pl.lit(""))
            national = pl.concat_str(zero, national)
        return national

    @property
    def _sent_prefix(self) -> str:
        """The text before the national number on the wire (section 2.2 of the gateway's interface)."""
        match self.kind:
            case FieldKind.LOCAL_PHONE:
                return self.numbers.trunk_prefix
            case FieldKind.WALLET:
                return self.numbers.dialling_code
            case _:
                return f"+{self.numbers.dialling_code}"

    @property
    def wire(self) -> pl.Expr:
        """The valid number as its field wants it."""
        national = self._national
        if self.kind is FieldKind.MASKED_PHONE:
            national = pl.when(self._is_masked).then(self._masked).otherwise(national)
        number = pl.concat_str(pl.lit(self._sent_prefix), national)
        if self.bank_account_pattern is None:
            return number
        return pl.when(self.is_bank_account).then(pl.col(self.source)).otherwise(number)

    @property
    def is_as_sent(self) -> pl.Expr:
        """Whether a valid number certainly has the wire form already: a cheap check. Never null."""
        n, digits = self.numbers, self._digits
        if self.kind is FieldKind.INTERNATIONAL_PHONE:
            return digits.str.starts_with("+").fill_null(value=False)
        # Of one length in all, and its length alone differs from a number in another way of writing.
        is_told = len(n.national_lengths) == 1 and len(n.trunk_prefix) != len(n.dialling_code)
        sent = self._sent_prefix
        if not sent or not is_told or self.kind is FieldKind.MASKED_PHONE or self.bank_account_pattern is not None:
            return pl.lit(value=False)
        return (digits.str.len_bytes() == len(sent) + n.national_lengths[0]).fill_null(value=False)

    @property
    def lengths(self) -> list[int]:
        """The numbers of digits that a valid number can have, in all the ways of writing it, `+` and `00` left out."""
        n = self.numbers
        prefixes = {len(n.dialling_code), len(n.trunk_prefix), 0}
        return sorted(prefix + length for prefix in prefixes for length in n.national_lengths)

    @property
    def sent_digits(self) -> str:
        """The digits with which each number in the form of the wire starts."""
        return self._sent_prefix.removeprefix("+")

    @property
    def sent_lengths(self) -> list[int]:
        """The numbers of digits that a valid number has in the form of the wire."""
        return [len(self.sent_digits) + length for length in self.numbers.national_lengths]

    @property
    def example(self) -> str:
        """A valid number in the form of the wire."""
        return f"{self._sent_prefix}{self.numbers.example}"
