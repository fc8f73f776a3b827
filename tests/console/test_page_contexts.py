"""Tests that a template uses exactly the values of its handler and those of every page."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from jinja2 import meta, nodes

from paygw_batch.console.rendering import TEMPLATES, create_environment

PARTS = {"base.html", "parts.html", "reading_parts.html", "agreement.html"}
"""Templates that other templates include or extend."""


def template_values(module: Path) -> Iterator[tuple[str, set[str]]]:
    """Yield the templates that a module renders with the names of their values. `frame` has those of every page."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    returned_dicts = [
        node for node in ast.walk(tree) if isinstance(node, ast.Return) and isinstance(node.value, ast.Dict)
    ]
    returned = {key for node in returned_dicts for key in keys_of(node.value)}
    for node in ast.walk(tree):
        match node:
            case ast.Call(ast.Attribute(attr="page"), [ast.Constant(str(template))], keywords):
                names = {keyword.arg for keyword in keywords} - {"status"}
                yield template, {name for name in names if name} | (returned if None in names else set())
            case ast.Assign([ast.Name("page_values")], ast.Dict()):
                yield "frame", set(keys_of(node.value))
            case _:
                pass


def keys_of(value: ast.expr | None) -> Iterator[str]:
    assert isinstance(value, ast.Dict)
    yield from (key.value for key in value.keys if isinstance(key, ast.Constant) and isinstance(key.value, str))


VALUES = dict(given for module in TEMPLATES.parent.rglob("*.py") for given in template_values(module))
FRAME = VALUES.pop("frame")


def template_names(template: str) -> tuple[set[str], set[str]]:
    """Return the names that a template and its parts use, and those that they define."""
    environment = create_environment()
    tree = environment.parse((TEMPLATES / template).read_text(encoding="utf-8"))
    used = meta.find_undeclared_variables(tree) - environment.globals.keys() - {"self"}
    defined = {node.name for node in tree.find_all(nodes.Macro)} | {
        node if isinstance(node, str) else node[1]
        for imported in tree.find_all(nodes.FromImport)
        for node in imported.names
    }
    defined |= {node.name for node in tree.find_all(nodes.Name) if node.ctx == "store"}
    for other in meta.find_referenced_templates(tree):
        others = template_names(str(other))
        used, defined = used | others[0], defined | others[1]
    return used, defined


def test_every_page_template_is_tested() -> None:
    assert {path.name for path in TEMPLATES.iterdir()} == VALUES.keys() | PARTS


@pytest.mark.parametrize("template", sorted(VALUES))
def test_template_uses_exactly_its_values(template: str) -> None:
    used, defined = template_names(template)
    assert used - defined - FRAME == VALUES[template] - UNSHOWN.get(template, set()) - defined


UNSHOWN = {"payout_live.html": {"after", "seen"}}
"""Values that only the enclosing page shows."""
