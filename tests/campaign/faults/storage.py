"""The disk under the store: full, or read-only. In a mount namespace of its own, which takes its mounts with it."""

import contextlib
import functools
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.campaign.faults.ground import Ground

SIZE = "96m"
_BLOCK = 1 << 20


@functools.cache
def namespace() -> tuple[str, ...] | None:
    """The command that runs another where it may mount, tried out; None where there is none."""
    kinds = [("unshare", "--mount", "--propagation", "private"), ("unshare", "--mount", "--map-root-user")]
    with tempfile.TemporaryDirectory() as folder:
        probe = ("mount", "-t", "tmpfs", "-o", "size=1m", "none", folder)
        for kind in kinds:
            with contextlib.suppress(OSError):
                if subprocess.run([*kind, *probe], capture_output=True, check=False).returncode == 0:
                    return kind
    return None


def mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"mount {' '.join(arguments)}: {done.stderr}"


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    mount("-t", "tmpfs", "-o", f"size={SIZE}", "none", str(folder))
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


def fill(path: Path) -> None:
    """Writes until nothing more fits, down to the last byte."""
    with path.open("wb", buffering=0) as file:
        for size in (_BLOCK, 4096, 1):
            with contextlib.suppress(OSError):
                while file.write(b"\x00" * size):
                    pass


def full_disk(ground: Ground) -> str:
    command = ground.start()
    run = ground.await_moment(command, ground.half_done)
    filler = ground.store.root / "filler"
    step = run.read_status().step
    fill(filler)
    said = command.wait(expect=1)
    error = said[said.index("error:") :]
    assert f"store {ground.store.root}: No space left on device" in error, said
    assert "free space there; the same command continues" in error, said
    assert len(error.splitlines()) <= 5, f"more than a few lines: {error}"
    filler.unlink()
    return f"full at step {step}; one clear error; freed"


def read_only(ground: Ground) -> str:
    root = str(ground.store.root)
    before = {path: os.stat(path).st_mtime_ns for path in ground.store.root.rglob("*")}
    mount("--bind", root, root)
    try:
        mount("-o", "remount,bind,ro", root)
        said = ground.run(expect=1)
    finally:
        subprocess.run(["umount", root], check=False)
    assert f"store {root}: cannot be written: Read-only file system" in said, said
    assert "make it writable, or give another --store" in said, said
    assert len(said.splitlines()) <= 3, said
    after = {path: os.stat(path).st_mtime_ns for path in ground.store.root.rglob("*")}
    assert after == before, "something was changed"
    return "refused in two lines, nothing started; made writable"
