"""How an image classifier wants its images: resizing, cropping and normalisation, as its folder says."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.nn.functional import interpolate

from faithcheck.models.case import describe_tensor
from faithcheck.models.pretrained.folder import ModelError

RESAMPLING = {0: "nearest", 2: "bilinear", 3: "bicubic"}  # Pillow's numbers of the methods that torch has too
Size = tuple[int, int]  # height and width


@dataclass(frozen=True)
class Preparation:
    """How a model wants its images: resized, cropped to the middle, normalised."""

    resize: Size | int | None  # one number is for the shorter edge; None leaves the image as it is
    crop: Size | None
    resampling: str  # "nearest", "bilinear" or "bicubic"
    mean: tuple[float, ...]  # of each channel, in [0, 1]
    std: tuple[float, ...]

    def __call__(self, image: Tensor) -> Tensor:
        """``(channels, h, w)`` in [0, 1] to normalised ``(channels, height, width)``; one grey channel is repeated.

        `ModelError` if the image does not have this shape, or has other channels than the model.
        """
        channels = len(self.mean)
        if image.dim() != 3 or not image.is_floating_point() or len(image) not in (1, channels):
            wanted = " or ".join(str(n) for n in sorted({1, channels}))
            raise ModelError(f"an image must be floating point ({wanted} channels, h, w), got {describe_tensor(image)}")
        mean, std = self.mean_and_std(image)
        normalised: Tensor = (self.cropped(self.resized(image)).expand(channels, -1, -1) - mean) / std
        return normalised

    def mean_and_std(self, like: Tensor) -> Tensor:
        """Mean and standard deviation of the channels, ``(2, channels, 1, 1)``."""
        return like.new_tensor([self.mean, self.std]).view(2, -1, 1, 1)

    def resized(self, image: Tensor) -> Tensor:
        """Resized as Pillow does, columns first and clipped in between, without its rounding to 256 levels."""
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
        """The middle of the image, of the size ``crop``; `ModelError` if the image is smaller."""
        if self.crop is None:
            return image
        top, left = ((size - wanted) // 2 for size, wanted in zip(image.shape[1:], self.crop, strict=True))
        if min(top, left) < 0:
            raise ModelError(
                f"an image of {tuple(image.shape[1:])} cannot be cropped to {self.crop}: give larger images"
            )
        return image[:, top : top + self.crop[0], left : left + self.crop[1]]


def height_and_width(size: Any, name: str) -> Size:
    """Height and width, from one number for both or from two; else `ModelError` with the setting's ``name``."""
    match size:
        case int():
            return size, size
        case [int(height), int(width)] | {"height": int(height), "width": int(width)}:
            return height, width
    raise ModelError(f"{name} must be one number, or height and width, got {size!r}")


def read_preparation(file: Path, channels: int) -> Preparation:
    """Read a ``preprocessor_config.json``; `transformers`' own image processors require torchvision or Pillow.

    `ModelError` names a setting that is missing or not supported here. A missing or damaged file raises `OSError` or
    `ValueError`.
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
                resize = height_and_width(size, f"{file}: size")
    crop = height_and_width(settings.get("crop_size"), f"{file}: crop_size") if settings.get("do_center_crop") else None
    mean, std = per_channel("image_mean", 0.0), per_channel("image_std", 1.0)
    return Preparation(resize, crop, RESAMPLING[resampling], mean, std)
