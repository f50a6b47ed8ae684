import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gcemil.errors import CohortError, MissingExtraError, WorkerError
from gcemil.processes import run_jobs

PARENT = """
import signal, sys, time
# A shell that starts the tests in the background has them ignore Ctrl-C, and their children with them.
signal.signal(signal.SIGINT, signal.default_int_handler)
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_processes import sleeping
from gcemil.processes import run_jobs
if __name__ == "__main__":
    for _ in run_jobs(sleeping, [Path(sys.argv[2]) / "a", Path(sys.argv[2]) / "b"], 2):
        pass
"""


UNGUARDED = """
import sys
sys.path.insert(0, sys.argv[1])
from test_processes import own_process
from gcemil.processes import run_jobs
print(sorted({pid for _, pid in run_jobs(own_process, [1, 2], 2)}), flush=True)
"""


def own_process(job):
    return os.getpid()


def test_a_script_without_a_guard_works_in_its_own_process(tmp_path):
    script = tmp_path / "script.py"
    for guard, text in (
        (False, UNGUARDED),
        (True, UNGUARDED.replace("print(", "if __name__ == '__main__':\n    print(")),
    ):
        script.write_text(text)
        process = subprocess.Popen(
            [sys.executable, str(script), str(Path(__file__).parent)],
            stdout=subprocess.PIPE,
            text=True,
        )
        said, _ = process.communicate(timeout=100)
        assert process.returncode == 0
        assert (said == f"[{process.pid}]\n") is not guard


def sleeping(path: Path):
    path.with_suffix(".aside").write_text(str(os.getpid()))
    path.with_suffix(".aside").replace(path)
    time.sleep(120)


def failing(what):
    if what == "ours":
        raise CohortError("slides.csv is missing")
    raise MissingExtraError("ray", "cluster")


def dying(slide):
    if slide == "s7":
        os.kill(os.getpid(), signal.SIGSEGV)
    return slide


def is_alive(pid: int) -> bool:
    """A process that has ended and was not yet waited for counts as gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("what", "kind", "text"),
    [
        ("ours", CohortError, "slides.csv is missing"),
        ("extra", MissingExtraError, "pip install 'gcemil.cluster.'"),
    ],
)
def test_what_a_job_raises_is_raised_by_whoever_gave_it(what, kind, text):
    with pytest.raises(kind, match=text):
        list(run_jobs(failing, [what], 1))


def test_a_worker_that_dies_is_reported_with_what_to_do():
    with pytest.raises(WorkerError, match=r"A worker process died, .* run the same command again"):
        list(run_jobs(dying, ["s1", "s7"], 1))


@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_workers_end_with_their_parent(tmp_path, kind):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen(
        [sys.executable, str(script), str(Path(__file__).parent), str(tmp_path)],
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while not ((tmp_path / "a").is_file() and (tmp_path / "b").is_file()):
            assert parent.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        pids = [int((tmp_path / name).read_text()) for name in ("a", "b")]
        parent.send_signal(kind)
        parent.wait(60)
        deadline = time.monotonic() + 10
        while any(is_alive(pid) for pid in pids) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not [pid for pid in pids if is_alive(pid)]
    finally:
        parent.kill()
        parent.wait()
