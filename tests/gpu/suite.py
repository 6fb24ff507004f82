"""scripts/gpu/suite without a GPU: every stage on a machine that is made up (tests/gpu/machine), and on the emulated device with
tiny shapes; what it does with a program that hangs, and with a file that has some stages already; that the tables come out of
it.   suite.py BUILD SOURCE"""
import argparse
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import unittest

BUILD, SOURCE = sys.argv[1:3]
del sys.argv[1:3]
GPU = os.path.join(SOURCE, "scripts", "gpu")
sys.path.insert(0, GPU)
import goals  # noqa: E402
import models  # noqa: E402
import runner  # noqa: E402

PEERS = ("peer_ops", "peer_model", "llama-bench", "llama-batched-bench")
PROGRAMS = ("gpurun", "bench_ops", "conform", "ceilings", "bench_transport", "t_cuda_gpu", "t_ops", "t_device")
TOOLS = ("ncu", "compute-sanitizer")


class Suite(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.at = self.folder.name
        for part, names in (("peer/bin", PEERS), ("bin", PROGRAMS), ("tools", TOOLS), ("models", ())):
            os.makedirs(os.path.join(self.at, part))
            for name in names:
                os.symlink(os.path.join(SOURCE, "tests", "gpu", "machine"), os.path.join(self.at, part, name))
        for name in [*models.MODELS, "8b-q4_k_m-layers-4-vocab-4096"]:
            with open(os.path.join(self.at, "models", name + ".gguf"), "w") as f:
                f.write(name)
        self.out = os.path.join(self.at, "results", "a.json")

    def tearDown(self):
        self.folder.cleanup()

    def suite(self, *arguments, bin_dir=None, env=None, tools=True):
        path = os.path.join(self.at, "tools") + os.pathsep + os.environ["PATH"] if tools else os.environ["PATH"]
        return subprocess.run([sys.executable, "-ES", os.path.join(GPU, "suite"), "--bin", bin_dir or os.path.join(self.at, "bin"), "--peer",
                               os.path.join(self.at, "peer"), "--models", os.path.join(self.at, "models"), "--keep", "--out", self.out,
                               *arguments], capture_output=True, text=True,
                              env={**os.environ, "PATH": path, "MACHINE_LOST": os.path.join(self.at, "lost"), **(env or {})})

    def result(self):
        with open(self.out) as f:
            return json.load(f)

    def table(self, *flags):
        done = subprocess.run([sys.executable, os.path.join(GPU, "table"), *flags, "--results", os.path.dirname(self.out)],
                              capture_output=True, text=True, check=True)
        return done.stdout

    def test_every_stage(self):
        """And every goal finds its figures, but for PyTorch's."""
        for run in "0ABC":
            done = self.suite("--run", run)
            self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr)
        result = self.result()
        self.assertTrue(all(s["whole"] for s in result["stages"].values()), result["stages"])
        self.assertFalse([c for c in result["checks"] if not c["passed"]])
        for v in goals.verdicts(result["figures"]):
            self.assertNotEqual(v.status, "not measured", (v.part.what, v.why))
            self.assertRegex(v.why, "^(no row of (cublas|sdpa|transformers) from the same session)?$", v.part.what)
        text = self.table()
        self.assertIn("| gr_matmul_mv_q4_K |", text)
        self.assertIn("| tg128, 8B Q4_K_M |", text)
        self.assertIn("A boundary of stages on one GPU adds", text)
        for kind, numbers in goals.sweep.SHOWN.items():  # made-up programs have one rate for all
            self.assertEqual([n for n, _, _ in goals.steps(result["figures"])[kind]], list(numbers))
            self.assertIn(f"| {kind} of a step | predicted | measured |", text)
        rows = [json.loads(line) for line in self.table("--lines").splitlines()]
        self.assertTrue(all("frac_hbm" in x for x in rows if x["goal"] == 14))
        self.assertLessEqual({"gpurun", "llama.cpp"}, {x["impl"] for x in rows})
        done = self.suite("--run", "B")  # once more: nothing to do
        self.assertEqual((done.stdout.count("is there already"), self.result()["figures"]), (9, result["figures"]))

    def test_a_program_that_hangs(self):
        """It is killed with what it has started, what it said is kept, the device is asked, and the next one runs."""
        a = argparse.Namespace(bin=os.path.join(self.at, "bin"), peer=None, emulated=None, device="cuda", copy=None)
        r = runner.Runner(a, self.out, {"checks": [], "figures": [], "notes": [], "again": [], "steps": {}, "cases": {}})
        r.begin(None)
        r.enter("a stage", 1000, False)
        with contextlib.redirect_stdout(io.StringIO()):
            start = time.monotonic()
            r.rows("hangs", r.run("sh", "-c", "echo '{\"op\": \"begun\"}'; sleep 600 & sleep 600", limit=4))
            r.rows("is quiet", r.run("sh", "-c", "echo '{\"op\": \"begun\"}'; sleep 600", quiet=3))
            self.assertLess(time.monotonic() - start, 300)
            r.rows("ends", r.run(r.program("ceilings"), limit=300))
        self.assertEqual([(c["name"], c["passed"]) for c in self.result()["checks"]], [("hangs", False), ("is quiet", False), ("ends", True)])
        self.assertIn("killed after", self.result()["checks"][0]["detail"])
        self.assertEqual([x["op"] for x in self.result()["figures"]][:3], ["begun", "begun", "read"])

    def failing(self, *arguments, fault):
        """Names of checks that failed with a fault planted, and the result."""
        done = self.suite(*arguments, "--case-seconds", "3", "--again", env={"MACHINE_FAULT": fault})
        self.assertEqual(done.returncode, 1, done.stdout[-3000:] + done.stderr)
        return [c["name"] for c in self.result()["checks"] if not c["passed"]], self.result()

    def test_a_case_with_a_fault(self):
        """It costs itself only, whatever it does, is not begun with again, and is looked at more closely."""
        for kind, why in (("hang", "no end after 3 s, killed"), ("crash", "ended by signal 11"), ("wrong", "it is wrong")):
            with self.subTest(kind):
                failed, result = self.failing("--run", "0", fault=f"{kind}:attn/shapes/0")
                what = "t_ops"
                self.assertEqual(failed, [f"{what}: attn/shapes/0", f"3 cases of {what}, 1 failed"])
                self.assertTrue(all(s["whole"] for s in result["stages"].values()), result["stages"])
                self.assertEqual(result["cases"]["few"][what], {"matmul/rows/0": None, "attn/shapes/0": why, "sample/draws/0": None})
                self.assertEqual([(x["name"], x["alone"], x["no-pdl"]) for x in result["again"]], [("attn/shapes/0", False, False)])
                self.assertIn("ERROR SUMMARY", result["again"][0]["memcheck"])
                self.assertEqual(self.suite("--run", "0").stdout.count("is there already"), 5)

    def test_what_is_wrong_is_not_timed(self):
        failed, result = self.failing("--stages", "operations,gemv,sample", fault="wrong:matmul/rows/q4_K")
        kinds = {(x["op"], x["type"]) for x in result["figures"] if x["impl"] == "gpurun"}
        self.assertEqual(kinds, {("matmul", kind) for kind in ("q4_0", "q6_K", "q8_0", "bf16")} | {("sample", "f32")})

    def test_what_is_wrong_whatever_its_type(self):
        _, result = self.failing("--stages", "operations,sample", fault="wrong:sample/draws/0")
        self.assertFalse([x for x in result["figures"] if x["impl"] == "gpurun"])

    def test_a_row_with_a_fault(self):
        """Rows of that program in front of it and behind it are measured all the same."""
        for kind in ("hang", "crash"):
            with self.subTest(kind):
                failed, result = self.failing("--stages", "gemv", fault=f"{kind}:bench matmul q6_K 4096x14336 8")
                self.assertEqual(len(failed), 2, failed)
                rows = {(x["type"], x["shape"], x["n_tok"]) for x in result["figures"] if x["impl"] == "gpurun"}
                all_ = {(x["type"], x["shape"], x["n_tok"]) for x in result["figures"] if x["impl"] == "llama.cpp"}
                self.assertEqual(all_ - rows, {("q6_K", "4096x14336", 8)})

    def test_a_device_that_is_lost(self):
        """The run ends there, and says so; what was seen before stays; on another machine it goes on behind that case."""
        failed, result = self.failing("--run", "0", fault="lose:wgmma_f16")
        self.assertEqual(failed[-1], "the device answers")
        self.assertEqual(list(result["stages"]), ["facts", "built_in", "conformance"])
        self.assertEqual(result["cases"]["conformance"]["conform"]["wgmma_f16"], "ended by signal 11")
        os.remove(os.path.join(self.at, "lost"))
        done = self.suite("--run", "0", env={"MACHINE_FAULT": "lose:wgmma_f16"})  # that case is not begun again
        self.assertFalse(os.path.exists(os.path.join(self.at, "lost")), done.stdout)
        self.assertTrue(all(self.result()["stages"][name]["whole"] for name in ("conformance", "few")))

    def test_a_call_that_did_not_come_back(self):
        """The step that it ended in has failed; the others are done."""
        self.suite("--stages", "ceilings")
        result = self.result()
        result["stages"], result["steps"] = {}, {"ceilings": {"device": "begun"}}
        with open(self.out, "w") as f:
            json.dump(result, f)
        self.assertEqual(self.suite("--stages", "ceilings,sample").returncode, 1)
        self.assertIn("did not come back", [c["detail"] for c in self.result()["checks"] if c["name"] == "device"][0])
        self.assertTrue(self.result()["stages"]["sample"]["whole"])

    def test_a_tool_that_is_missing(self):
        """It is noted, and nothing has failed."""
        done = self.suite("--stages", "gemv,profile,sanitizer", tools=False)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertLessEqual({"ncu", "compute-sanitizer", "PyTorch"}, {n["name"] for n in self.result()["notes"]})

    def test_going_on(self):
        """A stage that was cut off goes on; one for which there is no time is left to the next call."""
        self.assertEqual(self.suite("--stages", "ceilings,sample").returncode, 0)
        result = self.result()
        result["stages"]["sample"]["whole"] = False
        with open(self.out, "w") as f:
            json.dump(result, f)
        done = self.suite("--run", "A", "--minutes", "0.001")
        self.assertEqual((done.returncode, done.stdout.count("too few")), (0, 8), done.stdout)
        done = self.suite("--stages", "ceilings,sample")
        self.assertEqual((done.returncode, done.stdout.count("is there already")), (0, 1), done.stdout)
        key = [(x["op"], x["n_tok"], x["impl"]) for x in self.result()["figures"]]
        self.assertEqual(sorted(key), sorted((x["op"], x["n_tok"], x["impl"]) for x in result["figures"]))

    def test_no_gpu(self):
        os.remove(os.path.join(self.at, "bin", "gpurun"))
        self.assertEqual(self.suite("--run", "0").returncode, 2)
        self.assertFalse(os.path.exists(self.out))

    @unittest.skipUnless(os.path.exists(os.path.join(BUILD, "gpurun-emu")), "there is no emulated device in this build")
    def test_on_the_emulated_device(self):
        """The real programs: rows have what a row needs, and their peers'; none of it is shown."""
        said = subprocess.run([os.path.join(BUILD, "gpurun-emu"), "inspect", os.path.join(SOURCE, "tools", "default-model.gguf")],
                              capture_output=True, text=True, check=True).stdout
        env = {"GR_EMU_DEVICE": "quiet", "MACHINE_VOCAB": re.search(r"vocab_size\s+u32\s+(\d+)", said)[1]}
        stages = "conformance,ceilings,gemv,decode,cache,sample,small,steps,numerics"
        done = self.suite("--stages", stages, "--emulated", bin_dir=BUILD, env=env)
        self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr)
        figures = self.result()["figures"]
        for x in figures:
            if x["impl"] == "gpurun":
                self.assertTrue(x.get("rel_err") is not None and x.get("rotated_mb") is not None and x.get("same", True), x)
        rows = [x for x in figures if x["impl"] == "gpurun" and x["op"] in ("matmul", "attn_decode", "kv_shift", "sample") and
                x["shape"] in ("64x256", "64 cells, 8/2 x 128", "8 x 128", "512, top-k 40, top-p .95, min-p")]
        self.assertEqual({x["op"] for x in rows}, {"matmul", "attn_decode", "kv_shift", "sample"})
        for x in rows:
            self.assertIsNotNone(goals.find(figures, {**{k: x[k] for k in ("op", "type", "shape", "n_tok")}, "impl": "llama.cpp"}), x)
        self.assertLess(next(x["kl"] for x in figures if x["op"] == "logits" and x["impl"] == "gpurun"), 1e-4)
        self.assertIn("Not yet run on a GPU", self.table())


if __name__ == "__main__":
    unittest.main()
