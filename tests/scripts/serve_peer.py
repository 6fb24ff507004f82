"""scripts/bench/serve_peer without servers: figures of answers, answers that are not complete, rows that may be shown."""
import contextlib
import importlib.machinery
import importlib.util
import io
import os
import sys
import unittest

BENCH = os.path.join(sys.argv.pop(1), "scripts", "bench")
sys.path.insert(0, BENCH)
loader = importlib.machinery.SourceFileLoader("serve_peer", os.path.join(BENCH, "serve_peer"))
peer = importlib.util.module_from_spec(importlib.util.spec_from_loader("serve_peer", loader))
loader.exec_module(peer)

BODY = {"prompt": [1] * 10, "max_tokens": 3}
RUN = {"run": "1", "model": "a model", "op": "serve", "part": "distinct", "clients": 2, "cores": 2, "load_before": 0.5, "isa": "avx2", "cpu": "a processor",
       "command": "scripts/bench/serve_peer", "date": "2026-01-02", "commit": "abc", "dirty": False, "threads": 2, "slots": 4, "peer": "llama.cpp 1"}
FIGURES = {"tok_s": 30.0, "ttft_p50_ms": 1, "ttft_p99_ms": 2, "itl_p50_ms": 3, "itl_p99_ms": 4, "cached": 0.5}


def answer(at, n=3, reason="length", prompt=10):
    """A stream whose tokens came at these seconds, with an event of no text behind them, and usage."""
    found = peer.sc.Answer()
    texts = [*({"choices": [{"text": "a", "finish_reason": None}]} for _ in at), {"choices": [{"text": "", "finish_reason": reason}]}]
    usage = {"prompt_tokens": prompt, "completion_tokens": n, "prompt_tokens_details": {"cached_tokens": 5}}
    found.bodies, found.times = [*texts, {"choices": [], "usage": usage}], [*at, 9.0, 9.0]
    found.status, found.whole = 200, True
    return found


def pair(**more):
    return [{**RUN, **FIGURES, "impl": "gpurun", "runs": [30.0, 20.0, 10.0], "ratio": 2.0, **more},
            {**RUN, **FIGURES, "impl": "llama.cpp", "tok_s": 10.0, "runs": [10.0, 10.0, 10.0], **more}]


class Peer(unittest.TestCase):
    def test_figures(self):
        found = peer.figures("a", [(BODY, answer([0.1, 0.2, 0.4])), (BODY, answer([0.3, 0.35, 0.45]))], 2.0)
        want = {"tok_s": 3.0, "prompt_tok_s": 10.0, "ttft_p50_ms": 300.0, "ttft_p99_ms": 300.0, "itl_p99_ms": 200.0, "cached": 0.5, "events": 1.0}
        for name, value in want.items():
            self.assertAlmostEqual(found[name], value, msg=name)

    def test_incomplete_answers_are_refused(self):
        broken = answer([0.1])
        broken.whole = False
        for wrong in (answer([0.1], n=2), answer([0.1], reason="stop"), answer([0.1], prompt=11), broken):
            with self.assertRaises(SystemExit):
                peer.require_complete("a", BODY, wrong)

    def test_rows(self):
        self.assertIn("| distinct | 2 clients | 30.0 | 10.0 | 2.00 | 1, 2 | 1, 2 | 3, 4 | 3, 4 | 50% | 50% | a |", peer.text(pair()))
        for rows in (pair()[:1], pair(load_before=2.1), [pair()[0] | {"ratio": 2.1}, pair()[1]], [pair()[1] | {"run": "0"}, pair()[0]]):
            said = io.StringIO()
            with contextlib.redirect_stderr(said):
                self.assertIn("No result", peer.text(rows))
            self.assertIn("refused", said.getvalue())

    def test_requests(self):
        class a:
            n_vocab, prefix, own, prompt, answer = 4000, 20, 4, 7, 5
        common = peer.bodies(a, "prefix", 3, "a seed")
        self.assertEqual(len({tuple(b["prompt"][:20]) for b in common}), 1)
        self.assertEqual(len({tuple(b["prompt"]) for b in common}), 3)
        self.assertEqual({len(b["prompt"]) for b in peer.bodies(a, "distinct", 3, 1)}, {7})
        self.assertNotEqual(common[0]["prompt"][:20], peer.bodies(a, "prefix", 1, "another")[0]["prompt"][:20])
        self.assertEqual(common, peer.bodies(a, "prefix", 3, "a seed"))


unittest.main()
