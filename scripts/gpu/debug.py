"""The stage that looks closer at what failed, without new code: each case by itself, launches one after the other with a light core
dump, with each switch of the runtime off, and under memcheck."""
import dataclasses
import glob
import os
import shutil
import tempfile
import typing

from cases import read

SWITCHES = {"no-graphs": "--no-cuda-graph", "no-pdl": "--no-cuda-pdl", "no-sm90": "--no-cuda-sm90", "no-fuse": "--no-cuda-fuse"}
MEMCHECK, CORE_MIB = 40, 12  # seconds that it may take; a core dump that is kept is no larger


@dataclasses.dataclass
class Failure:
    """What failed, and how it is run again: attempt(tool, switch, env, limit) gives the program's end and whether it passed."""
    name: str
    group: str  # of failures in one group the first is looked at first
    attempt: typing.Callable


def of_case(r, name, command, env):
    """A case of a program that keeps a journal."""

    def attempt(tool, switch, more, limit=None):
        with tempfile.NamedTemporaryFile() as journal:
            words = [w for w in (env.get("GR_TEST_CUDA"), switch) if w]
            only = {"GR_CASES_ONLY": name, "GR_CASES_JOURNAL": journal.name, **({"GR_TEST_CUDA": ",".join(words)} if words else {})}
            done = r.run(*tool, *command, limit=limit or r.a.case_seconds / 2, env={**env, **more, **only}, partial=True)
            ended, _ = read(journal.name)
        why = ended.get(name, "it did not end")
        return done._replace(err=done.err + (why or "")), why is None

    r.failures.append(Failure(name, "/".join(name.split("/")[:2]), attempt))


def of_command(r, name, command, passed):
    """A command of gpurun's; passed(done) judges it."""

    def attempt(tool, switch, more, limit=None):
        done = r.run(*tool, *command, *([SWITCHES[switch]] if switch else []), limit=limit or r.a.case_seconds / 2, env=more, partial=True)
        return done, passed(done)

    r.failures.append(Failure(name, name, attempt))


def dump(r, failure):
    """Launches that wait for each other, and where the device was when it failed, by a light core dump."""
    with tempfile.TemporaryDirectory() as folder:
        done, passed = failure.attempt([], None, {
            "CUDA_LAUNCH_BLOCKING": "1", "CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "1", "CUDA_ENABLE_LIGHTWEIGHT_COREDUMP": "1",
            "CUDA_COREDUMP_FILE": os.path.join(folder, "core.%p")})
        said = "" if passed else (done.err + done.out)[-1500:]
        for core in glob.glob(os.path.join(folder, "core.*"))[:1]:
            gdb = shutil.which("cuda-gdb")
            if gdb:
                where = r.run(gdb, "-batch", "-nx", "-ex", f"target cudacore {core}", "-ex", "info cuda kernels", "-ex", "bt", limit=30,
                              ask=False, partial=True)
                said += "\n" + (where.out + where.err)[-1500:]
            if os.path.getsize(core) < CORE_MIB << 20:
                shutil.copy(core, os.path.join(r.folder(), os.path.basename(core)))
    return passed, said


def memcheck(failure):
    tool = shutil.which("compute-sanitizer")
    if not tool:
        return None
    done, _ = failure.attempt([tool, "--tool", "memcheck", "--target-processes", "all", "--error-exitcode", "9"], None, {}, MEMCHECK)
    return "\n".join(line for line in (done.out + done.err).splitlines() if line.startswith("====="))[:3000] or done.err[-500:]


def look(r, failure):
    found = {"name": failure.name, "stage": r.stage, "session": r.session}
    done, found["alone"] = failure.attempt([], None, {})
    found["said"] = "" if found["alone"] else (done.err + done.out)[-1500:]
    found["blocking"], found["core"] = dump(r, failure)
    found["memcheck"] = memcheck(failure)
    for switch in SWITCHES:
        found[switch] = failure.attempt([], switch, {})[1] if r.left() > 2 else None
    r.result["again"].append(found)
    word = {True: "passes", False: "fails", None: "not tried"}
    print(f"again {failure.name}: " + ", ".join(f"{k} {word[found[k]]}" for k in ("alone", "blocking", *SWITCHES)), flush=True)
    for key in ("said", "core", "memcheck"):
        print("\n".join(f"    {key}: {line}" for line in (found[key] or "").splitlines()[:30]), flush=True)
    r.save()


def debug(r):
    """What failed so far is run again: alone, with CUDA_LAUNCH_BLOCKING and a light core dump, under memcheck, and without graphs,
    early launches, sm_90 kernels and fused launches. One case of each group first."""
    first, rest = {}, []
    for failure in r.failures:
        if failure.group in first:
            rest.append(failure)
        else:
            first[failure.group] = failure
    r.failures = []
    for failure in [*first.values(), *rest]:
        if r.left() < 5:
            r.note("debug", f"no time is left for {failure.name} and what failed behind it")
            break
        look(r, failure)
