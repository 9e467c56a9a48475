"""From picture files to the model's pixels, and from logits to the size of the picture."""

from __future__ import annotations

import io

import numpy as np
import pytest

from candlewick import image

PIL = pytest.importorskip("PIL.Image", reason="needs Pillow")
RNG = np.random.default_rng(5)
SIZES = [(180, 120), (80, 53), (33, 77), (400, 10), (1, 1), (1, 300), (128, 5), (7, 3), (1200, 2)]


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_resize_equals_pillow_to_the_bit(width, height):
    picture = RNG.integers(0, 256, (height, width, 3), dtype=np.uint8)
    size = image.fitted(width, height, 128)
    assert max(size) == 128 and min(size) >= 1
    theirs = np.asarray(PIL.fromarray(picture).resize(size, PIL.Resampling.BILINEAR))
    assert np.array_equal(image.resize(picture, *size), theirs)


def test_fitted_rounds_as_the_reference():
    assert image.fitted(1800, 1200, 1024) == (1024, 683)
    assert image.fitted(333, 777, 1024) == (439, 1024)
    assert image.fitted(4000, 100, 1024) == (1024, 26)
    assert image.fitted(12000, 1, 1024) == (1024, 1)


def test_model_pixels_are_zero_beyond_the_picture():
    mean = (100.5, 20.0, 3.25)
    pixels = image.model_pixels(np.full((10, 40, 3), 7, np.uint8), 64, mean, (2.0, 4.0, 0.5))
    assert pixels.shape == (1, 64, 64, 3) and pixels.dtype == np.float32
    assert np.allclose(pixels[0, :16], (7 - np.array(mean)) / (2.0, 4.0, 0.5), atol=1e-5)
    assert (pixels[0, 16:] == 0).all()


def test_channels_become_rgb_by_one_rule():
    grey = np.array([[0, 255], [10, 20]], np.uint8)
    assert np.array_equal(image.to_rgb(grey), np.stack([grey] * 3, axis=2))
    assert np.array_equal(image.to_rgb(grey[:, :, None]), np.stack([grey] * 3, axis=2))
    clear = np.stack([grey, np.array([[255, 0], [128, 255]], np.uint8)], axis=2)
    assert image.to_rgb(clear)[:, :, 0].tolist() == [[0, 255], [132, 20]]  # 10 at 128 of 255 on white: 132
    rgba = np.zeros((1, 2, 4), np.uint8)
    rgba[0, 1] = (9, 8, 7, 255)
    assert image.to_rgb(rgba).tolist() == [[[255, 255, 255], [9, 8, 7]]]
    assert image.to_rgb((grey.astype(np.uint16) << 8) | 77).tolist() == image.to_rgb(grey).tolist()


@pytest.mark.parametrize("wrong", [np.zeros((2, 2, 3)), np.zeros((2, 2, 5), np.uint8), np.zeros((0, 2, 3), np.uint8),
                                   np.zeros(4, np.uint8), np.zeros((2, 2), bool)])
def test_what_is_no_picture_is_refused(wrong):
    with pytest.raises(ValueError, match="image: wanted"):
        image.to_rgb(wrong)


def bilinear(x: np.ndarray, height: int, width: int) -> np.ndarray:
    """The plain definition: pixel centres on pixel centres, edges repeated."""
    out = x
    for axis, n_out in ((0, height), (1, width)):
        n = out.shape[axis]
        at = np.clip((np.arange(n_out) + 0.5) * n / n_out - 0.5, 0, n - 1)
        low = np.floor(at).astype(int)
        high = np.minimum(low + 1, n - 1)
        part = (at - low).reshape((-1, 1) if axis == 0 else (1, -1))
        out = np.take(out, low, axis) * (1 - part) + np.take(out, high, axis) * part
    return out


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_upsample_is_two_bilinear_steps_to_exactly_the_picture(width, height):
    side = 128
    logits = RNG.standard_normal((2, 32, 32)).astype(np.float32)
    fit_w, fit_h = image.fitted(width, height, side)
    ours = image.upsample(logits, width, height, side)
    assert ours.shape == (2, height, width) and ours.dtype == np.float32
    for k in range(2):
        theirs = bilinear(bilinear(logits[k].astype(float), side, side)[:fit_h, :fit_w], height, width)
        assert np.abs(ours[k] - theirs).max() < 1e-5


def saved(picture, **how) -> bytes:
    out = io.BytesIO()
    picture.save(out, **how)
    return out.getvalue()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied_once(tmp_path, orientation):
    from candlewick.image_file import read_image

    upright = np.zeros((20, 40, 3), np.uint8)
    upright[:5, :5] = 255  # the white corner is upper left in all eight
    turn = {1: lambda a: a, 2: lambda a: a[:, ::-1], 3: lambda a: a[::-1, ::-1], 4: lambda a: a[::-1],
            5: lambda a: a.transpose(1, 0, 2), 6: lambda a: np.rot90(a, 1), 7: lambda a: np.rot90(a.transpose(1, 0, 2), 2),
            8: lambda a: np.rot90(a, -1)}[orientation]
    stored = PIL.fromarray(np.ascontiguousarray(turn(upright)))
    exif = PIL.Exif()
    exif[0x0112] = orientation
    path = tmp_path / "photo.jpg"
    path.write_bytes(saved(stored, format="JPEG", exif=exif, quality=95))
    got = read_image(path)
    assert got.shape == (20, 40, 3)
    assert got[2, 2].min() > 200 and got[15, 30].max() < 60


def test_kinds_of_png_all_become_rgb(tmp_path):
    from candlewick.image_file import read_image

    grey = RNG.integers(0, 256, (6, 5), dtype=np.uint8)
    colour = RNG.integers(0, 256, (6, 5, 4), dtype=np.uint8)
    kinds = {"grey": PIL.fromarray(grey), "rgba": PIL.fromarray(colour), "rgb": PIL.fromarray(colour[:, :, :3]),
             "la": PIL.fromarray(colour[:, :, :2], "LA"), "palette": PIL.fromarray(colour[:, :, :3]).quantize(16),
             "16": PIL.fromarray(grey.astype(np.uint16) * 257), "bit": PIL.fromarray(grey).convert("1")}
    for name, picture in kinds.items():
        path = tmp_path / f"{name}.png"
        path.write_bytes(saved(picture, format="PNG"))
        got = read_image(path)
        assert got.shape == (6, 5, 3) and got.dtype == np.uint8, name
    assert np.array_equal(read_image(tmp_path / "rgb.png"), colour[:, :, :3])
    assert np.array_equal(read_image(tmp_path / "16.png")[:, :, 0], grey)
    assert np.array_equal(read_image(tmp_path / "rgba.png"), image.to_rgb(colour))


def test_files_that_are_no_pictures_are_refused_in_words(tmp_path):
    from candlewick.image_file import read_image

    whole = saved(PIL.fromarray(RNG.integers(0, 256, (64, 64, 3), dtype=np.uint8)), format="JPEG")
    for name, data, words in [("a.jpg", whole[: len(whole) // 2], "cut short"), ("b.png", b"not a picture", "not a picture"),
                              ("c.svg", b"<svg xmlns='http://www.w3.org/2000/svg'/>", "SVG"), ("d.png", b"", "not a picture")]:
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(ValueError, match=words):
            read_image(path)


def test_an_animated_gif_gives_its_first_frame(tmp_path):
    from candlewick.image_file import read_image

    frames = [PIL.fromarray(np.full((4, 4, 3), v, np.uint8)) for v in (0, 255)]
    path = tmp_path / "moving.gif"
    frames[0].save(path, save_all=True, append_images=frames[1:])
    assert read_image(path).max() == 0
