"""TRL's DPOTrainer on pairs of token ids: the same model, batch and reference as rcray's step."""

import tempfile
from collections.abc import Sequence
from typing import Any

from rcray.data.encode import EncodedPair
from rcray.models.reference import ReferenceLogps

BETA = 0.1


def trl_trainer(model: Any, vocabulary: int, pairs: int, learning_rate: float) -> Any:
    """A trainer of this model that takes batches of token ids and needs no tokenizer for them."""
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast
    from trl import DPOConfig, DPOTrainer

    words = {f"w{i}": i for i in range(vocabulary - 3)} | {
        name: vocabulary - 1 - i for i, name in enumerate(("[unk]", "[pad]", "[eos]"))
    }
    raw = Tokenizer(models.WordLevel(words, unk_token="[unk]"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="[unk]", pad_token="[pad]", eos_token="[eos]")
    options: dict[str, Any] = {"use_cpu": True, "bf16": False, "report_to": "none", "disable_tqdm": True}
    trainer = DPOTrainer(
        model,
        args=DPOConfig(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=pairs,
            beta=BETA,
            max_length=None,
            precompute_ref_log_probs=True,
            gradient_checkpointing=False,  # on by default there
            learning_rate=learning_rate,
            **options,
        ),
        train_dataset=Dataset.from_list([{"prompt": "w1", "chosen": " w2", "rejected": " w3"}]),
        processing_class=tokenizer,
    )
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def trl_batch(trainer: Any, pairs: Sequence[EncodedPair], reference: ReferenceLogps) -> dict[str, Any]:
    """What its own collator makes of the pairs, with the reference's cached likelihoods."""
    batch: dict[str, Any] = trainer.data_collator(
        [
            {
                "prompt_ids": list(pair.prompt),
                "chosen_ids": list(pair.chosen),
                "rejected_ids": list(pair.rejected),
                "ref_chosen_logps": float(reference.sum_w[i]),
                "ref_rejected_logps": float(reference.sum_l[i]),
            }
            for i, pair in enumerate(pairs)
        ]
    )
    return batch
