"""What is left of a private Ray whose head died: nothing, not even what its raylet was about to start."""

import shutil
import subprocess
import sys

import psutil

#: Stands for a raylet: it goes on starting workers, each of which would live for a minute without it.
RAYLET = """
import subprocess, sys, time
while True:
    subprocess.Popen([sys.argv[1], "60"])
    time.sleep(0.005)
"""
ENDED = """
import subprocess, sys, time
import psutil
from rcray.sweep.head import _end_family
raylet = psutil.Process(subprocess.Popen([sys.executable, *sys.argv[1:]]).pid)
while not raylet.children():
    time.sleep(0.05)
_end_family()
"""


def test_nothing_is_started_while_the_family_is_ended(tmp_path):
    folder = tmp_path / "ray"
    folder.mkdir()
    worker, raylet = folder / "worker", folder / "raylet.py"
    shutil.copy(shutil.which("sleep"), worker)
    raylet.write_text(RAYLET)
    subprocess.run([sys.executable, "-c", ENDED, str(raylet), str(worker)], check=True, timeout=120)
    left = [p for p in psutil.process_iter(["cmdline"]) if any(str(folder) in part for part in p.info["cmdline"] or [])]
    alive = [p for p in left if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    for process in alive:
        process.kill()
    assert alive == []
