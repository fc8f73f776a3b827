"""Print twenty sentences, twenty docstrings and three pages, drawn at random for review.

python -m tooling.draw_sentences SEED            # the same seed draws the same texts from the same source
python -m tooling.draw_sentences SEED --names    # name the three pages without their text

A whole package is too long to review for its English. A draw estimates the share of poor texts, and a second draw with
another seed shows whether corrections helped.
"""

import argparse
import ast
import random
from collections.abc import Iterator
from pathlib import Path

from tooling.catalogue import PACKAGE, ROOT, messages

SENTENCES, DOCSTRINGS, PAGES = 20, 20, 3
SHORTEST_WORDS = 4
"""Shorter texts are labels, which are not worth reviewing."""


def catalogue_sentences() -> list[str]:
    """Return the sentences of the catalogue, without labels."""
    result = {message if isinstance(message, str) else message[1] for message, _ in messages()}
    return sorted(sentence for sentence in result if len(sentence.split()) >= SHORTEST_WORDS)


def package_docstrings() -> Iterator[str]:
    """Yield every docstring of the package, with its module and line."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if text := ast.get_docstring(node):
                yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}\n    " + text.replace("\n", "\n    ")


def user_documents() -> list[Path]:
    """Return the documents for users, without decisions, which are a record."""
    return sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])


def main() -> int:
    """Print one draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", type=int)
    parser.add_argument("--names", action="store_true")
    asked = parser.parse_args()
    draw = random.Random(asked.seed)  # noqa: S311 (a sample, not a secret)
    for number, sentence in enumerate(draw.sample(catalogue_sentences(), SENTENCES), start=1):
        print(f"{number:>2}. {sentence}")
    for number, docstring in enumerate(draw.sample([*package_docstrings()], DOCSTRINGS), start=1):
        print(f"\n{number:>2}. {docstring}")
    for page in draw.sample(user_documents(), PAGES):
        print(f"\n== {page.relative_to(ROOT)}")
        if not asked.names:
            print(page.read_text(encoding="utf-8"))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
