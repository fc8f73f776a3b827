"""docs/ as a site: it builds strictly, loads nothing external, and shows the content of the files."""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from tests.support.checkout import ROOT, copy_versioned, versioned_files

DOCS = ROOT / "docs"
SHOWN = frozenset({"li", "table", "tr", "td", "pre", "h2", "h3", "strong", "code"})


class ElementCounter(HTMLParser):
    """Counts the elements of a page's own text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements = Counter[str]()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del attrs
        if tag in SHOWN:
            self.elements[tag] += 1


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = copy_versioned(tmp_path_factory.mktemp("source"), "docs", "zensical.toml")
    build = [sys.executable, "-m", "zensical", "build", "--strict"]
    completed = subprocess.run(build, cwd=source, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return source / "site"


def pages(site: Path) -> Iterator[tuple[Path, str]]:
    """Yield each page of docs/, and its content on the site without the frame."""
    for page in versioned_files("docs", "*.md"):
        html = (site / page.relative_to(DOCS)).with_suffix(".html").read_text(encoding="utf-8")
        _, _, begun = html.partition("<article")
        yield page, begun.partition("</article>")[0]


def test_site_pages_show_same_elements_as_files(site: Path) -> None:
    commonmark = MarkdownIt("commonmark").enable("table")
    for page, displayed in pages(site):
        as_file = ElementCounter(commonmark.render(page.read_text(encoding="utf-8")))
        assert ElementCounter(displayed).elements == as_file.elements, page


def test_site_keeps_diagrams_as_text_and_bars_unescaped(site: Path) -> None:
    """A drawn diagram would load its script from another site."""
    result = dict(pages(site))
    assert "stateDiagram" in result[DOCS / "lifecycle.md"]
    assert not [page for page, displayed in result.items() if 'class="mermaid"' in displayed or r"\|" in displayed]


def test_site_loads_no_external_resources(site: Path) -> None:
    loads = re.compile(
        r"""<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)=["']?(?:https?:)?//|url\(["']?(?:https?:)?//"""
    )
    sources = [path for path in site.rglob("*") if path.suffix in {".html", ".css"}]
    assert len(sources) > len(versioned_files("docs", "*.md"))
    assert not [path for path in sources if loads.search(path.read_text(encoding="utf-8"))]


def test_first_page_links_to_every_page() -> None:
    named = set(re.findall(r"\]\(([\w-]+\.md)\)", (DOCS / "index.md").read_text(encoding="utf-8")))
    assert named == {page.name for page in versioned_files("docs", "*.md") if page.parent == DOCS} - {"index.md"}
