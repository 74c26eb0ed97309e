"""The synthetic pairs: a function of (seed, split, i), never equal, never shared between splits."""

import hashlib
import random

import pytest

from rcray.config.data import DataConfig
from rcray.data.pairs import load_pairs
from rcray.data.synthetic import LEXICON, WRONG_SHARE, corrupted, generate, warm_up_texts

DIFFICULTIES = tuple(WRONG_SHARE)


def rows(count=50, difficulty="medium", seed=0, split="train"):
    return list(generate(count, difficulty=difficulty, seed=seed, split=split))


def test_golden():
    """The rows are not part of a run_id: when they change, SEMANTICS_VERSION must be raised."""
    text = repr([rows(20, difficulty, seed=3) for difficulty in DIFFICULTIES])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "c0667d6baa715300"


def test_a_row_does_not_depend_on_how_many_are_asked_for_nor_on_the_global_generator():
    random.seed(1)
    first = rows(5)
    random.seed(2)
    assert rows(50)[:5] == first


@pytest.mark.parametrize("change", [{"seed": 1}, {"split": "held-out"}])
def test_seed_and_split_matter(change):
    assert not set(rows()) & set(rows(**change))


def test_difficulty_changes_the_rejected_answer_alone():
    easy, hard = rows(difficulty="easy"), rows(difficulty="hard")
    assert [row[:2] for row in easy] == [row[:2] for row in hard]
    assert [row[2] for row in easy] != [row[2] for row in hard]


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_chosen_is_right_and_rejected_is_not(difficulty):
    for prompt, chosen, rejected in rows(500, difficulty):
        command, *phrase = prompt.split()
        assert command == "render"
        assert chosen.split() == [LEXICON[word] for word in phrase]
        assert rejected != chosen
        assert len(rejected.split()) == len(phrase)
        assert set(rejected.split()) <= set(LEXICON.values())


def test_harder_means_fewer_wrong_words():
    def share(difficulty):
        pairs = rows(500, difficulty)
        wrong = [a != b for _, chosen, rejected in pairs for a, b in zip(chosen.split(), rejected.split(), strict=True)]
        return sum(wrong) / len(wrong)

    shares = {difficulty: share(difficulty) for difficulty in DIFFICULTIES}
    assert shares["easy"] > shares["medium"] > shares["hard"] > 1 / 8
    assert shares["easy"] == pytest.approx(WRONG_SHARE["easy"], abs=0.03)


def test_the_lexicon_is_one_to_one():
    assert len(set(LEXICON.values())) == len(LEXICON) == 48


def test_a_corrupted_word_is_another_word():
    rng = random.Random(0)
    word = next(iter(LEXICON.values()))
    words = {corrupted(word, rng) for _ in range(2000)}
    assert words == set(LEXICON.values()) - {word}


def test_load_pairs_names_rows_and_keeps_splits_apart():
    splits = load_pairs(DataConfig(train_pairs=200, eval_pairs=100))
    train, held_out = list(splits.train), list(splits.held_out)
    assert [pair.row for pair in train[:2]] == ["train/0", "train/1"]
    assert held_out[-1].row == "held-out/99"
    assert (len(train), len(held_out)) == (200, 100)
    assert not {pair.prompt for pair in train} & {pair.prompt for pair in held_out}
    assert list(splits.train) == train, "a split may be read again"


def test_warm_up_mixes_right_and_flawed_answers_and_is_no_training_row():
    texts = list(warm_up_texts(100, seed=0))
    right = [answer.split() == [LEXICON[word] for word in prompt.split()[1:]] for prompt, answer in texts]
    assert sum(right) == 50
    assert not {prompt for prompt, _ in texts} & {row[0] for row in rows(100)}
