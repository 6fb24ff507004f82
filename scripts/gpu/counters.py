"""The stage that asks Nsight Compute about the kernels that were furthest from their limit in this file's figures."""
import csv
import io
import os
import shutil

import goals

METRICS = {"Duration": "duration", "DRAM Throughput": "dram", "Compute (SM) Throughput": "sm", "L2 Hit Rate": "l2_hit",
           "Issue Slots Busy": "issue", "Achieved Occupancy": "occupancy", "Registers Per Thread": "registers",
           "Mem Pipes Busy": "mem_pipes", "Waves Per SM": "waves"}
KERNELS = {"matmul": "gr_matmul", "attn": "gr_attn", "attn_decode": "gr_attn", "attn_prefill": "gr_attn", "kv_shift": "gr_kv_shift",
           "kv_copy": "gr_kv_copy"}
SECTIONS = [word for name in ("SpeedOfLight", "LaunchStats", "Occupancy", "ComputeWorkloadAnalysis", "MemoryWorkloadAnalysis")
            for word in ("--section", name)]


def worst(figures, n=6):
    """Rows of gpurun, the smallest share of the limit first, one of each op and type."""
    bound, found = goals.Bound(figures), {}
    rows = [(bound.share(x), x) for x in figures if x.get("impl") == "gpurun" and x["op"] in KERNELS]
    for share, x in sorted((p for p in rows if p[0]), key=lambda p: p[0]):
        found.setdefault((x["op"], x["type"]), (share, x))
    return list(found.values())[:n]


def read(text):
    """{kernel: {metric: value with unit}} of ncu --csv; what it prints before the table is not read."""
    at = text.find('"ID"')
    found = {}
    for line in csv.DictReader(io.StringIO(text[at:])) if at >= 0 else []:
        name = METRICS.get(line.get("Metric Name"))
        if name:
            unit = line.get("Metric Unit") or ""
            found.setdefault(line["Kernel Name"].split("(")[0], {})[name] = f"{line['Metric Value']} {unit}".strip()
    return found


def profile(r):
    """ncu on the six worst kernels."""
    tool = shutil.which("ncu")
    if not tool:
        r.note("ncu", "it is not installed here")
        return
    for share, x in worst(r.result["figures"]):
        bench = [r.program("bench_ops"), "-d", "0", "-j", "1", "-t", os.cpu_count(), "-r", "1", "-n", x["n_tok"], "-s", x["shape"], x["op"],
                 x["type"]]
        name = f"ncu: {x['op']} {x['type']} {x['shape']}, {x['n_tok']} tokens"
        with r.step(name) as go:
            if not go:
                continue
            done = r.run(tool, "--clock-control", "none", "--csv", "--launch-skip", "2", "--launch-count", "4", "--kernel-name",
                         f"regex:{KERNELS[x['op']]}", *SECTIONS, *bench, limit=60)
            if "LibraryNotLoaded" in done.out + done.err or "ERR_NVGPUCTRPERM" in done.out + done.err:
                r.note("ncu", "it cannot read the counters of this device")
                return
            kernels = read(done.out)
            r.check(name, done.rc == 0 and kernels, done)
            for kernel, metrics in kernels.items():
                at = {k: x[k] for k in ("op", "type", "shape", "n_tok")}
                r.figure(op="ncu", impl="gpurun", kernel=kernel, of=at, share=round(share, 3), **metrics)
