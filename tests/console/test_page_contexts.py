"""Every page has a class for its values: a template knows these names and no others."""

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import fields

import pytest
from jinja2 import meta, nodes

from paygw_batch.console import pages
from paygw_batch.console.rendering import TEMPLATES, Page, page_templates
from paygw_batch.console.visits import PageFrame

for module in pkgutil.walk_packages(pages.__path__, f"{pages.__name__}."):
    importlib.import_module(module.name)


def classes(parent: type[Page] = Page) -> Iterator[type[Page]]:
    """Yield the class of each page."""
    for one in parent.__subclasses__():
        yield one
        yield from classes(one)


OF_TEMPLATE = {one.template: one for one in classes()}
PARTS = {"base.html", "parts.html", "reading_parts.html", "agreement.html"}
"""Templates that are only parts of others."""


def names_in(template: str) -> tuple[set[str], set[str]]:
    """Return the names that a template, and those that it is made of, use and define."""
    environment = page_templates()
    tree = environment.parse((TEMPLATES / template).read_text(encoding="utf-8"))
    used = meta.find_undeclared_variables(tree) - environment.globals.keys() - {"self"}
    own = {one.name for one in tree.find_all(nodes.Macro)} | {
        one if isinstance(one, str) else one[1]
        for imported in tree.find_all(nodes.FromImport)
        for one in imported.names
    }
    own |= {one.name for one in tree.find_all(nodes.Name) if one.ctx == "store"}
    for other in meta.find_referenced_templates(tree):
        others = names_in(str(other))
        used, own = used | others[0], own | others[1]
    return used, own


def test_every_template_has_a_class_for_its_values() -> None:
    assert {path.name for path in TEMPLATES.iterdir()} == OF_TEMPLATE.keys() | PARTS


@pytest.mark.parametrize("template", sorted(OF_TEMPLATE))
def test_template_uses_exactly_names_of_context_class(template: str) -> None:
    given = {one.name for one in fields(OF_TEMPLATE[template])}
    used, own = names_in(template)
    assert used - own - {one.name for one in fields(PageFrame)} == given - UNSHOWN.get(template, set()) - own


UNSHOWN = {"payout_live.html": {"after", "seen"}}
"""Values that only the page around a part shows."""
