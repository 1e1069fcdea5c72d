"""MkDocs' hooks: pages of the checkout's top join the site, and links to code become plain words.

https://www.mkdocs.org/user-guide/configuration/#hooks
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

DOCS = Path(__file__).parent
ROOT = DOCS.parent
FROM_TOP = {
    "README.md": "index.md",
    "SECURITY.md": "security.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name, page in FROM_TOP.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    folder = ROOT if page.file.src_uri in FROM_TOP.values() else DOCS

    def relink(link: re.Match[str]) -> str:
        words, target, anchor = link.groups()
        path = Path(os.path.normpath(folder / target)) if target else DOCS / page.file.src_uri
        name = os.path.relpath(path, DOCS)
        name = FROM_TOP.get(os.path.relpath(path, ROOT), name)
        is_page = files.get_file_from_path(name) is not None
        return f"[{words}]({name}{anchor or ''})" if is_page else words

    return re.sub(r"\[([^\]]+)\]\((?!https?:)([^)#\s]*)(#[^)]*)?\)", relink, markdown)
