#!/usr/bin/env python3
"""A pipeline of stages, event by event: when each stage has what it needs, computes, and passes it on.

    scripts/pipeline/simulate.py COSTS.json [--stages 2,4,8,16,32,64] [--batch 8] [--groups S|S+1|N]

prints, for each number of stages, the time of a token of one user (one batch in flight), and with several groups in flight of
`batch` sequences each tokens a second, and the part of the time that devices compute. COSTS.json is an object (times in microseconds):

    stage      of one micro-batch on a stage's device; or a list of times that were seen, of which one is drawn each time
    each       and for each sequence, beside that
    fixed      given: `stage` and `each` are of the whole model, divided among the stages, and each has `fixed` beside its part
    host       what a processor does on a stage for a micro-batch, beside waiting: before and after the device's part
    order      what the first rank's processor does for each other rank, a micro-batch
    begin      and for each micro-batch, beside that: samples, next batch
    hop        [[bytes, time], ...] of a message from rank to rank; straight lines in between
    back       bytes of a sequence's result, which goes to the first rank
    wake       how late a thread comes back that slept until its device was done, or waited for a message longer than `spin` (20)
    bytes      of a boundary, a sequence
    cores      processors of a machine that all stages share; 0: each stage has its own

The rules are those of host/engine: a stage takes its micro-batches in order; sending never holds it up; results go back to
the first rank, which begins a group's next micro-batch when its last one has come back, and runs the first stage itself."""
import argparse
import heapq
import json
import random
from collections import deque


class Simulation:
    """Processes are generators. They yield ("run", time): needs a processor for that long; ("sleep", time): needs none;
    ("take", queue): the next message of it. Messages are put by put()."""

    def __init__(self, cores):
        self.now, self.n, self.events = 0.0, 0, []
        self.free, self.waiting = cores or float("inf"), deque()

    def at(self, time, function):
        self.n += 1
        heapq.heappush(self.events, (time, self.n, function))

    def put(self, queue, message, delay):
        """Messages of a queue stay in order."""
        queue.last = max(queue.last, self.now + delay)
        self.at(queue.last, lambda: self.arrive(queue, message))

    def arrive(self, queue, message):
        if queue.taker:
            taker, queue.taker = queue.taker, None
            self.go(taker, message)
        else:
            queue.items.append(message)

    def start(self, process, time):
        """On a processor that is free."""
        self.free -= 1
        self.at(self.now + time, lambda: self.done(process))

    def done(self, process):
        self.free += 1
        if self.waiting:
            self.start(*self.waiting.popleft())
        self.go(process)

    def go(self, process, message=None):
        """Lets a process go on until it has to wait."""
        while True:
            try:
                what, value = process.send(message)
            except StopIteration:
                return
            if what == "take" and value.items:
                message = value.items.popleft()
            elif what == "take":
                value.taker = process
                return
            elif what == "sleep":
                self.at(self.now + value, lambda: self.go(process))
                return
            elif self.free > 0:
                self.start(process, value)
                return
            else:
                self.waiting.append((process, value))
                return

    def run(self):
        while self.events:
            self.now, _, function = heapq.heappop(self.events)
            function()


class Queue:
    def __init__(self):
        self.items, self.taker, self.last = deque(), None, 0.0


class Pipeline:
    """n_stage stages, n_group groups of n_seq sequences, each of which makes n_step tokens."""

    def __init__(self, costs, n_stage, n_group, n_seq, n_step, seed=1):
        self.costs, self.n_stage, self.n_group, self.n_seq, self.n_step = costs, n_stage, n_group, n_seq, n_step
        self.random = random.Random(seed)
        self.sim = Simulation(costs.get("cores", 0))
        self.order = [Queue() for _ in range(n_stage)]
        self.data = [Queue() for _ in range(n_stage)]
        self.result = Queue()
        self.spans = [[] for _ in range(n_stage)]  # (micro-batch, begin, end) of what each stage did

    def compute(self):
        c = self.costs["stage"]
        c = (self.random.choice(c) if isinstance(c, list) else c) + self.n_seq * self.costs.get("each", 0)
        return c / self.n_stage + self.costs["fixed"] if "fixed" in self.costs else c

    def hop(self, n):
        """A message of n bytes."""
        table = self.costs["hop"]
        if len(table) == 1 or n <= table[0][0]:
            return table[0][1]
        (a, x), (b, y) = next(((p, q) for p, q in zip(table, table[1:]) if n <= q[0]), table[-2:])
        return x + (y - x) * (n - a) / (b - a)

    def own_part(self, stage, number):
        """One micro-batch on a stage: host, device, host, then it is sent."""
        begin, host = self.sim.now, self.costs.get("host", 0)
        yield "run", host / 2
        yield "sleep", self.compute() + self.costs.get("wake", 0)
        yield "run", host / 2
        self.spans[stage].append((number, begin, self.sim.now))
        if stage + 1 < self.n_stage:
            self.sim.put(self.data[stage + 1], number, self.hop(self.n_seq * self.costs.get("bytes", 0)))
        else:
            self.sim.put(self.result, number, self.hop(self.n_seq * self.costs.get("back", 0)) if stage else 0)

    def receive(self, queue):
        """The next message; a thread that has waited for long sleeps and has to wake up."""
        begin = self.sim.now
        message = yield "take", queue
        if self.sim.now - begin > self.costs.get("spin", 20):
            yield "sleep", self.costs.get("wake", 0)
        return message

    def first(self):
        total = self.n_group * self.n_step
        for number in range(total):
            if number >= self.n_group:
                yield from self.receive(self.result)
                self.finished.append(self.sim.now)
            yield "run", self.costs.get("begin", 0) + self.costs.get("order", 0) * (self.n_stage - 1)
            for stage in range(1, self.n_stage):
                self.sim.put(self.order[stage], number, self.hop(0))
            yield from self.own_part(0, number)
        for _ in range(min(self.n_group, total)):
            yield from self.receive(self.result)
            self.finished.append(self.sim.now)

    def other(self, stage):
        for _ in range(self.n_group * self.n_step):
            yield from self.receive(self.order[stage])
            number = yield from self.receive(self.data[stage])
            yield from self.own_part(stage, number)

    def run(self):
        self.finished = []
        for process in (self.first(), *(self.other(s) for s in range(1, self.n_stage))):
            self.sim.go(process)
        self.sim.run()
        assert len(self.finished) == self.n_group * self.n_step
        return self

    def per_step(self):
        """Microseconds in which every group makes one token, once the pipeline is full."""
        n = self.n_step * 3 // 4
        return (self.finished[-1] - self.finished[-1 - n * self.n_group]) / n

    def tokens_per_s(self):
        return self.n_group * self.n_seq / self.per_step() * 1e6


def groups_of(text, n_stage):
    return n_stage + 1 if text == "S+1" else n_stage if text == "S" else int(text)


def predict(costs, n_stage, n_group, n_seq, n_step=40):
    return Pipeline(costs, n_stage, n_group, n_seq, n_step).run()


def busy(costs, n_stage, n_group, n_seq):
    """The part of the time that devices compute, 0 to 1."""
    p = predict(costs, n_stage, n_group, n_seq)
    return p.compute() * p.n_group / p.per_step()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("costs")
    p.add_argument("--stages", default="1,2,4,8,16,32,64")
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--groups", default="S")
    a = p.parse_args()
    with open(a.costs) as f:
        costs = json.load(f)
    print(f"{'stages':>6} {'one user, us a token':>20} {'groups':>6} {'tok/s':>10} {'busy':>6}")
    for n in (int(s) for s in a.stages.split(",")):
        m = groups_of(a.groups, n)
        print(f"{n:6} {predict(costs, n, 1, 1).per_step():20.1f} {m:6} {predict(costs, n, m, a.batch).tokens_per_s():10.0f} "
              f"{busy(costs, n, m, a.batch):6.1%}")


if __name__ == "__main__":
    main()
