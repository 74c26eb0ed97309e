"""What a reader reads: the README, then the pages of the site in the order of its navigation."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def navigation() -> list[str]:
    """Pages of mkdocs.yml, in order."""
    return list(_leaves(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))


def _leaves(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    else:
        for inner in node.values() if isinstance(node, dict) else node:
            yield from _leaves(inner)


def pages() -> list[Path]:
    """The README first."""
    return [ROOT / "README.md", *(DOCS / name for name in navigation())]


def text() -> str:
    """All of them."""
    return "\n\n".join(page.read_text() for page in pages())


def blocks(language: str) -> list[str]:
    """Their fenced blocks of one language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", text(), re.MULTILINE | re.DOTALL)


def page(name: str) -> str:
    """One page of docs/."""
    return (DOCS / name).read_text()
