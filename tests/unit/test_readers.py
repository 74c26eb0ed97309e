"""Every source gives the same pairs: hub layouts saved locally, files of each kind, directories of each kind."""

import csv
import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rcray.config.data import DataConfig
from rcray.data.pairs import Pair, Skipped, Turn, check_pairs, load_pairs
from rcray.data.readers import read_pairs, transcript_turns
from rcray.data.sources import hub_rows, local_rows
from rcray.errors import EXIT_USAGE, DataError


def message(role, content):
    return {"content": content, "role": role}


def ultrafeedback_row(i, turns=1):
    asked = [message("user", f"question {i}")]
    for t in range(1, turns):
        asked += [message("assistant", f"answer {t}"), message("user", f"and {t}?")]
    return {
        "prompt": f"question {i}",
        "prompt_id": f"{i:064x}",
        "chosen": [*asked, message("assistant", f"good {i}")],
        "rejected": [*asked, message("assistant", f"bad {i}")],
        "messages": [*asked, message("assistant", f"good {i}")],
        "score_chosen": 8.5,
        "score_rejected": 4.0,
    }


def hh_row(part, i):
    start = f"\n\nHuman: {part} {i}?\n\nAssistant: hm\n\nHuman: yes?"
    return {"chosen": f"{start}\n\nAssistant: good {i}", "rejected": f"{start}\n\nAssistant: bad {i}"}


@pytest.fixture
def ultrafeedback(tmp_path):
    """The hub repository's layout: Parquet files under data/, named after their split."""
    root = tmp_path / "HuggingFaceH4" / "ultrafeedback_binarized"
    (root / "data").mkdir(parents=True)
    for split, rows in (("train_prefs", range(7)), ("test_prefs", range(100, 103)), ("train_sft", range(5))):
        table = pa.Table.from_pylist([ultrafeedback_row(i, turns=1 + i % 3) for i in rows])
        pq.write_table(table, root / "data" / f"{split}-00000-of-00001.parquet")
    return root


@pytest.fixture
def hh(tmp_path):
    """The hub repository's layout: a directory per subset, gzipped JSONL per split."""
    root = tmp_path / "Anthropic" / "hh-rlhf"
    for subset, count in (("helpful-base", 5), ("harmless-base", 3)):
        (root / subset).mkdir(parents=True)
        for split in ("train", "test"):
            with gzip.open(root / subset / f"{split}.jsonl.gz", "wt") as file:
                file.writelines(json.dumps(hh_row(f"{subset} {split}", i)) + "\n" for i in range(count))
    return root


def good(stream):
    items = list(stream)
    assert not [item for item in items if isinstance(item, Skipped)]
    return items


def test_ultrafeedback(ultrafeedback):
    splits = load_pairs(DataConfig(name="ultrafeedback", path=str(ultrafeedback)))
    train, held_out = good(splits.train), good(splits.held_out)
    assert (len(train), len(held_out)) == (7, 3)
    assert train[0].prompt == (Turn("user", "question 0"),)
    assert train[2].prompt[-1] == Turn("user", "and 2?")
    assert [turn.role for turn in train[2].prompt] == ["user", "assistant", "user", "assistant", "user"]
    assert (train[2].chosen, train[2].rejected) == ("good 2", "bad 2")
    assert train[2].row.endswith("train_prefs-00000-of-00001.parquet:3")


def test_hh_subsets(hh):
    for subset, count in (("helpful-base", 5), ("harmless-base", 3), ("merged", 8)):
        splits = load_pairs(DataConfig(name="hh", subset=subset, path=str(hh)))
        assert (len(good(splits.train)), len(good(splits.held_out))) == (count, count)
    merged = good(load_pairs(DataConfig(name="hh", path=str(hh))).train)
    assert [pair.prompt[0].content for pair in merged[:3]] == [
        "helpful-base train 0?",
        "harmless-base train 0?",
        "helpful-base train 1?",
    ], "the first rows show both"
    assert merged[0].prompt[1:] == (Turn("assistant", "hm"), Turn("user", "yes?"))
    assert merged[0].chosen == "good 0"


@pytest.mark.parametrize(
    ("name", "split", "place", "count"),
    [
        ("HuggingFaceH4/ultrafeedback_binarized", "train_prefs", {}, 7),
        ("Anthropic/hh-rlhf", "test", {"data_dir": "helpful-base"}, 5),
    ],
)
def test_the_hub_path_reads_the_same(request, tmp_path, monkeypatch, name, split, place, count):
    """`load_dataset` takes a directory of that name for the hub's."""
    short = "ultrafeedback" if "ultra" in name else "hh"
    local = local_rows(request.getfixturevalue(short) / place.get("data_dir", ""), split)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    hub = hub_rows(short, name, split, None, **place)
    config = DataConfig(name=short)
    ours, expected = good(read_pairs(hub, config)), good(read_pairs(local, config))
    assert [(p.prompt, p.chosen, p.rejected) for p in ours] == [(p.prompt, p.chosen, p.rejected) for p in expected]
    assert len(ours) == hub.count() == count
    assert ours[1].row == "/".join([name, *place.values(), f"{split}:2"])
    assert hub.fingerprint() == hub_rows(short, name, split, None, **place).fingerprint()


def test_a_hub_out_of_reach_is_told_with_the_way_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for config in (DataConfig(name="ultrafeedback"), DataConfig(name="hh"), DataConfig(name="nobody/nothing")):
        with pytest.raises(DataError) as caught:
            check_pairs(config)
        text = str(caught.value)
        assert caught.value.exit_code == EXIT_USAGE
        for part in ("data.name", config.name, "HF_HUB_OFFLINE", "local copy", "data.path"):
            assert part in text


# -- files and directories of one's own

ROWS = [{"prompt": f"q{i}", "chosen": f"yes {i}", "rejected": f"no {i}"} for i in range(6)]


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_json(path, rows):
    path.write_text(json.dumps(rows, indent=1))


def write_csv(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def write_parquet(path, rows):
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=2)


WRITERS = {".jsonl": write_jsonl, ".json": write_json, ".csv": write_csv, ".parquet": write_parquet}


def read(path, split=None, **settings):
    config = DataConfig(name=str(path), **({"split": split} if split else {}), **settings)
    return list(read_pairs(local_rows(path, split), config))


def triples(items):
    return [(item.prompt, item.chosen, item.rejected) for item in items]


EXPECTED = [((Turn("user", f"q{i}"),), f"yes {i}", f"no {i}") for i in range(6)]


@pytest.mark.parametrize("suffix", WRITERS)
def test_every_kind_of_file(tmp_path, suffix):
    path = tmp_path / f"pairs{suffix}"
    WRITERS[suffix](path, ROWS)
    pairs = read(path)
    assert triples(pairs) == EXPECTED
    first = 2 if suffix == ".csv" else 1  # a CSV has its header in line 1
    assert [item.row for item in pairs[:2]] == [f"{path}:{first}", f"{path}:{first + 1}"]
    rows = local_rows(path, None)
    assert rows.count() == 6
    before = rows.fingerprint()
    WRITERS[suffix](path, ROWS[:5])
    assert local_rows(path, None).fingerprint() != before


def test_columns_may_have_other_names(tmp_path):
    path = tmp_path / "pairs.csv"
    write_csv(path, [{"": i, "question": "q", "good": "yes", "bad": "no, never\nnever"} for i in range(3)])
    pairs = read(path, columns={"prompt": "question", "chosen": "good", "rejected": "bad"})
    assert triples(pairs) == [((Turn("user", "q"),), "yes", "no, never\nnever")] * 3
    assert [item.row for item in pairs] == [f"{path}:{line}" for line in (2, 4, 6)], "where the row begins"


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "q", "chosen": [message("assistant", "yes")], "rejected": [message("assistant", "no")]},
        {"prompt": [message("user", "q")], "chosen": "yes", "rejected": "no"},
        {
            "prompt": [message("user", "q")],
            "chosen": [message("assistant", "yes")],
            "rejected": [message("assistant", "no")],
        },
        {
            "chosen": [message("user", "q"), message("assistant", "yes")],
            "rejected": [message("user", "q"), message("assistant", "no")],
        },
        {
            "prompt": "q",
            "chosen": [message("user", "q"), message("assistant", "yes")],
            "rejected": [message("user", "q"), message("assistant", "no")],
        },
    ],
    ids=["text, messages", "messages, text", "messages", "implicit", "repeated"],
)
@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet"])
def test_text_and_messages_mean_the_same(tmp_path, row, suffix):
    path = tmp_path / f"pairs{suffix}"
    WRITERS[suffix](path, [row, row])
    assert triples(read(path)) == [((Turn("user", "q"),), "yes", "no")] * 2


def test_a_system_turn_stays_in_the_prompt(tmp_path):
    start = [message("system", "be brief"), message("user", "q")]
    write_jsonl(
        tmp_path / "a.jsonl",
        [{"chosen": [*start, message("assistant", "y")], "rejected": [*start, message("assistant", "n")]}],
    )
    assert read(tmp_path / "a.jsonl")[0].prompt == (Turn("system", "be brief"), Turn("user", "q"))


def saved_dict(path):
    import datasets

    train, test = (datasets.Dataset.from_list(rows) for rows in (ROWS, ROWS[:2]))
    datasets.DatasetDict({"train": train, "test": test}).save_to_disk(str(path))


def flat_files(path):
    path.mkdir()
    write_jsonl(path / "train.jsonl", ROWS)
    write_csv(path / "test.csv", ROWS[:2])


def shards(path):
    (path / "data").mkdir(parents=True)
    for i in range(3):
        write_parquet(path / "data" / f"train-{i:05d}-of-00003.parquet", ROWS[2 * i : 2 * i + 2])
    write_parquet(path / "data" / "test-00000-of-00001.parquet", ROWS[:2])


def folders(path):
    for split, rows in (("train", ROWS), ("test", ROWS[:2])):
        (path / split).mkdir(parents=True)
        write_jsonl(path / split / "0.jsonl", rows)


@pytest.mark.parametrize("make", [saved_dict, flat_files, shards, folders])
def test_every_kind_of_directory(tmp_path, make):
    path = tmp_path / "pairs"
    make(path)
    splits = load_pairs(DataConfig(name=str(path), eval_split="test"))
    assert triples(good(splits.train)) == EXPECTED
    assert triples(good(splits.held_out)) == EXPECTED[:2]
    assert splits.source() == load_pairs(DataConfig(name=str(path), eval_split="test")).source()
    with pytest.raises(DataError, match=r"has no split 'tset'; did you mean 'test'\? \(known: test, train\)"):
        load_pairs(DataConfig(name=str(path), eval_split="tset"))


def test_one_saved_dataset_without_splits(tmp_path):
    import datasets

    datasets.Dataset.from_list(ROWS).save_to_disk(str(tmp_path / "one"))
    assert triples(read(tmp_path / "one", "train")) == EXPECTED
    with pytest.raises(DataError, match="holds one split without a name"):
        load_pairs(DataConfig(name=str(tmp_path / "one"), eval_split="test"))


def test_a_relative_path_is_found_from_where_a_trial_was_started(tmp_path, monkeypatch):
    write_jsonl(tmp_path / "pairs.jsonl", ROWS)
    (tmp_path / "trial").mkdir()
    monkeypatch.chdir(tmp_path / "trial")
    with pytest.raises(DataError, match="no such file"):
        load_pairs(DataConfig(name="pairs.jsonl"))
    monkeypatch.setenv("TUNE_ORIG_WORKING_DIR", str(tmp_path))
    assert good(load_pairs(DataConfig(name="pairs.jsonl")).train)


def test_a_missing_path_names_its_neighbours(tmp_path):
    write_jsonl(tmp_path / "pairs.jsonl", ROWS)
    with pytest.raises(DataError, match=r"no such file or directory\n  fix: .*did you mean 'pairs.jsonl'"):
        load_pairs(DataConfig(name=str(tmp_path / "pair.jsonl")))


def test_hh_turns_leave_empty_ones_out():
    text = "\n\nHuman: hi \n\nAssistant: \n\nHuman: are you there?\n\nAssistant: yes: Human: no"
    assert transcript_turns(text, "chosen") == (
        Turn("user", "hi"),
        Turn("user", "are you there?"),
        Turn("assistant", "yes: Human: no"),
    )


@pytest.mark.parametrize(
    ("chosen", "rejected", "kind"),
    [
        ("\n\nHuman: q", "\n\nHuman: q\n\nAssistant: a", "dropped no answer"),
        ("\n\nHuman: q\n\nAssistant: ", "\n\nHuman: q\n\nAssistant: a", "dropped no answer"),
        ("\n\nHuman: p\n\nAssistant: b", "\n\nHuman: q\n\nAssistant: a", "dropped other prompt"),
        ("\n\nAssistant: b", "\n\nAssistant: a", "dropped no dialogue"),
        ("hello", "hello", "dropped no dialogue"),
        ("", "", "dropped no answer"),
    ],
)
def test_hh_rows_that_are_no_pair(tmp_path, chosen, rejected, kind):
    write_jsonl(tmp_path / "hh.jsonl", [{"chosen": chosen, "rejected": rejected}, hh_row("x", 1)])
    bad, fine = read_pairs(local_rows(tmp_path / "hh.jsonl", None), DataConfig(name="hh"))
    assert (bad.kind, bad.row, bad.bad) == (kind, f"{tmp_path / 'hh.jsonl'}:1", True)
    assert isinstance(fine, Pair)
