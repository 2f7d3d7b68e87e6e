"""Our decoding, crop boxes and views against Pillow 12 and torchvision's PIL transforms.

Random draws are replayed: a Philox of Python's own feeds torchvision's RandomResizedCrop.
"""

import io
import math
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

import numpy as np
import PIL
import torch

torch.library.register_fake = lambda *args, **kwargs: (
    lambda function: function
)  # no image operators here
from PIL import Image, ImageOps  # noqa: E402
from torchvision import transforms  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from pictures import picture  # noqa: E402

PROBE = os.environ["ORCHARD_DECODE_PROBE"]
MODES = {
    "bilinear": transforms.InterpolationMode.BILINEAR,
    "bicubic": transforms.InterpolationMode.BICUBIC,
}
ORIENTATION = 0x0112  # the EXIF tag
VIEW_DRAWS = 1
MASK = 0xFFFFFFFF


class Philox:
    """Philox4x32-10 from the paper, with the draws of base/philox.hpp."""

    def __init__(self, seed, sample, epoch, op):
        self.key = (seed & MASK, seed >> 32)
        self.counter = [0, sample & MASK, epoch, op ^ ((sample >> 32) << 16 & MASK)]
        self.left = []

    def u32(self):
        if not self.left:
            (a, b, c, d), (k, m) = self.counter, self.key
            for _ in range(10):
                p, q = 0xD2511F53 * a, 0xCD9E8D57 * c
                a, b, c, d = (q >> 32) ^ b ^ k, q & MASK, (p >> 32) ^ d ^ m, p & MASK
                k, m = (k + 0x9E3779B9) & MASK, (m + 0xBB67AE85) & MASK
            self.counter[0] += 1
            self.left = [a, b, c, d]
        return self.left.pop(0)

    def u64(self):
        high = self.u32()
        return high << 32 | self.u32()

    def double(self):
        return (self.u64() >> 11) * 2.0**-53

    def below(self, bound):
        while True:
            product = self.u64() * bound
            if product & (2**64 - 1) >= 2**64 % bound:
                return product >> 64


class Uniform:
    """Stands in for torch.empty(1) inside get_params: uniform_ takes the next draw, in double."""

    def __init__(self, draws):
        self.draws = draws

    def uniform_(self, low, high):
        low, high = float(low), float(high)
        return torch.full((), low + (high - low) * self.draws.double(), dtype=torch.float64)


def torchvision_box(width, height, scale, ratio, draws):
    """RandomResizedCrop.get_params itself, fed with our draws, in double: (x, y, width, height)."""
    wide_tensor = torch.tensor
    with (
        unittest.mock.patch("torch.empty", lambda *_: Uniform(draws)),
        unittest.mock.patch("torch.tensor", lambda value: wide_tensor(value, dtype=torch.float64)),
        unittest.mock.patch(
            "torch.randint", lambda low, high, size: wide_tensor([draws.below(high)])
        ),
    ):
        y, x, h, w = transforms.RandomResizedCrop.get_params(
            Image.new("L", (width, height)), scale, ratio
        )
    return x, y, w, h


def image_of(rng, width, height):
    return Image.fromarray(picture(rng, width, height, most_pitch=1))


class DataRoom(unittest.TestCase):
    def setUp(self):
        self.assertTrue(PIL.__version__.startswith("12."), "Pillow 13 resamples in another order")
        temporary = tempfile.TemporaryDirectory(prefix="orchard-parity-")
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def probe(self, *args, text=""):
        done = subprocess.run(
            [PROBE, *map(str, args)], check=True, input=text.encode(), stdout=subprocess.PIPE
        )
        return done.stdout

    def decoded(self, exif, paths):
        out = io.BytesIO(self.probe("decode", exif, *paths))
        images = []
        for _ in paths:
            head = out.readline()
            if head == b"bad\n":
                images.append(None)
                continue
            width, height = map(int, head.split())
            images.append(
                np.frombuffer(out.read(width * height * 3), np.uint8).reshape(height, width, 3)
            )
        self.assertEqual(out.read(), b"")
        return images

    def assert_pixels(self, got, expected, most, what):
        self.assertEqual(got.shape, expected.shape, what)
        self.assertLessEqual(int(np.abs(got.astype(int) - expected).max()), most, what)

    def pictures(self, seed, count, **save):
        rng = random.Random(seed)
        paths = []
        for i in range(count):
            path = self.folder / f"{seed}-{i}.jpg"
            image_of(rng, rng.randint(30, 400), rng.randint(30, 400)).save(path, quality=90, **save)
            paths.append(path)
        return paths

    def test_formats(self):
        rng = random.Random(3)
        kinds = [
            ("png", {}, "RGB"), ("png", {}, "L"), ("png", {}, "RGBA"), ("png", {}, "LA"), ("png", {}, "P"),
            ("png", {}, "1"), ("bmp", {}, "RGB"), ("ppm", {}, "RGB"), ("pgm", {}, "L"), ("tif", {}, "RGB"),
            ("webp", {"lossless": True}, "RGB"),
            ("jpg", {"subsampling": 0}, "RGB"), ("jpg", {"subsampling": 1}, "RGB"),
            ("jpg", {"subsampling": 2}, "RGB"), ("jpg", {"progressive": True}, "RGB"), ("jpg", {}, "L"),
            ("jpg", {}, "CMYK"), ("jpg", {"restart_marker_blocks": 3}, "RGB"),
        ]  # fmt: skip
        paths = []
        for i, (ending, save, mode) in enumerate(kinds):
            image = image_of(rng, 75 + i, 64 - i)
            if mode in ("RGBA", "LA"):
                image.putalpha(image.convert("L"))
            paths.append(self.folder / f"{i}.{ending}")
            image.convert(mode).save(paths[-1], **save)
        for kind, path, got in zip(kinds, paths, self.decoded("ignore", paths), strict=True):
            self.assertIsNotNone(got, kind)
            expected = np.asarray(Image.open(path).convert("RGB"))
            # Two builds of one JPEG decoder give the same bytes; CMYK is converted by other formulas.
            self.assert_pixels(got, expected, 1 if kind[2] == "CMYK" else 0, kind)

    def test_orientation(self):
        rng = random.Random(4)
        paths = []
        for orientation in range(1, 9):
            exif = Image.Exif()
            exif[ORIENTATION] = orientation
            paths.append(self.folder / f"{orientation}.jpg")
            image_of(rng, 48, 32).save(paths[-1], exif=exif, quality=95)
        for path, kept, turned in zip(
            paths, self.decoded("ignore", paths), self.decoded("apply", paths), strict=True
        ):
            image = Image.open(path)
            self.assert_pixels(kept, np.asarray(image.convert("RGB")), 0, path)
            self.assert_pixels(
                turned, np.asarray(ImageOps.exif_transpose(image).convert("RGB")), 0, path
            )

    def test_cut_files_are_bad_where_pillow_says_so(self):
        rng = random.Random(5)
        paths, expected = [], []
        for ending, save in [("jpg", {}), ("jpg", {"progressive": True}), ("png", {})]:
            whole = io.BytesIO()
            image_of(rng, 60, 50).save(whole, {"jpg": "jpeg"}.get(ending, ending), **save)
            content = whole.getvalue()
            lengths = [rng.randint(1, len(content) - 1) for _ in range(40)] + [
                len(content) - 2,
                len(content),
            ]
            for length in lengths:
                paths.append(self.folder / f"{len(paths)}.{ending}")
                paths[-1].write_bytes(content[:length])
                try:
                    Image.open(io.BytesIO(content[:length])).convert("RGB")
                    expected.append(True)
                except (OSError, SyntaxError):
                    expected.append(False)
        got = [image is not None for image in self.decoded("ignore", paths)]
        # Pillow does without the checksum and the end chunk of a PNG; we want the file whole.
        for path, is_good, pillow in zip(paths, got, expected, strict=True):
            if path.suffix == ".jpg":
                self.assertEqual(is_good, pillow, path)
            else:
                self.assertTrue(pillow or not is_good, path)
        self.assertEqual(sum(got), 3)

    def test_crop_boxes(self):
        rng = random.Random(6)
        cases, expected = [], []
        for i in range(3000):
            width, height = rng.randint(1, 900), rng.randint(1, 900)
            if i % 3 == 0:
                width, height = 500, 375
            if i % 7 == 0:
                width = rng.randint(1, 20)  # ends in the centre crop
            scale = (0.08, 1.0) if i % 2 else (rng.uniform(0.01, 0.5), rng.uniform(0.5, 1.0))
            ratio = (3 / 4, 4 / 3) if i % 5 else (rng.uniform(0.2, 1.0), rng.uniform(1.0, 5.0))
            seed, sample, epoch = rng.getrandbits(53), rng.getrandbits(33), rng.randint(0, 300)
            draws = Philox(seed, sample, epoch, VIEW_DRAWS)
            box = torchvision_box(width, height, scale, ratio, draws)
            if (
                min(box[2:]) < 1
            ):  # torchvision's centre crop of a sliver is empty; ours keeps a pixel
                continue
            cases.append(f"{width} {height} {seed} {sample} {epoch} "
                         + " ".join(repr(v) for v in (*scale, *ratio)))  # fmt: skip
            expected.append(box)
        self.assertGreater(len(cases), 2800)
        got = [tuple(map(int, line.split())) for line in
               self.probe("boxes", text="\n".join(cases)).decode().splitlines()]  # fmt: skip
        different = [(c, g, e) for c, g, e in zip(cases, got, expected, strict=True) if g != e]
        self.assertEqual(different, [])

    def test_training_views(self):
        paths = self.pictures(7, 60)
        num_flipped = 0
        for name, mode in MODES.items():
            side, seed, epoch = 96, 12345678901, 17
            out = np.frombuffer(self.probe("train", side, seed, epoch, name, *paths), np.uint8)
            for i, (path, got) in enumerate(
                zip(paths, out.reshape(-1, side, side, 3), strict=True)
            ):
                image = Image.open(path).convert("RGB")
                draws = Philox(seed, i, epoch, VIEW_DRAWS)
                x, y, w, h = torchvision_box(*image.size, (0.08, 1.0), (3 / 4, 4 / 3), draws)
                view = transforms.functional.resized_crop(image, y, x, h, w, [side, side], mode)
                if draws.double() < 0.5:
                    view = transforms.functional.hflip(view)
                    num_flipped += 1
                self.assert_pixels(got, np.asarray(view), 0, path)
        self.assertTrue(30 < num_flipped < 90, num_flipped)

    def test_evaluation_views_that_need_padding(self):
        paths = self.pictures(8, 24)
        for resize, crop in [(64, 64), (64, 91), (50, 64), (33, 32), (31, 300)]:
            for name, mode in MODES.items():
                view = transforms.Compose(
                    [transforms.Resize(resize, mode), transforms.CenterCrop(crop)]
                )
                out = np.frombuffer(self.probe("eval", resize, crop, name, *paths), np.uint8)
                for path, got in zip(paths, out.reshape(-1, crop, crop, 3), strict=True):
                    expected = np.asarray(view(Image.open(path).convert("RGB")))
                    self.assert_pixels(got, expected, 0, (path, resize, crop, name))

    def test_philox_of_this_file(self):
        draws = Philox(0x299F31D0A4093822, 0, 0, 0)  # a known answer of Random123
        draws.counter = [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344]
        self.assertEqual(
            [draws.u32() for _ in range(4)], [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]
        )
        self.assertTrue(
            math.isclose(np.mean([draws.double() for _ in range(4000)]), 0.5, abs_tol=0.02)
        )


if __name__ == "__main__":
    unittest.main()
