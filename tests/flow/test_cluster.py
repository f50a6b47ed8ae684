"""Commands on a real Ray cluster of two nodes, a worker and then a node of which die, beside one process."""

import csv
import json
import subprocess
import sys

import numpy as np
import pytest

from builders.clusters import cluster_environment  # noqa: F401
from builders.runs import make_runs
from gcemil.bags import store
from gcemil.bags.cohort import Cohort
from gcemil.device import one_thread
from gcemil.diagnostics.diagnose import Comparison, diagnose_run
from gcemil.exports.new_slides import NewSlides, PredictOptions, find_inputs

pytest.importorskip("ray", reason="needs the extra 'cluster': pip install 'gcemil[cluster]'")

SLIDES, PATCHES = 300, 3000

CHILD = '''
"""Predicts new slides on two nodes; kills a worker of the second after 40 slides, and that node after 120."""
import json, os, signal, sys, threading, time
from pathlib import Path
from ray.cluster_utils import Cluster
from gcemil.diagnostics.diagnose import Comparison, diagnose_run
from gcemil.exports.new_slides import NewSlides, PredictOptions, find_inputs

run, slides, out = map(Path, sys.argv[1:])
node_settings = {"num_cpus": 1, "memory": 2**30, "include_dashboard": False}
cluster = Cluster(initialize_head=True, head_node_args=node_settings)
node = cluster.add_node(num_cpus=1, memory=2**30)
raylet = node.all_processes["raylet"][0].process.pid
killed = {}


def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def workers_at_work():
    """Workers of the second node that have a slide in hand."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            at_work = b"ray::_do_job" in (folder / "cmdline").read_bytes()
            if at_work and parent(folder.name) == raylet:
                found.append(int(folder.name))
        except OSError:
            pass
    return found


def kill_half_way():
    while "node" not in killed:
        done = len(list((out / "records").glob("*.json")))
        if done >= 40 and "worker" not in killed:
            for pid in workers_at_work()[:1]:
                os.kill(pid, signal.SIGKILL)
                killed["worker"] = done
        elif done >= 120 and workers_at_work():
            cluster.remove_node(node, allow_graceful=False)
            killed["node"] = done
        time.sleep(0.005)


threading.Thread(target=kill_half_way, daemon=True).start()
started = time.monotonic()
opened = NewSlides.open(run, PredictOptions())
found = opened.predict(find_inputs([slides]).files, out, cluster=cluster.address)
seconds = time.monotonic() - started
diagnose_run(Comparison(run), names=["budget"], cluster=cluster.address)
print(json.dumps({"killed": killed, "slides": len(found), "seconds": round(seconds, 1)}))
cluster.shutdown()
'''


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cluster")
    runs = make_runs(folder)
    cohort = Cohort.load(runs.cohort)
    draws = np.random.default_rng(0)
    for number in range(SLIDES):
        source = cohort.feature_file(cohort.slides[number % len(cohort.slides)].slide_id)
        features = store.read(source, "features").astype(np.float32)
        rows = draws.integers(0, len(features), PATCHES)
        drawn = features[rows] + draws.normal(scale=0.1, size=(PATCHES, features.shape[1]))
        coords = 256 * np.stack(np.divmod(np.arange(PATCHES), 60), axis=1)
        store.write(
            folder / "new" / f"new_{number:03d}.h5",
            {"features": drawn.astype(np.float16), "coords": coords},
        )
    return folder, runs


def contents(folder):
    """Every file but the lock, and what a killed worker had not finished writing, which is hidden too."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {path.relative_to(folder): path.read_bytes() for path in files}


@pytest.mark.slow
def test_a_worker_and_a_node_that_die_lose_no_slide(trained, cluster_environment):  # noqa: F811
    folder, runs = trained
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(runs.gce), str(folder / "new"), str(folder / "there")],
        env=cluster_environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    report = json.loads(child.stdout.splitlines()[-1])
    print(report)
    assert set(report["killed"]) == {"worker", "node"}
    assert report["slides"] == SLIDES
    with (folder / "there" / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len({row["slide_id"] for row in rows}) == len(rows) == SLIDES
    assert {row["status"] for row in rows} == {"done"}
    # A task has one core, and sums over two threads end in other bits.
    with one_thread():
        opened = NewSlides.open(runs.gce, PredictOptions())
        opened.predict(find_inputs([folder / "new"]).files, folder / "here")
    assert contents(folder / "there") == contents(folder / "here")
    measured = runs.gce / "fold_0" / "diagnostics" / "budget.json"
    on_cluster = json.loads(measured.read_text())["rows"]
    diagnose_run(Comparison(runs.gce), names=["budget"], again=True, jobs=1)
    assert json.loads(measured.read_text())["rows"] == on_cluster
