"""Tokens are shown by the characters of the text that they stand for, whatever letters a vocabulary writes."""

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from faithcheck.models.pretrained.token_texts import decoded, token_texts
from faithcheck.reports.documents.words import Feature, words

TEXTS = [
    "这部电影很好看。演员很好！",
    "café naïve",
    "cafe\u0301 na\u0308",
    "the film  was good 😊👩‍👧 ok\u00a0!",
    " \n\n the  ",
    "ﬁlm यह फ़िल्म है।",
    "don't",
]


def byte_level(trimmed):
    """Each byte a token, but for three merges: of 这 whole, of the end of 部 and the begin of 电, and of a space."""
    letters = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges = [("è", "¿"), ("è¿", "Ļ"), ("¨", "ç"), ("Ġ", "w")]
    vocabulary = letters | {"".join(pair): len(letters) + i for i, pair in enumerate(merges)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(False), decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=trimmed)
    return tokenizer


def letters_and_bytes():
    """As Llama 2: a space before the text, letters that are known, and bytes of the others."""
    pieces = ["<unk>", *(f"<0x{i:02X}>" for i in range(256)), *"▁thefilmwasgodc"]
    tokenizer = Tokenizer(
        models.BPE({piece: i for i, piece in enumerate(dict.fromkeys(pieces))}, [], byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return tokenizer


def unigram():
    """Bytes of letters that it does not know have the offsets of all these letters."""
    pieces = ["<unk>", *(f"<0x{i:02X}>" for i in range(256)), *dict.fromkeys("▁thefilmwasgodc")]
    tokenizer = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return tokenizer


def word_pieces():
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "cafe": 1, "na": 2}, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    return tokenizer


def shown(tokenizer, text):
    found = tokenizer.encode(text)
    return token_texts(text, found.offsets, found.tokens, [False] * len(found.tokens))


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(
    "tokenizer",
    [byte_level(True), byte_level(False), letters_and_bytes(), unigram(), word_pieces()],
    ids=["byte level, trimmed", "byte level", "letters and bytes", "unigram", "word pieces"],
)
def test_the_names_of_the_tokens_are_the_text(tokenizer, text):
    tokens = shown(tokenizer, text)
    assert "".join(token.name.strip() for token in tokens) == "".join(text.split())
    places = [token.place for token in tokens]
    assert places == sorted(places)
    for token in tokens:
        assert text[token.place :].startswith(token.name.strip())


def test_the_first_token_of_a_character_shows_it():
    names = [token.name for token in shown(byte_level(False), "这部电 was")]
    assert names == ["这", "部", "", "电", "", "", "w", "a", "s"]
    names = [token.name for token in shown(unigram(), "é这")]
    assert names == ["", "é", "", "这", "", ""], "the space that the tokenizer puts before the text is not in it"


def test_an_accent_that_the_tokenizer_leaves_out_is_shown():
    assert [token.name for token in shown(word_pieces(), "cafe\u0301 na")] == ["cafe\u0301", "na"]


def test_special_tokens_are_shown_as_the_vocabulary_writes_them():
    special = [True, False, True, False]
    tokens = token_texts("a<s>b", [(0, 0), (0, 1), (1, 4), (4, 5)], ["<s>", "a", "<s>", "b"], special)
    assert [token.name for token in tokens] == ["<s>", "a", "<s>", "b"]
    assert not any(token.glued for token in tokens)


def test_without_offsets_decoding_says_where_tokens_lie():
    """A byte a token: the last byte of 这 says which character it is."""
    tokenizer, text = ByT5Tokenizer(extra_ids=0), "a 这é!"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    whole, offsets = decoded(tokenizer, ids)
    assert whole == text
    assert offsets == [(0, 1), (1, 2), *[(2, 3)] * 3, *[(3, 4)] * 2, (4, 5)]
    unfinished = PreTrainedTokenizerFast(tokenizer_object=byte_level(False))
    assert decoded(unfinished, unfinished("ab 部")["input_ids"][:-1])[0] == "ab �"


def test_pieces_of_a_word_by_its_number():
    """A space that is a token of its own is read with its word, and so are the further tokens of a character."""
    tokens = [(" ", False, 1), ("film", True, 1), ("s", True, 1), ("这", False, 2), ("", True, 2), ("部", True, 3)]
    features = [Feature(text=text, glued=glued, special=False, word=word) for text, glued, word in tokens]
    assert [(word.text, word.features) for word in words(features)] == [
        ("films", [0, 1, 2]),
        ("这", [3, 4]),
        ("部", [5]),
    ]
