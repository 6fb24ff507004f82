"""Mutates the repository's own templates, grammars and schemas, and runs each under limits.

    python3 tests/fuzz/mutate.py FOLDER_OF_PROGRAMS [COUNT [SEED]]

COUNT inputs (50,000) in all, in equal parts from templates (compiled and rendered), from grammars and from schemas (compiled, then up to
200 tokens with their masks). Each takes at most a second of processor time and 256 MiB of memory held by the library, keeps the promises of
its fuzz target, and gives all memory back. The inputs of a seed are always the same. Programs: mutate_template, mutate_grammar.
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def templates():
    """The known templates, and those of the golden cases."""
    text = (ROOT / "host/chat/known.def").read_text("utf-8")
    for block in re.split(r"^KNOWN\(", text, flags=re.M)[1:]:
        strings = re.findall(r'"((?:[^"\\]|\\.)*)"', block)
        yield "".join(strings[2:]).replace("\\n", "\n").replace('\\"', '"').replace("\\\\", "\\").encode()
    golden = json.loads((ROOT / "tests/golden/chat/templates.json").read_text("utf-8"))
    for case in golden["cases"]:
        yield case["template"].encode("utf-8", "surrogatepass")


def grammars(kind):
    """The golden cases of a kind and the seeds of the fuzz target, with the two bytes in front that it expects."""
    golden = json.loads((ROOT / "tests/golden/grammar/cases.json").read_text("utf-8"))
    first = b"\1\0" if kind == "schema" else b"\0\0"
    for case in (c for cases in golden.values() for c in cases if kind in c):
        text = case[kind] if isinstance(case[kind], str) else json.dumps(case[kind])
        yield first + text.encode("utf-8", "surrogatepass")
    for path in sorted((ROOT / "tests/golden/grammar/seeds").glob(f"{kind}-*")):
        yield path.read_bytes()


def main():
    programs = pathlib.Path(sys.argv[1]).resolve()
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 50000
    seed = sys.argv[3] if len(sys.argv) > 3 else "1"
    sets = [("templates", "mutate_template", templates()), ("grammars", "mutate_grammar", grammars("gbnf")),
            ("schemas", "mutate_grammar", grammars("schema"))]
    fine = True
    for i, (name, program, seeds) in enumerate(sets):
        part = count // len(sets) + (i < count % len(sets))
        with tempfile.TemporaryDirectory() as folder:
            paths = []
            for k, data in enumerate(seeds):
                paths.append(f"{folder}/{k:04}")
                pathlib.Path(paths[-1]).write_bytes(data)
            assert len(paths) >= 5, f"{name}: {len(paths)} seeds"
            done = subprocess.run([programs / program, str(part), seed, *paths], cwd=folder, capture_output=True, text=True)
            print(f"{name}: {done.stdout.strip()}")
            if done.returncode:
                fine = False
                print(done.stderr[-3000:])
                failed = pathlib.Path(folder, "mutate-failed")
                print(failed.read_bytes()[:2000] if failed.exists() else "no input was kept")
                if failed.exists():
                    kept = programs / f"mutate-failed-{name}"
                    kept.write_bytes(failed.read_bytes())
                    print(f"input: {kept}")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
