"""Runs the real program in a temporary folder. ORCHARD names the binary."""

import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest

ORCHARD = os.environ["ORCHARD"]
SOURCE = pathlib.Path(__file__).resolve().parents[2]

# Small enough that one epoch takes about a second on two cores.
TINY = {
    "augment": {"image_size_px": 32, "scale": [0.5, 1.0]},
    "preprocess": {"resize_px": 36, "crop_px": 32},
    "model": {"name": "resnet18"},
    "optimizer": {"lr": 0.02, "weight_decay": 5e-4, "decay_norm_and_bias": False},
    "schedule": {"name": "cosine", "warmup_epochs": 1},
    "train": {"epochs": 2, "batch_size": 16, "label_smoothing": 0.1},
    "data": {"root": "sample"},
    "device": "cpu",
    "threads": 2,
}


def merged(base, changes):
    result = dict(base)
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(result.get(key), dict):
            value = merged(result[key], value)
        result[key] = value
    return result


class CliTest(unittest.TestCase):
    """A temporary folder for each test, with `sample` as its data set where `sample_args` is set."""

    sample_args = None

    @classmethod
    def setUpClass(cls):
        cls._shared = tempfile.TemporaryDirectory(prefix="orchard-cli-")
        cls.shared = pathlib.Path(cls._shared.name)
        if cls.sample_args is not None:
            subprocess.run(
                [ORCHARD, "make-sample", "sample", *cls.sample_args],
                cwd=cls.shared,
                check=True,
                stdout=subprocess.DEVNULL,
            )

    @classmethod
    def tearDownClass(cls):
        cls._shared.cleanup()

    def setUp(self):
        self._temporary = tempfile.TemporaryDirectory(prefix="orchard-cli-")
        self.folder = pathlib.Path(self._temporary.name)
        if self.sample_args is not None:
            (self.folder / "sample").symlink_to(self.shared / "sample")
        self.addCleanup(self._temporary.cleanup)

    def write_config(self, changes=None, name="tiny.json"):
        path = self.folder / name
        path.write_text(json.dumps(merged(TINY, changes or {})))
        return name

    def start(self, *args, **kwargs):
        return subprocess.Popen(
            [ORCHARD, *map(str, args)],
            cwd=self.folder,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **kwargs,
        )

    def run_orchard(self, *args, code=0, timeout=300, **kwargs):
        process = self.start(*args, **kwargs)
        out, err = process.communicate(timeout=timeout)
        self.assertEqual(
            process.returncode, code, f"orchard {args}\n--- stdout\n{out}\n--- stderr\n{err}"
        )
        process.out, process.err = out, err
        return process

    def assert_fault(self, code, *args, cause, remedy="what to do: "):
        """The program ends with this code, one error that holds `cause`, and a remedy."""
        done = self.run_orchard(*args, code=code)
        errors = [line for line in done.err.splitlines() if line.startswith("error: ")]
        self.assertEqual(len(errors), 1, done.err)
        self.assertIn(cause, done.err)
        self.assertIn(remedy, done.err)
        self.assertIn("what to do: ", done.err)
        return done

    def wait_for(self, condition, process, timeout_s=120):
        """Waits until the condition holds while the process runs."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if process.poll() is not None:
                out, err = process.communicate()
                self.fail(f"ended too early with {process.returncode}\n{out}\n{err}")
            self.assertLess(time.monotonic(), deadline, "timed out")
            time.sleep(0.02)

    def signal_and_wait(self, process, number, code, timeout=120):
        process.send_signal(number)
        process.out, process.err = process.communicate(timeout=timeout)
        self.assertEqual(process.returncode, code, process.err)
        return process

    def metrics(self, run):
        lines = (self.folder / run / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]


__all__ = ["CliTest", "ORCHARD", "SOURCE", "TINY", "merged", "signal", "unittest"]
