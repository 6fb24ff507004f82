#!/usr/bin/env python3
"""Writes picks.txt and dry.txt beside it: what samplers do, computed with NumPy from their definitions.

picks.txt: texts that a sampler writes for logits that a formula gives (logits below), a case a line: the parameters, then the
    tokens picked. The random numbers are those of PCG32 (pcg-random.org).
dry.txt: penalties of DRY, a case a line, from the definition: every repetition of the text's end is looked for.

    pip install numpy && tests/golden/sampling/make.py [--check]

--check compares with the files instead of writing them.
"""
import math
import os
import random
import sys

import numpy as np

F = np.float32
N_PICKS = 24
N_PROMPT = 24


class Pcg32:
    M = (1 << 64) - 1

    def __init__(self, seed):
        self.inc = (seed << 1 | 1) & self.M
        self.state = 0
        self.u32()
        self.state = (self.state + (seed ^ 0x853C49E6748FEA9B)) & self.M
        self.u32()

    def u32(self):
        s = self.state
        self.state = (s * 6364136223846793005 + self.inc) & self.M
        x, turn = ((s >> 18 ^ s) >> 27) & 0xFFFFFFFF, s >> 59
        return (x >> turn | x << (32 - turn)) & 0xFFFFFFFF if turn else x

    def double(self):
        high = self.u32()
        return ((high << 32 | self.u32()) >> 11) * 2.0**-53


def logits(case, step):
    """Exact in f32, with equal values among them."""
    i = np.arange(case["n_vocab"], dtype=np.int64)
    salt = case["seed"]
    x = (i * i * 31 + i * 73 * (step + 1) + step * step * 151 + salt * 17) % 257 - 128
    return (x / case["scale"]).astype(F)


def prompt(case):
    return [(i * i + i // 7 + case["seed"]) % min(case["n_vocab"], 5) for i in range(N_PROMPT)]


# ---- DRY, from its definition ----

def dry_penalties(text, window, allowed, base, multiplier, breakers, n_vocab):
    text = text[-window:] if window else []
    n = len(text)
    if n <= allowed:
        return {}
    # The text behind the last breaker: nothing before its end is repeated.
    limit = n
    for begin in range(n - 1, -1, -1):
        ends = [begin + len(b) for b in breakers if text[begin : begin + len(b)] == b]
        if ends:
            limit = n - max(ends)
            break
    if limit < allowed:
        return {}
    longest = {}
    for i in range(n - 1):  # text[i] ends a copy of the end, and text[i + 1] continued it
        length = 0
        while length <= i and text[i - length] == text[n - 1 - length]:
            length += 1
        length = min(length, limit)
        if length >= allowed:
            longest[text[i + 1]] = max(longest.get(text[i + 1], 0), length)
    alone = {b[0] for b in breakers if len(b) == 1}
    return {t: min(multiplier * base ** (m - allowed), 1e30) for t, m in longest.items() if t not in alone}


# ---- the chain ----

class Sampler:
    def __init__(self, case):
        self.c = case
        self.rng = Pcg32(case["seed"])
        self.text = []
        self.mu = 2.0 * float(F(case["tau"]))
        self.decay = float(F(case["adaptive_decay"]))
        self.weight = 1 / (1 - self.decay)
        self.mean_sum = float(F(case["adaptive_target"])) * self.weight
        self.pending = None

    def value(self, name):
        return float(F(self.c[name]))

    def order(self):
        letters = self.c["samplers"]
        return [k for k in letters if k in "ed"] + ["t"] if self.c["mirostat"] else list(letters)

    def softmax(self):
        x = self.x[self.ids].astype(np.float64)
        e = np.exp((x - x.max()) / self.temp)
        return e / e.sum()

    def ranked(self):
        return sorted(range(len(self.ids)), key=lambda j: (-self.x[self.ids[j]], self.ids[j]))

    def keep(self, places):
        self.ids = [self.ids[j] for j in sorted(places)]

    def settle(self):
        for i in self.ids:
            self.x[i] = F(float(self.x[i]) / self.temp)
        self.temp = 1.0

    def penalties(self):
        c = self.c
        if not c["last_n"]:
            return
        self.settle()
        recent = self.text[-c["last_n"]:] if c["last_n"] > 0 else self.text[-c["n_ctx"]:]
        repeat, freq, present = F(c["repeat"]), F(c["freq"]), F(c["present"])
        for i in set(recent) & set(self.ids):
            less = F(float(recent.count(i)) * float(freq) + float(present))
            x = self.x[i]
            self.x[i] = F(x / repeat) - less if x > 0 else F(float(x) * float(repeat) - float(less))

    def dry(self):
        c = self.c
        if not c["dry_multiplier"]:
            return
        self.settle()
        window = c["n_ctx"] if c["dry_last_n"] < 0 else c["dry_last_n"]
        for t, less in dry_penalties(self.text, window, c["dry_allowed"], self.value("dry_base"), self.value("dry_multiplier"), [],
                                     c["n_vocab"]).items():
            if t in self.ids:
                self.x[t] -= F(less)

    def top_k(self):
        if self.c["top_k"] > 0:
            self.keep(self.ranked()[: self.c["top_k"]])

    def nucleus(self, places, p, mass):
        kept, total = [], 0.0
        for j in places:
            kept.append(j)
            total += p[j]
            if total >= mass:
                break
        self.keep(kept)

    def top_p(self):
        if self.c["top_p"] < 1:
            self.nucleus(self.ranked(), self.softmax(), self.value("top_p"))

    def typical(self):
        if self.c["typical_p"] >= 1:
            return
        p = self.softmax()
        entropy = -sum(q * math.log(q) for q in p if q > 0)
        far = [float(F(abs(-math.log(q) - entropy))) if q > 0 else math.inf for q in p]
        places = sorted(range(len(p)), key=lambda j: (far[j], self.ids[j]))
        self.nucleus(places, p, self.value("typical_p"))

    def min_p(self):
        if self.c["min_p"] > 0:
            p = self.softmax()
            self.keep([j for j in range(len(p)) if p[j] >= self.value("min_p") * p.max()])

    def top_n_sigma(self):
        if self.c["top_n_sigma"] > 0:
            x = self.x[self.ids].astype(np.float64)
            self.keep([j for j in range(len(x)) if x[j] >= x.max() - self.value("top_n_sigma") * x.std()])

    def xtc(self):
        if not self.c["xtc_probability"] or self.c["xtc_threshold"] > 0.5 or len(self.ids) < 2:
            return
        if self.rng.double() >= self.value("xtc_probability"):
            return
        p = self.softmax()
        likely = [j for j in self.ranked() if p[j] >= self.value("xtc_threshold")]
        self.keep(set(range(len(p))) - set(likely[:-1]))

    def temperature(self):
        temp, spread = self.value("temp"), 0.0 if self.c["mirostat"] else self.value("dynatemp_range")
        if spread > 0:
            p, n = self.softmax(), len(self.ids)
            entropy = -sum(q * math.log(q) for q in p if q > 0)
            share = entropy / math.log(n) if n > 1 else 0.0
            lo, hi = max(0.0, temp - spread), temp + spread
            temp = lo + (hi - lo) * min(max(share, 0.0), 1.0) ** self.value("dynatemp_exponent")
        if temp <= 0:
            self.keep(self.ranked()[:1])
        else:
            self.temp *= temp

    def draw(self, p):
        u, last = self.rng.double(), 0
        for j, q in enumerate(p):
            if q > 0:
                last, u = j, u - q
                if u < 0:
                    break
        return last

    def mirostat(self):
        p = self.softmax()
        if self.c["mirostat"] == 2:
            kept = [j for j in range(len(p)) if -math.log2(p[j]) <= self.mu] if p.min() > 0 else \
                [j for j in range(len(p)) if p[j] > 0 and -math.log2(p[j]) <= self.mu]
            self.keep(kept or self.ranked()[:1])
        else:
            first = [q for q in p[self.ranked()[:100]] if q > 0]
            t = [math.log((i + 2) / (i + 1)) for i in range(len(first) - 1)]
            b = [math.log(first[i] / first[i + 1]) for i in range(len(first) - 1)]
            k = 1
            if len(first) > 1:
                s = sum(x * y for x, y in zip(t, b)) / sum(x * x for x in t)
                e, n = s - 1, self.c["n_vocab"]
                k = (e * 2**self.mu / (1 - n ** -e)) ** (1 / s)
            self.keep(self.ranked()[: max(int(min(k, len(p))), 1)])
        p = self.softmax()
        j = self.draw(p)
        self.mu -= self.value("eta") * (-math.log2(p[j]) - self.value("tau"))
        return self.ids[j]

    def adaptive(self):
        p = self.softmax()
        target = min(max(2 * self.value("adaptive_target") - self.mean_sum / self.weight, 0.0), 1.0)
        d = np.abs(p - target) / 0.3
        x = 5 - 10 * d * d / (1 + d)
        q = np.exp(x - x.max())
        j = self.draw(q / q.sum())
        self.pending = self.ids[j], p[j]
        return self.ids[j]

    def pick(self, x):
        self.x, self.ids, self.temp = x.copy(), list(range(len(x))), 1.0
        kinds = dict(e=self.penalties, d=self.dry, s=self.top_n_sigma, k=self.top_k, y=self.typical, p=self.top_p,
                     m=self.min_p, x=self.xtc, t=self.temperature, a=lambda: None)
        for k in self.order():
            kinds[k]()
        if self.c["mirostat"]:
            return self.mirostat()
        if "a" in self.order() and self.c["adaptive_target"] >= 0:
            return self.adaptive()
        return self.ids[self.draw(self.softmax())]

    def accept(self, token):
        self.text.append(token)
        if self.pending and self.pending[0] == token:
            self.mean_sum = self.pending[1] + self.decay * self.mean_sum
            self.weight = 1 + self.decay * self.weight
        self.pending = None


FIELDS = ["seed", "n_vocab", "n_ctx", "scale", "samplers", "temp", "top_k", "top_p", "min_p", "typical_p", "top_n_sigma",
          "xtc_probability", "xtc_threshold", "dynatemp_range", "dynatemp_exponent", "last_n", "repeat", "freq", "present",
          "dry_multiplier", "dry_base", "dry_allowed", "dry_last_n", "adaptive_target", "adaptive_decay", "mirostat", "tau", "eta"]


def random_case(r, number):
    """Parameters with most samplers off, so that each is seen alone, in pairs and together."""
    dense = r.random() < 0.3
    on = lambda value, off: value if r.random() < (0.7 if dense else 0.22) else off
    u = lambda lo, hi: round(r.uniform(lo, hi), 4)
    order = list("edskypmxta")
    if r.random() < 0.4:
        r.shuffle(order)
        order = order[: r.randint(1, 10)]
        order += r.sample(order, 1) if r.random() < 0.2 else []
    last_n = on(r.choice([-1, 3, 8, 20]), 0)
    return dict(
        seed=number * 7919 + 1, n_vocab=r.choice([2, 5, 17, 40, 130]), n_ctx=40, scale=r.choice([16, 32, 64]),
        samplers="".join(order), temp=on(r.choice([0, u(0.2, 0.9), u(1, 3)]), 1), top_k=on(r.randint(1, 20), 0),
        top_p=on(u(0.1, 0.99), 1), min_p=on(u(0.01, 0.6), 0), typical_p=on(u(0.1, 0.99), 1), top_n_sigma=on(u(0.3, 2.5), -1),
        xtc_probability=on(r.choice([1, u(0.2, 0.8)]), 0), xtc_threshold=u(0.01, 0.2), dynatemp_range=on(u(0.1, 1.5), 0),
        dynatemp_exponent=u(0.5, 2), last_n=last_n, repeat=u(0.7, 1.6) if last_n else 1, freq=u(-0.3, 0.5) if last_n else 0,
        present=u(-0.3, 0.5) if last_n else 0, dry_multiplier=on(u(0.1, 2), 0), dry_base=u(1, 2.5), dry_allowed=r.randint(0, 3),
        dry_last_n=r.choice([-1, 0, 6, 30]), adaptive_target=on(u(0, 1), -1), adaptive_decay=u(0, 0.99),
        mirostat=on(r.choice([1, 2]), 0), tau=u(0.5, 5), eta=u(0.05, 0.5))


def picks():
    r = random.Random(5)
    lines = []
    for number in range(400):
        case = random_case(r, number)
        if case["dry_last_n"] == 0:
            case["dry_multiplier"] = 0 if r.random() < 0.5 else case["dry_multiplier"]
        s = Sampler(case)
        for t in prompt(case):
            s.accept(t)
        out = []
        for step in range(N_PICKS):
            out.append(s.pick(logits(case, step)))
            s.accept(out[-1])
        lines.append(" ".join(f"{case[f]}" for f in FIELDS) + " : " + " ".join(map(str, out)))
    return "\n".join(lines) + "\n"


def dry():
    r = random.Random(6)
    lines = []
    for _ in range(160):
        n_vocab = r.choice([2, 3, 5, 9])
        text = [r.randrange(n_vocab) for _ in range(r.randint(0, 40))]
        if r.random() < 0.6 and text:  # a repetition at the end
            k = r.randint(1, len(text))
            text += text[-k:]
        breakers = [[r.randrange(n_vocab) for _ in range(r.choice([1, 2, 2, 3]))] for _ in range(r.choice([0, 1, 1, 3]))]
        window, allowed = r.choice([4, 16, 50, 100]), r.randint(0, 4)
        base, multiplier = r.choice([1, 1.5, 1.75, 2, 40]), r.choice([0.25, 1, 3])
        found = dry_penalties(text, window, allowed, base, multiplier, breakers, n_vocab)
        groups = [[n_vocab, window, allowed, base, multiplier], [len(text)] + text, [len(breakers)]]
        groups += [[len(b)] + b for b in breakers]
        groups += [[len(found)]] + [[t, f"{found[t]:.9g}"] for t in sorted(found)]
        lines.append("  ".join(" ".join(map(str, g)) for g in groups))
    return "\n".join(lines) + "\n"


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    for name, text in (("picks.txt", picks()), ("dry.txt", dry())):
        path = os.path.join(here, name)
        if sys.argv[1:] == ["--check"]:
            if open(path).read() != text:
                sys.exit(f"{path} is not what {os.path.basename(__file__)} writes")
        else:
            with open(path, "w") as f:
                f.write(text)


if __name__ == "__main__":
    main()
