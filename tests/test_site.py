"""docs/ as a site: it builds strictly, loads nothing from elsewhere, and shows what the files show."""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from markdown_it import MarkdownIt
from playwright.sync_api import Route, sync_playwright

from tests.support.browsers import HOW_TO_GET_IT, PATIENCE_MS, chromium
from tests.support.checkout import ROOT, copy_versioned, versioned_files

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


class Silent(SimpleHTTPRequestHandler):
    """A server of files that writes no log."""

    def log_message(self, *_: Any) -> None:
        """Write nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = copy_versioned(tmp_path_factory.mktemp("source"), "docs", "zensical.toml")
    build = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(build, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return source / "site"


def pages(site: Path) -> Iterator[tuple[Path, str]]:
    """Yield each page of docs/, and what the site has of it without the frame around it."""
    for page in versioned_files("docs", "*.md"):
        html = (site / page.relative_to(DOCS)).with_suffix(".html").read_text(encoding="utf-8")
        _, _, begun = html.partition("<article")
        yield page, begun.partition("</article>")[0]


def test_site_pages_show_same_elements_as_files(site: Path) -> None:
    commonmark = MarkdownIt("commonmark").enable("table")
    for page, shown in pages(site):
        as_file = Shown(commonmark.render(page.read_text(encoding="utf-8")))
        assert Shown(shown).elements == as_file.elements, page


def test_site_keeps_diagrams_as_text_and_bars_unescaped(site: Path) -> None:
    """A drawn diagram would load its script from elsewhere."""
    found = dict(pages(site))
    assert "stateDiagram" in found[DOCS / "lifecycle.md"]
    assert not [page for page, shown in found.items() if 'class="mermaid"' in shown or r"\|" in shown]


def test_site_loads_no_external_resources(site: Path) -> None:
    loads = re.compile(
        r"""<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)=["']?(?:https?:)?//|url\(["']?(?:https?:)?//"""
    )
    sources = [path for path in site.rglob("*") if path.suffix in {".html", ".css"}]
    assert len(sources) > len(versioned_files("docs", "*.md"))
    assert not [path for path in sources if loads.search(path.read_text(encoding="utf-8"))]


@pytest.mark.long
def test_site_search_works_offline(site: Path) -> None:
    """The search of the site needs a server, and no other one."""
    if (program := chromium()) is None:
        pytest.skip(HOW_TO_GET_IT)
    asked: list[str] = []

    def only_ours(route: Route) -> None:
        asked.append(route.request.url)
        route.continue_() if route.request.url.startswith(address) else route.abort()

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=str(site))) as server:
        address = f"http://127.0.0.1:{server.server_port}/"
        Thread(target=server.serve_forever, daemon=True).start()
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=program, headless=True, args=["--no-sandbox"])
            page = browser.new_page()
            page.set_default_timeout(PATIENCE_MS)
            page.route("**/*", only_ours)
            page.goto(f"{address}index.html")
            page.get_by_role("button", name="Search").first.click()
            page.keyboard.type("quarantine")
            page.get_by_text(re.compile(r"^\d+ results$")).wait_for()
            browser.close()
        server.shutdown()
    assert asked
    assert all(one.startswith(address) for one in asked), asked


def test_first_page_links_to_every_page() -> None:
    named = set(re.findall(r"\]\(([\w-]+\.md)\)", (DOCS / "index.md").read_text(encoding="utf-8")))
    assert named == {page.name for page in versioned_files("docs", "*.md") if page.parent == DOCS} - {"index.md"}
