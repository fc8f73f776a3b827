"""Explains each code of a defect or warning with a label, a sentence and a suggestion.

A code is `SUBJECT.KIND`. The subject is a column, `row` or `sheet`. Columns come from the forms, so most entries are
`*.KIND` for any `{column}`. Messages about single rows are more detailed and include the value. `docs/defects.md` is
generated from the texts here.
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


_RETYPE_NUMBER = mark("Format the column as text in the spreadsheet, then enter the number again from the original.")

DEFECTS: Mapping[str, CodeMeaning] = MappingProxyType(
    {
        "*.missing": CodeMeaning(
            "{column} is missing", "The row has no {column}, so it cannot be paid.", "Fill in {column}."
        ),
        "*.error_mark": CodeMeaning(
            "spreadsheet error in {column}",
            "The cell contains a spreadsheet error, such as #N/A.",
            "Correct the formula, or paste the value.",
        ),
        "*.exponent": CodeMeaning(
            "{column} lost digits in a spreadsheet",
            "The spreadsheet converted {column} to scientific notation and lost digits.",
            _RETYPE_NUMBER,
        ),
        "*.format": CodeMeaning(
            "{column} in the wrong format",
            "The value is not in the right format for {column}.",
            "Correct it as described in the row's message.",
        ),
        "*.direction": CodeMeaning(
            "invisible character in {column}",
            "The name contains an invisible character that reverses text, so it looks like another name.",
            "Delete the name and type it again.",
        ),
        "*.formula_sign": CodeMeaning(
            "{column} begins like a formula",
            "The name begins with =, +, - or @, so a spreadsheet would run it as a formula.",
            "Enter only the name.",
        ),
        "*.lost_character": CodeMeaning(
            "lost character in {column}",
            "A character was replaced, because software could not read it.",
            "Copy the text again from the original.",
        ),
        "*.country": CodeMeaning(
            "{column} from another country",
            "The number does not belong to the row's country.",
            "Correct the number or the row's country.",
        ),
        "*.renumbered": CodeMeaning(
            "{column} in another numbering plan",
            "The country has changed its numbering plan. The number follows the plan that the gateway does not use.",
            "Enter the number given in the message.",
        ),
        "*.mismatch": CodeMeaning(
            "{column} contradicts the country",
            "The value does not match the row's country.",
            "Enter the value given in the message, or leave the cell empty.",
        ),
        "purpose.mismatch": CodeMeaning(
            "{column} not set up",
            "This word does not name a payment channel that is set up for the country.",
            "Enter one of the words given in the message, leave the cell empty, or have your word set up.",
        ),
        "*.not_used": CodeMeaning(
            "{column} not used", "{column} is not used for the row's country.", "Leave the cell empty."
        ),
        "*.float": CodeMeaning(
            "{column} stored as a binary fraction",
            "The Parquet file stores the value as a binary fraction, which is not exact.",
            "Store the column as text or as a decimal.",
        ),
        "*.formula": CodeMeaning(
            "formula without a value in {column}",
            "The cell contains a formula, but its value has not been calculated.",
            "Paste the value, or open and save the workbook in a spreadsheet program.",
        ),
        "*.digits": CodeMeaning(
            "too many digits in {column}",
            "The number has more than 15 digits. Spreadsheets and binary fractions store only 15, so the number "
            "is wrong.",
            _RETYPE_NUMBER,
        ),
        "country.unknown": CodeMeaning(
            "unknown country", "The value is not a supported country.", "Enter the country's code, such as KE."
        ),
        "country.unusable": CodeMeaning(
            "country not configured",
            "The gateway's documentation does not offer this operation for the country, and the configuration does not "
            "enable it.",
            "Ask the gateway's operator, then complete the country's settings in the configuration.",
        ),
        "amount.exponent": CodeMeaning(
            "amount in scientific notation",
            "The amount is written with an exponent.",
            "Enter the amount in plain digits.",
        ),
        "amount.cut_by_comma": CodeMeaning(
            "amount split at a comma",
            "The amount has a comma but no quotation marks: 1,500 is read as 1, and 500 has no heading.",
            "Put the amount in quotation marks, write it without the comma, or give each column a heading.",
        ),
        "amount.zero": CodeMeaning(
            "amount of zero", "An amount must be greater than zero.", "Enter the amount to pay."
        ),
        "amount.decimals": CodeMeaning(
            "too many decimal places",
            "The amount has more decimal places than the currency uses or the gateway accepts.",
            "Enter the amount with the number of decimal places given in the message. Round it only if the "
            "rounded amount is the one to pay.",
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
            "Another row has the same order id.",
            "Give each payment its own id, or remove the row that repeats another.",
        ),
        "client_orderid.look_alike": CodeMeaning(
            "order id similar to another",
            "The order id differs from another one only in case, width or hyphens, so people could confuse them.",
            "If they are the same payment, delete one row. If not, give one a different id.",
        ),
        "client_orderid.rewritten": CodeMeaning(
            "order id changed by a spreadsheet",
            "The same account is paid the same amount under a similar id. A spreadsheet or retyping may have "
            "changed the id, for example from 00001 to 1, or from 1001 to 1001.0.",
            "If they are the same payment, restore the original id, or delete one row. If not, give one a clearly"
            " different id.",
        ),
        "client_orderid.conflict": CodeMeaning(
            "order id used for another payment",
            "This order id was already used for a different payment.",
            "Restore the row, or settle the earlier payment first if it is in doubt. Only a payment to another person "
            "gets a new id. To replace a payment that was rejected or never sent, use --amend.",
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
            "row with totals", "The row looks like a sum of the rows above it, not a payment.", "Delete the row."
        ),
    }
)
"""A code, or `*.KIND` -> its meaning as a defect. A row with a defect is never sent."""

WARNINGS: Mapping[str, CodeMeaning] = MappingProxyType(
    {
        "*.zero_restored": CodeMeaning(
            "zero restored in {column}",
            "The number's leading zero was missing and has been restored.",
            "Compare the number with the original.",
        ),
        "*.operator": CodeMeaning(
            "number from another operator",
            "The number seems to belong to a different mobile operator from the one that the row pays through.",
            "Check that the number was ported to this operator.",
        ),
        "*.digits": CodeMeaning(
            "digits instead of a name", "The name has only digits.", "Check whether two columns are swapped."
        ),
        "*.other_digits": CodeMeaning(
            "{column} in digits of another script",
            "The value is in Arabic or Persian digits, and was converted.",
            "Compare the converted value with the original.",
        ),
        "amount.cut_by_comma": CodeMeaning(
            "amount possibly split at a comma",
            "The amount and the value after it may be a single amount: 1,500 is read as 1, and 500 as the next column.",
            "If it is one amount, put it in quotation marks, or write it without the comma.",
        ),
        "*.emoji": CodeMeaning(
            "emoji in {column}",
            "The name contains an emoji, which the gateway may not accept.",
            "Enter the name in letters.",
        ),
        "*.damaged": CodeMeaning(
            "{column} damaged by software",
            "The name contains garbled letters, or characters or words added by software, such as AÃ¯cha for "
            "Aïcha, &#39; for ', ? or nan.",
            "Enter the name as the person writes it.",
        ),
        "*.placeholder": CodeMeaning(
            "no name in {column}",
            "The value is not a person's name, for example `test` or `n/a`.",
            "Enter the name of the person to pay.",
        ),
        "*.two_meanings": CodeMeaning(
            "{column} with two meanings",
            "The bank account number could also be a mobile number, or the wallet number differs from the row's "
            "phone number.",
            "Make sure that these accounts belong to the people named.",
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
            "The spreadsheet shows another currency, no value, or a different value from the one in the cell.",
            "Check which value is correct, and format the cell to show it.",
        ),
        "sheet.repeats_a_batch": CodeMeaning(
            "sheet repeats a batch",
            "More than half of the rows have the same payee and amount as rows of an earlier batch, under different "
            "ids.",
            "If you want to pay every row again, run the command again with --repeats-meant.",
        ),
        "payee.twice": CodeMeaning(
            "payee in several rows",
            "A sheet without order ids pays someone in more than one row.",
            "Delete the repeated rows. If you want to pay all of them, run the command again with --repeats-meant.",
        ),
        "reference.used": CodeMeaning(
            "payment run opened before",
            "A different sheet was already sent under this reference.",
            "For another payment run, use another reference. To pay a new payee in this one, use --new-payee.",
        ),
        "reference.new_payee": CodeMeaning(
            "new in the payment run",
            "No payment to this payee was sent under this reference before.",
            "Check that this is not the corrected account of someone who was already paid.",
        ),
        "reference.missing_payee": CodeMeaning(
            "missing from the payment run",
            "A payment to this payee was sent under this reference before, but the payee is not in this sheet.",
            "Check that no one's account was corrected after it was paid.",
        ),
    }
)
"""A code, or `*.KIND` -> its meaning as a warning. Warnings make no row invalid, except with --strict."""


def code_meaning(
    code: str, meanings: Mapping[str, CodeMeaning] = DEFECTS, headings: Mapping[str, str] = MappingProxyType({})
) -> CodeMeaning:
    """Return the meaning of a code in the current language.

    Its texts use the sender's heading for the column, if there is one. Raises `KeyError` for an unknown code.
    """
    column, _, kind = code.partition(".")
    meaning = meanings.get(code) or meanings[f"{ANY_COLUMN}.{kind}"]
    texts = (meaning.label, meaning.sentence, meaning.suggestion)
    return CodeMeaning(*(say(text, column=headings.get(column) or column) for text in texts))
