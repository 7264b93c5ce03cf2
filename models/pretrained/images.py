"""Unmodified `transformers` image classifiers, read at their pixels: a feature is a patch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate
from transformers import PreTrainedModel

from faithcheck.models.case import Case, describe_tensor
from faithcheck.models.pretrained.text import Example, ModelError

RESAMPLING = {0: "nearest", 2: "bilinear", 3: "bicubic"}  # Pillow's numbers for what torch can do too
Size = tuple[int, int]  # height and width


@dataclass(frozen=True)
class Preparation:
    """How a model wants its images: resized, cropped to the middle, normalised.

    Attributes:
        resize: the size to resize to; one number is for the shorter edge; None leaves the image as it is.
        crop: the size to crop to afterwards, or None.
        resampling: how pixels are interpolated: "nearest", "bilinear" or "bicubic".
        mean: of each channel, in [0, 1].
        std: of each channel.
    """

    resize: Size | int | None
    crop: Size | None
    resampling: str
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, image: Tensor) -> Tensor:
        """``(channels, h, w)`` in [0, 1] to normalised ``(channels, height, width)``; grey is repeated where need be.

        Raises:
            ModelError: the image does not have this shape, or has other channels than the model.
        """
        channels = len(self.mean)
        if image.dim() != 3 or not image.is_floating_point() or len(image) not in (1, channels):
            wanted = " or ".join(str(n) for n in sorted({1, channels}))
            raise ModelError(f"an image must be floating point ({wanted} channels, h, w), got {describe_tensor(image)}")
        scale = self.mean_and_std(image)
        return (self.cropped(self.resized(image)).expand(channels, -1, -1) - scale[0]) / scale[1]

    def mean_and_std(self, like: Tensor) -> Tensor:
        """Mean and standard deviation of the channels, ``(2, channels, 1, 1)``."""
        return like.new_tensor([self.mean, self.std]).view(2, -1, 1, 1)

    def resized(self, image: Tensor) -> Tensor:
        """As Pillow resizes, columns first and clipped in between, but for its rounding to 256 levels."""
        height, width = image.shape[1:]
        size = self.resize
        if isinstance(size, int):
            short = min(height, width)
            size = (int(size * height / short), int(size * width / short))
        if size is None or size == (height, width):
            return image
        smooth = self.resampling != "nearest"
        # "nearest-exact" is Pillow's nearest; torch's own is off by half a pixel.
        mode = self.resampling if smooth else "nearest-exact"
        for step in ((height, size[1]), size):
            image = interpolate(image.unsqueeze(0), step, mode=mode, antialias=smooth)[0].clamp(0, 1)
        return image

    def cropped(self, image: Tensor) -> Tensor:
        """The middle of the image."""
        if self.crop is None:
            return image
        top, left = ((there - wanted) // 2 for there, wanted in zip(image.shape[1:], self.crop, strict=True))
        if min(top, left) < 0:
            raise ModelError(
                f"an image of {tuple(image.shape[1:])} cannot be cropped to {self.crop}: give larger images"
            )
        return image[:, top : top + self.crop[0], left : left + self.crop[1]]


class ImageClassifier(nn.Module):
    """An image classifier: patches ``(batch, patches, values)`` to logits ``(batch, classes)``.

    A patch's values are its pixels as the model takes them, normalised, ``(channels, height, width)`` flattened;
    patches are counted row by row.

    Args:
        model: an unmodified `transformers` model with eager attention, in eval mode.
        preparation: how it wants its images.

    Raises:
        ModelError: its configuration has no patch_size, or an image_size that is not a whole number of patches.
    """

    def __init__(self, model: PreTrainedModel, preparation: Preparation) -> None:
        super().__init__()
        self.model, self.preparation = model, preparation
        self.channels = len(preparation.mean)
        self.size, self.patch = (
            pair(getattr(model.config, name, None), f"{type(model).__name__}: {name}")
            for name in ("image_size", "patch_size")
        )
        self.grid = (self.size[0] // self.patch[0], self.size[1] // self.patch[1])
        if (self.grid[0] * self.patch[0], self.grid[1] * self.patch[1]) != self.size:
            raise ModelError(
                f"{type(model).__name__}: an image of {self.size} is no whole number of patches {self.patch}"
            )

    def forward(self, inputs: Tensor) -> Tensor:
        """The logits."""
        logits: Tensor = self.model(self.assembled(inputs)).logits
        return logits

    def assembled(self, patches: Tensor) -> Tensor:
        """Patches ``(batch, patches, values)`` to the model's ``pixel_values`` ``(batch, channels, height, width)``.

        Raises:
            ModelError: another number of patches, as deletion leaves.
        """
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

    def encode(self, images: Sequence[Tensor]) -> list[Example]:
        """Prepare images ``(channels, h, w)`` in [0, 1]; the patch in row 0 and column 3 is called r0c3.

        Raises:
            ModelError: an image cannot be prepared, or does not have the model's size then.
        """
        names = tuple(f"r{row}c{column}" for row in range(self.grid[0]) for column in range(self.grid[1]))
        return [Example(self._patches_of(image), torch.zeros(len(names), dtype=torch.bool), names) for image in images]

    def _patches_of(self, image: Tensor) -> Tensor:
        prepared = self.preparation(image)
        if prepared.shape[1:] != self.size:
            raise ModelError(f"an image is {tuple(prepared.shape[1:])} when prepared, but the model takes {self.size}")
        return self.patches(prepared)[0].to(self.model.dtype)

    @torch.no_grad()
    def case(self, examples: Sequence[Example]) -> Case:
        """The case of these examples, the predicted class explained, baseline 0: the mean grey.

        Raises:
            ValueError: no examples.
        """
        if not examples:
            raise ValueError("a case needs at least one example")
        device = self.model.device
        inputs = torch.stack([example.features for example in examples]).to(device)
        special = torch.stack([example.special_tokens_mask for example in examples]).to(device)
        target = self(inputs).argmax(1)
        return Case(inputs, target, torch.zeros_like(inputs), special, replacements=self.replacements())

    def replacements(self) -> dict[str, Tensor]:
        """Patches that can stand for a removed one: zero, which is the mean grey, and black, each ``(values,)``."""
        mean, std = self.preparation.mean_and_std(torch.empty(0, dtype=self.model.dtype, device=self.model.device))
        black = (-mean / std).expand(-1, *self.patch).flatten()
        return {"zero": torch.zeros_like(black), "black": black}


def pair(size: Any, name: str) -> Size:
    """Height and width from one number for both, or from both.

    Raises:
        ModelError: neither.
    """
    match size:
        case int():
            return size, size
        case [int(height), int(width)] | {"height": int(height), "width": int(width)}:
            return height, width
    raise ModelError(f"{name} must be one number, or height and width, got {size!r}")


def read_preparation(file: Path, channels: int) -> Preparation:
    """Read a ``preprocessor_config.json`` as `transformers` writes it.

    `transformers` could read it itself, but its image processors want torchvision or Pillow.

    Args:
        file: the file.
        channels: of the model.

    Raises:
        ModelError: it asks for what is not done here, or is not complete; the setting is named.
        OSError, ValueError: the file is not there or damaged.
    """
    settings = json.loads(file.read_text(encoding="utf-8"))

    def refuse(name: str, expected: str) -> ModelError:
        return ModelError(f"{file}: {name} must be {expected}, got {settings.get(name)!r}")

    def per_channel(name: str, default: float) -> tuple[float, ...]:
        values = settings.get(name) if settings.get("do_normalize", True) else [default] * channels
        if not isinstance(values, list) or len(values) != channels:
            raise refuse(name, f"a list of {channels} numbers, one a channel")
        return tuple(map(float, values))

    if not settings.get("do_rescale", True) or abs(settings.get("rescale_factor", 1 / 255) * 255 - 1) > 1e-6:
        raise refuse("rescale_factor", "1/255, with do_rescale")
    if settings.get("crop_pct") is not None:
        raise refuse("crop_pct", "absent")
    resampling = settings.get("resample", 2)
    if resampling not in RESAMPLING:
        raise refuse("resample", f"one of {RESAMPLING}")
    resize: Size | int | None = None
    if settings.get("do_resize", True):
        match settings.get("size"):
            case {"shortest_edge": int(edge)}:
                resize = edge
            case size:
                resize = pair(size, f"{file}: size")
    crop = pair(settings.get("crop_size"), f"{file}: crop_size") if settings.get("do_center_crop") else None
    mean, std = per_channel("image_mean", 0.0), per_channel("image_std", 1.0)
    return Preparation(resize, crop, RESAMPLING[resampling], mean, std)
