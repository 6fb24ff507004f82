"""A day with a GPU, rehearsed end to end without one: scripts/gpu/pack packs the programs, a bare root (debootstrap: a Debian with
python3 and nothing else) gets this checkout and the pack, and scripts/gpu/on-device does every run there on the emulated driver, with
tiny shapes and a made-up llama.cpp. Then again with a fault planted in a kernel (it hangs, crashes, is wrong, loses the device), with
tools missing and with no time left: what the record says, and that everything else was measured. The last lines are the minutes of
each stage, planned and rehearsed.   day.py BUILD SOURCE [TEST ..]; exits 77 where it cannot be done."""
import contextlib
import glob
import json
import os
import shutil
import subprocess
import sys
import time
import unittest

BUILD, SOURCE = (os.path.abspath(path) for path in sys.argv[1:3])
del sys.argv[1:3]
AT = os.path.join(BUILD, "gpu-day")
ROOT, PACK, PEER = (os.path.join(AT, name) for name in ("root", "pack", "peer"))
LIBRARIES = {"libcuda_emu.so": "libcuda.so.1", "libcuda_emu_conform.so": None, "libcuda_emu_ceilings.so": None}
PEERS = ("peer_ops", "peer_model", "llama-bench", "llama-batched-bench")
DEVICE = "GR_EMU_DEVICE=quiet,name=A made-up GPU"
sys.path.insert(0, os.path.join(SOURCE, "scripts", "gpu"))


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def call(*command, **more):
    done = subprocess.run([str(x) for x in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout[-3000:]}")
    return done.stdout


def bare_root():
    if os.path.exists(os.path.join(ROOT, "made")):
        return
    shutil.rmtree(ROOT, ignore_errors=True)
    done = subprocess.run(["debootstrap", "--variant=minbase", "--include=python3", "trixie", ROOT], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        skip(f"debootstrap could not make a bare root: {done.stdout.splitlines()[-1:]}")
    open(os.path.join(ROOT, "made"), "w").close()


def made_up_peer():
    shutil.rmtree(PEER, ignore_errors=True)
    os.makedirs(os.path.join(PEER, "bin"))
    os.makedirs(os.path.join(PEER, "lib"))
    for name in PEERS:
        shutil.copy(os.path.join(SOURCE, "tests", "gpu", "machine"), os.path.join(PEER, "bin", name))
    with open(os.path.join(PEER, "VERSION"), "w") as f:
        f.write("made up\n")


def driver():
    """The emulated driver and what it links but libc, as a folder of the bare root."""
    to = os.path.join(ROOT, "driver")
    shutil.rmtree(to, ignore_errors=True)
    os.makedirs(to)
    for name, called in LIBRARIES.items():
        path = os.path.join(BUILD, "tests", "emu", name)
        shutil.copy(path, os.path.join(to, called or name))
        for line in call("ldd", path).splitlines():
            words = line.split()
            if "=>" in words and words[0].startswith(("libstdc++", "libgcc_s")):
                shutil.copy(words[2], to)


def checkout():
    """The files to copy: tracked files and those that are not ignored, and the pack."""
    to = os.path.join(ROOT, "gpurun")
    shutil.rmtree(to, ignore_errors=True)
    listed = call("git", "-c", f"safe.directory={SOURCE}", "-C", SOURCE, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in filter(None, listed.split("\0")):
        if os.path.exists(os.path.join(SOURCE, name)):
            os.makedirs(os.path.dirname(os.path.join(to, name)), exist_ok=True)
            shutil.copy2(os.path.join(SOURCE, name), os.path.join(to, name))
    shutil.copytree(PACK, os.path.join(to, "build-gpu", "pack"))


def prepare():
    if os.geteuid() != 0:
        skip("chroot needs root")
    for tool in ("debootstrap", "unshare", "chroot", "nvcc"):
        if not shutil.which(tool) and not os.path.exists(f"/usr/local/cuda/bin/{tool}"):
            skip(f"there is no {tool} (scripts/setup --long)")
    os.makedirs(AT, exist_ok=True)
    bare_root()
    made_up_peer()
    call(os.path.join(SOURCE, "scripts", "gpu", "pack"), "--build", os.path.join(AT, "build"), "--to", PACK, "--peer", PEER)
    driver()
    checkout()


def on_device(*arguments, env=()):
    """scripts/gpu/on-device in the bare root; how it ended, what it said and the seconds that it took."""
    inside = ("mount -t proc proc $0/proc && mount --rbind /dev $0/dev && mount -t tmpfs tmpfs $0/dev/shm && exec chroot $0 env -i "
              "PATH=/usr/bin:/bin:/usr/sbin:/sbin LANG=C.UTF-8 HOME=/root LD_LIBRARY_PATH=/driver OUT=/out \"$@\"")
    start = time.monotonic()
    done = subprocess.run(["unshare", "-m", "sh", "-c", inside, ROOT, *env, "/gpurun/scripts/gpu/on-device", *arguments,
                           "--emulated", "/driver"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done, time.monotonic() - start


def forget():
    for name in ("out", "tmp/gpurun-pack/results", "tmp/lost"):
        path = os.path.join(ROOT, name)
        if os.path.isdir(path):
            shutil.rmtree(path)
        else:
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)


def result():
    paths = glob.glob(os.path.join(ROOT, "out", "*.json"))
    assert len(paths) == 1, paths
    with open(paths[0]) as f:
        return json.load(f)


def failures(r):
    return [(c["stage"], c["name"]) for c in r["checks"] if not c["passed"]]


class Day(unittest.TestCase):
    seconds = {}  # of runs

    def setUp(self):
        forget()

    def test_1_everything_right(self):
        """Each run within its minutes; nothing fails but what a bare machine lacks, which is noted."""
        import suite

        for run, (minutes, _) in suite.RUNS.items():
            done, seconds = on_device(run, str(minutes), env=(DEVICE,))
            self.seconds[run] = seconds
            self.assertEqual(done.returncode, 0, done.stdout[-6000:])
            self.assertLess(seconds, 60 * minutes)
        r = result()
        self.assertEqual(failures(r), [])
        self.assertTrue(all(s["whole"] for s in r["stages"].values()), r["stages"])
        self.assertEqual(set(r["stages"]), set(suite.STAGES))
        self.assertLessEqual({"compute-sanitizer", "ncu", "PyTorch"}, {n["name"] for n in r["notes"]})
        for x in r["figures"]:
            self.assertTrue(x.get("same", True), x)
        type(self).stages = {name: s["seconds"] for name, s in r["stages"].items()}

    def with_fault(self, kind):
        """Run 0 with a fault in rope's kernels: what failed, by the record, and the record."""
        done, _ = on_device("0", "2.5", "--case-seconds", "8", env=(f"{DEVICE},plant={kind}:gr_rope,lost=/tmp/lost",))
        self.assertEqual(done.returncode, 1, done.stdout[-6000:])
        r = result()
        return [name for _, name in failures(r)], r

    def only_rope(self, kind, *why):
        """The tests of operations that these kernels compute have failed, each for one of these reasons, and nothing else."""
        _, r = self.with_fault(kind)
        wrong = {name: said for name, said in r["cases"]["few"]["t_ops"].items() if said is not None}
        self.assertEqual({name.split("/")[0] for name in wrong}, {"rope", "rope_table", "temper"}, wrong)
        self.assertTrue(all(any(word in said for word in why) for said in wrong.values()), wrong)
        self.assertGreater(len(r["cases"]["few"]["t_ops"]), 40)
        self.assertTrue(all(s["whole"] for name, s in r["stages"].items() if name != "debug"), r["stages"])
        self.assertEqual(len(r["stages"]), 6)
        return r

    def test_2_a_kernel_that_hangs(self):
        r = self.only_rope("hang", "no end after 8 s, killed")
        self.assertTrue(r["again"] and not r["again"][0]["alone"], r["again"])

    def test_3_a_kernel_that_crashes(self):
        self.only_rope("crash", "ILLEGAL_ADDRESS")

    def test_4_a_kernel_that_is_wrong(self):
        self.only_rope("wrong", "expected", "not the reference's bits")

    def test_5_a_device_that_is_lost(self):
        """The run ends there; on a machine where it works it goes on."""
        names, r = self.with_fault("lose")
        self.assertEqual(names[-1], "the device answers")
        self.assertFalse(r["stages"]["few"]["whole"])
        self.assertNotIn("runtime", r["stages"])
        os.remove(os.path.join(ROOT, "tmp", "lost"))
        done, _ = on_device("0", "2.5", env=(DEVICE,))
        self.assertTrue(result()["stages"]["runtime"]["whole"], done.stdout[-3000:])

    def test_6_no_time_left(self):
        """Stages that began are kept, the others are left to the next call, which continues."""
        done, seconds = on_device("0", "0.2", env=(DEVICE,))
        self.assertLess(seconds, 30)
        first = result()
        self.assertIn("too few", done.stdout)
        done, _ = on_device("0", "2.5", env=(DEVICE,))
        self.assertEqual((done.returncode, failures(result())), (0, []), done.stdout[-3000:])
        self.assertTrue(all(result()["stages"][name]["whole"] for name in first["stages"]))

    def test_7_a_pack_that_is_damaged(self):
        """It ends at once."""
        at = os.path.join(ROOT, "gpurun", "build-gpu", "pack")
        path, = glob.glob(os.path.join(at, "gpurun-*.tar.xz"))
        with open(path, "rb") as f:
            data = f.read()
        try:
            os.rename(path, path + ".whole")
            damaged = os.path.join(at, "gpurun-0123456789ab.tar.xz")
            with open(damaged, "wb") as f:
                f.write(data[:len(data) // 2])
            done, seconds = on_device("0", "2.5", env=(DEVICE,))
            self.assertEqual(done.returncode, 3, done.stdout)
            self.assertIn("cannot be unpacked", done.stdout)
        finally:
            os.remove(damaged)
            os.rename(path + ".whole", path)


def minutes_by_stage():
    import suite

    print("\n| run | stage | seconds at most | rehearsed |\n|---|---|---:|---:|")
    for run, (minutes, stages) in suite.RUNS.items():
        took = f"{Day.seconds[run]:.0f}" if run in Day.seconds else ""
        print(f"| {run} | all, with unpacking | {60 * minutes:.0f} | {took} |")
        for fn, seconds in stages:
            print(f"| | {fn.__name__} | {seconds} | {getattr(Day, 'stages', {}).get(fn.__name__, '')} |")


if __name__ == "__main__":
    prepare()
    # the suite is a program without the ending that modules have
    import importlib.machinery
    import importlib.util

    loader = importlib.machinery.SourceFileLoader("suite", os.path.join(SOURCE, "scripts", "gpu", "suite"))
    spec = importlib.util.spec_from_loader("suite", loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules["suite"] = module
    sys.dont_write_bytecode = True
    loader.exec_module(module)
    ended = unittest.main(exit=False, verbosity=2)
    minutes_by_stage()
    sys.exit(not ended.result.wasSuccessful())
