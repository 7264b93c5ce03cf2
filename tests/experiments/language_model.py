"""What follows Leave-One-Out on a language model that people run: SmolLM2-135M-Instruct, as a GGUF file.

``make llm`` runs it and writes docs/results/language_model.md. It needs ../shared. Each prompt is stored in build/llm
as it is measured: a second run goes on where the first stopped; remove that folder to measure again.

There are two kinds of prompts. *Reviews* are the first sentences of SST-2's dev set, of at most `LONGEST` tokens in a
frame that asks for their sentiment; the output is the logit of ' positive' minus that of ' negative'. *Next tokens* are
`PROMPTS`, of which the logit of the most likely next token is explained. No explainer was developed on either.
"""

import argparse
import hashlib
import json
import time
from pathlib import Path

import numpy as np

from faithcheck.axioms.loo_correlation import correlations
from faithcheck.axioms.measure.statistics import interval
from faithcheck.explainers.gates.finite_mask_gate import FiniteMaskGate
from faithcheck.explainers.gates.grouped_mask_gate import GroupedMaskGate
from faithcheck.explainers.gates.mask_gate import MaskGate
from faithcheck.explainers.gates.readout_gate import ReadoutGate
from faithcheck.explainers.gradients import GradientTimesInput
from faithcheck.explainers.loo.budget import BudgetedLeaveOneOut
from faithcheck.explainers.loo.leave_one_out import LeaveOneOut
from faithcheck.explainers.lrp.attnlrp import AttnLRP
from faithcheck.explainers.lrp.cplrp import CPLRP
from faithcheck.models.data.texts import load_texts
from faithcheck.models.files import write_atomically
from faithcheck.models.pretrained.loading import load
from faithcheck.models.pretrained.target_choice import with_chosen_output

MODEL = Path("../shared/models/smollm2-135m-instruct/SmolLM2-135M-Instruct.Q4_1.gguf")
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SENTENCES = "../shared/data/sst2/dev.tsv"
FRAME = "Review: {}\nSentiment:"
LONGEST = 40
FOLDER, PAGE = Path("build/llm"), Path("docs/results/language_model.md")
PROMPTS = (
    "The largest ocean on Earth is the",
    "Water freezes at zero degrees",
    "She opened the window because the room was too",
    "The opposite of hot is",
    "In 1969 the first man walked on the",
    "Bread is made from flour, water and",
    "The author of Romeo and Juliet is William",
    "My brother plays the piano and my sister plays the",
    "A triangle has three",
    "The train to Berlin was late, so we missed the",
    "He put the milk back into the",
    "Spiders have eight",
    "The sun rises in the",
    "The currency of Japan is the",
    "After the storm, the streets were full of",
    "Bees collect nectar and make",
    "The doctor told him to take the pills twice a",
    "The Great Wall is in",
    "If you mix blue and yellow, you get",
    "The cat chased the mouse under the",
    "Ten minus three equals",
    "The teacher wrote the answer on the",
    "In winter the lake is covered with",
    "The capital of Italy is",
    "He was thirsty and drank a glass of",
    "The museum is closed on",
    "A week has seven",
    "They lit a fire to keep",
    "The plane landed at the",
    "To be or not to be, that is the",
)
EXPLAINERS = {
    "gradient × input": GradientTimesInput(),
    "AttnLRP": AttnLRP(),
    "CP-LRP": CPLRP(),
    "mask gate": MaskGate(),
    "finite mask gate": FiniteMaskGate(),
    "readout gate": ReadoutGate(),
    "grouped mask gate": GroupedMaskGate(),
    "budgeted LOO, 25 %": BudgetedLeaveOneOut(0.25),
    "budgeted LOO, 50 %": BudgetedLeaveOneOut(0.5),
}


def prompts(model, kind, limit):
    """The texts of one kind, and the model with the output that they explain."""
    if kind == "next tokens":
        return PROMPTS[:limit], model
    texts = (FRAME.format(text) for text in load_texts(SENTENCES).texts)
    short = [text for text in texts if len(model.encode([text])[0]) <= LONGEST]
    return short[:limit], with_chosen_output(model, " positive", " negative")


def measure(model, text):
    """LOO of one text and the maps of all explainers, with their times in s and their estimates of their own error."""
    case = model.case(list(model.encode([text])))
    found = {}
    for name, explainer in {"LOO": LeaveOneOut(), **EXPLAINERS}.items():
        start = time.perf_counter()
        if isinstance(explainer, BudgetedLeaveOneOut):
            attribution, report = explainer.attribute_with_report(model, case)
            error = float(report.error[0])
        else:
            attribution, error = explainer.attribute(model, case), None
        seconds = time.perf_counter() - start
        found[name] = {"map": attribution[0].tolist(), "seconds": seconds, "estimated error": error}
    return found


def table(results):
    """The rows of a table: each explainer against LOO on all tokens but the last."""
    yield f"| explainer | {' | '.join(COLUMNS)} |"
    yield f"|---|{'---|' * len(COLUMNS)}"
    for name in EXPLAINERS:
        maps = [(np.array(one[name]["map"])[:-1], np.array(one["LOO"]["map"])[:-1]) for one in results]
        ratios = [np.abs(values).max() / np.abs(loo).max() for values, loo in maps]
        whole, rest = (mean_r([(values[first:], loo[first:]) for values, loo in maps]) for first in (0, 1))
        sizes = f"{np.median(ratios):.2f}, {max(ratios):.1f}"
        yield f"| {name} | {whole} | {rest} | {sizes} | {estimates(results, name)} | {seconds(results, name):.2f} |"
    yield f"| LOO | 1 | 1 | 1, 1 | | {seconds(results, 'LOO'):.2f} |"


def seconds(results, name):
    return np.median([one[name]["seconds"] for one in results])


def mean_r(maps):
    """The mean Pearson correlation with its 95 % interval, in words."""
    values = [(found := correlations(*one)) and found["pearson"] for one in maps]
    its = interval(values, limits=(-1.0, 1.0))
    undefined = f", {its['undefined']} undefined" if its["undefined"] else ""
    return f"{its['mean']:.3f} [{its['low']:.3f}, {its['high']:.3f}]{undefined}"


def estimates(results, name):
    """In how many prompts the estimated error is within a factor of 3 of the true one, the root mean square."""
    if results[0][name]["estimated error"] is None:
        return ""
    true = [np.sqrt(np.mean((np.array(one[name]["map"]) - one["LOO"]["map"]) ** 2)) for one in results]
    estimated = [one[name]["estimated error"] for one in results]
    return f"{sum(a / 3 <= b <= 3 * a for a, b in zip(true, estimated, strict=True))} of {len(results)}"


def main():
    """Measure what is not measured yet, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=int, default=30, help="prompts of each kind")
    options = parser.parse_args()
    if (found := hashlib.sha256(MODEL.read_bytes()).hexdigest()) != SHA256:
        parser.error(f"{MODEL} has the SHA-256 {found}, not the pinned {SHA256}: it is another model")
    loaded, sections = load(MODEL), []
    for kind in ("reviews", "next tokens"):
        texts, model = prompts(loaded, kind, options.limit)
        results = []
        for place, text in enumerate(texts):
            file = FOLDER / kind.replace(" ", "_") / f"{place}.json"
            file.parent.mkdir(parents=True, exist_ok=True)
            if not file.exists():
                write_atomically(file, json.dumps(measure(model, text)))
                print(f"{kind}, prompt {place + 1} of {len(texts)}", flush=True)
            results.append(json.loads(file.read_text()))
        sections.append("\n".join([f"## {kind.capitalize()}: {len(texts)} prompts", "", *table(results)]))
    PAGE.write_text(HEAD + "\n\n".join(sections) + "\n")
    print(f"wrote {PAGE}")


COLUMNS = (
    "r", "r without the first token", "largest value over that of LOO: median, most",
    "estimated error within a factor of 3", "time, s",
)  # fmt: skip
HEAD = f"""\
# Explainers on a language model: SmolLM2-135M-Instruct

**The readout gate and the grouped gate follow Leave-One-Out better than LRP does, and not closely. For next tokens of
short prompts, Leave-One-Out itself takes less time than they do.**

```sh
make llm    # tests/experiments/language_model.py; needs ../shared; half an hour of one core
```

A decoder of 30 layers, its weights restored from a Q4_1 GGUF file, float32. The reference is Leave-One-Out by the
attention mask. The first token is an attention sink: most heads give it nearly all of their weight where they have
nothing to say. No explainer was developed on these prompts:

- *reviews*: sentences of SST-2's dev set in the frame {FRAME!r};
  the output is the logit of ' positive' minus that of ' negative';
- *next tokens*: short sentences without their last word; the output is the logit of the most likely next token.

r is Pearson's correlation with Leave-One-Out over all tokens but the last: the mean over prompts with its 95 %
interval. The time is the median of one attribution, with one thread on a machine that did other work too.

"""

if __name__ == "__main__":
    main()
