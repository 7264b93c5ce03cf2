"""Handwritten digits: their sources and shapes, and a clear error for every kind of damaged folder."""

import numpy as np
import pytest
import torch

from faithcheck.models.data import DataError, handwritten_digits


@pytest.fixture(autouse=True)
def restore_the_source_of_the_run():
    folder = handwritten_digits._folder
    handwritten_digits.use_folder(None)
    yield
    handwritten_digits.use_folder(folder)


def write(folder, name, **arrays):
    (folder / "mnist").mkdir(exist_ok=True)
    np.savez(folder / "mnist" / f"{name}.npz", **arrays)


def mnist(folder, **replaced):
    rng = np.random.default_rng(0)
    good = {
        "images": rng.integers(0, 256, (4, 28, 28), dtype=np.uint8),
        "labels": np.array([0, 9, 3, 3], dtype=np.uint8),
    }
    write(folder, "train", **good)
    write(folder, "dev", **{k: v for k, v in {**good, **replaced}.items() if v is not None})
    return folder, good


def test_bundled_digits_have_their_shapes_and_ranges():
    digits = handwritten_digits.load_digits()
    assert digits.train_images.shape == (1437, 64)
    assert digits.dev_images.shape == (360, 64)
    assert digits.pixels == 64
    assert "scikit-learn" in handwritten_digits.source()
    for images, labels in ((digits.train_images, digits.train_labels), (digits.dev_images, digits.dev_labels)):
        assert images.dtype == torch.float64
        assert labels.dtype == torch.int64
        assert (images.min(), images.max()) == (0, 1)
        assert labels.unique().tolist() == list(range(10))


def test_no_bundled_digit_is_in_both_splits():
    from sklearn.datasets import load_digits

    digits, bunch = handwritten_digits.load_digits(), load_digits()
    images = torch.cat([digits.train_images, digits.dev_images])
    labels = torch.cat([digits.train_labels, digits.dev_labels])
    both = torch.cat([images, labels[:, None]], 1)
    everything = torch.cat([torch.from_numpy(bunch.data / 16), torch.from_numpy(bunch.target)[:, None]], 1)
    assert torch.equal(*(rows[np.lexsort(rows.T.numpy())] for rows in (both, everything)))


def test_mnist_is_the_mean_over_blocks_of_four_pixels(tmp_path):
    folder, good = mnist(tmp_path)
    handwritten_digits.use_folder(folder)
    digits = handwritten_digits.load_digits()
    assert digits.train_images.shape == (4, 196)
    image = good["images"][2].astype(float)
    row, column = 5, 11
    block = (
        image[2 * row, 2 * column]
        + image[2 * row, 2 * column + 1]
        + image[2 * row + 1, 2 * column]
        + image[2 * row + 1, 2 * column + 1]
    )
    assert digits.dev_images[2, row * 14 + column].item() == pytest.approx(block / 4 / 255, rel=1e-15)
    assert digits.dev_labels.tolist() == [0, 9, 3, 3]
    assert str(folder) in handwritten_digits.source()


def test_other_data_has_another_fingerprint(tmp_path):
    bundled = handwritten_digits.load_digits().fingerprint
    handwritten_digits.use_folder(mnist(tmp_path)[0])
    first = handwritten_digits.load_digits().fingerprint
    (tmp_path / "other").mkdir()
    handwritten_digits.use_folder(mnist(tmp_path / "other", labels=np.array([0, 9, 3, 4]))[0])
    assert len({bundled, first, handwritten_digits.load_digits().fingerprint}) == 3


IMAGES = np.zeros((4, 28, 28), dtype=np.uint8)
WRONG = {
    "no images": ({"images": None}, "lacks ['images']"),
    "no labels": ({"labels": None}, "lacks ['labels']"),
    "float images": ({"images": IMAGES.astype(float)}, "must be uint8"),
    "small images": ({"images": IMAGES[:, :8, :8]}, "must be uint8 (n, 28, 28), got uint8 (4, 8, 8)"),
    "float labels": ({"labels": np.zeros(4)}, "must be integers"),
    "labels of two axes": ({"labels": np.zeros((4, 1), dtype=int)}, "must be integers (n,)"),
    "fewer labels": ({"labels": np.zeros(3, dtype=int)}, "4 images but 3 labels"),
    "label 10": ({"labels": np.array([0, 1, 2, 10])}, "must lie in 0–9, got 0 to 10"),
    "label -1": ({"labels": np.array([0, 1, 2, -1])}, "must lie in 0–9, got -1 to 2"),
    "nothing": ({"images": IMAGES[:0], "labels": np.zeros(0, dtype=int)}, "is empty"),
    "pickled": ({"images": np.array([None, {}], dtype=object)}, "damaged or not an .npz"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_file_is_refused_at_once_and_named(tmp_path, wrong):
    replaced, message = WRONG[wrong]
    folder, _ = mnist(tmp_path, **replaced)
    with pytest.raises(DataError) as error:
        handwritten_digits.use_folder(folder)
    assert message in str(error.value)
    assert "dev.npz" in str(error.value)
    assert "scikit-learn" in handwritten_digits.source(), "a refused folder must not become the source"


def test_a_missing_folder_or_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"no data folder .*absent"):
        handwritten_digits.use_folder(tmp_path / "absent")
    with pytest.raises(DataError, match=r"no file .*train\.npz"):
        handwritten_digits.use_folder(tmp_path)


def _truncated(good):
    return good[: len(good) // 2]


def _flipped(good):
    middle = len(good) // 3
    return good[:middle] + bytes(255 - byte for byte in good[middle : middle + 8]) + good[middle + 8 :]


@pytest.mark.parametrize(
    "damage", [_truncated, _flipped, lambda good: b"", lambda good: b"not an archive", lambda good: b"PK\x03\x04"]
)
def test_a_damaged_file_is_named(tmp_path, damage):
    folder, _ = mnist(tmp_path)
    file = folder / "mnist" / "dev.npz"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(DataError, match=r"dev\.npz is damaged or not an \.npz"):
        handwritten_digits.use_folder(folder)


def test_a_bare_array_is_refused(tmp_path):
    folder, _ = mnist(tmp_path)
    with (folder / "mnist" / "dev.npz").open("wb") as file:
        np.save(file, IMAGES)
    with pytest.raises(DataError, match=r"dev\.npz is damaged or not an \.npz"):
        handwritten_digits.use_folder(folder)
