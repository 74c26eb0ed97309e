"""A synthetic language in which preference dynamics can be watched in seconds.

A prompt is a phrase of made-up source words. The right answer renders it word by word in a second made-up language;
the rejected answer has some words wrong. Both share most of their tokens, as real pairs do, so their scores are
strongly correlated and the three pathways of the paper all occur.
"""

import random
from collections.abc import Iterator
from typing import Literal

Difficulty = Literal["easy", "medium", "hard"]

VERSION = 1  # raised with SEMANTICS_VERSION when the rows change; part of the encoded cache's key

#: Share of words that are wrong in a rejected answer: fewer wrong words, stronger coupling, harder to tell apart.
WRONG_SHARE: dict[str, float] = {"easy": 0.6, "medium": 0.3, "hard": 0.15}
PHRASE_WORDS = 8
LEXICON_SIZE = 48


def _words(onsets: str, rimes: tuple[str, ...]) -> list[str]:
    return [onset + rime for rime in rimes for onset in onsets][:LEXICON_SIZE]


#: Source word -> its only right rendering. Fixed: the language is the same whatever the seed of the pairs.
_SOURCE = _words("bdfgklmnprst", ("ano", "ilu", "ema", "oti"))
_TARGET = _words("vzhjwcqxbdfg", ("eth", "ork", "usk", "iln"))
random.Random("lexicon").shuffle(_TARGET)
LEXICON: dict[str, str] = dict(zip(_SOURCE, _TARGET, strict=True))


def generate(count: int, *, difficulty: Difficulty, seed: int, split: str) -> Iterator[tuple[str, str, str]]:
    """Yields (prompt, chosen, rejected); row i depends on (seed, split, i) alone, not on how many are asked for."""
    for i in range(count):
        rng = random.Random(f"{seed}/{split}/{i}")
        phrase = rng.choices(_SOURCE, k=PHRASE_WORDS)
        right = [LEXICON[word] for word in phrase]
        wrong = [corrupted(word, rng) if rng.random() < WRONG_SHARE[difficulty] else word for word in right]
        if wrong == right:  # a pair must differ
            spot = rng.randrange(PHRASE_WORDS)
            wrong[spot] = corrupted(right[spot], rng)
        yield "render " + " ".join(phrase), " ".join(right), " ".join(wrong)


def corrupted(word: str, rng: random.Random) -> str:
    """Some other word of the target language."""
    return rng.choice([other for other in _TARGET if other != word])


def warm_up_texts(count: int, seed: int) -> Iterator[tuple[str, str]]:
    """(prompt, answer) for the SFT that precedes preference training: right and flawed answers mixed.

    A model warmed up on both gives both a fair likelihood, the state in which the paper's dynamics begin.
    """
    for i, (prompt, chosen, rejected) in enumerate(generate(count, difficulty="medium", seed=seed, split="warm-up")):
        yield prompt, chosen if i % 2 else rejected
