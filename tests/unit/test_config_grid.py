"""From an experiment to its unique cells."""

import pytest

from rcray.config import Experiment, parse_overrides, run_id
from rcray.errors import ConfigError
from rcray.sweep.grid import expand


def cells(overrides=(), **fields):
    return expand(Experiment.model_validate({"name": "x", **fields}), parse_overrides(overrides))


def names(expanded):
    return [(cell.config.objective.name, cell.config.calibration.enabled) for cell in expanded]


def test_no_grid_is_one_cell():
    (cell,) = cells(run={"objective": "cpo"})
    assert cell.config.objective.name == "cpo"
    assert cell.run_id == run_id(cell.config)
    assert cell.varied == ()


def test_a_grid_is_crossed_in_its_order():
    expanded = cells(grid={"objective": ["dpo", "cpo"], "calibration.enabled": [False, True]})
    assert names(expanded) == [("dpo", False), ("dpo", True), ("cpo", False), ("cpo", True)]


def test_cells_are_crossed_with_the_grid():
    expanded = cells(cells=[{"objective": "dpo"}, {"objective": "ipo", "train.epochs": 2}], grid={"train.seed": [1, 2]})
    seen = [(c.config.objective.name, c.config.train.epochs, c.config.train.seed) for c in expanded]
    assert seen == [("dpo", 1, 1), ("dpo", 1, 2), ("ipo", 2, 1), ("ipo", 2, 2)]


def test_a_grid_over_a_field_of_the_default_objective():
    expanded = cells(grid={"objective.beta": [0.1, 0.2]})
    assert [(c.config.objective.name, c.config.objective.beta) for c in expanded] == [("dpo", 0.1), ("dpo", 0.2)]
    official = cells(run={"fidelity": "official"}, grid={"train.seed": [1]})
    assert official[0].config.objective.beta == 1.0


def test_an_axis_of_fields_before_the_axis_of_their_section():
    """Setting `objective: cpo` after `objective.beta` must not wipe the beta and collapse the axis."""
    expanded = cells(grid={"objective.beta": [0.3, 0.4], "objective": ["dpo", "cpo"]})
    seen = {(c.config.objective.name, c.config.objective.beta) for c in expanded}
    assert seen == {("dpo", 0.3), ("dpo", 0.4), ("cpo", 0.3), ("cpo", 0.4)}


def test_duplicates_collapse():
    assert len(cells(cells=[{"objective": "dpo"}, {"objective": {"name": "dpo"}}, {"objective.beta": 0.1}])) == 1
    assert len(cells(grid={"objective.beta": [1, 1.0, "1e0"]})) == 1
    assert len(cells(grid={"calibration.ema_beta": [0.9, 0.98]})) == 1, "no effect while calibration is off"
    assert len(cells(run={"calibration": True}, grid={"calibration.ema_beta": [0.9, 0.98]})) == 2


def test_an_override_collapses_its_axis():
    grid = {"objective": ["dpo", "cpo", "ipo"], "train.seed": [1, 2]}
    expanded = cells(["objective=cpo"], grid=grid)
    assert [(c.config.objective.name, c.config.train.seed) for c in expanded] == [("cpo", 1), ("cpo", 2)]
    assert expanded[0].varied == (("train.seed", 1),)
    assert len(cells(["objective=cpo", "train.seed=9"], grid=grid)) == 1


def test_an_override_reaches_every_cell():
    expanded = cells(["train.epochs=3"], cells=[{"train.epochs": 2}, {"objective": "cpo"}])
    assert [c.config.train.epochs for c in expanded] == [3, 3]


def test_an_override_that_a_cell_cannot_take_names_the_cell():
    with pytest.raises(ConfigError) as caught:
        cells(["objective.beta=0.3"], grid={"objective": ["dpo", "ipo"]})
    assert "x [objective=ipo, objective.beta=0.3]" in str(caught.value)
    assert "objective.beta: unknown field" in str(caught.value)


@pytest.mark.parametrize("rule", [{"objective": "cpo"}, {"objective.name": "cpo"}, {"objective": {"name": "cpo"}}])
@pytest.mark.parametrize("axis", ["objective", "objective.name"])
def test_exclude_reads_short_and_long_forms_alike(axis, rule):
    expanded = cells(grid={axis: ["dpo", "cpo"]}, exclude=[rule])
    assert names(expanded) == [("dpo", False)]


@pytest.mark.parametrize("rule", [{"calibration": True}, {"calibration.enabled": True}])
@pytest.mark.parametrize("axis", ["calibration", "calibration.enabled"])
def test_exclude_reads_switches_in_both_forms(axis, rule):
    assert names(cells(grid={axis: [False, True]}, exclude=[rule])) == [("dpo", False)]


def test_every_path_of_a_rule_must_match():
    grid = {"objective": ["dpo", "cpo"], "calibration": [False, True]}
    expanded = cells(grid=grid, exclude=[{"objective": "cpo", "calibration.enabled": True}])
    assert names(expanded) == [("dpo", False), ("dpo", True), ("cpo", False)]


def test_exclude_sees_the_shared_settings():
    expanded = cells(
        run={"likelihood": "mean"}, grid={"train.seed": [1, 2]}, exclude=[{"likelihood": "mean", "train.seed": 1}]
    )
    assert [c.config.train.seed for c in expanded] == [2]


def test_an_excluded_cell_need_not_be_valid():
    expanded = cells(grid={"objective": ["dpo", "ipo"], "objective.beta": [0.2]}, exclude=[{"objective": "ipo"}])
    assert names(expanded) == [("dpo", False)]


def test_exclude_that_removes_everything():
    with pytest.raises(ConfigError, match="`exclude` leaves no cell"):
        cells(grid={"train.seed": [1, 2]}, run={"objective": "dpo"}, exclude=[{"objective": "dpo"}])


@pytest.mark.parametrize("rule", [{"objcetive": "cpo"}, {"objective": "cpoo"}, {"objective": "cpo", "train.seed": 3}])
def test_a_rule_that_matches_nothing_is_refused(rule):
    with pytest.raises(ConfigError, match=r"exclude\.0: .* matches no cell"):
        cells(grid={"objective": ["dpo", "cpo"]}, exclude=[rule])


@pytest.mark.parametrize(
    ("path", "expected"),
    [("objectve", "did you mean 'objective'"), ("run.objective", "run: unknown field"), ("train.sed", "'seed'")],
)
def test_an_unknown_axis_is_refused(path, expected):
    with pytest.raises(ConfigError) as caught:
        cells(grid={path: [1]})
    assert expected in str(caught.value)


def test_labels_show_what_is_varied():
    first, *_ = cells(grid={"objective": ["dpo"], "train.seed": [1, 2], "calibration": [True]})
    assert first.label == "tiny-neox · dpo · RC · seed=1"


def test_cells_do_not_share_mutable_settings():
    experiment = Experiment(name="x", run={"train": {"epochs": 2}}, grid={"train.seed": [1, 2]})
    expand(experiment)
    assert experiment.run == {"train": {"epochs": 2}}
