"""Encoded data: built once, by content, mapped from disk, and built again when damaged."""

import json
import shutil
import threading
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest

from rcray.config.data import DataConfig
from rcray.data import prepare
from rcray.data.encoded import EncodedPair, EncodedPairs, EncodeReport, MappedPairs, PairWriter
from rcray.data.pairs import load_pairs
from rcray.data.prepare import prepare_data
from rcray.errors import DataError
from tests.small_runs import encode_pairs

SMALL = DataConfig(train_pairs=40, eval_pairs=10)


@pytest.fixture
def tokenizer(make_tokenizer):
    return make_tokenizer()


def write(path, count=30, answer="yes"):
    rows = ({"prompt": f"question {i}", "chosen": f"{answer} {i}", "rejected": "no"} for i in range(count))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def directories(cache):
    return sorted(p.name for p in (cache / "encoded").iterdir() if p.is_dir())


def test_it_holds_what_encoding_in_memory_gives(tokenizer, tmp_path):
    prepared = prepare_data(SMALL, tokenizer, tmp_path)
    splits = load_pairs(SMALL)
    for mapped, texts in ((prepared.train, splits.train), (prepared.held_out, splits.held_out)):
        whole = encode_pairs(texts, tokenizer, SMALL)
        assert list(mapped.pairs) == list(whole.pairs)
        assert mapped.fingerprint() == whole.fingerprint() == mapped.digest
        assert mapped.lengths.tolist() == whole.lengths.tolist()
        assert mapped.report.kept == len(mapped.pairs)
        assert mapped.report.summary() == whole.report.summary()


def test_the_pairs_are_a_sequence_over_mapped_files(tokenizer, tmp_path):
    pairs = prepare_data(SMALL, tokenizer, tmp_path).train.pairs
    assert isinstance(pairs, MappedPairs) and len(pairs) == 40
    assert isinstance(pairs._tokens, np.memmap) and pairs._tokens.dtype == np.int32
    assert pairs[-1] == pairs[39] and [p.row for p in pairs[3:5]] == ["train/3", "train/4"]
    assert pairs[np.int64(2)] == pairs[2]
    with pytest.raises(IndexError):
        pairs[40]


def test_it_is_built_once(tokenizer, tmp_path, monkeypatch):
    first = prepare_data(SMALL, tokenizer, tmp_path)
    monkeypatch.setattr(prepare, "_build", lambda *_: pytest.fail("built again"))
    second = prepare_data(SMALL, tokenizer, tmp_path)
    assert second.train.fingerprint() == first.train.fingerprint()
    assert len(directories(tmp_path)) == 1
    prepare_data(SMALL.model_copy(update={"bucketing": "length"}), tokenizer, tmp_path)


def test_the_key_covers_what_decides_the_tokens(make_tokenizer, tokenizer, tmp_path):
    name = write(tmp_path / "pairs.jsonl")
    base = DataConfig(name=name, eval_pairs=3)

    def key(config=base, by=tokenizer):
        return prepare.data_key(config, by, load_pairs(config).source())

    changed = [
        key(base.model_copy(update=update))
        for update in (
            {"max_length": 40, "max_prompt_length": 20},
            {"train_pairs": 7},
            {"eval_pairs": 4},
            {"seed": 1},
            {"bad_rows": "fail"},
        )
    ]
    changed.append(key(by=make_tokenizer(corpus=("question",) * 9)))
    changed.append(key(by=make_tokenizer("{% for m in messages %}{{ m['content'] }}{% endfor %}")))
    before = key()
    assert before == key(base.model_copy(update={"bucketing": "length", "difficulty": "hard"}))
    tokenizer(["a", "longer"], padding=True, truncation=True, max_length=4)
    assert key() == before, "how it was last called is no part of a tokenizer"
    write(tmp_path / "pairs.jsonl", answer="yep")
    changed.append(key())
    assert len({before, *changed}) == len(changed) + 1


def test_two_at_once_build_one(tokenizer, make_tokenizer, tmp_path, monkeypatch):
    builds, results, whole = [], [], prepare._build
    monkeypatch.setattr(prepare, "_build", lambda *a: (builds.append(1), whole(*a)))
    tokenizers = [tokenizer, make_tokenizer()]
    work = [
        threading.Thread(target=lambda t=t: results.append(prepare_data(SMALL, t, tmp_path).train.fingerprint()))
        for t in tokenizers
    ]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    assert len(builds) == 1 and len(results) == 2 and len(set(results)) == 1
    assert len(directories(tmp_path)) == 1, "and no temporary directory is left"


def cut_tokens(folder):
    path = folder / "train" / "tokens.npy"
    path.write_bytes(path.read_bytes()[:-8])


def flip_token(folder):
    path = folder / "held-out" / "tokens.npy"
    content = bytearray(path.read_bytes())
    content[-4] ^= 1
    path.write_bytes(content)


DAMAGE = {
    "cut short": cut_tokens,
    "changed": flip_token,
    "missing": lambda folder: (folder / "train" / "offsets.npy").unlink(),
    "no manifest": lambda folder: (folder / "manifest.json").unlink(),
    "manifest": lambda folder: (folder / "manifest.json").write_text("{"),
    "empty": lambda folder: (shutil.rmtree(folder), folder.mkdir()),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_found_and_mended(tokenizer, tmp_path, caplog, case):
    first = prepare_data(SMALL, tokenizer, tmp_path)
    before = list(first.train.pairs)
    (name,) = directories(tmp_path)
    DAMAGE[case](tmp_path / "encoded" / name)
    again = prepare_data(SMALL, tokenizer, tmp_path)
    assert f"encoded data {name} is damaged" in caplog.text
    assert list(again.train.pairs) == before
    assert directories(tmp_path) == [name]
    caplog.clear()
    prepare_data(SMALL, tokenizer, tmp_path)
    assert caplog.text == ""


def test_an_interrupted_build_leaves_nothing(tokenizer, tmp_path, monkeypatch):
    def broken(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(PairWriter, "add", broken)
        prepare_data(SMALL, tokenizer, tmp_path)
    assert directories(tmp_path) == []
    assert prepare_data(SMALL, tokenizer, tmp_path).train.report.kept == 40


def test_limits_count_usable_pairs(tokenizer, tmp_path):
    rows = [{"prompt": f"q{i}", "chosen": "same" if i % 2 else f"a{i}", "rejected": "same"} for i in range(60)]
    folder = tmp_path / "pairs"
    folder.mkdir()
    for split in ("train", "test"):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = DataConfig(name=str(folder), eval_split="test", train_pairs=10, eval_pairs=40)
    prepared = prepare_data(config, tokenizer, tmp_path)
    drawn = [int(p.row.rpartition(":")[2]) for p in prepared.train.pairs]
    assert len(set(drawn)) == 10 and all(i % 2 for i in drawn), "as many as asked for, of those that are of use"
    assert prepared.train.report.summary().startswith("10 pairs kept; ")
    assert prepared.held_out.report.summary().startswith("30 pairs kept of 40 asked for; 30 dropped equal (")


def test_one_held_out_pair_is_too_few(tokenizer, tmp_path):
    folder = tmp_path / "pairs"
    folder.mkdir()
    write(folder / "train.jsonl")
    write(folder / "test.jsonl", count=1)
    with pytest.raises(DataError, match="held-out: 1 usable pairs, 2 are needed"):
        prepare_data(DataConfig(name=str(folder), eval_split="test"), tokenizer, tmp_path)


def tiny_pairs(count) -> Iterator[EncodedPair]:
    return (EncodedPair(f"train/{i}", tuple(range(20)), (i % 7, 1, 2), (3, 4)) for i in range(count))


def test_fifty_thousand_pairs_do_not_need_memory(tmp_path):
    count, few = 50_000, 1_000_000  # bytes: all tokens are 5 MB as int32, and 60 MB as Python objects
    tracemalloc.start()
    writer = PairWriter(tmp_path)
    for pair in tiny_pairs(count):
        writer.add(pair)
    digest = writer.close()
    encoded = EncodedPairs(MappedPairs(tmp_path), EncodeReport(kept=count), digest)
    for i in range(0, count, 101):
        assert encoded.pairs[i].chosen[0] == i % 7
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < few, peak
    assert encoded.lengths.shape == (count, 3)
    assert encoded.fingerprint() == EncodedPairs(tuple(tiny_pairs(count)), EncodeReport()).fingerprint()


def test_reading_and_encoding_a_large_file_does_not_need_memory(tokenizer, tmp_path, monkeypatch):
    """From a JSONL file of 20,000 rows to mapped arrays; the tokenizer is stood in for, because tracing slows it."""

    def bytes_of(_, prompt, answer=None, *, ask=True):
        return list(f"{prompt[-1].content}>{answer or ''}".encode())

    monkeypatch.setattr("rcray.data.encode.render", bytes_of)
    name = write(tmp_path / "pairs.jsonl", count=20_000)
    tracemalloc.start()
    prepared = prepare_data(DataConfig(name=name), tokenizer, tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert prepared.train.report.kept + prepared.held_out.report.kept == 20_000
    assert peak < 1_000_000, peak  # bytes; the file has more
    assert (tmp_path / "pairs.jsonl").stat().st_size > 1_200_000


def test_prompts_are_numbered_where_pairs_share_them(tmp_path):
    def numbered(pairs):
        writer = PairWriter(tmp_path, unpaired=any(pair.behind for pair in pairs))
        for pair in pairs:
            writer.add(pair)
        writer.close()
        ways = [EncodedPairs(kept, EncodeReport()).prompts for kept in (MappedPairs(tmp_path), pairs)]
        assert (ways[0] is None) == (ways[1] is None) and np.array_equal(ways[0], ways[1])
        return None if ways[0] is None else ways[0].tolist()

    one, other, third = (1, 2), (1, 2, 3), (4,)
    assert numbered([EncodedPair("a", one, (5,), (6,)), EncodedPair("b", other, (5,), (6,))]) is None
    assert numbered(
        [EncodedPair(name, prompt, (5,), (6,)) for name, prompt in (("a", one), ("b", other), ("c", one))]
    ) == [
        [0, 0],
        [1, 1],
        [0, 0],
    ]
    unpaired = [
        EncodedPair("a", one, (5,), (6,), other, behind=(0, 0)),
        EncodedPair("b", third, (5,), (6,), (9,), behind=(1, 1)),
    ]
    assert numbered(unpaired) is None
    assert numbered([*unpaired, EncodedPair("c", other, (5,), (6,), (7,), behind=(2, 2))]) == [[0, 1], [2, 3], [1, 4]]
