"""Our resize and evaluation view against Pillow 12 and torchvision's PIL transforms: equal bytes."""

import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

import numpy as np
import PIL
import torch

torch.library.register_fake = lambda *args, **kwargs: (
    lambda function: function
)  # no image operators here
import torchvision  # noqa: E402
from PIL import Image  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from pictures import picture  # noqa: E402

PROBE = os.environ["ORCHARD_DATA_PROBE"]
FILTERS = {False: Image.Resampling.BILINEAR, True: Image.Resampling.BICUBIC}


class EqualBytes(unittest.TestCase):
    def setUp(self):
        self.assertTrue(PIL.__version__.startswith("12."), "Pillow 13 resamples in another order")
        self._temporary = tempfile.TemporaryDirectory(prefix="orchard-parity-")
        self.addCleanup(self._temporary.cleanup)
        self.folder = pathlib.Path(self._temporary.name)

    def probe(self, what, value):
        torch.save(value, self.folder / "in.pth")
        subprocess.run([PROBE, what, self.folder / "in.pth", self.folder / "out.pth"], check=True)
        return torch.load(self.folder / "out.pth", weights_only=True)

    def test_resize_of_boxes(self):
        rng = random.Random(1)
        cases, expected = [], []
        for i in range(400):
            width, height = rng.randint(1, 320), rng.randint(1, 320)
            image = picture(rng, width, height)
            w, h = rng.randint(1, width), rng.randint(1, height)
            x, y = rng.randint(0, width - w), rng.randint(0, height - h)
            out_w = w if i % 10 == 0 else rng.randint(1, 260)
            out_h = h if i % 15 == 0 else rng.randint(1, 260)
            wx, wy = rng.randint(0, out_w - 1), rng.randint(0, out_h - 1)
            window = [wx, wy, rng.randint(1, out_w - wx), rng.randint(1, out_h - wy)]
            if i % 2:
                window = [0, 0, out_w, out_h]
            cubic = i % 3 == 0
            resized = (
                Image.fromarray(image)
                .crop((x, y, x + w, y + h))
                .resize((out_w, out_h), FILTERS[cubic])
            )
            expected.append(
                np.asarray(resized)[
                    window[1] : window[1] + window[3], window[0] : window[0] + window[2]
                ]
            )
            cases.append(
                {
                    "image": torch.from_numpy(image),
                    "box": [x, y, w, h],
                    "size": [out_w, out_h],
                    "window": window,
                    "cubic": cubic,
                }
            )
        got = self.probe("resize", {"cases": cases})
        different = [
            i
            for i, (a, b) in enumerate(zip(got, expected, strict=True))
            if not np.array_equal(a.numpy(), b)
        ]
        self.assertEqual(different, [], f"of {len(cases)} cases")

    def test_evaluation_view(self):
        rng = random.Random(2)
        files = []
        for i in range(60):
            image = Image.fromarray(picture(rng, rng.randint(40, 500), rng.randint(40, 500)))
            if i % 5 == 4:
                image = image.convert("L")
            path = self.folder / f"{i}.{'png' if i % 3 == 0 else 'jpg'}"
            image.save(path, **({} if i % 3 == 0 else {"quality": rng.randint(60, 97)}))
            files.append(str(path))
        for resize, crop, cubic in [
            (256, 224, False),
            (72, 64, True),
            (65, 64, False),
            (64, 64, False),
        ]:
            with self.subTest(resize=resize, crop=crop, cubic=cubic):
                view = torchvision.transforms.Compose(
                    [
                        torchvision.transforms.Resize(
                            resize,
                            torchvision.transforms.InterpolationMode.BICUBIC
                            if cubic
                            else torchvision.transforms.InterpolationMode.BILINEAR,
                        ),
                        torchvision.transforms.CenterCrop(crop),
                    ]
                )
                got = self.probe(
                    "views", {"files": files, "resize": resize, "crop": crop, "cubic": cubic}
                )
                for path, pixels in zip(files, got, strict=True):
                    expected = np.asarray(view(Image.open(path).convert("RGB")))
                    self.assertTrue(np.array_equal(pixels.numpy(), expected), path)


if __name__ == "__main__":
    unittest.main()
