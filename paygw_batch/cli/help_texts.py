"""Formats every command's help in the chosen language, with examples and exit codes.

The English texts are in the docstrings and `help=` of the commands. They are message ids, translated when help is
shown, because `--lang` is only known then. The catalogue also translates click's own texts.
"""

import copy
import inspect
from collections.abc import Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import NoReturn

import click
from click import core, exceptions, parser, termui, types

from paygw_batch.cli.screen.streams import standard_error, standard_output
from paygw_batch.language import gettext, mark, mark_all, mark_count, ngettext, say
from paygw_batch.show.summary import ExitCode, Summary

EXIT_CODES: Mapping[int, str] = MappingProxyType(
    {
        0: mark("done: every row is accepted or paid"),
        1: mark("unexpected error"),
        2: mark("wrong usage or configuration"),
        3: mark("the sheet was refused, and none of its rows were sent"),
        4: mark("finished, but some rows were rejected or left out"),
        5: mark("a decision is needed: a row is in doubt, or evidence contradicts the journal"),
        6: mark("stopped early with some rows still ready: run the command again later"),
        7: mark("the journal is missing, in use, damaged or not to be trusted"),
        8: mark("the approval is missing, out of date or from the wrong person"),
        130: mark("interrupted: run the command again to continue"),
    }
)
_CLICK_OPTION_HELP = mark_all("Show this message and exit.", "Show the version and exit.")
"""The help of the options that click adds to every command."""

SHEET_OPTIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        mark("Reading the sheet"): (
            *("reference", "worksheet", "encoding", "numbers", "names", "column_profile", "mended"),
            *("expect_rows", "expect_total"),
        ),
        mark("Checks and decisions"): ("strict", "skip_invalid", "amend", "repeats_meant", "new_payees", "plan"),
        mark("Sending"): ("dry_run", "first", "detach", "urgent", "concurrency", "rate_per_s", "wait", "by"),
        mark("Output"): ("out", "for_excel", "force"),
    }
)
"""The option groups of `submit` and `collect`, and the parameters in each group."""


def section_title(title: str) -> str:
    """Translate a section's title. Click adds the colon, but not the space that French puts before it."""
    return say("{title}:", title=say(title)).removesuffix(":")


def paragraphs(text: str | None) -> tuple[str, ...]:
    """Split a docstring into paragraphs, each on one line, as in the catalogue."""
    return tuple(" ".join(part.split()) for part in inspect.cleandoc(text or "").split("\n\n") if part.strip())


JSON_REQUESTED = "paygw_batch.json_asked"
"""The key in click's context under which --json is recorded, even if parsing fails."""


def print_and_exit(ctx: click.Context, text: str) -> NoReturn:
    """Print `text` and exit. With --json, print it as the message of a summary.

    The exit code is 2 if the text cannot be written, unless the reader closed the pipe early (`| head`).
    """
    output = standard_output()
    if ctx.meta.get(JSON_REQUESTED):
        from paygw_batch.cli.screen.screen import json_line  # noqa: PLC0415 (slow: imports rich)

        text = json_line(Summary(ExitCode.DONE, text)).removesuffix("\n")
    output.write(f"{text}\n")
    if output.failure is None or output.is_pipe_closed:
        ctx.exit()
    standard_error().write(output.failure_message() + "\n")
    ctx.exit(ExitCode.USAGE)


def _show_help(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        print_and_exit(ctx, ctx.get_help())


class HelpCommand(click.Command):
    """A command whose help is in the chosen language and ends with examples and exit codes."""

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        option = super().get_help_option(ctx)
        if option is not None:
            option.callback = _show_help
        return option

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the usage line. Only its first word is translated, because the rest is typed as shown."""
        formatter.write_usage(ctx.command_path, " ".join(self.collect_usage_pieces(ctx)), say("Usage: "))

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 (click's)
        for paragraph in paragraphs(self.help):
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(say(paragraph))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section(section_title(mark("Options"))):
            formatter.write_dl(list(self.option_lines(ctx).values()))

    def option_lines(self, ctx: click.Context) -> dict[str, tuple[str, str]]:
        """Return each option's names and help, by parameter name."""
        lines = {}
        for option in self.get_params(ctx):
            if not isinstance(option, click.Option):
                continue
            option_copy = copy.copy(option)
            sentences = [say(option.help or "")]
            if option.required:
                sentences.append(say("Required."))
            if option.show_default:
                sentences.append(say("Default: {value}.", value=option.get_default(ctx)))
            option_copy.help, option_copy.required, option_copy.show_default = " ".join(sentences), False, False
            if (line := option_copy.get_help_record(ctx)) is not None:
                lines[option.name] = line
        return lines

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if examples := EXAMPLES.get(command_words(ctx)):
            with formatter.section(section_title(mark("Examples"))):
                for purpose, line in examples.items():
                    formatter.write_text(say(purpose))
                    with formatter.indentation():
                        formatter.write(f"{'':>{formatter.current_indent}}{line}\n")
        with formatter.section(section_title(mark("Exit codes"))):
            formatter.write_dl([(f"{code:>3}", say(meaning)) for code, meaning in EXIT_CODES.items()])


class HelpGroup(HelpCommand, click.Group):
    """A command group whose help is in the chosen language."""

    command_class = HelpCommand
    aliases: Mapping[str, str] = MappingProxyType({})
    """Other words that people try, mapped to commands."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the named subcommand. If the name is unknown, fail with a suggestion or a list of all commands."""
        name, names = args[0], self.list_commands(ctx)
        if name not in names and not ctx.resilient_parsing:
            suggestion = self.aliases.get(name) or next(iter(get_close_matches(name, names, n=1)), None)
            if suggestion is not None:
                ctx.fail(say("No such command {name!r}. Did you mean {near!r}?", name=name, near=suggestion))
            if self.commands:
                known_commands = ", ".join(f"{ctx.info_name} {command}" for command in self.commands)
                ctx.fail(say("No such command {name!r}. The commands are: {known}.", name=name, known=known_commands))
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 (click's)
        with formatter.section(section_title(mark("Commands"))):
            formatter.write_dl([(name, say(subcommand.short_help or "")) for name, subcommand in self.commands.items()])


class SheetCommand(HelpCommand):
    """A command that submits a sheet. Its help shows the options in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options in groups. Options without a group come last."""
        lines = self.option_lines(ctx)
        for title, names in SHEET_OPTIONS.items():
            with formatter.section(section_title(title)):
                formatter.write_dl([lines.pop(name) for name in names if name in lines])
        with formatter.section(section_title(mark("Other options"))):
            formatter.write_dl(list(lines.values()))


def command_words(ctx: click.Context) -> str:
    """Return the command without the program's name, such as `resolve row`, or an empty string for the program."""
    if ctx.parent is None:
        return ""
    return f"{command_words(ctx.parent)} {ctx.info_name}".strip()


_CLICK_MESSAGES = mark_all(
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
"""Click's messages about invalid command lines, for the catalogue."""
_CLICK_PLURALS = (
    mark_count("Did you mean {possibility}?", "(Did you mean one of: {possibilities}?)"),
    mark_count("Got unexpected extra argument ({args})", "Got unexpected extra arguments ({args})"),
    mark_count("Option {name!r} requires an argument.", "Option {name!r} requires {nargs} arguments."),
    mark_count("{value!r} is not {choice}.", "{value!r} is not one of {choices}."),
)


def translate_click() -> None:
    """Make click use our catalogue instead of the system's."""
    for module in (core, exceptions, parser, termui, types):
        for name, translator in (("_", gettext), ("ngettext", ngettext)):
            if hasattr(module, name):
                setattr(module, name, translator)


_SHEET_EXAMPLES = {
    mark("Pay one worksheet of a workbook, with a profile for its headings:"):
        "payroll.xlsx --worksheet November --column-profile headings.toml",
    mark("Read a CSV file saved by Excel in French:"): "payroll.csv --encoding cp1252 --numbers comma --names words",
    mark("Name the payment run, so that the same people can be paid again next month:"):
        "payroll.csv --reference NOV-2026",
    mark("Refuse the sheet unless its number of rows and its total are as agreed:"):
        "payroll.csv --expect-rows 120 --expect-total KES=4250000 --strict",
    mark("Show what would be sent, without sending it:"): "payroll.csv --dry-run",
    mark("Send one row first, and check its result:"): "payroll.csv --first 1",
    mark("Leave out rows with defects, and apply the corrections made in the console:"):
        "payroll.csv --skip-invalid --mended payroll.mended.json",
    mark("Send corrected rows in place of rejected ones:"): "payroll.csv --amend --by 'Ada Obi'",
    mark("Confirm that the sheet repeats a recent batch:"):
        "payroll.csv --repeats-meant --plan payroll.plan.json",
    mark("Pay a person who was missing from an earlier sheet:"):
        "payroll.csv --reference NOV-2026 --new-payee 'Ada Obi'",
    mark("Wait for another run, then send slowly:"): "payroll.csv --concurrency 4 --rate-per-s 2 --wait",
    mark("Hand the sheet over to workers, to be sent before their other batches:"): "payroll.csv --detach --urgent",
    mark("Write the reconciliation to another file:"): "payroll.csv --out november.xlsx --force",
    mark("Write a CSV file that keeps every digit in Excel:"):
        "payroll.csv --out november.csv --for-excel",
}  # fmt: skip

_EXAMPLES: Mapping[str, Mapping[str, str]] = {
    "": {
        mark("Try everything out with the built-in gateway:"): "init --sandbox",
        mark("Use another configuration, with a different journal:"):
            "--config paygw.toml --journal paygw.journal status",
        mark("Show messages in French, with each step:"): "--lang fr --verbose submit payroll.csv",
        mark("From a script that reads the summary:"): "--json --quiet submit payroll.csv",
        mark("Show the version:"): "--version",
    },
    "init": {
        mark("Try everything out without moving money:"): "--sandbox",
        mark("Set up an endpoint, and answer the prompts:"): "",
        mark("Set up an endpoint without prompts:"):
            "--base-url https://gateway.example --endpoint-id 1234 --consumer-key ACME --server-callback-url"
            " https://pay.acme.example/callback",
        mark("Add the answers from the gateway's operator:"):
            "--country KE=SALARY --signature-profile json-params --outcome approved=paid",
        mark("Use an existing key with its passphrase in an environment variable:"):
            "--private-key merchant.pem --private-key-passphrase-env KEY_PASSPHRASE",
        mark("Use a key on a hardware token:"):
            "--private-key 'pkcs11:token=paygw;object=payouts' --pkcs11-module /usr/lib/libsofthsm2.so",
        mark("Create a key with the passphrase in a file, and write the letter to a file:"):
            "--private-key-passphrase-file passphrase.txt --letter letter.txt",
        mark("Reach the gateway through a proxy with its own certificate authority:"):
            "--proxy http://proxy.acme.example:3128 --ca-bundle acme-ca.pem",
        mark("Replace the configuration:"): "--force",
    },
    "template": {
        mark("A workbook for payments to Kenya and Tanzania:"): "KE TZ --out payroll.xlsx",
        mark("A sheet of customers to collect from:"): "KE --collect --out customers.csv",
    },
    "validate": {
        mark("Check a sheet as `submit` would, and treat warnings as defects:"): "payroll.csv --strict",
        mark("Write the refused rows to a workbook for correction:"):
            "payroll.xlsx --worksheet November --rejects to-correct.xlsx",
        mark("Write the headings to a file, where you fill in their meanings:"):
            "payroll.csv --map headings.toml --force",
        mark("Check the sheet with the headings from that file:"):
            "payroll.csv --column-profile headings.toml --reference NOV-2026",
        mark("Read a CSV file saved by Excel in French:"):
            "payroll.csv --encoding cp1252 --numbers comma --names words",
        mark("Check a sheet of customers to collect from:"): "customers.csv --collect",
    },
    "plan": {
        mark("Prepare a sheet, sign its plan, and also write the plan as an HTML page:"):
            "payroll.csv --out payroll.csv.plan.json --key ada.pem --report plan.html",
        mark("Prepare one worksheet, with a profile for its headings and a reference:"):
            "payroll.xlsx --out plan.json --key ada.pem --worksheet November --column-profile headings.toml"
            " --reference NOV-2026",
        mark("Read a CSV file saved by Excel in French:"):
            "payroll.csv --out plan.json --key ada.pem --encoding cp1252 --numbers comma --names words",
        mark("Choose the rows that are in the plan:"):
            "payroll.csv --out plan.json --key ada.pem --skip-invalid --amend --strict",
        mark("Compare with another batch, and confirm that the repeat is intentional:"):
            "payroll.csv --out plan.json --key ada.pem --against 3f9c2a --repeats-meant",
        mark("Pay a person who was missing from an earlier sheet:"):
            "payroll.csv --out plan.json --key ada.pem --reference NOV-2026 --new-payee 'Ada Obi'",
        mark("Prepare a collection, and overwrite the old files:"):
            "customers.csv --out plan.json --key ada.pem --collect --force",
    },
    "approve": {
        mark("View a plan without signing it:"): "payroll.csv.plan.json --report plan.html --force",
        mark("Approve a plan:"): "payroll.csv.plan.json --key ben.pem",
        mark("See your own view of a plan, from its sheet:"):
            "plan.json --sheet payroll.xlsx --worksheet November --column-profile headings.toml --reference"
            " NOV-2026 --strict",
        mark("Read a CSV file saved by Excel in French:"):
            "plan.json --sheet payroll.csv --encoding cp1252 --numbers comma --names words",
    },
    "order forget": {
        mark("Forget everyone whose batch ended before a date:"): "--before 2019-12-31 --out order.json --key ada.pem",
        mark("Forget one person:"): "--person '+254 712 345 001' --out order.json --key ada.pem",
    },
    "order release": {
        mark("Send two rejected rows again:"):
            "3f9c2a --row 4 --row 9 --evidence 'Wallets opened, ticket 4711' --out order.json --key ada.pem",
    },
    "order settle": {
        mark("Settle two payments that never arrived, as confirmed by support:"):
            "3f9c2a 4 9 --as not-received --evidence 'Ticket 4711' --out order.json --key ada.pem",
        mark("Settle the matching lines of a statement without times:"):
            "3f9c2a --statement statement.csv --matching-only --as-of 2026-11-23T18:00:00+03:00 --out order.json"
            " --key ada.pem",
        mark("Apply a file that was already applied:"):
            "3f9c2a --statement new.csv --again --out order.json --key ada.pem",
    },
    "withdraw": {mark("Withdraw a plan:"): "payroll.csv.plan.json --key ben.pem"},
    "carry-out": {
        mark("Carry out an approved order:"): "order.json --by 'Ada Obi' --wait",
        mark("Refuse an order unless it is for this batch, and specify its statement:"):
            "order.json --batch 3f9c2a --statement gateway-2026-11-23.csv",
        mark("Send rows again, and write the reconciliation to another file:"):
            "order.json --out november.csv --for-excel --force",
    },
    "submit": _SHEET_EXAMPLES,
    "collect": _SHEET_EXAMPLES,
    "resume": {
        mark("Continue the only batch that has rows left to send:"): "",
        mark("Wait for another run, then continue one batch:"): "3f9c2a --wait",
        mark("Write the reconciliation to another file:"): "payroll.csv --out november.xlsx --force",
        mark("Write a CSV file that keeps every digit in Excel:"):
            "payroll.csv --out november.csv --for-excel",
    },
    "retry": {
        mark("Send all rejected rows of a batch again:"): "payroll.csv --by 'Ada Obi' --wait",
        mark("Send two rows again, and write the reconciliation to another file:"):
            "3f9c2a --row 4 --row 9 --out november.xlsx --force",
        mark("Write a CSV file that keeps every digit in Excel:"):
            "3f9c2a --out november.csv --for-excel",
    },
    "forget": {
        mark("See who would be forgotten:"): "--before 2019-12-31 --dry-run",
        mark("Forget one person now:"): "--person '+254 712 345 001' --yes --by 'Amina Diallo' --wait",
    },
    "run-folder": {
        mark("Confirm a drop folder, once:"): "/srv/payroll --adopt",
        mark("Pay only sheets that have not changed for five minutes:"): "/srv/payroll --settle-s 300 --wait",
        mark("Treat warnings as defects, and leave out rows with defects:"): "/srv/payroll --strict --skip-invalid",
        mark("Collect from the customers in the dropped sheets:"): "/srv/collect --collect",
    },
    "resolve row": {
        mark("Record two payments that support confirmed:"):
            "3f9c2a 4 9 --as paid --evidence 'Support, ticket 4711, 23 Nov' --by 'Ada Obi' --wait",
    },
    "resolve statement": {
        mark("Compare a statement with the journal, without changing anything:"): "3f9c2a statement.csv",
        mark("Settle the rows that a statement confirms:"):
            "3f9c2a statement.csv --yes --evidence 'From the portal, 23 Nov' --by 'Ada Obi'",
        mark("Settle the matching lines of a statement without times:"):
            "3f9c2a statement.csv --yes --matching-only --as-of 2026-11-23T18:00:00+03:00",
        mark("Apply a file that was already applied:"): "3f9c2a new.csv --yes --again --wait",
    },
    "status": {
        mark("List the batches, starting with those that have the most ready rows:"): "--sort ready",
        mark("Follow a running batch:"): "payroll.csv --watch",
        mark("Write the questions for the gateway's support about rows in doubt:"):
            "payroll.csv --in-doubt --out questions.csv --force",
        mark("Show everything about one row:"): "payroll.csv --row 4 --history",
    },
    "find": {
        mark("Find payments by name:"): "'Wanjiru Kamau'",
        mark("Write a remittance advice for one person:"): "0712345001 --advice advice.html --force",
    },
    "reconcile": {
        mark("Write a workbook and an HTML report:"): "payroll.csv --out nov.xlsx --report nov.html --force",
        mark("Write a CSV file that keeps every digit in Excel:"):
            "payroll.csv --out nov.csv --for-excel",
        mark("Write everyone's remittance advice:"): "payroll.csv --out nov.csv --advices advices.html",
    },
    "refresh": {
        mark("Ask about the open rows of a batch, and write the reconciliation:"):
            "3f9c2a --out november.csv --force --wait",
        mark("Ask once about the open rows of every batch:"): "--wait",
    },
    "listen": {mark("Listen on another port:"): "--port 8461"},
    "notices": {mark("See which notices were sent, and which are waiting:"): ""},
    "notices send": {
        mark("Send the notices that are due, every five minutes from cron:"): "",
        mark("Retry immediately, after fixing the mail server:"): "--again",
    },
    "limits": {
        mark("Show the limits:"): "",
        mark("Set the limits for all workers:"): "--rate 20 --concurrency 40 --by 'Ada Obi'",
        mark("Set the rate, and remove the other limit:"): "--rate 20 --as-configured",
    },
    "journal adopt": {
        mark("Adopt a restored journal:"): "--by 'Ada Obi' --yes",
        mark("Adopt a journal although the merchant has another one:"): "--beside 5f2e81c0",
    },
    "journal move": {mark("Move the journal to the configured database:"): "paygw.journal --by 'Ada Obi'"},
    "journal new": {
        mark("Create the tables of a database, and grant its roles their permissions:"): "--roles",
        mark("Create a second journal for the merchant:"): "--beside 5f2e81c0",
    },
    "journal retire": {mark("Retire a host that is permanently lost:"): "pay-3 --by 'Ada Obi' --yes"},
    "journal roll-call": {
        mark("Confirm what this host sent, and see which hosts are missing:"): "",
        mark("Accept that the database has lost this host's last rows:"): "--accept-loss --by 'Ada Obi' --yes",
    },
    "console": {mark("Serve the console on another port:"): "--host 127.0.0.1 --port 8470"},
    "work": {
        mark("Send until nothing is left, then stop:"): "--once",
        mark("Send a share of one batch for at most ten minutes:"): "3f9c2a --once --for 600",
    },
    "workers": {
        mark("See which workers are sending:"): "",
        mark("Stop all work on a batch:"): "--stop 3f9c2a",
    },
    "sandbox": {mark("Reply according to your own rules, on another port:"): "--port 8480 --behaviour answers.toml"},
    "sign": {
        mark("Show every step for one row of a worksheet:"): "nov.xlsx --explain --row 4 --worksheet November",
        mark("Reproduce the signature of another program:"):
            "payroll.csv --nonce 0f3a --timestamp 1764000000 --order-id A-17-r2 --reference NOV-2026",
        mark("Read a CSV file saved by Excel in French:"):
            "payroll.csv --encoding cp1252 --numbers comma --names words",
        mark("Try the other signature profile, for a collection:"): "customers.csv --profile raw-body --collect",
    },
}  # fmt: skip
EXAMPLES = {
    name: {purpose: " ".join(filter(None, ("paygw-batch", name, words))) for purpose, words in examples.items()}
    for name, examples in _EXAMPLES.items()
}
"""Each command's examples, by `command_words`: purposes mapped to command lines."""
