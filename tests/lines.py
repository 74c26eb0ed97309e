"""Lines of code by package: `python -m tests.lines [OTHER_CHECKOUT]`, the other one counted as the state before.

Blank lines, comments and docstrings are not code. Data files are no Python, so they do not count.
"""

import ast
import sys
import tokenize
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parents[1]
NOT_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def code_lines(path: Path) -> int:
    """How many lines of a file hold code."""
    with tokenize.open(path) as file:
        held = {
            line
            for token in tokenize.generate_tokens(file.readline)
            if token.type not in NOT_CODE
            for line in range(token.start[0], token.end[0] + 1)
        }
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, Documented) and ast.get_docstring(node):
            told = node.body[0]
            held -= set(range(told.lineno, (told.end_lineno or told.lineno) + 1))
    return len(held)


def by_package(checkout: Path, root: str = "rcray") -> Counter[str]:
    """Lines of code below `root`: a row for each folder directly in it, and one for its own files."""
    counts: Counter[str] = Counter()
    for path in sorted((checkout / root).rglob("*.py")):
        inside = path.relative_to(checkout / root)
        counts[f"{root}/{inside.parts[0]}/" if len(inside.parts) > 1 else f"{root}/*.py"] += code_lines(path)
    return counts


def main() -> None:
    """Prints the rows of this checkout, beside the other's where one is named."""
    other = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    for root in ("rcray", "tests", "benchmarks"):
        now = by_package(HERE, root)
        before = by_package(other, root) if other else Counter[str]()
        now[f"{root}, in all"], before[f"{root}, in all"] = now.total(), before.total()
        for name in sorted(now | before):
            print(
                f"{name:24}"
                + (f"{before[name]:8} {now[name]:7} {now[name] - before[name]:+7}" if other else f"{now[name]:8}")
            )


if __name__ == "__main__":
    main()
