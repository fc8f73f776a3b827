"""Signs people in and out. In the sandbox a person is chosen from a list, and nowhere else."""

from starlette.responses import Response

from paygw_batch.console.visits import ActRefused, Visit, signed_in, signed_out


def sign_in_page(visit: Visit) -> Response:
    """Show who may sign in."""
    return visit.page("sign_in.html", members=visit.console.members)


def choose_person(visit: Visit) -> Response:
    """Sign in the person that was chosen from the list of the sandbox."""
    if not visit.console.settings.uses_sandbox:
        raise ActRefused("People are chosen from a list in the sandbox alone.")
    member = next((one for one in visit.console.members if one.name == visit.form.get("name")), None)
    if member is None:
        raise ActRefused("There is no such person.")
    return signed_in(visit, member)


def sign_out(visit: Visit) -> Response:
    """End the session."""
    return signed_out(visit)
