"""Our colour and geometric operations, policies and whole augmented views against torchvision's on
Pillow 12 images: equal bytes, the Gaussian blur apart (see its test).

Random draws are replayed: a Philox of Python's own chooses for torchvision what ours chooses.
"""

import collections
import json
import math
import os
import pathlib
import random
import subprocess
import sys
import unittest
import unittest.mock

import numpy as np
import PIL
import torch

torch.library.register_fake = lambda *args, **kwargs: (
    lambda function: function
)  # no image operators here
from PIL import Image  # noqa: E402
from torchvision import transforms  # noqa: E402
from torchvision.transforms import InterpolationMode, autoaugment  # noqa: E402
from torchvision.transforms import functional as F  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from decode_parity import Philox  # noqa: E402
from pictures import picture  # noqa: E402

PROBE = os.environ["ORCHARD_AUGMENT_PROBE"]
POLICIES = {
    "rand_augment": autoaugment.RandAugment(),
    "trivial_augment_wide": autoaugment.TrivialAugmentWide(),
    "auto_augment": autoaugment.AutoAugment(),
}
WIDE_OPS = list(POLICIES["trivial_augment_wide"]._augmentation_space(31))
ALL_OPS = [*WIDE_OPS, "Invert"]
UNSIGNED = ["Identity", "Posterize", "Solarize", "AutoContrast", "Equalize", "Invert"]
POLICY_DRAWS, JITTER_DRAWS, GREY_DRAWS = 33, 34, 35
FLIP_DRAWS, BLUR_DRAWS, ERASING_DRAWS = 32, 36, 37
BLUR_ROUNDING = 5e-4  # of both together


def probe(*args, given=b""):
    done = subprocess.run([PROBE, *map(str, args)], input=given, stdout=subprocess.PIPE, check=True)
    return done.stdout


def images():
    """(what it is, pixels): sizes odd, not square and tiny; contents that are hard in some way."""
    rng = random.Random(7)
    noise = np.random.default_rng(8)
    for width, height in [(64, 64), (37, 53), (101, 30), (3, 3), (2, 5), (1, 1), (1, 40), (33, 2)]:
        size = f"{width}x{height}"
        y, x = np.mgrid[0:height, 0:width]
        yield f"photograph {size}", picture(rng, width, height)
        yield f"noise {size}", noise.integers(0, 256, (height, width, 3), dtype=np.uint8)
        ramp = np.stack([x * 255 // width, y * 255 // height, (x + y) % 256], axis=2)
        yield f"ramp {size}", ramp.astype(np.uint8)
        yield f"dull {size}", (100 + noise.integers(0, 9, (height, width, 3))).astype(np.uint8)
        for value in [0, 128, 255]:
            yield f"constant {value} {size}", np.full((height, width, 3), value, np.uint8)
        two = np.where((x + y)[..., None] % 3 == 0, [255, 0, 10], [255, 0, 250])
        yield f"two colours {size}", two.astype(np.uint8)


class Cases:
    """Collects calls of operations and asks the probe for all of them at once."""

    def __init__(self):
        self.expected = []
        self.sent = []

    def add(self, what, pixels, name, value, expected, kernel=1, fill=(0, 0, 0)):
        height, width = pixels.shape[:2]
        head = (
            f"{name} {float(value).hex()} {kernel} {fill[0]} {fill[1]} {fill[2]} {width} {height}\n"
        )
        self.sent.append(head.encode() + pixels.tobytes())
        self.expected.append((f"{name} {value} {what}", np.asarray(expected)))

    def results(self):
        got = probe("ops", given=b"".join(self.sent))
        at = 0
        for what, expected in self.expected:
            size = expected.size
            yield what, np.frombuffer(got, np.uint8, size, at).reshape(expected.shape), expected
            at += size
        assert at == len(got)

    def different(self):
        return [what for what, got, expected in self.results() if not np.array_equal(got, expected)]


def value_of(name, magnitude):
    """What our function takes, for the magnitude that torchvision's _apply_op takes."""
    if name in ["Brightness", "Color", "Contrast", "Sharpness"]:
        return 1.0 + magnitude
    if name in ["TranslateX", "TranslateY", "Posterize"]:
        return int(magnitude)
    return magnitude


class Operations(unittest.TestCase):
    def setUp(self):
        self.assertTrue(PIL.__version__.startswith("12."), PIL.__version__)

    def compare(self, cases):
        different = cases.different()
        self.assertEqual(different[:20], [], f"{len(different)} of {len(cases.expected)} cases")

    def test_every_operation_of_the_policies_at_every_magnitude(self):
        for policy, space in POLICIES.items():
            for name in ALL_OPS:
                with self.subTest(policy=policy, op=name):
                    cases = Cases()
                    for what, pixels in images():
                        height, width = pixels.shape[:2]
                        spaces = {
                            "rand_augment": lambda: space._augmentation_space(31, (height, width)),
                            "trivial_augment_wide": lambda: space._augmentation_space(31),
                            "auto_augment": lambda: space._augmentation_space(10, (height, width)),
                        }
                        magnitudes, signed = spaces[policy]().get(name, (torch.tensor(0.0), False))
                        for magnitude in magnitudes.reshape(-1).tolist():
                            for sign in [1.0, -1.0] if signed else [1.0]:
                                expected = autoaugment._apply_op(
                                    Image.fromarray(pixels),
                                    name,
                                    sign * magnitude,
                                    InterpolationMode.NEAREST,
                                    None,
                                )
                                value = value_of(name, sign * magnitude)
                                cases.add(what, pixels, name, value, expected)
                    self.compare(cases)

    def test_factors_that_no_policy_takes(self):
        rng = random.Random(3)
        calls = {
            "Brightness": F.adjust_brightness,
            "Contrast": F.adjust_contrast,
            "Color": F.adjust_saturation,
            "Sharpness": F.adjust_sharpness,
            "Hue": F.adjust_hue,
            "Solarize": F.solarize,
            "Posterize": F.posterize,
        }
        for name, call in calls.items():
            with self.subTest(op=name):
                cases = Cases()
                for what, pixels in images():
                    factors = [0.0, 1.0, *(rng.uniform(0, 3) for _ in range(8)), 10.0]
                    if name == "Hue":
                        factors = [0.0, -0.5, 0.5, *(rng.uniform(-0.5, 0.5) for _ in range(8))]
                    elif name == "Solarize":
                        factors = [0, 256, *(rng.uniform(0, 256) for _ in range(8))]
                    elif name == "Posterize":
                        factors = range(9)
                    for factor in factors:
                        expected = call(Image.fromarray(pixels), factor)
                        cases.add(what, pixels, name, factor, expected)
                self.compare(cases)

    def test_grey_and_flip(self):
        cases = Cases()
        for what, pixels in images():
            image = Image.fromarray(pixels)
            cases.add(what, pixels, "Grayscale", 0, F.to_grayscale(image, 3))
            cases.add(what, pixels, "FlipVertical", 0, F.vflip(image))
        self.compare(cases)

    def test_hue_and_grey_of_a_grid_of_all_colours(self):
        values = np.array([*range(0, 256, 5), 1, 127, 128, 254], np.uint8)
        grid = np.stack(np.meshgrid(values, values, values), axis=-1).reshape(len(values), -1, 3)
        cases = Cases()
        for turns in [-0.5, -0.31, 0.0, 0.004, 0.17, 0.5]:
            cases.add("grid", grid, "Hue", turns, F.adjust_hue(Image.fromarray(grid), turns))
        cases.add("grid", grid, "Grayscale", 0, F.to_grayscale(Image.fromarray(grid), 3))
        self.compare(cases)

    def test_places_with_a_fill_and_other_angles(self):
        rng = random.Random(4)
        fill = (200, 7, 90)
        cases = Cases()
        for what, pixels in images():
            image = Image.fromarray(pixels)
            for name in ["ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"]:
                values = [rng.uniform(-2, 2) for _ in range(5)]
                if name == "Rotate":
                    values = [90, -90, 180, -180, 270, 360, 720.5, *(180 * v for v in values)]
                elif name.startswith("Translate"):
                    values = [int(20 * v) for v in values]
                for value in values:
                    expected = autoaugment._apply_op(
                        image, name, float(value), InterpolationMode.NEAREST, fill
                    )
                    cases.add(what, pixels, name, value, expected, fill=fill)
        self.compare(cases)

    def test_large_pictures(self):
        rng = random.Random(5)
        pixels = picture(rng, 1531, 1024)
        cases = Cases()
        for name in ALL_OPS:
            magnitude = rng.uniform(0.2, 0.9) * (100 if name in ["Rotate", "Solarize"] else 1)
            magnitude = {"Posterize": 3, "TranslateX": 400, "TranslateY": -77}.get(name, magnitude)
            expected = autoaugment._apply_op(
                Image.fromarray(pixels), name, magnitude, InterpolationMode.NEAREST, None
            )
            cases.add("large", pixels, name, value_of(name, magnitude), expected)
        self.compare(cases)

    def test_blur(self):
        """torchvision convolves in float32, in an order of the machine's choice; ours sums rows, then
        columns. So a byte may differ, by one, where the exact value is nearly a half."""
        cases = Cases()
        sigmas = {
            3: [0.1, 0.5, 2.0],
            5: [0.35, 1.1],
            9: [0.1, 1.7],
            23: [0.1, 0.3, 1.0, 2.0],
            99: [20.0],
        }
        exact = []
        for what, pixels in [*images(), ("photograph 224", picture(random.Random(6), 224, 224))]:
            for kernel, values in sigmas.items():
                if kernel // 2 >= min(pixels.shape[:2]):
                    continue
                for sigma in values:
                    expected = F.gaussian_blur(Image.fromarray(pixels), [kernel, kernel], sigma)
                    cases.add(f"{what} {kernel}", pixels, "Blur", sigma, expected, kernel=kernel)
                    exact.append(self.exact_blur(pixels, kernel, sigma))
        num_different = num_values = 0
        farthest = 0.0  # from a half, of the exact values where ours and theirs differ
        for (what, got, expected), truth in zip(cases.results(), exact, strict=True):
            self.assertLessEqual(np.abs(got - truth).max(), 0.5 + BLUR_ROUNDING, what)
            differs = got != expected
            self.assertLessEqual(
                np.abs(got[differs].astype(int) - expected[differs]).max(initial=0), 1
            )
            to_half = np.abs(truth[differs] % 1.0 - 0.5)
            farthest = max(farthest, to_half.max(initial=0))
            num_different += int(differs.sum())
            num_values += got.size
        print(
            f"blur: {num_different} of {num_values} bytes differ, by one, where the exact value is "
            f"within {farthest:.1e} of a half",
            file=sys.stderr,
        )
        self.assertLess(farthest, BLUR_ROUNDING)
        self.assertLess(num_different, 1e-4 * num_values)

    @staticmethod
    def exact_blur(pixels, kernel, sigma):
        half = kernel // 2
        weights = np.exp(-0.5 * (np.arange(-half, half + 1) / sigma) ** 2)
        weights /= weights.sum()
        height, width = pixels.shape[:2]
        padded = np.pad(pixels.astype(float), [(half, half), (half, half), (0, 0)], "reflect")
        rows = sum(w * padded[k : k + height] for k, w in enumerate(weights))
        return sum(w * rows[:, k : k + width] for k, w in enumerate(weights))


class Policies(unittest.TestCase):
    def test_the_tables_of_magnitudes(self):
        sides = [8, 32, 48, 64, 100, 128, 160, 192, 224, 225, 256, 288, 299, 331, 380, 384, 512]
        num_compared = collections.Counter()
        spaces = {}
        for line in probe("values", *sides).decode().splitlines():
            policy, name, bin_, negative, side, value = line.split()
            if policy == "none":
                continue
            bin_, negative, side = int(bin_), negative == "1", int(side)
            if (policy, side) not in spaces:
                bins = 10 if policy == "auto_augment" else 31
                size = [] if policy == "trivial_augment_wide" else [(side, side)]
                spaces[policy, side] = POLICIES[policy]._augmentation_space(bins, *size)
            if name not in spaces[policy, side]:
                continue
            magnitudes, signed = spaces[policy, side][name]
            magnitude = float(magnitudes.reshape(-1)[bin_ if magnitudes.ndim else 0])
            if signed and negative:
                magnitude = -magnitude
            self.assertEqual(float.fromhex(value), value_of(name, magnitude), line)
            num_compared[policy] += 1
        for policy, count in num_compared.items():
            bins = 10 if policy == "auto_augment" else 31
            self.assertEqual(count, len(sides) * 14 * bins * 2)
        self.assertEqual(len(num_compared), 3)

    def views(self, augment, side, seed, count, pixels):
        out = probe(
            "views", json.dumps({"augment": augment}), side, seed, count, given=pixels.tobytes()
        )
        at = 0
        for _ in range(count):
            end = out.index(b"\n", at)
            words = out[at:end].decode().split()
            at = end + 1
            steps = [words[i : i + 6] for i in range(0, len(words), 6)]
            yield steps, np.frombuffer(out, np.uint8, pixels.size, at).reshape(pixels.shape)
            at += pixels.size
        self.assertEqual(at, len(out))

    def test_views_of_every_policy(self):
        side, count = 61, 400
        pixels = picture(random.Random(9), side, side)
        for policy, transform in POLICIES.items():
            for seed in [1, 2]:
                with self.subTest(policy=policy, seed=seed):
                    config = {"policy": policy}
                    if policy == "rand_augment" and seed == 2:
                        config |= {"rand_augment_ops": 3, "rand_augment_magnitude": 30}
                        transform = autoaugment.RandAugment(num_ops=3, magnitude=30)
                    views = self.views(config, side, seed, count, pixels)
                    for sample, (_, got) in enumerate(views):
                        draws = Philox(seed, sample, 0, POLICY_DRAWS)
                        with replayed(policy, draws):
                            expected = np.asarray(transform(Image.fromarray(pixels)))
                        self.assertTrue(np.array_equal(got, expected), f"sample {sample}")

    def test_views_with_everything(self):
        side, seed, count = 45, 3, 300
        pixels = picture(random.Random(10), side, side)
        config = {
            "vflip_prob": 0.5,
            "policy": "trivial_augment_wide",
            "color_jitter": [0.4, 0.5, 1.2, 0.2],
            "grayscale_prob": 0.2,
            "erasing_prob": 0.5,
        }
        transform = POLICIES["trivial_augment_wide"]
        seen = collections.Counter()
        for sample, (_, got) in enumerate(self.views(config, side, seed, count, pixels)):
            image = Image.fromarray(pixels)
            if Philox(seed, sample, 0, FLIP_DRAWS).double() < 0.5:
                image = F.vflip(image)
                seen["flip"] += 1
            with replayed("trivial_augment_wide", Philox(seed, sample, 0, POLICY_DRAWS)):
                image = transform(image)
            image = jittered(image, config["color_jitter"], Philox(seed, sample, 0, JITTER_DRAWS))
            if Philox(seed, sample, 0, GREY_DRAWS).double() < 0.2:
                image = F.to_grayscale(image, 3)
                seen["grey"] += 1
            expected = np.array(image)
            draws = Philox(seed, sample, 0, ERASING_DRAWS)
            if draws.double() < 0.5:
                x, y, width, height = erased_box(side, draws)
                expected[y : y + height, x : x + width] = [124, 116, 104]
                seen["erased"] += 1
            self.assertTrue(np.array_equal(got, expected), f"sample {sample}")
        self.assertEqual(len(seen), 3)

    def test_views_with_blur(self):
        side, seed, count = 45, 4, 60
        pixels = picture(random.Random(11), side, side)
        config = {"blur_prob": 0.5, "blur_sigma": [0.2, 1.5], "blur_kernel_px": 7}
        num_blurred = 0
        for sample, (_, got) in enumerate(self.views(config, side, seed, count, pixels)):
            draws = Philox(seed, sample, 0, BLUR_DRAWS)
            image = Image.fromarray(pixels)
            if draws.double() < 0.5:
                image = F.gaussian_blur(image, [7, 7], uniform(draws, 0.2, 1.5))
                num_blurred += 1
            self.assertLessEqual(np.abs(got.astype(int) - np.asarray(image)).max(), 1)
            self.assertLess(np.mean(got != np.asarray(image)), 1e-3)
        self.assertGreater(num_blurred, 15)

    def test_erased_boxes_are_torchvisions(self):
        """RandomErasing draws in another order of its own; its rules of size are the same."""
        side = 57
        image = torch.ones(3, side, side)
        torch.manual_seed(1)
        theirs = []
        for _ in range(4000):
            _, _, height, width, _ = transforms.RandomErasing.get_params(
                image, (0.02, 0.33), (0.3, 3.3), [0.0]
            )
            theirs.append((height, width))
        ours = []
        pixels = np.zeros((side, side, 3), np.uint8)
        for steps, _ in self.views({"erasing_prob": 1.0}, side, 5, 4000, pixels):
            ((_, _, _, _, width, height),) = steps
            ours.append((int(height), int(width)))
        for measure in [lambda h, w: h, lambda h, w: w, lambda h, w: h * w, lambda h, w: h / w]:
            a = np.sort([measure(*box) for box in ours])
            b = np.sort([measure(*box) for box in theirs])
            self.assertLess(kolmogorov_smirnov(a, b), 1.95 * math.sqrt(2 / 4000))  # p = 0.001


def kolmogorov_smirnov(a, b):
    values = np.union1d(a, b)
    return np.abs(
        np.searchsorted(a, values, "right") / len(a) - np.searchsorted(b, values, "right") / len(b)
    ).max()


def replayed(policy, draws):
    """torchvision's policy chooses what `draws` says, in the order in which ours draws."""
    if policy == "auto_augment":
        index = draws.below(25)
        pairs = [(draws.double(), draws.below(2)) for _ in range(2)]
        probabilities = torch.tensor([p for p, _ in pairs], dtype=torch.float64)
        signs = [1 - negative for _, negative in pairs]  # 0 is the negative one there
        return unittest.mock.patch.object(
            autoaugment.AutoAugment, "get_params", lambda *_: (index, probabilities, signs)
        )
    sign = []

    def randint(bound, *_, **__):
        if bound == 2 and policy == "rand_augment":
            return torch.tensor(sign.pop())
        number = draws.below(bound)
        if bound == 14 and policy == "rand_augment":
            sign[:] = [draws.below(2)]  # ours is drawn whether it is of use or not
        return torch.tensor(number)

    return unittest.mock.patch.object(autoaugment.torch, "randint", randint)


def uniform(draws, low, high):
    return low + (high - low) * draws.double()


def jittered(image, jitter, draws):
    ranges = [(max(1 - j, 0), 1 + j) for j in jitter[:3]] + [(-jitter[3], jitter[3])]
    calls = [F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue]
    todo = [(call, uniform(draws, *ends)) for call, ends in zip(calls, ranges, strict=True)]
    for i in range(4, 1, -1):
        j = draws.below(i)
        todo[i - 1], todo[j] = todo[j], todo[i - 1]
    for call, factor in todo:
        image = call(image, factor)
    return image


def erased_box(side, draws):
    for _ in range(10):
        area = side * side * uniform(draws, 0.02, 0.33)
        aspect = math.exp(uniform(draws, math.log(0.3), math.log(3.3)))
        height, width = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if height < side and width < side:
            y = draws.below(side - height + 1)
            return draws.below(side - width + 1), y, width, height
    return 0, 0, 0, 0


if __name__ == "__main__":
    unittest.main()
