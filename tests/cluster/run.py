"""A comparison on a local Ray cluster of two nodes, one of which dies in the middle.

    python tests/cluster/run.py OUT

Prints how many runs there were when the node died, and the status of the command.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

from aprune.cli import main

COMMAND = "reproduce figure5 --scale small --parent mlp --budget quick --seeds 2 --sparsity 0.9"
PATIENCE = 60
ENOUGH = 5  # runs before the node dies: its workers are at the next ones by then


def kill(cluster: Cluster, node: object, out: Path, seen: list[int]) -> None:
    while len(found := list(out.glob("runs/*.json"))) < ENOUGH:
        time.sleep(0.02)
    cluster.remove_node(node, allow_graceful=False)
    seen.append(len(found))


if __name__ == "__main__":
    place = Path(sys.argv[1])
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    second = cluster.add_node(num_cpus=1)
    os.environ["RAY_ADDRESS"] = cluster.address  # as the user says where it is
    seen: list[int] = []
    killer = threading.Thread(target=kill, args=(cluster, second, place, seen), daemon=True)
    killer.start()
    status = main([*COMMAND.split(), "--on", "ray", "--device", "cpu", "--out", str(place)])
    killer.join(timeout=PATIENCE)
    ray.init(log_to_driver=False, logging_level="ERROR")
    end = time.monotonic() + PATIENCE  # a busy machine takes a while to notice that a node is dead
    while (alive := sum(node["Alive"] for node in ray.nodes())) > 1 and time.monotonic() < end:
        time.sleep(0.1)
    Path(sys.argv[2]).write_text(json.dumps({"status": status, "seen": seen, "alive": alive}))
    ray.shutdown()
    cluster.shutdown()
