"""Programs under limits, and the file that keeps what they said: it is written after each of them, so that a run that is cut off
leaves what it has. A program that hangs or crashes costs its own step only; after it the device is asked whether it still answers,
and when it does not the run ends there."""
import collections
import contextlib
import ctypes
import datetime
import json
import os
import signal
import statistics
import subprocess
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# How a program ended. hung: it was killed because it did not go on; cut: because the stage's time was over.
Done = collections.namedtuple("Done", "rc out err seconds hung cut", defaults=(False, False))
ANSWER = 5  # seconds in which `gpurun devices` says that the device answers


class Lost(Exception):
    """The device no longer answers."""


class TimeIsUp(Exception):
    """A stage's time is over: what it was at is left to the next call."""


class Sensors:
    """Clock of the multiprocessors (MHz), temperature (C) and power (W) of the first GPU, through NVML, which only reads; None
    where there is none."""

    def __init__(self):
        try:
            self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
            self.gpu = ctypes.c_void_p()
            found = self.nvml.nvmlInit_v2() == 0 and self.nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.gpu)) == 0
            self.nvml = self.nvml if found else None
        except (OSError, AttributeError):
            self.nvml = None

    def ask(self, name, *arguments):
        n = ctypes.c_uint()
        failed = getattr(self.nvml, name)(self.gpu, *arguments, ctypes.byref(n))
        return None if failed else n.value

    def read(self):
        if not self.nvml:
            return None
        return (self.ask("nvmlDeviceGetClockInfo", 1), self.ask("nvmlDeviceGetTemperature", 0),
                (self.ask("nvmlDeviceGetPowerUsage") or 0) // 1000)


class Watch:
    """What the sensors say while something runs: the median clock, the highest temperature and power."""

    def __init__(self, sensors):
        self.sensors, self.seen, self.over = sensors, [], threading.Event()
        self.thread = threading.Thread(target=self.look, daemon=True)

    def look(self):
        while True:
            self.seen.append(self.sensors.read())
            if self.over.wait(0.25):
                return

    def __enter__(self):
        if self.sensors.nvml:
            self.thread.start()
        return self

    def __exit__(self, *error):
        self.over.set()

    def found(self):
        seen = [x for x in self.seen if x and None not in x]
        if not seen:
            return {}
        clocks, warm, power = zip(*seen)
        return {"sm_mhz": statistics.median(clocks), "temp_c": max(warm), "power_w": max(power)}


def lines(text):
    """The objects among the lines of an output: of one that was cut off, those that are whole."""
    found = []
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
    return found


class Runner:
    def __init__(self, a, path, result):
        self.a, self.path, self.result = a, path, result
        self.sensors, self.stage, self.deadline, self.deadline_of_all, self.last_seen = Sensors(), None, None, None, {}
        self.session = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.n_failed, self.step_name, self.failures = 0, None, []  # failures: debug.Failure, of this session
        self.lock = threading.RLock()  # of the result and what is printed
        self.gpu = ["--device", a.device, "-ngl", "99"]  # flags of gpurun: all layers on the GPU

    # --- programs ---

    def program(self, name):
        """Where a program of the build is; of an emulated run the one that has the emulated device for a driver, if there is one."""
        here = [os.path.join(self.a.bin, *at, name + end) for end in (("-emu", "_emu", "") if self.a.emulated else ("",))
                for at in ((), ("tests",))]
        return next((path for path in here if os.path.exists(path)), here[-2])

    def library(self, name):
        """The argument of a program with kernels of its own: of an emulated run the library that has these, otherwise none."""
        return [os.path.join(self.a.emulated, f"libcuda_emu_{name}.so")] if self.a.emulated else []

    def peer(self, name):
        return os.path.join(self.a.peer, "bin", name) if self.a.peer else None

    def paths(self, program):
        """Where a program of the peer finds libraries; no other one is to find those."""
        if not self.a.peer or not str(program).startswith(self.a.peer):
            return {}
        return {"LD_LIBRARY_PATH": os.path.join(self.a.peer, "lib") + os.pathsep + os.environ.get("LD_LIBRARY_PATH", "")}

    def left(self):
        return self.deadline - time.monotonic() if self.deadline else float("inf")

    def run(self, *command, limit=300, env=None, quiet=None, journal=None, ask=True, late=False, partial=False):
        """What a program gave; one that is missing or runs too long fails with what it said so far. It is killed with all that it
        has started: a kernel that hangs lets no program end by itself. quiet: seconds in which it has to say something, on stdout or
        in the file `journal`. ask: whether the device is asked if it still answers, after a program that was killed or crashed. late: it
        may run beyond the stage's time. partial: what it said is of use when that time cuts it off, which otherwise raises TimeIsUp."""
        start = time.monotonic()
        left = float("inf") if late else self.left()
        limit = min(limit, left)
        if limit < 2 and limit == left:
            return self.cut(Done(-1, "", "no time was left for it", 0, cut=True), partial)
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            try:
                p = subprocess.Popen([str(x) for x in command], stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
                                     env={**os.environ, **self.paths(command[0]), **(env or {})})
            except OSError as e:
                return Done(-1, "", str(e), 0)
            with Watch(self.sensors) as watch:
                why = self.follow(p, start + limit, quiet, lambda: size(out) + (os.path.getsize(journal) if journal else 0))
            self.last_seen = watch.found()
            said = [text_of(f) for f in (out, err)]
        seconds = time.monotonic() - start
        if why:
            said[1] += f"\nkilled after {seconds:.0f} s"
        done = Done(p.returncode if p.returncode is not None else -1, *said, seconds, hung=bool(why) and (why == "quiet" or limit < left),
                    cut=why == "limit" and limit >= left)
        if ask and (done.hung or done.rc < 0):
            self.ask_device()
        return self.cut(done, partial)

    @staticmethod
    def cut(done, partial):
        if done.cut and not partial:
            raise TimeIsUp
        return done

    @staticmethod
    def follow(p, end, quiet, amount):
        """Waits for a program; kills it and returns "limit" at the end of its time, "quiet" when it says nothing for so long."""
        seen, since = -1, time.monotonic()
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                p.wait(0.05)
                return None
            now = time.monotonic()
            if quiet and amount() != seen:
                seen, since = amount(), now
            if now < end and not (quiet and now - since > quiet):
                continue
            os.killpg(p.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):  # one that the driver holds is given up
                p.wait(10)
            return "limit" if now >= end else "quiet"

    def ask_device(self):
        """Raises Lost when the device does not answer in time; a driver that has just killed a context may need a second try."""
        said = ""
        for pause in (0, 10):
            time.sleep(0 if self.a.emulated else pause)
            done = self.run(self.program("gpurun"), "devices", "--json", limit=ANSWER, ask=False, late=True)
            with contextlib.suppress(ValueError, KeyError, IndexError):
                if not json.loads(done.out)["devices"][0].get("unusable"):
                    return
            said = done.err.strip() or done.out.strip()
        raise Lost(said)

    # --- steps: what a call that goes on does not do again ---

    @contextlib.contextmanager
    def step(self, key):
        """A part of a stage, as `with r.step(key) as go: if go: ...`. go is false when an earlier call has done it, or ended in it
        without coming back, which is recorded as a failure; figures of a step that the end of time cut off are dropped."""
        steps = self.result["steps"].setdefault(self.stage, {})
        if key in steps:
            if steps[key] != "done":
                steps[key] = "done"
                self.check(key, False, Done(-1, "", "an earlier call ended in it and did not come back", 0))
            yield False
            return
        steps[key], self.step_name = "begun", key
        self.save()
        try:
            yield True
            cut = self.left() <= 1
        except BaseException as e:
            cut = isinstance(e, (KeyboardInterrupt, TimeIsUp))
            raise
        finally:
            self.step_name = None
            steps[key] = "done"
            if cut:
                del steps[key]
                self.drop(lambda x: x["stage"] == self.stage and x.get("step") == key)
            self.save()

    def drop(self, which):
        for kind in ("checks", "figures", "notes", "again"):
            self.result[kind] = [x for x in self.result[kind] if not which(x)]

    # --- what was found ---

    def tag(self):
        return {"stage": self.stage, "session": self.session, **({"step": self.step_name} if self.step_name else {})}

    def check(self, name, passed, done, detail=None):
        detail = done.err + done.out if detail is None else detail
        with self.lock:
            self.result["checks"].append({**self.tag(), "name": name, "passed": bool(passed), "seconds": round(done.seconds, 2),
                                          "detail": "" if passed else detail[-2000:]})
            self.n_failed += not passed
            said = "" if passed else f"\n{detail[-2000:]}"
            print(f"{'ok  ' if passed else 'FAIL'} {self.stage}: {name} ({done.seconds:.1f} s){said}", flush=True)
            self.save()
        return passed

    def note(self, name, why):
        """What is not there and is no failure."""
        with self.lock:
            self.result["notes"].append({**self.tag(), "name": name, "why": why})
            print(f"note {self.stage}: {name}: {why}", flush=True)
            self.save()

    def figure(self, **row):
        row = {**row, **self.last_seen, **self.tag()}
        self.result["figures"].append(row)
        print("    " + json.dumps(row), flush=True)

    def rows(self, name, done, **more):
        """Figures from the lines of a program's output, also when it failed on the way."""
        found = lines(done.out)
        for row in found:
            self.figure(**row, **more)
        self.check(name, done.rc == 0 and found, done)
        return found

    def failed(self, stage):
        """Names of the checks of a stage that failed, whenever that was."""
        return [c["name"] for c in self.result["checks"] if c["stage"] == stage and not c["passed"]]

    def save(self):
        """Writes the file, and its copy; either is whole at any time."""
        with self.lock:
            text = json.dumps(self.result, indent=1) + "\n"
            for path in [self.path] + ([os.path.join(self.a.copy, os.path.basename(self.path))] if self.a.copy else []):
                os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
                with open(path + ".part", "w") as f:
                    f.write(text)
                os.replace(path + ".part", path)

    def folder(self):
        """Where what comes back is put."""
        return self.a.copy or os.path.dirname(os.path.abspath(self.path))

    # --- stages ---

    def enter(self, stage, seconds, again):
        """again: forgets what earlier calls have left of the stage."""
        self.stage, self.last_seen = stage, {}
        if again:
            self.drop(lambda x: x["stage"] == stage)
            self.result["steps"].pop(stage, None)
            self.result["cases"].pop(stage, None)
        self.deadline = time.monotonic() + min(seconds, self.left_of_all())

    def begin(self, minutes):
        """From now on all stages together have so many minutes; None: no limit."""
        self.deadline_of_all = time.monotonic() + 60 * minutes if minutes else None

    def left_of_all(self):
        return self.deadline_of_all - time.monotonic() if self.deadline_of_all else float("inf")


def size(f):
    return os.fstat(f.fileno()).st_size


def text_of(f):
    f.seek(0)
    return f.read().decode(errors="replace")
