from rcray.config import RunConfig


def test_the_label_names_the_method_where_it_is_not_the_usual_one():
    def label(**model):
        return RunConfig.model_validate({"model": model, "objective": "dpo"}).label

    assert label(name="tiny-neox") == "tiny-neox · dpo · no RC"
    assert label(name="tiny-neox", method="lora") == "tiny-neox (lora) · dpo · no RC"
    assert label(name="pythia-2.8b") == "pythia-2.8b · dpo · no RC"  # QLoRA is the preset's own method
    assert label(name="pythia-2.8b", method="lora") == "pythia-2.8b (lora) · dpo · no RC"
