"""Generated pairs: the identities hold, counterexamples are found and shrunk, and saved ones are replayed."""

import json
import re
from collections import Counter
from itertools import pairwise
from itertools import product as every
from pathlib import Path
from types import MappingProxyType

import pytest
import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from faithcheck import Check, Settings, check_explainer
from faithcheck.axioms import generated
from faithcheck.axioms.counterexamples import saved
from faithcheck.axioms.counterexamples.comparison import accurate, refuse_unequal, regular, regular_case
from faithcheck.axioms.counterexamples.drawing import TERM, chains, numbered
from faithcheck.axioms.counterexamples.rewrite import Counterexample, Rewrite, case_at
from faithcheck.axioms.counterexamples.saved import FOLDER
from faithcheck.axioms.counterexamples.search import CounterexampleSearch, smallest_counterexample
from faithcheck.explainers import LRP, builtin_explainers
from faithcheck.explainers.lrp.attnlrp import ATTNLRP
from faithcheck.explainers.lrp.modified_gradient import modified
from faithcheck.explainers.lrp.rules.rearrangements import gradient_rule
from faithcheck.models import Expectation, registered_pairs
from faithcheck.models.networks.expressions import (
    BINARY,
    IDENTITIES,
    OPERATIONS,
    UNARY,
    Apply,
    Constant,
    Expression,
    Identity,
    Input,
    apply,
    features,
    from_json,
    intermediates,
    operations,
    rewritten,
    subterms,
    to_json,
)
from faithcheck.reports.pages import wording

X1, X2, X3 = (Input(i) for i in range(3))
SEARCH = registered_pairs()["generated.search"]
CASE = SEARCH.case(0, torch.float64, torch.device("cpu"))
TRIPLE, REASSOCIATED = (X1 * X2) * X3, X1 * (X2 * X3)
ATTN = builtin_explainers()["attnlrp"]


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path, monkeypatch):
    """The current folder is a temporary one: counterexamples are saved there."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def quick(monkeypatch):
    """A short search, which is enough for these explainers."""
    monkeypatch.setattr(generated, "EXAMPLES", 3)


def run(explainer):
    return Check("generated", explainer, SEARCH).run(Settings())


# --- expressions and identities --------------------------------------------------------------------------------------

SYMPY = {
    "*": lambda a, b: a * b,
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "max": sympy.Max,
    "tanh": sympy.tanh,
    "sigmoid": lambda a: 1 / (1 + sympy.exp(-a)),
    "silu": lambda a: a / (1 + sympy.exp(-a)),
    "exp": sympy.exp,
    "relu": lambda a: sympy.Max(a, 0),
    "abs": sympy.Abs,
}


def in_sympy(term, symbols):
    if isinstance(term, Apply):
        return SYMPY[term.operation](*(in_sympy(operand, symbols) for operand in term.operands))
    return symbols[term.index] if isinstance(term, Input) else sympy.nsimplify(term.value)


def proved(identity):
    symbols = sympy.symbols("a b c", real=True)
    difference = in_sympy(identity.left, symbols) - in_sympy(identity.right, symbols)
    kinked = difference.has(sympy.Max, sympy.Abs)
    return sympy.simplify(difference.rewrite(sympy.Piecewise if kinked else sympy.exp).expand()) == 0


@pytest.mark.parametrize("identity", IDENTITIES, ids=lambda identity: identity.name)
def test_every_identity_is_proved_in_sympy(identity):
    assert proved(identity)
    assert features(identity.left) == features(identity.right)


def test_a_wrong_identity_is_not_proved():
    assert not proved(Identity("wrong", apply("max", X1, X2), 0.5 * (X1 + X2)))
    assert not proved(Identity("wrong", apply("tanh", X1), 2 * apply("sigmoid", X1) - 1))


@settings(max_examples=60, database=None, deadline=None, derandomize=True)
@given(st.data())
def test_every_rewrite_preserves_value_and_gradient(data):
    chain = data.draw(chains(3, data.draw(st.sampled_from(IDENTITIES))))
    assert len(chain) >= 1
    assert all(step.g == following.f for step, following in pairwise(chain))
    search = CounterexampleSearch(ATTN, CASE)
    for step in (step for step in chain if features(step.f) > 0):
        case = regular_case(step, search.case)
        if len(case.inputs) > 0:
            refuse_unequal(step, case)
            left, right = (Expression(term)(case.inputs) for term in (step.f, step.g))
            assert torch.allclose(left, right, rtol=1e-9, atol=1e-9), "an independent comparison"


def test_an_identity_with_unequal_values_is_refused():
    with pytest.raises(ValueError, match=r"a product is a sum: the values of .* differ"):
        CounterexampleSearch(ATTN, CASE).run(0, [Identity("a product is a sum", X1 * X2, X1 + X2)])


def test_an_identity_with_unequal_gradients_alone_is_refused(monkeypatch):
    detached = dict(OPERATIONS, silu=lambda x: OPERATIONS["silu"](x.detach()) + 0 * x)
    monkeypatch.setattr("faithcheck.models.networks.expressions.OPERATIONS", detached)
    (identity,) = (identity for identity in IDENTITIES if identity.name == "silu by sigmoid")
    with pytest.raises(ValueError, match=r"silu by sigmoid: the gradients of .* differ"):
        CounterexampleSearch(ATTN, CASE).run(0, [identity])


def test_terms_are_printed_with_few_parentheses():
    assert str(TRIPLE) == "(x1*x2)*x3"
    assert str(X1 * (X2 + 1) - apply("tanh", -0.5 * X1)) == "x1*(x2+1)-tanh((-0.5)*x1)"
    assert str(X1 * X2 + X1 * 1) == "x1*x2+x1*1"
    assert str(X1 - (X2 - X3)) == "x1-(x2-x3)"


def test_rewriting_works_at_every_place_and_in_both_directions():
    (identity,) = (identity for identity in IDENTITIES if identity.name == "a product re-associates")
    four = (X1 * X2) * (X3 * X1)
    assert set(rewritten(four, identity)) == {X1 * (X2 * (X3 * X1)), ((X1 * X2) * X3) * X1}
    assert rewritten(apply("tanh", TRIPLE), identity) == [apply("tanh", REASSOCIATED)]
    assert rewritten(X1 + X2, identity) == []
    (factored,) = (identity for identity in IDENTITIES if "distributes" in identity.name)
    assert X1 * (X2 + X3) in rewritten(X1 * X2 + X1 * X3, factored)
    assert X1 * (X2 + X3) not in rewritten(X1 * X2 + X2 * X3, factored)


@settings(max_examples=100, database=None, deadline=None, derandomize=True)
@given(TERM)
def test_terms_are_read_back_from_json(drawn):
    term = numbered(drawn, iter(range(99)))
    assert from_json(json.loads(json.dumps(to_json(term)))) == term


@pytest.mark.parametrize("wrong", ["y1", "x0", "x", None, True, [], ["*", "x1"], ["pow", "x1"], [["x1"]], {"x1": 1}])
def test_json_that_is_no_term_is_refused(wrong):
    with pytest.raises(ValueError, match=r"not a term|no operation"):
        from_json(wrong)


def test_equal_parts_are_computed_once():
    both = intermediates(apply("tanh", X1 * X2) * apply("tanh", X1 * X2), CASE.inputs)
    assert [str(part) for part in both] == ["x1", "x2", "x1*x2", "tanh(x1*x2)", "tanh(x1*x2)*tanh(x1*x2)"]


# --- the search ------------------------------------------------------------------------------------------------------


def is_product_of_three(term):
    leaves = [part for part in subterms(term) if not isinstance(part, Apply)]
    names = {part.operation for part in subterms(term) if isinstance(part, Apply)}
    return names == {"*"} and sorted(leaves, key=str) == [X1, X2, X3]


@pytest.mark.parametrize(("name", "seed"), [("attnlrp", 0), ("cplrp", 1)])
def test_the_smallest_counterexample_re_associates_three_factors(name, seed):
    smallest = smallest_counterexample(builtin_explainers()[name], CASE, seed)
    assert is_product_of_three(smallest.rewrite.f)
    assert is_product_of_three(smallest.rewrite.g)
    assert smallest.rewrite.f != smallest.rewrite.g
    assert smallest.rewrite.identity == "a product re-associates"
    assert smallest.gap == pytest.approx(0.5, abs=1e-12)


def test_the_record_names_the_pair_of_the_paper():
    detail = run(ATTN).detail
    assert detail["smallest pair"] == "(x1*x2)*x3 = x1*(x2*x3) (a product re-associates)"
    assert detail["attributions"] == "(6, 6, 12) and (12, 6, 6) at (2, 3, 4)"
    assert detail["control gap"] == 0


def test_the_counterexamples_of_attnlrp_are_registered_pairs():
    violating = {counterexample.rewrite.identity for counterexample in CounterexampleSearch(ATTN, CASE).run(0)}
    pairs = (pair.build(0, torch.float64, torch.device("cpu")) for pair in registered_counterexamples())
    terms = [(f.term, g.term) for f, g in pairs]
    registered = {identity.name for identity in IDENTITIES for f, g in terms if g in rewritten(f, identity)}
    assert violating == registered
    assert len(registered) == 5


def registered_counterexamples():
    return [pair for name, pair in registered_pairs().items() if name.startswith("generated.")]


def small_terms(constants):
    """Every term of at most two operations, on the features in the order in which they first occur, and constants."""
    leaves = [X1, X2, X3, *map(Constant, constants)]
    sizes = [leaves]
    for size in (1, 2):
        unary = [apply(name, a) for name, a in every(UNARY, sizes[size - 1])]
        halves = [(a, b) for left in range(size) for a, b in every(sizes[left], sizes[size - 1 - left])]
        sizes.append(unary + [apply(name, a, b) for name, (a, b) in every(BINARY, halves)])
    for term in (term for terms in sizes for term in terms):
        order = list(dict.fromkeys(part for part in subterms(term) if isinstance(part, Input)))
        if order and order == [X1, X2, X3][: len(order)]:
            yield term


@pytest.mark.parametrize(
    ("constants", "least"),
    [([1.0], 500), pytest.param([1.0, 2.0, -1.0], 1500, marks=pytest.mark.slow)],  # the second takes ten seconds
    ids=["of 1", "of 1, 2 and -1"],
)
def test_attnlrp_has_no_counterexample_of_fewer_operations(constants, least):
    search = CounterexampleSearch(
        ATTN, case_at(torch.tensor([[2.0, 3, 4], [-2, 3, -4], [-0.5, -0.75, 0.25]], dtype=torch.float64))
    )
    rewrites = {}
    for f, identity in every(small_terms(constants), IDENTITIES):
        for g in rewritten(f, identity):
            if operations(f) + operations(g) <= 4:
                rewrites.setdefault((identity.name, frozenset({f, g})), Rewrite(identity.name, f, g))
    compared = [step for step in rewrites.values() if search.gap(step) is not None]
    assert len(compared) > least
    violating = {(step.identity, step.size[0]) for step in compared if search.violates(search.gap(step))}
    assert violating == {("a product re-associates", 4)}


def test_points_where_a_relu_is_off_are_compared_and_those_at_a_kink_are_not():
    off = torch.tensor([[-2.0, 3], [2, 3], [0.01, 3], [0, 3]])
    for term in (apply("relu", X1), apply("max", X1, 0), 0.5 * (X1 + apply("abs", X1)), apply("relu", X1) * X2):
        assert regular(term, off).tolist() == [True, True, False, False]
    for operation in UNARY:  # at 0 their rules divide by 0
        assert not regular(apply(operation, apply("relu", X1)), off)[0]
    assert regular(X1 + X2, torch.tensor([[1.0, -1], [1, -0.99], [40, 40]])).tolist() == [True, False, False]


class Counts:
    """Divides by the number of operations, which depends on the implementation and not on the function."""

    name = "counts"
    claims = frozenset({"invariance"})

    def attribute(self, model, case):
        return case.inputs / (1 + operations(model.term))


def uneven_product(call):
    """Two thirds of a product's relevance to the first factor."""
    if len(call.operands_with_relevance()) < 2:
        return gradient_rule(call)
    a, b = call.operands_with_relevance()
    return (2 * a + a.detach()) / 3 * ((b + 2 * b.detach()) / 3)


class Uneven(LRP):
    def __init__(self):
        super().__init__("uneven", {**ATTNLRP, "mul": uneven_product})


def open_gate(call):
    """A ReLU that passes its gradient on even if it is off."""
    (x,) = call.operands_with_relevance()
    return modified(x, call.value(), lambda gradient: gradient)


class OpenGate(LRP):
    """Gradient × input, except at ReLUs that are off."""

    def __init__(self):
        super().__init__("open_gate", {**dict.fromkeys(ATTNLRP, gradient_rule), "relu": open_gate})


@pytest.mark.parametrize("seed", range(4))
def test_an_explainer_whose_relus_are_always_on_has_counterexamples(seed):
    kinks = [identity for identity in IDENTITIES if identity.name.startswith("relu")]
    by_max, by_abs = CounterexampleSearch(OpenGate(), CASE).run(seed, kinks)
    assert str(by_max.rewrite) in ("relu(x1) = max(x1, 0)", "max(x1, 0) = relu(x1)")
    assert by_abs.rewrite.identity == "relu by abs"


def test_the_record_shows_a_point_where_the_attributions_differ():
    record = run(OpenGate())
    assert record.status == "broken claim"
    assert record.detail["separated by"] == "relu by max; relu by abs"
    left, right = record.detail["attributions"].split(" at ")[0].split(" and ")
    assert left != right


@pytest.mark.parametrize(
    ("explainer", "identities", "size"),
    [(Counts(), {"plus zero", "times one"}, 1), (Uneven(), {"a product commutes"}, 2)],
    ids=["counts", "uneven"],
)
def test_a_counterexample_of_a_bad_explainer_is_found_and_shrunk(explainer, identities, size):
    smallest = smallest_counterexample(explainer, CASE)
    assert smallest.rewrite.identity in identities
    assert smallest.rewrite.size[0] == size
    record = run(explainer)
    assert record.status == "broken claim"
    assert str(smallest.rewrite) in wording.message(record)


def test_a_claim_of_invariance_includes_generated_pairs():
    class Silent(Counts):
        claims = frozenset({"completeness"})

    assert run(Counts()).expected == "HOLDS"
    assert run(Silent()).status == "recorded"
    assert run(Silent()).gap > 0.1


def test_noise_is_inconclusive():
    class Noise:
        name = "noise"
        expected = MappingProxyType({("generated", "*"): Expectation("VIOLATES", "it is random", floor=0.1)})

        def attribute(self, model, case):
            return torch.randn(case.shape, dtype=torch.float64)

    record = run(Noise())
    assert record.status == "inconclusive"
    assert record.detail["control gap"] > 0.1


def test_an_attribution_of_nan_is_red():
    class Nan:
        name = "nan"
        claims = frozenset({"invariance"})

        def attribute(self, model, case):
            return case.inputs * float("nan")

    record = run(Nan())
    assert record.status == "error"
    assert "NaN" in str(record.detail["error"])


class Raises(Counts):
    """Violates invariance for sums, and raises for maxima."""

    name = "raises"

    def attribute(self, model, case):
        if "max" in str(model.term):
            raise RuntimeError("no maximum\nand a second line")
        return case.inputs * (1 + ("+" in str(model.term)))


def test_an_error_of_the_explainer_is_reported_with_its_own_message_and_the_rewrite():
    record = run(Raises())
    assert record.status == "error"
    assert wording.sentence(record).endswith("the check could not be measured: RuntimeError: no maximum")
    note = record.traceback.splitlines()[-1]
    assert re.fullmatch(r"on .*max\(.*; to refuse a model, raise faithcheck.explainers.Unsupported", note)
    assert "on_each(" not in record.traceback.split("RuntimeError: ")[-1], "Hypothesis adds nothing"


@pytest.mark.parametrize("seed", range(3))
def test_an_error_is_raised_even_if_there_are_counterexamples(seed):
    mixed = Identity("a maximum of sums", apply("max", X1 + X2, X2), apply("max", X2, X1 + X2))
    violated = Identity("a sum or none", X1 + 0, X1)
    with pytest.raises(RuntimeError, match="no maximum"):
        CounterexampleSearch(Raises(), CASE).run(seed, [violated, mixed])


def test_check_explainer_includes_generated_pairs_by_default(quick):
    (record,) = check_explainer(Counts(), pairs=[SEARCH])
    assert (record.axiom, record.status) == ("generated", "broken claim")


def test_an_explainer_that_refuses_everything_is_unsupported():
    record = run(builtin_explainers()["attention_rollout"])
    assert record.status == "unsupported"
    assert record.detail["reason"].startswith("every drawn pair was refused: softmax in the model: no softmax")


def test_two_searches_from_one_seed_are_equal():
    first, second, other = (CounterexampleSearch(Uneven(), CASE, examples=3) for _ in range(3))
    assert first.run(3) == second.run(3) != []
    assert first.gaps == second.gaps
    other.run(4)
    assert other.gaps.keys() != first.gaps.keys()


def test_a_seed_draws_pairs_for_every_identity():
    search = CounterexampleSearch(builtin_explainers()["gradient_x_input"], CASE)
    assert search.run(0) == []
    measured = [step.identity for step, gap in search.gaps.items() if gap is not None]
    assert min(measured.count(identity.name) for identity in IDENTITIES) >= 3
    assert any(operations(step.f) > 5 for step in search.gaps)


@pytest.mark.parametrize(("identities", "times"), [(IDENTITIES, {1}), ([None], {2})], ids=["rewritten", "itself"])
def test_a_term_is_explained_once_at_the_same_points_and_twice_where_it_is_compared_with_itself(identities, times):
    asked = Counter()

    class Asked(Counts):
        def attribute(self, model, case):
            asked[model.term, case.inputs.numpy().tobytes()] += 1
            return case.inputs

    search = CounterexampleSearch(Asked(), CASE)
    assert search.run(0, identities) == []
    assert set(asked.values()) == times
    assert len(asked) < 2 * len(search.measured)


# --- counterexamples on disk -----------------------------------------------------------------------------------------


COUNTEREXAMPLE = Counterexample("uneven", Rewrite("a product commutes", X1 * X2, X2 * X1), ((2.0, 3.0, 4.0),), 1 / 3)


def saved_files():
    return sorted(FOLDER.glob("*"))


def test_a_counterexample_is_read_back_from_json():
    document = json.loads(json.dumps(COUNTEREXAMPLE.to_json()))
    assert Counterexample.from_json(document) == COUNTEREXAMPLE
    assert document["pair"] == "x1*x2 = x2*x1"
    for damage in ({"f": "y"}, {"points": []}, {"points": [[1.0]]}, {"faithcheck_counterexample": 99}, {"gap": None}):
        with pytest.raises(ValueError, match=r"not a term|damaged|version"):
            Counterexample.from_json({**document, **damage})


def test_a_found_counterexample_is_saved_and_replayed_before_any_search(quick):
    first = run(Uneven())
    (file,) = saved_files()
    assert first.detail["saved"] == str(file)
    assert json.loads(file.read_text())["explainer"] == "uneven"
    second = run(Uneven())
    assert "1 saved" in second.detail["replayed"]
    assert second.detail["pairs"] == 0, "no search"
    assert (second.status, second.gap) == (first.status, first.gap)
    assert second.detail["smallest pair"] == first.detail["smallest pair"]
    assert saved_files() == [file]


def test_a_saved_counterexample_that_no_longer_separates_is_reported(quick):
    run(Uneven())
    (file,) = saved_files()

    class Mended(LRP):
        def __init__(self):
            super().__init__("uneven", {**ATTNLRP, "mul": gradient_rule})

    record = run(Mended())
    assert file.name in record.detail["no longer separates"]
    assert "x1*x2 = x2*x1" in record.detail["no longer separates"]
    assert record.detail["pairs"] > 20, "the search follows"
    assert file.exists()


def test_the_counterexamples_of_other_explainers_are_ignored(quick):
    run(Uneven())
    record = run(Counts())
    assert not {"replayed", "no longer separates", "cannot be replayed"} & record.detail.keys()
    assert len(saved_files()) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "Expecting"),
        ("{}", "no counterexample of version"),
        (json.dumps({**COUNTEREXAMPLE.to_json(), "g": ["+", "x1", "x2"]}), "differ by"),
    ],
    ids=["no JSON", "another document", "not equal"],
)
def test_a_file_that_cannot_be_replayed_is_reported_and_logged(text, message, caplog, quick):
    FOLDER.mkdir(parents=True)
    (FOLDER / "bad.json").write_text(text)
    record = run(Uneven())
    assert record.status == "broken claim"
    assert "bad.json" in record.detail["cannot be replayed"]
    assert message in record.detail["cannot be replayed"]
    assert "bad.json" in caplog.text


def test_a_folder_that_cannot_be_written_is_reported(tmp_path, quick):
    (tmp_path / FOLDER.parts[0]).write_text("a file where the folder should be")
    record = run(Uneven())
    assert record.status == "broken claim"
    assert record.detail["saved"].startswith(f"no: {tmp_path / FOLDER} cannot be written (")
    assert FOLDER.parts[0] in record.detail["saved"]


def test_a_failed_write_leaves_no_file(monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    assert "No space left" in saved.save(COUNTEREXAMPLE)
    assert saved_files() == []


def test_a_saved_file_has_the_usual_permissions(tmp_path):
    (tmp_path / "other").touch()
    assert Path(saved.save(COUNTEREXAMPLE)).stat().st_mode == (tmp_path / "other").stat().st_mode


def expected(verdict, **size):
    return MappingProxyType({("generated", "*"): Expectation(verdict, "it counts", **size)})


@pytest.mark.parametrize(
    "change", [{"claims": ()}, {"claims": {"completeness"}}, {"expected": expected("VIOLATES", floor=0.1)}]
)
def test_a_counterexample_that_contradicts_no_claim_is_not_saved(change, quick):
    record = run(type("Modest", (Counts,), change)())
    assert record.gap > 0.1
    assert record.passed
    assert "saved" not in record.detail
    assert not FOLDER.exists()


def test_built_in_explainers_leave_no_file(quick):
    run(ATTN)
    assert not FOLDER.exists()


def test_the_regular_points_of_a_rewrite_are_looked_for_anew_where_operations_are_others(monkeypatch):
    rewrite = Rewrite("silu by sigmoid", apply("silu", X1), X1 * apply("sigmoid", X1))
    assert len(regular_case(rewrite, CASE).inputs)
    monkeypatch.setattr("faithcheck.models.networks.expressions.OPERATIONS", OPERATIONS | {"silu": torch.relu})
    with pytest.raises(ValueError, match="no identity"):
        regular_case(rewrite, CASE)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_tie_on_the_way_to_the_baseline_is_not_regular(dtype):
    """At x₃ = 2x₁ two terms are equal. Near the baseline they are larger than x₂: which is the maximum is chance."""
    points = torch.tensor([[2.0, 3.0, 4.0], [2.0, 3.0, 3.0]], dtype=dtype)
    tied = apply("max", apply("tanh", X1 + X1), apply("max", X2, apply("tanh", Input(2))))
    assert regular(tied, points).tolist() == [False, True]


def test_a_gradient_that_float32_loses_is_not_accurate():
    """1 − tanh² x has no digit left at x = 8; a power of it is nothing beside 1."""
    points = torch.tensor([[0.5], [8.0]])
    saturated = apply("exp", 2000 * apply("tanh", X1) - 2000)
    assert accurate(saturated, points).tolist() == [True, False]
    assert accurate(saturated, points.double()).tolist() == [True, True]
