"""Times ik_llama.cpp, by the programs of a build folder of it, on tests of `gpurun bench`, and prints rows with the same names, one JSON
object a line: prompts and single texts by llama-bench, texts side by side or behind other tokens by llama-batched-bench; weights are
repacked when they are loaded. Prompts of more than 512 tokens have the best of several micro-batches, -ub.

    ik.py BUILD MODEL.gguf --tests '[{"n_prompt": 512, "n_gen": 0, "n_seq": 1, "n_depth": 0, "n_depth_others": 0}, ..]' -t 2 [-r 2]
"""
import argparse
import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

COLUMNS = 10  # of a line of llama-batched-bench: PP, TG, B, N_KV, T_PP, S_PP, T_TG, S_TG, T, S
LINE = re.compile(r"^\|" + r"\s*([\d.]+)\s*\|" * COLUMNS + r"\s*$", re.M)


def fail(why):
    sys.exit(f"ik: {why}")


def measurable(test):
    """Cells of texts that take no part have no counterpart there, and llama-batched-bench needs a token before each text."""
    return not test["n_depth_others"] and not (test["n_seq"] > 1 and not test["n_depth"]) and not (test["n_prompt"] and (test["n_gen"] or test["n_depth"]))


def program(build, name):
    for path in (build / "bin" / name, build / name):
        if path.is_file():
            return path.resolve()
    fail(f"{build} has no {name}: it is to be a build folder of ik_llama.cpp")


def output(command):
    """What a program writes to both of its streams, in a folder of its own, as it may leave a log."""
    command = [str(x) for x in command]
    with tempfile.TemporaryDirectory() as folder, open(f"{folder}/errors", "w+") as errors:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=folder)
        errors.seek(0)
        said = errors.read()
    if done.returncode != 0:
        fail(f"exit {done.returncode} of: {shlex.join(command)}\n{said[-1000:]}")
    return done.stdout, said


def bench(a, tests, ubatch):
    """{(n_prompt, n_gen): [rows of llama-bench, one for each micro-batch]}"""
    lists = {k: ",".join(str(n) for n in dict.fromkeys(t[k] for t in tests) if n) or "0" for k in ("n_prompt", "n_gen")}
    command = [program(a.build, "llama-bench"), "-m", a.model, "-p", lists["n_prompt"], "-n", lists["n_gen"], "-t", a.t, "-r", a.r,
               "-ub", ",".join(map(str, ubatch)), "-fa", 1, "-rtr", 1, "-ngl", 0, "-o", "json"]
    text, _ = output(command)
    try:
        found = json.loads(text[text.index("["):])
        by = {}
        for row in found:
            if not row["repack"] or not row["samples_ns"]:
                fail(f"llama-bench did not repack or measured nothing: {row}")
            by.setdefault((row["n_prompt"], row["n_gen"]), []).append(row)
        return by
    except (ValueError, KeyError, TypeError) as e:
        fail(f"no JSON rows of llama-bench are in the output of {shlex.join(map(str, command))}: {e!r}")


def side_by_side(a, depth, n_gen, counts):
    """{texts: [nanoseconds of all steps]}. The rate has more digits than the time."""
    command = [program(a.build, "llama-batched-bench"), "-m", a.model, "-npp", depth, "-ntg", n_gen, "-npl", ",".join(map(str, counts * a.r)),
               "-pps", "-c", depth + max(counts) * n_gen, "-b", 2048, "-ub", a.ubatch[0], "-t", a.t, "-fa", "on", "-rtr", "-ngl", 0]
    by = {}
    for cells in LINE.findall("\n".join(output(command))):
        if float(cells[7]) > 0:
            by.setdefault(int(cells[2]), []).append(round(int(cells[2]) * n_gen * 1e9 / float(cells[7])))
    if {n: len(by.get(n, ())) for n in counts} != dict.fromkeys(counts, a.r):
        fail(f"llama-batched-bench lacks lines of some of {counts} texts: {shlex.join(map(str, command))}")
    return by


def row(test, ns, ubatch, version):
    n, steps = test["n_prompt"] + test["n_gen"] * test["n_seq"], test["n_gen"]
    mean = sum(ns) / len(ns)
    each = round(mean / steps) if steps else 0  # no program of ik_llama.cpp tells the time of each step
    return {**test, "n_ubatch": ubatch, "avg_ts": round(n * 1e9 / mean, 4), "samples_ns": ns, "ttft_ns": 0 if steps else round(mean),
            "itl_p50_ns": each, "itl_p90_ns": each, "itl_p99_ns": each, "version": version}


def rows(a):
    tests = [t for t in a.tests if measurable(t)]
    alone = [t for t in tests if t["n_seq"] == 1 and not t["n_depth"]]
    version = "ik_llama.cpp"
    for group, ubatch in (([t for t in alone if t["n_prompt"] <= 512], a.ubatch[:1]), ([t for t in alone if t["n_prompt"] > 512], a.ubatch)):
        found = bench(a, group, ubatch) if group else {}
        for t in group:
            tried = found.get((t["n_prompt"], t["n_gen"])) or fail(f"llama-bench has no row of {t}")
            best = min(tried, key=lambda r: sum(r["samples_ns"]))
            version = f"ik_llama.cpp {best.get('build_commit', '')}".strip()
            yield row(t, best["samples_ns"], best.get("n_ubatch", ubatch[0]), version)
    others = {}
    for t in tests:
        if t not in alone:
            others.setdefault((t["n_depth"], t["n_gen"]), []).append(t)
    for (depth, n_gen), group in others.items():
        found = side_by_side(a, depth, n_gen, [t["n_seq"] for t in group])
        for t in group:
            yield row(t, found[t["n_seq"]], a.ubatch[0], version)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("build", type=pathlib.Path)
    p.add_argument("model", type=lambda x: pathlib.Path(x).resolve())
    p.add_argument("--tests", type=json.loads, required=True)
    p.add_argument("-t", type=int, required=True)
    p.add_argument("-r", type=int, default=2)
    p.add_argument("-ub", "--ubatch", type=lambda x: [int(n) for n in x.split(",")], default=[512])
    for found in rows(p.parse_args()):
        print(json.dumps(found), flush=True)


main()
