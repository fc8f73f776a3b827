"""Renders static pages from their templates, and creates the environment for the console's."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from paygw_batch.clock import minute
from paygw_batch.core.generator_marks import PageKind
from paygw_batch.core.money import with_separators
from paygw_batch.core.shown_states import state_words
from paygw_batch.language import gettext, language, ngettext, number, say, say_count

if TYPE_CHECKING:
    from jinja2 import Environment

_HERE = Path(__file__).parent


def page_environment(*folders: Path) -> "Environment":
    """Return an environment for the templates in these folders. It escapes every value, and rejects unknown names."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415 (only if a page is written)

    environment = Environment(
        loader=FileSystemLoader(folders),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        extensions=["jinja2.ext.i18n"],
    )
    install: Callable[..., None] = environment.install_gettext_callables  # type: ignore[attr-defined]  # the extension's
    install(gettext, ngettext, newstyle=True)
    environment.globals.update(language=language, say=say, say_count=say_count)
    environment.filters.update(money=with_separators, number=number)
    return environment


@cache
def our_templates() -> "Environment":
    environment = page_environment(_HERE / "templates", _HERE / "static")
    environment.filters.update(state_words=state_words, minute=minute)
    return environment


def page(kind: PageKind, **values: object) -> str:
    """Return a page as one HTML file. It contains its style sheet, has no scripts, and loads nothing."""
    return our_templates().get_template(f"{kind}.html").render(generator=kind.generator, **values)
