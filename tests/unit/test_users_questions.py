"""Questions that users of other tools have asked, answered by the conservation ledger: one test each.

LXT is the AttnLRP authors' library, Zennit one of LRP for vision; the numbers are those of their issues.
"""

from collections import Counter

import pytest
import torch

from faithcheck.explainers import CPLRP, AttnLRP, Unsupported
from faithcheck.explainers.lrp.attnlrp import ATTNLRP
from faithcheck.explainers.lrp.engine import LRP
from faithcheck.explainers.lrp.ledger import conservation_ledger
from faithcheck.explainers.lrp.softmax_bypass import layer_inputs
from faithcheck.models import Case
from faithcheck.models.case import select_target
from faithcheck.models.data.images import load_images
from faithcheck.models.networks.linear_attention import LinearAttention
from faithcheck.models.pretrained.text import load
from faithcheck.tests.helpers.small_models import TEXTS, save

BALANCE = 1e-9  # float64 leaves 1e-15 of the largest relevance
CLOSE = {"rtol": BALANCE, "atol": BALANCE}


@pytest.fixture
def reader_of(tmp_path):
    return lambda name: load(save(name, tmp_path), dtype=torch.float64)


def texts(embedding_model):
    return embedding_model.case(embedding_model.encode(TEXTS))


def test_lxt_27_layer_sums_do_not_match(reader_of):
    """They need not: the ledger says what each layer lost, and to what; with that they match.

    The sums are taken from elsewhere too: relevance at each layer's input, cut out of a forward pass by `bypass`.
    """
    embedding_model = reader_of("bert")
    case = texts(embedding_model)
    layers = conservation_ledger(AttnLRP(), embedding_model, case).by_module()
    first, second = (layers[f"model.bert.encoder.layer.{k}"] for k in (0, 1))

    points = layer_inputs(embedding_model, case, AttnLRP())
    gradients = torch.autograd.grad(points[-1].sum(), points[1:-1])
    sums = [(point * gradient).sum((1, 2)).detach() for point, gradient in zip(points[1:-1], gradients, strict=True)]
    for layer, total in zip((first, second), sums, strict=True):
        torch.testing.assert_close(layer.passed_on, total, **CLOSE)
    assert not torch.allclose(sums[0], sums[1], rtol=0.1)  # the question

    torch.testing.assert_close(first.received, second.passed_on, **CLOSE)
    for layer in (first, second):
        assert set(layer.losses) == {"bias", "LayerNorm β", "softmax"}
        torch.testing.assert_close(layer.received - sum(layer.losses.values()), layer.passed_on, **CLOSE)


MATMULS = {"matmul": "BmmBackward0", "softmax": "SoftmaxBackward0", "layer_norm": "NativeLayerNormBackward0"}


@pytest.mark.parametrize("name", ["bert", "roberta", "gpt2", "vit"])
def test_lxt_32_can_i_formally_verify_that_i_did_not_miss_a_matmul(reader_of, name):
    """Yes: every operation that autograd knows of is in the ledger, with its rule; one without is refused by name.

    Autograd's graph of a plain forward pass is the witness: it has no part in the rules.
    """
    embedding_model = reader_of(name)
    case = (
        embedding_model.case(embedding_model.encode(load_images("digits", 2).images))
        if name == "vit"
        else texts(embedding_model)
    )
    ledger = conservation_ledger(AttnLRP(), embedding_model, case)
    counted = Counter(entry.operation for entry in ledger.operations)
    nodes = Counter(type(node).__name__ for node in graph(case.run(embedding_model).grad_fn))
    for operation, node in MATMULS.items():
        assert counted[operation] == nodes[node] > 0
    assert counted["matmul"] == 2 * len([e for e in ledger.operations if e.operation == "softmax"]) == 2 * 2  # 2 layers
    assert counted["linear"] + counted["addmm"] + counted["conv2d"] == sum(
        nodes[node] for node in ("AddmmBackward0", "ConvolutionBackward0", "MmBackward0")
    )
    assert {e.rule for e in ledger.operations if e.operation == "matmul"} == {"bilinear_rule"}

    without = LRP("no matmul", {operation: rule for operation, rule in ATTNLRP.items() if operation != "matmul"})
    with pytest.raises(Unsupported, match=r"matmul in model\..*Attention.*no rule"):
        conservation_ledger(without, embedding_model, case)


def graph(node):
    """The nodes that autograd would visit from here."""
    nodes, seen = [node], set()
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            nodes += [following for following, _ in node.next_functions]
    return seen


@pytest.mark.parametrize(("order", "shares"), [("left", (1 / 4, 1 / 4, 1 / 2)), ("right", (1 / 2, 1 / 4, 1 / 4))])
def test_lxt_19_why_q_4_k_4_v_2(order, shares):
    """Two products, each of which halves: of (QKᵀ)V the value gets ½, query and key half of the other half.

    So it is no property of attention: the other association Q(KᵀV), the same function, has query ½, key and value ¼.
    """
    torch.manual_seed(0)
    model = LinearAttention(order, pixels=9, width=4).double().eval()
    x = torch.rand(5, 9, dtype=torch.float64)
    case = Case(x, torch.arange(5), torch.zeros_like(x))
    ledger = conservation_ledger(AttnLRP(), model, case)
    layers = ledger.by_module()
    output = select_target(model(x), case.target).detach()
    for layer, share in zip(("query", "key", "value"), shares, strict=True):
        torch.testing.assert_close(layers[layer].received, share * output, **CLOSE)
        torch.testing.assert_close(layers[layer].passed_on, share * output, **CLOSE)
    assert set(ledger.by_cause()) == {"position"}  # all that is lost on the way to the pixels


def test_zennit_210_vit_conservation_breaks_at_the_class_token(reader_of):
    """The class token is a parameter that `cat` puts beside the patches, and relevance that it gets stays there.

    Without biases, position embeddings and the softmax rule nothing else is lost: output − patches = its share.
    """
    embedding_model = reader_of("vit")
    patches = embedding_model.encode(load_images("digits", 3).images)
    whole = conservation_ledger(AttnLRP(), embedding_model, embedding_model.case(patches))
    token = "model.vit.embeddings.cls_token"
    assert whole.gap <= BALANCE
    assert whole.by_cause()[token].abs().min() > 0.01
    (entry,) = (entry for entry in whole.operations if token in entry.losses)
    assert (entry.operation, entry.module) == ("cat", "model.vit.embeddings")

    with torch.no_grad():
        for name, weight in embedding_model.named_parameters():
            if name.endswith("bias") or "position" in name:
                weight.zero_()
    case = embedding_model.case(patches)
    ledger = conservation_ledger(CPLRP(), embedding_model, case)
    assert set(ledger.by_cause()) == {token}
    missing = select_target(case.run(embedding_model), case.target).detach() - CPLRP().attribute(
        embedding_model, case
    ).sum(1)
    torch.testing.assert_close(ledger.by_cause()[token], missing, **CLOSE)
    assert missing.abs().min() > 0.01
