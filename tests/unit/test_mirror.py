"""A run's copy on a real S3 server: pushed by one disk, fetched by another."""

import shutil
import time

import pytest

from rcray.errors import StorageUnavailableError
from rcray.faults import classify
from rcray.records.states import State
from rcray.records.status import RunStatus
from rcray.store import Store
from rcray.sweep.storage import _pulled
from rcray.train.mirror import Mirror
from tests.buckets import objects, s3_bucket


@pytest.fixture(scope="module")
def bucket():
    with s3_bucket() as bucket:
        yield bucket


@pytest.fixture
def disks(bucket, tmp_path, request):
    """The same run on two disks."""
    stores = [Store.open(tmp_path / name) for name in ("here", "there")]
    return [Mirror(bucket[0], store.run(request.node.name.replace("_", "-"))) for store in stores]


def test_what_one_pushes_the_other_fetches(bucket, disks):
    here, there = disks
    run = here.run
    checkpoint = run.checkpoints / "step-3" / "model.safetensors"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_bytes(b"w" * 5_000_000)  # more than one block
    run.write_status(RunStatus(run.run_id, status=State.RUNNING, step=3, updated=1.0))
    here.push()
    assert there.pull() and not there.pull(), "once"
    assert there.run.read_status().step == 3
    assert (there.run.checkpoints / "step-3" / "model.safetensors").read_bytes() == checkpoint.read_bytes()

    shutil.rmtree(run.checkpoints)
    run.write_status(RunStatus(run.run_id, status=State.OK, step=8, updated=2.0))
    here.push()
    assert there.pull() and not list(there.run.checkpoints.rglob("*.safetensors")), "what was removed is removed"
    time.sleep(1.1)  # the server's clock counts seconds
    run.evaluation.write_text('{"rows": []}')
    here.push()
    assert there.pull() and there.run.evaluation.exists(), "measured after the last status"
    assert objects(bucket[1]) == {f"some/where/runs/{run.run_id}/{name}" for name in ("status.json", "evaluation.json")}


def test_a_better_model_of_the_same_size_replaces_the_one_before(disks):
    """A model has the same size at every step."""
    here, there = disks
    run = here.run
    run.best.mkdir(parents=True)
    for step, content in ((3, b"first"), (6, b"later")):
        (run.best / "model.safetensors").write_bytes(content)
        run.write_status(RunStatus(run.run_id, status=State.RUNNING, step=step, updated=float(step)))
        here.push()
        assert there.pull()
        assert (there.run.best / "model.safetensors").read_bytes() == content
    sent = []
    here._send = lambda path, target: sent.append(path.name)
    here.push()
    assert sent == ["status.json"], "what is as it was is not copied again"


def test_who_looks_on_fetches_no_checkpoints(disks):
    """The sweep's process, every ten seconds; they come when the run goes on there."""
    here, there = disks
    checkpoint = here.run.checkpoints / "step-00000003" / "model.safetensors"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_bytes(b"weights")
    here.run.write_status(RunStatus(here.run.run_id, status=State.RUNNING, step=3, updated=3.0))
    here.push()
    _pulled(there)
    assert there.run.read_status().step == 3 and not there.run.checkpoints.exists()
    assert there.pull()
    assert (there.run.checkpoints / "step-00000003" / "model.safetensors").read_bytes() == b"weights"


def test_what_is_behind_is_not_fetched(disks):
    here, there = disks
    for mirror, step in ((here, 3), (there, 6)):
        mirror.run.path.mkdir(parents=True)
        mirror.run.write_status(RunStatus(mirror.run.run_id, step=step, updated=float(step)))
    here.push()
    assert not there.pull() and there.run.read_status().step == 6


def test_references_travel_by_content(disks):
    here, there = disks
    here.cache.mkdir(parents=True)
    (here.cache / "abc.parquet").write_bytes(b"likelihoods")
    here.push_caches()
    there.pull_caches()
    assert (there.cache / "abc.parquet").read_bytes() == b"likelihoods"


def test_a_probe_leaves_nothing_and_says_what_is_wrong(bucket, disks):
    before = objects(bucket[1])
    disks[0].probe()
    assert objects(bucket[1]) == before
    with pytest.raises(StorageUnavailableError, match=r"execution\.storage: 's3://no-such.*cannot be used") as caught:
        Mirror(bucket[0].replace("s3://cells", "s3://no-such-bucket"), disks[0].run).probe()
    assert classify(caught.value) == "transient"
