"""Text that is no answer: empty, garbled, turning in circles, or in another language than the chosen answer.

A language is told by its script, and within a script by its commonest words where they are there to count: enough to
see that an English assistant began to speak French or Chinese, too little to name what it speaks.
"""

import unicodedata
from collections import Counter
from collections.abc import Sequence

EMPTY, GARBLED, LOOP, LANGUAGE = "empty", "garbled", "loop", "other language"

_RUN = 3  # tokens of a run whose return is repetition
_TURNS = 3  # times that a passage has to stand in a row at the end
_LOOP_TOKENS = 12  # that these take together at least: "ha ha ha" is no loop
_REPETITIVE = 0.6  # share of returning runs from which a text is a loop, wherever it turns
_LETTERS = 8  # fewer say nothing about a script
_COMMON = {
    "English": "the of and to in is that it for you with are this be not have",
    "German": "der die und das ist nicht ein eine zu mit den von es sich auf für",
    "French": "le la les des est une que qui dans pour pas vous avec sur ce et",
    "Spanish": "el los las que una por con para como pero más este su es y del",
    "Italian": "il che di una per non con sono gli della nel questo anche ma è le",
    "Portuguese": "que uma para com não os as dos mais como mas você é do da em",
    "Dutch": "het een van en dat niet zijn met voor op aan ook maar deze wordt de",
}
_LANGUAGES = {name: frozenset(words.split()) for name, words in _COMMON.items()}
_LEAST_WORDS = 4  # common words of a language before a text counts as written in it


def repetition(ids: Sequence[int]) -> float:
    """Share of the runs of three tokens that stood in the text before."""
    runs = [tuple(ids[i : i + _RUN]) for i in range(len(ids) - _RUN + 1)]
    return 1 - len(set(runs)) / len(runs) if runs else 0.0


def flags_of(text: str, ids: Sequence[int], chosen: str) -> tuple[str, ...]:
    """What is wrong with an answer to a prompt whose chosen answer is known."""
    if not any(character.isalnum() for character in text):
        return (EMPTY,)
    flags = []
    if is_garbled(text):
        flags.append(GARBLED)
    if turns_in_circles(ids):
        flags.append(LOOP)
    if speaks_another_language(text, chosen):
        flags.append(LANGUAGE)
    return tuple(flags)


def is_garbled(text: str) -> bool:
    """Whether tokens make no characters, or characters that no text has: halves of them, control and private ones."""
    return any(c == "\ufffd" or (not c.isspace() and unicodedata.category(c) in ("Cc", "Cn", "Co")) for c in text)


def turns_in_circles(ids: Sequence[int]) -> bool:
    """Whether it ends in one passage again and again, or returns to what it said for most of its length."""
    ids = list(ids)
    for period in range(1, len(ids) // _TURNS + 1):
        tail = ids[-max(_TURNS * period, _LOOP_TOKENS) :]
        if len(tail) >= _LOOP_TOKENS and tail[period:] == tail[:-period]:
            return True
    return len(ids) >= 2 * _LOOP_TOKENS and repetition(ids) > _REPETITIVE


def speaks_another_language(text: str, chosen: str) -> bool:
    """Whether script or commonest words are clearly those of another language than the chosen answer's."""
    scripts = script_of(text), script_of(chosen)
    if None not in scripts and scripts[0] != scripts[1]:
        return True
    languages = language_of(text), language_of(chosen)
    return None not in languages and languages[0] != languages[1]


def script_of(text: str) -> str | None:
    """The script of most letters, as Unicode names it; None for too few letters."""
    letters = [character for character in text if character.isalpha()]
    if len(letters) < _LETTERS:
        return None
    counts = Counter(unicodedata.name(character, "?").split()[0] for character in letters)
    return counts.most_common(1)[0][0]


def language_of(text: str) -> str | None:
    """The language whose commonest words stand in the text most often, where that is clear."""
    words = [word.strip(".,;:!?\"'()[]").lower() for word in text.split()]
    counts = Counter({name: sum(word in common for word in words) for name, common in _LANGUAGES.items()})
    (first, most), (_, next_most) = counts.most_common(2)
    return first if most >= _LEAST_WORDS and most > 2 * next_most else None
