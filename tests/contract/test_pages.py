"""README and docs are true: their commands exist, the tree names every file, snippets run, references are current."""

import re
import shlex
import tomllib

import pytest
import yaml
from typer.main import get_command

from rcray.cli import app
from rcray.config import Experiment
from rcray.config.bundled import bundled_experiments
from rcray.config.objectives import BUILT_IN
from rcray.config.objectives.names import NAMES, REFUSED, TRL
from rcray.sweep.grid import expand
from tests.contract.pages import DOCS, ROOT, blocks, navigation, page, pages


def commands():
    lines = [line.partition("#")[0].strip() for block in blocks("bash") for line in block.splitlines()]
    return [line for line in lines if line.startswith("rcray ")]


@pytest.mark.parametrize("line", list(dict.fromkeys(commands())))
def test_every_rcray_command_parses(line):
    name, *arguments = shlex.split(line)[1:]
    command = get_command(app).commands[name]  # type: ignore[attr-defined]
    command.make_context(name, list(arguments), resilient_parsing=False)  # parses options and arguments, runs nothing
    for argument in arguments:
        if argument.startswith("experiments/"):
            assert (ROOT / argument).is_file()
    if name in ("plan", "sweep", "train", "show-config") and not arguments[0].endswith(".yaml"):
        assert arguments[0] in bundled_experiments()


def test_make_targets_exist():
    targets = re.findall(r"^make (\w+)", "\n".join(blocks("bash")), re.MULTILINE)
    makefile = (ROOT / "Makefile").read_text()
    assert targets
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


def test_the_tree_names_every_module_and_nothing_else():
    tree = re.search(r"^```\n(rcray/\n.*?)^```", page("design.md"), re.MULTILINE | re.DOTALL).group(1)
    named, folder = set(), ""
    for line in tree.splitlines():
        entry = re.match(r"( *)([\w./, ]+?)(?:  |$)", line)
        if entry is None or not entry.group(1):
            continue
        for name in entry.group(2).split(", "):
            if name.endswith("/"):
                folder = name
            else:
                named.add(("" if len(entry.group(1)) == 2 else folder) + name)
    modules = {str(path.relative_to(ROOT / "rcray")) for path in (ROOT / "rcray").rglob("*.py")}
    assert named == {module for module in modules if not module.endswith("__init__.py")}


def test_an_installed_package_has_its_data_files():
    """What is not Python is in a wheel only if a pattern of pyproject.toml names it."""
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    packed = {path for name, globs in patterns.items() for glob in globs for path in _files(name, glob)}
    others = {path for path in (ROOT / "rcray").rglob("*.*") if path.suffix not in (".py", ".pyc")}
    assert packed == others


def _files(package, pattern):
    return (ROOT / package.replace(".", "/")).glob(pattern)


def test_the_example_experiment_expands():
    example = next(block for block in blocks("yaml") if block.startswith("name: my-grid"))
    content = yaml.safe_load(example)
    assert (ROOT / "experiments" / content.pop("base")).is_file()
    cells = expand(Experiment.model_validate(content))
    assert len(cells) == 15  # dpo without RC and with two kinds, simpo without and with one, three seeds each


def test_the_calibration_snippet_runs():
    import torch

    snippet = next(block for block in blocks("python") if "calibrator = Calibrator()" in block)
    model = torch.nn.Module()
    model.lm_head = torch.nn.Linear(8, 16)
    log_probs = model.lm_head(torch.randn(4, 8)).log_softmax(-1)
    scope = {
        "model": model,
        "z_w": log_probs[:, 0],
        "z_l": log_probs[:, 1],
        "loss_fn": lambda z_w, z_l: -torch.nn.functional.logsigmoid(z_w - z_l),
    }
    exec(snippet, scope)
    assert model.lm_head.weight.grad.abs().sum() > 0


def test_the_readmes_loop_makes_steps():
    """The printed lines: once as they are, then those after the first two, as a loop would."""
    import torch

    snippet = next(block for block in blocks("python") if "from rcray import UpdateSteering, calibrate" in block)
    head = torch.nn.Linear(8, 16)
    inputs = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-2, weight_decay=0.0)
    scope = {"optimizer": optimizer, "loss_fn": lambda z_w, z_l: -torch.nn.functional.logsigmoid(z_w - z_l)}

    def likelihoods():
        log_probs = head(inputs).log_softmax(-1)
        return {"z_w": log_probs[:, 0], "z_l": log_probs[:, 1]}

    start = {name: z.detach().mean() for name, z in likelihoods().items()}
    lines = snippet.partition("result = ")
    for step in range(5):
        before = head.weight.detach().clone()
        scope |= likelihoods()
        exec(snippet if step == 0 else lines[1] + lines[2], scope)
        assert not torch.equal(head.weight, before)
        assert torch.equal(scope["result"].loss, scope["loss_fn"](scope["z_w"], scope["z_l"]))
        optimizer.zero_grad()
    assert scope["steering"].steps == 5 and scope["result"].report.log_alpha != 0
    assert float(scope["z_l"].detach().mean() - start["z_l"]) < 0


def test_the_docs_count_the_zoo_and_names_every_loss_of_trl():
    assert f"the zoo: {len(BUILT_IN)} objectives" in page("commands.md")
    table = page("objectives.md").partition("TRL's `loss_type` | here")[2].partition("\n\n")[0]
    for name in {**NAMES, **REFUSED}:
        if name.startswith(TRL):
            assert re.search(rf"\b{name.removeprefix(TRL)}\b", table), name


# -- the pages themselves


def test_a_stranger_reads_the_readme_in_five_minutes():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 135


def test_every_page_is_in_the_navigation_and_every_link_leads_somewhere():
    assert {path.name for path in DOCS.glob("*.md")} == set(navigation())
    for path in pages():
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_the_reference_is_the_generated_one():
    from docs.reference import PAGES

    for name, make in PAGES.items():
        assert page(name) == make(), "python -m docs.reference"
    assert re.findall(r"^\| `([\w.]+)` \|.*\|  \|$", page("reference-settings.md"), re.MULTILINE) == [], "no meaning"


def test_every_picture_of_the_concepts_is_drawn_by_the_script():
    """Not byte by byte: that would hold the docs to one version of matplotlib."""
    from docs.pictures import DRAWINGS

    used = re.findall(r"\]\((concept-[\w-]+)\.svg\)", page("concepts.md"))
    drawn = [draw.__name__.replace("draw_", "concept-").replace("_", "-") for draw in DRAWINGS]
    assert used == [name for name in used if name in drawn] and set(used) == set(drawn)
    assert {path.stem for path in DOCS.glob("concept-*.svg")} == set(drawn)


def test_the_short_table_is_part_of_the_long_one():
    """The README repeats six rows of docs/results.md in fewer columns."""

    def table(text):
        lines = text.partition("| Objective | RC |")[2].partition("\n\n")[0].splitlines()
        head, rows = ("| Objective | RC |" + lines[0]).strip("| ").split(" | "), lines[2:]
        return [dict(zip(head, (cell.strip() for cell in row.strip("|").split("|")), strict=True)) for row in rows]

    short, long = table((ROOT / "README.md").read_text()), table(page("results.md"))
    assert len(short) == 6
    for row in short:
        match = next(r for r in long if (r["Objective"], r["RC"]) == (row["Objective"], row["RC"]))
        assert {name: match[name] for name in row} == row
