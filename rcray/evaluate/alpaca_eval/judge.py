"""Judging: every match put before the judge, every verdict kept on disk the moment it arrives.

judgements.jsonl   one line per call that was answered, by the content of what was asked; a job that is killed goes on
                   where it stopped, and the same match is never paid for twice
"""

import hashlib
import json
import math
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from rcray.config.alpaca_eval import JudgeConfig
from rcray.errors import ConfigError, StoreError
from rcray.evaluate.alpaca_eval.endpoint import CallFailedError, Reply, call, require_key
from rcray.evaluate.alpaca_eval.outputs import Match

PROMPT_VERSION = 1  # raised with the text below
_SYSTEM = (
    "You compare two answers to one instruction and say which one a careful reader would rather have received. Judge "
    "what is said: whether it is right, does what was asked, and is clear. Neither length nor position is a merit."
)
_QUESTION = """Instruction:
<instruction>
{instruction}
</instruction>

Answer A:
<answer_a>
{first}
</answer_a>

Answer B:
<answer_b>
{second}
</answer_b>

Which answer is better? Reply with one letter, A or B, and nothing else."""
_TOKENS_AROUND = 150  # of the prompt itself, for the estimate
_CHARACTERS_PER_TOKEN = 4  # English text, roughly


@dataclass(frozen=True)
class Ask:
    """One call: a match in one order."""

    match: int
    key: str
    candidate_first: bool
    first: str
    second: str


@dataclass(frozen=True)
class Judgement:
    """One verdict: how far the candidate is preferred, from 0 to 1; None where no usable answer came."""

    match: int
    candidate_first: bool
    preference: float | None
    error: str = ""


@dataclass(frozen=True)
class JudgingCost:
    """What a job will send, and cost where prices are known."""

    calls: int
    cached: int
    tokens_in: int
    tokens_out: int
    cost: float | None

    def describe(self) -> str:
        """One line for a person."""
        money = "unknown (set judge.price_in and judge.price_out)" if self.cost is None else f"{self.cost:.2f}"
        return (
            f"{self.calls} calls ({self.cached} more are cached), about {self.tokens_in:,} tokens read and "
            f"{self.tokens_out:,} written; estimated cost {money}"
        )


def asks(matches: Sequence[Match], config: JudgeConfig) -> list[Ask]:
    """The calls a mode makes of the matches: one or two orders each."""
    calls = []
    for i, match in enumerate(matches):
        if config.judging.orders == "both":
            orders = [True, False]
        elif config.judging.orders == "second":
            orders = [False]
        else:
            orders = [random.Random(f"order/{match.instruction}").random() < 0.5]
        for candidate_first in orders:
            first, second = match.candidate, match.reference
            if not candidate_first:
                first, second = second, first
            asked = [config.base_url, config.model, config.judging.vote, PROMPT_VERSION]
            key = _key([*asked, match.instruction, first, second])
            calls.append(Ask(i, key, candidate_first, first, second))
    return calls


def judging_cost(matches: Sequence[Match], config: JudgeConfig, cache: Path) -> JudgingCost:
    """What judging would send now, less what is on disk."""
    known = Cache(cache).read()
    wanted = {ask.key: ask for ask in asks(matches, config)}
    todo = [ask for ask in wanted.values() if ask.key not in known]
    characters = sum(len(matches[ask.match].instruction) + len(ask.first) + len(ask.second) for ask in todo)
    tokens_in = characters // _CHARACTERS_PER_TOKEN + _TOKENS_AROUND * len(todo)
    tokens_out = len(todo)
    cost = None
    if config.price_in is not None and config.price_out is not None:
        cost = (tokens_in * config.price_in + tokens_out * config.price_out) / 1e6
    return JudgingCost(len(todo), len(wanted) - len(todo), tokens_in, tokens_out, cost)


def judge(
    matches: Sequence[Match],
    config: JudgeConfig,
    cache: Path,
    *,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Judgement]:
    """A judgement per match and order. Answered calls are on disk; failed ones are tried again by the next job.

    Raises:
        ConfigError: the key is missing, or the estimate is above `max_cost`.
        EndpointRefusedError: every further call would be refused, too.
    """
    spending = judging_cost(matches, config, cache)
    if config.max_cost is not None and spending.cost is not None and spending.cost > config.max_cost:
        raise ConfigError(
            f"judge: {spending.describe()}, above judge.max_cost {config.max_cost:g}",
            fix="raise judge.max_cost, or set a limit on the instructions",
        )
    wanted = asks(matches, config)
    kept = Cache(cache)
    with kept.writing():
        known = kept.read()
        todo = {ask.key: ask for ask in wanted if ask.key not in known}
        if todo:
            require_key(config)
        failed = _ask_all(list(todo.values()), matches, config, kept, known, on_progress)
    return [
        Judgement(
            ask.match,
            ask.candidate_first,
            None if ask.key in failed else _of_candidate(known[ask.key]["first"], ask.candidate_first),
            failed.get(ask.key, ""),
        )
        for ask in wanted
    ]


def _ask_all(
    todo: Sequence[Ask],
    matches: Sequence[Match],
    config: JudgeConfig,
    kept: "Cache",
    known: dict[str, dict[str, Any]],
    on_progress: Callable[[int, int], None] | None,
) -> dict[str, str]:
    """Calls in parallel; fills `known`, returns the errors of what failed."""
    failed: dict[str, str] = {}
    lock = threading.Lock()
    stopping = threading.Event()
    answered = 0

    def pause(seconds: float) -> None:
        if stopping.wait(seconds):
            raise CallFailedError("the job was stopped")

    def work(ask: Ask) -> None:
        nonlocal answered
        try:
            verdict, reply = _verdict(ask, matches[ask.match].instruction, config, pause)
        except CallFailedError as error:
            with lock:
                failed[ask.key] = str(error)
        else:
            usage = {"tokens_in": reply.tokens_in, "tokens_out": reply.tokens_out}
            record = {"key": ask.key, "first": verdict, "text": reply.text[:20], **usage}
            with lock:
                kept.append(record)
                known[ask.key] = record
        with lock:
            answered += 1
            if on_progress:
                on_progress(answered, len(todo))

    with ThreadPoolExecutor(config.concurrency, thread_name_prefix="judge") as pool:
        running = [pool.submit(work, ask) for ask in todo]
        try:
            done, _ = wait(running, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
        except BaseException:
            stopping.set()
            pool.shutdown(wait=True, cancel_futures=True)  # what is under way may finish and be kept
            raise
    return failed


def _verdict(ask: Ask, instruction: str, config: JudgeConfig, pause: Callable[[float], None]) -> tuple[float, Reply]:
    question = _QUESTION.format(instruction=instruction, first=ask.first, second=ask.second)
    messages = [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": question}]
    last = ""
    for _ in range(2):  # a judge that rambles once may answer when asked again; twice, it will not
        reply = call(config, messages, sleep=pause)
        vote = read_vote(reply, config.judging.vote)
        if vote is not None:
            return vote, reply
        last = reply.text[:40]
    lacks = " with log-probabilities of A and B" if config.judging.vote == "logprobs" else ""
    raise CallFailedError(f"not a verdict{lacks}: {last!r}")


def read_vote(reply: Reply, vote: str) -> float | None:
    """How far answer A is preferred, from 0 to 1; None if the reply is no verdict.

    Log-probabilities give P(A) / (P(A) + P(B)); a text gives 1, 0, or 1/2 for a tie.
    """
    if vote == "logprobs":
        weight = {"A": 0.0, "B": 0.0}
        for token, logprob in reply.top_logprobs.items():
            letter = token.strip().upper()
            if letter in weight and not math.isnan(logprob):
                weight[letter] += math.exp(min(logprob, 0.0))
        total = weight["A"] + weight["B"]
        return weight["A"] / total if total > 0 else None
    word = reply.text.strip().strip("*.\"'()[]: ").upper()
    if word in ("TIE", "EQUAL", "BOTH", "NEITHER"):
        return 0.5
    for letter, value in (("A", 1.0), ("B", 0.0)):
        if word in (letter, f"ANSWER {letter}"):
            return value
    return None


def _of_candidate(first: float, candidate_first: bool) -> float:
    return first if candidate_first else 1 - first


def _key(content: list[Any]) -> str:
    return hashlib.sha256(json.dumps(content, ensure_ascii=True).encode()).hexdigest()[:32]


class Cache:
    """Verdicts on disk, a line each. A line that a kill cut short is dropped; one writer at a time."""

    def __init__(self, path: Path):
        self.path = path

    def read(self) -> dict[str, dict[str, Any]]:
        """Verdicts by key."""
        verdicts: dict[str, dict[str, Any]] = {}
        if not self.path.is_file():
            return verdicts
        for line in self.path.read_bytes().split(b"\n"):
            try:
                record = json.loads(line)
                verdicts[record["key"]] = {**record, "first": float(record["first"])}
            except (ValueError, LookupError, TypeError):
                continue
        return verdicts

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Holds the file for one job."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            held = FileLock(f"{self.path}.lock", timeout=0).acquire()
        except Timeout:
            raise StoreError(f"{self.path}: another job is judging into it", fix="wait for it, or end it") from None
        with held:
            if self.path.is_file() and (data := self.path.read_bytes()) and not data.endswith(b"\n"):
                with self.path.open("ab") as file:  # end the line a kill cut short, so that the next one is whole
                    file.write(b"\n")
            yield

    def append(self, record: dict[str, Any]) -> None:
        """Adds a verdict; it is on disk when this returns."""
        with self.path.open("ab") as file:
            file.write(json.dumps(record).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
