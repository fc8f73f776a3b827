"""A template uses exactly the names that its handler gives, and those of every page."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from jinja2 import meta, nodes

from paygw_batch.console.rendering import TEMPLATES, page_templates

PARTS = {"base.html", "parts.html", "reading_parts.html", "agreement.html"}
"""Templates that are only parts of others."""


def names_given(module: Path) -> Iterator[tuple[str, set[str]]]:
    """Yield each template that a module shows, with the names given to it; `frame` stands for those of every page."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    of_function = [one for one in ast.walk(tree) if isinstance(one, ast.Return) and isinstance(one.value, ast.Dict)]
    returned = {key for one in of_function for key in keys_of(one.value)}
    for one in ast.walk(tree):
        match one:
            case ast.Call(ast.Attribute(attr="page"), [ast.Constant(str(template))], keywords):
                names = {keyword.arg for keyword in keywords} - {"status"}
                yield template, {name for name in names if name} | (returned if None in names else set())
            case ast.Assign([ast.Name("frame")], ast.Dict()):
                yield "frame", set(keys_of(one.value))
            case _:
                pass


def keys_of(value: ast.expr | None) -> Iterator[str]:
    assert isinstance(value, ast.Dict)
    yield from (key.value for key in value.keys if isinstance(key, ast.Constant) and isinstance(key.value, str))


GIVEN = dict(given for module in TEMPLATES.parent.rglob("*.py") for given in names_given(module))
FRAME = GIVEN.pop("frame")


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


def test_every_page_template_is_tested() -> None:
    assert {path.name for path in TEMPLATES.iterdir()} == GIVEN.keys() | PARTS


@pytest.mark.parametrize("template", sorted(GIVEN))
def test_template_uses_exactly_its_given_names(template: str) -> None:
    used, own = names_in(template)
    assert used - own - FRAME == GIVEN[template] - UNSHOWN.get(template, set()) - own


UNSHOWN = {"payout_live.html": {"after", "seen"}}
"""Values that only the page around a part shows."""
