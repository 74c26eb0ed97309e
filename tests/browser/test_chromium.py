"""The driver itself: what the other browser tests rely on."""

import pytest

PAGE = """<title>plain</title><body><h1>A heading</h1>
<button onclick="document.title = 'clicked'; console.error('a console error')">press</button>
<p style="display: none">hidden words</p><div style="height: 3000px"></div></body>"""


@pytest.fixture
def page(browser, tmp_path):
    (tmp_path / "page.html").write_text(PAGE)
    return browser.open(tmp_path / "page.html")


def test_a_page_is_read_and_clicked(page):
    assert page.text().split() == ["A", "heading", "press"]
    assert page.errors == []
    page.click("button")
    page.wait_for("document.title == 'clicked'", 5)
    page.evaluate("0")
    assert page.errors == ["a console error"]
    with pytest.raises(LookupError, match="nothing matches"):
        page.click("input")


def test_what_never_happens_is_told_with_the_page(page):
    with pytest.raises(TimeoutError, match=r"never true in 0\.2 s: 1 > 2(.|\n)*A heading"):
        page.wait_for("1 > 2", 0.2)
    with pytest.raises(RuntimeError, match="nowhere is not defined"):
        page.evaluate("nowhere()")


def test_screen_size_scheme_and_requests(page, tmp_path):
    page.resize(400, 700)
    assert page.evaluate("innerWidth") == 400
    page.prefer(scheme="dark")
    assert page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    for whole, height in ((False, 700), (True, 3000)):
        shot = page.screenshot(tmp_path / "shot.png", whole=whole).read_bytes()
        assert int.from_bytes(shot[16:20], "big") == 400
        assert int.from_bytes(shot[20:24], "big") >= height
    assert page.requested_hosts() == set()
    page.evaluate("fetch('http://127.0.0.1:9/').catch(() => 0)")
    assert page.requested_hosts() == {"127.0.0.1"}
