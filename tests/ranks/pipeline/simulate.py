#!/usr/bin/env python3
"""Holds scripts/pipeline/simulate.py to what can be worked out by hand."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "scripts", "pipeline"))
import simulate

FREE = {"stage": 1000, "hop": [[0, 0]]}
failures = 0


def expect(what, found, want):
    global failures
    if abs(found - want) > 1e-6 * max(1, abs(want)):
        print(f"{what}: {want} expected, {found} found")
        failures += 1


def finish(costs, n_stage, n_group, n_step=1):
    return simulate.predict(costs, n_stage, n_group, 8, n_step).finished[-1]


for s in (1, 2, 5, 16):
    expect("one user waits for every stage", simulate.predict(FREE, s, 1, 1).per_step(), 1000 * s)
    expect("full groups keep every stage busy", simulate.busy(FREE, s, s, 8), 1)
    expect("chunks fill and drain the stages", finish(FREE, s, 12), 1000 * (12 + s - 1))
    if s > 1:
        costs = {**FREE, "hop": [[0, 50], [40, 70], [120, 110]], "bytes": 10, "back": 4}
        expect("hops and the way back come on top", simulate.predict(costs, s, 1, 8).per_step(), 1000 * s + (s - 1) * 90 + 66)
        expect("a group less than stages leaves a hole", simulate.busy(FREE, s, s - 1, 8), (s - 1) / s)
expect("who sleeps wakes up late", simulate.predict({**FREE, "wake": 50}, 3, 1, 1).per_step(), 3 * 1050 + 3 * 50)
expect("host work counts", simulate.predict({**FREE, "host": 10, "begin": 5, "order": 3}, 4, 1, 1).per_step(), 4 * 1010 + 5 + 9)
expect("one processor does the work of all stages", finish({"stage": 0, "host": 100, "hop": [[0, 0]], "cores": 1}, 4, 6), 4 * 6 * 100)
expect("a model is divided", simulate.predict({"stage": 800, "each": 10, "fixed": 5, "hop": [[0, 0]]}, 4, 1, 8).per_step(), 880 + 20)
sys.exit(failures > 0)
