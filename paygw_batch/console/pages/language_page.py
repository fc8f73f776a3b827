"""Takes the language that a person chooses in the foot of a page."""

from starlette.responses import Response

from paygw_batch.console.visit_language import LANGUAGE_COOKIE
from paygw_batch.console.visits import Visit
from paygw_batch.language import languages

_A_YEAR_S = 365 * 24 * 3600


def choose_language(visit: Visit) -> Response:
    """Remember the language, and lead back to the page. A language that there is not changes nothing."""
    chosen, back = visit.form.get("language", ""), visit.form.get("back", "")
    is_own = back.startswith("/") and not back.startswith("//") and "\\" not in back
    answer = visit.go_to(back if is_own else "/")
    if chosen in languages():
        answer.set_cookie(
            LANGUAGE_COOKIE,
            chosen,
            max_age=_A_YEAR_S,
            path="/",
            secure=visit.console.is_secure,
            httponly=True,
            samesite="strict",
        )
    return answer
