"""A run that was stopped in any way and resumed equals one that never stopped, bit for bit."""

import pathlib
import signal
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from orchard_cli import CliTest, unittest  # noqa: E402

TIMES = {"images_per_s", "train_s", "val_s"}


def differences(a, b, path=""):
    """Paths at which two checkpoints differ, bit for bit."""
    if isinstance(a, dict) and isinstance(b, dict):
        found = [f"{path}/{key}" for key in a.keys() ^ b.keys()]
        for key in a.keys() & b.keys():
            found += differences(a[key], b[key], f"{path}/{key}")
        return found
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        same = (
            a.dtype == b.dtype
            and a.shape == b.shape
            and torch.equal(
                a.contiguous().flatten().view(torch.uint8),
                b.contiguous().flatten().view(torch.uint8),
            )
        )
        return [] if same else [path]
    return [] if a == b else [path]


class Resume(CliTest):
    sample_args = ["--train-per-class", "9", "--val-per-class", "3"]
    # MobileNetV2 has dropout: the state of the random generator matters too.
    models = {"resnet18": {}, "mobilenet_v2": {"model": {"name": "mobilenet_v2", "dropout": 0.3}}}
    whole = {}

    def config(self, model, name):
        changes = {
            "run": {"name": name},
            "train": {"epochs": 3, "batch_size": 8, "log_every_steps": 3},
            "checkpoint": {"every_steps": 2, "keep": 5},
            **self.models[model],
        }
        return self.write_config(changes, f"{name}.json")

    def checkpoint(self, folder, file="last.pth"):
        state = torch.load(folder / "checkpoints" / file, weights_only=True)
        for key in ["config", "versions"]:
            state.pop(key)
        state["progress"].pop("epoch_seconds", None)
        return state

    def uninterrupted(self, model):
        if model not in self.whole:
            config = self.config(model, "whole")
            self.run_orchard(
                "train",
                "--config",
                config,
                "--set",
                f"run.dir={self.shared}/{model}",
                "--set",
                "data.workers=1",
            )
            self.whole[model] = self.shared / model / "whole"
        return self.whole[model]

    def assert_equal_runs(self, model, run, files=("last.pth", "best.pth")):
        whole = self.uninterrupted(model)
        for file in files:
            self.assertEqual(
                differences(self.checkpoint(whole, file), self.checkpoint(run, file)), []
            )
        expected = self.metrics(whole)
        self.assertEqual(len(expected), 3)
        for a, b in zip(expected, self.metrics(run), strict=True):
            for key in a.keys() - TIMES:
                self.assertEqual(a[key], b[key], f"{key} of epoch {a['epoch']}")
        header = (run / "metrics.csv").read_text().splitlines()
        self.assertEqual(sum(line.startswith("epoch,") for line in header), 1)
        self.assertEqual(len(header), 4)

    def start_and_wait_for_step(self, config, name, step):
        process = self.start("train", "--config", config)
        last = self.folder / "runs" / name / "checkpoints" / "last.pth"
        reached = {"step": 0}

        def far_enough():
            if last.exists():
                reached["step"] = torch.load(last, weights_only=True)["progress"]["step"]
            return reached["step"] >= step

        self.wait_for(far_enough, process)
        return process

    def test_kill_9_in_mid_epoch(self):
        for model, workers in [("resnet18", 0), ("resnet18", 3), ("mobilenet_v2", 1)]:
            with self.subTest(model=model, workers=workers):
                name = f"killed_{model}_{workers}"
                config = self.config(model, name)
                process = self.start_and_wait_for_step(config, name, 9)
                process.kill()
                process.communicate()
                self.run_orchard(
                    "train", "--config", config, "--resume", "--set", f"data.workers={workers}"
                )
                self.assert_equal_runs(model, self.folder / "runs" / name)

    def test_signals_save_and_tell_how_to_go_on(self):
        for number, code in [(signal.SIGINT, 130), (signal.SIGTERM, 143)]:
            with self.subTest(signal=number):
                name = f"signalled_{code}"
                config = self.config("mobilenet_v2", name)
                process = self.start_and_wait_for_step(config, name, 2)
                self.signal_and_wait(process, number, code)
                self.assertIn(f"train --resume runs/{name}", process.err)
                self.run_orchard("train", "--resume", f"runs/{name}")
                self.assert_equal_runs("mobilenet_v2", self.folder / "runs" / name)

    def test_epoch_boundary(self):
        # The end of an epoch is what --epochs leaves; more epochs would be another schedule, so the
        # checkpoint of the first epoch of the whole run is taken.
        whole = self.uninterrupted("resnet18")
        config = self.config("resnet18", "boundary")
        self.run_orchard(
            "train", "--config", config, "--resume", whole / "checkpoints/epoch_0001.pth"
        )
        run = self.folder / "runs" / "boundary"
        self.assertEqual(differences(self.checkpoint(whole), self.checkpoint(run)), [])
        # An older checkpoint starts a folder of its own: nothing of the whole run is overwritten.
        self.assertEqual([row["epoch"] for row in self.metrics(run)], [2, 3])
        self.assertEqual(len(self.metrics(whole)), 3)

    def test_a_damaged_checkpoint_is_passed_over(self):
        config = self.config("resnet18", "damaged")
        process = self.start_and_wait_for_step(config, "damaged", 9)
        process.kill()
        process.communicate()
        last = self.folder / "runs/damaged/checkpoints/last.pth"
        content = bytearray(last.read_bytes())
        content[len(content) // 2] ^= 1
        last.write_bytes(content)
        done = self.run_orchard("train", "--config", config, "--resume")
        self.assertIn("last.pth", done.err)
        self.assertIn("epoch_0001.pth", done.err)
        self.assert_equal_runs("resnet18", self.folder / "runs" / "damaged")

    def test_a_finished_run_has_nothing_to_do(self):
        whole = self.uninterrupted("resnet18")
        before = (whole / "checkpoints/last.pth").read_bytes()
        self.run_orchard("train", "--resume", whole)
        self.assertEqual(before, (whole / "checkpoints/last.pth").read_bytes())
        self.assertEqual(len(self.metrics(whole)), 3)

    def test_changed_fields_are_refused_with_both_values(self):
        whole = self.uninterrupted("resnet18")
        done = self.assert_fault(
            3,
            "train",
            "--resume",
            whole,
            "--set",
            "train.batch_size=9",
            "--set",
            "optimizer.lr=0.5",
            cause="train.batch_size: 9, was 8",
            remedy="--allow-config-change",
        )
        self.assertIn("optimizer.lr: 0.5, was 0.02", done.err)

    def test_a_second_program_in_the_same_folder(self):
        config = self.config("resnet18", "locked")
        process = self.start_and_wait_for_step(config, "locked", 2)
        try:
            self.assert_fault(6, "train", "--resume", "runs/locked", cause="runs/locked")
        finally:
            process.kill()
            process.communicate()

    def test_changed_images_are_refused(self):
        config = self.config("resnet18", "changed")
        process = self.start_and_wait_for_step(config, "changed", 2)
        process.kill()
        process.communicate()
        (self.folder / "sample").unlink()
        self.run_orchard("make-sample", "sample", "--train-per-class", "8", "--val-per-class", "3")
        self.assert_fault(6, "train", "--config", config, "--resume", cause="are not those")


if __name__ == "__main__":
    unittest.main()
