"""Text pairs to token ids: the answer is the suffix of prompt + answer, and every loss is counted by row."""

import pytest

from rcray.config.data import DataConfig
from rcray.data.encode import render
from rcray.data.pairs import Pair, Turn
from rcray.errors import EXIT_USAGE, DataError
from tests.small_runs import encode_pairs

WITH_SYSTEM = (
    "{% if messages[0]['role'] != 'system' %}<|system|>You are helpful.<|end|>{% endif %}"
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
STRIPPING = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] | trim }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
#: No special token between prompt and answer: the tokenizer is free to merge across the border.
BORDERLESS = (
    "{% for m in messages %}{{ m['content'] }}{% if m['role'] == 'user' %}>{% else %}<|end|>{% endif %}{% endfor %}"
)
#: The generation prompt says more than the rendered turn: the two disagree after `<|assistant|>`.
THINKING = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>let me think{% endif %}"
)
LONG = DataConfig()


def pair(chosen, rejected, prompt="what is it", row="train/0"):
    return Pair(row, prompt, chosen, rejected)


def encode_one(tokenizer, one, config=LONG):
    encoded = encode_pairs([one], tokenizer, config)
    return encoded.pairs[0], encoded.report


def assert_is_suffix(tokenizer, text, ids):
    """Prompt + answer is what the template renders, and one prompt precedes both."""
    assert list(ids.prompt + ids.chosen) == render(tokenizer, text.prompt, text.chosen)
    assert list(ids.prompt + ids.rejected) == render(tokenizer, text.prompt, text.rejected)


@pytest.mark.parametrize("template", [None, WITH_SYSTEM, STRIPPING], ids=["plain", "system block", "stripping"])
def test_the_answer_is_the_suffix(make_tokenizer, template):
    tokenizer = make_tokenizer(template) if template else make_tokenizer()
    text = pair("a good answer", "a bad one")
    ids, report = encode_one(tokenizer, text)
    assert_is_suffix(tokenizer, text, ids)
    assert list(ids.prompt) == render(tokenizer, text.prompt)
    assert tokenizer.decode(ids.chosen) == "a good answer<|end|>"
    assert tokenizer.decode(ids.rejected) == "a bad one<|end|>"
    assert (report.kept, report.rows("realigned"), report.rows("truncated")) == (1, [], [])


def test_a_default_system_block_stands_in_the_prompt_once(make_tokenizer):
    tokenizer = make_tokenizer(WITH_SYSTEM)
    ids, _ = encode_one(tokenizer, pair("yes", "no"))
    system = tokenizer.convert_tokens_to_ids("<|system|>")
    assert ids.prompt.count(system) == 1
    assert system not in ids.chosen + ids.rejected


def test_a_stripping_template_makes_answers_equal(make_tokenizer):
    pairs = [pair("same", "  same\n", row="train/0"), pair(" yes ", "no", row="train/1")]
    encoded = encode_pairs(pairs, make_tokenizer(STRIPPING), LONG)
    assert encoded.report.rows("dropped equal") == ["train/0"]
    assert [p.row for p in encoded.pairs] == ["train/1"]
    kept = encode_pairs(pairs, make_tokenizer(), LONG)
    assert kept.report.rows("dropped equal") == [], "a template that keeps whitespace keeps the difference"


@pytest.mark.parametrize(("chosen", "rejected"), [("xa", "xb"), ("xa", "yb"), ("ya", "xb")])
def test_a_merge_across_the_border_moves_the_cut_for_both(make_tokenizer, chosen, rejected):
    tokenizer = make_tokenizer(BORDERLESS, (">x",) * 20, split_words=False)
    text = pair(chosen, rejected, prompt="qq")
    assert render(tokenizer, "qq", "xa")[: len(render(tokenizer, "qq"))] != render(tokenizer, "qq"), "it must merge"
    ids, report = encode_one(tokenizer, text)
    assert report.rows("realigned") == ["train/0"]
    assert_is_suffix(tokenizer, text, ids)
    assert tokenizer.decode(ids.prompt) == "qq"
    assert tokenizer.decode(ids.chosen) == f">{chosen}<|end|>"
    assert tokenizer.decode(ids.rejected) == f">{rejected}<|end|>"


def test_a_generation_prompt_that_the_answer_does_not_repeat(make_tokenizer):
    tokenizer = make_tokenizer(THINKING)
    text = pair("yes", "no")
    ids, report = encode_one(tokenizer, text)
    assert report.rows("realigned") == ["train/0"]
    assert_is_suffix(tokenizer, text, ids)
    assert tokenizer.decode(ids.prompt).endswith("<|assistant|>")
    assert tokenizer.decode(ids.chosen) == "yes<|end|>"


# -- dialogues, with tokenizers saved and loaded as any user's

#: As Mistral's: the answer follows a space, turns are trimmed, roles must alternate.
ALTERNATING = (
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m['role'] == 'user' %}[INST] {{ m['content'] | trim }} [/INST]{% else %} {{ m['content'] | trim }}<|end|>"
    "{% endif %}{% endfor %}"
)
#: As templates that hide the thoughts of earlier answers: a turn is rendered by whether it is the last.
REWRITING = (
    "{% if messages[-1]['role'] == 'assistant' %}<|system|>answered{% else %}<|system|>open{% endif %}"
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
DIALOGUE = (Turn("user", "what is it "), Turn("assistant", " a bird\n"), Turn("user", "are you sure"))


@pytest.fixture
def saved(make_tokenizer, tmp_path):
    """Tokenizers as they come from disk, template included."""
    from transformers import AutoTokenizer

    def make(template):
        make_tokenizer(template, ("what is it", "are you sure", "yes i am", " [/INST]")).save_pretrained(tmp_path)
        return AutoTokenizer.from_pretrained(tmp_path)

    return make


def naive(tokenizer, answer):
    """What many trainers do: the answer as a lone assistant turn."""
    return tokenizer.apply_chat_template([{"role": "assistant", "content": answer}], return_dict=False)


@pytest.mark.parametrize(
    ("template", "end"),
    [(WITH_SYSTEM, " yes i am<|end|>"), (STRIPPING, "yes i am<|end|>"), (ALTERNATING, " yes i am<|end|>")],
    ids=["system block", "stripping", "alternating"],
)
def test_the_answer_to_a_dialogue_is_the_suffix(saved, template, end):
    tokenizer = saved(template)
    text = Pair("chat:1", DIALOGUE, " yes i am", "no i am not")
    ids, report = encode_one(tokenizer, text)
    assert_is_suffix(tokenizer, text, ids)
    assert tokenizer.decode(ids.chosen) == end
    assert tokenizer.decode(ids.prompt).count("a bird") == 1, "earlier answers are prompt"
    assert (report.kept, report.rows("realigned")) == (1, [])


def test_naive_tokenisation_is_wrong_where_ours_is_right(saved):
    tokenizer = saved(WITH_SYSTEM)
    ids, _ = encode_one(tokenizer, Pair("chat:1", DIALOGUE, "yes i am", "no"))
    assert "You are helpful." in tokenizer.decode(naive(tokenizer, "yes i am")), "scored as part of every answer"
    assert tokenizer.decode(ids.chosen) == "yes i am<|end|>"
    assert tokenizer.decode(ids.prompt + ids.chosen).count("You are helpful.") == 1

    tokenizer = saved(STRIPPING)
    ids, _ = encode_one(tokenizer, Pair("chat:1", DIALOGUE, " yes i am\n", "no"))
    alone = tokenizer(" yes i am\n<|end|>")["input_ids"]
    assert list(ids.chosen) != alone, "the raw text has whitespace that the model never sees"
    assert list(ids.prompt + ids.chosen) == render(tokenizer, DIALOGUE, "yes i am")

    tokenizer = saved(ALTERNATING)
    with pytest.raises(Exception, match="roles must alternate"):
        naive(tokenizer, "yes i am")
    assert encode_one(tokenizer, Pair("chat:1", DIALOGUE, "yes i am", "no"))[1].kept == 1


def test_a_dialogue_that_the_template_refuses_is_counted(saved):
    twice = (Turn("user", "what is it"), Turn("user", "are you sure"))
    texts = [Pair("chat:1", twice, "yes", "no"), Pair("chat:2", DIALOGUE, "yes", "no")]
    encoded = encode_pairs(texts, saved(ALTERNATING), LONG)
    assert encoded.report.rows("dropped by template") == ["chat:1"]
    assert encoded.report.first_reason() == "chat:1: the chat template refuses it: roles must alternate"
    with pytest.raises(DataError, match="chat:1: the chat template refuses it"):
        encode_pairs(texts, saved(ALTERNATING), DataConfig(bad_rows="fail"))


def test_a_template_that_rewrites_the_prompt_has_no_suffix_to_score(saved):
    """Cutting where the two part would score the whole dialogue as an answer."""
    with pytest.raises(DataError, match=r"1 dropped by template \(chat:1\).*differently once it is answered"):
        encode_pairs([Pair("chat:1", DIALOGUE, "yes", "no")], saved(REWRITING), LONG)


def test_a_long_dialogue_keeps_its_end(saved):
    tokenizer = saved(STRIPPING)
    long = (*DIALOGUE[:2], Turn("user", "so " * 40 + "which is it"))
    ids, report = encode_one(
        tokenizer, Pair("chat:1", long, "yes", "no"), DataConfig(max_length=40, max_prompt_length=24)
    )
    assert report.rows("truncated") == ["chat:1"]
    assert tokenizer.decode(ids.prompt).endswith("which is it<|end|><|assistant|>")
    assert len(ids.prompt) == 24


def test_plain_text_is_one_user_turn():
    assert Pair("a", "hello", "x", "y") == Pair("a", (Turn("user", "hello"),), "x", "y")


# -- truncation


@pytest.fixture
def tokenizer(make_tokenizer):
    return make_tokenizer()


def lengths(ids):
    return len(ids.prompt), len(ids.chosen), len(ids.rejected)


def test_what_fits_is_left_alone_however_long_its_prompt(tokenizer):
    text = pair("yes", "no", prompt="abcdefghij" * 3)
    whole, _ = encode_one(tokenizer, text)
    prompt, chosen, _ = lengths(whole)
    config = DataConfig(max_length=prompt + chosen, max_prompt_length=8)
    same, report = encode_one(tokenizer, text, config)
    assert same == whole
    assert report.rows("truncated") == []


def test_truncation_keeps_the_end_of_the_prompt(tokenizer):
    text = pair("yes", "no", prompt="abcdefghij" * 3)
    whole, _ = encode_one(tokenizer, text)
    prompt, chosen, _ = lengths(whole)
    cut, report = encode_one(tokenizer, text, DataConfig(max_length=prompt + chosen - 1, max_prompt_length=8))
    assert report.rows("truncated") == ["train/0"]
    assert cut.prompt == whole.prompt[-8:]
    assert (cut.chosen, cut.rejected) == (whole.chosen, whole.rejected), "there is room for both"


@pytest.mark.parametrize("longer", ["chosen", "rejected"])
def test_the_budget_is_the_longer_answers(tokenizer, longer):
    """The shorter side would fit with its whole prompt; it still gets the prompt of the other."""
    answers = {"chosen": "zx", "rejected": "zy"} | {longer: "vwxyz" * 4}
    text = pair(**answers, prompt="abcdefghij")
    whole, _ = encode_one(tokenizer, text)
    room = 12
    config = DataConfig(max_length=6 + room, max_prompt_length=6)
    assert len(whole.prompt) + 3 <= config.max_length < len(whole.prompt) + len(getattr(whole, longer))
    cut, report = encode_one(tokenizer, text, config)
    shorter = "rejected" if longer == "chosen" else "chosen"
    assert cut.prompt == whole.prompt[-6:]
    assert getattr(cut, longer) == getattr(whole, longer)[:room], "an answer keeps its beginning"
    assert getattr(cut, shorter) == getattr(whole, shorter)
    assert report.rows("truncated") == ["train/0"]


def test_a_short_prompt_is_not_cut_for_a_long_answer(tokenizer):
    text = pair("a" * 50, "b" * 50, prompt="q")
    whole, _ = encode_one(tokenizer, text)
    cut, _ = encode_one(tokenizer, text, DataConfig(max_length=20, max_prompt_length=10))
    assert cut.prompt == whole.prompt
    assert len(cut.prompt) + len(cut.chosen) == len(cut.prompt) + len(cut.rejected) == 20


def test_no_pair_is_longer_than_allowed(tokenizer):
    config = DataConfig(max_length=16, max_prompt_length=7)
    texts = [
        pair("a" * i, "b" * j, prompt="q" * k, row=f"{i},{j},{k}") for i in (1, 9, 30) for j in (2, 30) for k in (1, 30)
    ]
    for ids in encode_pairs(texts, tokenizer, config).pairs:
        prompt, chosen, rejected = lengths(ids)
        assert prompt + max(chosen, rejected) <= 16, ids.row


def test_equal_once_cut_is_dropped(tokenizer):
    same_start = "abcdefgh" * 3
    texts = [pair(same_start + "x", same_start + "y", row="train/3"), pair("p", "q", row="train/4")]
    encoded = encode_pairs(texts, tokenizer, DataConfig(max_length=20, max_prompt_length=8))
    assert encoded.report.rows("dropped equal") == ["train/3"]
    assert [ids.row for ids in encoded.pairs] == ["train/4"]


# -- the account


def test_the_report_counts_and_names_rows(tokenizer):
    texts = [
        pair("yes", "no", row="train/0"),
        pair("", "no", row="train/1"),
        pair("yes", " \n\t", row="train/2"),
        pair("same", "same", row="train/3"),
        pair("long " * 40, "longer " * 40, row="train/4"),
        *(pair("", "", row=f"train/{i}") for i in range(5, 9)),
    ]
    encoded = encode_pairs(texts, tokenizer, DataConfig(max_length=40, max_prompt_length=20))
    report = encoded.report
    assert [ids.row for ids in encoded.pairs] == ["train/0", "train/4"]
    assert report.kept == 2
    assert report.rows("dropped empty") == ["train/1", "train/2", *(f"train/{i}" for i in range(5, 9))]
    assert report.rows("dropped equal") == ["train/3"]
    assert report.rows("truncated") == ["train/4"]
    assert report.summary() == (
        "2 pairs kept; 6 dropped empty (train/1, train/2, train/5, …); 1 dropped equal (train/3); 1 truncated (train/4)"
    )


@pytest.mark.parametrize("texts", [[], [pair("", "no", row="held-out/7")], [pair("x", "x", row="held-out/7")]])
def test_nothing_left_is_an_error_that_names_rows(tokenizer, texts):
    with pytest.raises(DataError) as caught:
        encode_pairs(texts, tokenizer, LONG)
    assert "no usable pair" in str(caught.value)
    assert "the source has no row" in str(caught.value) or texts
    assert caught.value.exit_code == EXIT_USAGE
    for text in texts:
        assert text.row in str(caught.value)


def test_the_fingerprint_shows_data_lengths_template_and_tokenizer(make_tokenizer, tokenizer):
    texts = [pair("yes it is", "no it is not", prompt="abcdefghij" * 3)]
    prints = {
        "as is": encode_pairs(texts, tokenizer, LONG).fingerprint(),
        "data": encode_pairs([pair("yes it was", "no it is not")], tokenizer, LONG).fingerprint(),
        "lengths": encode_pairs(texts, tokenizer, DataConfig(max_length=30, max_prompt_length=9)).fingerprint(),
        "template": encode_pairs(texts, make_tokenizer(WITH_SYSTEM), LONG).fingerprint(),
        "tokenizer": encode_pairs(texts, make_tokenizer(corpus=("it is not",) * 9), LONG).fingerprint(),
    }
    assert len(set(prints.values())) == len(prints)
    assert encode_pairs(texts, tokenizer, LONG).fingerprint() == prints["as is"]


def test_tokens_of_a_pair(tokenizer):
    ids, _ = encode_one(tokenizer, pair("yes", "no"))
    assert ids.tokens == 2 * len(ids.prompt) + len(ids.chosen) + len(ids.rejected)
