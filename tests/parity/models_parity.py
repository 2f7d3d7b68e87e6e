"""Our models, optimizer and schedule against torchvision's Python model code and torch.optim.

The probe (model_probe.cpp) runs our side. Errors are relative: of logits to the largest logit, of a
gradient or statistic to the norm of its tensor, of weights after some steps to how far they moved.
Where both sides use the same LibTorch, most differences are exactly 0.
"""

import itertools
import math
import os
import pathlib
import subprocess
import tempfile
import unittest

import numpy
import torch

torch.library.register_fake = lambda *args, **kwargs: (
    lambda function: function
)  # no image operators here
import torchvision  # noqa: E402

PROBE = os.environ["ORCHARD_MODEL_PROBE"]
LOGITS = 1e-5
# The fused step of ours rounds once where torch.optim.SGD rounds twice: 1e-8 measured. The limits leave
# room for other builds of one version. Kernels that sum in another order are another matter: float32
# rounds by 6e-8, batch norms over 32 values grow that, and a ReLU near 0 flips: the same model in
# channels_last and contiguous order differs by 6e-3 in its worst gradient. Hence LOOSER for two versions.
GRADIENT = 2e-4
STATISTIC = 1e-5
MOVEMENT = 1e-3
LOOSER = 100


def probe(*arguments):
    done = subprocess.run(
        [PROBE, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return done.stdout


SAME_VERSION = probe("version").strip() == torch.__version__.split("+")[0]


def options(**values):
    return [
        f"{key}={int(value) if isinstance(value, bool) else value}" for key, value in values.items()
    ]


def write_folder(folder, tensors):
    folder.mkdir()
    offset = 0
    with open(folder / "data.bin", "wb") as data, open(folder / "index.tsv", "w") as index:
        for name, tensor in tensors.items():
            array = tensor.detach().contiguous().numpy()
            shape = ",".join(map(str, array.shape))
            index.write(f"{name}\t{array.dtype}\t{shape}\t{offset}\n")
            data.write(array.tobytes())
            offset += array.nbytes


def read_folder(folder):
    data = (folder / "data.bin").read_bytes()
    tensors = {}
    for line in (folder / "index.tsv").read_text().splitlines():
        name, dtype, shape, offset = line.split("\t")
        shape = [int(size) for size in shape.split(",") if size]
        array = numpy.frombuffer(data, dtype, math.prod(shape), int(offset)).reshape(shape)
        tensors[name] = torch.from_numpy(array.copy())
    return tensors


def reference(name, num_classes, **extra):
    if name == "mobilenet_v2":
        extra = {"dropout": 0.0, **extra}
    return getattr(torchvision.models, name)(num_classes=num_classes, **extra)


def as_trained(name, num_classes=10):
    """Random weights of torchvision, with norms and running statistics moved off their start."""
    torch.manual_seed(11)
    model = reference(name, num_classes)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.weight.uniform_(0.5, 1.5)
                module.bias.uniform_(-0.3, 0.3)
                module.running_mean.uniform_(-0.3, 0.3)
                module.running_var.uniform_(0.7, 1.5)
                module.num_batches_tracked.fill_(17)
    return model


def batch(num_classes=10):
    generator = torch.Generator().manual_seed(12)
    return (
        torch.randn(8, 3, 64, 64, generator=generator),
        torch.randint(num_classes, (8,), generator=generator),
    )


def error(got, expected, scale=None, least=1e-30):
    scale = expected if scale is None else scale
    difference = (got.double() - expected.double()).norm().item()
    return difference / max(scale.double().norm().item(), least) if difference else 0.0


class Parity(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.runs = 0

    def ours(self, weights, **values):
        self.runs += 1
        folder = self.folder / str(self.runs)
        folder.mkdir()
        images, labels = batch()
        write_folder(folder / "in", {**weights, "images": images, "labels": labels})
        probe("run", folder, *options(**values))
        return read_folder(folder / "out")

    def note(self, what, value, limit, depends_on_kernels=False):
        if depends_on_kernels and not SAME_VERSION:
            limit *= LOOSER
        print(f"  {what}: {value:.1e} (limit {limit:.0e})")
        self.assertLess(value, limit, what)


class NamesAndShapes(Parity):
    def compare(self, name, num_classes, width_mult=1.0):
        extra = {"width_mult": width_mult} if name == "mobilenet_v2" else {}
        with torch.device("meta"):
            model = reference(name, num_classes, **extra)
        expected = [
            f"{kind}\t{key}\t{str(tensor.dtype).removeprefix('torch.')}\t"
            f"{','.join(map(str, tensor.shape))}"
            for kind, items in [
                ("parameter", model.named_parameters()),
                ("buffer", model.named_buffers()),
            ]
            for key, tensor in items
        ]
        self.assertGreater(len(expected), 100)
        self.assertEqual(probe("describe", name, num_classes, width_mult).splitlines(), expected)

    def test_all_models(self):
        for name in ["resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "mobilenet_v2"]:
            for num_classes in [1000, 7]:
                with self.subTest(name=name, num_classes=num_classes):
                    self.compare(name, num_classes)

    def test_widths_of_mobilenet(self):
        for width_mult in [0.35, 0.5, 0.75, 1.4, 2.0]:
            with self.subTest(width_mult=width_mult):
                self.compare("mobilenet_v2", 1000, width_mult)


class Training(Parity):
    def check_model(self, name, variants):
        images, labels = batch()
        start = {key: value.clone() for key, value in as_trained(name).state_dict().items()}
        for variant in variants:
            with self.subTest(name=name, **variant):
                print(f"{name} {variant}")
                self.check_variant(name, start, images, labels, **variant)

    def check_variant(
        self, name, start, images, labels, nesterov, decay_norm_and_bias, channels_last=False
    ):
        layout = torch.channels_last if channels_last else torch.contiguous_format
        model = as_trained(name).to(memory_format=layout)
        images = images.contiguous(memory_format=layout)
        weight_decay, lr, steps = 0.01, 0.02, 5  # a decay large enough to show
        got = self.ours(
            start,
            model=name,
            nesterov=nesterov,
            weight_decay=weight_decay,
            lr=lr,
            decay_norm_and_bias=decay_norm_and_bias,
            steps=steps,
            channels_last=channels_last,
        )
        with torch.no_grad():
            expected = model.eval()(images)
        self.note(
            "logits",
            (got["eval_logits"] - expected).abs().max().item() / expected.abs().max().item(),
            LOGITS,
        )

        spared = [] if decay_norm_and_bias else [p for p in model.parameters() if p.dim() == 1]
        decayed = [p for p in model.parameters() if all(p is not other for other in spared)]
        optimizer = torch.optim.SGD(
            [{"params": decayed}] + ([{"params": spared, "weight_decay": 0.0}] if spared else []),
            lr=lr,
            momentum=0.9,
            nesterov=nesterov,
            weight_decay=weight_decay,
        )
        loss_function = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
        model.train()
        losses = []
        for step in range(steps):
            loss = loss_function(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            losses.append(error(got[f"loss.{step}"], loss.detach()))
            if step == 0:
                # A norm's bias that the next norm takes away again has no gradient but rounding.
                least = 1e-3 * max(parameter.grad.norm().item() for parameter in model.parameters())
                self.note(
                    "gradients",
                    max(
                        error(got[f"grad.{key}"], parameter.grad, least=least)
                        for key, parameter in model.named_parameters()
                    ),
                    GRADIENT,
                    True,
                )
                self.note(
                    "running statistics",
                    max(error(got[f"stat.{key}"], value) for key, value in model.named_buffers()),
                    STATISTIC,
                )
                moved = [
                    key for key, value in model.named_buffers() if torch.equal(value, start[key])
                ]
                self.assertEqual(moved, [])  # the comparison sees a change in every one
            optimizer.step()
        self.note("losses of 5 steps", max(losses), MOVEMENT, True)
        final = dict(model.named_parameters())
        self.note(
            "weights after 5 steps",
            max(
                error(got[f"final.{key}"], value.detach(), value.detach() - start[key])
                for key, value in final.items()
            ),
            MOVEMENT,
            True,
        )
        self.assertEqual(
            {key for key in got if key.startswith("final.")}, {f"final.{key}" for key in final}
        )

    def test_resnet18(self):
        self.check_model(
            "resnet18",
            [
                {"nesterov": nesterov, "decay_norm_and_bias": decay}
                for nesterov, decay in itertools.product([False, True], [False, True])
            ]
            + [{"nesterov": True, "decay_norm_and_bias": False, "channels_last": True}],
        )

    def test_resnet50(self):
        self.check_model("resnet50", [{"nesterov": False, "decay_norm_and_bias": True}])

    def test_mobilenet_v2(self):
        self.check_model(
            "mobilenet_v2",
            [
                {"nesterov": True, "decay_norm_and_bias": False},
                {"nesterov": False, "decay_norm_and_bias": True},
            ],
        )


class NegativeControls(Parity):
    """Mistakes that the comparisons above must see."""

    def setUp(self):
        super().setUp()
        self.model = as_trained("resnet18")
        self.start = {key: value.clone() for key, value in self.model.state_dict().items()}
        self.images, self.labels = batch()

    def test_running_statistics_left_out(self):
        fresh = reference("resnet18", 10).state_dict()
        spoiled = {
            key: fresh[key] if "running" in key else value for key, value in self.start.items()
        }
        got = self.ours(spoiled, model="resnet18", steps=0)["eval_logits"]
        with torch.no_grad():
            expected = self.model.eval()(self.images)
        self.assertGreater((got - expected).abs().max() / expected.abs().max(), 100 * LOGITS)

    def test_other_loss(self):
        right = self.ours(self.start, model="resnet18", steps=1)
        wrong = self.ours(self.start, model="resnet18", steps=1, label_smoothing=0.09)
        self.assertGreater(
            max(
                error(wrong[key], value) for key, value in right.items() if key.startswith("grad.")
            ),
            5 * GRADIENT,
        )

    def test_other_rule(self):
        right = self.ours(self.start, model="resnet18", steps=2, weight_decay=0.01)
        for change in [
            {"weight_decay": 0.0},
            {"decay_norm_and_bias": False},
            {"momentum": 0.89},
            {"nesterov": True},
            {"lr": 0.049},
        ]:
            with self.subTest(**change):
                wrong = self.ours(
                    self.start, model="resnet18", steps=2, **{"weight_decay": 0.01, **change}
                )
                self.assertGreater(
                    max(
                        error(
                            wrong[f"final.{key}"],
                            right[f"final.{key}"],
                            right[f"final.{key}"] - value,
                        )
                        for key, value in self.start.items()
                        if f"final.{key}" in right
                    ),
                    5 * MOVEMENT,
                )

    def test_weights_that_do_not_fit(self):
        missing = {
            key: value for key, value in self.start.items() if key != "layer2.0.downsample.0.weight"
        }
        with self.assertRaises(RuntimeError):
            self.ours(missing, model="resnet18")
        with self.assertRaises(RuntimeError):
            self.ours({**self.start, "extra": torch.zeros(3)}, model="resnet18")


class Schedules(Parity):
    """Relative to the peak: torch computes a step from the one before, which adds up its rounding."""

    LIMIT = 1e-12

    def compare(
        self, make_schedulers, chained=False, peak=0.5, epochs=12, steps_per_epoch=11, **values
    ):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=peak)
        schedulers, milestones = make_schedulers(optimizer)
        kinds = torch.optim.lr_scheduler
        scheduler = (
            kinds.ChainedScheduler(schedulers)
            if chained
            else kinds.SequentialLR(optimizer, schedulers, milestones)
            if milestones
            else schedulers[0]
        )
        expected = []
        for _ in range(epochs * steps_per_epoch):
            expected.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
        lines = probe(
            "schedule",
            *options(peak=peak, epochs=epochs, steps_per_epoch=steps_per_epoch, **values),
        )
        got = [float(line) for line in lines.split()]
        self.assertEqual(len(got), len(expected))
        self.note(
            "learning rates",
            max(abs(a - b) for a, b in zip(got, expected, strict=True)) / peak,
            self.LIMIT,
        )
        self.assertGreater(len(set(got)), 1)

    def test_warm_up_and_cosine(self):
        kinds = torch.optim.lr_scheduler
        for start, low, warm in [(0.01, 0.0, 2), (0.25, 1e-3, 1), (1 / 3, 0.1, 5)]:
            with self.subTest(start=start, low=low, warm=warm):
                self.compare(
                    lambda optimizer: (
                        [
                            kinds.LinearLR(optimizer, start_factor=start, total_iters=warm * 11),
                            kinds.CosineAnnealingLR(optimizer, T_max=(12 - warm) * 11, eta_min=low),
                        ],
                        [warm * 11],
                    ),
                    name="cosine",
                    warmup_epochs=warm,
                    warmup_start_factor=start,
                    min_lr=low,
                )

    def test_cosine_alone(self):
        self.compare(
            lambda optimizer: (
                [
                    torch.optim.lr_scheduler.CosineAnnealingLR(
                        optimizer, T_max=12 * 11, eta_min=0.002
                    )
                ],
                [],
            ),
            name="cosine",
            min_lr=0.002,
        )

    def test_warm_up_and_constant(self):
        self.compare(
            lambda optimizer: (
                [torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=33)],
                [],
            ),
            name="constant",
            warmup_epochs=3,
            warmup_start_factor=0.1,
        )

    def test_steps(self):
        for epochs, gamma in [(3, 0.1), (1, 0.98), (5, 0.5)]:
            with self.subTest(epochs=epochs):
                self.compare(
                    lambda optimizer: (
                        [
                            torch.optim.lr_scheduler.StepLR(
                                optimizer, step_size=epochs * 11, gamma=gamma
                            )
                        ],
                        [],
                    ),
                    name="step",
                    step_epochs=epochs,
                    step_gamma=gamma,
                )

    def test_steps_after_a_warm_up_count_from_the_start(self):
        kinds = torch.optim.lr_scheduler
        self.compare(
            lambda optimizer: (
                [
                    kinds.LinearLR(optimizer, start_factor=0.1, total_iters=22),
                    kinds.StepLR(optimizer, step_size=44, gamma=0.1),
                ],
                [],
            ),
            chained=True,
            name="step",
            warmup_epochs=2,
            warmup_start_factor=0.1,
            step_epochs=4,
        )


class Initialisation(Parity):
    """The law of the weights: the sorted values of a large layer of ours against one of torchvision's."""

    def test_distribution(self):
        for name, layers in {
            "resnet50": ["layer4.1.conv2.weight", "layer4.0.downsample.0.weight", "fc.weight"],
            "mobilenet_v2": [
                "features.17.conv.2.weight",
                "features.18.0.weight",
                "classifier.1.weight",
            ],
        }.items():
            torch.manual_seed(5)
            theirs = reference(name, 1000).state_dict()
            out = self.folder / name
            probe("weights", out, *options(model=name, classes=1000, seed=6))
            ours = read_folder(out)
            for layer in layers:
                with self.subTest(name=name, layer=layer):
                    a = numpy.sort(ours[layer].flatten().numpy().astype(numpy.float64))
                    b = numpy.sort(theirs[layer].flatten().numpy().astype(numpy.float64))
                    both = numpy.concatenate([a, b])
                    distance = numpy.abs(
                        numpy.searchsorted(a, both, "right") / a.size
                        - numpy.searchsorted(b, both, "right") / b.size
                    ).max()
                    # Two-sample Kolmogorov-Smirnov, level 1e-4. It sees a deviation that is off by 3%.
                    limit = math.sqrt(-math.log(1e-4 / 2) / 2 * 2 / a.size)
                    self.note(f"{name} {layer}", distance, limit)
                    wrong = numpy.abs(
                        numpy.searchsorted(1.03 * a, both, "right") / a.size
                        - numpy.searchsorted(b, both, "right") / b.size
                    ).max()
                    self.assertGreater(wrong, limit)
            for key, value in theirs.items():
                if value.dim() < 2 and key != "fc.bias":
                    self.assertTrue(torch.equal(ours[key], value), key)  # exact zeros and ones


if __name__ == "__main__":
    torch.set_num_threads(
        1
    )  # as the probe; two only get into each other's way on images this small
    unittest.main()
