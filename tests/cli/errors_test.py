"""Every fault of a user ends in a cause, a remedy and the documented exit code."""

import json
import pathlib
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from orchard_cli import ORCHARD, SOURCE, CliTest, unittest  # noqa: E402


class CommandLine(CliTest):
    def test_help_and_version(self):
        self.assertIn("Exit codes", self.run_orchard("--help").out)
        self.assertRegex(self.run_orchard("--version").out, r"^orchard \d+\.\d+\.\d+")
        verbs = [
            "train",
            "evaluate",
            "predict",
            "export",
            "models",
            "devices",
            "schema",
            "make-sample",
        ]
        for verb in verbs:
            with self.subTest(verb=verb):
                self.assertIn("Examples:", self.run_orchard(verb, "--help").out)

    def test_train_is_a_second_name(self):
        train = pathlib.Path(ORCHARD).with_name("train")
        done = subprocess.run([train, "--help"], text=True, capture_output=True, check=True)
        self.assertEqual(done.stdout, self.run_orchard("train", "--help").out)

    def test_wrong_command_lines(self):
        self.assert_fault(2, cause="A subcommand is required")
        self.assert_fault(2, "trian", cause="no verb 'trian', did you mean 'train'?")
        self.assert_fault(2, "train", cause="train needs a configuration")
        self.assert_fault(2, "train", "--config", cause="--config", remedy="orchard train --help")
        self.assert_fault(
            2, "train", "--config", "resnet50.json", "--set", "nothing", cause="nothing"
        )
        self.assert_fault(
            2, "predict", "--model", "x", cause="inputs", remedy="orchard predict --help"
        )
        self.assert_fault(2, "predict", "--model", "x", "y", "--format", "xml", cause="xml")
        self.assert_fault(2, "predict", "--model", "x", "y", "--top-k", "0", cause="--top-k")


class Configuration(CliTest):
    def test_shipped_configs_are_found_by_name(self):
        for path in sorted((SOURCE / "configs").glob("*.json")):
            with self.subTest(config=path.name):
                shown = self.run_orchard("train", "--config", path.name, "--print-config").out
                again = self.run_orchard("train", "--config", path.stem, "--print-config").out
                self.assertEqual(shown, again)
                self.assertEqual(json.loads(shown)["run"]["name"], path.stem)

    def test_overrides_show_in_the_effective_configuration(self):
        shown = json.loads(
            self.run_orchard(
                "train",
                "--config",
                "resnet50",
                "--set",
                "optimizer.lr=0.25",
                "--data",
                "/x y",
                "--set",
                "train.epochs=3",
                "--device",
                "cpu",
                "--print-config",
            ).out
        )
        self.assertEqual(shown["optimizer"]["lr"], 0.25)
        self.assertEqual(shown["train"]["epochs"], 3)
        self.assertEqual(shown["data"]["root"], "/x y")
        self.assertEqual(shown["device"], "cpu")

    def test_all_problems_at_once(self):
        (self.folder / "bad.json").write_text(
            '{\n"train": {"bacth_size": 3,\n"epochs": "x"},\n"modle": {"name": "resnet18"}\n}'
        )
        done = self.assert_fault(
            3,
            "train",
            "--config",
            "bad.json",
            "--set",
            "optimizer.lr=-1",
            cause="4 problems in the configuration bad.json",
        )
        for part in [
            "bad.json:2: train.bacth_size: unknown field, did you mean 'batch_size'?",
            "bad.json:3: train.epochs: must be a whole number",
            "bad.json:4: modle: unknown field, did you mean 'model'?",
            "--set optimizer.lr=-1: optimizer.lr: must be from 0 to 1e+06, not -1",
        ]:
            self.assertIn(part, done.err)

    def test_missing_or_broken_files(self):
        self.assert_fault(
            3,
            "train",
            "--config",
            "resnet5.json",
            cause="did you mean 'resnet50.json'?",
            remedy="mobilenet_v2.json",
        )
        (self.folder / "broken.json").write_text('{\n"seed": 1,,\n}')
        self.assert_fault(
            3, "train", "--config", "broken.json", cause="broken.json:2: not valid JSON"
        )

    def test_values_that_only_training_can_judge(self):
        self.write_config({"data": {"root": ""}})
        self.assert_fault(
            3,
            "train",
            "--config",
            "tiny.json",
            cause="data.root is not set",
            remedy="--data FOLDER",
        )
        self.assert_fault(
            3,
            "train",
            "--config",
            "tiny.json",
            "--device",
            "gpu",
            "--data",
            "x",
            cause="unknown device 'gpu'",
        )

    def test_a_device_that_is_not_there_is_no_silent_cpu(self):
        if "\nmps      yes" in "\n" + self.run_orchard("devices").out:
            self.skipTest("this machine has mps")
        self.write_config()
        self.assert_fault(
            5,
            "train",
            "--config",
            "tiny.json",
            "--device",
            "mps",
            cause="device mps cannot be used",
            remedy="--device auto",
        )


class Data(CliTest):
    sample_args = ["--train-per-class", "2", "--val-per-class", "1"]

    def own_sample(self):
        (self.folder / "sample").unlink()
        shutil.copytree(self.shared / "sample", self.folder / "sample")
        return self.folder / "sample"

    def train_fault(self, code, cause, *args, **kwargs):
        return self.assert_fault(
            code, "train", "--config", self.write_config(), *args, cause=cause, **kwargs
        )

    def test_no_such_folder(self):
        self.train_fault(4, "nowhere", "--data", "nowhere")

    def test_no_val_folder(self):
        shutil.rmtree(self.own_sample() / "val")
        self.train_fault(4, "val")

    def test_flat_val_folder(self):
        sample = self.own_sample()
        for path in list((sample / "val").rglob("*.jpg")):
            path.rename(sample / "val" / f"{path.parent.name}_{path.name}")
        for path in (sample / "val").iterdir():
            if path.is_dir():
                path.rmdir()
        self.train_fault(4, str(pathlib.Path("sample/val")), remedy="sub-folder")

    def test_val_class_that_training_does_not_have(self):
        sample = self.own_sample()
        shutil.copytree(sample / "val" / "circle_dots", sample / "val" / "pentagon")
        self.train_fault(4, "pentagon")

    def test_too_few_outputs_and_unknown_model(self):
        self.train_fault(3, "model.num_classes is 5", "--set", "model.num_classes=5")
        self.train_fault(3, "resnet19", "--set", "model.name=resnet19", remedy="orchard models")

    def test_make_sample_does_not_overwrite(self):
        self.assert_fault(4, "make-sample", "sample", cause="sample")


class Artifacts(CliTest):
    sample_args = ["--train-per-class", "2", "--val-per-class", "1"]

    def test_resume_without_a_run(self):
        self.write_config()
        self.assert_fault(6, "train", "--config", "tiny.json", "--resume", cause="no run 'tiny'")
        self.assert_fault(6, "train", "--resume", "nowhere", cause="nowhere")

    def test_files_that_are_no_models(self):
        (self.folder / "text.pth").write_text("hello")
        (self.folder / "empty.ts").write_text("")
        for name in ["text.pth", "empty.ts", "missing.pth", "sample"]:
            with self.subTest(name=name):
                self.assert_fault(6, "evaluate", "--model", name, "--data", "sample", cause=name)
                self.assert_fault(6, "predict", "--model", name, "sample", cause=name)
                self.assert_fault(6, "export", "--model", name, cause=name)


if __name__ == "__main__":
    unittest.main()
