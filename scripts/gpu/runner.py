"""Programs under limits, and the file that keeps what they said: it is written after each of them, so that a run that is cut off
leaves what it has."""
import collections
import ctypes
import datetime
import json
import os
import signal
import statistics
import subprocess
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
Done = collections.namedtuple("Done", "rc out err seconds")


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
        self.n_failed = 0
        self.gpu = ["--device", a.device, "-ngl", "99"]

    # --- programs ---

    def program(self, name):
        """Where a program of the build is; of an emulated run the one that has the emulated device for a driver."""
        here = [os.path.join(self.a.bin, *at, name + end) for end in (("-emu", "_emu", "") if self.a.emulated else ("",))
                for at in ((), ("tests",))]
        return next((path for path in here if os.path.exists(path)), here[-2])

    def peer(self, name):
        return os.path.join(self.a.peer, "bin", name) if self.a.peer else None

    def paths(self, program):
        """Where a program of the peer finds libraries; no other one is to find those."""
        if not self.a.peer or not str(program).startswith(self.a.peer):
            return {}
        return {"LD_LIBRARY_PATH": os.path.join(self.a.peer, "lib") + os.pathsep + os.environ.get("LD_LIBRARY_PATH", "")}

    def left(self):
        return self.deadline - time.monotonic() if self.deadline else float("inf")

    def run(self, *command, limit=300, env=None):
        """What a program gave; one that is missing or runs too long fails with what it said so far. It is killed with all that it
        has started: a kernel that hangs lets no program end by itself."""
        start = time.monotonic()
        limit = min(limit, self.left())
        if limit < 2:
            return Done(-1, "", "no time was left for it", 0)
        try:
            p = subprocess.Popen([str(x) for x in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True, errors="replace", env={**os.environ, **self.paths(command[0]), **(env or {})},
                                 start_new_session=True)
        except OSError as e:
            return Done(-1, "", str(e), 0)
        with Watch(self.sensors) as watch:
            try:
                out, err = p.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                os.killpg(p.pid, signal.SIGKILL)
                out, err = self.rest(p)
                err += f"\nkilled after {limit:.0f} s"
        self.last_seen = watch.found()
        return Done(p.returncode if p.returncode is not None else -1, out, err, time.monotonic() - start)

    @staticmethod
    def rest(p):
        """What a killed program had said; one that the driver holds is given up."""
        try:
            return p.communicate(timeout=10)
        except subprocess.TimeoutExpired as e:
            text = [x.decode(errors="replace") if isinstance(x, bytes) else x or "" for x in (e.stdout, e.stderr)]
            return text[0], text[1] + "\nit does not end"

    # --- what was found ---

    def check(self, name, passed, done, detail=None):
        detail = done.err + done.out if detail is None else detail
        self.result["checks"].append({"stage": self.stage, "session": self.session, "name": name, "passed": bool(passed),
                                      "seconds": round(done.seconds, 2), "detail": "" if passed else detail[-2000:]})
        self.n_failed += not passed
        said = "" if passed else f"\n{detail[-2000:]}"
        print(f"{'ok  ' if passed else 'FAIL'} {self.stage}: {name} ({done.seconds:.1f} s){said}", flush=True)
        self.save()

    def note(self, name, why):
        """What is not there and is no failure."""
        self.result["notes"].append({"stage": self.stage, "session": self.session, "name": name, "why": why})
        print(f"note {self.stage}: {name}: {why}", flush=True)
        self.save()

    def figure(self, **row):
        row = {**row, **self.last_seen, "stage": self.stage, "session": self.session}
        self.result["figures"].append(row)
        print("    " + json.dumps(row), flush=True)

    def rows(self, name, done, **more):
        """Figures from the lines of a program's output, also when it failed on the way."""
        found = lines(done.out)
        for row in found:
            self.figure(**row, **more)
        self.check(name, done.rc == 0 and found, done)
        return found

    def save(self):
        os.makedirs(os.path.dirname(os.path.abspath(self.path)), exist_ok=True)
        with open(self.path + ".part", "w") as f:
            json.dump(self.result, f, indent=1)
            f.write("\n")
        os.replace(self.path + ".part", self.path)

    # --- stages ---

    def enter(self, stage, seconds):
        """Forgets what an earlier, unfinished try of the stage has left."""
        self.stage, self.last_seen = stage, {}
        for kind in ("checks", "figures", "notes"):
            self.result[kind] = [x for x in self.result[kind] if x["stage"] != stage]
        self.deadline = time.monotonic() + min(seconds, self.left_of_all())

    def begin(self, minutes):
        """From now on all stages together have so many minutes; None: no limit."""
        self.deadline_of_all = time.monotonic() + 60 * minutes if minutes else None

    def left_of_all(self):
        return self.deadline_of_all - time.monotonic() if self.deadline_of_all else float("inf")
