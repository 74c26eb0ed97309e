"""The site: what it includes is there, anchors exist, and it builds without a warning."""

import os
import re
import subprocess
import sys

import pytest

from tests.contract.pages import DOCS, ROOT, navigation, page, pages

LINK = re.compile(r"\]\(([^)#:\s]*)#([^)\s]+)\)")
INCLUDED = re.compile(r'^--8<-- "([^":]+)(?::\d+)?"$', re.MULTILINE)


def anchors(path):
    """As mkdocs makes them of headings: lower case, words joined by hyphens."""
    text = INCLUDED.sub(lambda found: (ROOT / found.group(1)).read_text(), path.read_text())
    headings = re.findall(r"^#+ (.+?)#*$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", heading.replace("`", "")).strip().lower() for heading in headings)
    return {re.sub(r"[-\s]+", "-", heading) for heading in plain}


def test_what_a_page_includes_is_there():
    included = [name for path in pages() for name in INCLUDED.findall(path.read_text())]
    assert sorted(included) == ["deploy/README.md", "experiments/README.md"]
    assert all((ROOT / name).is_file() for name in included)


def test_every_anchor_is_a_heading():
    links = [(path, *found) for path in pages() for found in LINK.findall(path.read_text())]
    assert links
    for path, target, anchor in links:
        assert anchor in anchors(path.parent / target if target else path), f"{path.name}: {target}#{anchor}"


def test_the_site_names_no_file_that_it_has_as_a_page():
    """A text that is a page is linked to, but for the page that says where it comes from."""
    for name in navigation():
        if name != "experiments.md":
            assert "experiments/README.md" not in page(name), name


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_site_builds_without_a_warning(tmp_path):
    """`make docs`, with an environment and a target of its own."""
    done = subprocess.run(
        ["make", "docs", f"VENV={tmp_path / 'venv'}", f"PYTHON={sys.executable}", f"SITE={tmp_path / 'site'}"],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": ""}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    for path in DOCS.glob("*.md"):
        place = "index.html" if path.stem == "index" else f"{path.stem}/index.html"
        assert (tmp_path / "site" / place).is_file(), place
    assert "main.yaml" in (tmp_path / "site" / "experiments" / "index.html").read_text()
