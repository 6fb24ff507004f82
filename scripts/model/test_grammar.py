"""Checks what the evaluation rests on: exact probabilities, and ids that any gpt-2 reader gets.

    python3 test_grammar.py
"""

import collections
import math
import random
import unittest

from grammar import FAMILIES, derivations, document
from tokenizer import N_VOCAB, train
from tokenizers import pre_tokenizers

N_CTX = 256


class TestGrammar(unittest.TestCase):
    def test_every_text_has_one_derivation_with_its_entropy(self):
        rng = random.Random(11)
        for _ in range(400):
            _, text, nats = document(rng)
            found = derivations(text)
            self.assertEqual(len(found), 1, text)
            self.assertAlmostEqual(found[0], nats, places=9)

    def test_other_texts_have_none(self):
        self.assertEqual(derivations("Once upon a time, there was nothing.\n"), [])

    def test_documents_are_as_frequent_as_they_claim(self):
        """Families, and the texts that are probable enough to be counted one by one."""
        rng, n = random.Random(12), 200_000
        families, texts, claimed = collections.Counter(), collections.Counter(), {}
        for _ in range(n):
            family, text, nats = document(rng)
            families[family] += 1
            if nats < 9.0:
                texts[text] += 1
                claimed[text] = n * math.exp(-nats)
        for family, share in FAMILIES.items():
            deviation = (families[family.__name__] - n * share) / (n * share * (1 - share)) ** 0.5
            self.assertLess(abs(deviation), 4)
        self.assertEqual(len(texts), 45)  # the single questions of general knowledge
        chi_square = sum((texts[text] - claimed[text]) ** 2 / claimed[text] for text in texts)
        self.assertLess(abs(chi_square - len(texts)), 4 * (2 * len(texts)) ** 0.5)


class TestTokenizer(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tokenizer = train()

    def test_plain_gpt2_pre_tokenizer_gives_the_same_ids(self):
        rng = random.Random(13)
        texts = [document(rng)[1] for _ in range(2000)]
        texts.append("".join(texts))
        ids = [encoding.ids for encoding in self.tokenizer.encode_batch(texts)]
        split = self.tokenizer.pre_tokenizer
        self.tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        plain = [encoding.ids for encoding in self.tokenizer.encode_batch(texts)]
        self.tokenizer.pre_tokenizer = split
        self.assertEqual(ids, plain)
        self.assertEqual(ids[-1], [i for of_one in ids[:-1] for i in of_one])
        self.assertEqual(self.tokenizer.decode(ids[-1]), texts[-1])

    def test_size_and_lengths(self):
        self.assertEqual(self.tokenizer.get_vocab_size(), N_VOCAB)
        rng = random.Random(14)
        for _ in range(2000):
            self.assertLessEqual(1 + len(self.tokenizer.encode(document(rng)[1]).ids), N_CTX)


if __name__ == "__main__":
    unittest.main()
