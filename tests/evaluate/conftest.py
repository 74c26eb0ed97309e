"""Models and finished runs that the evaluation's tests share."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from rcray.config import RunConfig, run_id
from rcray.store import RunDir, Store
from tests.small_runs import small_config

os.environ["HF_DATASETS_OFFLINE"] = "1"


@dataclass(frozen=True)
class Trained:
    """A store with two finished runs of a few steps: DPO without and with calibration."""

    store: Store
    plain: RunConfig
    calibrated: RunConfig

    def run(self, config: RunConfig) -> RunDir:
        return self.store.run(run_id(config))


@pytest.fixture(scope="session")
def finished(tmp_path_factory, model_cache) -> Trained:
    from rcray.train.launch import launch

    store = Store.open(tmp_path_factory.mktemp("finished") / "store")
    shutil.copytree(model_cache, store.cache)
    plain, calibrated = (small_config(objective="dpo", calibration={"enabled": on}) for on in (False, True))
    for config in (plain, calibrated):
        launch(config, store)
    return Trained(store, plain, calibrated)


@pytest.fixture
def trained(finished, tmp_path) -> Trained:
    """A copy of its own, with nothing evaluated."""
    shutil.copytree(finished.store.root, tmp_path / "store")
    return Trained(Store.open(tmp_path / "store"), finished.plain, finished.calibrated)


@pytest.fixture(scope="session")
def tiny(model_cache):
    """tiny-neox with its tokenizer, as it starts."""
    from rcray.config.model import ModelConfig
    from rcray.models.load import load_model

    return load_model(ModelConfig(name="tiny-neox"), model_cache)


def random_model(tokenizer, context: int = 256, seed: int = 0):
    """An untrained GPT-NeoX with a given context."""
    import torch
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
        ends = {"eos_token_id": tokenizer.eos_token_id, "bos_token_id": tokenizer.eos_token_id}
        config = GPTNeoXConfig(
            vocab_size=len(tokenizer),
            max_position_embeddings=context,
            pad_token_id=tokenizer.pad_token_id,
            initializer_range=0.3,
            **sizes,
            **ends,
        )
        return GPTNeoXForCausalLM(config).eval()


def load_copy(directory: Path):
    from rcray.models.trained import load_trained

    return load_trained(directory, directory)
