"""docs/ as a site: it builds strictly, loads nothing from elsewhere, and shows what the files show."""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
SHOWN = frozenset({"li", "table", "tr", "td", "pre", "h2", "h3", "strong", "code"})


class Shown(HTMLParser):
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
    made = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(made)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return made


def pages(site: Path) -> Iterator[tuple[Path, str]]:
    """Yield each page of docs/, and what the site has of it without the frame around it."""
    for page in sorted(DOCS.rglob("*.md")):
        html = (site / page.relative_to(DOCS)).with_suffix(".html").read_text(encoding="utf-8")
        _, _, begun = html.partition('itemprop="articleBody">')
        yield page, begun.partition("<footer>")[0]


def test_a_page_of_the_site_shows_what_its_file_shows(site: Path) -> None:
    commonmark = MarkdownIt("commonmark").enable("table")
    for page, shown in pages(site):
        as_file = Shown(commonmark.render(page.read_text(encoding="utf-8")))
        assert Shown(shown).elements == as_file.elements, page


def test_a_diagram_is_called_text_and_a_bar_in_a_command_has_no_backslash(site: Path) -> None:
    found = dict(pages(site))
    assert "as text in the language Mermaid" in found[DOCS / "lifecycle.md"]
    assert not [page for page, shown in found.items() if "language-mermaid" in shown or r"\|" in shown]


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    loads = re.compile(
        r"""<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)=["']?(?:https?:)?//|url\(["']?(?:https?:)?//"""
    )
    sources = [path for path in site.rglob("*") if path.suffix in {".html", ".css"}]
    assert len(sources) > 100
    assert not [path for path in sources if loads.search(path.read_text(encoding="utf-8"))]


def test_the_first_page_leads_to_every_page() -> None:
    named = set(re.findall(r"\]\(([\w-]+\.md)\)", (DOCS / "index.md").read_text(encoding="utf-8")))
    assert named == {page.name for page in DOCS.glob("*.md")} - {"index.md"}
