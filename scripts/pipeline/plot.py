"""Draws results/timeline.png and results/scaling.png from results/pipeline.json, which scripts/pipeline/measure writes, and puts its
figures into the README there.

    scripts/pipeline/plot.py [RESULTS.json]                (Python with matplotlib)
    scripts/pipeline/plot.py --trace TRACE.json OUT.png    draws what gpurun --trace has written of several ranks

timeline.png: what each stage of a real run did when, while a prompt goes through in chunks, with one user, and with as many
groups in flight as there are stages. scaling.png: how busy stages are, measured beside simulate.py, and what a split buys."""
import json
import os
import statistics
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.patches import Patch

HERE = os.path.dirname(os.path.abspath(__file__))
README = os.path.join(HERE, "README.md")
BEGIN, END = "<!-- pipeline: begin (scripts/pipeline/measure, scripts/pipeline/plot.py) -->\n", "<!-- pipeline: end -->"
sys.path.insert(0, HERE)
import simulate

COLORS = ["#3b6fb6", "#e08a3c", "#4f9d69", "#b5507a", "#8a6cc4", "#5aa9b8", "#c9a227", "#7a7a7a"]
WAIT, MOVE = "#e6e6e6", "#222222"
STAGES = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64]


def draw_timeline(axis, run):
    """Spans are [kind, number of the micro-batch, begin, end]; times in microseconds."""
    first = min(span[2] for stage in run["spans"] for span in stage)
    last = max(span[3] for stage in run["spans"] for span in stage)
    for row, stage in enumerate(run["spans"]):
        axis.barh(row, (last - first) / 1000, height=0.5, color=WAIT)
        for kind, number, begin, end in stage:
            if kind == "wait":
                continue
            color = MOVE if kind == "transfer" else COLORS[number % run["groups"] % len(COLORS)]
            axis.barh(row, (end - begin) / 1000, left=(begin - first) / 1000, height=0.72 if kind == "busy" else 0.5, color=color,
                      edgecolor="white", linewidth=0.3)
    axis.set_yticks(range(len(run["spans"])), [f"stage {i}" for i in range(len(run["spans"]))])
    axis.invert_yaxis()
    axis.set_title(run["title"], fontsize=9, loc="left")
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=8)
    if "from_ms" in run:
        axis.set_xlim(run["from_ms"], run["to_ms"])


def timeline(results, path):
    runs = results["timelines"]
    figure, axes = plt.subplots(len(runs), 1, figsize=(9, 1.0 + 1.55 * len(runs)), layout="constrained", squeeze=False)
    axes = axes[:, 0]
    for axis, run in zip(axes, runs):
        draw_timeline(axis, run)
    axes[-1].set_xlabel("ms", fontsize=8)
    axes[0].legend(handles=[Patch(color=COLORS[0], label="computes (a color for each micro-batch or group)"), Patch(color=MOVE, label="passes on"),
                            Patch(color=WAIT, label="waits")], fontsize=7, ncols=3, frameon=False, loc="lower right",
                   bbox_to_anchor=(1, 1.0), borderaxespad=0.2)
    figure.savefig(path, dpi=110)


def measured(results, processes, extra):
    """For each number of stages: least, median and most."""
    found = {}
    for run in results["weak"]:
        if run["processes"] == processes and run["groups"] == run["stages"] + extra and run["stages"] > 1:
            found[run["stages"]] = run["busy"]
    return found


def draw_busy(axis, results):
    for extra, style in ((0, "-"), (1, "--")):
        predicted = [100 * simulate.busy(results["costs"], n, n + extra if n > 1 else 1, 8) for n in STAGES]
        axis.plot(STAGES, predicted, style, color="#888888", linewidth=1.2,
                  label="predicted, groups = stages" + (" + 1" if extra else ""))
    for processes, extra, marker, color in ((False, 0, "o", COLORS[0]), (False, 1, "s", COLORS[1]), (True, 0, "^", COLORS[2])):
        found = measured(results, processes, extra)
        if not found:
            continue
        x = [n * (1 + 0.03 * (extra + 2 * processes - 1)) for n in found]
        low, mid, high = ([100 * e[i] for e in found.values()] for i in range(3))
        axis.errorbar(x, mid, [[m - l for m, l in zip(mid, low)], [h - m for m, h in zip(mid, high)]], fmt=marker, color=color,
                      markersize=5, capsize=2, linewidth=1,
                      label=f"measured, {'processes' if processes else 'threads'}, groups = stages" + (" + 1" if extra else ""))
    axis.set_xscale("log", base=2)
    axis.set_xticks([1, 2, 4, 8, 16, 32, 64], [1, 2, 4, 8, 16, 32, 64])
    axis.set_ylim(0, 105)
    axis.set_xlabel("stages of 1 ms, 8 sequences in each group")
    axis.set_ylabel("% of the time that a stage computes")
    axis.set_title("How busy stages are (emulated devices)", fontsize=9, loc="left")
    axis.legend(fontsize=7, frameon=False, loc="lower left")


def draw_speedup(axis, results):
    """A model of a fixed size on more and more devices, by the simulator."""
    costs = results["example"]["costs"]
    stages = [n for n in STAGES if n <= 16]

    def rate(n, groups, sequences):
        return simulate.predict(costs, n, groups, sequences).tokens_per_s()

    axis.plot(stages, stages, ":", color="#bbbbbb", linewidth=1, label="as many times as devices")
    one = rate(1, 1, 8)
    axis.plot(stages, [rate(n, n, 8) / one for n in stages], "-o", markersize=3.5, color=COLORS[0], label="8 users a device")
    for total, color in ((64, COLORS[1]), (16, COLORS[3])):
        base = rate(1, 1, total)
        axis.plot(stages, [max(rate(n, m, total // m) for m in (1, 2, 4, 8, 16) if m <= max(n, 1)) / base for n in stages], "-o",
                  markersize=3.5, color=color, label=f"{total} users in all, best number of groups")
    base = rate(1, 1, 1)
    axis.plot(stages, [rate(n, 1, 1) / base for n in stages], "-o", markersize=3.5, color=COLORS[7], label="one user")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    axis.set_xticks([1, 2, 4, 8, 16], [1, 2, 4, 8, 16])
    axis.set_yticks([0.5, 1, 2, 4, 8, 16], [0.5, 1, 2, 4, 8, 16])
    axis.set_xlabel("devices")
    axis.set_ylabel("times the tokens a second of one device")
    axis.set_title(results["example"]["title"], fontsize=9, loc="left")
    axis.legend(fontsize=7, frameon=False, loc="upper left")


def scaling(results, path):
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    draw_busy(left, results)
    draw_speedup(right, results)
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8)
        axis.grid(axis="y", color="#eeeeee", linewidth=0.6)
        axis.set_axisbelow(True)
    figure.savefig(path, dpi=110)


def read_trace(path):
    with open(path) as f:
        events = [e for e in json.load(f)["traceEvents"] if e["pid"] == 2 and "dur" in e]
    spans = [[] for _ in range(1 + max(e["tid"] for e in events))]
    for e in events:
        spans[e["tid"]].append([e["name"], e["args"]["micro-batch"], e["ts"], e["ts"] + e["dur"]])
    return {"title": os.path.basename(path), "groups": len(COLORS), "spans": spans}


def percent(busy):
    return f"{busy[1]:.0%} ({busy[0]:.0%} to {busy[2]:.0%})"


def figures(r):
    """The README's table: how busy stages are, and the host's work."""
    found = {(w["processes"], w["stages"], w["groups"]): w for w in r["weak"]}
    host = {(h["processes"], h["stages"]): h for h in r["host"]}
    yield "| stages of 1 ms, groups of 8 in flight | threads | predicted | processes | predicted |"
    yield "|---|---:|---:|---:|---:|"
    yield f"| 1, 1 | {r['one']['busy']:.0%} | | | |"
    for _, stages, groups in sorted(k for k in found if not k[0]):
        cells = [found.get((p, stages, groups)) for p in (False, True)]
        yield f"| {stages}, {groups} | " + " | ".join(f"{percent(w['busy'])} | {w['predicted']:.0%}" if w else " | " for w in cells) + " |"
    yield ""
    yield "| host work of a stage for a micro-batch, median (95th of 100) | threads | processes |"
    yield "|---|---:|---:|"
    for stages in sorted({s for _, s in host}):
        cells = [host.get((p, stages)) for p in (False, True)]
        yield f"| {stages} stages | " + " | ".join(f"{statistics.median(h['p50']):.0f} µs ({max(h['p95']):.0f})" if h else "" for h in cells) + " |"
    yield ""
    yield f"{r['date']}, commit {r['commit']}, {r['machine']}; `{r['command']}`, with a load of {r['load']:.0f} beside it."


def write_readme(results):
    with open(README) as f:
        text = f.read()
    i, j = text.index(BEGIN) + len(BEGIN), text.index(END)
    with open(README, "w") as f:
        f.write(text[:i] + "\n".join(figures(results)) + "\n" + text[j:])


def main():
    if len(sys.argv) == 4 and sys.argv[1] == "--trace":
        return timeline({"timelines": [read_trace(sys.argv[2])]}, sys.argv[3])
    with open(sys.argv[1] if len(sys.argv) > 1 else os.path.join(HERE, "results", "pipeline.json")) as f:
        results = json.load(f)
    timeline(results, os.path.join(HERE, "results", "timeline.png"))
    scaling(results, os.path.join(HERE, "results", "scaling.png"))
    write_readme(results)


if __name__ == "__main__":
    main()
