"""The tokenizer of the default model: byte-level BPE of 768 tokens, learned from the grammar.

Digits are split from each other and from everything else while it learns, so no merge contains a
digit. A reader that only knows the pre-tokenizer "gpt-2", which does not split digits, therefore
gets the same ids; `test_grammar.py` checks that. Id 0 is the end of text and also the start.

    python3 tokenizer.py FILE.json       learns it and writes it
"""

import argparse
import random

from tokenizers import Tokenizer, models, pre_tokenizers, decoders, trainers

from grammar import document

END_OF_TEXT = "<|endoftext|>"
END_ID = 0
N_VOCAB = 768
N_DOCUMENTS = 40_000
SEED = 768


def train():
    tokenizer = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=N_VOCAB,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    rng = random.Random(SEED)
    texts = (document(rng)[1] for _ in range(N_DOCUMENTS))
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def main():
    parser = argparse.ArgumentParser(description="learn the tokenizer")
    parser.add_argument("file")
    train().save(parser.parse_args().file)


if __name__ == "__main__":
    main()
