"""The calibrated trainer beside TRL's own, on a tiny transformer and a tokenizer trained here."""

import copy
import math
import subprocess
import sys

import pytest
import torch

pytest.importorskip("trl")
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import MistralConfig, MistralForCausalLM, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer

from rcray.calibration import Calibrator, UpdateSteering
from rcray.errors import ConfigError
from rcray.integrations.trl import STATE_FILE, CalibratedDPOTrainer, _answer_tokens

PAIRS = [
    ("the cat", " sat on the mat", " sat on the mat and ate a small red house"),
    ("a dog", " ran to the old house", " ran to the dog"),
    ("the old man", " ate the mat", " ate the red cat and the dog"),
    ("a small house", " sat on the red mat again", " sat on a mat"),
] * 2
BAND = {f"band/{name}" for name in ("log_r", "log_r_star", "rho", "slack", "in_band", "log_alpha", "skipped")}


@pytest.fixture(scope="module")
def tokenizer():
    raw = Tokenizer(models.WordLevel(unk_token="[unk]"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    texts = [prompt + chosen + rejected for prompt, chosen, rejected in PAIRS]
    raw.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=["[unk]", "[pad]", "[eos]"]))
    return PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="[unk]", pad_token="[pad]", eos_token="[eos]")


@pytest.fixture(scope="module")
def weights(tokenizer):
    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=64, max_position_embeddings=64, tie_word_embeddings=False,
    )  # fmt: skip
    # Not GPT-NeoX: transformers' Trainer saves its head as `embed_out` and looks for `lm_head` when it resumes.
    model = MistralForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


@pytest.fixture
def build(tokenizer, weights, tmp_path):
    data = Dataset.from_list([{"prompt": p, "chosen": c, "rejected": r} for p, c, r in PAIRS])

    def build(kind=CalibratedDPOTrainer, *, more=None, model=None, own_reference=True, **settings):
        defaults = {
            "output_dir": str(tmp_path / "out"), "use_cpu": True, "bf16": False, "report_to": "none", "max_steps": 2,
            "per_device_train_batch_size": 2, "learning_rate": 1e-2, "logging_steps": 1, "save_strategy": "no",
            "disable_tqdm": True, "seed": 1, "max_grad_norm": 0.0,
        }  # fmt: skip
        reference = copy.deepcopy(weights)
        with torch.no_grad():
            for parameter in reference.parameters():
                parameter *= 1.05
        if model is not None:  # with adapters: without them it is its own reference
            reference = None
        elif own_reference:
            model = copy.deepcopy(weights)
        else:  # TRL loads its reference from where the model was loaded from
            weights.save_pretrained(tmp_path / "start")
            model, reference = MistralForCausalLM.from_pretrained(tmp_path / "start"), None
        return kind(
            model, reference, args=DPOConfig(**(defaults | settings)), train_dataset=data, eval_dataset=data,
            processing_class=tokenizer, **(more or {}),
        )  # fmt: skip

    return build


def steps(trainer):
    return [entry for entry in trainer.state.log_history if "loss" in entry]


def test_without_a_calibrator_training_is_trls_and_the_band_is_logged(build):
    plain, ours = build(DPOTrainer), build()
    plain.train(), ours.train()
    assert [s["loss"] for s in steps(ours)] == [s["loss"] for s in steps(plain)]
    for (name, theirs), mine in zip(plain.model.named_parameters(), ours.model.parameters(), strict=True):
        assert torch.equal(theirs, mine), name
    for step in steps(ours):
        assert step.keys() >= BAND
        assert step["band/log_alpha"] == 0.0
        assert step["band/log_r"] == pytest.approx(0.0, abs=1e-6)  # DPO: d_w = d_l


def test_calibration_leaves_the_loss_and_changes_the_step(build):
    plain = build(DPOTrainer)
    ours = build(more={"calibrator": Calibrator(ema_beta=0.0)})
    plain.train(), ours.train()
    first, theirs = steps(ours)[0], steps(plain)[0]
    assert first["loss"] == theirs["loss"]
    assert first["rewards/margins"] == theirs["rewards/margins"] and first["logps/chosen"] == theirs["logps/chosen"]
    assert first.keys() >= BAND
    assert first["band/log_alpha"] == pytest.approx((first["band/log_r_star"] - first["band/log_r"]) / 2, abs=1e-6)
    assert abs(first["band/log_alpha"]) > 1e-2 and first["band/in_band"] == 1.0
    assert steps(ours)[1]["loss"] != steps(plain)[1]["loss"]
    assert all(p.isfinite().all() for p in ours.model.parameters())


def loss_and_gradients(trainer, batch):
    trainer.model.train()
    trainer.model.zero_grad()
    loss = trainer.compute_loss(trainer.model, dict(batch))
    loss.backward()
    return loss, torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None])


def side_gradient(trainer, batch, row):
    """s of one response, by a forward of its own: the logits of the model itself, not TRL's fused head."""
    ids, mask = batch["input_ids"][row : row + 1], batch["completion_mask"][row, 1:].bool()
    trainer.model.zero_grad()
    logits = trainer.model(input_ids=ids, attention_mask=batch["attention_mask"][row : row + 1]).logits[0, :-1]
    z = logits.log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0][mask].sum()
    z.backward()
    grads = {name: p.grad.clone() for name, p in trainer.model.named_parameters() if p.grad is not None}
    return grads["lm_head.weight"].norm(), torch.cat([g.flatten() for g in grads.values()])


@pytest.mark.parametrize("loss_type", ["sigmoid", "bco_pair", "apo_zero", "ipo"])
def test_the_two_branches_are_scaled_by_alpha_and_its_inverse(build, loss_type):
    """One pair, the branches' gradients measured apart, incentives solved from the plain gradient."""
    settings = {"loss_type": [loss_type], "beta": 0.5, "per_device_train_batch_size": 1}
    plain = build(DPOTrainer, **settings)
    calibrator = Calibrator(ema_beta=0.0, clip=False)
    ours = build(more={"calibrator": calibrator}, **settings)
    batch = next(iter(plain.get_train_dataloader()))
    loss, gradient = loss_and_gradients(plain, batch)
    calibrated_loss, calibrated = loss_and_gradients(ours, batch)
    assert torch.equal(loss, calibrated_loss)

    (norm_w, s_w), (norm_l, s_l) = side_gradient(plain, batch, 0), side_gradient(plain, batch, 1)
    sides = torch.stack([-s_w, s_l], 1).double()
    d_w, d_l = torch.linalg.lstsq(sides, gradient.double()[:, None]).solution[:, 0].tolist()
    assert torch.allclose(sides @ torch.tensor([d_w, d_l]).double(), gradient.double(), rtol=1e-3, atol=1e-5)
    alpha = math.sqrt((norm_l / norm_w).item() / (d_w / d_l))
    assert abs(math.log(alpha)) > 1e-2
    expected = sides @ torch.tensor([alpha * d_w, d_l / alpha]).double()
    assert torch.allclose(calibrated.double(), expected, rtol=1e-3, atol=1e-5)
    assert calibrator.ema["log_d_w"] == pytest.approx(math.log(abs(d_w)), abs=1e-3)
    assert calibrator.ema["log_s_l"] == pytest.approx(math.log(norm_l.item()), abs=1e-4)


def test_incentives_are_those_of_a_mean_over_pairs(build):
    calibrator = Calibrator()
    trainer = build(more={"calibrator": calibrator}, loss_type=["bco_pair"], beta=0.5)
    batch = next(iter(trainer.get_train_dataloader()))
    loss_and_gradients(trainer, batch)
    with torch.no_grad():
        zt = []
        for model in (trainer.model, trainer.ref_model):
            labels = batch["input_ids"].masked_fill(batch["completion_mask"] == 0, -100)
            inputs = {k: batch[k] for k in ("input_ids", "attention_mask")}
            zt.append(model(**inputs, labels=labels, fused_lm_head=True).log_probs.sum(1))
    ratio_w, ratio_l = (zt[0] - zt[1]).chunk(2)
    d_w, d_l = 0.5 * torch.sigmoid(-0.5 * ratio_w), 0.5 * torch.sigmoid(0.5 * ratio_l)
    assert calibrator.ema["log_d_w"] == pytest.approx(d_w.mean().log().item(), abs=1e-4)
    assert calibrator.ema["log_d_l"] == pytest.approx(d_l.mean().log().item(), abs=1e-4)


def test_the_averages_travel_in_the_checkpoint(build, tmp_path):
    whole = Calibrator(0.9)
    trainer = build(more={"calibrator": whole}, max_steps=4, save_strategy="steps", save_steps=2)
    trainer.train()
    checkpoint = tmp_path / "out" / "checkpoint-2"
    assert (checkpoint / STATE_FILE).exists()
    resumed = Calibrator(0.9)
    again = build(more={"calibrator": resumed}, max_steps=4)
    again.train(resume_from_checkpoint=str(checkpoint))
    assert resumed.state_dict() == whole.state_dict()
    (checkpoint / STATE_FILE).unlink()
    with pytest.raises(ConfigError, match="without calibration"):
        build(more={"calibrator": Calibrator()}).train(resume_from_checkpoint=str(checkpoint))


def test_evaluation_is_left_alone(build):
    calibrator = Calibrator()
    metrics = build(more={"calibrator": calibrator}).evaluate()
    assert metrics["eval_loss"] == build(DPOTrainer).evaluate()["eval_loss"]
    assert calibrator.ema is None


def test_scores_over_chosen_parameters(build):
    trainer = build(more={"scores": "full"}, max_steps=1)
    trainer.train()
    head = build(max_steps=1)
    head.train()
    assert steps(trainer)[0]["band/rho"] != steps(head)[0]["band/rho"]


def test_length_desensitised_losses_are_refused(build):
    with pytest.raises(ConfigError, match="ld_alpha"):
        build(ld_alpha=0.5)


def test_the_package_does_not_need_trl():
    code = (
        "import sys; sys.modules['trl'] = None\n"
        "import rcray, rcray.objectives, rcray.calibration, rcray.integrations\n"
        "try:\n    import rcray.integrations.trl\nexcept ImportError as error:\n    assert 'rcray[trl]' in str(error)\n"
        "else:\n    raise SystemExit('imported without trl')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_lora_model_is_measured_at_its_adapters(build, weights):
    from peft import LoraConfig, get_peft_model

    settings = LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")

    def adapted():
        return get_peft_model(copy.deepcopy(weights), settings)

    handed_over = {"model": copy.deepcopy(weights), "more": {"calibrator": Calibrator(), "peft_config": settings}}
    for trainer in (build(**handed_over), build(model=adapted(), more={"calibrator": Calibrator()})):
        names = {id(p): name for name, p in trainer.model.named_parameters()}
        measured = [names[id(p)] for p in trainer._score_parameters]
        assert measured and all("layers.1." in name and "lora_" in name for name in measured), "the last block's"
    trainer.train()
    assert any("band/rho" in entry for entry in trainer.state.log_history)
    with pytest.raises(ConfigError, match="scores='head' needs a trainable output head") as refused:
        build(model=adapted(), more={"scores": "head"})
    assert "calibration" not in str(refused.value) and "scores=adapters" in refused.value.fix


def test_steering_by_the_update_takes_the_trainers_optimizer(build):
    """Factors come from the first looks on; TRL's own reference is where training begins, so drift starts at zero."""
    steering = UpdateSteering()
    ours = build(more={"calibrator": steering}, max_steps=6, max_grad_norm=1.0, own_reference=False)
    plain = build(DPOTrainer, max_steps=6, max_grad_norm=1.0, own_reference=False)
    ours.train(), plain.train()
    assert steering.optimizer is not None and steering.steps == 6 and steering.clip_norm == 1.0
    assert steering.rule.horizon == 1.5 and steering.first_looks == 2  # a run of six steps
    assert steering.guard.acts and steering.guard.limit > 0.5  # half a nat per token, of several
    logged = steps(ours)
    assert logged[0]["loss"] == steps(plain)[0]["loss"] and logged[0]["update/log_alpha"] == 0.0
    assert abs(logged[0]["update/drift_w"]) < 1e-4 and not any(name.startswith("band/") for name in logged[0])
    assert any(abs(step["update/log_alpha"]) > 1e-2 for step in logged)
    assert logged[-1]["loss"] != steps(plain)[-1]["loss"]
    assert all(p.isfinite().all() for p in ours.model.parameters())


def test_steering_counts_optimizer_steps_not_micro_batches(build):
    steering = UpdateSteering()
    build(more={"calibrator": steering}, gradient_accumulation_steps=2, max_steps=2).train()
    assert steering.steps == 2 and steering.rule.looks == 1 and steering.realised.weight == 0


def test_steering_is_told_the_norm_of_the_accumulated_step(build):
    steering = UpdateSteering()
    settings = {"gradient_accumulation_steps": 2, "max_steps": 2, "max_grad_norm": 1e-3, "logging_steps": 1}
    trainer = build(more={"calibrator": steering}, **settings)
    trainer.train()
    (norm,) = [row["grad_norm"] for row in trainer.state.log_history if row.get("step") == 2 and "grad_norm" in row]
    assert steering.clip_norm == 1e-3 < steering.state_dict()["norm"] == pytest.approx(norm, rel=1e-5)


def test_steering_resumes_as_if_it_had_not_stopped(build, tmp_path):
    whole = UpdateSteering()
    trainer = build(more={"calibrator": whole}, max_steps=4, save_strategy="steps", save_steps=2)
    trainer.train()
    checkpoint = tmp_path / "out" / "checkpoint-2"
    resumed = UpdateSteering()
    again = build(more={"calibrator": resumed}, max_steps=4)
    again.train(resume_from_checkpoint=str(checkpoint))
    assert resumed.rule.state_dict() == whole.rule.state_dict() and resumed.foreseen == whole.foreseen
    assert resumed.guard == whole.guard
    for (name, theirs), mine in zip(trainer.model.named_parameters(), again.model.parameters(), strict=True):
        assert torch.equal(theirs, mine), name
    with pytest.raises(ConfigError, match="another kind"):
        build(more={"calibrator": Calibrator()}).train(resume_from_checkpoint=str(checkpoint))


def test_the_guard_of_several_processes_is_one():
    class Other:
        """A second process, whose two answers have 30 tokens."""

        def sum(self, tensor):
            return tensor + torch.tensor([30.0, 2.0]).double()

    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    assert _answer_tokens(mask, None) == 2.5
    assert _answer_tokens(mask, Other()) == 35 / 4
