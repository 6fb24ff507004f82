#!/usr/bin/env python3
"""Makes vocab.txt: small vocabularies, texts, and the ids that other tokenizers give.
usage: pip install tokenizers==0.23.3 sentencepiece==0.2.3; vocab.py > vocab.txt

Each section: `model NAME`, `flag NAME 0|1`, `charsmap HEX`, `token HEX SCORE TYPE` in the order of ids, then pairs of
`text HEX` and `ids ...`. WordPiece comes from tokenizers, the other two from sentencepiece."""
import io
import struct
import tempfile

import sentencepiece as spm
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
SPACE = "\u2581"


def varint(x):
    out = b""
    while x > 127:
        out += bytes([x & 127 | 128])
        x >>= 7
    return out + bytes([x])


def field(n, b):
    return varint(n << 3 | 2) + varint(len(b)) + b


def number(n, x):
    return varint(n << 3) + varint(x)


def fields(data):
    """The fields of a protobuf message, the last of each number: bytes or integers."""
    i, out = 0, {}

    def read():
        nonlocal i
        x = shift = 0
        while True:
            b = data[i]
            i += 1
            x |= (b & 127) << shift
            shift += 7
            if b < 128:
                return x

    while i < len(data):
        key = read()
        if key & 7 == 0:
            out[key >> 3] = read()
        else:
            n = read() if key & 7 == 2 else 4
            out[key >> 3] = data[i : i + n]
            i += n
    return out


def charsmap(rules):
    """The map that sentencepiece compiles from {text: replacement}."""
    tsv = "".join(
        " ".join("%X" % ord(c) for c in a) + "\t" + " ".join("%X" % ord(c) for c in b) + "\n" for a, b in rules.items()
    )
    out = io.BytesIO()
    with tempfile.NamedTemporaryFile("w") as f:
        f.write(tsv)
        f.flush()
        spm.SentencePieceTrainer.train(
            sentence_iterator=iter(["a b c d e f g"] * 20),
            model_writer=out,
            vocab_size=12,
            model_type="char",
            normalization_rule_tsv=f.name,
            minloglevel=2,
        )
    return fields(fields(out.getvalue())[3])[2]


def sentencepiece(kind, tokens, prefix, squeeze, cmap):
    m = b""
    for text, score, t in tokens:
        m += field(1, field(1, text.encode()) + varint(2 << 3 | 5) + struct.pack("<f", score) + number(3, t))
    byte = any(t == BYTE for _, _, t in tokens)
    m += field(2, number(3, 1 if kind == "t5" else 2) + number(35, int(byte)))
    m += field(3, (field(2, cmap) if cmap else b"") + number(3, prefix) + number(4, squeeze) + number(5, 1))
    return spm.SentencePieceProcessor(model_proto=m).encode


def bert(tokens, lower, strip):
    names = {}
    for i, (text, _, _) in enumerate(tokens):
        names[text[1:] if text[0] == SPACE else text if text[0] == "[" else "##" + text] = i
    t = Tokenizer(models.WordPiece(names, unk_token="[UNK]", max_input_chars_per_word=100))
    t.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=bool(strip), lowercase=bool(lower)
    )
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return lambda text: t.encode(text, add_special_tokens=False).ids


def section(model, flags, tokens, cmap, texts, encode):
    print("model", model)
    for k, v in flags.items():
        print("flag", k, v)
    if cmap:
        print("charsmap", cmap.hex())
    for text, score, t in tokens:
        print("token", text.encode().hex(), score, t)
    for text in texts:
        print("text", text.encode().hex())
        print("ids", *encode(text))


TEXTS = [
    "hello hello",
    "  a  b   c  ",
    " ",
    "a",
    "ﬁx ①② ａｂ",
    "カ\u3099カ",
    "ba\tb\nc",
    "zzz a zz",
    "hell\u00adoxx",
    "été 😀 é😀😀e",
    "a\u3000b",
    "aaaaaaaaab",
    "the cab abbeys",
]


def main():
    head = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
    words = f"{SPACE} {SPACE}a {SPACE}b {SPACE}he {SPACE}the a b c d e f g h i l o t ab ba el ll hell ello aa aaa é x 1 fi ガ"
    tokens = head + [(w, -1.0 - 0.37 * (7 * i % 11) - 0.01 * i, NORMAL) for i, w in enumerate(words.split(" "))]
    cmap = charsmap(
        {"ﬁ": "fi", "①": "1", "②": "1 1", "ａ": "a", "ｂ": "b", "カ\u3099": "ガ", "\t": " ", "\n": " ", "\u00ad": "", "\u3000": " "}
    )
    for prefix, squeeze, use in ((1, 1, cmap), (0, 0, cmap), (1, 0, cmap), (0, 1, None)):
        flags = {"add_space_prefix": prefix, "remove_extra_whitespaces": squeeze}
        section("t5", flags, tokens, use, TEXTS, sentencepiece("t5", tokens, prefix, squeeze, use))
    tokens = head + [("<0x%02X>" % b, 0.0, BYTE) for b in range(256)] + tokens[3:]
    for prefix in (0, 1):
        section("llama", {"add_space_prefix": prefix}, tokens, None, TEXTS, sentencepiece("llama", tokens, prefix, 0, None))
    # WordPiece: one token a letter shows what the normaliser leaves
    letters = "abcdehijlotxyzABCDÉé0123ßαβΑгд한ᄒ\u1161\u11ab中日ǆ½ﬁi\u0307\u0323.,!?-_$+<>|^`~“、。@"
    tokens = [("[PAD]", 0.0, CONTROL), ("[UNK]", 0.0, CONTROL)]
    tokens += [(p + c, 0.0, NORMAL) for c in dict.fromkeys(letters) for p in (SPACE, "")]
    tokens += [(SPACE + "hello", 0.0, NORMAL), ("ell", 0.0, NORMAL), (SPACE + "a", 0.0, NORMAL)][:2]
    texts = TEXTS + [
        "ÉCOLE é e\u0301 Ǆ İ ı",
        "한中日, 日本!",
        "a\u200db\u0000c\ufffdd",
        "a\x0bb\x0cc\x85d\u2003e\u00a0f",
        "$a+b<c>|^`~_-“x”、。@½",
        "ß Αβ гД \u0323a",
        "a" * 100 + " " + "b" * 101 + " c",
        "\u0345\u0300",
        "豈 㐀 𠀀",
    ]
    for lower, strip in ((1, 1), (0, 0), (1, 0), (0, 1)):
        section("bert", {"lowercase": lower, "strip_accents": strip}, tokens, None, texts, bert(tokens, lower, strip))


if __name__ == "__main__":
    main()
