"""The reference of a whole grid is computed once."""

from rcray.config import Experiment
from rcray.models import reference
from rcray.store import Store
from rcray.sweep.grid import expand
from rcray.train.launch import launch


def test_sixteen_cells_of_one_grid_run_the_reference_once(tmp_path, model_cache, monkeypatch):
    store = Store.open(tmp_path / "store")
    store.cache.symlink_to(model_cache)
    forward, pairs = reference._forward, []

    def counts(loaded, encoded, index, device, **said):
        pairs.append(len(index))
        return forward(loaded, encoded, index, device, **said)

    monkeypatch.setattr(reference, "_forward", counts)
    experiment = Experiment(
        name="sixteen",
        run={"data": {"train_pairs": 17, "eval_pairs": 2}, "train": {"batch_size": 16, "micro_batch_size": 16}},
        grid={
            "objective": ["dpo", "ipo", "dil-bce", "kto"],
            "calibration.enabled": [False, True],
            "train.seed": [1, 2],
        },
    )
    cells = expand(experiment)
    assert len(cells) == 16
    for cell in cells:
        launch(cell.config, store)
    assert [n for n in pairs if n == 17] == [17], "one build"
    assert [n for n in pairs if n != 17] == [4] * 15, "every other cell checks its sample"
