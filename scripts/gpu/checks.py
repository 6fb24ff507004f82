"""Stages that say whether it is right."""
import os
import re
import shutil
import sys

from runner import ROOT, lines

PROMPT = "Once upon a time"


def conformance(r):
    """Every instruction wrapper of kernels/ against results computed from its definition."""
    emulated = [os.path.join(r.a.bin, "tests", "emu", "libcuda_emu_conform.so")] if r.a.emulated else []
    done = r.run(r.program("conform"), *emulated, limit=60)
    words = [line.split(maxsplit=1) for line in done.out.splitlines() if line.startswith(("ok ", "FAIL "))]
    for word, name in words:
        if word != "ok":
            r.check(name, False, done, name)
    r.check(f"all {len(words)} wrappers", done.rc == 0 and words, done)


def criterion(r, program, what, limit):
    if r.a.emulated:
        r.note(what, "the tests themselves run it on the emulated device")
        return
    done = r.run(r.program(program), "-j1", limit=limit)
    m = re.search(r"Tested: (\d+) \| Passing: (\d+) \| Failing: (\d+) \| Crashing: (\d+)", done.out + done.err)
    n = int(m[1]) if m else 0
    r.check(f"{n} tests of {what}", done.rc == 0 and n > 0, done)


def runtime(r):
    """Memory, segments, graphs and weights of cuda/."""
    criterion(r, "t_cuda_gpu", "tests/cuda", 60)


def operations(r):
    """Every case of tests/ops on the GPU, twice each."""
    criterion(r, "t_ops", "tests/ops", 120)


def text(r, *flags):
    """Greedy text of the built-in model."""
    n = "4" if r.a.emulated else "128"
    return r.run(r.program("gpurun"), "run", "-p", PROMPT, "-n", n, "--temp", "0", "-q", *flags, limit=60)


def models(r):
    """Every architecture, weight and cache type against the CPU; the built-in model's text for several -ngl, with and without graphs;
    recorded sessions of --zoo."""
    criterion(r, "t_device", "tests/device", 120)
    want = text(r, "--device", "none")
    r.check("built-in model on the CPU", want.rc == 0 and want.out, want)
    for flags in (["-ngl", "99"], ["-ngl", "99", "--no-cuda-graph"], ["-ngl", "3"], ["-ngl", "0"])[:1 if r.a.emulated else 4]:
        done = text(r, "--device", r.a.device, *flags)
        r.check(f"built-in model, {' '.join(flags)}: the CPU's text", done.rc == 0 and done.out == want.out, done)
    if r.a.zoo:
        done = r.run(sys.executable, os.path.join(ROOT, "scripts", "compare-golden"), "--build", r.a.bin, "--zoo", r.a.zoo, "--session",
                     "basic", "--bound", "1e-5", "--run", f"--device {r.a.device} -ngl 99")
        r.check("recorded sessions: " + (done.out.splitlines() or [""])[-1], done.rc == 0, done)


def boundary(r):
    """What each boundary of stages adds to a token of the built-in model, in microseconds: with graphs and without."""
    for flags in ([], ["--no-cuda-graph"]):
        us = {}
        for n in ("1", "2", "4"):
            done = r.run(r.program("gpurun"), "bench", *r.gpu, "-p", "0", "-n", "128", "-o", "jsonl", "--ranks",
                         n, *flags, limit=60)
            us[n] = next((1e6 / t["avg_ts"] for t in lines(done.out) if t["test"].startswith("tg")), None)
            r.check(f"gpurun bench, {n} ranks{' '.join(['', *flags])}", us[n], done)
        if None not in us.values():
            r.figure(op="boundary", impl="gpurun", flags=flags, token_us=us,
                     boundary_us={n: (us[n] - us["1"]) / (int(n) - 1) for n in ("2", "4")})


def messages(r, *arguments):
    env = {"LD_LIBRARY_PATH": f"{r.a.nccl}:{os.environ.get('LD_LIBRARY_PATH', '')}"} if r.a.nccl else None
    done = r.run(r.program("bench_net"), *arguments, limit=60, env=env)
    if done.rc == 77:
        r.note("bench_net " + " ".join(arguments), done.err.strip())
    else:
        r.rows("messages: bench_net " + " ".join(arguments), done)


def links(r):
    """Several ranks on this one GPU: stages of one process give one stage's text, and what a boundary costs; messages by copies and,
    between processes that say they are machines of their own (NCCL_HOSTID), by NCCL."""
    for flags in (["-ngl", "99"], ["-ngl", "2"]):
        want = text(r, "--device", r.a.device, *flags)
        for n in ("2", "4"):
            done = text(r, "--device", r.a.device, *flags, "--ranks", n)
            r.check(f"{n} stages, {' '.join(flags)}: the same text", done.rc == want.rc == 0 and done.out == want.out, done)
    a, b = (text(r, *r.gpu, "-sm", "tensor", "--ranks", "2") for _ in range(2))
    r.check("two ranks that share layers: the same text twice", a.rc == b.rc == 0 and a.out == b.out, b)
    boundary(r)
    for arguments in (["peer", "2"], ["peer", "4"], ["nccl", "2"], ["nccl", "4"], ["nccl", "3", "die"]):
        messages(r, *arguments)


def sanitizer(r):
    """compute-sanitizer over the wrappers and a short text."""
    tool = shutil.which("compute-sanitizer")
    if not tool:
        r.note("compute-sanitizer", "it is not installed here")
        return
    short = [r.program("gpurun"), "run", "-p", PROMPT, "-n", "4", "--temp", "0", "-q", *r.gpu,
             "--no-cuda-graph"]
    for kind in ("memcheck", "racecheck", "initcheck", "synccheck"):
        for name, command in (("a short text", short), ("conform", [r.program("conform")])):
            done = r.run(tool, "--tool", kind, "--target-processes", "all", "--error-exitcode", "9", *command, limit=60)
            said = done.out + done.err
            if "Device not supported" in said:
                r.note("compute-sanitizer", "it refuses this device")
                return
            r.check(f"{kind}: {name}", done.rc == 0 and re.search(r"(ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards)", said), done)
