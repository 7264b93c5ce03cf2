"""Questions that users of other LRP libraries asked, answered by the conservation ledger: one test for each.

LXT is the library of AttnLRP's authors, Zennit a library of LRP for vision. The numbers are those of their issues.
"""

from collections import Counter

import pytest
import torch

from faithcheck.explainers import CPLRP, AttnLRP, Unsupported
from faithcheck.explainers.lrp.attnlrp import ATTNLRP
from faithcheck.explainers.lrp.engine import LRP
from faithcheck.explainers.lrp.ledger import conservation_ledger
from faithcheck.models import Case
from faithcheck.models.case import select_target
from faithcheck.models.data.images import load_images
from faithcheck.models.networks.linear_attention import LinearAttention
from faithcheck.models.pretrained.loading import load
from faithcheck.tests.helpers.small_models import TEXTS, save

BALANCE = 1e-9  # float64 leaves 1e-15 of the largest relevance
CLOSE = {"rtol": BALANCE, "atol": BALANCE}


@pytest.fixture
def model_of(tmp_path):
    return lambda name: load(save(name, tmp_path), dtype=torch.float64)


def texts(embedding_model):
    return embedding_model.case(embedding_model.encode(TEXTS))


def test_lxt_27_layer_sums_do_not_match(model_of):
    """The sums need not match: the ledger names what each layer lost, and with the losses they match.

    The sums are also computed independently: relevance at each layer's input, value × gradient.
    """
    embedding_model = model_of("bert")
    case = texts(embedding_model)
    layers = conservation_ledger(AttnLRP(), embedding_model, case).by_module()
    first, second = (layers[f"model.bert.encoder.layer.{k}"] for k in (0, 1))

    points = []
    for layer in embedding_model.model.bert.encoder.layer:
        layer.register_forward_pre_hook(
            lambda _, args: points.append(args[0].view_as(args[0])) or (points[-1], *args[1:])
        )
    _, output = AttnLRP().propagate(embedding_model, case)
    gradients = torch.autograd.grad(output.sum(), points)
    sums = [(point * gradient).sum((1, 2)).detach() for point, gradient in zip(points, gradients, strict=True)]
    for layer, total in zip((first, second), sums, strict=True):
        torch.testing.assert_close(layer.passed_on, total, **CLOSE)
    assert not torch.allclose(sums[0], sums[1], rtol=0.1)  # the user's question

    torch.testing.assert_close(first.received, second.passed_on, **CLOSE)
    for layer in (first, second):
        assert set(layer.losses) == {"bias", "LayerNorm β", "softmax"}
        torch.testing.assert_close(layer.received - sum(layer.losses.values()), layer.passed_on, **CLOSE)


MATMULS = {"matmul": "BmmBackward0", "softmax": "SoftmaxBackward0", "layer_norm": "NativeLayerNormBackward0"}


@pytest.mark.parametrize("name", ["bert", "roberta", "gpt2", "vit"])
def test_lxt_32_can_i_formally_verify_that_i_did_not_miss_a_matmul(model_of, name):
    """Yes: every operation in autograd's graph is in the ledger, with its rule. An operation without a rule is refused.

    The graph is that of a plain forward pass, without any rules.
    """
    embedding_model = model_of(name)
    case = (
        embedding_model.case(embedding_model.encode(load_images("digits", 2).images))
        if name == "vit"
        else texts(embedding_model)
    )
    ledger = conservation_ledger(AttnLRP(), embedding_model, case)
    counted = Counter(operation.operation for operation in ledger.operations)
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
    """The nodes that autograd visits from this node."""
    nodes, visited = [node], set()
    while nodes:
        node = nodes.pop()
        if node is not None and node not in visited:
            visited.add(node)
            nodes += [next_node for next_node, _ in node.next_functions]
    return visited


@pytest.mark.parametrize(("order", "shares"), [("left", (1 / 4, 1 / 4, 1 / 2)), ("right", (1 / 2, 1 / 4, 1 / 4))])
def test_lxt_19_why_q_4_k_4_v_2(order, shares):
    """Each of two products halves relevance: in (QKᵀ)V the value receives ½, query and key ¼ each.

    This is not a property of attention: Q(KᵀV), the same function, gives the query ½, key and value ¼ each.
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
    assert set(ledger.by_cause()) == {"position"}  # the only loss before the pixels


def test_zennit_210_vit_conservation_breaks_at_the_class_token(model_of):
    """The class token is a parameter that `cat` puts beside the patches, and it keeps the relevance that it receives.

    Without biases, position embeddings and the softmax rule, nothing else is lost: output − patches = its share.
    """
    embedding_model = model_of("vit")
    patches = embedding_model.encode(load_images("digits", 3).images)
    full = conservation_ledger(AttnLRP(), embedding_model, embedding_model.case(patches))
    token = "model.vit.embeddings.cls_token"
    assert full.gap <= BALANCE
    assert full.by_cause()[token].abs().min() > 0.01
    (operation,) = (operation for operation in full.operations if token in operation.losses)
    assert (operation.operation, operation.module) == ("cat", "model.vit.embeddings")

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
