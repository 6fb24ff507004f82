#!/usr/bin/env python3
"""Rows of scripts/bench/speed, and the sections of READMEs that are made of them.

    scripts/bench/rows.py [--write | --check]

Without a flag prints the sections; --write puts them between the marks of README.md (FRONT: a few rows), of the README beside this file
(all rows) and of tests/gpu/README.md; --check exits 1 when one of these has another section. They are made of
scripts/bench/results/speed.jsonl, what scripts/bench/speed --record has kept, and of the newest result of each GPU (scripts/gpu/table).

A row is an object a line. op "model": one side's (impl) figures of one test (`gpurun bench` has the names) on one file, the medians over
all measurements of a run, its command, date, machine, commit, load before it, the bytes of weights, keys and values that a pass has to read
(bytes), what that is as a rate (gb_s) and as a share of what the machine reads just before and after it (frac_limit of limit_gb_s, medians
over the runs), and with impl "gpurun" the ratio to llama.cpp's row (paired()) and how far the logits of the same file lie from llama.cpp's
(rel_err, kl, top1); with --reference also how far each side lies from the same weights in f32, of two layers (err_f32, peer_err_f32). op
"read": what the machine reads when all begins. op "host": what a step costs outside the device. op "growth": what a cell costs. op "law":
what a prompt of n tokens takes, a_ms + b_us n + c_ns n^2, fitted to the sweep of prompts (least squares of relative deviations), and how
far the furthest point lies from it (off). op "step": of few tokens and of texts side by side, what a step takes (plane()); op "check":
where gpurun breaks a rule there (checks()). Rows of impl "ik" (ik_llama.cpp, of --ik) have no errors of logits. op "load": milliseconds
from opening a file to the logits of a token (ms). A row of gpurun without its error, or without the peer's row of the same run, is refused,
and so is what was measured while something else was running: with more load than cores, or with runs of a side further apart than
MOST_DRIFT."""
import json
import os
import re
import statistics
import subprocess
import sys
import textwrap

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
RESULTS = os.path.join(ROOT, "scripts", "bench", "results", "speed.jsonl")
HERE = os.path.dirname(os.path.abspath(__file__))
FRONT = (("Llama-3.2-1B", "q4_k", "pp512"), ("Llama-3.2-1B", "q4_k", "tg32"), ("Llama-3.2-1B", "bf16", "pp512"), ("Llama-3.2-1B", "bf16", "tg32"),
         ("Llama-3.2-1B, 4 layers", "q4_k_m", "pp8192"), ("Qwen3-30B-A3B, 4 layers", "q4_k_m", "pp512"))
SWEEPS = ("prompt", "few", "context", "others", "texts")
OF_EACH_TYPE = ("few", "texts")
IMPLS = ("gpurun", "llama.cpp", "ik")
MOST_SLOWER, LEAST_AHEAD = 0.03, 1.2
MOST_DRIFT, LEAST_FIT, MOST_OFF = 0.25, 0.9, 0.1
PLOTS = {"prompt": "Tokens a second, products a second and time of a prompt by its length", "few": "The same of few tokens"}
TEST = ("model", "type", "test", "sweep")


def name_of(t):
    name = (f"pp{t['n_prompt']}" if t["n_prompt"] else "") + ("+" if t["n_prompt"] and t["n_gen"] else "")
    name += (f"tg{t['n_gen']}" if t["n_gen"] else "") + (f"x{t['n_seq']}" if t["n_seq"] > 1 else "")
    if t["n_depth_others"]:
        return f"{name} @ d{t['n_depth']} o{t['n_depth_others']}"
    return name + (f" @ d{t['n_depth']}" if t["n_depth"] else "")


def peer_of(row, rows, impl="llama.cpp"):
    return next((r for r in rows if r.get("impl") == impl and r["run"] == row["run"] and
                 all(r.get(k) == row.get(k) for k in TEST)), None)


def paired(mine, peers):
    """The ratio of a run of the peer to the mean of gpurun's before and after it, the median over the rounds: what the machine's
    memory does meanwhile, both sides meet. Rates, in the order they were measured."""
    return round(statistics.median((a + b) / 2 / p for a, b, p in zip(mine, mine[1:], peers)), 4)


def drift(runs):
    """How far the runs of a side lie apart: of many the middle half."""
    lo, _, hi = statistics.quantiles(runs, n=4, method="inclusive") if len(runs) > 4 else (min(runs), 0, max(runs))
    return hi / lo - 1


def why_not(row, rows):
    """What a row of gpurun lacks to be shown; None when nothing."""
    for need in ("rel_err", "kl", "load_before", "command", "commit", "date", "cpu", "limit_gb_s"):
        if row.get(need) is None or row[need] != row[need]:
            return f"it lacks {need}"
    peer = peer_of(row, rows)
    if not peer:
        return "there is no row of llama.cpp of the same run"
    if row["ratio"] != paired(row["runs"], peer["runs"]):
        return "its ratio is not that of the two rows"
    for r in (row, peer, peer_of(row, rows, "ik")):
        if r and drift(r["runs"]) > MOST_DRIFT:
            return f"the runs of {r['impl']} lie {100 * drift(r['runs']):.0f} % apart: the machine was busy with something else"
    if row["load_before"] > row["cores"]:
        return f"the load was {row['load_before']} before it, more than the {row['cores']} cores"
    return None


def accepted(rows):
    """(row of gpurun, row of the peer); what is refused is said."""
    for row in rows:
        if row.get("op") == "model" and row["impl"] == "gpurun":
            why = why_not(row, rows)
            if why:
                print(f"rows: refused: {row.get('run')} {row.get('model')} {row.get('type')} {row.get('test')}: {why}",
                      file=sys.stderr)
            else:
                yield row, peer_of(row, rows)


# --- what a cell costs ---

def line(points):
    """Slope and intercept of least squares, and the share of the variance that they explain."""
    n = len(points)
    mx, my = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    sxx = sum((x - mx) ** 2 for x, _ in points)
    slope = sum((x - mx) * (y - my) for x, y in points) / sxx
    all_ = sum((y - my) ** 2 for _, y in points)
    rest = sum((y - my - slope * (x - mx)) ** 2 for x, y in points)
    return slope, my - slope * mx, 1 - rest / all_ if all_ else 1.0


def points(rows, sweep, impl):
    """(cells, microseconds of a step in the best measurement) of a sweep."""
    at = "n_depth" if sweep == "context" else "n_depth_others"
    return [(r[at], r["best_us"] / r["n_gen"]) for r in rows
            if r.get("op") == "model" and r["sweep"] == sweep and r["impl"] == impl]


def growth(rows):
    """Of each side: nanoseconds of a step for a cell of the own text, and for one of another text."""
    for impl in IMPLS:
        own, others = points(rows, "context", impl), points(rows, "others", impl)
        if len(own) < 3:
            continue
        slope, start, fit = line(own)
        row = {"op": "growth", "impl": impl, "own_ns": round(slope * 1e3, 3), "start_us": round(start, 1), "r2": round(fit, 4)}
        if len(others) >= 3:
            row["others_ns"] = round(line(others)[0] * 1e3, 3)
        yield row


# --- what a prompt costs ---

def solve(rows):
    """x of a system of linear equations, each row with its right-hand side; the largest pivots first."""
    m = [list(r) for r in rows]
    for i in range(len(m)):
        m[i:] = sorted(m[i:], key=lambda r: -abs(r[i]))
        for r in m[:i] + m[i + 1:]:
            f = r[i] / m[i][i]
            r[:] = [x - f * y for x, y in zip(r, m[i])]
    return [r[-1] / r[i] for i, r in enumerate(m)]


def parabola(points):
    """a, b, c of y = a + b x + c x^2 with the least squares of relative deviations, and the largest of those."""
    unit = max(x for x, _ in points)  # so that powers are of one size
    terms = [([1 / y, x / unit / y, (x / unit) ** 2 / y], 1.0) for x, y in points]
    a, b, c = solve([[sum(t[i] * t[j] for t, _ in terms) for j in range(3)] + [sum(t[i] * one for t, one in terms)] for i in range(3)])
    b, c = b / unit, c / unit**2
    return a, b, c, max(abs((a + b * x + c * x * x) / y - 1) for x, y in points)


def laws(rows):
    """Of each side: what a prompt takes, by its length."""
    for impl in IMPLS:
        of = [r for r in rows if r.get("op") == "model" and r["sweep"] == "prompt" and r["impl"] == impl]
        if len({r["n_prompt"] for r in of}) < 4:
            continue
        a, b, c, off = parabola([(r["n_prompt"], r["median_us"]) for r in of])
        yield {"op": "law", "impl": impl, "model": of[0]["model"], "type": of[0]["type"], "lo": min(r["n_prompt"] for r in of),
               "hi": max(r["n_prompt"] for r in of), "a_ms": round(a / 1e3, 3), "b_us": round(b, 3), "c_ns": round(c * 1e3, 4),
               "off": round(off, 4)}


# --- what a step of few tokens costs ---

def step_of(row):
    """(tokens, microseconds, those that its bytes take at the rate the machine reads, products) of one step of a row of few tokens or
    of texts side by side."""
    n = row["n_gen"] or 1
    return row["n_seq"] if row["n_gen"] else row["n_prompt"], row["median_us"] / n, row["bytes"] / n / row["limit_gb_s"] / 1e3, row["flops"] / n


def plane(of):
    """The law of steps (step_of()), fixed + memory + products, by the least squares of relative deviations: microseconds of what is fixed,
    GFLOP/s of the products, (tokens, measured, predicted) of all, and tokens and deviation of the furthest. The memory's time is not
    fitted: steps read the same weights, so that nothing would tell it from what is fixed."""
    unit = max(flops for *_, flops in of)
    terms = [((1 / us, flops / unit / us), 1 - memory / us) for _, us, memory, flops in of]
    fixed, products = solve([[sum(t[i] * t[j] for t, _ in terms) for j in range(2)] + [sum(t[i] * y for t, y in terms)] for i in range(2)])
    predicted = [(n, us, fixed + memory + products * flops / unit) for n, us, memory, flops in of]
    at, us, law = max(predicted, key=lambda p: abs(p[2] / p[1] - 1))
    return fixed, unit / products / 1e3, [[n, round(us, 1), round(law, 1)] for n, us, law in predicted], at, law / us - 1


def of_each_type(rows, sweep):
    """{(model, type): {impl: rows}} of a sweep."""
    found = {}
    for r in rows:
        if r.get("op") == "model" and r["sweep"] == sweep and r["impl"] in IMPLS:
            found.setdefault((r["model"], r["type"]), {}).setdefault(r["impl"], []).append(r)
    return found


def steps(rows):
    """Of each side, type and sweep of few tokens: the law of the time of a step."""
    for sweep in OF_EACH_TYPE:
        for (model, kind), by in of_each_type(rows, sweep).items():
            for impl, of in by.items():
                if len(of) >= 4:
                    fixed, gflop_s, points, at, off = plane([step_of(r) for r in of])
                    yield {"op": "step", "impl": impl, "sweep": sweep, "model": model, "type": kind, "fixed_us": round(fixed, 1),
                           "gflop_s": round(gflop_s, 1), "points": points, "at": at, "off": round(off, 4)}


def checks(rows):
    """Of each type and sweep of few tokens: where gpurun is slower than with fewer of them, and where it is less than LEAST_AHEAD of a peer."""
    for sweep in OF_EACH_TYPE:
        for (model, kind), by in of_each_type(rows, sweep).items():
            mine = sorted(by.get("gpurun", ()), key=lambda r: step_of(r)[0])
            slower, behind = [], []
            for i, r in enumerate(mine):
                best = max(mine[:i], key=lambda x: x["tok_s"], default=r)
                if r["tok_s"] < (1 - MOST_SLOWER) * best["tok_s"]:
                    slower.append([step_of(r)[0], step_of(best)[0], round(r["tok_s"] / best["tok_s"], 3)])
                for impl in IMPLS[1:]:
                    peer = peer_of(r, by.get(impl, ()), impl)
                    ahead = paired(r["runs"], peer["runs"]) if peer else LEAST_AHEAD
                    if ahead < LEAST_AHEAD:
                        behind.append([step_of(r)[0], impl, ahead])
            if mine:
                yield {"op": "check", "impl": "gpurun", "sweep": sweep, "model": model, "type": kind, "slower": slower, "behind": behind}


def checked(rows):
    """What steps() and checks() found, in lines."""
    lines = []
    for r in rows:
        what = {"few": "tokens", "texts": "texts"}.get(r.get("sweep"))
        if r.get("op") == "step":
            lines.append(f"{r['type']} {r['impl']}, {what}: {r['fixed_us']:.0f} µs + memory + products at {r['gflop_s']:.0f} GFLOP/s; furthest "
                         f"at {r['at']}, {100 * r['off']:+.1f} %; measured (predicted), µs: "
                         + ", ".join(f"{n}: {us:.0f} ({law:.0f})" for n, us, law in r["points"]))
        elif r.get("op") == "check":
            lines.append(f"{r['type']}, {what} slower than fewer: " + (", ".join(f"{n} {x} of {m}" for n, m, x in r["slower"]) or "none"))
            behind = ", ".join(f"{n} {x} of {i}" for n, i, x in r["behind"]) or "none"
            lines.append(f"{r['type']}, {what} with less than {LEAST_AHEAD} of a peer: {behind}")
    return "".join(line + "\n" for line in lines)


# --- the section ---

def newest(pairs):
    """Of each test on each machine the newest pair, machine by machine."""
    last = {}
    for mine, peer in pairs:
        last.setdefault(mine["cpu"], {})[tuple(mine[k] for k in TEST if k != "sweep")] = (mine, peer)
    return [pair for of_machine in last.values() for pair in of_machine.values()]


def letters(runs):
    return {run: chr(ord("a") + i) if i < 26 else str(i) for i, run in enumerate(runs)}


def table(pairs, of, rows):
    """With columns of ik_llama.cpp where a run had it."""
    iks = {id(mine): peer_of(mine, rows, "ik") for mine, _ in pairs}
    more = any(iks.values())
    yield f"| model | test | gpurun, tok/s | llama.cpp, tok/s | ratio | {'ik_llama.cpp, tok/s | ratio | ' * more}drift | GB/s | of limit | error | run |"
    yield "|---|---|---:|---:|---:|" + "---:|" * (4 + 2 * more) + ":---:|"
    for mine, peer in pairs:
        error = f"{mine['rel_err']:.0e}"
        if "err_f32" in mine:
            error += f" ({mine['err_f32']:.1e}, {mine['peer_err_f32']:.1e})"
        share = f"{mine['gb_s']:.1f} of {mine['limit_gb_s']:.1f} | {100 * mine['frac_limit']:.0f} %" if "frac_limit" in mine else " | "
        ik = iks[id(mine)]
        second = f"{ik['tok_s']:.1f} | {paired(mine['runs'], ik['runs']):.2f} | " if ik else " |  | " * more
        yield (f"| {mine['model']} {mine['type'].upper()} | {mine['test']} | {mine['tok_s']:.1f} | {peer['tok_s']:.1f} | "
               f"{mine['ratio']:.2f} | {second}{100 * drift(mine['runs']):.0f} % | {share} | {error} | {of[mine['run']]} |")


def batches(run, pairs):
    """The peer's micro-batches in a run, where they were chosen."""
    found = [(mine["test"], peer["n_ubatch"]) for mine, peer in pairs if mine["run"] == run and mine["n_prompt"] > 512 and "n_ubatch" in peer]
    return ", micro-batches of " + ", ".join(f"{n} ({test})" for test, n in found) if found else ""


def legend(pairs, of, rows):
    yield ""
    seen = set()
    for mine, peer in pairs:
        if mine["run"] in seen:
            continue
        seen.add(mine["run"])
        ik = next((r for r in rows if r.get("impl") == "ik" and r["run"] == mine["run"]), None)
        second = f" and {ik['impl_rev']}" if ik else ""
        yield (f"- {of[mine['run']]}: `{mine['command']}`, {mine['date']}, commit {mine['commit']}"
               f"{' with changes' if mine['dirty'] else ''}, {mine['cpu']}, {mine['cores']} cores ({mine['isa']}), "
               f"{mine['threads']} threads, load before it {mine['load_before']}; "
               f"{peer['impl_rev']}{second} built for this processor{batches(mine['run'], pairs)}.")


def newest_of(rows, op):
    """Rows of the last run that has any."""
    found = [r for r in rows if r.get("op") == op]
    return [r for r in found if r["run"] == found[-1]["run"]]


def others(rows, pairs, of):
    """Lines on other programs in the runs that are shown."""
    for mine, _ in pairs:
        for r in rows:
            if r.get("op") == "model" and r["impl"] not in IMPLS and r["run"] == mine["run"] and \
                    all(r.get(k) == mine.get(k) for k in TEST):
                yield (f"- {r['impl']} ({r['impl_rev']}), {r['model']} {r['type'].upper()}, {r['test']}: {r['tok_s']:.1f} tok/s, gpurun "
                       f"{mine['tok_s'] / r['tok_s']:.2f} times as fast (run {of[r['run']]}).")


def costs(rows):
    """Lines on what a cell and a step of the host cost, of the newest run that says so."""
    for r in newest_of(rows, "growth"):
        if r["r2"] < LEAST_FIT:
            print(f"rows: refused: growth of {r['impl']}: a line explains {100 * r['r2']:.0f} % of it", file=sys.stderr)
            continue
        others = f", one of another text {r['others_ns']:.0f} ns" if "others_ns" in r else ""
        yield (f"- {r['impl']}: a cell of the own text costs a step {r['own_ns']:.0f} ns{others}; a line explains "
               f"{100 * r['r2']:.1f} % of the growth (commit {r['commit']}, {r['date']}, `{r['command']}`).")
    for r in newest_of(rows, "law"):
        if r["off"] > MOST_OFF:
            print(f"rows: refused: law of {r['impl']}: a point lies {100 * r['off']:.0f} % from it", file=sys.stderr)
            continue
        yield (f"- {r['impl']}: a prompt of n tokens ({r['lo']} to {r['hi']}, {r['model']} {r['type'].upper()}) takes {r['a_ms']:.0f} ms + "
               f"{r['b_us']:.0f} µs n + {r['c_ns']:.1f} ns n²; no measured one lies further than {100 * r['off']:.1f} % from that (commit "
               f"{r['commit']}, {r['date']}, `{r['command']}`).")
    host = newest_of(rows, "host")
    if host:
        parts = [f"{r['cpu_us']:.1f} µs for {r['n_seq']} x {r['n_depth']} cells" for r in host]
        yield (f"- The host's own CPU time in a step of {host[0]['n_layer']} layers, texts x cells of each, beside a device that does "
               f"nothing (`build/tests/bench_host`): {', '.join(parts)} (commit {host[0]['commit']}, {host[0]['date']}, {host[0]['cpu']}).")


def loads(rows):
    """Lines on loading, of the newest run of each file that was measured in a quiet machine."""
    last = {}
    for r in rows:
        if r.get("op") == "load" and r["impl"] == "gpurun":
            peer = next((p for p in rows if p.get("op") == "load" and p["impl"] == "llama.cpp" and p["run"] == r["run"] and
                         (p["model"], p["type"]) == (r["model"], r["type"])), None)
            if not peer or abs(peer["ms"] / r["ms"] / r["ratio"] - 1) > 0.001 or r["load_before"] > r["cores"]:
                print(f"rows: refused: {r['run']} {r['model']} {r['type']} load: no peer, another ratio, or too much load", file=sys.stderr)
            else:
                last[r["model"], r["type"]] = (r, peer)
    for r, peer in last.values():
        spread = lambda x: f"{min(x['runs']):.0f} to {max(x['runs']):.0f}"
        yield (f"- From the file to the logits of a first token, {r['model']} {r['type'].upper()} ({r['bytes'] / 1e9:.2f} GB, mapped, in the "
               f"page cache): gpurun {r['ms']:.0f} ms ({spread(r)}), llama.cpp {peer['ms']:.0f} ms ({spread(peer)}): {r['ratio']:.2f} times "
               f"as fast (commit {r['commit']}, {r['date']}, `{r['command']}`).")


def plot(sweep):
    """The picture of a sweep that --record keeps."""
    return os.path.join(HERE, "results", f"{sweep}.png")


def pictures(rows, sweeps, folder=HERE):
    """The plots of the newest of these sweeps, as links from a folder."""
    for sweep in sweeps:
        if any(r.get("op") == "model" and r["sweep"] == sweep for r in rows):
            if not os.path.exists(plot(sweep)):
                sys.exit(f"rows: the results have a sweep, {sweep}, but there is no {plot(sweep)}")
            yield f"\n![{PLOTS[sweep]}]({os.path.relpath(plot(sweep), folder)})"


def wrapped(lines):
    """Lines of at most 150 characters, but those of tables and pictures."""
    for line in lines:
        indent = "  " if line.startswith("- ") else ""
        whole = not line or line[0] in "|!"
        yield from [line] if whole else textwrap.wrap(line, 150, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def text(rows, plots=True):
    pairs = newest(accepted(rows))
    if not pairs:
        return "No result that may be shown: `scripts/bench/speed --record` makes one.\n"
    of = letters(dict.fromkeys(mine["run"] for mine, _ in pairs))
    more = [*others(rows, pairs, of), *loads(rows), *costs(rows), *(pictures(rows, PLOTS) if plots else ())]
    return "\n".join(wrapped([*table(pairs, of, rows), *legend(pairs, of, rows), *([""] if more else []), *more])) + "\n"


def front(rows):
    """The newest rows of FRONT, with the machines and the days of their runs."""
    last = {}
    for pair in accepted(rows):
        at = tuple(pair[0][k] for k in ("model", "type", "test"))
        if at in FRONT:
            last[at] = pair
    pairs = list(last.values())
    lines = ["| model | test | gpurun, tok/s | llama.cpp, tok/s | ratio | of limit |", "|---|---|---:|---:|---:|---:|"]
    for mine, peer in pairs:
        share = f"{100 * mine['frac_limit']:.0f} %" if "frac_limit" in mine else ""
        lines.append(f"| {mine['model']} {mine['type'].upper()} | {mine['test']} | {mine['tok_s']:.1f} | {peer['tok_s']:.1f} | "
                     f"{mine['ratio']:.2f} | {share} |")
    days = {}
    for mine, peer in pairs:
        days.setdefault((mine["cpu"], mine["cores"], peer["impl_rev"]), {}).setdefault(mine["date"], {})[mine["commit"]] = True
    for (cpu, cores, peer), of in days.items():
        lines += ["", f"{cpu}, {cores} cores, `scripts/bench/speed`; "
                  f"{'; '.join(f'{day}, commits ' + ', '.join(commits) for day, commits in of.items())}; {peer}."]
    return "\n".join([*lines, *pictures(rows, ["prompt"], ROOT)]) + "\n"


def read(path=RESULTS):
    with open(path) as f:
        return [json.loads(line) for line in f]


def marks(name, by="scripts/bench/rows.py"):
    return f"<!-- {name}: begin ({by} --write) -->", f"<!-- {name}: end -->"


def sections():
    """(document, marks, what belongs between them)"""
    gpu = subprocess.run([sys.executable, os.path.join(ROOT, "scripts", "gpu", "table")], stdout=subprocess.PIPE, text=True,
                         check=True).stdout
    rows = read()
    return [(os.path.join(ROOT, "README.md"), marks("speed"), front(rows)),
            (os.path.join(HERE, "README.md"), marks("bench"), text(rows)),
            (os.path.join(ROOT, "tests", "gpu", "README.md"), marks("gpu", "scripts/gpu/table"), gpu)]


def with_section(document, begin, end, made):
    """What a document says, and what it says with that section."""
    with open(document) as f:
        old = f.read()
    mark = re.compile(re.escape(begin) + "\n.*?" + re.escape(end), re.S)
    if not mark.search(old):
        sys.exit(f"rows: {document} lacks {begin} .. {end}")
    return old, mark.sub(lambda _: f"{begin}\n{made}{end}", old)


def differing():
    """(document, its text with the section) of those that have another one."""
    for document, mark, made in sections():
        old, new = with_section(document, *mark, made)
        if new != old:
            yield document, new


def record(rows):
    with open(RESULTS, "a") as f:
        f.writelines(json.dumps(row) + "\n" for row in rows)
    write()


def write():
    for document, new in differing():
        with open(document, "w") as f:
            f.write(new)


def main():
    if sys.argv[1:] == ["--write"]:
        write()
    elif sys.argv[1:] == ["--check"]:
        for document, _ in differing():
            sys.exit(f"rows: {os.path.relpath(document, ROOT)} does not say what the results say; scripts/bench/rows.py --write")
    elif not sys.argv[1:]:
        print("\n".join(made for _, _, made in sections()), end="")
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
