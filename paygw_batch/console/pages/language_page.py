"""Takes the language that a person chooses in the foot of a page."""

from starlette.responses import Response

from paygw_batch.console.rendering import LANGUAGE_COOKIE
from paygw_batch.console.visits import Visit, own_path
from paygw_batch.language import languages

_A_YEAR_S = 365 * 24 * 3600


def choose_language(visit: Visit) -> Response:
    """Remember the language, and lead back to the page. A language that there is not changes nothing."""
    chosen = visit.form.get("language", "")
    answer = visit.go_to(own_path(visit.form.get("back", "")) or "/")
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
