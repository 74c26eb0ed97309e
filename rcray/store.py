"""Where things lie on disk: one class that knows every path under a store.

STORE/
  runs/RUN_ID/            one run, shared by every experiment that contains it
    config.yaml           the resolved configuration
    status.json           running, ok, failed, oom or degenerate; progress; error
    dynamics/*.parquet    one row per optimizer step
    checkpoints/          resumable state
    final/                the trained model and its tokenizer
    best/                 the model that ranked the probe pairs best, where asked for
    evaluation.json       metric rows
    samples.json          answers of its start model and of the trained one, where asked for
    items/KEY.parquet     what they are means of: every held-out pair, every document
    displaced/KEY.parquet the held-out pairs whose chosen answers fell most, token by token
    adjusted.json         what was changed so that it could run at all; absent in most runs
    environment.json      versions, packages and git state it was started with, if it was tracked
  cache/                  tiny models, reference likelihoods: by content, shared by every run
  experiments/NAME/       ledger.json, stopped.json, tracking.jsonl, sync.log, tables/, figures/, measurements.csv,
                          report.html, explore.html
  mlflow.db, mlartifacts/ the default tracking store
  store-id                tells this store's runs from another's on a shared tracking server
"""

import contextlib
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rcray.errors import RcrayError, StoreError
from rcray.files import FULL, FULL_FIX, WRITABLE_FIX, fix_of, storage_fault
from rcray.records.evaluation import Evaluation, read_evaluation
from rcray.records.states import State
from rcray.records.status import Adjustment, RunStatus, read_adjustment, read_status, recover_status, write_status

DEFAULT_STORE = Path("rcray-store")

_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def is_plain_name(name: str) -> bool:
    """Whether a name stays in its directory: no slash, no dots in front, nothing a shell or a path would read."""
    return _PLAIN_NAME.fullmatch(name) is not None


def plain_name(name: object, what: str) -> str:
    """The name, if it is one. Ledgers and servers carry names, too, and they are not ours."""
    if not isinstance(name, str) or not is_plain_name(name):
        raise StoreError(f"{what} {str(name)[:80]!r}: not a name of a directory", fix="letters, digits, . _ - only")
    return name


class _Within:
    """A file or a folder of a run's directory, by its name there."""

    def __init__(self, name: str):
        self._name = name

    def __get__(self, run: "RunDir", _: type) -> Path:
        return run.path / self._name


@dataclass(frozen=True)
class RunDir:
    """The files of one run."""

    path: Path

    config = _Within("config.yaml")  # the resolved configuration
    status = _Within("status.json")  # progress and outcome
    dynamics = _Within("dynamics")  # step records, in parts
    checkpoints = _Within("checkpoints")  # resumable state
    final = _Within("final")  # the trained model
    best = _Within("best")  # the model that ranked the probe pairs best, where it was to be kept
    profile = _Within("profile")  # where a step's time went, where asked for
    evaluation = _Within("evaluation.json")  # metric rows
    samples = _Within("samples.json")  # answers of its start model and of the trained one, where asked for
    adjusted = _Within("adjusted.json")  # what was changed so that the run could be carried out

    @property
    def run_id(self) -> str:
        """The directory is named by the run's identity."""
        return self.path.name

    @property
    def records(self) -> dict[str, Path]:
        """The small files, by name: all that is told of a run beside its steps, its items and its weights."""
        return {path.name: path for path in (self.config, self.status, self.evaluation, self.samples, self.adjusted)}

    def items(self, key: str) -> Path:
        """What the measurement with this key said of every pair or document."""
        return self.path / "items" / f"{key}.parquet"

    def displaced(self, key: str) -> Path:
        """The pairs of that measurement whose chosen answers fell most, token by token."""
        return self.path / "displaced" / f"{key}.parquet"

    def read_status(self) -> RunStatus:
        """The status as it stands; an error that names the file where it is damaged."""
        return read_status(self.status)

    def recover_status(self) -> RunStatus:
        """The status, for who trains the run: a damaged one is set aside, and made again by the run."""
        return recover_status(self.status)

    def write_status(self, status: RunStatus) -> None:
        """Replaces the status."""
        write_status(self.status, status)

    def read_evaluation(self) -> Evaluation:
        """What was measured on it; nothing for a run that was not evaluated."""
        return read_evaluation(self.evaluation)

    def scores(self) -> dict[str, float]:
        """Every score by `benchmark/metric`; none of a run that is not finished, or is degenerate."""
        return self.read_evaluation().scores() if self.read_status().status is State.OK else {}

    def read_adjusted(self) -> Adjustment:
        """What was changed; nothing for most runs."""
        return read_adjustment(self.adjusted)


@dataclass(frozen=True)
class Store:
    """A directory of runs, caches and experiments. The path is absolute: workers have other directories."""

    root: Path

    @classmethod
    def at(cls, path: Path | str) -> "Store":
        """The store of a path, as it is or is not."""
        return cls(Path(path).expanduser().resolve())

    @classmethod
    def open(cls, path: Path | str) -> "Store":
        """Makes the directory and proves that it can be written."""
        root = cls.at(path).root
        try:
            root.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=root, prefix=".writable-"):
                pass
        except OSError as error:
            raise StoreError(f"store {root}: cannot be written: {error.strerror or error}", fix=fix_of(error)) from None
        return cls(root)

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """What ends in here because the store takes no more is said as that, whatever was being written."""
        try:
            yield
        except Exception as error:
            if isinstance(error, RcrayError) or not (reason := storage_fault(error)):
                raise
            raise self.refusal(reason) from None

    def refusal(self, reason: str) -> StoreError:
        """The store takes no more."""
        return StoreError(f"store {self.root}: {reason}", fix=FULL_FIX if reason in FULL else WRITABLE_FIX)

    def run(self, run_id: str) -> RunDir:
        """The directory of one run."""
        return RunDir(self.root / "runs" / plain_name(run_id, "run"))

    @property
    def cache(self) -> Path:
        """Content-keyed files shared by every run."""
        return self.root / "cache"

    def experiment(self, name: str) -> Path:
        """The directory of one experiment's ledger and report."""
        return self.root / "experiments" / plain_name(name, "experiment")

    @property
    def default_tracking_uri(self) -> str:
        """An absolute SQLite URI: no server needed."""
        return f"sqlite:///{self.root / 'mlflow.db'}"
