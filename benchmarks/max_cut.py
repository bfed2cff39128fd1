"""Max-cut on small public graphs: `solve` beside an exact solver, SCIP.

    pip install 'aprune[rivals]'
    python benchmarks/max_cut.py

One thread; times are those of the CPU. Writes benchmarks/results/max_cut.json.
"""

import json
import time
from pathlib import Path
from typing import Any

import torch
from subsets import WAYS, minus_cut
from torch import Tensor

from aprune import solve

Edges = list[tuple[int, int]]

# Zachary's karate club, an edge for each pair of friends: the higher numbers that 1, 2, … have
KARATE = {
    1: (2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 18, 20, 22, 32),
    2: (3, 4, 8, 14, 18, 20, 22, 31),
    3: (4, 8, 9, 10, 14, 28, 29, 33),
    4: (8, 13, 14),
    5: (7, 11),
    6: (7, 11, 17),
    7: (17,),
    9: (31, 33, 34),
    10: (34,),
    14: (34,),
    15: (33, 34),
    16: (33, 34),
    19: (33, 34),
    20: (34,),
    21: (33, 34),
    23: (33, 34),
    24: (26, 28, 30, 33, 34),
    25: (26, 28, 32),
    26: (32,),
    27: (30, 34),
    28: (34,),
    29: (32, 34),
    30: (33, 34),
    31: (33, 34),
    32: (33, 34),
    33: (34,),
}


def from_lcf(jumps: list[int], times: int) -> Edges:
    """Return a cubic graph: a ring, and a chord from every node that jumps so far along it."""
    size = len(jumps) * times
    ring = {frozenset((i, (i + 1) % size)) for i in range(size)}
    chords = {frozenset((i, (i + jumps[i % len(jumps)]) % size)) for i in range(size)}
    return [(min(edge), max(edge)) for edge in ring | chords]


def torus(width: int) -> Edges:
    """Return a square grid whose sides are joined."""
    at = [(i, j) for i in range(width) for j in range(width)]
    right = [(i * width + j, i * width + (j + 1) % width) for i, j in at]
    down = [(i * width + j, (i + 1) % width * width + j) for i, j in at]
    return right + down


GRAPHS: dict[str, Edges] = {
    "Frucht": from_lcf([-5, -2, -4, 2, 5, -2, 2, 5, -2, -5, 4, 2], 1),
    "dodecahedron": from_lcf([10, 7, 4, -4, -7, 10, -4, 7, -7, 4], 2),
    "Desargues": from_lcf([5, -5, 9, -9], 5),
    "Tutte-Coxeter": from_lcf([-13, -9, 7, -7, 9, 13], 5),
    "karate club": [(a - 1, b - 1) for a, friends in KARATE.items() for b in friends],
    "torus 9 x 9": torus(9),
    "torus 21 x 21": torus(21),
}


def to_matrix(edges: Edges) -> Tensor:
    size = 1 + max(map(max, edges))
    graph = torch.zeros(size, size, dtype=torch.float64)
    for a, b in edges:
        graph[a, b] = graph[b, a] = 1.0
    return graph


def by_scip(edges: Edges, limit: float) -> dict[str, Any]:
    from pyscipopt import Model, quicksum

    model = Model()
    model.hideOutput()
    model.setParam("timing/clocktype", 1)  # of the CPU
    model.setParam("limits/time", limit)
    v = [model.addVar(vtype="B") for _ in range(1 + max(map(max, edges)))]
    cut = [model.addVar(ub=1.0) for _ in edges]
    for one, (a, b) in zip(cut, edges, strict=True):
        model.addCons(one <= v[a] + v[b])
        model.addCons(one <= 2 - v[a] - v[b])
    model.addCons(v[0] == 0)
    model.setObjective(quicksum(cut), "maximize")
    start = time.process_time()
    model.optimize()
    seconds = time.process_time() - start
    return {"cut": round(model.getObjVal()), "seconds": seconds, "status": model.getStatus()}


def main() -> None:
    torch.set_num_threads(1)
    rows = []
    for name, edges in GRAPHS.items():
        graph = to_matrix(edges)
        got = by_scip(edges, 120.0)
        size = {"graph": name, "nodes": len(graph), "edges": len(edges)}
        rows.append({**size, "way": "SCIP", **got})
        print(f"{name}, {len(graph)} nodes, {len(edges)} edges\n  SCIP {got}", flush=True)
        for way, settings in WAYS.items():
            start = time.process_time()
            (found,) = solve(minus_cut, len(graph), data=[graph[None]], progress=False, **settings)
            row = {"way": way, "cut": round(-found.value), "seconds": time.process_time() - start}
            rows.append({**size, **row})
            print(f"  {way:20} {row['cut']} {row['seconds']:.2f} s", flush=True)
    out = Path("benchmarks/results/max_cut.json")
    out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
