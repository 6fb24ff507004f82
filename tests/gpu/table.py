"""scripts/gpu/table and the goals it judges, on results that are made up.   table.py SOURCE"""
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest
from contextlib import redirect_stderr
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader

SOURCE = sys.argv.pop(1)
sys.path.insert(0, os.path.join(SOURCE, "scripts", "gpu"))
import counters  # noqa: E402
import goals  # noqa: E402

loader = SourceFileLoader("table", os.path.join(SOURCE, "scripts", "gpu", "table"))
table = module_from_spec(spec_from_loader("table", loader))
loader.exec_module(table)

CEILINGS = [{"op": "read", "impl": "device", "shape": "all", "bytes": 4e6, "flops": 0, "median_us": 1.0, "session": "s"},
            {"op": "peak", "impl": "cublas", "shape": "", "bytes": 1, "flops": 8e8, "median_us": 1.0, "session": "s"},
            {"op": "h2d", "impl": "device", "shape": "pinned", "bytes": 5e4, "flops": 0, "median_us": 1.0, "session": "s"}]


def row(part, impl, of_limit, session="s"):
    """A figure of the part at this share of its limit, or at a speed of it where there is none."""
    x = {"type": "f16", "shape": "", "n_tok": 1, "cache": "f16", **part.row, "impl": impl, "session": session,
         "rel_err": 0 if part.row["op"] in ("sample", "kv_copy") else 1e-3,
         "rotated_mb": 400, "bytes": 4e7, "flops": 0}
    most = goals.Bound(CEILINGS).speed(x) if x["op"] not in ("logits", "sample") else 1
    most = most or 1
    if x["op"] == "model":
        x |= {"tok_s": most * of_limit, "runs": [most * of_limit] * 2}
    elif x["op"] == "logits":
        x["kl"] = 1 / of_limit
    else:
        x["median_us"] = 1 / (most * of_limit)
    return x


def figures(ours, theirs):
    found = list(CEILINGS)
    for part in goals.parts():
        found.append(row(part, "gpurun", ours))
        for against in part.against:
            if against.impl not in ("limit", "overhead"):
                found.append(row(part, {"sdpa": "sdpa_flash"}.get(against.impl, against.impl), theirs))
    return found


def status(figures_, goal):
    return {v.status for v in goals.verdicts(figures_) if v.part.goal == goal}


class Goals(unittest.TestCase):
    def test_all_are_there(self):
        self.assertEqual({part.goal for part in goals.parts()}, set(range(1, 23)))
        for part in goals.parts():
            for against in part.against:
                self.assertLessEqual(against.floor, against.goal, part.what)

    def test_met_floor_missed(self):
        best = figures(0.97, 0.015)
        for goal in range(1, 23):
            self.assertEqual(status(best, goal), {"met"}, goal)
        for goal in (1, 2, 3, 7, 8, 10):
            self.assertEqual(status(figures(0.6, 0.28), goal), {"floor"}, goal)
            self.assertEqual(status(figures(0.9, 0.8), goal), {"missed"}, goal)  # fast, and the peer nearly as fast
            self.assertEqual(status(figures(0.3, 0.01), goal), {"missed"}, goal)  # faster than the peer, and slow

    def test_nothing_measured(self):
        for v in goals.verdicts([]):
            self.assertEqual((v.status, v.why), ("not measured", "no row"))

    def one(self, change, goal=14):
        """The judgement of the goal's first part when its row of gpurun is changed."""
        all_ = figures(0.97, 0.015)
        part = next(p for p in goals.parts() if p.goal == goal)
        change(next(x for x in all_ if x["impl"] == "gpurun" and goals.matches(x, part.row)))
        return goals.judge(part, all_, goals.Bound(all_))

    def test_rows_that_do_not_count(self):
        for change, why in ((lambda x: x.pop("rel_err"), "no error"), (lambda x: x.update(rel_err=None), "no error"),
                            (lambda x: x.update(rel_err=float("nan")), "no error"), (lambda x: x.update(rel_err=0.1), "an error of 1e-01"),
                            (lambda x: x.pop("rotated_mb"), "no rotation"),
                            (lambda x: x.update(rotated_mb=33), "only 33 MB rotated"), (lambda x: x.update(same=False), "runs differ"),
                            (lambda x: x.update(session="another"), "no row of llama.cpp from the same session")):
            v = self.one(change)
            self.assertEqual((v.status, v.why), ("not measured", why))
        v = self.one(lambda x: x.update(runs=[1.0, 1.1]), goal=1)
        self.assertEqual((v.status, v.why), ("not measured", "runs lie 10 % apart"))

    def test_one_of_two_peers_is_not_there(self):
        all_ = [x for x in figures(0.97, 0.015) if x["impl"] != "transformers"]
        v = next(v for v in goals.verdicts(all_) if v.part.goal == 4)
        self.assertEqual((v.status, v.why, v.peer["impl"]), ("met", "no row of transformers from the same session", "llama.cpp"))

    def test_an_error_as_large_as_the_peers(self):
        all_ = figures(0.97, 0.015)
        part = next(p for p in goals.parts() if p.goal == 14)
        for x in all_:
            if goals.matches(x, part.row):
                x["rel_err"] = 0.01 if x["impl"] == "gpurun" else 0.011
        self.assertEqual(goals.judge(part, all_, goals.Bound(all_)).status, "met")

    def test_the_peer_at_its_best(self):
        part = next(p for p in goals.parts() if p.goal == 10)
        all_ = CEILINGS + [row(part, "gpurun", 0.9), row(part, "llama.cpp", 0.1), row(part, "llama.cpp", 0.3), row(part, "llama.cpp", 0.2)]
        self.assertAlmostEqual(goals.judge(part, all_, goals.Bound(all_)).ratio, 3)

    def test_limits(self):
        """The predictions that are written down for 4.3 TB/s and 788 TFLOP/s."""
        bound = goals.Bound([])
        for name, test, cache, rate in (("8b-q4_k_m", "tg2", "f16", 922), ("8b-q4_k_m", "tg2 @ d4096", "f16", 827),
                                        ("8b-bf16", "tg2 @ d32768", "f16", 223), ("7b-q4_0", "tg2", "f16", 1147),
                                        ("8b-q4_k_m", "tg2 @ d32768", "q8_0", 619), ("8b-q4_k_m", "tg2x8 @ d4096", "f16", 3841),
                                        ("8b-q4_k_m", "tg2x64 @ d4096", "f16", 7052), ("30b-q4_k_m", "tg2x64 @ d4096", "f16", 6273),
                                        ("8b-q4_k_m", "pp4096", "f16", 52000)):
            self.assertAlmostEqual(bound.speed({"op": "model", "model": name, "test": test, "cache": cache}) / rate, 1, delta=0.02, msg=test)

    def test_predictions(self):
        found = {what: (expected, measured) for what, expected, measured, _ in goals.predictions(figures(0.5, 0.1))}
        expected, measured = found["tg128, 8B Q4_K_M"]
        self.assertTrue(measured < expected < 922, found)
        expected, measured = found["14336x4096 q4_K, 1 token"]
        self.assertAlmostEqual(measured / expected, 2)

    def test_steps_by_their_number(self):
        """Predicted beside measured, in order; what was measured below a smaller number is marked, what lacks an error not shown."""
        self.assertEqual(goals.steps([]), {})
        rows = [{"op": "model", "impl": "gpurun", "model": "8b-q4_k_m", "stage": "steps", "session": "s", "cache": "f16", "rel_err": 1e-3,
                 "rotated_mb": 4000, "test": test, "tok_s": rate, "runs": [rate, rate]}
                for test, rate in (("pp1", 700.0), ("pp24", 5000.0), ("pp32", 9000.0), ("pp16", 6000.0), ("tg16 @ d64", 710.0),
                                   ("tg16x8 @ d64", 4000.0))]
        found = goals.steps(rows + [{**rows[0], "test": "pp64", "rel_err": None}, {**rows[0], "test": "pp128", "stage": "prompts"}])
        self.assertEqual({kind: [(n, rate) for n, _, rate in kept] for kind, kept in found.items()},
                         {"tokens": [(1, 700), (16, 6000), (24, 5000), (32, 9000)], "texts": [(1, 710), (8, 4000)]})
        self.assertTrue(all(a[1] < b[1] for a, b in zip(found["tokens"], found["tokens"][1:])), found)
        shown = list(table.stepped({"figures": rows}))
        self.assertEqual([line.split(" | ")[0] for line in shown if "slower than" in line], ["| 24"])
        self.assertIn("slower than 16 |", "".join(shown))

    def test_the_worst_kernels(self):
        slow = next(p for p in goals.parts() if p.goal == 17 and p.row["type"] == "q8_0")
        all_ = figures(0.9, 0.1) + [{**row(slow, "gpurun", 0.2), "session": "later"}]
        found = counters.worst(all_)
        self.assertEqual((len(found), found[0][1]["op"], found[0][1]["type"]), (6, slow.row["op"], "q8_0"))
        self.assertAlmostEqual(found[0][0], 0.2)


class Table(unittest.TestCase):
    def shown(self, figures_, **more):
        """The tables of one result, and what is said about rows that are left out."""
        result = {"commit": "abc", "device": {"description": "a GPU"}, "date": "2026-01-02", "driver": "1", "emulated": False,
                  "sessions": {"s": {"command": "scripts/gpu/suite --run A", "date": "2026-01-02"}}, "stages": {},
                  "checks": [{"stage": "operations", "name": "x", "passed": True}], "figures": figures_, "notes": [], **more}
        said = io.StringIO()
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "a.json"), "w") as f:
                json.dump(result, f)
            with redirect_stderr(said):
                return table.text(folder), said.getvalue()

    def test_all(self):
        text, said = self.shown(figures(0.97, 0.015))
        self.assertEqual(said, "")
        self.assertIn("**a GPU**, driver 1, commit abc, 2026-01-02", text)
        self.assertIn("`scripts/gpu/suite --run A`", text)
        self.assertIn("| operations | 1 of 1 |", text)
        self.assertIn("22 goals in", text)
        for goal in range(1, 23):
            self.assertIn(f"\n| {goal} | ", text)
        self.assertNotIn("not measured:", text)

    def test_the_newest_file_of_a_device(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, session in (("b", "2026-01-02T03:00:00Z"), ("a", "2026-01-02T04:00:00Z")):
                with open(os.path.join(folder, name + ".json"), "w") as f:
                    json.dump({"device": {"description": "a GPU"}, "sessions": {session: {}}, "commit": name}, f)
            self.assertEqual([r["commit"] for r in table.newest(folder)], ["a"])

    def test_what_is_refused_is_said(self):
        all_ = figures(0.97, 0.015)
        next(x for x in all_ if x["impl"] == "gpurun" and x.get("test") == "tg128").pop("rel_err")
        text, said = self.shown(all_)
        self.assertIn("| 1 | tg128, 8B Q4_K_M | not measured: no error |", text)
        self.assertIn("table: refused: goal 1, tg128, 8B Q4_K_M: no error", said)

    def test_few_rows(self):
        text, _ = self.shown([])
        self.assertNotIn("| goal |", text)
        text, _ = self.shown(CEILINGS)
        self.assertEqual(text.count("not measured: no row"), len(list(goals.parts())))

    def test_counters(self):
        kernel = {"op": "ncu", "impl": "gpurun", "kernel": "gr_x", "share": 0.5, "dram": "40 %", "stage": "profile",
                  "of": {"op": "matmul", "type": "q4_K", "shape": "1x2", "n_tok": 1}}
        self.assertIn("| gr_x | q4_K 1x2, 1 tokens | 50 % | 40 % |", self.shown(CEILINGS + [kernel])[0])
        text, _ = self.shown(CEILINGS, notes=[{"stage": "profile", "name": "ncu", "why": "it is not installed here"}])
        self.assertIn("ncu: it is not installed here.", text)

    def test_emulated_results_are_not_shown(self):
        self.assertEqual(self.shown(figures(0.97, 0.015), emulated=True)[0], table.NONE)

    def test_counters_are_read(self):
        text = '==PROF== x\n"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n"0","gr_a(b)","DRAM Throughput","%","81.5"\n'
        self.assertEqual(counters.read(text), {"gr_a": {"dram": "81.5 %"}})
        self.assertEqual(counters.read("==ERROR== nothing"), {})


class Scripts(unittest.TestCase):
    def test_they_compile(self):
        folder = os.path.join(SOURCE, "scripts", "gpu")
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            if os.path.isdir(path):
                continue
            with open(path) as f:
                text = f.read()
            if name.endswith(".py") or "python3" in text.split("\n")[0]:
                compile(text, path, "exec")
            else:
                subprocess.run(["bash", "-n", path], check=True)


if __name__ == "__main__":
    unittest.main()
