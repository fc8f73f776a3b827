"""A new payout: the upload of a sheet, and how it is read."""

import shutil
import tempfile
from pathlib import Path

from starlette.responses import Response

from paygw_batch.clock import timestamp, utc_now
from paygw_batch.compose.actions.payout_folder import new_folder
from paygw_batch.console.pages.preparing import checked
from paygw_batch.console.visits import Visit
from paygw_batch.errors import UsageError
from paygw_batch.journal import make_directory
from paygw_batch.language import say

_AT_ONCE = 1024 * 1024


def new_payout(visit: Visit) -> Response:
    """Show the form."""
    console = visit.console
    countries = sorted(say(rule.name) for rule in console.rules.values() if rule.form is not None)
    return visit.page(
        "new.html",
        most_mib=console.settings.console.max_upload_mib,
        most_rows=console.settings.limits.max_rows,
        countries=countries,
    )


def upload(visit: Visit) -> Response:
    """Keep the sheet, check it, and lead to the results."""
    console, upload = visit.console, visit.upload
    if upload is None or not upload.filename:
        raise UsageError(say("No file was chosen."), hint=say("Choose the sheet, and upload it again."))
    make_directory(console.directory)
    with tempfile.NamedTemporaryFile(dir=console.directory, prefix=".upload-", delete=False) as kept:
        try:
            shutil.copyfileobj(upload.file, kept, _AT_ONCE)
            kept.flush()
            found = new_folder(
                console.directory,
                upload.filename,
                Path(kept.name),
                by=visit.member.name,
                at=timestamp(utc_now()),
                worksheet=visit.form.get("worksheet", "").strip(),
                reference=visit.form.get("reference", "").strip(),
            )
        finally:
            Path(kept.name).unlink(missing_ok=True)
    checked(visit, found)
    return visit.go_to(f"/sheets/{found.number}")
