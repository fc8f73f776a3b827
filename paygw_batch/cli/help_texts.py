"""Shows every command's help in the chosen language, with an example for each option and the exit codes.

The English texts stay beside the commands, in docstrings and `help=`. They are the keys of the catalogue, translated
when help is shown, because `--lang` is only known then. Click's own texts go through our catalogue too.
"""

import copy
import inspect
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import NamedTuple

import click
from click import core, exceptions, parser, termui, types

from paygw_batch.language import gettext, mark, mark_all, mark_count, ngettext, say

EXIT_CODES: Mapping[int, str] = MappingProxyType(
    {
        0: mark("done: every row is accepted or paid"),
        1: mark("unexpected error"),
        2: mark("usage or configuration"),
        3: mark("the sheet was refused, and none of it was sent"),
        4: mark("finished, but some rows are rejected, or left out"),
        5: mark("a person is needed: a row is in doubt, or there is contradicting evidence"),
        6: mark("stopped early, rows are still ready: run again later"),
        7: mark("the journal is missing, held, damaged or not to be trusted"),
        8: mark("approval missing, stale or by the wrong person"),
        130: mark("interrupted: run again to continue"),
    }
)
_OF_CLICK = mark_all("Show this message and exit.", "Show the version and exit.")
"""The sentences that click adds to the help of commands."""

SHEET_OPTIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        mark("The sheet"): (
            "reference",
            "worksheet",
            "encoding",
            "numbers",
            "names",
            "column_profile",
            "mended",
            "expect_rows",
            "expect_total",
        ),
        mark("What is refused"): ("strict", "skip_invalid", "amend", "repeats_meant", "new_payees", "plan"),
        mark("Sending"): ("dry_run", "first", "detach", "urgent", "concurrency", "rate_per_s", "wait", "by"),
        mark("Files"): ("out", "for_excel", "force"),
    }
)
"""The option groups of a command that runs a sheet, and the parameters in each."""


def section_title(title: str) -> str:
    """Return the title of a help section; click adds a colon, and French needs a space before it."""
    return say("{title}:", title=say(title)).removesuffix(":")


def paragraphs(text: str | None) -> tuple[str, ...]:
    """Return the paragraphs of a docstring, each on one line, as in the catalogue's keys."""
    return tuple(" ".join(part.split()) for part in inspect.cleandoc(text or "").split("\n\n") if part.strip())


class HelpCommand(click.Command):
    """A command whose help is in the chosen language, and ends with examples and the exit codes."""

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the usage line; its words are typed, so they are not translated."""
        formatter.write_usage(ctx.command_path, " ".join(self.collect_usage_pieces(ctx)), say("Usage: "))

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 (click's)
        for paragraph in paragraphs(self.help):
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(say(paragraph))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section(section_title(mark("Options"))):
            formatter.write_dl(list(self.option_lines(ctx).values()))

    def option_lines(self, ctx: click.Context) -> dict[str | None, tuple[str, str]]:
        """Return each option's words and help, by parameter name."""
        return dict(self._option_lines(ctx))

    def _option_lines(self, ctx: click.Context) -> Iterator[tuple[str | None, tuple[str, str]]]:
        for option in self.get_params(ctx):
            if not isinstance(option, click.Option):
                continue
            shown = copy.copy(option)
            sentences = [say(option.help or "")]
            if option.required:
                sentences.append(say("Required."))
            if option.show_default:
                sentences.append(say("Default: {value}.", value=option.get_default(ctx)))
            shown.help, shown.required, shown.show_default = " ".join(sentences), False, False
            if (line := shown.get_help_record(ctx)) is not None:
                yield option.name, line

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if examples := EXAMPLES.get(name_of(ctx)):
            with formatter.section(section_title(mark("Examples"))):
                for example in examples:
                    formatter.write_text(say(example.purpose))
                    with formatter.indentation():
                        formatter.write(f"{'':>{formatter.current_indent}}{example.line}\n")
        with formatter.section(section_title(mark("Exit codes"))):
            formatter.write_dl([(f"{code:>3}", say(meaning)) for code, meaning in EXIT_CODES.items()])


class HelpGroup(HelpCommand, click.Group):
    """A command with subcommands, whose help is in the chosen language."""

    command_class = HelpCommand

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the called command; an unknown name is answered with the known ones."""
        if self.commands and args[0] not in self.commands and not ctx.resilient_parsing:
            if near := get_close_matches(args[0], self.commands, n=1):
                ctx.fail(say("No such command {name!r}. Did you mean {near!r}?", name=args[0], near=near[0]))
            known = ", ".join(f"{ctx.info_name} {name}" for name in self.commands)
            ctx.fail(say("No such command {name!r}. There are: {known}.", name=args[0], known=known))
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 (click's)
        with formatter.section(section_title(mark("Commands"))):
            formatter.write_dl([(name, say(below.short_help or "")) for name, below in self.commands.items()])


class SheetCommand(HelpCommand):
    """A command that runs a sheet; its many options are shown in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options group by group, those without a group last."""
        lines = self.option_lines(ctx)
        for title, names in SHEET_OPTIONS.items():
            with formatter.section(section_title(title)):
                formatter.write_dl([lines.pop(name) for name in names if name in lines])
        with formatter.section(section_title(mark("Further options"))):
            formatter.write_dl(list(lines.values()))


def name_of(ctx: click.Context) -> str:
    """Return the words of a command without the program's name: `resolve row`; empty for the program itself."""
    if ctx.parent is None:
        return ""
    return f"{name_of(ctx.parent)} {ctx.info_name}".strip()


_SAID = mark_all(
    "Error: {message}",
    "Try '{command} {option}' for help.",
    "Invalid value: {message}",
    "Invalid value for {param_hint}: {message}",
    "Missing argument",
    "Missing option",
    "Missing command.",
    "No such option {name!r}.",
    "No such command {name!r}.",
    "Option {name!r} does not take a value.",
    "{value!r} is not a valid {number_type}.",
    "{value} is not in the range {range}.",
    "Choose from:\n\t{choices}",
)
"""Click's messages about an unreadable command line, for the catalogue."""
_COUNTED = (
    mark_count("Did you mean {possibility}?", "(Did you mean one of: {possibilities}?)"),
    mark_count("Got unexpected extra argument ({args})", "Got unexpected extra arguments ({args})"),
    mark_count("Option {name!r} requires an argument.", "Option {name!r} requires {nargs} arguments."),
    mark_count("{value!r} is not {choice}.", "{value!r} is not one of {choices}."),
)


def speak_our_languages() -> None:
    """Make click translate through our catalogue; by default it looks for the system's."""
    for module in (core, exceptions, parser, termui, types):
        for name, ours in (("_", gettext), ("ngettext", ngettext)):
            if hasattr(module, name):
                setattr(module, name, ours)


class Example(NamedTuple):
    """A command line and its purpose."""

    purpose: str
    line: str


_SHEET = (
    Example(mark("One worksheet of a workbook, whose headings were mapped before:"),
            "{} payroll.xlsx --worksheet November --column-profile headings.toml"),
    Example(mark("A CSV file that a French Excel saved:"),
            "{} payroll.csv --encoding cp1252 --numbers comma --names words"),
    Example(mark("Give the run a name, so that the same people can be in next month's sheet:"),
            "{} payroll.csv --reference NOV-2026"),
    Example(mark("Refuse the sheet unless it is exactly the one that was agreed:"),
            "{} payroll.csv --expect-rows 120 --expect-total KES=4250000 --strict"),
    Example(mark("Look first: show what would be sent, and send nothing:"), "{} payroll.csv --dry-run"),
    Example(mark("Send one row, and look at its result before the others are sent:"), "{} payroll.csv --first 1"),
    Example(mark("Leave rows with defects out, with the corrections made in the console:"),
            "{} payroll.csv --skip-invalid --mended payroll.mended.json"),
    Example(mark("Send corrected rows in place of rejected ones:"), "{} payroll.csv --amend --by 'Ada Obi'"),
    Example(mark("Pay the same amounts to the same people as in a recent batch:"),
            "{} payroll.csv --repeats-meant --plan payroll.plan.json"),
    Example(mark("Pay a person who was missing in the sheet that was paid:"),
            "{} payroll.csv --reference NOV-2026 --new-payee 'Ada Obi'"),
    Example(mark("Send slowly, after the run that is using the journal:"),
            "{} payroll.csv --concurrency 4 --rate-per-s 2 --wait"),
    Example(mark("Let the workers of all hosts send it, before their other batches:"),
            "{} payroll.csv --detach --urgent"),
    Example(mark("Write the reconciliation to another file:"), "{} payroll.csv --out november.xlsx --force"),
    Example(mark("Write it as a CSV file that Excel opens with every digit:"),
            "{} payroll.csv --out november.csv --for-excel"),
)  # fmt: skip


def _of_sheet(command: str) -> tuple[Example, ...]:
    return tuple(Example(purpose, line.format(command)) for purpose, line in _SHEET)


_EXAMPLES: Mapping[str, tuple[Example, ...]] = {
    "": (
        Example(mark("Try everything out with the built-in gateway:"), "init --sandbox"),
        Example(mark("Use another configuration, and a journal other than the one that it names:"),
                "--config paygw.toml --journal paygw.journal status"),
        Example(mark("In French, with each step:"), "--lang fr --verbose submit payroll.csv"),
        Example(mark("From a program, which reads the summary:"), "--json --quiet submit payroll.csv"),
        Example(mark("Ask for the version:"), "--version"),
    ),
    "init": (
        Example(mark("Try everything out; no money moves:"), "init --sandbox"),
        Example(mark("Set up an endpoint; the missing answers are asked for:"), "init"),
        Example(mark("The same without questions:"),
                "init --base-url https://gateway.example --endpoint-id 1234 --consumer-key ACME"
                " --server-callback-url https://pay.acme.example/callback"),
        Example(mark("Also the answers that the gateway's operator gave:"),
                "init --country KE=SALARY --signature-profile json-params --outcome approved=paid"),
        Example(mark("Use an existing key, whose passphrase is in a variable:"),
                "init --private-key merchant.pem --private-key-passphrase-env KEY_PASSPHRASE"),
        Example(mark("Use a key in a token:"),
                "init --private-key 'pkcs11:token=paygw;object=payouts' --pkcs11-module /usr/lib/libsofthsm2.so"),
        Example(mark("Create a key with the passphrase in a file, and write the letter to a file:"),
                "init --private-key-passphrase-file passphrase.txt --letter letter.txt"),
        Example(mark("Reach the gateway through a proxy with its own certificate authority:"),
                "init --proxy http://proxy.acme.example:3128 --ca-bundle acme-ca.pem"),
        Example(mark("Replace the configuration:"), "init --force"),
    ),
    "template": (
        Example(mark("A workbook for payments to Kenya and Tanzania:"), "template KE TZ --out payroll.xlsx"),
        Example(mark("A sheet of customers to collect from:"), "template KE --collect --out customers.csv"),
    ),
    "validate": (
        Example(mark("Check a sheet as `submit` will, and treat warnings as defects:"),
                "validate payroll.csv --strict"),
        Example(mark("Write the refused rows to a workbook, to correct them there:"),
                "validate payroll.xlsx --worksheet November --rejects to-correct.xlsx"),
        Example(mark("Say what unknown headings mean: write the file, fill it in, use it:"),
                "validate payroll.csv --map headings.toml --force"),
        Example(mark("Check it with the headings that you filled in:"),
                "validate payroll.csv --column-profile headings.toml --reference NOV-2026"),
        Example(mark("A CSV file that a French Excel saved:"),
                "validate payroll.csv --encoding cp1252 --numbers comma --names words"),
        Example(mark("Check customers to collect from:"), "validate customers.csv --collect"),
    ),
    "plan": (
        Example(mark("Prepare a sheet and sign its plan, with a page to read:"),
                "plan payroll.csv --out payroll.csv.plan.json --key ada.pem --report plan.html"),
        Example(mark("Prepare one worksheet, with mapped headings and a reference:"),
                "plan payroll.xlsx --out plan.json --key ada.pem --worksheet November"
                " --column-profile headings.toml --reference NOV-2026"),
        Example(mark("A CSV file that a French Excel saved:"),
                "plan payroll.csv --out plan.json --key ada.pem --encoding cp1252 --numbers comma --names words"),
        Example(mark("Decide which rows are in the plan:"),
                "plan payroll.csv --out plan.json --key ada.pem --skip-invalid --amend --strict"),
        Example(mark("Compare with a batch of your choice, and confirm that a repeat is meant:"),
                "plan payroll.csv --out plan.json --key ada.pem --against 3f9c2a --repeats-meant"),
        Example(mark("Pay a person who was missing in the sheet that was paid:"),
                "plan payroll.csv --out plan.json --key ada.pem --reference NOV-2026 --new-payee 'Ada Obi'"),
        Example(mark("Prepare a collection, and overwrite the old files:"),
                "plan customers.csv --out plan.json --key ada.pem --collect --force"),
    ),
    "approve": (
        Example(mark("Look at a plan; nothing is signed:"), "approve payroll.csv.plan.json --report plan.html --force"),
        Example(mark("Approve it:"), "approve payroll.csv.plan.json --key ben.pem"),
        Example(mark("Compare it with the sheet, as you read it:"),
                "approve plan.json --sheet payroll.xlsx --worksheet November --column-profile headings.toml"
                " --reference NOV-2026 --strict"),
        Example(mark("A CSV file that a French Excel saved:"),
                "approve plan.json --sheet payroll.csv --encoding cp1252 --numbers comma --names words"),
    ),
    "order forget": (
        Example(mark("Have everybody forgotten from before a date:"),
                "order forget --before 2019-12-31 --out order.json --key ada.pem"),
        Example(mark("Have one person forgotten:"),
                "order forget --person '+254 712 345 001' --out order.json --key ada.pem"),
    ),
    "order release": (
        Example(mark("Have two rejected rows sent again:"),
                "order release 3f9c2a --row 4 --row 9 --evidence 'Wallets opened, ticket 4711' --out order.json"
                " --key ada.pem"),
    ),
    "order settle": (
        Example(mark("Two payments never arrived, as support confirmed:"),
                "order settle 3f9c2a 4 9 --as not-received --evidence 'Ticket 4711' --out order.json --key ada.pem"),
        Example(mark("Settle the lines of a statement that match; the lines have no time:"),
                "order settle 3f9c2a --statement statement.csv --matching-only --as-of 2026-11-23T18:00:00+03:00"
                " --out order.json --key ada.pem"),
        Example(mark("Apply the same file again:"),
                "order settle 3f9c2a --statement new.csv --again --out order.json --key ada.pem"),
    ),
    "withdraw": (Example(mark("Withdraw it:"), "withdraw payroll.csv.plan.json --key ben.pem"),),
    "carry-out": (
        Example(mark("Carry out an order that was approved:"), "carry-out order.json --by 'Ada Obi' --wait"),
        Example(mark("Name its batch and the statement that it is about:"),
                "carry-out order.json --batch 3f9c2a --statement gateway-2026-11-23.csv"),
        Example(mark("Rows are sent again: write the reconciliation to another file:"),
                "carry-out order.json --out november.csv --for-excel --force"),
    ),
    "submit": _of_sheet("submit"),
    "collect": _of_sheet("collect"),
    "resume": (
        Example(mark("Continue the only batch that has rows left:"), "resume"),
        Example(mark("Continue one batch after the run that is using the journal:"), "resume 3f9c2a --wait"),
        Example(mark("Write the reconciliation to another file:"), "resume payroll.csv --out november.xlsx --force"),
        Example(mark("Write it as a CSV file that Excel opens with every digit:"),
                "resume payroll.csv --out november.csv --for-excel"),
    ),
    "retry": (
        Example(mark("Send all rejected rows of a batch again:"), "retry payroll.csv --by 'Ada Obi' --wait"),
        Example(mark("Send two rows again, and write the reconciliation to another file:"),
                "retry 3f9c2a --row 4 --row 9 --out november.xlsx --force"),
        Example(mark("Write it as a CSV file that Excel opens with every digit:"),
                "retry 3f9c2a --out november.csv --for-excel"),
    ),
    "forget": (
        Example(mark("See who would be forgotten:"), "forget --before 2019-12-31 --dry-run"),
        Example(mark("Forget one person now:"),
                "forget --person '+254 712 345 001' --yes --by 'Amina Diallo' --wait"),
    ),
    "run-folder": (
        Example(mark("Confirm a folder, once:"),
                "run-folder /srv/payroll --adopt"),
        Example(mark("Pay only sheets that have not changed for five minutes:"),
                "run-folder /srv/payroll --settle-s 300 --wait"),
        Example(mark("Choose how strict the check is:"), "run-folder /srv/payroll --strict --skip-invalid"),
        Example(mark("Collect from the customers on the sheets:"), "run-folder /srv/collect --collect"),
    ),
    "resolve row": (
        Example(mark("Two payments arrived, as support confirmed:"),
                "resolve row 3f9c2a 4 9 --as paid --evidence 'Support, ticket 4711, 23 Nov' --by 'Ada Obi' --wait"),
    ),
    "resolve statement": (
        Example(mark("Compare a statement with the journal; nothing changes:"),
                "resolve statement 3f9c2a statement.csv"),
        Example(mark("Settle the rows that it confirms:"),
                "resolve statement 3f9c2a statement.csv --yes --evidence 'From the portal, 23 Nov' --by 'Ada Obi'"),
        Example(mark("Settle the lines that match; the lines have no time:"),
                "resolve statement 3f9c2a statement.csv --yes --matching-only --as-of 2026-11-23T18:00:00+03:00"),
        Example(mark("Apply the same file again:"), "resolve statement 3f9c2a new.csv --yes --again --wait"),
    ),
    "status": (
        Example(mark("All batches, with the most ready rows first:"), "status --sort ready"),
        Example(mark("Follow a running batch:"), "status payroll.csv --watch"),
        Example(mark("Write the questions about rows in doubt for the gateway's support:"),
                "status payroll.csv --in-doubt --out questions.csv --force"),
        Example(mark("Everything about one row:"), "status payroll.csv --row 4 --history"),
    ),
    "find": (
        Example(mark("By a name or a phone number:"), "find 'Wanjiru Kamau'"),
        Example(mark("Write a remittance advice for one person:"), "find 0712345001 --advice advice.html --force"),
    ),
    "reconcile": (
        Example(mark("A workbook and a page:"), "reconcile payroll.csv --out nov.xlsx --report nov.html --force"),
        Example(mark("A CSV file that Excel opens with every digit:"),
                "reconcile payroll.csv --out nov.csv --for-excel"),
        Example(mark("Everybody's remittance advice:"), "reconcile payroll.csv --out nov.csv --advices advices.html"),
    ),
    "refresh": (
        Example(mark("Ask about the open rows of a batch, and write the reconciliation:"),
                "refresh 3f9c2a --out november.csv --force --wait"),
        Example(mark("Ask once about the open rows of every batch:"), "refresh --wait"),
    ),
    "listen": (Example(mark("Listen on a port of your choice:"), "listen --port 8461"),),
    "notices": (Example(mark("See what people were told, and what waits:"), "notices"),),
    "notices send": (
        Example(mark("Send what is due, every five minutes from cron:"), "notices send"),
        Example(mark("After the mail server is fixed, retry at once:"), "notices send --again"),
    ),
    "limits": (
        Example(mark("Show the limits:"), "limits"),
        Example(mark("Set them for all workers:"), "limits --rate 20 --concurrency 40 --by 'Ada Obi'"),
        Example(mark("Set one and remove the other:"), "limits --rate 20 --as-configured"),
    ),
    "journal adopt": (
        Example(mark("Adopt a restored journal:"), "journal adopt --by 'Ada Obi' --yes"),
        Example(mark("The endpoint has another journal, and you know of it:"), "journal adopt --beside 5f2e81c0"),
    ),
    "journal move": (
        Example(mark("Move the journal to the configured database:"), "journal move paygw.journal --by 'Ada Obi'"),
    ),
    "journal new": (
        Example(mark("Create the tables of a database, and grant its roles their permissions:"), "journal new --roles"),
        Example(mark("Begin a second journal of the merchant:"), "journal new --beside 5f2e81c0"),
    ),
    "journal retire": (
        Example(mark("Retire a host that burnt down:"), "journal retire pay-3 --by 'Ada Obi' --yes"),
    ),
    "journal roll-call": (
        Example(mark("Answer for this host, and see which hosts are missing:"), "journal roll-call"),
        Example(mark("The database lost the last rows of this host:"),
                "journal roll-call --accept-loss --by 'Ada Obi' --yes"),
    ),
    "console": (Example(mark("Serve the pages on a port of your choice:"), "console --host 127.0.0.1 --port 8470"),),
    "work": (
        Example(mark("Send until nothing is left, then stop:"), "work --once"),
        Example(mark("Send a share of one batch, for ten minutes at most:"), "work 3f9c2a --once --for 600"),
    ),
    "workers": (
        Example(mark("See who is sending:"), "workers"),
        Example(mark("Stop all work on a batch:"), "workers --stop 3f9c2a"),
    ),
    "sandbox": (
        Example(mark("Answer by your own rules, on a port of your choice:"),
                "sandbox --port 8480 --behaviour answers.toml"),
    ),
    "sign": (
        Example(mark("Every step for one row of a worksheet:"), "sign nov.xlsx --explain --row 4 --worksheet November"),
        Example(mark("Sign exactly what another program signed:"),
                "sign payroll.csv --nonce 0f3a --timestamp 1764000000 --order-id A-17-r2 --reference NOV-2026"),
        Example(mark("A CSV file that a French Excel saved:"),
                "sign payroll.csv --encoding cp1252 --numbers comma --names words"),
        Example(mark("Try the other signature profile, for a collection:"),
                "sign customers.csv --profile raw-body --collect"),
    ),
}  # fmt: skip
EXAMPLES: Mapping[str, tuple[Example, ...]] = MappingProxyType(
    {
        name: tuple(Example(purpose, f"paygw-batch {line}") for purpose, line in examples)
        for name, examples in _EXAMPLES.items()
    }
)
"""The examples by command words (`help_texts.name_of`)."""
