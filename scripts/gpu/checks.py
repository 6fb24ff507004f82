"""Stages that say whether it is right."""
import os
import re
import shutil
import sys

import cases
import debug
from runner import ROOT, Done, lines

PROMPT = "Once upon a time"
SHARDS = 4  # processes that share the tests of a program
GPU_ONLY = {"GR_TEST_OPS": "gpu", "GR_TEST_CUDA": "check"}


def facts(r):
    """What machine this is: devices, driver, tools, memory, disk, libraries. What takes long stands last."""
    done = r.run(r.program("gpurun"), "devices", "--json", limit=r.a.case_seconds)
    r.check("gpurun devices", done.rc == 0, done)
    found = r.result["facts"] = {"devices": done.out}
    for name, command in {
            "gpu": ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.sm,clocks.max.mem,pcie.link.gen.max,ecc.mode.current",
                    "--format=csv,noheader"],
            "kernel": ["uname", "-a"], "memory": ["free", "-g"], "disk": ["df", "-h", "/tmp", "/dev/shm"],
            "sanitizer": ["compute-sanitizer", "--version"], "ncu": ["ncu", "--version"], "gdb": ["cuda-gdb", "--version"],
            "torch": [sys.executable, "-c", "import torch; print(torch.__version__, torch.version.cuda, torch.cuda.is_available())"]}.items():
        done = r.run(*command, limit=30, ask=False, partial=True)
        found[name] = (done.out.strip() or done.err.strip())[-400:] if done.rc == 0 else None
        print(f"    {name}: {found[name] or 'not here'}", flush=True)


def failed_case(r):
    return lambda name, command, env: debug.of_case(r, name, command, env)


def conformance(r):
    """Every instruction wrapper of kernels/ against results computed from its definition."""
    cases.run(r, "conform", [[r.program("conform"), *r.library("conform")]], fails=failed_case(r))


def criterion(r, program, env, n_shard=SHARDS):
    cases.run(r, program, cases.shards(r, r.program(program), n_shard), env, failed_case(r))


def runtime(r):
    """Memory, segments, graphs and weights of cuda/."""
    if r.program("t_cuda_gpu").endswith("_emu") or not os.path.exists(r.program("t_cuda_gpu")):
        r.note("tests/cuda", "this build has no test of it for this device")
        return
    criterion(r, "t_cuda_gpu", {}, 1)


def few(r):
    """One case of each test of tests/ops, on the GPU alone, twice each."""
    criterion(r, "t_ops", {**GPU_ONLY, "GR_CASES_EACH": "1"})


def operations(r):
    """Every case of tests/ops, on the GPU alone, twice each."""
    criterion(r, "t_ops", GPU_ONLY)


def models(r):
    """Every architecture, weight and cache type against the CPU; recorded sessions of --zoo."""
    criterion(r, "t_device", {"GR_TEST_CUDA": "check"}, 1 if r.a.emulated else SHARDS)
    if r.a.zoo:
        done = r.run(sys.executable, os.path.join(ROOT, "scripts", "compare", "golden"), "--build", r.a.bin, "--zoo", r.a.zoo, "--session",
                     "basic", "--bound", "1e-5", "--run", f"--device {r.a.device} -ngl 99")
        r.check("recorded sessions: " + (done.out.splitlines() or [""])[-1], done.rc == 0, done)


def written(r, *flags):
    """The command that writes greedy text of the built-in model."""
    return [r.program("gpurun"), "run", "-p", PROMPT, "-n", "4" if r.a.emulated else "128", "--temp", "0", "-q", *flags]


def text(r, *flags):
    return r.run(*written(r, *flags), limit=r.a.case_seconds)


def built_in(r):
    """The built-in model's text, the CPU's beside the GPU's: all layers, launch by launch, counters checked, some layers, none. Where
    they differ, gpurun diff says in which node."""
    want = text(r, "--device", "none")
    r.check("built-in model on the CPU", want.rc == 0 and want.out, want)
    on = ["--device", r.a.device]
    ways = ([*on, "-ngl", "99"], [*on, "-ngl", "99", "--cuda-check"], [*on, "-ngl", "99", "--no-cuda-graph"], [*on, "-ngl", "3"],
            [*on, "-ngl", "0"])
    right = []
    for flags in ways[:2] if r.a.emulated else ways:
        done, name = text(r, *flags), f"built-in model, {' '.join(flags)}: the CPU's text"
        right.append(r.check(name, done.rc == 0 and done.out == want.out, done))
        if not right[-1]:
            debug.of_command(r, name, written(r, *flags), lambda again: again.rc == 0 and again.out == want.out)
        if done.hung:  # so would the others
            return
    if not all(right):
        done = r.run(r.program("gpurun"), "diff", "-p", PROMPT, "-a", "--device none --cpu-level ref", "-b", f"--device {r.a.device} -ngl 99",
                     limit=r.a.case_seconds)
        r.check("gpurun diff, CPU beside GPU", done.rc == 0, done)


def boundary(r, flags):
    us = {}
    for n in ("1", "2", "4"):
        done = r.run(r.program("gpurun"), "bench", *r.gpu, "-p", "0", "-n", "4" if r.a.emulated else "128", "-o", "jsonl", "--ranks", n, *flags,
                     limit=60)
        us[n] = next((1e6 / t["avg_ts"] for t in lines(done.out) if t["test"].startswith("tg")), None)
        r.check(f"gpurun bench, {n} ranks{' '.join(['', *flags])}", us[n], done)
    if None not in us.values():
        r.figure(op="boundary", impl="gpurun", flags=flags, token_us=us,
                 boundary_us={n: (us[n] - us["1"]) / (int(n) - 1) for n in ("2", "4")})


def messages(r, *arguments):
    env = {"LD_LIBRARY_PATH": f"{r.a.nccl}:{os.environ.get('LD_LIBRARY_PATH', '')}"} if r.a.nccl else None
    done = r.run(r.program("bench_transport"), *arguments, limit=60, env=env)
    if done.rc == 77:
        r.note("bench_transport " + " ".join(arguments), done.err.strip())
    else:
        r.rows("messages: bench_transport " + " ".join(arguments), done)


def same_text(r):
    for flags in (["-ngl", "99"], ["-ngl", "2"]):
        want = text(r, "--device", r.a.device, *flags)
        for n in ("2", "4"):
            done = text(r, "--device", r.a.device, *flags, "--ranks", n)
            r.check(f"{n} stages, {' '.join(flags)}: the same text", done.rc == want.rc == 0 and done.out == want.out, done)
    a, b = (text(r, *r.gpu, "-sm", "tensor", "--ranks", "2") for _ in range(2))
    r.check("two ranks that share layers: the same text twice", a.rc == b.rc == 0 and a.out == b.out, b)


def links(r):
    """Several ranks on this one GPU: stages of one process give one stage's text, and what a boundary adds to a token of the built-in
    model, with graphs and without; messages by copies and, between processes that say they are machines of their own (NCCL_HOSTID), by
    NCCL."""
    parts = {"text": lambda: same_text(r), "boundary": lambda: boundary(r, []), "boundary, no graph": lambda: boundary(r, ["--no-cuda-graph"])}
    for arguments in ("peer 2", "peer 4", "nccl 2", "nccl 4", "nccl 3 die"):
        parts[arguments] = lambda arguments=arguments: messages(r, *arguments.split())
    for name, part in parts.items():
        with r.step(name) as go:
            if go:
                part()


def sanitizer(r):
    """compute-sanitizer over the wrappers and a short text."""
    tool = shutil.which("compute-sanitizer")
    if not tool:
        r.note("compute-sanitizer", "it is not installed here")
        return
    short = [r.program("gpurun"), "run", "-p", PROMPT, "-n", "4", "--temp", "0", "-q", *r.gpu, "--no-cuda-graph"]
    for kind in ("memcheck", "racecheck", "initcheck", "synccheck"):
        for name, command in (("a short text", short), ("conform", [r.program("conform")])):
            with r.step(f"{kind}: {name}") as go:
                if not go:
                    continue
                done = r.run(tool, "--tool", kind, "--target-processes", "all", "--error-exitcode", "9", *command, limit=60)
                said = done.out + done.err
                if "Device not supported" in said:
                    r.note("compute-sanitizer", "it refuses this device")
                    return
                r.check(f"{kind}: {name}", done.rc == 0 and re.search(r"(ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards)", said), done)
