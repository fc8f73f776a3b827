"""Renders static pages, and creates the template environments of static pages and of the console."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from paygw_batch.clock import format_minute
from paygw_batch.core.generator_marks import PageKind
from paygw_batch.core.money import format_amount
from paygw_batch.core.shown_states import state_label
from paygw_batch.language import format_number, gettext, language, ngettext, say, say_count

if TYPE_CHECKING:
    from jinja2 import Environment

_HERE = Path(__file__).parent


def page_environment(*folders: Path) -> "Environment":
    """Create an environment for the templates in `folders`. It escapes values and raises for undefined names."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415 (needed only to write a page)

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
    environment.filters.update(money=format_amount, number=format_number)
    return environment


@cache
def template_environment() -> "Environment":
    environment = page_environment(_HERE / "templates", _HERE / "static")
    environment.filters.update(state_words=state_label, minute=format_minute)
    return environment


def page(kind: PageKind, **values: object) -> str:
    """Render a page as a single HTML file that includes its style sheet, without scripts."""
    return template_environment().get_template(f"{kind}.html").render(generator=kind.generator, **values)
