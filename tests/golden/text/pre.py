#!/usr/bin/env python3
"""Makes pre.txt: how Hugging Face's tokenizers (its regular expressions are Oniguruma's) cuts texts into words with the
expressions that the models' tokenizer.json files have. usage: pip install tokenizers==0.23.3; pre.py > pre.txt

First the texts, `text <hex>`, then for each pre-tokenizer `pre <name>` and one line of word ends (bytes) for each text."""
import random

from tokenizers import Regex
from tokenizers.pre_tokenizers import Sequence, Split

CONTRACT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACT + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + TAIL
QWEN2 = CONTRACT + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + TAIL
HAN_KANA = "[一-龥\u3040-ゟ゠-ヿ]+"
CJK = "[一-龥ࠀ-一가-퟿]+"
DEEPSEEK = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
DEEPSEEK3 = DEEPSEEK + r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
CASED_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
SOUTH_EAST_ASIA = (
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f"
    "\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
BLOOM = " ?[^(\\s|[.,!?…。，、।۔،])]+"
CHUNKS = "|".join(r"\s{%s}(?!\S)" % n for n in "512 256 128 64 32 16 8 4 1,2".split()) + r"|\s{1}"


def cased(upper, lower, end):
    head = r"[^\r\n\p{L}\p{N}]?"
    return f"{head}[{upper}]*[{lower}]+{end}|{head}[{upper}]+[{lower}]*{end}"


def o200k(numbers):
    return cased(UPPER, LOWER, CONTRACT + "?") + rf"|{numbers}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


NO_HAN = "&&[^\\p{Han}]"
PRE = {
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
    "gpt-2": [GPT2],
    "starcoder": [r"\p{N}", GPT2],
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"],
    "llama-bpe": [LLAMA3],
    "minicpm5": [r"\p{N}{1,3}", CONTRACT + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+|" + TAIL],
    "jais-2": [
        CONTRACT + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|" + CHUNKS
    ],
    "qwen2": [QWEN2],
    "ufakzeka": [r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + TAIL],
    "qwen35": [
        CONTRACT + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
    "seed-coder": [
        CONTRACT + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
    "laguna": [r"[^\n]+|[\n]+", QWEN2],
    "exaone-moe": [
        CONTRACT
        + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
    ],
    "deepseek-llm": [
        r"[\r\n]",
        rf"\s?[{CASED_LETTERS}]+",
        r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
        r"\s+$",
        CJK,
        r"\p{N}+",
    ],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, r"\p{N}"],
    "deepseek-v3": [r"\p{N}{1,3}", HAN_KANA, DEEPSEEK3],
    "spark2_5": [
        r"\p{N}{1,3}",
        HAN_KANA,
        DEEPSEEK + r"| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+",
        r"\p{N}",
    ],
    "afmoe": [r"\p{Nd}+", r"\A\p{Nd}{1,2}(?=(?:\p{Nd}{3})+\z)", r"\p{Nd}{3}", SOUTH_EAST_ASIA, DEEPSEEK3],
    "youtu": [
        f"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|{HAN_KANA}",
        o200k(r"\p{N}"),
    ],
    "kimi-k2": [
        r"[\p{Han}]+|" + cased(UPPER + NO_HAN, LOWER + NO_HAN, CONTRACT + "?") + r"|\p{N}{1,3}|" + TAIL
    ],
    "bloom": [BLOOM],
    "viking": [BLOOM, r"\p{N}"],
    "tekken": [cased(UPPER, LOWER, "") + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"],
    "gpt-4o": [o200k(r"\p{N}{1,3}")],
    "tiny_aya": [r"\d{1,3}(?=(?:\d{3})*\b)", o200k(r"\p{N}{1,3}")],
    "superbpe": [r"\p{N}+", r"(?=(\d{3})+(?!\d))"],
    "bailingmoe": [
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
    ],
    "chameleon": [
        "<sentinel:[0-9]+>",
        "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
        r"([\t\n]|    |  )",
        r"\p{N}",
        r"[\p{P}!-/:-@\[-`{-~]",
        GPT2,
    ],
    "gemma4": [r"[^\n]+|[\n]+"],
    "whitespace": [r"\S+"],
}

PHRASES = (
    "Hello world| don't|'S| we'LL|CamelCase HTTPServer|12345|3.14| 1,000,000|naïve|Äpfel| ½ ² ⅷ|foo_bar|  \n\n \t |\r\n\r\n|"
    " {y};\n|https://a.b/c?d=e/\n|中文字|日本語カナ|한국어ㄱ|😀👩‍👩|e\u0301\u0323|ǅ ʰ|กำ|ខ្មែរ|हिन्दी।|نص، عربي۔|٣٤٥٦|²12345|ⅷ678|1234567x| 123456_7|"
    "\u3000\u2003|\u00a0|…—“x”|ﬁ|'|''| =>|<sentinel:12>|IMGIMGABCZ|〇々|…|`^~|\t\t|    |x\n\n\ny|𝐀𝟘|\x0b\x0c|．／：".split("|")
)


def texts(n, seed=1):
    r = random.Random(seed)
    for _ in range(n):
        t = "".join(r.choice(PHRASES) + (" " if r.random() < 0.4 else "") for _ in range(r.randrange(1, 12)))
        yield t


def ends(steps, text):
    split = Sequence([Split(Regex(s), "isolated") for s in steps])
    n, out = 0, []
    for word, _ in split.pre_tokenize_str(text):
        n += len(word.encode())
        out.append(n)
    return out


def main():
    sample = list(texts(40)) + ["a\u180e b\u180e\u3000\u2003 \u180e\x85\u2029x", "〜<s \ua707'S 12345⑻ 12345Ⓐ 12345ⅷ 12345\u0301 1234² 1234⁴"]
    for t in sample:
        print("text", t.encode().hex())
    for name, steps in PRE.items():
        print("pre", name)
        for t in sample:
            print(*ends(steps, t))


if __name__ == "__main__":
    main()
