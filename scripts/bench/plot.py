"""Plots of the rows of scripts/bench/speed: speed against context, prompt and texts side by side, share of the limit, and what cells cost."""
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import rows as rules

STYLE = {"gpurun": {"color": "#1b6ca8", "marker": "o"}, "llama.cpp": {"color": "#c8553d", "marker": "s"},
         "ik": {"color": "#5a8f3c", "marker": "^"}}
NAME = {"ik": "ik_llama.cpp"}
AXES = {"prompt": ("n_prompt", "tokens of the prompt"), "few": ("n_prompt", "tokens of the prompt"),
        "context": ("n_depth", "tokens in the cache"),
        "texts": ("n_seq", "texts side by side"), "others": ("n_depth_others", "tokens that another text has in the cache")}


def of_sweep(rows, sweep):
    return [r for r in rows if r.get("op") == "model" and r["sweep"] == sweep]


def curves(ax, rows, sweep, value, label):
    at = AXES[sweep][0]
    for impl, style in STYLE.items():
        xy = sorted((r[at], value(r)) for r in rows if r["impl"] == impl)
        if xy:
            ax.plot([x for x, _ in xy], [y for _, y in xy], label=NAME.get(impl, impl), **style)
    ax.set_xlabel(AXES[sweep][1])
    ax.set_ylabel(label)


def finish(axes):
    """When all is drawn: the limits of the axes follow from it."""
    for ax in axes:
        ax.set_ylim(bottom=0, top=ax.get_ylim()[1])
        ax.grid(alpha=0.3)
        ax.legend()


def title(rows):
    r = rows[0]
    types = ", ".join(dict.fromkeys(x["type"].upper() for x in rows))
    return (f"{r['model']} {types}, {r['threads']} threads, {r['cpu']}\n"
            f"commit {r['commit'][:8]}, {r['date']}, load before it {r['load_before']}")


def save(figure, rows, path):
    figure.suptitle(title(rows), fontsize=9)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def fits(ax, rows):
    """The laws through the times of prompts."""
    for law in rules.laws(rows):
        x = [law["lo"] + (law["hi"] - law["lo"]) * i / 50 for i in range(51)]
        ax.plot(x, [law["a_ms"] + law["b_us"] * n / 1e3 + law["c_ns"] * n * n / 1e6 for n in x], color=STYLE[law["impl"]]["color"],
                linestyle=":", label=f"{law['b_us']:.0f} µs n + {law['c_ns']:.1f} ns n², within {100 * law['off']:.1f} %")


def speed(axes, rows, sweep):
    """Tokens a second; the rate of what a step reads, under the limit, or of a prompt that of its products; milliseconds."""
    curves(axes[0], rows, sweep, lambda r: r["tok_s"], "tokens/s")
    if sweep in ("prompt", "few"):
        curves(axes[1], rows, sweep, lambda r: r["gflop_s"], "GFLOP/s")
        curves(axes[2], rows, sweep, lambda r: r["median_us"] / 1e3, "ms of the prompt")
        fits(axes[2], rows)
    else:
        curves(axes[1], rows, sweep, lambda r: r["gb_s"], "GB/s of weights, keys and values")
        axes[1].axhline(rows[0]["limit_gb_s"], color="0.4", linestyle="--", label="what the machine reads")
        curves(axes[2], rows, sweep, lambda r: r["median_us"] / r["n_gen"] / 1e3, "ms of a step")
    finish(axes)


def speeds(parts, path):
    """A line of axes for the rows of each sweep of each type: [(sweep, rows)]."""
    figure, axes = plt.subplots(len(parts), 3, figsize=(13, 4 * len(parts)), layout="constrained", squeeze=False)
    for line, (sweep, rows) in zip(axes, parts):
        speed(line, rows, sweep)
        if len(parts) > 1:
            line[0].set_title(rows[0]["type"].upper(), fontsize=9)
    save(figure, [r for _, rows in parts for r in rows], path)


def growth(rows, path):
    """Step times against own and against other cells, with the lines through them."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 4), layout="constrained", sharey=True)
    for ax, sweep in zip(axes, ("context", "others")):
        for impl, style in STYLE.items():
            xy = sorted(rules.points(rows, sweep, impl))
            if len(xy) < 3:
                continue
            slope, start, fit = rules.line(xy)
            ends = (xy[0][0], xy[-1][0])
            ax.plot([x for x, _ in xy], [y / 1e3 for _, y in xy], linestyle="none", **style,
                    label=f"{impl}: {slope * 1e3:.0f} ns a cell (R² {fit:.3f})")
            ax.plot(ends, [(start + slope * x) / 1e3 for x in ends], color=style["color"])
        ax.set_xlabel(AXES[sweep][1])
    axes[0].set_ylabel("ms of a step, the best measurement")
    finish(axes)
    save(figure, of_sweep(rows, "context"), path)


def shares(rows, path):
    """Of each type, the share of the limit that decoding reaches."""
    found = [r for r in of_sweep(rows, "table") if r["n_gen"]]
    types = list(dict.fromkeys(r["type"] for r in found))
    figure, ax = plt.subplots(figsize=(max(6.5, 1.6 * len(types) + 2), 4.2), layout="constrained")
    impls = [impl for impl in STYLE if any(r["impl"] == impl for r in found)]
    for k, impl in enumerate(impls):
        height = [next((100 * r["frac_limit"] for r in found if r["type"] == t and r["impl"] == impl), 0) for t in types]
        places = [i + 0.8 * ((k + 0.5) / len(impls) - 0.5) for i in range(len(types))]
        bars = ax.bar(places, height, 0.76 / len(impls), label=NAME.get(impl, impl), color=STYLE[impl]["color"])
        ax.bar_label(bars, fmt="%.0f %%")
    ax.set_xticks(range(len(types)), [t.upper() for t in types])
    ax.axhline(100, color="0.4", linestyle="--")
    ax.set_ylabel(f"% of the {found[0]['limit_gb_s']:.1f} GB/s that the machine reads")
    finish([ax])
    save(figure, found, path)


def draw(rows, folder):
    """Writes the plots that there are rows for; their paths."""
    for name, sweeps in (("prompt", ("prompt",)), ("few", rules.OF_EACH_TYPE), ("context", ("context",))):
        found = [(sweep, of_sweep(rows, sweep)) for sweep in sweeps]
        types = dict.fromkeys(r["type"] for _, of in found for r in of)
        parts = [(sweep, of) for t in types for sweep, rs in found if (of := [r for r in rs if r["type"] == t])]
        if parts:
            speeds(parts, folder / f"{name}.png")
            yield folder / f"{name}.png"
    if of_sweep(rows, "context") and of_sweep(rows, "others"):
        growth(rows, folder / "growth.png")
        yield folder / "growth.png"
    if any(r["n_gen"] for r in of_sweep(rows, "table")):
        shares(rows, folder / "limit.png")
        yield folder / "limit.png"


def serve(rows, path):
    """Throughput and times of scripts/bench/serve_peer by the number of clients; a line of axes for each kind of requests."""
    rows = [r for r in rows if "clients" in r]
    parts = list(dict.fromkeys(r["part"] for r in rows))
    figure, axes = plt.subplots(len(parts), 3, figsize=(13, 3.6 * len(parts)), layout="constrained", squeeze=False)
    for line, part in zip(axes, parts):
        for ax, (name, label) in zip(line, (("tok_s", "tokens/s of answers"), ("ttft", "ms to the first token"), ("itl", "ms between tokens"))):
            for impl, style in STYLE.items():
                of = sorted((r for r in rows if (r["part"], r["impl"]) == (part, impl)), key=lambda r: r["clients"])
                for column, dash in ((name, "-"),) if name == "tok_s" else ((name + "_p50_ms", "-"), (name + "_p99_ms", ":")):
                    ax.plot([r["clients"] for r in of], [r[column] for r in of], label=f"{impl} p99" if dash == ":" else impl, linestyle=dash, **style)
            ax.set_xscale("log", base=2)
            ax.set_xticks(sorted({r["clients"] for r in rows}), sorted({r["clients"] for r in rows}))
            ax.set_xlabel(f"clients, {part} prompts")
            ax.set_ylabel(label)
    finish(axes.flat)
    r = rows[0]
    figure.suptitle(f"{r['model']}, {r['threads']} threads, {r['cpu']}\ncommit {r['commit'][:8]}, {r['date']}, load before it {r['load_before']}", fontsize=9)
    figure.savefig(path, dpi=110)
    plt.close(figure)
