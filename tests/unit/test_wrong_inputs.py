"""Wrong inputs of every command: one line that names the thing and the way out, exit code 2, and no torch for it."""

import gzip
import io
import json
import shlex

import numpy as np
import pytest

from faithcheck.cli.listing import LISTS
from faithcheck.cli.main import COMMANDS
from faithcheck.reports.documents.document import to_json
from faithcheck.tests.helpers.documents import alignment, document, record
from faithcheck.tests.helpers.processes import run


def npz(arrays):
    """The bytes of an npz file with these arrays."""
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


HEAVY = ("torch", "transformers", "sklearn", "scipy", "sympy")
FILES = {
    "theirs.py": "import torch\n\nclass Mine:\n    name = 'mine'\n\ndef function(model, inputs, target): ...\n",
    "needs.py": "import nolibrary\n\nclass Mine: ...\n",
    "broken.py": "class Mine:\n    def attribute(self:\n",
    "empty.py": "",
    "pairs_of_theirs.py": "from nolibrary import pairs\n",
    "latin.tsv": "bon\t1\nraté\t0\n".encode("latin-1"),
    "no_header.csv": "a fine film,1\n",
    "short.csv": "sentence,label\na\n",
    "words.tsv": "sentence\tlabel\na fine film\tgood\n",
    "no_label.tsv": "a fine film\n",
    "damaged.jsonl": '{"text": 3}\n',
    "damaged.jsonl.gz": gzip.compress(b'{"text": "a"}\n')[:12],
    "some.xlsx": "a\t1\n",
    "folder/train.tsv": "a\t1\n",
    "model/pytorch_model.bin": "",
    "good.json": json.dumps(to_json(document([record("holds")]))),
    "mine.py": "from faithcheck.models import equivalent_pair\n",
    "damaged.npz": "no maps at all",
    "damaged.safetensors": "no maps at all",
    "damaged.parquet": "no maps at all",
    "bare.npz": npz({"product.x1x2x3.f": np.zeros((2, 3))}),
    "flat.npz": npz({"product.x1x2x3.f": np.zeros(3), "product.x1x2x3.f/inputs": np.array("0" * 64)}),
    "whole.npz": npz({"product.x1x2x3.f": np.zeros((2, 3), int), "product.x1x2x3.f/inputs": np.array("0" * 64)}),
    "empty.npz": npz({}),
    "maps.npy": "no maps at all",
    "folder.npz/a": "",
    "damaged/a.json": "{",
    "another_kind.json": json.dumps({"schema_version": 1, "kind": "forecast"}),
    "align.json": json.dumps(alignment(loo=(1.0, 0.8))),
    "cut.json": '{"schema_version": 2',
    "old.json": json.dumps(to_json(document([])) | {"schema_version": 1}),
    "list.json": "[]",
    "other.json": json.dumps(to_json(document([])) | {"kind": "other"}),
    "not.toml": "[[expectation",
    "empty.toml": "",
    "unknown.toml": "[[expectation]]\naxoim = 'loo'\n",
    "missing.toml": "[[expectation]]\naxiom = 'loo'\n",
    "verdict.toml": "[[expectation]]\naxiom = 'a'\nexplainer = 'b'\nsubject = 'c'\nreason = 'd'\nverdict = 'BREAKS'\n",
    "floor.toml": "[[expectation]]\naxiom = 'a'\nexplainer = 'b'\nsubject = 'c'\nreason = 'd'\nverdict = 'VIOLATES'\n",
}
# (the command, the thing that the line names, the way out that it names)
WRONG = [
    ("explain film --target nope", "--target=nope", "known: negative, positive"),
    ("explain film --target 2", "--target=2", "2 outputs, 0 to 1"),
    ("explain '  '", "the text is empty", "at least one word"),
    ("chek loo", "unknown command 'chek'", "did you mean check"),
    ("--print-completion ksh", "'ksh'", "'zsh'"),
    ("--verson", "'--verson'", "--version"),
    ("check --axiom loo", "name an explainer", "faithcheck check my_explainers:Mine"),
    ("check loo --explainer attnlpr", "--explainer=attnlpr", "did you mean attnlrp"),
    # names
    ("check attnlpr", "'attnlpr'", "did you mean attnlrp"),
    ("check zzz", "'zzz'", "known: attention_rollout"),
    ("check theirs", "--explainer=theirs", "theirs:Name; it has Mine, function"),
    ("check theirs.py", "--explainer=theirs.py", "theirs:Name; it has Mine, function"),
    ("check theirs.py:Mine", "--explainer=theirs.py:Mine", "theirs:Name; it has Mine, function"),
    ("check none.py", "no file none.py", "my_explainers:Mine"),
    ("check theirs:Mien", "'Mien'", "did you mean Mine"),
    ("check none:Mine", "no module none", "nor is it installed"),
    ("check shap.explainers:Exact", "no module shap.explainers", 'pip install "faithcheck[peers]"'),
    ("check needs:Mine", "needs.py, line 1 imports nolibrary", "not installed"),
    ("check broken:Mine", "broken.py, line 2", "mend"),
    ("check empty:Mine", "'Mine'", "object in empty"),
    ("check shap_exact", "shap", 'pip install "faithcheck[peers]"'),
    ("check zennit_epsilon", "zennit", "pip install zennit"),
    ("check loo --axiom completness", "--axiom=completness", "did you mean completeness"),
    ("check loo --axiom zzz", "--axiom=zzz", "known: additivity"),
    ("check loo --axiom all", "--axiom=all", "did you mean scale"),
    ("check theirs:Mine --like attnlpr", "--like=attnlpr", "did you mean attnlrp"),
    ("check theirs:Mine --like theirs:Mine=zzz", "--like=theirs:Mine=zzz", "known: attention_rollout"),
    ("check loo --pairs linear_atention.assoc", "'linear_atention.assoc'", "did you mean linear_attention.assoc"),
    ("check loo --pairs zzz", "'zzz'", "activation.*, answer.*"),
    ("check loo --pairs 'zz*'", "--pairs=zz*", "activation.*, answer.*"),
    ("check loo --pairs theirs.py", "--pairs=theirs.py", "give the module, theirs"),
    ("check loo --pairs pairs_of_theirs", "pairs_of_theirs.py, line 1 imports nolibrary", "not installed"),
    ("check theirs:", "--explainer=theirs:", "theirs:Name; it has Mine, function"),
    ("check :Mine", "':Mine'", "pkg.module:Object"),
    ("check ''", "''", "known: attention_rollout"),
    ("check loo --pairs none:mine.wrong", "'none:mine.wrong'", "activation.*, answer.*"),
    ("check loo --pairs pairs_of_theirs:a.b", "pairs_of_theirs.py, line 1 imports nolibrary", "not installed"),
    ("check loo --pairs mine.py:a.b", "--pairs=mine.py:a.b", "give the module, mine"),
    ("check loo --claim completness", "--claim=completness", "did you mean completeness"),
    ("check loo --claim gradeint", "--claim=gradeint", "did you mean gradient"),
    ("check loo --claim zzz", "--claim=zzz", "known: additivity, antisymmetry"),
    ("check loo --claim equivalence", "'equivalence'", "did you mean invariance"),
    ("check loo --claim", "--claim", "expected one argument"),
    # files of maps
    ("check none.npz", "no file none.npz", "docs/how_to/adapt_an_explainer.md"),
    ("check folder.npz", "folder.npz", "Is a directory"),
    ("check damaged.npz", "damaged.npz: not a file of maps", "save_maps"),
    ("check damaged.safetensors", "damaged.safetensors: not a file of maps", "save_maps"),
    ("check damaged.parquet", "damaged.parquet: not a file of maps", "save_maps"),
    ("check bare.npz", "product.x1x2x3.f has no hash of its inputs", "save_maps"),
    ("check flat.npz", "product.x1x2x3.f has the shape (3,)", "(batch, features)"),
    ("check whole.npz", "the dtype int64", "floating-point numbers"),
    ("check empty.npz", "empty.npz: has no map", "save_maps"),
    ("check maps.npy", "--explainer=maps.npy", ".npz, .safetensors, .parquet"),
    ("align --explainer damaged.npz", "damaged.npz: not a file of maps", "save_maps"),
    ("check loo --device gpu", "--device=gpu", "did you mean cuda?"),
    ("check loo --device gpu:1", "--device=gpu:1", "did you mean cuda:1?"),
    ("check loo --device tpu", "'tpu'", "did you mean xpu or cpu"),
    ("check loo --device cuda:first", "--device=cuda:first", "cuda:0"),
    # numbers, and options that are none
    ("check loo --seed one", "--seed", "a whole number in 0"),
    ("check loo --seed -1", "'-1'", "a whole number in 0"),
    ("check loo --explainer-timeout soon", "--explainer-timeout", "a finite number above 0"),
    ("check loo --explainer-timeout inf", "'inf'", "a finite number above 0"),
    ("check loo --axioms completeness", "'--axioms'", "did you mean --axiom"),
    ("check loo --explainer-time 3", "'--explainer-time'", "did you mean --explainer-timeout"),
    ("check loo --isolate=3", "--isolate", "faithcheck check --help"),
    ("check loo --pairs", "--pairs", "expected one argument"),
    # files
    ("check loo --json none/a.json", "--json=none/a.json", "mkdir -p none"),
    ("check loo --json folder", "--json=folder", "name a file in it"),
    ("check loo --html", "--html", "needs a path"),
    ("check loo --json a.md --md", "--md=a.md", "another file"),
    ("check loo --md a --html ./a", "--html=a", "another file"),
    ("check loo --expectations none.toml", "none.toml", "No such file"),
    ("check loo --expectations not.toml", "not.toml", "is not TOML"),
    ("check loo --expectations empty.toml", "empty.toml", "expected tables [[expectation]]"),
    ("check loo --expectations unknown.toml", "axoim", "known: axiom, explainer"),
    ("check loo --expectations missing.toml", "expectation 1", "needs a text for explainer, subject"),
    ("check loo --expectations verdict.toml", "'BREAKS'", "HOLDS, VIOLATES, ERROR"),
    ("check loo --expectations floor.toml", "VIOLATES", "needs a floor"),
    # align and explain
    ("align --explainer attnlpr", "'attnlpr'", "did you mean attnlrp"),
    ("align --explainer theirs.py", "--explainer=theirs.py", "theirs:Name"),
    ("align --device gpu", "--device=gpu", "did you mean cuda?"),
    ("align --contrast negative", "--contrast", "add --target"),
    ("recommend . --explainer attnlpr", "'attnlpr'", "did you mean attnlrp"),
    ("align --next-token --target good", "--next-token", "leave it out with --target"),
    ("align --target ''", "--target", "give the number or the name of an output"),
    ("explain text --target ' '", "--target", "give the number or the name of an output"),
    ("explain text --contrast ''", "--contrast", "give the number or the name of an output"),
    ("explain 'rat\udce9'", "TEXT", "write it in the encoding of this terminal's locale"),
    ("align --target 'rat\udce9'", "--target", "write it in the encoding of this terminal's locale"),
    ("align --removal baseline", "'baseline'", "'attention_mask'"),
    ("align --dtype float8", "'float8'", "'float32'"),
    ("align --limit 0", "--limit", "a whole number of at least 1"),
    ("align --limit ten", "'ten'", "a whole number of at least 1"),
    ("align --chunk 1.5", "'1.5'", "a whole number of at least 1"),
    ("align --max-memory lots", "'lots'", "such as 2GiB"),
    ("align --model ./none", "./none", "config.json"),
    ("align --model model", "model", "config.json"),
    ("align --model theirs.py", "theirs.py is a file", "give the folder"),
    ("align --data none.tsv", "none.tsv", "'own', 'sst2', 'imdb'"),
    ("align --model owner/model --data none", "none", "'own', 'sst2', 'imdb', 'digits'"),
    ("align --data folder", "folder holds []", "dev.tsv"),
    ("align --data latin.tsv", "latin.tsv, line 2", "iconv -f latin1 -t utf-8 latin.tsv > utf8_latin.tsv"),
    ("align --data no_header.csv", "no_header.csv, line 1", "sentence,label"),
    ("align --data short.csv", "short.csv, line 2", "expected 2 columns"),
    ("align --model owner/model --data words.tsv", "words.tsv, line 2", "a whole number from 0"),
    ("align --data no_label.tsv", "no_label.tsv, line 1", "text TAB label"),
    ("align --data damaged.jsonl", "damaged.jsonl, line 1", '{"text": "…"'),
    ("align --data damaged.jsonl.gz", "damaged.jsonl.gz", "is damaged"),
    ("align --data some.xlsx", "some.xlsx", "a file of type .tsv, .csv"),
    ("align --html", "--html", "needs a path"),
    ("align --workers 2", "--workers", "add --ray"),
    ("align --gpus-per-worker 0.5", "--gpus-per-worker", "add --ray"),
    ("align --ray --workers 0", "'0'", "a whole number of at least 1"),
    ("align --ray --workers many", "'many'", "a whole number of at least 1"),
    ("align --ray --cpus-per-worker 0.5", "'0.5'", "a whole number of at least 1"),
    ("align --ray --gpus-per-worker -1", "'-1'", "a finite number above 0"),
    ("align --ray --isolate", "--isolate", "leave it out with --ray"),
    ("align --plan=5", "'5'", "faithcheck align --help"),
    ("align --plan --json a.json", "--json", "leave one of the two out"),
    ("align --plan --html a.html", "--html", "leave one of the two out"),
    ("align --chunk 0", "'0'", "a whole number of at least 1"),
    ("align --draws 0", "'0'", "a whole number of at least 1"),
    ("align --max-tokens none", "'none'", "a whole number of at least 1"),
    ("align --max-length -3", "'-3'", "a whole number of at least 1"),
    ("align --explainer-timeout 0", "'0'", "a finite number above 0"),
    ("align --cache good.json", "--cache=good.json", "name another folder"),
    ("align --json folder/a.json --html folder/a.json", "--html=folder/a.json", "another file"),
    ("explain", "TEXT", "faithcheck explain --help"),
    ("explain text --explainer attnlpr", "'attnlpr'", "did you mean attnlrp"),
    ("explain text --explainer theirs.py", "--explainer=theirs.py", "theirs:Name"),
    ("explain text --model ./none", "./none", "config.json"),
    ("explain text --html none/a.html", "--html=none/a.html", "mkdir -p none"),
    ("explain text --json none/a.json", "--json=none/a.json", "mkdir -p none"),
    ("explain text --json folder", "--json=folder", "name a file in it"),
    ("explain text --json a --html ./a", "--html=a", "another file"),
    ("explain text --explainer loo --explainer attnlpr", "'attnlpr'", "did you mean attnlrp"),
    ("explain text --explainer attnlrp --explainer theirs:Mien", "'Mien'", "did you mean Mine"),
    ("explain text --explainer damaged.npz", "damaged.npz: not a file of maps", "save_maps"),
    ("explain text --device gpu", "--device=gpu", "did you mean cuda?"),
    ("explain text --device tpu", "'tpu'", "did you mean xpu or cpu"),
    ("explain text --model theirs.py", "theirs.py is a file", "give the folder"),
    ("explain a text", "'text'", "faithcheck explain --help"),
    ("explain -", "standard input is not UTF-8", "iconv -f latin1 -t utf-8"),
    ("explain text --max-memory 0", "'0'", "such as 2GiB"),
    # documents and lists
    ("report none.json", "none.json", "No such file"),
    ("report cut.json", "cut.json", "not JSON"),
    ("report old.json", "old.json: results schema version 1", "run faithcheck check or pytest again"),
    ("report list.json", "list.json", "document"),
    ("report other.json", "other.json", "kind"),
    ("report good.json --html none/a.html", "--html=none/a.html", "mkdir -p none"),
    ("report good.json --md good.json", "--md=good.json", "another file"),
    ("report another_kind.json", "kind 'forecast'", "written by faithcheck check or pytest"),
    ("report latin.tsv", "latin.tsv", "not JSON"),
    ("report folder", "folder", "Is a directory"),
    ("report good.json --figures good.json", "--figures=good.json", "name another folder"),
    ("report good.json --figures good.json/figures", "good.json is a file", "name another folder"),
    ("report good.json --figures /proc/figures", "--figures=/proc/figures", "name a place that can"),
    ("report good.json --figures", "--figures", "expected one argument"),
    ("report good.json --html --md good.html", "good.html", "another file"),
    ("compare none.json good.json", "none.json", "No such file"),
    ("compare good.json cut.json", "cut.json", "not JSON"),
    ("compare good.json list.json", "list.json", "faithcheck check --json"),
    ("compare good.json other.json", "kind 'other'", "written by faithcheck check or pytest"),
    ("compare good.json good.json --html good.json", "--html=good.json", "another file"),
    ("trend good.json", "good.json", "name the folder"),
    ("trend damaged", "none of its JSON files can be read", "a.json"),
    ("badge cut.json a.svg", "cut.json", "not JSON"),
    ("badge list.json a.svg", "list.json", "faithcheck check --json"),
    ("badge good.json folder", "SVG=folder is a folder", "name a file in it"),
    ("badge good.json good.json", "SVG=good.json", "another file"),
    ("compare good.json", "new", "faithcheck compare --help"),
    ("compare good.json align.json", "the other of faithcheck align", "compare two of a kind"),
    ("compare good.json good.json --threshold 0", "'0'", "a finite number above 0"),
    ("trend none", "none", "name the folder"),
    ("trend folder", "folder", "faithcheck check --json"),
    ("trend . --html none/a.html", "--html=none/a.html", "mkdir -p none"),
    ("badge good.json", "SVG", "faithcheck badge --help"),
    ("badge none.json a.svg", "none.json", "No such file"),
    ("badge good.json none/a.svg", "none/a.svg", "mkdir -p none"),
    ("badge align.json a.svg", "align.json", "faithcheck check"),
    ("pairs 'zz*'", "'zz*'", "activation.*, answer.*"),
    ("explainers zz", "'zz'", "attention_rollout"),
    ("axioms zz", "'zz'", "completeness"),
    ("catalogue zz", "'zz'", "product.*"),
    ("catalogue product.x1x2x3 loo", "'loo'", "faithcheck catalogue --help"),
]
# One process for all rows: to start one takes longer than to refuse.
DRIVER = """
import io, json, sys, time
from types import SimpleNamespace
from contextlib import redirect_stderr, redirect_stdout
from faithcheck.cli.main import main
sys.stdin = SimpleNamespace(buffer=io.BytesIO("raté".encode("latin-1")))
for arguments in json.loads(sys.argv[2]):
    before = {*sys.modules}
    said, printed, start = io.StringIO(), io.StringIO(), time.perf_counter()
    with redirect_stderr(said), redirect_stdout(printed):
        code = main(arguments)
    heavy = [name for name in json.loads(sys.argv[1]) if name in {*sys.modules} - before]
    print(json.dumps([code, said.getvalue(), printed.getvalue(), heavy, time.perf_counter() - start]))
"""


@pytest.fixture(scope="module")
def refusals(tmp_path_factory):
    """What each command said, in a folder of `FILES`: its exit code, stderr, stdout, heavy imports, and its seconds."""
    folder = tmp_path_factory.mktemp("wrong")
    for name, content in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    commands = [shlex.split(command) for command, _, _ in WRONG]
    done = run(folder, "-c", DRIVER, json.dumps(HEAVY), json.dumps(commands))
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    slowest = max(range(len(rows)), key=lambda i: rows[i][-1])
    print(f"the slowest refusal took {rows[slowest][-1]:.3f} s: {WRONG[slowest][0]}")
    return rows


@pytest.mark.parametrize("index", range(len(WRONG)), ids=[command for command, _, _ in WRONG])
def test_a_wrong_input_is_refused_in_one_line_and_without_torch(index, refusals):
    _, thing, way_out = WRONG[index]
    code, said, printed, heavy, _ = refusals[index]
    assert (code, printed, heavy) == (2, "", [])
    assert said.startswith("faithcheck: ")
    assert said.count("\n") == 1
    assert thing in said
    assert way_out in said


def test_the_rows_are_sixty_and_more_and_reach_every_command():
    assert len({command for command, _, _ in WRONG}) == len(WRONG) >= 60
    assert {*COMMANDS, *LISTS} <= {command.split(" ")[0] for command, _, _ in WRONG}
