"""Runs every benchmark and writes benchmarks/RESULTS.md: `python -m benchmarks [--quick]`."""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
NOT_BENCHMARKS = {
    *("__init__", "__main__", "between", "gpu_check", "interleaved", "steps", "timed_steps", "tiny_runs", "trl_side"),
}


def main() -> int:
    sections = [
        "# Benchmark results",
        "",
        "Written by `make bench`, one benchmark after another, nothing beside them. Ratios are medians over the",
        "rounds of one interleaved run; ± is half the distance between their quartiles by the root of the rounds.",
        "",
    ]
    failed = []
    for name in sorted(path.stem for path in HERE.glob("*.py") if path.stem not in NOT_BENCHMARKS):
        command = [sys.executable, "-m", f"benchmarks.{name}", *sys.argv[1:]]
        done = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True)
        print(done.stdout, end="")
        if done.returncode:
            print(done.stderr, file=sys.stderr)
            failed.append(name)
        sections += [f"## {name}", "", "```", done.stdout.strip() or "failed", "```", ""]
    (HERE / "RESULTS.md").write_text("\n".join(sections))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
