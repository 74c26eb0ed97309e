"""The judge's client against a real server that answers, refuses, babbles and hangs."""

import json
import logging
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from rcray.config.alpaca_eval import JudgeConfig
from rcray.errors import ConfigError, StoreError
from rcray.evaluate.alpaca_eval import endpoint
from rcray.evaluate.alpaca_eval.endpoint import CallFailedError, EndpointRefusedError, Reply
from rcray.evaluate.alpaca_eval.judge import Cache, asks, judge, judging_cost, read_vote
from rcray.evaluate.alpaca_eval.outputs import Match
from rcray.evaluate.alpaca_eval.winrate import annotations
from tests.evaluate.judge_server import JudgeServer

KEY = "sk-test-0123456789abcdef"
VARIABLE = "RCRAY_TEST_JUDGE_KEY"
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv(VARIABLE, KEY)
    monkeypatch.setattr(endpoint, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(endpoint, "LONGEST_PAUSE", 0.05)


def matches(count):
    """The candidate is better in two of three."""
    return [Match(f"task {i}", f"answer {1 if i % 3 else 0}", f"answer {0.5}") for i in range(count)]


def config(server, **changes):
    fields = {"base_url": server.url, "model": "judge-1", "key_env": VARIABLE, "timeout": 60, "concurrency": 16}
    return JudgeConfig(**(fields | changes))


def number_of(question):
    return int(question.partition("task ")[2].split()[0])


def test_a_whole_job_through_every_fault(tmp_path, caplog, capfd):
    """Half of AlpacaEval's instructions in both orders; a third of the calls fail first, in every way there is."""
    faults = ("busy", "broken", "garbage", "wrong_shape", "hang", "drip", "cut", "drop", "ramble")
    rare = {"hang": 120, "drip": 96}  # each costs a timeout: one match of each
    count, tried = 403, set()

    def script(question, number):
        i = number_of(question)
        fault = faults[i // 3 % len(faults)]
        if number > 1 or i % 3 or i % rare.get(fault, 1):
            return "ok"
        tried.add(fault)
        return fault

    caplog.set_level(logging.DEBUG)
    cache = tmp_path / "judgements.jsonl"
    with JudgeServer(script) as server:
        patient = config(server, timeout=5)  # a busy machine's late answer is no fault of the client
        judged = judge(matches(count), patient, cache)
        calls = sum(server.calls.values())
        assert tried == set(faults)
        assert len(server.calls) == len(server.answered) == 2 * count
        assert set(server.answered.values()) == {1}, "an answered question is not asked again"
        assert calls > 2 * count + 180
        again = judge(matches(count), patient, cache)
        assert sum(server.calls.values()) == calls, "everything is on disk"
        assert server.keys == {f"Bearer {KEY}"}
    assert again == judged and len(judged) == 2 * count
    assert all(judgement.preference is not None for judgement in judged)
    by_match = {judgement.match: judgement.preference for judgement in judged}
    assert all((by_match[i] > 0.5) == bool(i % 3) for i in by_match)
    shown = capfd.readouterr()
    for text in (cache.read_text(), caplog.text, shown.out, shown.err):
        assert KEY not in text


def test_both_orders_are_asked_and_read_from_the_candidates_side(tmp_path):
    with JudgeServer() as server:
        judged = judge(matches(4), config(server), tmp_path / "j")
    assert Counter(judgement.match for judgement in judged) == dict.fromkeys(range(4), 2)
    for first, second in zip(judged[::2], judged[1::2], strict=True):
        assert (first.candidate_first, second.candidate_first) == (True, False)
        assert first.preference == pytest.approx(second.preference)  # this judge has no liking for a position
        assert first.preference == pytest.approx(0.8176 if first.match % 3 else 0.1824, abs=1e-4)


def test_the_authors_mode_asks_once_with_the_candidate_second(tmp_path):
    with JudgeServer() as server:
        judged = judge(matches(6), config(server, mode="published"), tmp_path / "j")
        assert sum(server.calls.values()) == 6
        assert all("logprobs" not in body for body in server.bodies)
    assert [judgement.candidate_first for judgement in judged] == [False] * 6
    assert [judgement.preference for judgement in judged] == [0, 1, 1, 0, 1, 1]  # votes in words


def test_alpaca_eval_2_asks_once_in_a_random_order_that_stays(tmp_path):
    with JudgeServer() as server:
        wanted = asks(matches(200), config(server, mode="alpaca_eval_2"))
        assert wanted == asks(matches(200), config(server, mode="alpaca_eval_2"))
    share = sum(ask.candidate_first for ask in wanted) / len(wanted)
    assert len(wanted) == 200 and 0.35 < share < 0.65


@pytest.mark.parametrize(
    ("vote", "text", "logprobs", "expected"),
    [
        ("logprobs", "A", {"A": -0.1, "B": -2.4}, 0.9089),
        ("logprobs", "A", {"A": -0.1, " a": -3.0, "B": -2.4, "The": -5}, 0.9132),
        ("logprobs", "B", {"B": -0.01}, 0.0),
        ("logprobs", "A", {}, None),
        ("logprobs", "I", {"I": -0.1, "Well": -2}, None),
        ("text", "A", {}, 1.0),
        ("text", " **B**. ", {}, 0.0),
        ("text", "Answer B", {}, 0.0),
        ("text", "tie", {}, 0.5),
        ("text", "A or B", {}, None),
        ("text", "Both are good answers", {}, None),
        ("text", "", {}, None),
    ],
)
def test_votes(vote, text, logprobs, expected):
    preference = read_vote(Reply(text, logprobs, 0, 0), vote)
    assert preference == (None if expected is None else pytest.approx(expected, abs=1e-4))


# -- ends


KILLED = """
import sys
from pathlib import Path
from rcray.evaluate.alpaca_eval.judge import judge
from tests.evaluate.test_judge import JudgeConfig, VARIABLE, matches
config = JudgeConfig(base_url=sys.argv[1], model="judge-1", key_env=VARIABLE, timeout=30, concurrency=4)
judge(matches(60), config, Path(sys.argv[2]))
"""


def wait_until(condition, seconds=240):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.01)


def test_a_killed_job_goes_on_without_repeating_a_call(tmp_path):
    cache = tmp_path / "judgements.jsonl"
    killed = threading.Event()

    def script(question, number):
        if len(server.answered) >= 30:
            killed.wait(240)
        return "ok"

    with JudgeServer(script) as server:
        job = subprocess.Popen([sys.executable, "-c", KILLED, server.url, str(cache)], cwd=ROOT)
        wait_until(lambda: len(Cache(cache).read()) >= 20)
        job.send_signal(signal.SIGKILL)
        job.wait()
        on_disk = Cache(cache).read()
        killed.set()
        wait_until(lambda: server.under_way == 0)  # calls under way at the kill end at the server
        before = Counter(server.calls)
        assert 20 <= len(on_disk) < 120
        judged = judge(matches(60), config(server), cache)
        after = Counter(server.calls)
    assert len(judged) == 120 and all(judgement.preference is not None for judgement in judged)
    kept = {ask.key for ask in asks(matches(60), config(server))} & on_disk.keys()
    assert kept == on_disk.keys()
    assert sum((after - before).values()) == 120 - len(on_disk), "exactly what was not on disk"
    assert sum(count > 1 for count in after.values()) <= 4, "at most what was under way at the kill"


def test_a_line_cut_short_is_asked_again_and_the_file_stays_whole(tmp_path):
    cache = tmp_path / "judgements.jsonl"
    with JudgeServer() as server:
        judge(matches(5), config(server), cache)
        text = cache.read_text()
        cache.write_text(text[: len(text) - 20])
        before = sum(server.calls.values())
        judge(matches(5), config(server), cache)
        assert sum(server.calls.values()) == before + 1
    assert len(Cache(cache).read()) == 10


def test_a_refused_key_ends_the_job_at_once_and_is_not_shown(tmp_path):
    with JudgeServer(lambda *_: "refuse") as server:
        with pytest.raises(EndpointRefusedError, match=r"HTTP 401.*\[key\]") as refused:
            judge(matches(200), config(server), tmp_path / "j")
        assert sum(server.calls.values()) <= 2 * 16, "not four hundred refusals"
    assert KEY not in str(refused.value) and VARIABLE in str(refused.value)


def test_a_redirect_does_not_carry_the_key_away(tmp_path):
    with JudgeServer(lambda *_: "redirect") as server, pytest.raises(EndpointRefusedError, match="HTTP 302"):
        judge(matches(1), config(server), tmp_path / "j")


def test_nothing_of_another_account_is_sent(tmp_path, monkeypatch):
    """The client library reads variables of its own; they are for OpenAI, and this judge may be anybody."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-another-account-0123")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-secret")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-secret")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Private: secret\nAuthorization: Bearer other")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    with JudgeServer() as server:
        judge(matches(1), config(server), tmp_path / "j")
        assert server.keys == {f"Bearer {KEY}"}
        assert server.headers == {*endpoint._HEADERS, "user-agent", "authorization"}
    with JudgeServer() as server:
        judge(matches(1), config(server, key_env=None), tmp_path / "without-key")
        assert server.keys == {""}


@pytest.mark.parametrize("fault", ["drip", "drip_error"])
def test_an_answer_must_arrive_whole_in_time(fault):
    """A byte now and then keeps a socket's timeout from ever running out: this answer would take half a day."""
    with JudgeServer(lambda *_: fault) as server, pytest.raises(CallFailedError, match="timed out"):
        endpoint.call(config(server, retries=0, timeout=0.3), [{"role": "user", "content": "x"}])


@pytest.mark.parametrize(
    ("fault", "said"), [("hang", "timed out"), ("broken", "HTTP 500"), ("ramble", "not a verdict")]
)
def test_what_fails_to_the_end_is_said_and_not_kept(tmp_path, fault, said):
    def script(question, number):
        return fault if number_of(question) == 1 else "ok"

    cache = tmp_path / "j"
    with JudgeServer(script) as server:
        late = {"timeout": 2, "retries": 1} if fault == "hang" else {"retries": 2}
        settings = config(server, vote="text", **late)
        judged = judge(matches(4), settings, cache)
        failed = [judgement for judgement in judged if judgement.preference is None]
        assert [judgement.match for judgement in failed] == [1, 1]
        assert all(said in judgement.error for judgement in failed)
        assert len(Cache(cache).read()) == 6
        server.script = lambda *_: "ok"
        assert all(judgement.preference is not None for judgement in judge(matches(4), settings, cache))
    mode = settings.judging
    kept = annotations(matches(4), judged, mode)
    assert (kept.failures, len(kept.preference)) == (2, 3)


def test_a_long_pause_is_as_long_as_the_server_asks_but_bounded(monkeypatch):
    monkeypatch.setattr(endpoint, "LONGEST_PAUSE", 5.0)
    pauses = []
    with JudgeServer(lambda question, number: "busy" if number < 3 else "ok") as server:
        messages = [{"role": "user", "content": "<answer_a>\nanswer 1\n</answer_a>\n<answer_b>\nanswer 2\n</answer_b>"}]
        endpoint.call(config(server), messages, sleep=pauses.append)
    assert pauses == [0.01, 0.01]
    pauses.clear()
    with JudgeServer(lambda *_: "broken") as server, pytest.raises(CallFailedError, match="after 5 calls"):
        endpoint.call(config(server, retries=4), [{"role": "user", "content": "x"}], sleep=pauses.append)
    assert len(pauses) == 4 and all(0.5 <= p / (0.01 * 2**i) <= 1 for i, p in enumerate(pauses))


def test_a_missing_key_is_named_before_a_call(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE)
    with JudgeServer() as server:
        with pytest.raises(ConfigError, match=f"no {VARIABLE}"):
            judge(matches(2), config(server), tmp_path / "j")
        assert not server.calls
        judge(matches(2), config(server, key_env=None), tmp_path / "j")
        assert server.keys == {""}


def test_two_jobs_do_not_share_a_file(tmp_path):
    cache = Cache(tmp_path / "j")
    with JudgeServer() as server, cache.writing(), pytest.raises(StoreError, match="another job"):
        judge(matches(1), config(server), tmp_path / "j")


# -- cost


def test_the_estimate_counts_what_is_left(tmp_path):
    cache = tmp_path / "j"
    with JudgeServer() as server:
        priced = config(server, price_in=2.0, price_out=10.0)
        first = judging_cost(matches(10), priced, cache)
        assert (first.calls, first.cached) == (20, 0)
        sent = 20 * 150 + sum(len(m.instruction + m.candidate + m.reference) * 2 for m in matches(10)) // 4
        assert first.tokens_in == sent
        assert first.cost == pytest.approx((sent * 2 + 20 * 10) / 1e6)
        judge(matches(4), priced, cache)
        second = judging_cost(matches(10), priced, cache)
        assert (second.calls, second.cached) == (12, 8)
        assert "unknown" in judging_cost(matches(10), config(server), cache).describe()


def test_above_the_limit_nothing_is_spent(tmp_path):
    with JudgeServer() as server:
        tight = config(server, price_in=2.0, price_out=10.0, max_cost=0.0001)
        with pytest.raises(ConfigError, match=r"above judge.max_cost"):
            judge(matches(10), tight, tmp_path / "j")
        assert not server.calls


def test_the_cache_holds_verdicts_only(tmp_path):
    with JudgeServer() as server:
        judge(matches(1), config(server), tmp_path / "j")
    for line in (tmp_path / "j").read_text().splitlines():
        assert set(json.loads(line)) == {"key", "first", "text", "tokens_in", "tokens_out"}
