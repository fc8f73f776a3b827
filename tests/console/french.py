"""Compares the texts of French pages with the catalogue."""

import re
from html import unescape

from paygw_batch.language import language_context, say
from tests.support.catalogue import messages
from tests.support.people import ORIGIN, Person


def template_sentences(template: str) -> set[str]:
    """Return the French messages of a template and of every page."""
    template_paths = {f"paygw_batch/console/templates/{name}.html" for name in (template, "base", "parts")}
    template_messages = {
        message for message, place in messages() if place in template_paths and isinstance(message, str)
    }
    with language_context("fr"):
        return {text for text in template_messages if "%(" not in text and say(text) != text}


def page_texts(page: str) -> set[str]:
    between = re.findall(r">([^<]+)<", page.partition("<body>")[2]) + re.findall(r'aria-label="([^"]+)"', page)
    return {unescape(text).strip() for text in between}


def choose_language(person: Person, language: str, back: str = "/") -> str:
    form = {"language": language, "back": back}
    answer = person.ask("POST", "/language", data=form, headers={"origin": ORIGIN})
    assert answer.status_code == 303
    return answer.headers["location"]
