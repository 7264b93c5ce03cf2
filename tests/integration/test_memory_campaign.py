"""``make ray``: the memory of the process that is started, the driver, on 10,000 examples and on ten times as many."""

import json
import os
import random
import subprocess
import sys

import pytest

from faithcheck.tests.helpers import small_models

pytestmark = pytest.mark.ray
FEWER, MORE = 10_000, 100_000
LIMIT = 2**30
GROWTH = 2**25  # of what the process itself holds, from 10,000 examples to 100,000: 370 bytes an example
DRIVER = """
import re, sys, threading, time
from pathlib import Path

def in_status(name):
    return 1024 * int(re.search(name + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

peak = 0

def sample():
    global peak
    while True:
        peak = max(peak, in_status("RssAnon"))
        time.sleep(0.02)

threading.Thread(target=sample, daemon=True).start()
from faithcheck.cli.main import main

code = main(sys.argv[1:])
print("peak", in_status("VmHWM"), peak)
sys.exit(code)
"""


def save_model(folder):
    """A BERT of one layer and width 8: the work of an example is small, the work of keeping it is not."""
    from transformers import BertConfig, BertForSequenceClassification

    sizes = dict.fromkeys(("hidden_size", "intermediate_size", "max_position_embeddings"), 8)
    heads = dict.fromkeys(("num_hidden_layers", "num_attention_heads"), 1)
    model = BertForSequenceClassification(BertConfig(vocab_size=len(small_models.WORDS), **sizes, **heads))
    small_models.spread(model)
    model.save_pretrained(folder)
    small_models.tokenizer(special=True).save_pretrained(folder)


def write_texts(file):
    """Texts of 3 to 6 words, from a fixed seed."""
    pyarrow = pytest.importorskip("pyarrow", reason="Parquet needs the optional library pyarrow")
    draw = random.Random(0)
    texts = [" ".join(draw.choice(small_models.WORDS[5:]) for _ in range(draw.randint(3, 6))) for _ in range(MORE)]
    __import__("pyarrow.parquet").parquet.write_table(pyarrow.table({"text": texts}), file)


def test_the_driver_stays_under_a_gibibyte_with_100_000_examples(tmp_path):
    """It takes some 15 minutes of processor time, most of it for correlations and the bootstrap.

    The resident memory counts the pages of temporary files too; what the process itself holds does not grow.
    """
    save_model(tmp_path / "model")
    write_texts(tmp_path / "texts.parquet")
    peaks, held = {}, {}
    for number in (FEWER, MORE):
        name = tmp_path / str(number)
        command = ["align", "--model", tmp_path / "model", "--data", tmp_path / "texts.parquet", "--limit", number]
        command += ["--explainer", "gradient_x_input", "--max-tokens", 2**16, "--ray", "--workers", 2]
        command += ["--cache", f"{name}-cache", "--parquet", f"{name}-rows", "--json", f"{name}.json"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        ended = subprocess.run(
            [sys.executable, "-c", DRIVER, *map(str, command)], capture_output=True, text=True, env=environment
        )
        assert ended.returncode == 0, ended.stderr
        peaks[number], held[number] = map(int, ended.stdout.split()[-2:])
        document = json.loads(name.with_suffix(".json").read_text())
        sizes = f"{peaks[number] / 2**20:.0f} MiB, {held[number] / 2**20:.0f} of them its own"
        print(f"{number}: {sizes}; {document['run']}", flush=True)
        assert document["counts"]["measured"] == number
        assert ("examples" in document) == (number == FEWER)
        assert all(len(files) == number // 10_000 for files in document["parquet"]["files"].values())
    print(f"{(held[MORE] - held[FEWER]) / (MORE - FEWER):.0f} bytes an example more")
    assert peaks[MORE] < LIMIT
    assert held[MORE] - held[FEWER] < GROWTH
