"""Bad data is told with file and row; the good rows survive where the policy says so."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rcray.config.data import DataConfig
from rcray.data.dialogue import MAX_ROW_CHARACTERS
from rcray.data.pairs import Skipped, check_pairs, load_pairs
from rcray.data.prepare import prepare_data
from rcray.data.readers import read_pairs
from rcray.data.sources import local_rows
from rcray.errors import EXIT_USAGE, DataError

TEN_MEGABYTES = "x" * 10_000_000


def line(**changes):
    return json.dumps({"prompt": "what is it", "chosen": "yes", "rejected": "no", **changes})


def without(name):
    return json.dumps({key: value for key, value in json.loads(line()).items() if key != name})


def say(*turns):
    return [{"role": role, "content": content} for role, content in turns]


#: A line of a JSONL file, what it is counted as, and what the message says.
BAD_LINES = {
    "missing column": (
        without("chosen"),
        "dropped missing column",
        "no column 'chosen'; its columns: prompt, rejected",
    ),
    "missing prompt": (without("prompt"), "dropped missing column", "no column 'prompt'"),
    "null": (line(rejected=None), "dropped null", "'rejected' is null"),
    "number": (line(chosen=3), "dropped not text", "'chosen' is neither text nor messages"),
    "text and messages": (line(chosen=say(("assistant", "yes"))), "dropped not text", "'chosen'"),
    "message without content": (
        line(chosen=[{"role": "assistant"}], rejected=[]),
        "dropped not text",
        "role and content",
    ),
    "null content": (line(chosen=say(("assistant", None)), rejected=[]), "dropped null", "content is null"),
    "parts": (line(chosen=say(("assistant", ["a"])), rejected=[]), "dropped not text", "content is a list"),
    "empty": (line(chosen=" \n"), "dropped empty", "the chosen answer is empty"),
    "equal": (line(rejected="yes"), "dropped equal", "the chosen answer equals the rejected one"),
    "10 MB line": (line(chosen=TEN_MEGABYTES), "dropped too long", "10,000,0"),
    "3 MB line": (line(chosen="y" * 3_000_000), "dropped too long", f"{MAX_ROW_CHARACTERS:,} are allowed"),
    "not UTF-8": (line().encode().replace(b"yes", b"\xff\xfe"), "dropped unreadable", "not valid UTF-8 at byte"),
    "lone surrogate": (line(chosen="\ud800"), "dropped unreadable", "not valid UTF-8 at character 0"),
    "invalid JSON": ('{"prompt": "q", "chosen"', "dropped unreadable", "not valid JSON: Expecting"),
    "deep": ("[" * 100_000, "dropped unreadable", "not valid JSON"),
    "a list": ("[1, 2]", "dropped unreadable", "a JSON object is expected, and this is a list"),
    "unknown role": (
        line(chosen=say(("user", "q"), ("assitant", "yes")), rejected=say(("user", "q"), ("assistant", "no"))),
        "dropped unknown role",
        "'assitant'; did you mean 'assistant'",
    ),
    "ends on the user": (
        line(chosen=say(("assistant", "a"), ("user", "q")), rejected=say(("user", "q"), ("assistant", "no"))),
        "dropped no answer",
        "does not end on an assistant turn",
    ),
    "other prompts": (
        line(chosen=say(("user", "p"), ("assistant", "a")), rejected=say(("user", "q"), ("assistant", "no"))),
        "dropped other prompt",
        "not the same on both sides",
    ),
    "prompt column disagrees": (
        line(chosen=say(("user", "p"), ("assistant", "a")), rejected=say(("user", "p"), ("assistant", "no"))),
        "dropped other prompt",
        "'prompt' is not the prompt",
    ),
    "no question": (line(prompt=[]), "dropped no dialogue", "no user turn"),
}


def write_lines(path, lines):
    path.write_bytes(b"\n".join(one if isinstance(one, bytes) else one.encode() for one in lines) + b"\n")
    return path


@pytest.mark.parametrize("case", BAD_LINES)
def test_a_bad_line_costs_itself_alone(tmp_path, case):
    content, kind, reason = BAD_LINES[case]
    path = write_lines(tmp_path / "pairs.jsonl", [line(), "", content, line(chosen="maybe")])
    items = list(read_pairs(local_rows(path, None), DataConfig(name=str(path))))
    assert len(items) == 3, "a blank line is no row"
    bad = items[1]
    assert isinstance(bad, Skipped)
    assert (bad.row, bad.kind, bad.bad) == (f"{path}:3", kind, True)
    assert reason in bad.reason
    assert [item.chosen for item in (items[0], items[2])] == ["yes", "maybe"]
    with pytest.raises(DataError) as caught:
        check_pairs(DataConfig(name=str(path), bad_rows="fail"))
    assert f"{path}:3: " in str(caught.value) and reason in str(caught.value)
    assert "data.bad_rows: drop" in caught.value.fix
    assert caught.value.exit_code == EXIT_USAGE


def test_drop_counts_every_kind_with_its_rows(tmp_path, make_tokenizer, caplog):
    good = [line(prompt=f"question {i}") for i in range(40)]
    path = write_lines(tmp_path / "pairs.jsonl", [*good, *(content for content, _, _ in BAD_LINES.values())])
    data = prepare_data(DataConfig(name=str(path), eval_pairs=2), make_tokenizer(), tmp_path / "cache")
    reports = (data.train.report, data.held_out.report)
    counted = sum(
        tally.count for report in reports for kind, tally in report.kinds.items() if kind.startswith("dropped")
    )
    assert counted == len(BAD_LINES)
    assert (data.train.report.kept, data.held_out.report.kept) == (38, 2), "only good rows are drawn"
    named = {row for report in reports for tally in report.kinds.values() for row in tally.rows}
    assert named == {f"{path}:{40 + i}" for i in range(1, len(BAD_LINES) + 1)}
    assert "dropped unreadable (" in data.train.report.summary()
    assert "dropped unreadable (" in caplog.text, "said when it is read, not only stored"
    logged = next((tmp_path / "cache" / "encoded").glob("*/train/dropped.tsv")).read_text()
    assert f"dropped null\t{path}:43\t'rejected' is null\n" in logged


def test_fail_stops_at_the_first_before_anything_is_written(tmp_path, make_tokenizer):
    path = write_lines(tmp_path / "pairs.jsonl", [line(), line(chosen=None), line(rejected=None)])
    config = DataConfig(name=str(path), bad_rows="fail", eval_pairs=2)
    with pytest.raises(DataError, match=r"pairs\.jsonl:2: 'chosen' is null"):
        check_pairs(config)
    with pytest.raises(DataError, match=r"pairs\.jsonl:[23]: "):
        prepare_data(config, make_tokenizer(), tmp_path / "cache")
    assert [p.name for p in (tmp_path / "cache" / "encoded").iterdir() if p.is_dir()] == []


def test_fail_is_no_stricter_than_the_pairs_it_needs(tmp_path):
    folder = tmp_path / "pairs"
    folder.mkdir()
    write_lines(folder / "train.jsonl", [line(), line(), line(chosen=None)])
    write_lines(folder / "test.jsonl", [line()])
    settings = {"name": str(folder), "eval_split": "test", "bad_rows": "fail"}
    check_pairs(DataConfig(**settings, train_pairs=2))
    with pytest.raises(DataError, match=r"train\.jsonl:3"):
        check_pairs(DataConfig(**settings))


def test_all_rows_bad_says_what_they_were(tmp_path, make_tokenizer):
    path = write_lines(tmp_path / "pairs.jsonl", [line(chosen=None)] * 5)
    with pytest.raises(DataError) as caught:
        prepare_data(DataConfig(name=str(path)), make_tokenizer(), tmp_path / "cache")
    for part in ("no usable pair", "dropped null", f"{path}:", "'chosen' is null"):
        assert part in str(caught.value)


# -- whole files


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".parquet"])
def test_an_empty_file(tmp_path, suffix):
    path = tmp_path / f"pairs{suffix}"
    path.touch()
    with pytest.raises(DataError, match=rf"pairs\{suffix}: the file is empty"):
        check_pairs(DataConfig(name=str(path)))


def test_a_file_of_blank_lines(tmp_path, make_tokenizer):
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n\n  \n")
    with pytest.raises(DataError, match=r"no usable pair is left.*the source has no row"):
        prepare_data(DataConfig(name=str(path)), make_tokenizer(), tmp_path / "cache")


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_table_without_the_column_is_refused_at_once(tmp_path, suffix):
    path = tmp_path / f"pairs{suffix}"
    if suffix == ".csv":
        path.write_text("prompt,choosen,rejected\nq,yes,no\n")
    else:
        pq.write_table(pa.table({"prompt": ["q"], "choosen": ["yes"], "rejected": ["no"]}), path)
    with pytest.raises(DataError, match=r"no column 'chosen'; did you mean 'choosen'.*\n  fix: set data.columns"):
        check_pairs(DataConfig(name=str(path)))


def test_csv_rows_that_are_none(tmp_path):
    path = tmp_path / "pairs.csv"
    rows = [
        b"prompt,chosen,rejected",
        b"q,yes,no",
        b"q,yes",
        b"q,\xff,no",
        b"q,a,b,c",
        b"q," + b"z" * 10_000_000 + b",no",
    ]
    path.write_bytes(b"\n".join([*rows, b"q,perhaps,no", b""]))
    items = list(read_pairs(local_rows(path, None), DataConfig(name=str(path))))
    kinds = [(item.row.rpartition(":")[2], item.kind) for item in items if isinstance(item, Skipped)]
    assert kinds == [
        ("3", "dropped null"),
        ("4", "dropped unreadable"),
        ("5", "dropped unreadable"),
        ("6", "dropped too long"),
    ]
    assert [item.chosen for item in items if not isinstance(item, Skipped)] == ["yes", "perhaps"]


def test_parquet_rows_that_are_none(tmp_path):
    path = tmp_path / "pairs.parquet"
    text = pa.array([b"yes", b"\xff\xfe", None, b"maybe"], pa.binary()).cast(pa.string(), safe=False)
    chosen = pa.StringArray.from_buffers(4, *[b for b in text.buffers() if b is not None][1:], text.buffers()[0])
    pq.write_table(pa.table({"prompt": ["q"] * 4, "chosen": chosen, "rejected": ["no"] * 4}), path)
    items = list(read_pairs(local_rows(path, None), DataConfig(name=str(path))))
    assert [getattr(item, "kind", "good") for item in items] == ["good", "dropped unreadable", "dropped null", "good"]
    assert "UTF-8" in items[1].reason and items[1].row == f"{path}:2"


def test_a_typed_column_that_is_no_text(tmp_path):
    path = tmp_path / "pairs.parquet"
    pq.write_table(pa.table({"prompt": ["q"], "chosen": [3], "rejected": [4]}), path)
    (item,) = read_pairs(local_rows(path, None), DataConfig(name=str(path)))
    assert item.kind == "dropped not text"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("pairs.parquet", b"PAR1 but not really", "damaged Parquet"),
        ("pairs.json", b'[{"prompt": "q"', "not valid JSON"),
        ("pairs.json", b'["\xff"]', "not valid JSON"),
        ("pairs.jsonl.gz", b"\x1f\x8b\x08\x00 cut short", "cannot be read"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        check_pairs(DataConfig(name=str(path)))
    assert str(path) in str(caught.value)


def test_a_directory_without_data(tmp_path):
    (tmp_path / "pairs").mkdir()
    with pytest.raises(DataError, match="has no split 'train'"):
        load_pairs(DataConfig(name=str(tmp_path / "pairs")))


def test_bad_data_stops_a_run_before_its_model_is_loaded(tmp_path, store, monkeypatch):
    from rcray.train import loop
    from tests.small_runs import small_config

    path = write_lines(tmp_path / "pairs.jsonl", [line(prompt=f"q{i}") for i in range(40)] + [line(chosen=None)])
    config = small_config(data={"name": str(path), "bad_rows": "fail", "train_pairs": 16, "eval_pairs": 4})
    monkeypatch.setattr(loop, "load_model", lambda *_, **__: pytest.fail("a model was loaded"))
    with pytest.raises(DataError, match=r"pairs\.jsonl:41: 'chosen' is null"):
        loop.prepare(loop.Job(config, store, "run", "attempt"), 0, 1)
