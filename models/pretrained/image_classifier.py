"""Image classifiers read at their pixels: a feature is a patch."""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from faithcheck.models.case import Case
from faithcheck.models.offloaded_weights import device_of
from faithcheck.models.pretrained.example import Example, Examples
from faithcheck.models.pretrained.folder import ModelError
from faithcheck.models.pretrained.image_preparation import Preparation, height_and_width
from faithcheck.models.targets import ExplainedOutput


class ImageClassifier(ExplainedOutput):
    """An image classifier: patches ``(batch, patches, values)`` to logits ``(batch, classes)``.

    A patch's values are its pixels as the model takes them, normalised, ``(channels, height, width)`` flattened;
    patches are counted row by row. `ModelError` if image_size is no multiple of a patch_size.
    """

    def __init__(self, model: PreTrainedModel, preparation: Preparation) -> None:
        super().__init__()
        self.model, self.preparation = model, preparation
        self.channels = len(preparation.mean)
        self.size, self.patch = (
            height_and_width(getattr(model.config, name, None), f"{type(model).__name__}: {name}")
            for name in ("image_size", "patch_size")
        )
        self.grid = (self.size[0] // self.patch[0], self.size[1] // self.patch[1])
        if (self.grid[0] * self.patch[0], self.grid[1] * self.patch[1]) != self.size:
            raise ModelError(
                f"{type(model).__name__}: the image_size {self.size} is not a multiple of the patch_size {self.patch}"
            )

    def forward(self, inputs: Tensor) -> Tensor:
        """The logits."""
        logits: Tensor = self.model(self.assembled(inputs)).logits
        return self.explained(logits)

    def assembled(self, patches: Tensor) -> Tensor:
        """The model's ``pixel_values`` ``(batch, channels, height, width)``; `ModelError` if patches were deleted."""
        rows, columns = self.grid
        if patches.shape[1] != rows * columns:
            raise ModelError(
                f"{type(self.model).__name__} takes {rows} × {columns} patches, got {patches.shape[1]}: they cannot be "
                "deleted; remove them by a replacement such as 'zero'"
            )
        grid = patches.reshape(-1, rows, columns, self.channels, *self.patch)
        return grid.permute(0, 3, 1, 4, 2, 5).reshape(-1, self.channels, *self.size)

    def patches(self, pixel_values: Tensor) -> Tensor:
        """The inverse of `assembled`."""
        (rows, columns), (height, width) = self.grid, self.patch
        grid = pixel_values.reshape(-1, self.channels, rows, height, columns, width)
        return grid.permute(0, 2, 4, 1, 3, 5).reshape(-1, rows * columns, self.channels * height * width)

    def encode(self, images: Sequence[Tensor]) -> Examples:
        """Prepare images ``(channels, h, w)`` in [0, 1]; the patch in row 0 and column 3 has the name r0c3.

        `ModelError` if an image cannot be prepared, or does not have the model's size afterwards.
        """
        names = tuple(f"r{row}c{column}" for row in range(self.grid[0]) for column in range(self.grid[1]))
        special = torch.zeros(len(names), dtype=torch.bool)
        return Examples(images, lambda image: Example(self._patches_of(image), special, names))

    def _patches_of(self, image: Tensor) -> Tensor:
        prepared = self.preparation(image)
        if prepared.shape[1:] != self.size:
            raise ModelError(
                f"an image has the size {tuple(prepared.shape[1:])} when prepared, but the model takes {self.size}"
            )
        return self.patches(prepared)[0].to(self.model.dtype)

    @torch.no_grad()
    def case(self, examples: Sequence[Example]) -> Case:
        """The case of these examples, baseline 0: the mean grey. Explained is the predicted class, or `target`."""
        if not examples:
            raise ValueError("a case needs at least one example")
        device = device_of(self.model)
        inputs = torch.stack([example.features for example in examples]).to(device)
        special = torch.stack([example.special_tokens_mask for example in examples]).to(device)
        target = self.targets(self(inputs))
        return Case(inputs, target, torch.zeros_like(inputs), special, replacements=self.replacements())

    def replacements(self) -> dict[str, Tensor]:
        """Baselines of one patch by name: zero, which is the mean grey, and black, each ``(values,)``."""
        mean, std = self.preparation.mean_and_std(torch.empty(0, dtype=self.model.dtype, device=device_of(self.model)))
        black = (-mean / std).expand(-1, *self.patch).flatten()
        return {"zero": torch.zeros_like(black), "black": black}
