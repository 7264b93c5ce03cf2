"""Models in GGUF files: restored as the model that was stored, and files that cannot be read refused in one line."""

import gguf
import numpy as np
import pytest
import torch

from faithcheck.cli.main import main
from faithcheck.models.pretrained import folder
from faithcheck.models.pretrained.folder import ModelError
from faithcheck.models.pretrained.loading import class_in_words, load

LETTERS = [chr(code) for code in range(ord("!"), ord("~") + 1)]
TOKENS = ["<unk>", "<s>", "</s>", *LETTERS, "Ġ", "th"]
"""A byte-level vocabulary: a token a letter, and one of two letters."""
WIDTH, HEADS, KEY_HEADS, INNER = 64, 4, 2, 96


def write(path, architecture="llama", quantised=gguf.GGMLQuantizationType.F32):
    """A Llama of one layer, its weights drawn from seed 0; returns the embeddings."""
    draw = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_merges(["t h"])
    writer.add_token_types([2, 3, 3] + [1] * (len(TOKENS) - 3))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    key_width = WIDTH * KEY_HEADS // HEADS
    shapes = {
        "token_embd.weight": (len(TOKENS), WIDTH),
        "output_norm.weight": (WIDTH,),
        "blk.0.attn_norm.weight": (WIDTH,),
        "blk.0.ffn_norm.weight": (WIDTH,),
        "blk.0.attn_q.weight": (WIDTH, WIDTH),
        "blk.0.attn_k.weight": (key_width, WIDTH),
        "blk.0.attn_v.weight": (key_width, WIDTH),
        "blk.0.attn_output.weight": (WIDTH, WIDTH),
        "blk.0.ffn_gate.weight": (INNER, WIDTH),
        "blk.0.ffn_up.weight": (INNER, WIDTH),
        "blk.0.ffn_down.weight": (WIDTH, INNER),
    }
    weights = {name: draw.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    for name, weight in weights.items():
        kind = quantised if weight.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quants.quantize(weight, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return torch.from_numpy(weights["token_embd.weight"])


def test_a_gguf_file_is_the_model_that_was_stored(tmp_path):
    embeddings = write(tmp_path / "tiny.gguf")
    model = load(tmp_path / "tiny.gguf", dtype=torch.float64)
    assert class_in_words(model.model) == "LlamaForCausalLM, its weights restored from GGUF as float64"
    assert torch.equal(model.model.get_input_embeddings().weight, embeddings.double())
    (example,) = model.encode(["ab that"])
    assert [model.tokenizer.decode(i) for i in example.features] == ["a", "b", " ", "th", "a", "t"]


def test_quantised_weights_are_restored_to_within_a_step(tmp_path):
    """Q8_0 stores a weight as a multiple of a 127th of the largest of its block of 32."""
    embeddings = write(tmp_path / "q8.gguf", quantised=gguf.GGMLQuantizationType.Q8_0)
    error = (load(tmp_path / "q8.gguf").model.get_input_embeddings().weight - embeddings).abs()
    assert 0 < error.max() <= embeddings.abs().max() / 127


def test_explain_takes_a_gguf_file_and_says_that_its_weights_were_restored(tmp_path, capsys):
    write(tmp_path / "tiny.gguf")
    assert main(["explain", "ab", "--model", str(tmp_path / "tiny.gguf"), "--target", "b"]) == 0
    assert "restored from GGUF as float32" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("kept", [4, 300, -100])
def test_a_cut_file_is_refused_in_one_line(tmp_path, kept):
    write(tmp_path / "tiny.gguf")
    whole = (tmp_path / "tiny.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[:kept])
    with pytest.raises(ModelError, match="Give a whole file") as refused:
        load(tmp_path / "cut.gguf")
    assert "\n" not in str(refused.value)


def test_wrong_files_are_refused_before_transformers_reads_them(tmp_path, monkeypatch, capsys):
    (tmp_path / "text.gguf").write_text("hello")
    write(tmp_path / "tiny.gguf")
    write(tmp_path / "odd.gguf", architecture="no_such_architecture")
    for path, message in [
        ("none.gguf", "there is no file"),
        ("text.gguf", "is not a GGUF file"),
        ("odd.gguf", "no_such_architecture"),
        ("", "or the file: "),
    ]:
        assert main(["explain", "ab", "--model", str(tmp_path / path)]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    monkeypatch.setattr(folder.importlib.util, "find_spec", lambda name: None)
    assert main(["explain", "ab", "--model", str(tmp_path / "tiny.gguf")]) == 2
    assert "pip install 'faithcheck[gguf]'" in capsys.readouterr().err
