"""Explains each code of a defect or warning with a label, a sentence and a suggestion.

A code is `SUBJECT.KIND`. The subject is a column, `row` or `sheet`. Columns come from the forms, so most entries are
`*.KIND`, for any column, with its name as `{column}`. Messages about single rows are more detailed and include the
value. `docs/defects.md` is generated from the texts here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from paygw_batch.language import mark, say

ANY_COLUMN = "*"


@dataclass(frozen=True, slots=True)
class CodeMeaning:
    """The meaning of a code: a short `label`, a `sentence` about the mistake, and the next step (`suggestion`)."""

    label: str
    sentence: str
    suggestion: str


_RETYPE_NUMBER = mark("Format the column as text in the spreadsheet, and enter the number again from its source.")

DEFECTS: Mapping[str, CodeMeaning] = MappingProxyType(
    {
        "*.missing": CodeMeaning(
            "{column} is missing", "The row has no {column}, without which it cannot be paid.", "Fill in {column}."
        ),
        "*.error_mark": CodeMeaning(
            "spreadsheet error in {column}",
            "The cell contains a spreadsheet error, such as #N/A.",
            "Correct the formula, or paste the value.",
        ),
        "*.exponent": CodeMeaning(
            "{column} cut by a spreadsheet",
            "The spreadsheet has converted {column} to scientific notation, and digits were lost.",
            _RETYPE_NUMBER,
        ),
        "*.format": CodeMeaning(
            "{column} not readable",
            "The value is not in the format that {column} needs.",
            "Correct it as described in the message of the row.",
        ),
        "*.direction": CodeMeaning(
            "hidden direction mark in {column}",
            "The name contains an invisible character that reverses text, and looks like another name.",
            "Delete the name, and type it again.",
        ),
        "*.formula_sign": CodeMeaning(
            "{column} begins like a formula",
            "The name begins with =, +, - or @, which a spreadsheet would run.",
            "Write only the name.",
        ),
        "*.lost_character": CodeMeaning(
            "lost character in {column}",
            "A program has replaced a character that it could not read (with U+FFFD).",
            "Retype the text from its source.",
        ),
        "*.country": CodeMeaning(
            "{column} of another country",
            "The number does not belong to the country of the row.",
            "Correct the number, or the country of the row.",
        ),
        "*.renumbered": CodeMeaning(
            "{column} of another numbering plan",
            "The country changed its numbering plan, and the gateway does not use the plan of this number.",
            "Write the number given in the message.",
        ),
        "*.mismatch": CodeMeaning(
            "{column} contradicts the country",
            "The value does not match the country of the row.",
            "Write the value given in the message, or leave the cell empty.",
        ),
        "purpose.mismatch": CodeMeaning(
            "{column} not set up",
            "No payment channel of the country has this word.",
            "Write a word given in the message, or leave the cell empty; or have the word set up.",
        ),
        "*.not_used": CodeMeaning(
            "{column} not used", "{column} is not used for the country of the row.", "Leave the cell empty."
        ),
        "*.float": CodeMeaning(
            "{column} stored as a binary fraction",
            "The Parquet file stores the value as a binary fraction, which is not exact.",
            "Write the column as text, or as a decimal.",
        ),
        "*.formula": CodeMeaning(
            "formula without a value in {column}",
            "The cell contains a formula, but its value has not been calculated.",
            "Paste the value, or open the workbook in a spreadsheet and save it.",
        ),
        "*.digits": CodeMeaning(
            "too many digits in {column}",
            "The number has more than 15 digits, but a spreadsheet or a binary fraction keeps only 15, so it is wrong.",
            _RETYPE_NUMBER,
        ),
        "country.unknown": CodeMeaning(
            "unknown country",
            "The value is not a country that can be paid.",
            "Write the code of the country, such as KE.",
        ),
        "country.unusable": CodeMeaning(
            "country not configured",
            "The gateway documents no such operation for the country, and the configuration does not enable it.",
            "Ask the operator of the gateway, and complete the country in the configuration.",
        ),
        "amount.exponent": CodeMeaning(
            "amount in scientific notation",
            "The amount is written with an exponent.",
            "Write the amount out in plain digits.",
        ),
        "amount.cut_by_comma": CodeMeaning(
            "amount cut at a comma",
            "The amount has a comma but no quotation marks: 1,500 is read as 1, and 500 has no heading.",
            "Put the amount in quotation marks, or write it without the comma; or give each column a heading.",
        ),
        "amount.zero": CodeMeaning("amount of zero", "An amount must be above zero.", "Write the amount to be paid."),
        "amount.decimals": CodeMeaning(
            "too many decimals",
            "The amount has more decimals than the currency, or than the gateway takes.",
            "Write the amount with the decimals given in the message. Round it only if that is the amount to pay.",
        ),
        "amount.minimum": CodeMeaning(
            "amount too small",
            "The amount is below the configured minimum for the country.",
            "Correct the amount, or have the configured limit changed.",
        ),
        "amount.maximum": CodeMeaning(
            "amount too large",
            "The amount is above the configured maximum for the country.",
            "Correct the amount, or have the configured limit changed.",
        ),
        "client_orderid.duplicate": CodeMeaning(
            "order id used twice",
            "Another row of the sheet has the same order id.",
            "Give each payment its own id, or remove the row that repeats another.",
        ),
        "client_orderid.look_alike": CodeMeaning(
            "order id similar to another",
            "The order id differs from another one only in case, width or hyphens: people could confuse them.",
            "If they are the same payment, delete one row. If not, give one a different id.",
        ),
        "client_orderid.rewritten": CodeMeaning(
            "order id changed by a spreadsheet",
            "The same account is paid the same amount under an id that differs only as a spreadsheet or retyping "
            "changes ids: 1 for 00001, 1001.0 for 1001.",
            "If they are the same payment, write the id as it was, or delete one row. If not, give one a clearly "
            "different id.",
        ),
        "client_orderid.conflict": CodeMeaning(
            "order id used for another payment",
            "The journal has this order id with other content.",
            "Give the new payment a new id; --amend replaces one that is rejected or was never sent.",
        ),
        "row.fields": CodeMeaning(
            "wrong number of fields",
            "The row has more or fewer fields than the header.",
            "Put values that contain a separator in quotation marks.",
        ),
        "row.left_out": CodeMeaning(
            "row left out",
            "A person left the row out when the sheet was checked.",
            "No action is needed. The row is not paid with this sheet. You can include it again while you correct the "
            "sheet.",
        ),
        "row.total": CodeMeaning(
            "row of totals", "The row looks like a sum of the rows above it, not a payment.", "Delete the row."
        ),
    }
)
"""A code, or `*.KIND` -> its meaning as a defect. A row with a defect is never sent."""

WARNINGS: Mapping[str, CodeMeaning] = MappingProxyType(
    {
        "*.zero_restored": CodeMeaning(
            "zero restored in {column}",
            "The number lacks its leading zero, which was added.",
            "Compare the number with its source.",
        ),
        "*.operator": CodeMeaning(
            "number of another operator",
            "The number seems to belong to another mobile operator than that of the purpose.",
            "Check that the number was ported to this operator.",
        ),
        "*.digits": CodeMeaning(
            "digits in place of a name", "The name has only digits.", "Make sure that no two columns are swapped."
        ),
        "*.other_digits": CodeMeaning(
            "{column} in digits of another script",
            "The value is in Arabic or Persian digits, and was converted.",
            "Compare the converted value with the source.",
        ),
        "amount.cut_by_comma": CodeMeaning(
            "amount perhaps cut at a comma",
            "The amount and the value after it may be one amount: 1,500 is read as 1, and 500 as the next column.",
            "If it is one amount, put it in quotation marks, or write it without the comma.",
        ),
        "*.emoji": CodeMeaning(
            "emoji in {column}",
            "The name contains an emoji, which the gateway may not accept.",
            "Write the name in letters.",
        ),
        "*.damaged": CodeMeaning(
            "{column} damaged by a program",
            "The name contains letters or words inserted by programs, such as AÃ¯cha for Aïcha, &#39; for ', ? or nan.",
            "Write the name as the person writes it.",
        ),
        "*.placeholder": CodeMeaning(
            "no name in {column}",
            "The value is not a person's name, such as `test` or `n/a`.",
            "Write the name of the person to be paid.",
        ),
        "*.two_meanings": CodeMeaning(
            "{column} with two meanings",
            "A bank account could also be a mobile number, or a wallet does not match the phone of its row.",
            "Make sure that these accounts belong to the people who are named.",
        ),
        "account_name.two_names": CodeMeaning(
            "one account, two names",
            "The same account is paid under different names.",
            "Make sure that both rows are for the owner of the account.",
        ),
        "row.look_alike": CodeMeaning(
            "payment similar to another",
            "The same account and amount are in the sheet twice, or were in a recent batch.",
            "Make sure that this payment was not already made.",
        ),
        "row.hidden": CodeMeaning(
            "hidden row",
            "The row is hidden in the workbook, but will be paid like any other.",
            "Unhide the row and check it.",
        ),
        "row.struck": CodeMeaning(
            "row struck through",
            "The row, or part of it, is struck through in the workbook, but will be paid like any other.",
            "Delete the row, or remove the strikethrough.",
        ),
        "column.hidden": CodeMeaning(
            "hidden column",
            "A column is hidden in the workbook, but its values are used.",
            "Unhide the column and check it.",
        ),
        "*.shown_otherwise": CodeMeaning(
            "{column} shown as another value",
            "The spreadsheet shows a different value than the cell contains, no value, or another currency.",
            "Check which value is correct, and format the cell to show it.",
        ),
        "sheet.repeats_a_batch": CodeMeaning(
            "sheet repeats a batch",
            "More than half of the rows have the payee and the amount of rows of an earlier batch, under other ids.",
            "If every row is meant to be paid again, run the command again with --repeats-meant.",
        ),
        "payee.twice": CodeMeaning(
            "payee on several rows",
            "A sheet without order ids pays someone in several rows.",
            "Delete the repeated rows. If all are intended, run the command again with --repeats-meant.",
        ),
        "reference.used": CodeMeaning(
            "payment run opened before",
            "Another sheet was sent under this reference, and this one is not the same.",
            "For another payment run, use another reference. A payee who is new in this one is named with --new-payee.",
        ),
        "reference.new_payee": CodeMeaning(
            "new in the payment run",
            "A payee is not among those who were sent under this reference before.",
            "Check that this is not the corrected account of someone who was paid.",
        ),
        "reference.missing_payee": CodeMeaning(
            "missing in the payment run",
            "A payee who was sent under this reference before is not in this sheet.",
            "Check that no one's account was corrected after it was paid.",
        ),
    }
)
"""A code, or `*.KIND` -> its meaning as a warning. Warnings make no row invalid, except with --strict."""


def code_meaning(
    code: str, meanings: Mapping[str, CodeMeaning] = DEFECTS, headings: Mapping[str, str] = MappingProxyType({})
) -> CodeMeaning:
    """Return the meaning of a code in the current language.

    Its texts name the column by the sender's heading, if there is one. Raises `KeyError` for an unknown code.
    """
    subject, _, suffix = code.partition(".")
    meaning = meanings.get(code) or meanings[f"{ANY_COLUMN}.{suffix}"]
    texts = (meaning.label, meaning.sentence, meaning.suggestion)
    return CodeMeaning(*(say(text, column=headings.get(subject) or subject) for text in texts))
