"""The whole path on a tiny drawn data set: train, evaluate, predict, export; and what can go wrong."""

import csv
import io
import json
import pathlib
import resource
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from orchard_cli import CliTest, unittest  # noqa: E402


class WholePath(CliTest):
    sample_args = ["--train-per-class", "9", "--val-per-class", "4"]

    def test_train_evaluate_predict_export(self):
        self.write_config()
        done = self.run_orchard("train", "--config", "tiny.json")
        for part in [
            "device",
            "resnet18",
            "54 images in 6 classes",
            "run folder",
            "best",
            "resume",
        ]:
            self.assertIn(part, done.err)

        run = self.folder / "runs" / "tiny"
        names = {path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file()}
        for name in [
            "config.json",
            "classes.txt",
            "metrics.csv",
            "metrics.jsonl",
            "log.txt",
            "checkpoints/last.pth",
            "checkpoints/best.pth",
            "checkpoints/epoch_0002.pth",
        ]:
            self.assertIn(name, names)
        self.assertFalse([name for name in names if ".tmp" in name])
        classes = (run / "classes.txt").read_text().split()
        self.assertEqual(
            classes, sorted(path.name for path in (self.folder / "sample/train").iterdir())
        )
        rows = list(csv.DictReader((run / "metrics.csv").open()))
        self.assertEqual([row["epoch"] for row in rows], ["1", "2"])
        self.assertEqual(
            [float(row["val_top1"]) for row in rows],
            [row["val_top1"] for row in self.metrics("runs/tiny")],
        )
        effective = json.loads((run / "config.json").read_text())
        self.assertEqual(effective["train"]["batch_size"], 16)

        # The commands that the end block tells work as they are written.
        exported = self.run_orchard("export", "--model", "runs/tiny").out
        self.assertIn("batch 7", exported)
        script = run / "export" / "resnet18.ts"
        self.assertTrue(script.is_file())

        for model in ["runs/tiny", "runs/tiny/export/resnet18.ts"]:
            with self.subTest(model=model):
                report = json.loads(
                    self.run_orchard(
                        "evaluate", "--model", model, "--data", "sample", "--format", "json"
                    ).out
                )
                self.assertEqual(report["images"], 24)
                rows = list(
                    csv.DictReader(
                        io.StringIO(
                            self.run_orchard(
                                "predict", "--model", model, "sample/val", "--format", "csv"
                            ).out
                        )
                    )
                )
                right = sum(row["class"] == pathlib.Path(row["path"]).parent.name for row in rows)
                self.assertEqual(right / len(rows), report["top1"])
        best = max(row["val_top1"] for row in self.metrics("runs/tiny"))
        self.assertEqual(best, report["top1"])

        # The exported file and the checkpoint say the same.
        by_model = []
        for model in ["runs/tiny", str(script)]:
            out = self.run_orchard(
                "predict", "--model", model, "sample/val", "--format", "jsonl", "--top-k", "6"
            ).out
            by_model.append([json.loads(line) for line in out.splitlines()])
        for a, b in zip(*by_model, strict=True):
            self.assertEqual(
                [p["class"] for p in a["predictions"]], [p["class"] for p in b["predictions"]]
            )
            for p, q in zip(a["predictions"], b["predictions"], strict=True):
                self.assertAlmostEqual(p["probability"], q["probability"], places=6)
            self.assertAlmostEqual(sum(p["probability"] for p in a["predictions"]), 1, places=9)

        # Another run of the same name takes another folder; the first one stays as it was.
        before = (run / "checkpoints" / "last.pth").read_bytes()
        self.run_orchard("train", "--config", "tiny.json", "--epochs", "1", "--set", "seed=2")
        self.assertTrue((self.folder / "runs/tiny-2/checkpoints/last.pth").is_file())
        self.assertEqual(before, (run / "checkpoints" / "last.pth").read_bytes())

    def test_formats_of_predict(self):
        self.write_config({"train": {"epochs": 1}})
        self.run_orchard("train", "--config", "tiny.json")
        first = sorted((self.folder / "sample/val/circle_dots").iterdir())[0]
        odd = self.folder / 'a "b", c.jpg'
        shutil.copy(first, odd)
        (self.folder / "bad.jpg").write_bytes(b"not an image")
        inputs = ["--model", "runs/tiny", odd.name, "bad.jpg"]
        table = self.run_orchard("predict", *inputs, code=4)
        self.assertIn("1 of 2 files could not be read", table.err)
        self.assertIn("cannot be read", table.out)
        rows = list(
            csv.DictReader(
                io.StringIO(
                    self.run_orchard(
                        "predict", *inputs, "--format", "csv", "--top-k", "2", code=4
                    ).out
                )
            )
        )
        self.assertEqual([row["path"] for row in rows], [odd.name, odd.name, "bad.jpg"])
        self.assertEqual([row["rank"] for row in rows], ["1", "2", ""])
        entries = json.loads(self.run_orchard("predict", *inputs, "--format", "json", code=4).out)
        self.assertIn("error", entries[1])
        self.run_orchard("predict", *inputs, "--format", "jsonl", "--output", "out.jsonl", code=4)
        self.assertEqual(len((self.folder / "out.jsonl").read_text().splitlines()), 2)


class Faults(CliTest):
    sample_args = ["--train-per-class", "9", "--val-per-class", "4"]

    def own_sample(self):
        (self.folder / "sample").unlink()
        shutil.copytree(self.shared / "sample", self.folder / "sample")
        return self.folder / "sample"

    def test_bad_images_are_skipped_counted_and_listed(self):
        sample = self.own_sample()
        (sample / "train/circle_dots/zz_empty.jpg").write_bytes(b"")
        whole = sorted((sample / "train/cross_dots").iterdir())[0].read_bytes()
        (sample / "train/cross_dots/zz_half.jpg").write_bytes(whole[: len(whole) // 2])
        (sample / "val/circle_dots/zz_text.jpg").write_text("hello")
        self.write_config({"data": {"max_bad_fraction": 0.2}, "train": {"epochs": 1}})
        done = self.run_orchard("train", "--config", "tiny.json")
        self.assertIn("3 images could not be read", done.err)
        skipped = (self.folder / "runs/tiny/skipped_images.txt").read_text()
        for name in ["zz_empty.jpg", "zz_half.jpg", "zz_text.jpg"]:
            self.assertIn(name, skipped)
        row = self.metrics("runs/tiny")[0]
        self.assertEqual(row["val_images"], 24)  # 25 files, one of them bad and not replaced
        report = json.loads(
            self.run_orchard("evaluate", "--model", "runs/tiny", "--format", "json").out
        )
        self.assertEqual((report["images"], report["unreadable"]), (24, 1))
        self.assertEqual(report["top1"], row["val_top1"])

    def test_bad_images_can_be_refused(self):
        (self.own_sample() / "train/circle_dots/zz_empty.jpg").write_bytes(b"")
        self.write_config({"data": {"bad_image": "fail"}})
        self.assert_fault(4, "train", "--config", "tiny.json", cause="zz_empty.jpg")

    def test_too_many_bad_images(self):
        sample = self.own_sample()
        for path in sorted((sample / "train").rglob("*.jpg"))[::2]:
            path.write_bytes(b"\xff\xd8\xff")
        self.assert_fault(4, "train", "--config", self.write_config(), cause="could not be read")

    def test_a_loss_that_is_not_finite_stops_the_run(self):
        self.write_config({"train": {"epochs": 3}, "schedule": {"warmup_epochs": 0}})
        self.run_orchard("train", "--config", "tiny.json", "--epochs", "1", "--name", "wild")
        good = (self.folder / "runs/wild/checkpoints/last.pth").read_bytes()
        done = self.run_orchard(
            "train",
            "--config",
            "tiny.json",
            "--name",
            "wild",
            "--resume",
            "--allow-config-change",
            "--set",
            "optimizer.lr=1e6",
            code=7,
        )
        self.assertIn("not finite", done.err)
        # Half of the cosine is gone: 0.5 * 1e6.
        self.assertIn("at step 7, epoch 2, learning rate 5e+05", done.err)
        self.assertIn("runs/wild/checkpoints/last.pth", done.err.splitlines()[-1])
        self.assertEqual(good, (self.folder / "runs/wild/checkpoints/last.pth").read_bytes())

    def test_a_last_batch_of_one_image(self):
        # 54 images: 53 + 1. At 32 px the last feature map is 1x1, where batch norm refuses one value.
        self.write_config({"train": {"epochs": 1, "batch_size": 53}})
        self.run_orchard("train", "--config", "tiny.json")
        self.assertEqual(self.metrics("runs/tiny")[0]["step"], 1)

    def test_batches_of_one_image_train_on_every_image(self):
        self.write_config(
            {
                "train": {"epochs": 1, "batch_size": 1},
                "augment": {"image_size_px": 64},
                "preprocess": {"resize_px": 64, "crop_px": 64},
            }
        )
        self.run_orchard("train", "--config", "tiny.json")
        self.assertEqual(self.metrics("runs/tiny")[0]["step"], 54)

    def test_fewer_images_than_a_batch(self):
        self.write_config({"train": {"epochs": 2, "batch_size": 64}})
        self.run_orchard("train", "--config", "tiny.json")
        self.assertEqual(self.metrics("runs/tiny")[-1]["step"], 2)

    def test_a_full_disk_leaves_the_old_checkpoint(self):
        self.write_config({"train": {"epochs": 1}})
        self.run_orchard("train", "--config", "tiny.json")
        checkpoint = self.folder / "runs/tiny/checkpoints/last.pth"
        good = checkpoint.read_bytes()

        def limit_file_size():
            resource.setrlimit(resource.RLIMIT_FSIZE, (len(good) // 2, len(good) // 2))

        done = self.run_orchard(
            "train",
            "--config",
            "tiny.json",
            "--resume",
            "--epochs",
            "2",
            "--allow-config-change",
            code=6,
            preexec_fn=limit_file_size,
        )
        self.assertIn("File too large", done.err)
        self.assertEqual(good, checkpoint.read_bytes())
        self.assertFalse(list(checkpoint.parent.glob("*.tmp*")))
        self.run_orchard(
            "train", "--config", "tiny.json", "--resume", "--epochs", "2", "--allow-config-change"
        )


if __name__ == "__main__":
    unittest.main()
