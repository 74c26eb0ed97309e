"""The installed packages still have every name that CONTRIBUTING.md says is reached into; no run, some seconds."""

import functools
import importlib
import inspect

import pytest

from rcray.sweep import connection
from tests.contract.test_private_names import table


def there(dotted):
    """What a dotted name stands for; its modules are imported as far as there are any."""
    first, *rest = dotted.split(".")
    place, path = importlib.import_module(first), first
    for part in rest:
        path = f"{path}.{part}"
        if not hasattr(place, part):
            importlib.import_module(path)
        place = getattr(place, part)
    return place


def set_in(owner, attribute):
    """Whether a class gives its objects an attribute."""
    return any(f"self.{attribute} =" in inspect.getsource(each) for each in there(owner).__mro__[:-1])


def fingerprint_of_a_dataset():
    import datasets

    return datasets.Dataset.from_dict({"prompt": ["a"]})._fingerprint


def attention_of_a_config():
    from transformers import GPTNeoXConfig

    config = GPTNeoXConfig()
    config._attn_implementation = "sdpa"
    return config._attn_implementation == "sdpa"


def parts_of_torch():
    import torch

    return torch.zeros(1).untyped_storage()._cdata and torch.nn.Linear(1, 1)._parameters


#: Whose the name is, where the list says it as the code does.
OWNERS = {
    **{
        f"super().{name}": f"trl.DPOTrainer.{name}"
        for name in ("_compute_loss", "_clip_grad_norm", "_save_checkpoint", "_load_from_checkpoint")
    },
    **{
        f"super().{name}": f"lm_eval.models.huggingface.HFLM.{name}"
        for name in ("_loglikelihood_tokens", "_model_call", "_model_generate")
    },
    "self._get_output_dir": "trl.DPOTrainer._get_output_dir",
    "aten._local_scalar_dense": "torch.ops.aten._local_scalar_dense",
    "aten._to_copy": "torch.ops.aten._to_copy",
    "ray_constants.ENABLE_RAY_CLUSTER": "ray._private.ray_constants.ENABLE_RAY_CLUSTER",
    "trial.update_resources": "ray.tune.experiment.Trial.update_resources",
}
#: Attributes of objects, and settings that have no name to ask for.
ASKED = {
    "self._metrics": functools.partial(set_in, "trl.DPOTrainer", "_metrics"),
    "trial.max_failures": functools.partial(set_in, "ray.tune.experiment.Trial", "max_failures"),
    "dataset._fingerprint": fingerprint_of_a_dataset,
    "model.config._attn_implementation": attention_of_a_config,
    "storage._cdata": parts_of_torch,
    "part._parameters": parts_of_torch,
    "TorchConfig().backend_cls": lambda: there("ray.train.torch.TorchConfig")().backend_cls.on_start,
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": lambda: (
        there("ray._private.ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR") == connection._OPEN_TO_THE_NETWORK
    ),
    "RAY_worker_niceness": lambda: there("ray._private.ray_constants.RAY_WORKER_NICENESS") == connection._NICENESS,
}
NAMES = sorted({name for _, name in table() | table("undocumented")})


@pytest.mark.parametrize("name", NAMES)
def test_it_is_there(name):
    if name.startswith("liger_kernel."):
        pytest.importorskip("liger_kernel", reason="a GPU's: no dependency, and not installed here")
    assert ASKED[name]() if name in ASKED else there(OWNERS.get(name, name)) is not None


def test_a_name_that_is_gone_is_seen():
    with pytest.raises(ImportError):
        there("ray._private.ray_constants.ENABLE_NO_CLUSTER")
    assert not set_in("ray.tune.experiment.Trial", "most_failures")
    assert {*OWNERS, *ASKED} <= {*NAMES}
