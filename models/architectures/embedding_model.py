"""Models called on embeddings: a `transformers` model that takes token embeddings or patches in place of ids or pixels.

It maps ``(batch, features, width)`` to ``(batch, outputs)``, and explainers can change its features continuously.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from faithcheck.models.pretrained.image_classifier import ImageClassifier

CASTS = (Tensor.float, Tensor.to, Tensor.type)


class KeepFloat64(TorchFunctionMode):
    """Keep float64 tensors in float64: Llama's RMSNorm and softmax and ViT's softmax would compute in float32.

    In float32, two sums that differ by 1e-16 can round to numbers 1e-7 apart, more than the tolerance of a pair.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        casts = func in CASTS or "dtype" in kwargs  # few of the hundreds of calls of a forward pass do: asked first
        if casts and args and isinstance(args[0], Tensor) and args[0].dtype == torch.float64:
            if func is Tensor.float or (func in CASTS and any(arg is torch.float32 for arg in args[1:])):
                return args[0]
            if kwargs.get("dtype") == torch.float32:
                kwargs = {**kwargs, "dtype": torch.float64}
        return func(*args, **kwargs)


def keeping_float64(inputs: Tensor) -> AbstractContextManager[object]:
    """`KeepFloat64` for float64 inputs. In a float32 copy, accelerate casts the float64 weights that it keeps."""
    return KeepFloat64() if inputs.dtype == torch.float64 else nullcontext()


class EmbeddingModel(nn.Module):
    """A `transformers` text model called on token embeddings; of a decoder, the logits after the last token."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Embeddings ``(batch, tokens, width)`` to logits ``(batch, outputs)``."""
        with keeping_float64(inputs):
            logits: Tensor = self.model(inputs_embeds=inputs, attention_mask=attention_mask).logits
        return logits if logits.dim() == 2 else logits[:, -1]


class PatchModel(ImageClassifier):
    """A `transformers` image classifier called on patches."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Patches ``(batch, patches, values)`` to logits ``(batch, classes)``."""
        with keeping_float64(inputs):
            return super().forward(inputs)
