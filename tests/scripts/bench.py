"""Rows of scripts/bench/speed: those that may be shown, and the tables of them; sizes of models, where numpy is installed, and, with gguf, weights."""
import copy
import importlib.util
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from contextlib import redirect_stderr

BENCH = os.path.join(sys.argv.pop(1), "scripts", "bench")
sys.path.insert(0, BENCH)
import rows  # noqa: E402
import shapes  # noqa: E402

try:
    import make_model
except ImportError:
    make_model = None

RUN = {"run": "2026-01-02T03:04:05Z", "date": "2026-01-02", "commit": "abc", "dirty": False, "cpu": "a processor", "cores": 2,
       "isa": "avx2", "threads": 2, "load_before": 0.1, "limit_gb_s": 10.0, "command": "scripts/bench/speed -n 4"}
TEST = {"op": "model", "sweep": "table", "model": "a model", "type": "q8_0", "test": "tg4", "n_prompt": 0, "n_gen": 4, "n_seq": 1,
        "n_depth": 0, "n_depth_others": 0}


def pair(ours=2.0, theirs=1.0, **more):
    peer = {**RUN, **TEST, "impl": "llama.cpp", "impl_rev": "1", "tok_s": theirs, "median_us": 4e6 / theirs, "best_us": 4e6 / theirs, "gb_s": 5.0, "runs": [theirs], **more}
    mine = {**peer, "impl": "gpurun", "impl_rev": "abc", "tok_s": ours, "median_us": 4e6 / ours, "best_us": 4e6 / ours, "ratio": round(1.015 * ours / theirs, 4),
            "rel_err": 1e-3, "kl": 1e-6, "top1": 1.0, "runs": [ours, 1.03 * ours], "frac_limit": 0.5}
    return [peer, mine]


def shown(all_):
    """Pairs that are accepted, and what is said about the others."""
    said = io.StringIO()
    with redirect_stderr(said):
        return list(rows.accepted(all_)), said.getvalue()


class Rows(unittest.TestCase):
    def test_a_pair_is_shown(self):
        found, said = shown(pair())
        self.assertEqual((len(found), said), (1, ""))
        self.assertIn("| a model Q8_0 | tg4 | 2.0 | 1.0 | 2.03 | 3 % | 5.0 of 10.0 | 50 % | 1e-03 | a |", rows.text(pair()))
        self.assertIn("- a: `scripts/bench/speed -n 4`, 2026-01-02, commit abc, a processor", rows.text(pair()))

    def test_without_error_or_origin_refused(self):
        for need in ("rel_err", "kl", "load_before", "command", "commit", "date", "cpu", "limit_gb_s"):
            all_ = copy.deepcopy(pair())
            del all_[1][need]
            found, said = shown(all_)
            self.assertEqual(found, [])
            self.assertIn(f"it lacks {need}", said)
        all_ = pair()
        all_[1]["rel_err"] = float("nan")
        self.assertEqual(shown(all_)[0], [])

    def test_without_the_peer_of_the_same_run_refused(self):
        self.assertIn("no row of llama.cpp", shown(pair()[1:])[1])
        for name, value in (("run", "another"), ("type", "q4_k"), ("test", "tg5"), ("model", "another"), ("sweep", "texts")):
            all_ = pair()
            all_[0][name] = value
            self.assertEqual(shown(all_)[0], [], name)
        all_ = pair()
        all_[1]["ratio"] *= 1.1
        self.assertIn("not that of the two", shown(all_)[1])

    def test_of_a_busy_machine_refused(self):
        for i, name in enumerate(("llama.cpp", "gpurun")):
            all_ = pair()
            all_[i]["runs"] = [1.0, 1.4]
            all_[1]["ratio"] = rows.paired(all_[1]["runs"], all_[0]["runs"])
            self.assertIn(f"runs of {name} lie 40 % apart", shown(all_)[1])
        all_ = pair()
        all_[1]["load_before"] = 5
        self.assertIn("more than the 2 cores", shown(all_)[1])

    def test_a_ratio_is_of_neighbours_in_time(self):
        """Memory twice as fast in the second round, and in the last run alone: neither changes what one side is to the other."""
        self.assertEqual(rows.paired([3.0, 3.0, 9.0, 3.0], [2.0, 4.0, 4.0]), 1.5)
        self.assertEqual(rows.paired([2.0, 4.0], [1.5]), 2.0)

    def test_one_run_of_many_may_be_far_off(self):
        self.assertAlmostEqual(rows.drift([1.0, 1.1, 1.0, 1.1, 9.0]), 0.1)
        self.assertAlmostEqual(rows.drift([1.0, 1.1, 1.0, 9.0]), 8.0)

    def test_the_newest_of_each_test(self):
        older, newer = pair(2.0), pair(3.0)
        for row in newer:
            row["run"], row["commit"] = "later", "def"
        other = pair(5.0, type="q4_k")
        text = rows.text(older + other + newer)
        self.assertIn("| 3.0 | 1.0 | 3.04 |", text)
        self.assertIn("| 5.0 | 1.0 | 5.08 |", text)
        self.assertNotIn("| 2.0 | 1.0 |", text)
        self.assertIn("commit def", text)
        elsewhere = pair(4.0)
        for row in elsewhere:
            row["run"], row["cpu"] = "elsewhere", "another processor"
        both = rows.text(older + elsewhere)
        self.assertIn("| 2.0 | 1.0 |", both)  # each machine keeps its rows ..
        self.assertIn("| 4.0 | 1.0 | 4.06 |", both)
        front = [dict(row, model=rows.FRONT[0][0], type=rows.FRONT[0][1], test=rows.FRONT[0][2]) for row in older + elsewhere]
        self.assertNotIn("| 2.0 | 1.0 |", rows.front(front))  # .. and the front page has the newest
        self.assertIn("another processor", rows.front(front))

    def test_other_programs(self):
        third = {**pair()[0], "impl": "transformers", "impl_rev": "5", "tok_s": 0.5}
        self.assertIn("- transformers (5), a model Q8_0, tg4: 0.5 tok/s, gpurun 4.00 times as fast (run a).", rows.text(pair() + [third]))
        self.assertNotIn("transformers", rows.text(pair() + [{**third, "run": "another"}]))

    def test_the_second_peer(self):
        """Columns of ik_llama.cpp where a run had it, none elsewhere."""
        other = [{**r, "run": "earlier"} for r in pair(type="q4_k")]
        ik = {**pair()[0], "impl": "ik", "impl_rev": "ik_llama.cpp 1", "tok_s": 1.5, "runs": [1.5]}
        text = rows.text(other + pair() + [ik])
        self.assertIn("| ratio | ik_llama.cpp, tok/s | ratio | drift |", text)
        self.assertIn("| a model Q8_0 | tg4 | 2.0 | 1.0 | 2.03 | 1.5 | 1.35 | 3 % |", text)
        self.assertIn("| a model Q4_K | tg4 | 2.0 | 1.0 | 2.03 |  |  | 3 % |", text)
        self.assertIn("; 1 and ik_llama.cpp 1 built for this processor", " ".join(text.split()))
        widths = {line.count("|") for line in text.splitlines() if line.startswith("|")}
        self.assertEqual(len(widths), 1, text)
        self.assertNotIn("ik_llama", rows.text(pair()))
        self.assertIn("runs of ik lie 40 % apart", shown(pair() + [{**ik, "runs": [1.0, 1.4]}])[1])

    def few(self, us_of, impls=("gpurun", "llama.cpp", "ik"), slow=1.5):
        """Prompts of 1 to 64 tokens, of 1 MB and 1 MFLOP a token, the peers slower."""
        for n in (1, 2, 4, 8, 16, 32, 64):
            for impl in impls:
                us = us_of(n) * (1 if impl == "gpurun" else slow)
                yield {**RUN, **TEST, "sweep": "few", "impl": impl, "test": f"pp{n}", "n_prompt": n, "n_gen": 0, "median_us": us,
                       "bytes": 1e6, "flops": n * 1e6, "tok_s": n * 1e6 / us, "runs": [n * 1e6 / us] * 2}

    def test_the_law_of_a_step(self):
        """50 us fixed, 100 us of memory at 10 GB/s, 5 us a token at 200 GFLOP/s; one point twice that."""
        law = lambda n: 50 + 100 + 5 * n
        found = next(r for r in rows.steps(list(self.few(law))) if r["impl"] == "gpurun")
        for name, value in (("fixed_us", 50), ("gflop_s", 200), ("off", 0)):
            self.assertAlmostEqual(found[name], value, places=1)
        self.assertEqual(found["points"][-1], [64, 470.0, 470.0])
        found = next(r for r in rows.steps(list(self.few(lambda n: law(n) * (1 + (n == 8))))) if r["impl"] == "gpurun")
        self.assertEqual(found["at"], 8)
        self.assertLess(found["off"], -0.2)
        self.assertEqual(list(rows.steps(list(self.few(law))[:9])), [])

    def test_the_checks_of_few_tokens(self):
        check = lambda *a, **k: next(rows.checks(list(self.few(*a, **k))))
        good = check(lambda n: 150 + 5 * n)
        self.assertEqual((good["slower"], good["behind"]), ([], []))
        self.assertEqual(check(lambda n: 100 * n * (1.02 if n == 8 else 1))["slower"], [])
        self.assertEqual(check(lambda n: 100 * n * (1.25 if n == 8 else 1))["slower"], [[8, 1, 0.8]])
        found = check(lambda n: 150 + 5 * n, slow=1.1)["behind"]
        self.assertEqual(found[:2], [[1, "llama.cpp", 1.1], [1, "ik", 1.1]])
        self.assertEqual(len(found), 14)
        self.assertIn("q8_0, tokens slower than fewer: 8 0.8 of 1\n", rows.checked([check(lambda n: 100 * n * (1.25 if n == 8 else 1))]))

    def test_nothing(self):
        self.assertIn("No result", rows.text([]))

    def test_growth(self):
        """A step of 100 us + 20 ns a cell; another text's cells cost nothing."""
        all_ = []
        for sweep, at, ns in (("context", "n_depth", 20), ("others", "n_depth_others", 0)):
            for n in (0, 1000, 2000, 4000):
                us = 100 + ns * n / 1000
                all_ += pair(4e6 / (4 * us), sweep=sweep, **{at: n})
        found = next(r for r in rows.growth(all_) if r["impl"] == "gpurun")
        self.assertAlmostEqual(found["own_ns"], 20)
        self.assertAlmostEqual(found["others_ns"], 0)
        self.assertAlmostEqual(found["start_us"], 100)
        self.assertGreater(found["r2"], 0.9999)

    def test_growth_that_is_noise_refused(self):
        row = {**RUN, "op": "growth", "impl": "gpurun", "own_ns": 20.0, "r2": 0.5}
        self.assertNotIn("a cell of the own text", self.costs([row]))
        self.assertIn("costs a step 20 ns", self.costs([{**row, "r2": 0.99}]))

    def costs(self, all_):
        with redirect_stderr(io.StringIO()):
            return "\n".join(rows.costs(all_))

    def test_law(self):
        """A prompt of 5 ms + 100 us a token + 2 ns a square."""
        all_ = []
        for n in (512, 1024, 2048, 4096, 8192):
            us = 5000 + 100 * n + 0.002 * n * n
            all_ += pair(n * 1e6 / us, sweep="prompt", n_prompt=n, n_gen=0, test=f"pp{n}")
            for row in all_[-2:]:
                row["median_us"] = us * (1 if row["impl"] == "gpurun" or n != 2048 else 2)
        mine, peer = rows.laws(all_)
        self.assertEqual((mine["impl"], peer["impl"]), ("gpurun", "llama.cpp"))
        for name, value in (("a_ms", 5), ("b_us", 100), ("c_ns", 2), ("off", 0), ("lo", 512), ("hi", 8192)):
            self.assertAlmostEqual(mine[name], value, places=2)
        self.assertGreater(peer["off"], rows.MOST_OFF)
        text = self.costs([{**RUN, **mine}, {**RUN, **peer}])
        self.assertIn("gpurun: a prompt of n tokens (512 to 8192, a model Q8_0) takes 5 ms + 100 µs n + 2.0 ns n²", text)
        self.assertNotIn("llama.cpp", text)
        self.assertEqual(list(rows.laws(all_[:4])), [])

    def test_load(self):
        base = {**RUN, "op": "load", "model": "a model", "type": "q8_0", "bytes": 8e8}
        peer = {**base, "impl": "llama.cpp", "impl_rev": "1", "ms": 300.0, "runs": [290.0, 310.0]}
        mine = {**base, "impl": "gpurun", "impl_rev": "abc", "ms": 200.0, "runs": [190.0, 200.0, 210.0], "ratio": 1.5}
        with redirect_stderr(io.StringIO()):
            self.assertIn("gpurun 200 ms (190 to 210), llama.cpp 300 ms (290 to 310): 1.50 times as fast", "".join(rows.loads([peer, mine])))
            for all_ in ([mine], [{**peer, "run": "another"}, mine], [{**peer, "ms": 400.0}, mine], [peer, {**mine, "load_before": 3}]):
                self.assertEqual(list(rows.loads(all_)), [])

    def test_the_peers_micro_batches(self):
        all_ = pair(n_prompt=1024, n_gen=0, test="pp1024", n_ubatch=2048)
        self.assertIn("built for this processor, micro-batches of 2048 (pp1024).", " ".join(rows.text(all_).split()))
        self.assertNotIn("micro-batches", rows.text(pair(n_ubatch=512)))

    def test_a_plot_that_is_missing(self):
        rows.plot, there = lambda sweep: sweep + ".none", rows.plot
        try:
            for sweep in rows.PLOTS:
                with self.assertRaises(SystemExit):
                    rows.text(pair(sweep=sweep))
        finally:
            rows.plot = there

    def test_host(self):
        row = {**RUN, "op": "host", "n_layer": 32, "n_depth": 0, "n_seq": 1, "cpu_us": 0.61}
        self.assertIn("0.6 µs for 1 x 0 cells, 0.6 µs for 1 x 4096 cells", self.costs([row, {**row, "n_depth": 4096}]))

    def test_names(self):
        self.assertEqual(rows.name_of({"n_prompt": 5, "n_gen": 4, "n_seq": 1, "n_depth": 3, "n_depth_others": 0}), "pp5+tg4 @ d3")
        self.assertEqual(rows.name_of({"n_prompt": 0, "n_gen": 4, "n_seq": 8, "n_depth": 0, "n_depth_others": 9}),
                         "tg4x8 @ d0 o9")

    def test_the_readmes_have_the_sections(self):
        for document, mark, made in rows.sections():
            self.assertEqual(*rows.with_section(document, *mark, made), "scripts/bench/rows.py --write")

    def test_front(self):
        made = rows.front(rows.read())
        for model, kind, test in rows.FRONT:
            self.assertIn(f"| {model} {kind.upper()} | {test} |", made)


LLAMA_BENCH = """
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
assert given["-rtr"] == "1" and given["-o"] == "json" and given["-t"] == "2", given
tests = [(int(p), 0) for p in given["-p"].split(",") if p != "0"] + [(0, int(n)) for n in given["-n"].split(",") if n != "0"]
print(json.dumps([{"build_commit": "abc", "repack": True, "n_prompt": p, "n_gen": n, "n_ubatch": int(u), "samples_ns": [1000 * (p + n) + int(u)] * int(given["-r"])}
                  for u in given["-ub"].split(",") for p, n in tests]))
"""
BATCHED_BENCH = """
given = dict(zip(sys.argv, sys.argv[1:]))
assert "-rtr" in given and "-pps" in given, given
n, depth = int(given["-ntg"]), int(given["-npp"])
counts = [int(x) for x in given["-npl"].split(",")]
assert int(given["-c"]) >= depth + n * max(counts)
print("|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |", file=sys.stderr)
for b in counts:
    print(f"|{depth:6d} | {n:6d} | {b:4d} | {depth + b * n:6d} | {0.1:8.3f} | {640:8.2f} | {0.5:8.3f} | {100 * b:8.2f} | {0.6:8.3f} | {9:8.2f} |", file=sys.stderr)
"""


class SecondPeer(unittest.TestCase):
    """ik.py with programs that print what those of ik_llama.cpp do."""

    def ask(self, tests, bench=LLAMA_BENCH, batched=BATCHED_BENCH, names=("llama-bench", "llama-batched-bench")):
        tests = [{"n_prompt": 0, "n_gen": 0, "n_seq": 1, "n_depth": 0, "n_depth_others": 0, **t} for t in tests]
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "bin").mkdir()
            for name, text in zip(names, (bench, batched)):
                path = pathlib.Path(folder) / "bin" / name
                path.write_text(f"#!{sys.executable}\nimport json\nimport sys\n{text}")
                path.chmod(0o755)
            done = subprocess.run([sys.executable, os.path.join(BENCH, "ik.py"), folder, "model.gguf", "--tests", json.dumps(tests), "-t", "2", "-r", "3",
                                   "-ub", "512,1024"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        return done.returncode, [json.loads(x) for x in done.stdout.splitlines()], done.stderr

    def test_rows(self):
        status, found, said = self.ask([{"n_prompt": 2}, {"n_prompt": 1024}, {"n_gen": 4}, {"n_gen": 4, "n_seq": 8, "n_depth": 64},
                                        {"n_gen": 4, "n_depth": 64}, {"n_gen": 4, "n_depth": 64, "n_depth_others": 9}])
        self.assertEqual((status, said), (0, ""))
        of = {rows.name_of(r): r for r in found}
        self.assertEqual(set(of), {"pp2", "pp1024", "tg4", "tg4x8 @ d64", "tg4 @ d64"})
        self.assertEqual((of["pp2"]["samples_ns"], of["pp2"]["n_ubatch"], of["pp2"]["version"]), ([2512] * 3, 512, "ik_llama.cpp abc"))
        self.assertEqual((of["pp1024"]["samples_ns"], of["pp1024"]["n_ubatch"]), ([1024512] * 3, 512))
        self.assertEqual((of["tg4"]["itl_p50_ns"], of["tg4"]["ttft_ns"]), (1128, 0))
        self.assertEqual((of["tg4x8 @ d64"]["samples_ns"], of["tg4x8 @ d64"]["avg_ts"]), ([40_000_000] * 3, 800.0))
        self.assertEqual(of["tg4 @ d64"]["avg_ts"], 100.0)

    def test_what_it_does_not_understand(self):
        single, beside = [{"n_gen": 4}], [{"n_gen": 4, "n_seq": 2, "n_depth": 64}]
        for tests, more, why in ((single, {"bench": "print('no model')"}, "no JSON rows of llama-bench"),
                                 (single, {"bench": "print('[{\"n_prompt\": 0}]')"}, "no JSON rows of llama-bench"),
                                 (single, {"bench": LLAMA_BENCH.replace("True", "False")}, "did not repack"),
                                 (single, {"bench": "print('[]')"}, "llama-bench has no row of"),
                                 (single, {"bench": "sys.exit('cannot open it')"}, "cannot open it"),
                                 (single, {"names": ()}, "has no llama-bench"),
                                 (beside, {"batched": "print('| PP | TG |')"}, "lacks lines of some of [2] texts")):
            status, found, said = self.ask(tests, **more)
            self.assertEqual((status, found), (1, []), why)
            self.assertIn(why, said)


@unittest.skipUnless(make_model, "numpy is not installed")
class Models(unittest.TestCase):
    def test_sizes_of_the_real_ones(self):
        """Parameters and bytes of the real files, within a hundredth."""
        for shape, params, kind, n_bytes in (("llama-3-8b", 7.50e9, "q4_k_m", 4.92e9), ("llama-2-7b", 6.61e9, "q4_0", 3.79e9),
                                             ("qwen3-30b-a3b", 3.03e9, "q4_k_m", 18.56e9), ("llama-3.2-1b", 1.236e9, "q8_0", 1.313e9)):
            s = make_model.SHAPES[shape]
            size = make_model.total_bytes(s, kind, s.n_vocab, s.n_layer)
            self.assertAlmostEqual(make_model.step_params(s, s.n_vocab, s.n_layer) / params, 1, delta=0.015, msg=shape)
            self.assertAlmostEqual(size / n_bytes, 1, delta=0.015, msg=shape)

    @unittest.skipUnless(importlib.util.find_spec("gguf"), "gguf is not installed")
    def test_weights_are_sane(self):
        """As other programs read them: no zeros, no bias, the spread that was meant."""
        from gguf import GGUFReader
        from gguf.quants import dequantize

        make_model.POOL_BYTES = 1 << 20
        make_model.SHAPES["small"] = shapes.Shape("small", "qwen3moe", 256, 2, 4, 2, 64, 256, 512, 1e4, n_expert=4, n_used=2)
        with tempfile.TemporaryDirectory() as folder:
            for kind in make_model.TYPES:
                path = os.path.join(folder, kind)
                with redirect_stderr(io.StringIO()):
                    make_model.make(path, "small", kind)
                matrices = [t for t in GGUFReader(path).tensors if len(t.shape) > 1 and "gate_inp" not in t.name]
                self.assertEqual(len(matrices), 2 + 7 * 2)
                for t in matrices:
                    x = dequantize(t.data, t.tensor_type)
                    spread = float(x.std()) / make_model.STD
                    self.assertTrue(0.5 < spread < 2, f"{kind} {t.name}: {spread}")
                    self.assertLess(abs(float(x.mean())) / make_model.STD, 0.1, f"{kind} {t.name}")

    def test_no_room(self):
        with tempfile.TemporaryDirectory() as folder, self.assertRaises(SystemExit) as e:
            make_model.require_room(f"{folder}/x", 1 << 60)
        self.assertIn(f"are free in {folder}; fewer --layers", str(e.exception))


unittest.main(verbosity=1)
