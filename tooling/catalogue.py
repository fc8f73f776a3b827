"""Write the catalogues of translations, paygw_batch/languages/*.po and *.mo, from the source.

python tooling/catalogue.py            # add new sentences to each .po without a translation, and compile each .mo
python tooling/catalogue.py --check    # exit 1 if a sentence is missing, not translated or not compiled
"""

import ast
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from string import Formatter

from babel.messages import Catalog
from babel.messages.extract import extract_from_file
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po

from paygw_batch.cli.help_texts import paragraphs
from paygw_batch.countries.form_columns import sheet_columns
from paygw_batch.countries.load import load_rules, operation_names

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "paygw_batch"
LANGUAGES = PACKAGE / "languages"
ONE = {"say": 0, "mark": 0, "build_message": 0, "WebRoute": 3}
"""Function -> the index of its only sentence argument. A route's sentence is its action in the audit trail."""
ALL = {"say_all", "mark_all", "CodeMeaning"}
"""Functions whose texts are all sentences; the meanings of codes are a table of constants."""
COUNTED = {"say_count": 1, "mark_count": 0}
"""Function -> the index of its first template. Without a second one, singular and plural are the same in English."""
TEMPLATE_KEYWORDS = {"say": None, "say_count": (2, 3), "gettext": None, "ngettext": (1, 2), "_": None}
"""The same in the templates of the console, for Babel."""

OF_HELP = {"option", "argument", "command", "group"}
"""Functions of click that take the help of an option or a command; the long help of a command is its docstring."""

HEAD = "# Translations. tooling/catalogue.py adds new sentences and compiles this file: docs/translating.md."
Message = str | tuple[str, str]


def messages() -> Iterator[tuple[Message, str]]:
    """Yield each user-facing sentence of the package, with its file."""
    for path in sorted(PACKAGE.rglob("*.py")):
        place = str(path.relative_to(ROOT))
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for message in (*_source_messages(tree), *_help_messages(tree)):
            yield message, place
        if path == PACKAGE / "errors.py":
            for message in _error_messages(tree):
                yield message, place
    for path in sorted(PACKAGE.rglob("*.html")):
        for _, result, _, _ in extract_from_file("jinja2.ext:babel_extract", path, keywords=TEMPLATE_KEYWORDS):
            yield (result if isinstance(result, str) else (result[0], result[1])), str(path.relative_to(ROOT))
    for message in _config_messages():
        yield message, "config"


def _source_messages(tree: ast.Module) -> Iterator[Message]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        texts = [_literal_text(argument) for argument in node.args]
        name = node.func.id
        if name in COUNTED:
            templates = [text for text in texts[COUNTED[name] :] if text]
            if templates:
                yield templates[0], templates[-1]
        elif name in ONE:
            yield from (text for text in texts[ONE[name] :][:1] if text)
        elif name in ALL:
            yield from (text for text in texts if text)


def _help_messages(tree: ast.Module) -> Iterator[Message]:
    """Yield the help of commands and options, as `cli/help_texts.py` translates it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and any(
            _is_click_function(decorator) for decorator in node.decorator_list
        ):
            yield from paragraphs(ast.get_docstring(node))
        elif isinstance(node, ast.Call) and _is_click_function(node):
            texts = [_literal_text(keyword.value) for keyword in node.keywords if keyword.arg in {"help", "short_help"}]
            yield from (text for text in texts if text)


def _is_click_function(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in OF_HELP


def _literal_text(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _error_messages(tree: ast.Module) -> Iterator[Message]:
    """Yield the general messages of exceptions, which are their docstrings, and their hints."""
    for node in tree.body:
        if not isinstance(node, ast.ClassDef) or any("Enum" in ast.unparse(base) for base in node.bases):
            continue
        yield (ast.get_docstring(node) or "").splitlines()[0]
        for part in node.body:
            target = part.targets[0] if isinstance(part, ast.Assign) else getattr(part, "target", None)
            value = getattr(part, "value", None)
            if (
                isinstance(target, ast.Name)
                and target.id == "default_hint"
                and value
                and (hint := _literal_text(value))
            ):
                yield hint


def _config_messages() -> Iterator[Message]:
    for operation in operation_names():
        for rule in load_rules(operation, {}).values():
            yield from (rule.name, rule.demonym, *rule.notes, *rule.confused_codes.values())
            yield from [rule.unusable] if rule.unusable else []
    yield from sheet_columns().labels.values()


def updated_catalogue(language: str) -> Catalog:
    """Return the updated catalogue of a language: its translations, and every sentence of the source."""
    with (LANGUAGES / f"{language}.po").open("rb") as file:
        old = read_po(file, locale=language)
    new = Catalog(
        locale=language, project="paygw-batch", header_comment=HEAD, fuzzy=False,
        creation_date=old.creation_date, revision_date=old.revision_date,
        last_translator=old.last_translator, language_team=old.language_team,
    )  # fmt: skip
    for message in dict.fromkeys(message for message, _ in messages()):
        known = old.get(message if isinstance(message, str) else message[0])
        string = "" if known is None or known.pluralizable is isinstance(message, str) else known.string
        flags = ["fuzzy"] if known is not None and known.fuzzy else []
        new.add(message, string or "", flags=flags)
    return new


def format_po(catalog: Catalog) -> bytes:
    """Return the text of a .po file, sorted."""
    file = io.BytesIO()
    write_po(file, catalog, width=120, sort_output=True)
    return file.getvalue()


def compile_mo(catalog: Catalog) -> bytes:
    """Return the compiled catalogue."""
    file = io.BytesIO()
    write_mo(file, catalog)
    return file.getvalue()


def find_problems(catalog: Catalog) -> list[str]:
    """Return a sentence for each message that is not translated, is fuzzy, or has other placeholders."""
    result = []
    for message in catalog:
        if not message.id:
            continue
        ids = [message.id] if isinstance(message.id, str) else [*message.id]
        strings = [message.string or ""] if isinstance(message.string, str | None) else [*message.string]
        if message.fuzzy or len(strings) != (catalog.num_plurals if message.pluralizable else 1) or not all(strings):
            result.append(f"not translated: {ids[0]}")
        elif any(placeholders(string) != placeholders(ids[-1]) for string in strings):
            result.append(f"other placeholders: {ids[0]}")
        elif any(_surrounding_space(string) != _surrounding_space(ids[0]) for string in strings):
            result.append(f"other blanks at an end: {ids[0]}")
    return result


def placeholders(template: str) -> set[tuple[str, str, str]]:
    """Return the names in braces, each with its format and conversion, and those of HTML templates."""
    of_pages = {(name, "s", "%") for name in re.findall(r"%\((\w+)\)s", template)}
    return of_pages | {
        (name, spec or "", kind or "") for _, name, spec, kind in Formatter().parse(template) if name is not None
    }


def _surrounding_space(text: str) -> tuple[str, str]:
    return text[: len(text) - len(text.lstrip(" "))], text[len(text.rstrip(" ")) :]


def main() -> int:
    """Write or check the catalogues."""
    is_check, wrong = "--check" in sys.argv[1:], []
    for path in sorted(LANGUAGES.glob("*.po")):
        catalog = updated_catalogue(path.stem)
        for target, content in ((path, format_po(catalog)), (path.with_suffix(".mo"), compile_mo(catalog))):
            if is_check and (not target.exists() or target.read_bytes() != content):
                wrong.append(f"{target.name} is not what would be written")
            elif not is_check:
                target.write_bytes(content)
        wrong += [f"{path.name}: {problem}" for problem in find_problems(catalog)]
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
