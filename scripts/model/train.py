"""Trains the default model on one CPU thread, from nothing to a checkpoint that export.py reads.

    python3 train.py DIRECTORY           a stopped run goes on from its last checkpoint

Two phases share one optimiser. The induction phase trains "it is repeated, so copy" on random
segments; the main phase trains on documents of the grammar. The data of a step depends on the seed
and the step alone, so that a run which was stopped and continued equals one that was not.
"""

import argparse
import pathlib
import random
import time

import model
import torch
import torch.nn.functional as F
from grammar import COPY_WORDS, document
from tokenizer import END_ID, train as train_tokenizer

SEED = 1
N_ROWS = 16
INDUCTION_STEPS = 500
MAIN_STEPS = 4400
N_STEPS = INDUCTION_STEPS + MAIN_STEPS
PEAK_RATE = 2e-3
WARMUP_STEPS = 60
FLAT_SHARE = 0.3
FINAL_SHARE = 0.02
WEIGHT_DECAY = 0.1
CLIP = 1.0
CHECKPOINT_EVERY = 250
REPORT_EVERY = 50
IGNORE = -100


def learning_rate(step):
    """Warm-up in each phase; in the main phase then flat, then linear down to almost nothing."""
    main = step - INDUCTION_STEPS
    warm = min(1.0, ((main if main >= 0 else step) + 1) / WARMUP_STEPS)
    left = (MAIN_STEPS - main) / (MAIN_STEPS * (1 - FLAT_SHARE))
    return PEAK_RATE * warm * (FINAL_SHARE + (1 - FINAL_SHARE) * min(1.0, left))


class Data:
    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        words = [tokenizer.encode(f" {word}").ids for word in COPY_WORDS]
        digits = [tokenizer.encode(digit).ids for digit in "0123456789"]
        self.alphabets = [
            list(range(1, model.N_VOCAB)),
            [ids[0] for ids in words if len(ids) == 1],
            [ids[0] for ids in digits],
        ]

    def repeated_row(self, rng, n):
        """A random segment again and again; its first occurrence is not a target."""
        alphabet = rng.choice(self.alphabets)
        segment = rng.choices(alphabet, k=rng.randint(4, n // 2))
        row = (segment * n)[: n + 1]
        return row[:-1], [IGNORE] * (len(segment) - 1) + row[len(segment) :]

    def document_row(self, rng, n):
        """Documents from the start of text on, half of them ended by the end of text.

        The last one is cut where the row ends. Every token then has its true probability given
        those before it; choosing documents that fit would teach a wrong distribution of lengths.
        """
        row = [END_ID]
        while len(row) <= n:
            row += self.tokenizer.encode(document(rng)[1]).ids + [END_ID] * rng.randrange(2)
        return row[:n], row[1 : n + 1]

    def batch(self, step):
        rng = random.Random(f"{SEED}/{step}")
        if step < INDUCTION_STEPS:
            n = 64 if step < INDUCTION_STEPS // 2 else 128
            rows = [self.repeated_row(rng, n) for _ in range(N_ROWS)]
        else:
            rows = [self.document_row(rng, model.N_CTX) for _ in range(N_ROWS)]
        inputs, targets = zip(*rows)
        return torch.tensor(inputs), torch.tensor(targets)


def make_optimizer(weights):
    matrices = [w for w in weights.values() if w.ndim == 2]
    vectors = [w for w in weights.values() if w.ndim == 1]
    groups = [
        {"params": matrices, "weight_decay": WEIGHT_DECAY},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=PEAK_RATE, betas=(0.9, 0.98), fused=True)


def train_step(weights, optimizer, batch, rate):
    inputs, targets = batch
    for group in optimizer.param_groups:
        group["lr"] = rate
    with torch.autocast("cpu", torch.bfloat16):
        logits = model.forward(weights, inputs)
    loss = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=IGNORE)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(weights.values(), CLIP)
    optimizer.step()
    return loss.item()


def main():
    parser = argparse.ArgumentParser(description="train the default model")
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--stop", type=int, default=N_STEPS, help="stop after this step")
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.directory.mkdir(parents=True, exist_ok=True)
    checkpoint_file = args.directory / "checkpoint.pt"

    tokenizer = train_tokenizer()
    tokenizer.save(str(args.directory / "tokenizer.json"))
    data = Data(tokenizer)
    weights = {name: w.requires_grad_() for name, w in model.init(SEED).items()}
    optimizer = make_optimizer(weights)
    start, cpu_before = 0, 0.0
    if checkpoint_file.exists():
        saved = torch.load(checkpoint_file, weights_only=True)
        start, cpu_before = saved["step"], saved["cpu_seconds"]
        optimizer.load_state_dict(saved["optimizer"])
        with torch.no_grad():
            for name, w in weights.items():
                w.copy_(saved["weights"][name])
    print(f"{sum(w.numel() for w in weights.values())} parameters, from step {start}", flush=True)

    losses, n_tokens, clock = [], 0, time.monotonic()
    for step in range(start, args.stop):
        batch = data.batch(step)
        losses.append(train_step(weights, optimizer, batch, learning_rate(step)))
        n_tokens += batch[0].numel()
        done = step + 1
        cpu_seconds = cpu_before + time.process_time()
        if done % REPORT_EVERY == 0:
            speed = n_tokens / (time.monotonic() - clock)
            print(
                f"step {done}: loss {sum(losses) / len(losses):.4f},"
                f" {speed:.0f} tokens/s, {cpu_seconds / 60:.1f} CPU-minutes",
                flush=True,
            )
            losses, n_tokens, clock = [], 0, time.monotonic()
        if done % CHECKPOINT_EVERY == 0 or done == args.stop:
            state = {
                "step": done,
                "cpu_seconds": cpu_seconds,
                "weights": {name: w.detach() for name, w in weights.items()},
                "optimizer": optimizer.state_dict(),
            }
            torch.save(state, checkpoint_file.with_suffix(".part"))
            checkpoint_file.with_suffix(".part").rename(checkpoint_file)


if __name__ == "__main__":
    main()
