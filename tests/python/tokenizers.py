"""Holds tokenizers of `ai.onnx.contrib` against the package onnxruntime-extensions, on drawn lines in many scripts.

    PYTHONPATH=runtime-support/python ONNXC_PREFIX=FOLDER python tests/python/tokenizers.py --lines 10000

    python tests/python/tokenizers.py --goldens tests/tokenizers

The first form compiles each model and runs both on every line. The second form writes models and what the package gives for a few
lines, which `cargo test` holds the compiler against.

Needs the packages onnx, onnxruntime, onnxruntime-extensions, tokenizers, sentencepiece and numpy. Exit status 1 if results differ.
"""
import argparse
import base64
import collections
import io
import json
import os
import random
import re
import sys
import tempfile
import time

# This file has the name of a package that it needs.
sys.path = [path for path in sys.path if os.path.abspath(path or ".") != os.path.dirname(os.path.abspath(__file__))]

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper
from onnxruntime_extensions import get_library_path

DOMAIN = "ai.onnx.contrib"

WORDS = (
    "the quick brown fox jumps over lazy dog's don't we'll I'M they've YOU'RE he'd it's 'S naïve café Ångström Straße ÆGIR œuvre "
    "mother-in-law e.g. U.S.A. http://a.example/path?x=1&y=2 user@example.org C++ f(x)=x^2 50% $9.99 3.14159 1,000,000 0x7fff "
    "Größe Übung ÉCOLE garçon señor İstanbul ışık ǅungla Ǆ ﬁne Ａｂｃ １２３ ½ ² Ⅷ ㎏ ℵ "
    "быстрая коричневая ЛИСА Ёлка съешь γρήγορη ΑΛΕΠΟΎ ἀρχή ΟΔΟΣ ὈΔΥΣΣΕΎΣ الثعلب السريع ١٢٣ مُحَمَّد עִבְרִית שלום "
    "हिन्दी में क्षत्रिय १२३ தமிழ் ภาษาไทย ກາ မြန်မာ ខ្មែរ 快速的棕色狐狸 跳过 懒狗 日本語 ひらがな カタカナ ｶﾀｶﾅ 한국어 한국 "
    "𠮷野家 𝔘𝔫𝔦 𝟙𝟚 𐍈 אבג ܐܒ ይሁን Ꭰ ᚠᛇᚻ ☃ ★ ♥ → ≤ ∑ € £ ¥ § ¶ « » „quoted“ ‘x’ – — … · ‽ ¿qué? ¡sí! "
    "😀 👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 1️⃣ é n̄ ạ̈ Z͑ͫ̓ \u200bzero \u200ejoin\u200d \ufeffbom a\u00adb \u2060x "
    "x\u0085y [UNK] [CLS] [SEP] [MASK] <unk> <s> </s> <pad> <|endoftext|> <|startoftext|> <mask> ▁under ## ##s #tag #"
).split(" ")
SPACES = [" "] * 12 + ["  ", "   ", "\t", "\n", "\r\n", "\u00a0", "\u3000", "\u2003", "\u2028", " \n ", "\u1680", "\x0b", "\x0c", "\x1c", ""]
RANGES = [
    (0x20, 0x7e), (0xa0, 0x17f), (0x180, 0x24f), (0x300, 0x36f), (0x370, 0x3ff), (0x400, 0x52f), (0x590, 0x5ff), (0x600, 0x6ff),
    (0x900, 0x97f), (0xe00, 0xe7f), (0x1e00, 0x1fff), (0x2000, 0x206f), (0x20a0, 0x20bf), (0x2100, 0x218f), (0x2190, 0x23ff),
    (0x3000, 0x30ff), (0x3400, 0x4dbf), (0x4e00, 0x9fff), (0xac00, 0xd7a3), (0xf900, 0xfaff), (0xfb00, 0xfdff), (0xff00, 0xffef),
    (0x10300, 0x1034f), (0x1d400, 0x1d7ff), (0x1f300, 0x1faff), (0x20000, 0x2a6df), (0x1, 0x1f), (0x7f, 0x9f), (0x10a0, 0x10ff),
    (0x1100, 0x11ff), (0x2c00, 0x2dff), (0xa000, 0xabff), (0x10000, 0x16fff), (0xe000, 0xf8ff),
]
EDGES = [
    b"", b" ", b"   ", b"\n", b"\t \r\n", "é".encode(), b"a" * 300, b"ab " * 40, "漢".encode() * 110, b"\xff", b"a\x80b", b"\xc3", b"\xe2\x82", b"x\xf0\x9f\x98",
    b"\xed\xa0\x80 z", b"\xc0\xafq", b"\xf5\x80\x80\x80", b"\xf4\x90\x80\x80w", b"\xe0\x80\x80", b" a", b"a ", b"  a  b  ", b"#", b"##", b"# ## ###", b"'s", b"'", b"a'", b"'re'll'S",
    b"[UNK]", b"[CLS] a [SEP]", b"</s>", b"<|endoftext|>x<|endoftext|>", b"\x01\x02", b"a\x00b", "\u0301".encode(), "e\u0301".encode(), "👩‍👩‍👧‍👦".encode(), "İ".encode(), "ΟΔΟΣ Σ".encode(),
    b"...!!!", b"a.b,c;d", b"1234567890", b"12 345", "½²Ⅷ".encode(), "\u3000x\u3000".encode(), "x\u00a0y".encode(), "\ufeff".encode(),
]


def line(rng):
    """Bytes of a line; some are not UTF-8."""
    if rng.random() < 0.02:
        return rng.choice(EDGES)
    pieces = []
    for _ in range(rng.choice((1, 2, 3, 5, 8, 13, 21))):
        kind = rng.random()
        if kind < 0.7:
            pieces.append(rng.choice(WORDS))
        elif kind < 0.9:
            low, high = rng.choice(RANGES)
            pieces.append("".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 6))))
        elif kind < 0.92:
            pieces.append(rng.choice("aé漢") * rng.randint(90, 210))
        else:
            pieces.append("".join(rng.choice("abcdefghijklmnopqrstuvwxyzABCXYZ0123456789'-") for _ in range(rng.randint(1, 20))))
        pieces.append(rng.choice(SPACES))
    text = "".join(pieces).encode("utf-8", "surrogatepass")
    if rng.random() < 0.03:
        text = bytearray(text)
        for _ in range(rng.randint(1, 3)):
            text.insert(rng.randint(0, len(text)), rng.choice((0x80, 0xbf, 0xc3, 0xe2, 0xf0, 0xff)))
        text = bytes(text)
    return text


def defined(text):
    """A text without what the package does not define: it reads behind the end of one that ends within a character. ONNX Runtime's
    Python package cuts texts at zeros."""
    while True:
        at = 0
        while at < len(text):
            first = text[at]
            size = 1 if first < 0x80 else 2 if 0xc0 <= first < 0xe0 else 3 if 0xe0 <= first < 0xf0 else 4
            if at + size > len(text):
                break
            at += size
        if at >= len(text):
            return text.replace(b"\0", b"\1")
        text = text[:at]


def lines(count, seed):
    rng = random.Random(seed)
    return [defined(text) for text in (EDGES + [line(rng) for _ in range(count)])[:count]]


def corpus():
    return [text.decode("utf-8", "ignore") for text in lines(3000, 99)]


class Model:
    """One operator with its attributes. `feeds` makes the inputs of a run of some lines."""

    @classmethod
    def of(cls, name, nodes, constants, inputs=None, feeds=None, per_run=1, outputs=(("answer", TensorProto.STRING),)):
        """A program, from text to text where nothing else is said."""
        own = cls.__new__(cls)
        own.name, own.per_run, own.feeds = name, per_run, feeds or texts
        own.make(nodes, inputs or [TEXT], outputs, constants)
        return own

    def __init__(self, name, operator, inputs, outputs, attributes, feeds, per_run=1):
        self.name, self.operator, self.per_run, self.feeds = name, operator, per_run, feeds
        self.outputs = outputs
        node = helper.make_node(operator, [name for name, _, _ in inputs], [name for name, _ in outputs], domain=DOMAIN, **attributes)
        self.make([node], inputs, outputs, [])

    def make(self, nodes, inputs, outputs, constants):
        given = [helper.make_tensor_value_info(*value) for value in inputs]
        results = [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs]
        graph = helper.make_graph(nodes, self.name, given, results, constants)
        self.proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)], ir_version=8)


TEXT = ("text", TensorProto.STRING, ["n"])


def texts(some):
    try:
        return {"text": np.array([text.decode() for text in some], object)}
    except UnicodeDecodeError:
        pass
    # In arrays of bytes ONNX Runtime reads up to a zero behind each.
    return {"text": np.array(some, f"S{max(map(len, some)) + 1}")}


def ids(*names):
    return [(name, TensorProto.INT64) for name in names]


SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def wordpiece_vocabulary(size, few):
    import tokenizers

    model = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    model.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True, strip_accents=False)
    model.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    model.train_from_iterator(corpus(), tokenizers.trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=SPECIAL, show_progress=False, limit_alphabet=size // 3 if few else 100000))
    entries = sorted(model.get_vocab().items(), key=lambda entry: entry[1])
    return [text for text, _ in entries if "\n" not in text and "\r" not in text]


def bert_models(size, few):
    words = wordpiece_vocabulary(size, few)
    file = "\n".join(words) + "\n"
    four = ids("input_ids", "token_type_ids", "attention_mask", "offset_mapping")
    own = [
        Model("bert", "BertTokenizer", [TEXT], four, {"vocab_file": file}, texts),
        Model("bert_pair", "BertTokenizer", [TEXT], four[:3], {"vocab_file": file, "strip_accents": 1}, texts, 2),
        Model("bert_cut", "BertTokenizer", [TEXT], four[:3], {"vocab_file": file, "max_length": 7, "do_lower_case": 0}, texts),
        Model("bert_plain", "BertTokenizer", [TEXT], four[:3], {"vocab_file": file.replace("\n", "\r\n"), "do_basic_tokenize": 0}, texts),
        Model("bert_letters", "BertTokenizer", [TEXT], four[:3], {"vocab_file": file, "tokenize_chinese_chars": 0, "suffix_indicator": ""}, texts),
        Model("hf_bert", "HfBertTokenizer", [TEXT], ids("input_ids", "attention_mask", "token_type_ids"), {"vocab_file": file}, texts, 2),
    ]
    for at, attributes in enumerate(({}, {"strip_accents": 1, "tokenize_punctuation": 1}, {"do_lower_case": 0, "tokenize_chinese_chars": 0, "remove_control_chars": 0})):
        own.append(Model(f"basic_{at}", "BasicTokenizer", [TEXT], [("tokens", TensorProto.STRING)], attributes, texts))
    vocabulary = json.dumps({word: at for at, word in enumerate(words)}, ensure_ascii=False)
    pieces = [("tokens", TensorProto.STRING), *ids("row_lengths", "row_begin", "row_limit")]
    attributes = {"vocab": vocabulary, "suffix_indicator": "##", "unknown_token": "[UNK]"}
    rows = ("row_indices", TensorProto.INT64, ["rows"])
    own += [
        Model("wordpiece", "WordpieceTokenizer", [TEXT, rows], pieces, attributes, lambda some: {**texts(some), "row_indices": np.zeros(0, np.int64)}, 3),
        Model("wordpiece_rows", "WordpieceTokenizer", [TEXT, rows], pieces, {**attributes, "max_input_chars_per_word": 9},
              lambda some: {**texts(some), "row_indices": np.array([0, 2, 5], np.int64)}, 5),
    ]

    def tokens(some):
        rng = random.Random(repr(some))
        count = rng.randint(0, 12)
        return np.array([rng.choice((rng.randint(0, len(words) - 1), rng.randint(0, 5), rng.randint(-2, len(words) + 3))) for _ in range(count)], np.int64)

    def spans(some):
        given = tokens(some)
        rng = random.Random(len(given))
        pairs = [sorted((rng.randint(0, len(given)), rng.randint(0, len(given)))) for _ in range(rng.randint(0, 3))]
        return {"ids": given, "position": np.array(pairs, np.int64).reshape(len(pairs), 2)}

    given = [("ids", TensorProto.INT64, ["n"]), ("position", TensorProto.INT64, ["k", 2])]
    text = [("str", TensorProto.STRING)]
    for at, attributes in enumerate(({}, {"skip_special_tokens": 1}, {"clean_up_tokenization_spaces": 0})):
        own.append(Model(f"bert_decoder_{at}", "BertTokenizerDecoder", given, text, {"vocab_file": file, **attributes},
                         lambda some: {"ids": tokens(some), "position": np.zeros((0, 2), np.int64)}))
    own.append(Model("bert_decoder_spans", "BertTokenizerDecoder", given, text, {"vocab_file": file, "use_indices": 1}, spans))
    return own


def byte_letters():
    """The characters that stand for bytes in vocabularies of GPT-2's kind."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: byte for byte in shown}
    for at, byte in enumerate(byte for byte in range(256) if byte not in letters):
        letters[byte] = 256 + at
    return {byte: chr(letters[byte]) for byte in range(256)}


def merges_of(size, end=""):
    """A vocabulary of pairs of bytes, trained on the drawn lines, and its merges."""
    import tokenizers

    suffix = {"end_of_word_suffix": end} if end else {}
    model = tokenizers.Tokenizer(tokenizers.models.BPE(**suffix))
    if end:
        model.normalizer = tokenizers.normalizers.Lowercase()
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    model.train_from_iterator(corpus(), tokenizers.trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=alphabet, show_progress=False, **suffix))
    made = json.loads(model.to_str())["model"]
    words = [text for text, _ in sorted(made["vocab"].items(), key=lambda entry: entry[1])]
    # Training has no byte at the end of a word that it did not see there.
    words += [letter + end for letter in sorted(alphabet) if end and letter + end not in made["vocab"]]
    return words, [tuple(pair) if isinstance(pair, list) else tuple(pair.split(" ")) for pair in made["merges"]]


def merge_text(merges):
    return "#version: 0.2\n" + "".join(f"{left} {right}\n" for left, right in merges)


def bpe_models(size, few):
    words, merges = merges_of(size)
    three = ids("input_ids", "attention_mask", "offset_mapping")

    def vocabulary(special, words=words):
        return json.dumps({word: at for at, word in enumerate([*special, *words])}, ensure_ascii=False)

    end = ["<|endoftext|>"]
    gpt2 = {"vocab": vocabulary(end), "merges": merge_text(merges)}
    roberta = {"vocab": vocabulary(["<s>", "<pad>", "</s>", "<unk>", "<mask>"]), "merges": merge_text(merges)}
    clip_words, clip_merges = merges_of(size, "</w>")
    clip = {"vocab": vocabulary(["<|startoftext|>", *end], clip_words), "merges": merge_text(clip_merges)}

    # Of the offsets of several texts, of a row that is filled up, and where there are special tokens, the package leaves a part undefined.
    def plain_texts(some):
        return texts([text.replace(b"<|endoftext|>", b"<|end") for text in some])

    # Version 0.15 loses the last character behind one that begins like an added token, and what is behind a zero.
    def ended_texts(some):
        return texts([text.replace(b"\xe0\x80\x80", b"") + "漢漢".encode() for text in some])

    # It crashes at a space that is alone before a special token of CLIP.
    def joined_texts(some):
        some = [text.decode("utf-8", "surrogateescape") for text in some]
        return texts([re.sub(r"\s+<\|", "<|", text).encode("utf-8", "surrogateescape") for text in some])

    own = [
        Model("gpt2", "GPT2Tokenizer", [TEXT], three, gpt2, plain_texts),
        Model("gpt2_special", "GPT2Tokenizer", [TEXT], three[:2], gpt2, texts),
        Model("gpt2_rows", "GPT2Tokenizer", [TEXT], three[:2], {**gpt2, "merges": gpt2["merges"].replace("\n", "\r\n")}, texts, 4),
        Model("gpt2_filled", "GPT2Tokenizer", [TEXT], three[:2], {**gpt2, "padding_length": 9}, texts, 3),
        Model("gpt2_added", "GPT2Tokenizer", [TEXT], three[:1], {**gpt2, "added_token": "ab=70000\nfox=70001\n<mask>=70002\nfo=70003\n </s>=70004"}, ended_texts),
        Model("gpt2_sparse", "GPT2Tokenizer", [TEXT], three[:1], {"vocab": vocabulary([], words[3::2]), "merges": merge_text(merges[::-1])}, texts),
        Model("roberta", "RobertaTokenizer", [TEXT], three[:2], roberta, texts),
        Model("roberta_rows", "RobertaTokenizer", [TEXT], three[:2], roberta, texts, 3),
        Model("clip", "CLIPTokenizer", [TEXT], three[:2], clip, joined_texts),
        Model("clip_rows", "CLIPTokenizer", [TEXT], three[:2], clip, joined_texts, 3),
    ]
    decoder = "".join(f"{ord(letter)}\t{byte}\n" for byte, letter in byte_letters().items())
    known = [*words, "Ω漢", *end]
    spelled = {"id_vocab": "\n".join(known), "byte_decoder": decoder, "all_special_ids": f"{len(known) - 1}\n5", "added_tokens": f"{len(known) + 1}\t added\n7\tseven"}

    # What is not UTF-8 ONNX Runtime's Python package does not give, nor what is behind a zero.
    bytes_of = {letter: byte for byte, letter in byte_letters().items()}

    def is_whole(word):
        try:
            return "\0" not in bytes(bytes_of[letter] for letter in word).decode()
        except UnicodeDecodeError:
            return False

    whole = [at for at, word in enumerate(words) if is_whole(word)]

    def tokens(some):
        rng = random.Random(repr(some))
        own = [rng.choice((rng.choice(whole), rng.choice((5, 7, len(known) - 2, len(known) - 1)), rng.choice((-2, -1, len(known), len(known) + 1, len(known) + 3))))
               for _ in range(rng.randint(1, 12))]
        return {"ids": np.array(own, np.int64)}

    given, text = [("ids", TensorProto.INT64, ["n"])], [("str", TensorProto.STRING)]
    for at, attributes in enumerate(({}, {"skip_special_tokens": 1}, {"whitespace_token": 1}, {"unk_token": "?", "whitespace_token": 1, "skip_special_tokens": 1})):
        own.append(Model(f"bpe_decoder_{at}", "BpeDecoder", given, text, {**spelled, **attributes}, tokens))
    pieces = {"id_vocab": "\n".join(["<unk>", "\u2581", "\u2581the\u2581", "<0x41>", "<0x5z>", "<0x4g>", "a", "<s>"] * 40), "byte_decoder": "9601\t32\n97\t97"}
    own.append(Model("bpe_decoder_texts", "BpeDecoder", given, text, pieces, tokens))
    return own


def sentencepieces(size, few, kind, rules=None, **options):
    """A trained model of sentencepiece: its bytes."""
    import sentencepiece

    with tempfile.TemporaryDirectory() as folder:
        if rules or few:
            # The maps of the library have 240 KB.
            path = os.path.join(folder, "rules.tsv")
            with open(path, "w", encoding="ascii") as file:
                for source, target in rules or RULES:
                    file.write(f"{' '.join(f'{ord(c):X}' for c in source)}\t{' '.join(f'{ord(c):X}' for c in target)}\n")
            options["normalization_rule_tsv"] = path
        written = io.BytesIO()
        some = [re.sub(r"[\r\n\0]", " ", text) for text in corpus()]
        # The most frequent characters have a third of the pieces.
        counts = collections.Counter(character for text in some for character in text if character != " ")
        frequent = {character for character, _ in counts.most_common(size // 3)}
        some = ["".join(character if character in frequent else " " for character in text) for text in some]
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(some), model_writer=written, model_type=kind, vocab_size=size,
            hard_vocab_limit=False, num_threads=1, minloglevel=2, character_coverage=1.0, **options)
    return written.getvalue()


GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN_WORDS = LLAMA_WORDS.replace("{1,3}", "")
LARGE, SMALL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED_WORDS = "|".join([r"[^\r\n\p{L}\p{N}]?" + LARGE + "*" + SMALL + "+", r"[^\r\n\p{L}\p{N}]?" + LARGE + "+" + SMALL + "*", r"\p{N}",
                        r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
END = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PHI_WORDS = CASED_WORDS.replace(SMALL + "+|", SMALL + "+" + END + "|").replace(SMALL + "*|", SMALL + "*" + END + "|").replace(r"\p{N}|", r"\p{N}{1,3}|")


def json_models(size, few):
    import sentencepiece

    words, merges = merges_of(size)
    own = []

    # Version 0.15 loses the last character behind one that begins like an added token, and what is behind a zero.
    def ended_texts(some):
        return texts([text.replace(b"\xe0\x80\x80", b"") + "漢漢".encode() for text in some])

    def plain_texts(some):
        return ended_texts([text.replace(b"<", b"").replace(b"[", b"") for text in some])

    def model(name, config, tokenizer, count=1, per_run=1, feeds=ended_texts):
        attributes = {"tokenizer_config": json.dumps(config, ensure_ascii=False), "tokenizer_vocab": json.dumps(tokenizer, ensure_ascii=False)}
        own.append(Model(name, "HfJsonTokenizer", [TEXT], ids("input_ids", "attention_mask", "offset_mapping")[:count], attributes, feeds, per_run))

    def added(contents, first=0, **more):
        return [{"id": first + at, "content": content, "special": True, **more} for at, content in enumerate(contents)]

    def pairs(special, words, merges, expression=None, **more):
        split = [] if expression is None else [{"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}]
        vocabulary = {word: at for at, word in enumerate([*special, *words])}
        steps = {"type": "Sequence", "pretokenizers": [*split, {"type": "ByteLevel", "add_prefix_space": False, "use_regex": expression is None}]}
        return {"added_tokens": added(special), "pre_tokenizer": steps,
                "model": {"type": "BPE", "vocab": vocabulary, "merges": [list(pair) for pair in merges]}, **more}

    end, three = "<|endoftext|>", ["<s>", "</s>", "<pad>"]
    names = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": "<pad>"}
    model("json_gpt2", {"tokenizer_class": "GPT2Tokenizer", "bos_token": end, "eos_token": end}, pairs([end], words, merges), 3, 1, plain_texts)
    strips = pairs(three, words, merges, LLAMA_WORDS, post_processor={"type": "x", "single": "<s> $A"})
    strips["added_tokens"] += added(["<mask>", "fox", "##"], 70000, rstrip=True) + added(["fo", "[SEP]"], 80000, lstrip=True)
    model("json_llama", {"tokenizer_class": "PreTrainedTokenizerFast", **names}, strips, 2, 3)
    model("json_qwen", {"tokenizer_class": "Qwen2Tokenizer", **names, "add_bos_token": False}, pairs(three, words, merges, QWEN_WORDS), 3, 1, plain_texts)
    model("json_cased", {"tokenizer_class": "PreTrainedTokenizerFast", **names, "add_bos_token": True, "add_eos_token": True},
          pairs(three, words, merges, CASED_WORDS), 3, 1, plain_texts)
    lines_of = {**pairs(three, words, merges, PHI_WORDS), "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": PHI_WORDS}}]}}
    lines_of["model"]["merges"] = [" ".join(pair) for pair in merges]
    model("json_phi", {"tokenizer_class": "GPT2TokenizerFast", **names}, lines_of, 1, 2)
    clip_words, clip_merges = merges_of(size, "</w>")
    start = "<|startoftext|>"

    def joined_texts(some):
        some = [text.decode("utf-8", "surrogateescape") for text in some]
        return ended_texts([re.sub(r"\s+<\|", "<|", text).encode("utf-8", "surrogateescape") for text in some])

    clip = pairs([start, end], clip_words, clip_merges)
    model("json_clip", {"tokenizer_class": "CLIPTokenizer", "bos_token": start, "eos_token": end, "pad_token": end, "add_bos_token": True, "add_eos_token": True}, clip, 2, 2, joined_texts)

    # Pieces of sentencepiece. Each two that make one are a merge, as converters write them.
    known = sentencepiece.SentencePieceProcessor(model_proto=sentencepieces(size, few, "bpe", byte_fallback=True))
    pieces = [known.id_to_piece(at) for at in range(known.get_piece_size())]
    numbers = {piece: at for at, piece in enumerate(pieces)}
    joined = [(piece[:at], piece[at:]) for piece in pieces[259:] for at in range(1, len(piece)) if piece[:at] in numbers and piece[at:] in numbers]
    decoder = {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1}]}
    bytes_of = {"added_tokens": added(["<unk>", "<s>", "</s>"]), "decoder": decoder, "model": {"type": "BPE", "vocab": numbers, "merges": joined}}
    model("json_texts", {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}, bytes_of, 2, 2)
    model("json_texts_plain", {"tokenizer_class": "Phi3Tokenizer", "bos_token": "<s>", "eos_token": "</s>", "add_eos_token": True}, bytes_of, 3, 1, plain_texts)
    letters = {**bytes_of, "decoder": {"type": "Sequence", "decoders": decoder["decoders"][:2]}}
    model("json_letters", {"tokenizer_class": "GemmaTokenizer", "bos_token": "<s>", "add_bos_token": True}, letters, 2, 3)

    # What is not UTF-8 the package refuses.
    def whole_texts(some):
        return texts([text.decode("utf-8", "ignore").replace("\ufffe", "").encode() for text in some])

    def unigram(chars=False):
        from sentencepiece import sentencepiece_model_pb2

        proto = sentencepiece_model_pb2.ModelProto.FromString(sentencepieces(size, few, "unigram"))
        scores = [[piece.piece, piece.score] for piece in proto.pieces]
        charsmap = base64.b64encode(proto.normalizer_spec.precompiled_charsmap).decode()
        normalizer = {"type": "Precompiled", "precompiled_charsmap": charsmap}
        return {"added_tokens": added(["<unk>", "<s>", "</s>"]) + added(["<mask>", "fox"], len(scores)), "normalizer": normalizer,
                "model": {"type": "Unigram", "unk_id": 0, "vocab": scores}}

    plain = unigram()
    model("json_unigram", {"tokenizer_class": "XLMRobertaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True, "add_eos_token": True}, plain, feeds=whole_texts)
    steps = {"type": "Sequence", "normalizers": [{"type": "Strip"}, plain["normalizer"]]}
    doubled = [*plain["model"]["vocab"], ["the", -3.5], ["<0x41>", -4.25], ["abc23d", -2.0], ["<mask>", 0.0]]
    model("json_unigram_ends", {"tokenizer_class": "T5Tokenizer", "bos_token": "<s>", "eos_token": "</s>"},
          {**plain, "normalizer": steps, "model": {"unk_id": 2, "vocab": doubled}}, feeds=whole_texts)
    chat = [*plain["model"]["vocab"], ["<n>", -1.5], ["<|tab|>", -1.5], ["<|blank_2|>", -1.0], ["<|blank_5|>", -2.0], ["[gMASK]", 0.0], ["<sop>", 0.0]]
    model("json_chat", {"tokenizer_class": "ChatGLMTokenizer", "add_bos_token": True}, {**plain, "normalizer": None, "model": {"unk_id": 0, "vocab": chat}}, feeds=whole_texts)
    return own


def without_marks(model):
    """The same with spaces in its pieces, which training does not make."""
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    proto.normalizer_spec.escape_whitespaces = False
    for piece in proto.pieces:
        piece.piece = piece.piece.replace("\u2581", " ")
    return proto.SerializeToString()


# Longer and shorter, to nothing, to a space and to several; none may be the start of a chain.
RULES = [("\u00a0", " "), ("\u3000", " "), ("\t", " "), ("\n", " "), ("\r\n", " "), ("\r", " "), ("\u200b", ""), ("\ufeff", ""), ("½", "1⁄2"), ("ﬁ", "fi"),
         ("e\u0301", "é"), ("A", "a"), ("Ａ", "a"), ("Straße", "STRASSE"), ("…", "..."), ("㎏", "kg"), ("☃", " snow  man "), ("ab", "ba"), ("x\u2003", "x")]
FLAGS = ("add_bos", "add_eos", "reverse", "fairseq")


def sentencepiece_models(size, few):
    symbols = ["<mask>", "##", "fox", "o", "日本", "▁the"]
    own = []

    def encoder(name, model, flags=None, per_run=1):
        """Flags are constant, or drawn for each run."""
        constants = [constant("nbest_size", np.array([0])), constant("alpha", np.array([0], np.float32))]
        inputs = [TEXT]
        if flags is None:
            inputs += [(flag, TensorProto.BOOL, [1]) for flag in FLAGS]
        else:
            constants += [constant(flag, np.array([flag in flags])) for flag in FLAGS]
        names = ["text", "nbest_size", "alpha", *FLAGS]
        node = helper.make_node("SentencepieceTokenizer", names, ["tokens", "starts", "places"], domain=DOMAIN, model=model)
        outputs = [("tokens", TensorProto.INT32), ("starts", TensorProto.INT64), ("places", TensorProto.INT32)]

        def feeds(some):
            rng = random.Random(repr(some))
            drawn = {} if flags is not None else {flag: np.array([rng.random() < 0.5]) for flag in FLAGS}
            return {**texts(some), **drawn}

        own.append(Model.of(name, [node], constants, inputs, feeds, per_run, outputs))

    def decoder(name, model, fairseq):
        import sentencepiece

        known = sentencepiece.SentencePieceProcessor(model_proto=model)
        # What is behind a zero ONNX Runtime's Python package does not give.
        usable = [at for at in range(known.get_piece_size()) if known.id_to_piece(at) != "<0x00>"]

        def tokens(some):
            rng = random.Random(repr(some))
            drawn = [rng.choice((rng.choice(usable), rng.choice(usable[:12]), rng.choice(usable[:260]))) for _ in range(rng.randint(0, 12))]
            if fairseq:
                drawn = [{0: 3, 1: 0, 2: 2}.get(token, token + 1) for token in drawn]
            if rng.random() < 0.05:
                drawn.append(rng.choice((-2, len(usable) + 9)))
            return {"ids": np.array(drawn, np.int64), "fairseq": np.array([fairseq])}

        given = [("ids", TensorProto.INT64, ["n"]), ("fairseq", TensorProto.BOOL, [1])]
        own.append(Model(name, "SentencepieceDecoder", given, [("str", TensorProto.STRING)], {"model": model}, tokens))

    unigram = sentencepieces(size, few, "unigram")
    encoder("sentencepiece", unigram, ("add_bos", "add_eos"))
    encoder("sentencepiece_options", unigram, None, 3)
    as_bytes = sentencepieces(size, few, "unigram", byte_fallback=True, add_dummy_prefix=False, remove_extra_whitespaces=False, user_defined_symbols=symbols)
    encoder("sentencepiece_bytes", as_bytes, ())
    suffix = sentencepieces(size, few, "unigram", treat_whitespace_as_suffix=True, bos_id=-1, user_defined_symbols=symbols)
    suffix = without_marks(suffix)
    encoder("sentencepiece_suffix", suffix, None, 2)
    bpe = sentencepieces(size, few, "bpe", byte_fallback=True, user_defined_symbols=symbols)
    encoder("sentencepiece_bpe", bpe, ("add_eos",), 2)
    unknown = sentencepieces(size, few, "bpe", remove_extra_whitespaces=False)
    encoder("sentencepiece_bpe_unknown", base64.b64encode(unknown), ("add_bos", "reverse"))
    encoder("sentencepiece_letters", sentencepieces(size, few, "char", user_defined_symbols=symbols[:4]), ())
    decoder("sentencepiece_decoder_0", unigram, False)
    decoder("sentencepiece_decoder_1", bpe, False)
    decoder("sentencepiece_decoder_2", as_bytes, True)
    return own


def constant(name, values):
    return onnx.numpy_helper.from_array(np.asarray(values), name)


def program_models(size, few):
    """A classifier of sentences, and one that goes on writing: small, with drawn weights."""
    random_numbers = np.random.default_rng(5)

    def weights(*shape):
        return random_numbers.standard_normal(shape).astype(np.float32)

    words = wordpiece_vocabulary(size, few)
    nodes = [
        helper.make_node("BertTokenizer", ["text"], ["ids", "types", "mask"], domain=DOMAIN, vocab_file="\n".join(words)),
        helper.make_node("Gather", ["embeddings", "ids"], ["embedded"]),
        helper.make_node("ReduceMean", ["embedded"], ["mean"], axes=[0], keepdims=0),
        helper.make_node("MatMul", ["mean", "classes"], ["scores"]),
        helper.make_node("ArgMax", ["scores"], ["best"], axis=0, keepdims=1),
        helper.make_node("Gather", ["labels", "best"], ["answer"]),
    ]
    labels = constant("labels", np.array(["grün", "red", "青"], object))
    classifier = [constant("embeddings", weights(len(words), 8)), constant("classes", weights(8, 3)), labels]

    pieces, merges = merges_of(min(size, 2000))
    bytes_of = {letter: byte for byte, letter in byte_letters().items()}
    shown = [all(0x20 <= bytes_of[letter] < 0x7f for letter in piece) for piece in pieces]
    unwanted = np.where(shown + [False], np.float32(0), np.float32(-1e9))
    step = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "tokens"], ["embedded"]),
            helper.make_node("ReduceMean", ["embedded"], ["mean"], axes=[0], keepdims=1),
            helper.make_node("Gather", ["embedded", "last"], ["newest"]),
            helper.make_node("Add", ["mean", "newest"], ["state"]),
            helper.make_node("MatMul", ["state", "scores_of"], ["all"]),
            helper.make_node("Add", ["all", "unwanted"], ["scores"]),
            helper.make_node("ArgMax", ["scores"], ["next"], axis=1, keepdims=0),
            helper.make_node("Concat", ["tokens", "next"], ["longer"], axis=0),
            helper.make_node("Identity", ["goes_on"], ["still"]),
        ],
        "step",
        [helper.make_tensor_value_info("at", TensorProto.INT64, []), helper.make_tensor_value_info("goes_on", TensorProto.BOOL, []),
         helper.make_tensor_value_info("tokens", TensorProto.INT64, [None])],
        [helper.make_tensor_value_info("still", TensorProto.BOOL, []), helper.make_tensor_value_info("longer", TensorProto.INT64, [None])],
    )
    vocabulary = json.dumps({piece: at for at, piece in enumerate([*pieces, "<|endoftext|>"])}, ensure_ascii=False)
    decoder = "".join(f"{ord(letter)}\t{byte}\n" for byte, letter in byte_letters().items())
    nodes_of_chat = [
        helper.make_node("GPT2Tokenizer", ["text"], ["ids"], domain=DOMAIN, vocab=vocabulary, merges=merge_text(merges)),
        helper.make_node("Reshape", ["ids", "flat"], ["asked"]),
        helper.make_node("Concat", ["end", "asked"], ["begun"], axis=0),
        helper.make_node("Loop", ["count", "", "begun"], ["written"], body=step),
        helper.make_node("Slice", ["written", "behind", "far", "first"], ["new"]),
        helper.make_node("BpeDecoder", ["new"], ["answer"], domain=DOMAIN, id_vocab="\n".join(pieces), byte_decoder=decoder),
    ]
    chat = [
        constant("table", weights(len(pieces) + 1, 8)), constant("scores_of", weights(8, len(pieces) + 1)), constant("unwanted", unwanted),
        constant("flat", np.array([-1])), constant("end", np.array([len(pieces)])), constant("count", np.array(12)),
        constant("last", np.array([-1])), constant("behind", np.array([-12])), constant("far", np.array([1 << 40])), constant("first", np.array([0])),
    ]
    return [Model.of("program_classifier", nodes, classifier), Model.of("program_chat", nodes_of_chat, chat)]


def string_models(size, few):
    given = [("x", TensorProto.STRING, ["n"]), ("y", TensorProto.STRING, ["n"])]

    def pairs(some):
        rng = random.Random(repr(some))
        return {"x": texts(some)["text"], "y": texts([rng.choice((text, text + b" ", b"")) for text in some])["text"]}

    return [
        Model("string_concat", "StringConcat", given, [("z", TensorProto.STRING)], {}, pairs, 4),
        Model("string_equal", "StringEqual", given, [("z", TensorProto.BOOL)], {}, pairs, 4),
        *(joined(axis) for axis in range(2)),
    ]


def joined(axis):
    """Two rows of three texts, joined along an axis."""
    node = helper.make_node("StringJoin", ["x", "sep", "axis"], ["answer"], domain=DOMAIN)
    constants = [
        helper.make_tensor("sep", TensorProto.STRING, [1], [" é, ".encode()]),
        helper.make_tensor("axis", TensorProto.INT64, [1], [axis]),
    ]
    inputs = [("x", TensorProto.STRING, ["n", "m"])]
    return Model.of(f"string_join_{axis}", [node], constants, inputs, lambda some: {"x": texts(some)["text"].reshape(2, 3)}, 6)


# Patterns and what they become.
REPLACED = [
    (r"[a-z]+", r"<\0>"), (r"(\w+)\s+(\w+)", r"\2 \1"), (r"\s+", " "), (r"(?i)THE|fox(es)?", r"[\1]"), (r"(a|ab)(c|bcd)?(d*)", r"\1-\2-\3"), (r"x*", "-"), (r"(?:)", "."),
    (r"\b", "|"), (r"(?m)^\s*|$", ">"), (r"(\p{L}+?)(\p{N}*)$", r"\2\1"), (r"\pN|[^\x00-\x{ffff}]", r"#\\"), (r"(?:(a)|(b)|(.))+?", r"(\1\2\3)"), (r"(\d+)(?:,(\d+))*", r"\2"),
    (r".", r"\0\0"), (r"(?s).{3}", "_"), (r"(?U)a+|e.*e", "~"), (r"\B", "'"), (r"(a*)*|(b)", r"<\1\2>"), (r"(a*)+b?", r"<\1>"), (r"(a|b*)*c", r"<\1>"), (r"([^ ]*) ?([^ ]*)", r"\2\1 "),
    (r"[[:punct:]]{2,}|[[:^ascii:]]", ""), (r"\C", "c"), (r"(é|漢+?)(.)?", r"\2\1"), (r"\A.|\z", "@"), (r"(?P<word>[A-Z])(?P<rest>[a-z]*)", r"\2\1ay"), (r"(|a)+", r"<\1>"), (r"(|a)*?b", r"<\1>"),
]
DELIMITERS = [(r"(\s)", []), (r"(\s+)", [""]), (r"([\s.,;!?])", [r"[^\s]"]), (r"\s*([a-z]\d|é)", [r".*"]), (r"([A-Z])[a-z]?", ["."]), (r"(^.|[0-9]+)", [r"\d"]), (r"(\p{Han})", [r"\p{Han}"])]


def pattern_models(size, few):
    own = []

    # What is not UTF-8 RE2 takes for characters where an expression has any of them.
    def whole_texts(some):
        return texts([text.decode("utf-8", "ignore").encode() for text in some])

    def strings(name, values):
        return helper.make_tensor(name, TensorProto.STRING, [len(values)], [value.encode() for value in values])

    for at, (pattern, rewrite) in enumerate(REPLACED):
        for every in (1, 0):
            node = helper.make_node("StringRegexReplace", ["text", "pattern", "rewrite"], ["answer"], domain=DOMAIN, global_replace=every)
            constants = [strings("pattern", [pattern]), strings("rewrite", [rewrite])]
            if every or at % 4 == 0:
                own.append(Model.of(f"regex_replace_{at}{'' if every else '_first'}", [node], constants, None, whole_texts, 3))
    for at, (pattern, keep) in enumerate(DELIMITERS):
        outputs = [("words", TensorProto.STRING), *ids("begins", "ends", "rows")]
        node = helper.make_node("StringRegexSplitWithOffsets", ["text", "pattern", "keep"], [name for name, _ in outputs], domain=DOMAIN)
        own.append(Model.of(f"regex_split_{at}", [node], [strings("pattern", [pattern]), strings("keep", keep)], None, whole_texts, 3, outputs))
    return own


def audio_models(size, few):
    own = []
    for at, (n, hop, window, onesided) in enumerate(((16, 4, 16, 1), (16, 5, 12, 0), (15, 3, 7, 0), (400, 160, 400, 1), (8, 8, 8, 1))):
        weights = np.random.default_rng(at).random(window).astype(np.float32)
        constants = [constant("n", np.array(n)), constant("hop", np.array(hop)), constant("window", weights)]
        node = helper.make_node("StftNorm", ["pcm", "n", "hop", "window", "n"], ["spectrum"], domain=DOMAIN, onesided=onesided)

        # Of windows of odd lengths the package reads beyond the signal in a last frame whose middle is its end.
        def signal(some, hop=hop):
            random_numbers = np.random.default_rng([len(text) for text in some])
            return {"pcm": random_numbers.standard_normal((1, len(some[0]) % 50 // hop * hop + 1)).astype(np.float32)}

        given = [("pcm", TensorProto.FLOAT, [1, "length"])]
        own.append(Model.of(f"stft_norm_{at}", [node], constants, given, signal, 7, [("spectrum", TensorProto.FLOAT)]))
    return own


FAMILIES = {"audio": audio_models, "bert": bert_models, "bpe": bpe_models, "sentencepiece": sentencepiece_models, "json": json_models, "patterns": pattern_models, "strings": string_models, "programs": program_models}


def session(model):
    options = ort.SessionOptions()
    options.register_custom_ops_library(get_library_path())
    options.log_severity_level = 4
    return ort.InferenceSession(model.proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def plain(array):
    """A result as JSON has it; `None` for what the package does not decode."""
    return {"shape": list(array.shape), "values": [value if isinstance(value, (str, float)) else int(value) for value in array.reshape(-1).tolist()]}


def runs(model, some):
    """Inputs and the package's results for every run of these lines."""
    peer = session(model)
    for at in range(0, len(some) - model.per_run + 1, model.per_run):
        feeds = model.feeds(some[at:at + model.per_run])
        try:
            yield feeds, peer.run(None, feeds)
        except UnicodeDecodeError:
            yield feeds, None
        except Exception as error:  # what the package refuses
            yield feeds, error


def alike(found, wanted):
    """Whether results are the same, spectra up to errors of rounding."""
    if wanted.dtype.kind != "f":
        return np.array_equal(found, wanted)
    return np.allclose(found, wanted, rtol=0, atol=2e-6 * max(1, np.abs(wanted).max(initial=0)))


def in_json(array):
    values = array.reshape(-1).tolist()
    return {"shape": list(array.shape), "values": [list(value) if isinstance(value, bytes) else value for value in values]}


def goldens(models, folder, count):
    os.makedirs(folder, exist_ok=True)
    for model in models:
        found = []
        for feeds, results in runs(model, lines(count, 1)):
            if results is None or isinstance(results, Exception):
                continue
            inputs = [in_json(feeds[value.name]) for value in model.proto.graph.input]
            found.append({"inputs": inputs, "outputs": [plain(np.asarray(result)) for result in results]})
        with open(os.path.join(folder, model.name + ".onnx"), "wb") as file:
            file.write(model.proto.SerializeToString())
        with open(os.path.join(folder, model.name + ".json"), "w", encoding="utf-8") as file:
            file.write("[\n" + ",\n".join(json.dumps(run, ensure_ascii=False, separators=(",", ":")) for run in found) + "\n]\n")
        print(f"{model.name}: {len(found)} runs")


def compare(models, count, seed):
    import onnxc

    some, wrong = lines(count, seed), 0
    for model in models:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.onnx")
            onnx.save(model.proto, path)
            start = time.time()
            own = onnxc.InferenceSession(path)
            compiled = time.time() - start
            equal = differ = refused = skipped = 0
            for feeds, wanted in runs(model, some):
                if wanted is None:
                    skipped += 1
                    continue
                try:
                    found = own.run(None, {name: array.astype(object) if array.dtype.kind == "S" else array for name, array in feeds.items()})
                except Exception as error:
                    if isinstance(wanted, Exception):
                        refused += 1
                        continue
                    found = error
                same = not isinstance(found, Exception) and not isinstance(wanted, Exception) and all(
                    list(a.shape) == list(np.asarray(b).shape) and alike(a, np.asarray(b)) for a, b in zip(found, wanted))
                equal += same
                differ += not same
                if not same and differ <= 3:
                    print(f"  {model.name}: {feeds}\n    wanted {wanted}\n    found  {found}")
            print(f"{model.name}: {equal} runs equal, {differ} differ, {refused} refused by both, {skipped} not compared; "
                  f"compiled in {compiled:.1f} s", flush=True)
            wrong += differ
    return wrong


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--lines", type=int, default=1000)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--vocabulary", type=int, default=0, help="entries of vocabularies")
    arguments.add_argument("--goldens", metavar="FOLDER")
    arguments.add_argument("--family", choices=sorted(FAMILIES), action="append")
    arguments.add_argument("--model", action="append", help="only models of this name")
    options = arguments.parse_args()
    few = options.goldens is not None
    size = options.vocabulary or (600 if few else 8000)
    models = [model for name in options.family or FAMILIES for model in FAMILIES[name](size, few)]
    models = [model for model in models if not options.model or model.name in options.model]
    if few:
        goldens(models, options.goldens, 100 if options.lines == 1000 else options.lines)
    elif compare(models, options.lines, options.seed):
        sys.exit(1)


if __name__ == "__main__":
    main()
