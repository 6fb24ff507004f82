"""Tokenizers of checkpoints as keys of a GGUF file.

    WordPiece   tokenizer.json or vocab.txt                      tokenizer.ggml.model bert
    BPE         tokenizer.json, byte level                       gpt2
    SPM         tokenizer.model, or tokenizer.json from one      llama
"""

import re
import struct

from checkpoint import BadCheckpoint
from gguf import TokenType

SPACE = "\u2581"
ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "sep": "seperator", "pad": "padding", "cls": "cls", "mask": "mask"}

# The regular expressions of tokenizer.json that tokenizer.ggml.pre has a name for.
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CASED = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
         r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
PATTERNS = {WORDS % r"\p{N}{1,3}": "smaug-bpe", WORDS % r"\p{N}": "qwen2", CASED: "tekken"}


class Vocabulary:
    """Tokens in order of their ids, and what else the file says of them."""

    def __init__(self, model, pre):
        self.model, self.pre = model, pre
        self.tokens, self.types, self.scores, self.merges = [], [], [], []
        self.ids = {}    # role: id
        self.flags = {}  # the keys that are booleans
        self.chat_template = None

    def pad(self, n):
        """As many tokens as the embedding has rows."""
        if n < len(self.tokens):
            raise BadCheckpoint(f"the tokenizer has {len(self.tokens)} tokens, the embedding {n} rows")
        for i in range(len(self.tokens), n):
            self.tokens.append(f"[PAD{i}]")
            self.types.append(TokenType.UNUSED)
            if self.scores:
                self.scores.append(-10000.0)

    def write(self, writer):
        writer.add_tokenizer_model(self.model)
        writer.add_tokenizer_pre(self.pre)
        writer.add_token_list(self.tokens)
        writer.add_token_types(self.types)
        if self.scores:
            writer.add_token_scores(self.scores)
        if self.merges:
            writer.add_token_merges(self.merges)
        for role, token in self.ids.items():
            writer.add_uint32(f"tokenizer.ggml.{ROLES[role]}_token_id", token)
        for name, on in self.flags.items():
            writer.add_bool(f"tokenizer.ggml.{name}", on)
        if self.chat_template:
            writer.add_chat_template(self.chat_template)


def text_of(entry):
    """A token of tokenizer_config.json: its text, or an object with the text as content."""
    return entry.get("content") if isinstance(entry, dict) else entry


def in_order(vocab, added):
    """Tokens by id, and which ids are control or user-defined; ids without a token are None."""
    by_id = {i: text for text, i in vocab.items()} | {a["id"]: a["content"] for a in added}
    if min(by_id) < 0 or max(by_id) > 1 << 22:
        raise BadCheckpoint("tokenizer.json: a token's id is no number from 0 to 4194304")
    kinds = {a["id"]: TokenType.CONTROL if a.get("special") else TokenType.USER_DEFINED for a in added}
    return [by_id.get(i) for i in range(max(by_id) + 1)], kinds


def put_tokens(v, tokens, kinds):
    for i, text in enumerate(tokens):
        v.tokens.append(f"[PAD{i}]" if text is None else text)
        v.types.append(TokenType.UNUSED if text is None else kinds.get(i, TokenType.NORMAL))


def parts(node, kind, key):
    """The node and, of a Sequence, its members."""
    if not node:
        return []
    return node.get(key, []) if node.get("type") == "Sequence" else [node]


def find_special(v, folder, tokenizer):
    """Ids with a role: from tokenizer_config.json and special_tokens_map.json by text, from config.json by id."""
    index = {}
    for i, text in enumerate(v.tokens):
        index.setdefault(text, i)
    named = {k: text_of(t) for k, t in folder.json("special_tokens_map.json", {}).items()}
    settings = folder.json("tokenizer_config.json", {})
    named |= {k: text_of(t) for k, t in settings.items() if k.endswith("_token") and t}
    for role in ROLES:
        if named.get(f"{role}_token") in index:
            v.ids[role] = index[named[f"{role}_token"]]
        given = folder.config.get(f"{role}_token_id")
        given = given[0] if isinstance(given, list) and given else given
        if isinstance(given, int) and 0 <= given < len(v.tokens):
            v.ids.setdefault(role, given)
    v.chat_template = read_template(folder, settings)
    for side in ("bos", "eos"):
        if settings.get(f"add_{side}_token") is not None:
            v.flags[f"add_{side}_token"] = bool(settings[f"add_{side}_token"])
    find_template(v, tokenizer, index)


def read_template(folder, settings):
    file = folder.folder / "chat_template.jinja"
    template = file.read_text("utf-8") if file.is_file() else settings.get("chat_template")
    if isinstance(template, list):
        template = next((t.get("template") for t in template if t.get("name") == "default"), None)
    return template


def find_template(v, tokenizer, index):
    """What tokenizer.json puts around a text: the first token counts as BOS, the last one as EOS."""
    for p in parts(tokenizer.get("post_processor"), "post_processor", "processors"):
        if p.get("type") in ("RobertaProcessing", "BertProcessing"):
            first, last = p.get("cls", [None])[0], p.get("sep", [None])[0]
        elif p.get("type") == "TemplateProcessing":
            single = p.get("single", [])
            first, last = ((single[i].get("SpecialToken", {}).get("id") if single else None) for i in (0, -1))
        else:
            continue
        for role, text in (("bos", first), ("eos", last)):
            v.flags[f"add_{role}_token"] = text in index
            if text in index:
                v.ids[role] = index[text]


def read_wordpiece(folder, tokenizer):
    v = Vocabulary("bert", "default")
    model = tokenizer.get("model", {})
    vocab = model.get("vocab")
    if vocab is None:
        lines = (folder.folder / "vocab.txt").read_text("utf-8").splitlines()
        vocab = {text: i for i, text in reversed(list(enumerate(lines)))}
    added = tokenizer.get("added_tokens")
    if added is None:
        added = [{"id": i, "content": t, "special": True} for t, i in vocab.items() if re.fullmatch(r"\[(PAD|UNK|CLS|SEP|MASK)\]", t)]
    tokens, kinds = in_order(vocab, added)
    prefix = model.get("continuing_subword_prefix", "##")
    for i, text in enumerate(tokens):
        if text is not None and i not in kinds:
            tokens[i] = text[len(prefix):] if text.startswith(prefix) else SPACE + text
    put_tokens(v, tokens, kinds)
    find_special(v, folder, tokenizer)
    normalizers = parts(tokenizer.get("normalizer"), "normalizer", "normalizers")
    settings = folder.json("tokenizer_config.json", {})
    v.flags["normalizer.lowercase"] = bool(settings.get("do_lower_case", True))
    for n in normalizers:
        if n.get("type") == "BertNormalizer":
            v.flags["normalizer.lowercase"] = bool(n.get("lowercase", True))
            if n.get("strip_accents") is not None:
                v.flags["normalizer.strip_accents"] = n["strip_accents"]
    return v


def pre_name(tokenizer):
    """tokenizer.ggml.pre for the pre-tokenizer of byte-level BPE."""
    steps = parts(tokenizer.get("pre_tokenizer"), "pre_tokenizer", "pretokenizers")
    kinds = [s.get("type") for s in steps]
    if kinds == ["ByteLevel"]:
        return "gpt-2"
    if kinds == ["Digits", "ByteLevel"] and steps[0].get("individual_digits"):
        return "smollm"
    if kinds == ["Split", "ByteLevel"]:
        name = PATTERNS.get(steps[0].get("pattern", {}).get("Regex"))
        whole = tokenizer["model"].get("ignore_merges")
        return "llama-bpe" if name == "smaug-bpe" and whole else name
    return None


def read_bpe(folder, tokenizer, pre):
    pre = pre or pre_name(tokenizer)
    if not pre:
        raise BadCheckpoint(f"{folder.folder / 'tokenizer.json'}: its pre-tokenizer is not one that is recognised; "
                            "name it by --pre, as tokenizer.ggml.pre of other files of this model does")
    v = Vocabulary("gpt2", pre)
    put_tokens(v, *in_order(tokenizer["model"]["vocab"], tokenizer.get("added_tokens", [])))
    v.merges = [m if isinstance(m, str) else " ".join(part.replace(" ", "\u0120") for part in m)
                for m in tokenizer["model"].get("merges", [])]
    find_special(v, folder, tokenizer)
    return v


def messages(data):
    """Fields of a protocol buffer: (number, value), value an int or bytes."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        kind = key & 7
        if kind == 0:
            yield key >> 3, varint()
            continue
        n = varint() if kind == 2 else {1: 8, 5: 4}.get(kind, -1)
        if n < 0 or n > len(data) - at:
            raise ValueError("no protocol buffer")
        yield key >> 3, data[at:at + n]
        at += n


def read_pieces(file):
    """(text, score, type) of a SentencePiece model: field 1 of the file, fields 1, 2 and 3 of each."""
    pieces, bpe = [], False
    try:
        for number, value in messages(file.read_bytes()):
            if number == 1:
                f = dict(messages(value))
                score = struct.unpack("<f", f[2])[0] if 2 in f else 0.0
                pieces.append((f[1].decode("utf-8"), score, f.get(3, TokenType.NORMAL)))
            elif number == 2:
                bpe = dict(messages(value)).get(3, 1) == 2
    except (ValueError, KeyError, IndexError, struct.error):
        raise BadCheckpoint(f"{file}: no SentencePiece model") from None
    if not bpe:
        raise BadCheckpoint(f"{file}: a SentencePiece model of another kind than BPE")
    return pieces


def read_spm(folder, tokenizer):
    """Tokens with scores: of tokenizer.model, else from the order of tokenizer.json's merges."""
    v = Vocabulary("llama", "default")
    file = folder.folder / "tokenizer.model"
    if file.is_file():
        for text, score, kind in read_pieces(file):
            v.tokens.append(text)
            v.scores.append(score)
            v.types.append(TokenType(kind))
    else:
        put_tokens(v, *in_order(tokenizer["model"]["vocab"], tokenizer.get("added_tokens", [])))
        rank = {}
        for i, m in enumerate(tokenizer["model"].get("merges", [])):
            rank.setdefault("".join(m.split(" ") if isinstance(m, str) else m), i)
        v.scores = [-float(rank.get(t, len(rank) + 1)) for t in v.tokens]
        for i, t in enumerate(v.tokens):
            if re.fullmatch(r"<0x[0-9A-F]{2}>", t):
                v.types[i] = TokenType.BYTE
            elif t == tokenizer["model"].get("unk_token"):
                v.types[i] = TokenType.UNKNOWN
    add_tokens(v, folder, tokenizer)
    find_special(v, folder, tokenizer)
    v.flags.setdefault("add_bos_token", True)
    v.flags["add_space_prefix"] = prefixed(folder, tokenizer)
    return v


def add_tokens(v, folder, tokenizer):
    """Tokens that were added to a SentencePiece model afterwards."""
    added = tokenizer.get("added_tokens") or [
        a | {"id": int(i)} for i, a in folder.json("tokenizer_config.json", {}).get("added_tokens_decoder", {}).items()]
    for a in sorted(added, key=lambda a: a["id"]):
        if a["id"] > 1 << 22:
            raise BadCheckpoint(f"added token {a['content']!r}: id {a['id']} is too large")
        v.pad(max(len(v.tokens), a["id"] + 1))
        if v.types[a["id"]] in (TokenType.BYTE, TokenType.UNKNOWN):
            continue
        v.tokens[a["id"]] = a["content"]
        v.types[a["id"]] = TokenType.CONTROL if a.get("special") else TokenType.USER_DEFINED


def prefixed(folder, tokenizer):
    """Whether a text gets a blank in front."""
    settings = folder.json("tokenizer_config.json", {})
    if settings.get("add_prefix_space") is not None:
        return bool(settings["add_prefix_space"])
    steps = parts(tokenizer.get("normalizer"), "normalizer", "normalizers")
    steps += parts(tokenizer.get("pre_tokenizer"), "pre_tokenizer", "pretokenizers")
    return not tokenizer or any(s.get("type") == "Prepend" or s.get("type") == "Metaspace" and
                                s.get("prepend_scheme", "always") != "never" for s in steps)


def read(folder, pre=None):
    """The vocabulary of a checkpoint folder; `pre`: tokenizer.ggml.pre where it is not recognised."""
    tokenizer = folder.json("tokenizer.json", {})
    model = tokenizer.get("model", {})
    if model.get("type") == "WordPiece" or not tokenizer and (folder.folder / "vocab.txt").is_file():
        return read_wordpiece(folder, tokenizer)
    if (folder.folder / "tokenizer.model").is_file() or model.get("type") == "BPE" and model.get("byte_fallback"):
        return read_spm(folder, tokenizer)
    if model.get("type") == "BPE":
        return read_bpe(folder, tokenizer, pre)
    raise BadCheckpoint(f"{folder.folder}: no tokenizer that is read: tokenizer.json with BPE or WordPiece, "
                        "tokenizer.model with BPE, or vocab.txt")
