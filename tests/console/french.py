"""Pages in French: their texts, and those of the catalogue."""

import re
from html import unescape

from paygw_batch.language import say, speaking
from tests.support.catalogue import messages
from tests.support.people import ORIGIN, Person


def sentences(template: str) -> set[str]:
    """Return the texts that a template has of the catalogue, and those of every page."""
    wanted = {f"paygw_batch/console/templates/{name}.html" for name in (template, "base", "parts")}
    found = {message for message, place in messages() if place in wanted and isinstance(message, str)}
    with speaking("fr"):
        return {text for text in found if "%(" not in text and say(text) != text}


def texts(page: str) -> set[str]:
    """Return the texts of a page, each as it stands between two tags or in a label."""
    between = re.findall(r">([^<]+)<", page.partition("<body>")[2]) + re.findall(r'aria-label="([^"]+)"', page)
    return {unescape(text).strip() for text in between}


def choose(person: Person, language: str, back: str = "/") -> str:
    """Choose a language as the foot of a page does; return where the browser is led."""
    form = {"language": language, "back": back}
    answer = person.ask("POST", "/language", data=form, headers={"origin": ORIGIN})
    assert answer.status_code == 303
    return answer.headers["location"]
