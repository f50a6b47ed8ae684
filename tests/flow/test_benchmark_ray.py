"""A real Ray cluster of two nodes: one dies half-way, and the summary is that of a run without Ray."""

import json
import subprocess
import sys

import pytest

from builders.clusters import cluster_environment  # noqa: F401
from builders.grids import events, executed_twice, run_inline, small_grid
from gcemil.benchmark.results import Results, read_log

pytest.importorskip("ray", reason="needs the extra 'cluster': pip install 'gcemil[cluster]'")

GRID = small_grid(settings={"epochs": 6}, diagnostics=["snr"], resources={"memory_gb": 0.5})

CHILD = '''
"""Runs the grid on two nodes and kills the second one while it trains, once a first fold is over."""
import json, sys, threading, time
from pathlib import Path
from ray.cluster_utils import Cluster
from gcemil.benchmark.engines import run_grid
from gcemil.benchmark.grid import Grid
from gcemil.benchmark.results import Results, read_log

grid, results = Grid.model_validate_json(sys.argv[1]), Results(Path(sys.argv[2]))
node_settings = {"num_cpus": 1, "memory": 2**30, "include_dashboard": False}
cluster = Cluster(initialize_head=True, head_node_args=node_settings)
node = cluster.add_node(num_cpus=1, memory=2**30)
raylet = node.all_processes["raylet"][0].process.pid


def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def trains_on_second_node():
    """A fold at work there, once a first one is over: early enough that the second node surely has one left."""
    log = [record for record in read_log(results) if record["key"].count("/") == 5]
    over = {record["key"] for record in log if record["event"] == "end"}
    at_work = [record for record in log if record["event"] == "start" and record["key"] not in over]
    for record in at_work if over else []:
        try:
            if parent(record["pid"]) == raylet:
                return record["key"]
        except FileNotFoundError:
            pass
    return None


killed = []


def kill_half_way():
    while not killed:
        if key := trains_on_second_node():
            cluster.remove_node(node, allow_graceful=False)
            killed.append(key)
        time.sleep(0.02)


threading.Thread(target=kill_half_way, daemon=True).start()
outcomes = run_grid(grid, results, 2, cluster=cluster.address)
print(json.dumps({"killed": killed, "endings": sorted({outcome.ending for outcome in outcomes.values()})}))
cluster.shutdown()
'''


@pytest.mark.slow
def test_a_node_that_dies_half_way_changes_nothing(tmp_path, cluster_environment):  # noqa: F811
    run_inline(GRID, tmp_path / "here")
    arguments = [GRID.model_dump_json(), str(tmp_path / "ray")]
    child = subprocess.run(
        [sys.executable, "-c", CHILD, *arguments],
        env=cluster_environment,
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    report = json.loads(child.stdout.splitlines()[-1])
    assert report["endings"] == ["finished"]
    (lost,) = report["killed"]
    # The fold that the node took with it was started again elsewhere; no other was, and none after its end.
    started = [key for key, event in events(tmp_path / "ray") if event == "start"]
    assert [key for key in set(started) if started.count(key) > 1] == [lost]
    assert executed_twice(tmp_path / "ray") == []
    assert len({record["pid"] for record in read_log(Results(tmp_path / "ray"))}) > 1
    here, there = (tmp_path / name / "summary.json" for name in ("here", "ray"))
    assert there.read_bytes() == here.read_bytes()
