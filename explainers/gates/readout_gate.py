"""The readout gate: the direct effect of a feature on the readout row exactly, the indirect effect by gates.

Most Transformers are read at one position: [CLS], a decoder's last token, a ViT's class token. A feature i reaches it
*directly*, through the readout row's own attention to i, or *indirectly*, through other rows that attend to i.

Derived here:

1. Direct effect. For each feature i that step 2 chooses, a copy of the readout row goes through the layers without
   attending to key i. It attends to its own key and value, and to the unchanged ones of the other rows. Then it goes
   through the norm after the last layer, if there is one. The direct effect is the change of the last state times the
   output's gradient there; what comes after that norm counts as linear.
2. Which layers and features. Where layers end in no LayerNorm, as in GPT-2, Llama and ViT, all layers add to one sum,
   which the last norm divides. So every layer is run again with one copied row per feature, as many rows as a forward
   pass. Where they end in a LayerNorm, as in BERT, each layer forgets the scale of what came before. So the last third
   of the layers has most of the direct effect, and few features have much of it. In short texts the readout row is
   copied in these layers for the eight features with the largest Σ |finite effect| over rows and layers. The direct
   effect of the other features is estimated by their gates.
3. Indirect effect. All other rows and layers have gates (`faithcheck.explainers.gates`). The first-order effect is the
   derivative along m_i, and the finite effect is the derivative along O(s) = (1 − s)·O + s·(O without i). For an
   attention weight A they differ by terms of order A². Neither is nearer to Leave-One-Out everywhere, so their mean is
   taken, except in step 4.
4. Texts of 128 features or more, where layers end in a LayerNorm. A few features with large effects cause most of the
   error, each in a few rows. So each of these features is removed from the readout row and from the rows in which its
   effect is largest, in every layer. Copies of these rows attend to each other's changed keys and values, and to the
   unchanged ones of the other rows. Two first-order parts are added for the rows without a copy: the feature's own
   finite gate there, and the effect of the copies' changed values, by the gradient at the values that does not come
   through the copies. The effect of changed keys on the rows without a copy is left out: including it changed r by less
   than 0.001. If every row is copied, this is Leave-One-Out.
5. Attention sinks have their exact values, see `faithcheck.explainers.gates.sinks`.

If both effects are computed exactly and added up, r with Leave-One-Out is 0.99 (docs/results/remedies.md). What the
gate loses beyond that is the curvature of the indirect effect.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from faithcheck.explainers.builtin import builtin
from faithcheck.explainers.gates.attention_gates import changes_from
from faithcheck.explainers.gates.expectations import DIRECT_AND_INDIRECT
from faithcheck.explainers.gates.gate import GATE_CLAIMS, OnePassGate, is_long_text
from faithcheck.explainers.gates.gate_effects import EffectKind, clear_own_rows
from faithcheck.explainers.gates.readout_copies import (
    CopiedRows,
    CopiedRowsAttention,
    arguments_at_rows,
    copies_for_every_feature,
    copies_for_largest_effects,
)
from faithcheck.explainers.gates.readout_recording import LayerRecorder, RecordedLayer, hidden_states, readout_position
from faithcheck.explainers.gates.sinks import sink_shares, with_exact_values
from faithcheck.explainers.modules import module_in_words
from faithcheck.explainers.protocol import Unsupported
from faithcheck.models.case import Case, select_target
from faithcheck.models.expectation import Expectations

CANNOT_COPY_ROWS = (
    "layers that compute another readout row when it is run by itself (masks or positions made inside a layer, a "
    "cache): take finite_mask_gate"
)


@dataclass
class RecordedPass:
    """A recorded forward and backward pass.

    The ``effects`` of the gates, ``(layers, batch, queries, features)`` for each kind, lack a feature's own row.
    ``gradient`` is the output's at the last states, ``(batch, positions, width)``; ``readout`` is the readout row.
    """

    recorder: LayerRecorder
    effects: tuple[Tensor, ...]
    gradient: Tensor
    readout: Tensor
    output: Tensor


@builtin("gate")
@dataclass(frozen=True)
class ReadoutGate(OnePassGate):
    """The direct effect exactly, the indirect effect by gates: a forward and a backward pass, and some rows again."""

    label: ClassVar[str] = "Readout gate"
    summary: ClassVar[str] = (
        "like finite_mask_gate, with a token's direct effect on the readout row exact; derived here"
    )
    on_masked_models: ClassVar[Expectations] = DIRECT_AND_INDIRECT

    name: str = "readout_gate"
    claims: frozenset[str] = GATE_CLAIMS | {"bounds", "full_removal"}

    @torch.enable_grad()
    def attention_effects(self, model: nn.Module, case: Case) -> Tensor:
        """The direct effects plus the indirect effects, ``(batch, features)``; warns of sinks.

        Raises Unsupported if the model is no stack of layers with one attention each, or is read at several positions.
        """
        recorded = self._record(model, case)
        first_layer, copies = self._choose_copies(case, recorded)
        all_layers = self._gates_from(0, recorded, copies)
        if first_layer and not copies.is_long.all():
            late_layers = self._gates_from(first_layer, recorded, copies)
            if recorded.recorder.has_long_text:
                late_layers = torch.where(copies.is_long[:, None, None], all_layers, late_layers)
        else:
            late_layers = all_layers
        attribution = all_layers.sum(1)
        removes = copies.feature >= 0
        example, _ = removes.nonzero(as_tuple=True)
        feature, rows = copies.feature[removes].unsqueeze(1), copies.rows[removes]
        # In the copied rows the exact effect replaces the gates.
        by_gates = (late_layers[example.unsqueeze(1), rows, feature] * copies.valid[removes]).sum(1)
        exact = self._exact_effects(case, recorded, copies)[removes]
        attribution[example, feature.squeeze(1)] += exact - by_gates
        shares = sink_shares(recorded.recorder.weights, case)
        exact_change = changes_from(recorded.output, model, case)
        return with_exact_values(case, attribution * case.unpadded, shares, exact_change)

    def _record(self, model: nn.Module, case: Case) -> RecordedPass:
        """Run the model forward and backward, and record its layers and the effects of the gates."""
        recorder = LayerRecorder(case)
        with recorder.recording(model), recorder:
            output = select_target(case.run(model), case.target)
        layers, attentions = len(recorder.layers), len(recorder.weights)
        if not attentions:
            recorder.require_attention()
        if layers != attentions:
            raise Unsupported(
                f"softmax in {module_in_words(model, model)}: {layers} layers with {attentions} attentions: expected "
                "one each; take finite_mask_gate"
            )
        last_states = recorder.last_states
        assert last_states is not None
        gradients: list[Tensor] = []
        if last_states.requires_grad:
            last_states.register_hook(gradients.append)  # type: ignore[no-untyped-call]
        finite_alone = recorder.layers[-1].ends_in_layer_norm and bool(is_long_text(case).all())
        kinds: tuple[EffectKind, ...] = ("finite",) if finite_alone else ("finite", "first-order")
        effects = recorder.effects(output, *kinds)
        if not gradients:
            last = module_in_words(model, recorder.layers[-1].module)
            raise Unsupported(
                f"forward in {last}: the output does not depend on the last states: take finite_mask_gate"
            )
        readout = readout_position(gradients[0])
        is_readout = torch.arange(gradients[0].shape[1], device=readout.device) == readout.unsqueeze(-1)
        for kind in effects:
            clear_own_rows(kind, is_readout)
        return RecordedPass(recorder, effects, gradients[0], readout, output.detach())

    def _choose_copies(self, case: Case, recorded: RecordedPass) -> tuple[int, CopiedRows]:
        """The first layer in which short texts have copied rows, and the copied rows."""
        finite = recorded.effects[0]
        if not recorded.recorder.layers[-1].ends_in_layer_norm:
            return 0, copies_for_every_feature(case, finite.shape[2], recorded.readout)
        first_layer = 2 * len(finite) // 3
        return first_layer, copies_for_largest_effects(case, finite.abs().sum(0), recorded.readout, first_layer)

    def _gates_from(self, first_layer: int, recorded: RecordedPass, copies: CopiedRows) -> Tensor:
        """The effects of the gates from one layer on, ``(batch, queries, features)``."""
        effects = [kind[first_layer:].sum(0) for kind in recorded.effects]
        if len(effects) == 1:
            return effects[0]
        finite, first_order = effects
        mean = (finite + first_order) / 2
        return torch.where(copies.is_long[:, None, None], finite, mean) if recorded.recorder.has_long_text else mean

    @torch.no_grad()
    def _exact_effects(self, case: Case, recorded: RecordedPass, copies: CopiedRows) -> Tensor:
        """How much the output falls if each group's rows are run without its feature, ``(batch, groups)``.

        Rows without a copy count to first order.
        """
        recorder, gradient, rows = recorded.recorder, recorded.gradient, copies.flat_rows
        last_states = recorder.last_states
        assert last_states is not None
        first_layer, has_long_text = int(copies.first_layer.min()), bool(copies.is_long.any())
        place = recorder.layers[first_layer].place
        states = copies.gather_rows(recorder.layers[first_layer].hidden, copies.rows).flatten(1, 2)
        passed_on = torch.zeros_like(copies.feature, dtype=gradient.dtype)
        removed = copies.removed_keys(len(recorder.layers))
        before: RecordedLayer | None = None
        try:
            for number, layer in enumerate(recorder.layers[first_layer:], first_layer):
                place = layer.place
                if before is None or not layer.has_arguments_of(before):  # often all layers have the same
                    args, kwargs = tree_map(
                        lambda value: arguments_at_rows(value, rows, gradient.shape[1]), (layer.args, layer.kwargs)
                    )
                before = layer
                # After the last layer, no row without a copy is read.
                passes_on = has_long_text and layer is not recorder.layers[-1]
                unchanged = states if number == first_layer else None
                with CopiedRowsAttention(case, layer, copies, removed[number], passes_on, unchanged) as attention:
                    states = hidden_states(layer.module(states, *args, **kwargs))
                if passes_on:
                    passed_on += attention.passed_on
            for module, _ in recorder.after_layers:
                states = module(states)
        except (RuntimeError, IndexError, TypeError) as error:
            raise Unsupported(f"forward in {place()}: {CANNOT_COPY_ROWS}: {error}") from error
        without_removal = copies.gather_rows(last_states, copies.rows)
        change = without_removal - copies.split_groups(states)
        tolerance = 1000 * torch.finfo(change.dtype).eps * without_removal.abs().amax()  # round-off of a few layers
        if bool((change[copies.feature < 0].abs() > tolerance).any()):
            raise Unsupported(
                f"forward in {place()}, or a layer before it: {CANNOT_COPY_ROWS}: the control row changed although "
                "nothing was removed"
            )
        at_readout = copies.gather_rows(gradient, copies.rows)[:, :, 0]
        return (change[:, :, 0] * at_readout).sum(-1) - passed_on * copies.is_long.unsqueeze(1)
