"""A model, a data source, a benchmark is declared in one place: a made-up one, added there alone, works."""

from rcray.aggregate.benchmark_tables import metric_key
from rcray.config import Experiment, RunConfig
from rcray.config.benchmarks import BENCHMARKS, Benchmark, benchmark_title
from rcray.config.datasets import SOURCES, Source
from rcray.config.evaluation import EvaluationConfig
from rcray.config.models import MODELS, KnownModel, model_title
from rcray.config.shape import Shape
from rcray.data.readers import read_pairs
from rcray.data.sources import open_rows
from rcray.starter import Wanted, render
from rcray.sweep.cost import estimate
from rcray.sweep.pretend.models import architecture
from rcray.sweep.tiny import tiny_config, tiny_experiment


def test_a_model(monkeypatch):
    settings, train = {"source": "owner/made-up", "method": "lora"}, {"learning_rate": 2e-5}
    shape = Shape(4, 128, 512, 1000, heads=8, gated=True)
    monkeypatch.setitem(MODELS, "made-up", KnownModel("made-up", shape, "Made-Up", "tiny-mistral", settings, train))
    config = RunConfig.model_validate({"model": "made-up", "data": "synthetic"})
    assert (config.model.origin, config.model.label) == ("owner/made-up", "made-up")
    assert (config.train.learning_rate, config.calibration.scores) == (2e-5, "adapters")
    assert tiny_config(config, {}).model.name == "tiny-mistral" and model_title("made-up") == "Made-Up"
    assert estimate(config).flops is not None and architecture(config.model).num_attention_heads == 8
    assert "made-up" in render("x", Wanted("tiny-neox", "synthetic"))


def test_a_data_source(monkeypatch, tmp_path):
    (tmp_path / "learn.jsonl").write_text(
        '{"chosen": "\\n\\nHuman: a\\n\\nAssistant: b", "rejected": "\\n\\nHuman: a\\n\\nAssistant: c"}\n'
    )
    source = Source(
        "made-up", "Made-Up", hub_id=str(tmp_path), rows="transcripts", defaults={"split": "learn"}, pairs=64
    )
    monkeypatch.setitem(SOURCES, "made-up", source)
    config = RunConfig.model_validate({"data": "made-up"})
    (pair,) = read_pairs(open_rows(config.data, config.data.split), config.data)
    assert (pair.chosen, pair.rejected) == ("b", "c")
    assert estimate(config).tokens == 2 * 64 * source.tokens
    assert tiny_config(config, {}).data.name == source.tiny == "synthetic"
    assert "made-up" in render("x", Wanted("tiny-neox", "synthetic"))


def test_a_benchmark(monkeypatch):
    made_up = Benchmark("made_up", "some_task", 7, "acc_norm", suite="published", title="Made-Up", tiny="rcray_choice")
    monkeypatch.setitem(BENCHMARKS, "made_up", made_up)
    assert EvaluationConfig(benchmarks=("made_up",)).resolved() == (made_up,)
    assert made_up in EvaluationConfig(benchmarks=("published",)).resolved()
    assert (benchmark_title("made_up/acc_norm"), metric_key("made_up", [])) == ("Made-Up", "made_up/acc_norm")
    asked = Experiment(name="x", evaluation={"benchmarks": ["made_up", "arc", "gsm8k"]})
    assert tiny_experiment(asked).evaluation.benchmarks == ("rcray_choice", "embedded")
