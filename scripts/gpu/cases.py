"""Programs that keep a journal of their cases (tests/support/cases.h). A case that hangs or crashes costs itself only: the program is
killed when its journal stands still, that case has failed, and the program is started again without those that are done."""
import collections
import concurrent.futures
import os
import re
import tempfile

from runner import Done, Lost, lines

# {name: None, or why it failed}; all that was printed; whether time ran out; what the device said that no longer answers
Found = collections.namedtuple("Found", "outcome out cut lost", defaults=(False, None))


def read(path):
    """{name: None or why it failed} of the cases that ended, and those that only began."""
    ended, begun = {}, []
    with open(path, errors="replace") as f:
        for line in f:
            word, _, rest = line.rstrip("\n").partition(" ")
            if word == "case":
                begun.append(rest)
            elif word == "ok":
                ended[rest] = None
            elif word == "FAIL":
                name, _, why = rest.partition(": ")
                # a name may hold ": " itself: the one that began is meant
                name = max((b for b in begun if rest.startswith(b + ": ")), key=len, default=name)
                ended[name] = rest[len(name) + 2:]
    return ended, [name for name in begun if name not in ended]


def ending(r, done):
    if done.hung:
        return f"no end after {r.a.case_seconds:g} s, killed"
    return f"ended by signal {-done.rc}" if done.rc < 0 else f"ended with exit code {done.rc}"


def follow(r, command, env, skip):
    """Runs a program until it has done all cases but those of `skip`."""
    outcome, printed = {}, []
    with tempfile.TemporaryDirectory() as folder:
        journal, skipped = os.path.join(folder, "journal"), os.path.join(folder, "skip")
        while True:
            open(journal, "w").close()
            with open(skipped, "w") as f:
                f.writelines(name + "\n" for name in [*skip, *outcome])
            done = r.run(*command, env={**env, "GR_CASES_JOURNAL": journal, "GR_CASES_SKIP": skipped}, limit=r.left(),
                         quiet=r.a.case_seconds, journal=journal, ask=False, partial=True)
            printed.append(done.out)
            ended, broken = read(journal)
            outcome |= ended
            if done.cut:
                return Found(outcome, "".join(printed), cut=True)
            outcome |= dict.fromkeys(broken, ending(r, done))
            if done.hung or done.rc < 0 or broken:
                try:
                    r.ask_device()
                except Lost as e:
                    return Found(outcome, "".join(printed), lost=str(e))
            if done.rc != 0 and not ended and not broken and not outcome:  # it did not come to its first case
                outcome["it begins"] = (done.err + done.out)[-1000:]
            if done.rc == 0 or (not ended and not broken):
                return Found(outcome, "".join(printed))


def run(r, what, commands, env=None, fails=None):
    """Cases of several commands (parts of a program's), side by side. Records a check of each that failed and one of all; fails(name,
    command, env) is told of the former. JSON lines that they print are figures. What an earlier call has done is left out. Raises Lost
    once that is recorded."""
    env, known = env or {}, r.result["cases"].setdefault(r.stage, {}).setdefault(what, {})
    with concurrent.futures.ThreadPoolExecutor(len(commands)) as pool:
        found = list(pool.map(lambda command: follow(r, command, env, list(known)), commands))
    for command, part in zip(commands, found):
        for row in lines(part.out):
            r.figure(**row)
        for name, why in part.outcome.items():
            known[name] = why
            if why is not None:
                r.check(f"{what}: {name}", False, Done(1, "", why, 0))
                if fails:
                    fails(name, command, env)
    cut, lost = any(part.cut for part in found), next((part.lost for part in found if part.lost is not None), None)
    n_bad = sum(why is not None for why in known.values())
    done = Done(0, "", "", 0)
    if lost is not None:
        raise Lost(lost)
    if cut:
        r.note(what, f"{len(known)} cases are done; the rest is left to the next call")
    else:
        r.check(f"{len(known)} cases of {what}" + (f", {n_bad} failed" if n_bad else ""), known and not n_bad, done,
                "no case was run" if not known else "listed above")


def shards(r, program, n):
    """Commands that each run a part of the tests of a Criterion program."""
    listed = r.run(program, "--list", limit=20).out
    tests, suite = [], ""
    for line in listed.splitlines():
        head, branch = re.match(r"(\w+): \d+ tests?$", line), re.match(r"\W+(\w+)", line)
        if head:
            suite = head[1]
        elif branch:
            tests.append(f"{suite}/{branch[1]}")
    parts = [tests[i::n] for i in range(n)]
    return [[program, "-j1", "--filter", f"@({'|'.join(part)})"] for part in parts if part] or [[program, "-j1"]]
