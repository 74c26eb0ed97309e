"""Stand-ins for the published benchmarks' datasets: a few rows each, in the hub's own folders, fields and splits.

They let the unmodified lm-eval tasks run without a hub. Their scores mean nothing.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

#: Rows of each BBH subtask: unequal, so that weighted and unweighted means differ.
BBH = {
    "boolean_expressions": ["False", "True"],
    "causal_judgement": ["Yes", "No"],
    "date_understanding": ["(A)", "(B)", "(C)"],
    "disambiguation_qa": ["(A)", "(B)"],
    "formal_fallacies": ["valid", "invalid"],
    "geometric_shapes": ["(A)", "(B)", "(C)", "(D)"],
    "hyperbaton": ["(A)", "(B)"],
    "logical_deduction_five_objects": ["(A)", "(B)", "(C)"],
    "logical_deduction_seven_objects": ["(A)", "(B)"],
    "logical_deduction_three_objects": ["(A)", "(B)", "(C)"],
    "movie_recommendation": ["(A)", "(B)"],
    "navigate": ["Yes", "No"],
    "object_counting": ["1", "2", "3", "4"],
    "penguins_in_a_table": ["(A)", "(B)"],
    "reasoning_about_colored_objects": ["(A)", "(B)", "(C)"],
    "ruin_names": ["(A)", "(B)"],
    "salient_translation_error_detection": ["(A)", "(B)"],
    "snarks": ["(A)", "(B)"],
    "sports_understanding": ["yes", "no"],
    "temporal_sequences": ["(A)", "(B)", "(C)", "(D)"],
    "tracking_shuffled_objects_five_objects": ["(A)", "(B)"],
    "tracking_shuffled_objects_seven_objects": ["(A)", "(B)"],
    "tracking_shuffled_objects_three_objects": ["(A)", "(B)", "(C)"],
    "web_of_lies": ["Yes", "No"],
}
MUSR = {"murder_mysteries": 5, "object_placements": 3, "team_allocation": 4}
MATH = (
    "algebra",
    "counting_and_probability",
    "geometry",
    "intermediate_algebra",
    "number_theory",
    "prealgebra",
    "precalculus",
)


def write_dataset(folder: Path, configs: Mapping[str, Mapping[str, Iterable[dict[str, Any]]]]) -> None:
    """A dataset as the hub lays it out: config name -> split -> rows."""
    folder.mkdir(parents=True)
    lines = ["---", "configs:"]
    for config, splits in configs.items():
        lines += [f"- config_name: {config}", "  data_files:"]
        for split, rows in splits.items():
            file = f"{config}-{split}.jsonl"
            (folder / file).write_text("".join(json.dumps(row) + "\n" for row in rows))
            lines += [f"  - split: {split}", f"    path: {file}"]
    (folder / "README.md").write_text("\n".join([*lines, "---", ""]))


def write_arc(root: Path, rows: int = 6) -> None:
    def row(i: int) -> dict[str, Any]:
        choices = {"text": [f"{i}{letter}" for letter in "abcd"], "label": list("ABCD")}
        return {"id": str(i), "question": f"what is {i}?", "choices": choices, "answerKey": "ABCD"[i % 4]}

    splits = {"train": map(row, range(30)), "validation": map(row, range(4)), "test": map(row, range(40, 40 + rows))}
    write_dataset(root / "allenai" / "ai2_arc", {"ARC-Challenge": splits})


def write_musr(root: Path) -> None:
    def row(i: int) -> dict[str, Any]:
        names = ["ann", "ben", "cleo"]
        text = {"narrative": f"story {i}.", "question": "who?", "choices": repr(names)}
        return {**text, "answer_index": i % 3, "answer_choice": names[i % 3]}

    splits = {name: map(row, range(count)) for name, count in MUSR.items()}
    write_dataset(root / "TAUR-Lab" / "MuSR", {"default": splits})


def write_bbh(root: Path) -> None:
    def rows(name: str, choices: list[str]) -> list[dict[str, Any]]:
        count = 2 + len(name) % 3
        return [{"input": f"{name} {i}", "target": choices[i % len(choices)]} for i in range(count)]

    write_dataset(root / "SaylorTwift" / "bbh", {name: {"test": rows(name, c)} for name, c in BBH.items()})


def write_math(root: Path) -> None:
    def row(i: int, kind: str) -> dict[str, Any]:
        solution = f"It is $\\boxed{{{i}}}$."
        return {"problem": f"What is {i}?", "level": "Level 5", "type": kind, "solution": solution}

    splits = {
        kind: {"train": [row(1, kind)], "test": [row(i, kind) for i in range(2 + len(kind) % 3)]} for kind in MATH
    }
    write_dataset(root / "DigitalLearningGmbH" / "MATH-lighteval", splits)


def write_gsm8k(root: Path) -> None:
    def row(i: int) -> dict[str, Any]:
        return {"question": f"How much is {i} + 1?", "answer": f"{i} + 1 = {i + 1}\n#### {i + 1}"}

    splits = {"train": map(row, range(12)), "test": map(row, range(20, 24))}
    write_dataset(root / "openai" / "gsm8k", {"main": splits})


def write_mmlu_pro(root: Path) -> None:
    def row(i: int) -> dict[str, Any]:
        options = [f"{i}{letter}" for letter in "abcdefghij"]
        fixed = {"category": "math", "src": "x", "cot_content": ""}
        letter = "ABCDEFGHIJ"[i % 10]
        asked = {"question": f"which {i}?", "options": options}
        return {"question_id": i, **asked, "answer": letter, "answer_index": i % 10, **fixed}

    splits = {"validation": map(row, range(8)), "test": map(row, range(20, 26))}
    write_dataset(root / "TIGER-Lab" / "MMLU-Pro", {"default": splits})


def write_all(root: Path) -> None:
    for write in (write_arc, write_musr, write_bbh, write_math, write_gsm8k, write_mmlu_pro):
        write(root)
