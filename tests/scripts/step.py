"""scripts/bench/step's steps by their number of tokens and texts: how a step's launches are cut and what it takes, that none of those shown
falls behind a smaller one, and, of a build with the emulated device, that the recorded launches are those of today.

    step.py SOURCE_DIR [GPURUN_EMU]"""
import importlib.machinery
import importlib.util
import json
import os
import sys
import unittest

ROOT, PROGRAM = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
sys.path.insert(0, os.path.join(ROOT, "scripts", "bench"))
import sweep  # noqa: E402

loader = importlib.machinery.SourceFileLoader("bench_step", os.path.join(ROOT, "scripts", "bench", "step"))
step = importlib.util.module_from_spec(importlib.util.spec_from_loader("bench_step", loader))
loader.exec_module(step)
with open(os.path.join(ROOT, "scripts", "bench", "results", "sass.json"), encoding="utf-8") as f:
    SASS = json.load(f)


def names(found, kind, n):
    return next(names for first, last, names in found[kind] if first <= n <= last)


class Record(unittest.TestCase):
    @unittest.skipUnless(PROGRAM, "there is no emulated device in this build")
    def test_launches_are_those_of_today(self):
        today, kept = sweep.record(PROGRAM), sweep.read()
        for kind, most in sweep.MOST.items():
            for n in range(1, most + 1):
                self.assertEqual(names(kept, kind, n), names(today, kind, n), f"{n} {kind}: scripts/bench/step --record; scripts/bench/step --write")

    def test_forms_of_products(self):
        """One token has a kernel; streams of weights take more while L1 holds packed x, 14 of 4,096 columns and 4 of 14,336, then tiles on wgmma."""
        found = sweep.read()
        for n, wide, long in ((1, "mv1", "mv1"), (2, "mv_q", "mv_q"), (4, "mv_q", "mv_q"), (5, "mv_q", "tile_sm90"), (8, "mv_q", "tile_sm90"),
                              (9, "mv3", "tile_sm90"), (14, "mv3", "tile_sm90"), (15, "tile_sm90", "tile_sm90"), (128, "tile_sm90", "tile_sm90")):
            products = [name for name in sweep.pieces(names(found, "tokens", n))[1] if name.startswith("matmul_") and not name.startswith("matmul_x")]
            self.assertEqual(len(products), 4, n)
            for role, name in zip(sweep.ROLES[4], products):
                self.assertTrue(name.startswith(f"matmul_{long if role == 'down' else wide}"), (n, role, name))


class Law(unittest.TestCase):
    def test_none_falls_behind(self):
        for kind, steps in sweep.predict(step, SASS, sweep.read()).items():
            self.assertEqual(sweep.steps_down(sweep.rates(step, steps)), [], kind)

    def test_falling_behind(self):
        self.assertEqual(sweep.steps_down({1: 100, 2: 98, 3: 96, 4: 120, 5: 117}), [(3, 1, 1 - 96 / 100)])
        found = sweep.steps_down({1: 10, 2: 5, 3: 4, 4: 20, 5: 10})
        self.assertEqual([(n, best) for n, best, _ in found], [(2, 1), (3, 1), (5, 4)])
        self.assertEqual(sweep.down_text(found, "tokens"), "2 to 3 tokens up to 60 % below 1; 5 tokens up to 50 % below 4")

    def test_streams_of_24_tokens_would_fall_behind(self):
        """Why the host takes tiles for them: the same launches as of 14 tokens take longer than tiles of 32."""
        found = sweep.read()
        stream = sweep.Step(step, SASS, names(found, "tokens", 14), "tokens", 24)
        tiles = sweep.Step(step, SASS, names(found, "tokens", 32), "tokens", 32)
        self.assertGreater(stream.us(), 1.5 * tiles.us())

    def test_reads_that_miss(self):
        self.assertEqual(sweep.missed(99, 100), 0)
        self.assertLess(sweep.missed(101, 100), 0.1)
        self.assertGreater(sweep.missed(300, 100), 0.9)

    def test_a_step_is_what_its_launches_take(self):
        """Layers between count 14 times more, and a step is not faster than its bytes."""
        found = sweep.read()
        for kind in found:
            for n in sweep.SHOWN[kind]:
                one = sweep.Step(step, SASS, names(found, kind, n), kind, n)
                cut = sweep.pieces(names(found, kind, n))
                self.assertEqual(one.n_launch, sum(map(len, cut)) + 14 * (len(cut[1]) + len(cut[3])))
                self.assertGreater(one.us(), 4.6e9 / step.BANDWIDTH * step.US)
                self.assertEqual(set(one.bounds), set(sweep.BOUNDS))

    def test_one_token_is_as_the_table_of_launches_has_it(self):
        rows, output = step.predict(0, SASS)
        us = sum(row[-1] * layers for row, layers in rows.items()) + output
        self.assertAlmostEqual(sweep.predict(step, SASS, sweep.read())["tokens"][1].us() / us, 1, delta=0.05)


if __name__ == "__main__":
    sys.argv[1:] = []
    unittest.main()
