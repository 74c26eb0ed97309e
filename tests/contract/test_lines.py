"""No file is so long that a reader loses its thread; what holds data alone is no code."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
LONGEST = 350


def test_no_file_is_over_the_limit():
    files = [path for folder in ("rcray", "tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 300, "they are all here"
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files}
    assert {name: count for name, count in lines.items() if count > LONGEST} == {}
