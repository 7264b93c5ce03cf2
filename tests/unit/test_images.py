"""Images: loading from every source, preparation as Pillow does it, and the accuracy of the digits' ViT."""

import sys

import numpy as np
import pytest
import torch

from faithcheck.models.data import DataError, handwritten_digits
from faithcheck.models.data.handwritten_digits import load_digits
from faithcheck.models.data.images import load_images
from faithcheck.models.pretrained.folder import ModelError
from faithcheck.models.pretrained.image_preparation import Preparation, read_preparation
from faithcheck.models.pretrained.loading import load
from faithcheck.tests.helpers.training import digit_vit

RANDOM = np.random.default_rng(0)
GREY = RANDOM.integers(0, 256, (5, 6, 7), dtype=np.uint8)
COLOUR = RANDOM.integers(0, 256, (5, 6, 7, 3), dtype=np.uint8)
LABELS = np.array([1, 0, 2, 1, 0])


@pytest.fixture(autouse=True)
def bundled_digits(monkeypatch):
    """scikit-learn's digits, also in a run on MNIST (--data-dir)."""
    monkeypatch.setattr(handwritten_digits, "_folder", None)


def test_digits_are_the_held_out_ones():
    loaded, digits = load_images(), load_digits()
    assert loaded.name == "digits"
    assert torch.equal(torch.stack(loaded.images).flatten(1), digits.dev_images.float())
    assert loaded.images[0].shape == (1, 8, 8)
    assert loaded.labels == digits.dev_labels.tolist()


@pytest.mark.parametrize(("images", "channels"), [(GREY, 1), (COLOUR, 3)])
def test_npz_gives_the_pixels_in_0_to_1(tmp_path, images, channels):
    np.savez(tmp_path / "some.npz", images=images, labels=LABELS)
    loaded = load_images(str(tmp_path / "some.npz"))
    assert loaded.name == str(tmp_path / "some.npz")
    assert loaded.labels == LABELS.tolist()
    for image, original in zip(loaded.images, images.reshape(5, 6, 7, channels), strict=True):
        assert torch.equal(image, torch.from_numpy(original).permute(2, 0, 1).float() / 255)


def test_a_folder_of_image_files(tmp_path):
    pytest.importorskip("datasets", reason="the optional datasets library reads folders of images")
    image = pytest.importorskip("PIL.Image", reason="Pillow decodes images")
    for i, label in enumerate(LABELS):
        folder = tmp_path / f"class {label}"
        folder.mkdir(exist_ok=True)
        image.fromarray(COLOUR[i] if i else GREY[i]).save(folder / f"{i}.png")
    loaded = load_images(str(tmp_path))
    assert loaded.labels == sorted(LABELS.tolist())
    by_file = [i for label in range(3) for i in np.flatnonzero(label == LABELS)]
    for i, loaded_image in zip(by_file, loaded.images, strict=True):
        expected = COLOUR[i] if i else np.repeat(GREY[0][..., None], 3, 2)
        assert torch.equal(loaded_image, torch.from_numpy(expected).permute(2, 0, 1).float() / 255)
    assert len(load_images(str(tmp_path), 2).images) == 2


def test_memory_holds_one_image_of_a_folder(tmp_path):
    """Each is read from its file when it is asked for, and one that is gone by then is named."""
    pytest.importorskip("datasets", reason="the optional datasets library reads folders of images")
    image = pytest.importorskip("PIL.Image", reason="Pillow decodes images")
    for i in range(2):
        image.fromarray(COLOUR[i]).save(tmp_path / f"{i}.png")
    images = load_images(str(tmp_path)).images
    assert images[1] is not images[1]
    assert torch.equal(images[-1], images[1])
    with pytest.raises(IndexError):
        images[2]
    (tmp_path / "1.png").unlink()
    with pytest.raises(DataError, match="image 1 cannot be read"):
        images[1]


def test_memory_holds_the_bytes_of_an_npz_file_and_no_tensors(tmp_path):
    np.savez(tmp_path / "some.npz", images=COLOUR, labels=LABELS)
    images = load_images(str(tmp_path / "some.npz")).images
    assert images[0] is not images[0]
    assert len(images[1:]) == len(COLOUR) - 1


def test_a_folder_without_images_is_refused(tmp_path):
    pytest.importorskip("datasets", reason="the optional datasets library reads folders of images")
    (tmp_path / "notes.txt").write_text("no image")
    with pytest.raises(DataError, match="cannot be read as a folder of images"):
        load_images(str(tmp_path))


def test_a_folder_without_the_datasets_library_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r'pip install "faithcheck\[datasets\]", or give an \.npz file'):
        load_images(str(tmp_path))


def test_a_limit_takes_the_first():
    few, everything = load_images("digits", 3), load_images("digits")
    assert len(few.images) == len(few.labels) == 3
    assert all(torch.equal(*pair) for pair in zip(few.images, everything.images[:3], strict=True))
    assert len(load_images("digits", 10_000).images) == len(everything.images)
    assert few.fingerprint != everything.fingerprint
    assert few.fingerprint == load_images("digits", 3).fingerprint
    with pytest.raises(ValueError, match="limit must be at least 1, got 0"):
        load_images("digits", 0)


WRONG = {
    "no labels": ({"labels": None}, "lacks ['labels']"),
    "floats": ({"images": GREY / 255}, "images must be uint8 (n, h, w) or (n, h, w, 3), got float64 (5, 6, 7)"),
    "four channels": ({"images": COLOUR.repeat(2, 3)[..., :4]}, "got uint8 (5, 6, 7, 4)"),
    "flat": ({"images": GREY.reshape(5, -1)}, "got uint8 (5, 42)"),
    "a number": ({"images": np.uint8(3)}, "images must be (n, …), got a single uint8"),
    "fewer labels": ({"labels": LABELS[:3]}, "5 images but 3 labels"),
    "empty": ({"images": GREY[:0], "labels": LABELS[:0]}, "is empty"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_file_is_refused_and_named(tmp_path, wrong):
    replaced, message = WRONG[wrong]
    arrays = {"images": GREY, "labels": LABELS, **replaced}
    np.savez(tmp_path / "wrong.npz", **{name: array for name, array in arrays.items() if array is not None})
    with pytest.raises(DataError) as error:
        load_images(str(tmp_path / "wrong.npz"))
    assert message in str(error.value)
    assert "wrong.npz" in str(error.value)


@pytest.mark.parametrize("name", ["nowhere", "nowhere.npz", "nowhere/some.npz"])
def test_a_missing_path_is_refused(tmp_path, name):
    with pytest.raises(DataError, match=r"no images at .*nowhere.*: give digits, an \.npz file, or a folder"):
        load_images(str(tmp_path / name))


def test_a_damaged_file_is_refused(tmp_path):
    (tmp_path / "some.npz").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(DataError, match="damaged or not an"):
        load_images(str(tmp_path / "some.npz"))


# --- preparation -----------------------------------------------------------------------------------------------------

NONE = {"resize": None, "crop": None, "resampling": "bilinear", "mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}


@pytest.mark.parametrize("resampling", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(12, 20), (90, 70), (31, 41)])
def test_images_are_resized_as_pillow_does(resampling, size):
    image = pytest.importorskip("PIL.Image", reason="Pillow is the reference")
    original = RANDOM.integers(0, 256, (37, 53, 3), dtype=np.uint8)
    expected = image.fromarray(original).resize(size[::-1], image.Resampling[resampling.upper()])
    resized = Preparation(**{**NONE, "resize": size, "resampling": resampling})(
        torch.from_numpy(original).permute(2, 0, 1).float() / 255
    )
    # Pillow rounds to whole levels after each of its two steps: by ½, and ½ times the second's weights, Σ|w| ≤ 5/4.
    assert (resized.permute(1, 2, 0) * 255 - torch.from_numpy(np.array(expected))).abs().max() <= 1.13


def test_the_shorter_edge_is_resized_and_the_middle_cropped():
    wide = torch.arange(8.0).expand(1, 4, 8) / 8
    prepared = Preparation(**{**NONE, "resize": 4, "crop": (2, 4)})(wide)
    assert torch.equal(prepared, wide[:, 1:3, 2:6].expand(3, -1, -1))
    assert Preparation(**{**NONE, "resize": 2})(wide).shape == (3, 2, 4)
    with pytest.raises(ModelError, match=r"\(4, 8\) cannot be cropped to \(5, 5\)"):
        Preparation(**{**NONE, "crop": (5, 5)})(wide)


def test_each_channel_is_normalised_by_its_own_mean_and_std():
    image = torch.from_numpy(COLOUR[0]).permute(2, 0, 1).float() / 255
    prepared = Preparation(**{**NONE, "mean": (0.1, 0.2, 0.3), "std": (1.0, 2.0, 4.0)})(image)
    for channel, (mean, std) in enumerate(((0.1, 1.0), (0.2, 2.0), (0.3, 4.0))):
        assert torch.allclose(prepared[channel], (image[channel] - mean) / std, atol=1e-7)


@pytest.mark.parametrize("image", [torch.zeros(2, 4, 4), torch.zeros(4, 4), torch.zeros(3, 4, 4, dtype=torch.uint8)])
def test_a_tensor_that_is_not_an_image_is_refused(image):
    with pytest.raises(ModelError, match=r"must be floating point \(1 or 3 channels, h, w\), got"):
        Preparation(**NONE)(image)


def test_the_preprocessor_files_of_transformers_can_be_read(tmp_path):
    file = tmp_path / "preprocessor_config.json"
    file.write_text(
        '{"do_resize": true, "size": {"shortest_edge": 256}, "resample": 3, "do_center_crop": true, "crop_size":'
        ' {"height": 224, "width": 224}, "do_rescale": true, "rescale_factor": 0.00392156862745098,'
        ' "do_normalize": true, "image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}'
    )
    imagenet = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert read_preparation(file, 3) == Preparation(256, (224, 224), "bicubic", *imagenet)
    file.write_text('{"size": 224, "do_normalize": false}')
    assert read_preparation(file, 3) == Preparation((224, 224), None, "bilinear", (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


# --- the digits' own ViT ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_digit_vit_reaches_its_accuracy_and_can_be_loaded(tmp_path, capsys):
    assert digit_vit.main([str(tmp_path / "vit")]) == 0
    assert "dev accuracy 0.9" in capsys.readouterr().out
    image_classifier, digits = load(tmp_path / "vit"), load_images()
    case = image_classifier.case(image_classifier.encode(digits.images))
    assert case.shape == (360, 16)
    accuracy = (case.target == torch.tensor(digits.labels)).double().mean().item()
    assert accuracy >= 0.9


@pytest.mark.slow
def test_the_digit_vit_is_trained_to_the_same_weights_twice(tmp_path):
    first, second = (digit_vit.save(tmp_path / name) for name in ("first", "second"))
    assert first.accuracy == second.accuracy
    files = (tmp_path / name / "model.safetensors" for name in ("first", "second"))
    assert len({file.read_bytes() for file in files}) == 1
