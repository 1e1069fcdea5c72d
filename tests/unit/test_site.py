"""The site of the documentation: it is whole, and is made without a network."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from samples import ROOT


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what the site is made of."""
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    for name in ("mkdocs.yml", "README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def build(checkout: Path) -> subprocess.CompletedProcess[str]:
    nowhere = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")
    env = {**os.environ, **nowhere, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run([sys.executable, "-m", "mkdocs", "build"], cwd=checkout, env=env, capture_output=True, text=True)


def test_every_page_and_every_link_of_the_site_is_there(checkout: Path) -> None:
    done = build(checkout)
    assert done.returncode == 0, done.stderr
    pages = {path.name for path in (checkout / "build/site").glob("*.html")}
    assert {path.with_suffix(".html").name for path in (ROOT / "docs").glob("*.md")} | {"index.html", "security.html", "404.html"} <= pages
    index = (checkout / "build/site/index.html").read_text()
    assert '<img alt="A run on a laptop' in index and 'src="run.svg"' in index
    assert re.findall(r'(?:src|href)="(https?://[^"]*)"[^>]*(?:stylesheet|></script)', index) == []  # a browser fetches nothing from elsewhere


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("docs/why.md", "[a page](secrets.md#no-such-part)", "no-such-part"),
        ("docs/new.md", "# New", 'not included in the "nav" configuration'),
    ],
)
def test_a_page_without_a_place_and_a_link_to_nothing_are_refused(file: str, text: str, said: str, checkout: Path) -> None:
    with (checkout / file).open("a") as page:
        page.write(f"\n{text}\n")
    done = build(checkout)
    assert done.returncode != 0 and said in done.stderr
