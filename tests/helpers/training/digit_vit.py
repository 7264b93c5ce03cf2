"""A small Vision Transformer trained on handwritten digits.

``python -m faithcheck.tests.helpers.training.digit_vit FOLDER`` trains and saves it.

`faithcheck.models.pretrained.loading.load` loads the folder, as it loads any image classifier of `transformers`.
"""

import argparse
import json
import math
import sys
from pathlib import Path

from torch import Tensor, nn
from transformers import ViTConfig, ViTForImageClassification
from transformers.utils import logging

from faithcheck.models.data.handwritten_digits import Digits, load_digits
from faithcheck.models.networks.digit_classifier import Recipe, Trained, trained

RECIPE = Recipe(epochs=20, learning_rate=2e-3, batch_size=32)  # dev accuracy 0.953 in ten seconds
SEED = 0


class DigitViT(nn.Module):
    """``ViTForImageClassification``, unmodified, on square images of one channel, flattened.

    Three layers, 48 wide, 4 heads; patches of 2 × 2 pixels.

    Args:
        side: height and width of an image.
        mean: of all training pixels, which become normalised.
        std: of all training pixels.
    """

    def __init__(self, *, side: int, mean: float, std: float) -> None:
        super().__init__()
        self.side, self.mean, self.std = side, mean, std
        config = ViTConfig(
            image_size=side,
            patch_size=2,
            num_channels=1,
            hidden_size=48,
            num_hidden_layers=3,
            num_attention_heads=4,
            intermediate_size=96,
            num_labels=10,  # type: ignore[call-arg]
        )
        self.model = ViTForImageClassification(config)

    def forward(self, pixels: Tensor) -> Tensor:
        """Pixels ``(batch, side²)`` in [0, 1] to ``(batch, 10)`` logits."""
        images = (pixels - self.mean) / self.std
        return self.model(images.view(-1, 1, self.side, self.side)).logits


def options(digits: Digits) -> dict[str, float]:
    """The arguments of `DigitViT` for these digits."""
    pixels = digits.train_images
    return {"side": math.isqrt(digits.pixels), "mean": float(pixels.mean()), "std": float(pixels.std())}


def save(folder: Path) -> Trained:
    """Save the model and its preprocessor of images; it is trained at first use (ten seconds) and cached."""
    digits = load_digits()
    settings = options(digits)
    result = trained(DigitViT, settings, digits, SEED, RECIPE)
    network = DigitViT(**settings)  # type: ignore[arg-type]
    network.load_state_dict(result.weights)
    network.model.save_pretrained(folder)
    preparation = {
        "do_resize": True,
        "size": {"height": settings["side"], "width": settings["side"]},
        "resample": 2,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [settings["mean"]],
        "image_std": [settings["std"]],
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(preparation, indent=2) + "\n", encoding="utf-8")
    return result


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m faithcheck.tests.helpers.training.digit_vit", description=__doc__)
    parser.add_argument("folder", type=Path, help="where to save the model; created if missing")
    folder = parser.parse_args(arguments).folder
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    result = save(folder)
    print(
        f"{folder}: dev accuracy {result.accuracy:.3f}; faithcheck align --model {folder} --data digits --removal zero"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
