#!/usr/bin/env python3
"""Makes nomic.txt: ids that sentencepiece gives with the shared Unigram vocabulary, whose file has no expected ids.
usage: pip install gguf==0.19.0 sentencepiece==0.2.3 tokenizers==0.23.3; nomic.py ggml-vocab-nomic-bert-moe.gguf > nomic.txt

Pairs of lines: `text HEX`, `ids ...`."""
import sys

from gguf import GGUFReader

from pre import texts
from vocab import sentencepiece


def main():
    fields = GGUFReader(sys.argv[1]).fields

    def array(name):
        f = fields["tokenizer.ggml." + name]
        return [bytes(f.parts[i]).decode() for i in f.data] if f.types[-1].name == "STRING" else f.contents()

    tokens = list(zip(array("tokens"), array("scores"), map(int, array("token_type"))))
    encode = sentencepiece("t5", tokens, 1, 1, bytes(array("precompiled_charsmap")))
    for t in texts(60, 2):
        print("text", t.encode().hex())
        print("ids", *encode(t))


if __name__ == "__main__":
    main()
