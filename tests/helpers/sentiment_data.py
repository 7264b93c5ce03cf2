"""A folder of labelled sentences as `faithcheck.tests.helpers.training.sentiment` reads it, a few sentences large."""

import gzip
import json


def labelled(texts):
    """Pairs of text and label."""
    return list(zip(texts.texts, texts.labels, strict=True))


def write_training_data(folder, sentences, polarity=()):
    """Write SST-2, sentence polarity and movie reviews: 60 labelled sentences are dealt to the three data sets."""
    for name in ("sst2", "sentence_polarity", "movie_reviews"):
        (folder / name).mkdir(parents=True)
    for name, part in (("train", sentences[:40]), ("dev", sentences[60:])):
        (folder / "sst2" / f"{name}.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in part))
    for name, rows in (("sentence_polarity", polarity or sentences[40:50]), ("movie_reviews", sentences[50:60])):
        lines = "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows)
        (folder / name / "train.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
