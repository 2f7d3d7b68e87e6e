"""Our files in Python's hands: a checkpoint in torchvision's model, and predictions from pixels up.

The reference is torchvision's Python model code and its PIL transforms; our side is the real program.
"""

import json
import pathlib
import sys

import torch

torch.library.register_fake = lambda *args, **kwargs: (
    lambda function: function
)  # no image operators here
import torchvision  # noqa: E402
from PIL import Image  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from orchard_cli import CliTest, unittest  # noqa: E402

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class CheckpointInTorchvision(CliTest):
    sample_args = ["--train-per-class", "3", "--val-per-class", "2"]

    def trained(self, model, epochs=1):
        self.write_config(
            {
                "model": {"name": model},
                "train": {"epochs": epochs, "batch_size": 6},
                "augment": {"image_size_px": 64},
                "preprocess": {"resize_px": 72, "crop_px": 64},
            },
            f"{model}.json",
        )
        self.run_orchard("train", "--config", f"{model}.json")
        self.run_orchard("export", "--model", f"runs/{model}/checkpoints/last.pth")
        return self.folder / "runs" / model

    def reference(self, run, model, which="best"):
        state = torch.load(run / f"checkpoints/{which}.pth", weights_only=True)
        network = getattr(torchvision.models, model)(num_classes=6)
        network.load_state_dict(state["model"])  # strict
        return network.eval(), state

    def test_same_logits(self):
        images = torch.randn(5, 3, 64, 64, generator=torch.Generator().manual_seed(3))
        # MobileNetV2 needs steps until its running statistics let a signal through all its layers.
        for model, epochs in [("resnet50", 1), ("mobilenet_v2", 15)]:
            with self.subTest(model=model):
                run = self.trained(model, epochs)
                network, state = self.reference(run, model, "last")
                ours = torch.jit.load(str(run / f"export/{model}.ts"))
                with torch.no_grad():
                    expected, got = network(images), ours(images)
                self.assertLess((expected - got).abs().max().item(), 1e-5)
                self.assertGreater(
                    expected.abs().max().item(), 0.01
                )  # there is something to compare
                # Negative control: one running mean that is off shows.
                name = next(key for key in state["model"] if key.endswith("running_mean"))
                spoiled = {**state["model"], name: state["model"][name] + 0.1}
                network.load_state_dict(spoiled)
                with torch.no_grad():
                    self.assertGreater((network(images) - got).abs().max().item(), 1e-4)
                self.assertEqual(
                    state["classes"],
                    sorted(path.name for path in (self.folder / "sample/train").iterdir()),
                )
                self.assertEqual(json.loads(state["config"])["model"]["name"], model)

    def test_same_probabilities_from_the_file_on(self):
        run = self.trained("resnet18")
        network, state = self.reference(run, "resnet18")
        view = torchvision.transforms.Compose(
            [
                torchvision.transforms.Resize(72),
                torchvision.transforms.CenterCrop(64),
                torchvision.transforms.PILToTensor(),
            ]
        )
        out = self.run_orchard(
            "predict", "--model", "runs/resnet18", "sample/val", "--format", "jsonl", "--top-k", "6"
        ).out
        lines = [json.loads(line) for line in out.splitlines()]
        self.assertEqual(len(lines), 12)
        mean, std = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)
        for line in lines:
            pixels = view(Image.open(self.folder / line["path"]).convert("RGB"))
            with torch.no_grad():
                logits = network(((pixels.float() / 255 - mean) / std)[None])[0]
            expected = logits.double().softmax(0)
            for guess in line["predictions"]:
                self.assertAlmostEqual(
                    guess["probability"], expected[guess["index"]].item(), places=5
                )
                self.assertEqual(guess["class"], state["classes"][guess["index"]])

    def test_our_optimizer_state_continues_in_torch(self):
        run = self.trained("resnet18")
        _, state = self.reference(run, "resnet18")
        buffers = state["optimizer"]["state"]
        names = [name for name, _ in torchvision.models.resnet18(num_classes=6).named_parameters()]
        self.assertEqual(sorted(buffers), sorted(names))
        for name in names:
            self.assertEqual(buffers[name]["momentum_buffer"].shape, state["model"][name].shape)


if __name__ == "__main__":
    unittest.main()
