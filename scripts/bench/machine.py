"""The machine and the tree that a measurement was made on."""
import os
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# Instruction sets that llama.cpp uses when it was built for them, by their names in /proc/cpuinfo and in its own report.
ISA = {"avx2": "AVX2", "avx512f": "AVX512", "avx512_vnni": "AVX512_VNNI", "avx512_bf16": "AVX512_BF16", "amx_int8": "AMX_INT8"}


def git(*arguments):
    return subprocess.run(["git", "-C", ROOT, *arguments], stdout=subprocess.PIPE, text=True).stdout.strip()


def cpuinfo():
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        return dict(re.split(r"\s*:\s*", line, maxsplit=1) for line in f.read().strip().split("\n\n")[0].splitlines())


def machine():
    fields = cpuinfo()
    notable = [x for x in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16") if x in fields["flags"].split()]
    return {"cpu": f"{fields['model name'].strip()} (family {fields['cpu family']}, model {fields['model']})",
            "cores": os.cpu_count(), "isa": " ".join(notable)}


def tree():
    """The commit, and whether the files differ from it."""
    return {"commit": git("rev-parse", "--short=12", "HEAD"), "dirty": bool(git("status", "--porcelain", "--untracked-files=no"))}


def lacks(report):
    """Instruction sets of this machine that a build of llama.cpp with this report (system_info) does not use."""
    flags = cpuinfo()["flags"].split()
    built = {part.split("=")[0].split(":")[-1].strip() for part in report.split("|") if part.strip().endswith("= 1")}
    return [name for flag, name in ISA.items() if flag in flags and name not in built]


def command(script, places):
    """The command line as given, but for --record and flags that say where files are."""
    words, skip = [script], False
    for word in sys.argv[1:]:
        if not skip and word not in ("--record", *places):
            words.append(word)
        skip = word in places
    return shlex.join(words)
