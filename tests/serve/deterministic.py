#!/usr/bin/env python3
"""Sixteen clients at once beside the same requests one after the other, at the default level of the CPU, with --deterministic: the
same texts and log probabilities. `deterministic.py PROGRAM`"""

import random
import sys
import threading

from served import Served

FLAGS = ["--deterministic", "-ngl", "0", "-t", "2", "-c", "512"]
CLIENTS = 16


def requests():
    r = random.Random(5)
    words = "the a sun moon rises over old stones and nobody knows why seven rivers turn".split()
    for i in range(CLIENTS):
        prompt = " ".join(r.choice(words) for _ in range(r.randint(1, 120)))
        yield {"prompt": prompt, "max_tokens": r.randint(4, 24), "seed": i, "temperature": 0.9 * (i % 2), "logprobs": 3}


def ask(s, body):
    choice = s.post("/v1/completions", body)["choices"][0]
    return choice["text"], choice["logprobs"]


def main():
    bodies = list(requests())
    with Served(sys.argv[1], [*FLAGS, "-np", "1"]) as s:
        alone = [ask(s, b) for b in bodies]
    assert len({a[0] for a in alone}) > CLIENTS // 2, "texts hardly differ"
    with Served(sys.argv[1], [*FLAGS, "-np", str(CLIENTS)]) as s:
        beside = [None] * CLIENTS

        def client(i):
            beside[i] = ask(s, bodies[i])

        threads = [threading.Thread(target=client, args=(i,)) for i in range(CLIENTS)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    wrong = [i for i in range(CLIENTS) if alone[i] != beside[i]]
    for i in wrong:
        print(f"client {i}: {alone[i]} alone, {beside[i]} beside others")
    return bool(wrong)


sys.exit(main())
