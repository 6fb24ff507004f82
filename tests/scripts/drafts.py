"""scripts/bench/drafts without a server of llama.cpp: rows that may be shown; and that a padded model writes what the small one
does, where gguf is installed."""
import contextlib
import dataclasses
import importlib.machinery
import importlib.util
import io
import os
import sys
import tempfile
import types
import unittest

PROGRAM, ROOT = sys.argv.pop(1), sys.argv.pop(1)
BENCH = os.path.join(ROOT, "scripts", "bench")
sys.path.insert(0, BENCH)
loader = importlib.machinery.SourceFileLoader("drafts", os.path.join(BENCH, "drafts"))
drafts = importlib.util.module_from_spec(importlib.util.spec_from_loader("drafts", loader))
loader.exec_module(drafts)
HAS_GGUF = importlib.util.find_spec("gguf") is not None

ROW = {"run": "1", "model": "a model", "op": "drafts", "text": "story", "cores": 2, "load_before": 0.5, "isa": "avx2", "cpu": "a processor", "n": 8,
       "command": "scripts/bench/drafts", "date": "2026-01-02", "commit": "abc", "dirty": False, "threads": 2, "peer": "llama.cpp 1", "drafted": 4,
       "accepted": 3}


def row(mode, impl, *runs, **more):
    return {**ROW, "mode": mode, "impl": impl, "runs": list(runs), **more}


ROWS = [row("plain", "gpurun", 10.0, 11.0), row("plain", "llama.cpp", 8.0, 8.0), row("ngram", "gpurun", 20.0, 33.0), row("ngram", "llama.cpp", 12.0, 12.0)]


def table(rows):
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        return drafts.text(rows), said.getvalue()


class Drafts(unittest.TestCase):
    def test_rows(self):
        text, said = table(ROWS)
        self.assertIn("| a model | story | plain | 10.5 | 1.00 |  | 8.0 | 1.00 |  | 1.31 | a |", text)
        self.assertIn("| a model | story | ngram | 26.5 | 2.50 | 3 of 4 | 12.0 | 1.50 | 3 of 4 | 2.21 | a |", text)
        self.assertEqual(said, "")
        newer = [{**r, "run": "2", "runs": [2 * x for x in r["runs"]]} for r in ROWS]
        self.assertIn("| a model | story | ngram | 53.0 | 2.50 |", table(ROWS + newer)[0])

    def test_what_is_not_shown(self):
        for rows in (ROWS[:2] + ROWS[2:3], [*ROWS[:3], row("ngram", "llama.cpp", 12.0)]):
            text, said = table(rows)
            self.assertIn("refused: a model, story, ngram", said)
            self.assertNotIn("| ngram |", text)
        self.assertIn("No result", table([])[0])

    def test_modes(self):
        self.assertEqual(drafts.flags("plain", True, "d"), [])
        self.assertNotEqual(drafts.flags("ngram", True, "d"), drafts.flags("ngram", False, "d"))
        for peer in (False, True):
            self.assertEqual(drafts.flags("draft", peer, "d")[:2], ["-md", "d"])

    def test_texts_are_compared(self):
        with tempfile.TemporaryDirectory() as folder:
            a = types.SimpleNamespace(gpurun=PROGRAM, out=drafts.pathlib.Path(folder), n=24, t=1, texts=["filler"])
            model, draft = drafts.models(a, "default")
            drafts.check_texts(a, model, draft)
            whole = drafts.ours(a, 24, model, drafts.flags("draft", False, draft), drafts.TEXTS["story"])
            self.assertGreater(whole[1], 0)
            self.assertGreater(whole[3], 0, "drafts are accepted")

    @unittest.skipUnless(HAS_GGUF, "gguf is not installed")
    def test_padded_models_write_the_same(self):
        import pad_model
        pad_model.SHAPES["larger"] = dataclasses.replace(pad_model.SHAPES["llama-3.2-1b"], n_embd=768, n_layer=5, n_head=12, n_head_kv=4, n_ff=1024,
                                                         n_vocab=1000)
        with tempfile.TemporaryDirectory() as folder:
            a = types.SimpleNamespace(gpurun=PROGRAM, t=1)
            want = drafts.ours(a, 40, drafts.BUILT_IN, [], drafts.TEXTS["story"])[0]
            for only_vocab in (False, True):
                path = os.path.join(folder, f"{only_vocab}.gguf")
                pad_model.pad(drafts.BUILT_IN, path, "larger", only_vocab)
                self.assertEqual(drafts.ours(a, 40, path, [], drafts.TEXTS["story"])[0], want)


unittest.main()
