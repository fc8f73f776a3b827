"""`paygw-batch withdraw`: withdraw a plan or an order, so that no copy of it is valid any longer."""

from pathlib import Path

import click

from paygw_batch.actions.approvals import withdraw_document
from paygw_batch.cli.commands.approve import signed_document_at, signed_summary
from paygw_batch.cli.help_texts import HelpCommand
from paygw_batch.cli.invocation import Invocation, NamedFile
from paygw_batch.cli.options import guard_of, settings_of
from paygw_batch.cli.screen.approval_plan import own_key
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.clock import utc_now
from paygw_batch.language import say
from paygw_batch.run.kept_documents import withdrawn_with
from paygw_batch.run.signed_document import signatures_of
from paygw_batch.wiring.approvals import required_policy


@click.command("withdraw", cls=HelpCommand)
@click.argument("document", type=NamedFile())
@click.option("--key", type=NamedFile(), required=True, help="Your private key (Ed25519, PEM).")
@click.pass_obj
def command(invocation: Invocation, *, document: Path, key: Path) -> None:
    """Withdraw DOCUMENT, a plan or an order: no copy of it is valid after that.

    Its maker may, and anyone who may approve, unless it was used already. A withdrawal is signed, like an approval.
    """
    screen, settings = Screen(invocation), settings_of(invocation)
    guard_of(invocation, settings).check(inputs={say("the plan"): document, say("a key"): key})
    policy = required_policy(settings)
    found, _ = signed_document_at(settings, document)
    own = own_key(key)
    signatures_of(found, policy, utc_now())
    withdrawal = withdrawn_with(found, own, policy.people, utc_now())
    withdraw_document(settings, found, withdrawal)
    message = say(
        "Withdrawn by {name}: no copy of this {noun} is valid any longer. To go ahead after all, make a new one.",
        name=withdrawal.by,
        noun=say(found.noun),
    )
    screen.finish(signed_summary(found, policy, message))
