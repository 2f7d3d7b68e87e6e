"""Files in both directions between our reader and writer and Python's torch, value for value.

`copy` reads what Python saved and writes it again, so that one comparison covers both ways.
"""

import collections
import json
import os
import pathlib
import subprocess
import tempfile
import unittest
import zipfile

import torch

PROBE = os.environ["ORCHARD_ARTIFACTS_PROBE"]


class ArtifactsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="orchard-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def probe(self, *args, code=0):
        done = subprocess.run([PROBE, *map(str, args)], capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stderr

    def copy(self, value, **save_options):
        torch.save(value, self.folder / "in.pth", **save_options)
        self.probe("copy", self.folder / "in.pth", self.folder / "out.pth")
        return torch.load(self.folder / "out.pth", weights_only=True)

    def assert_same(self, a, b, where=""):
        if isinstance(a, torch.Tensor):
            self.assertEqual((a.dtype, a.shape), (b.dtype, b.shape), where)
            bits = [t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (a, b)]
            self.assertTrue(torch.equal(*bits), where)
        elif isinstance(a, dict):
            self.assertEqual(list(a), list(b), where)
            for key in a:
                self.assert_same(a[key], b[key], f"{where}.{key}")
        elif isinstance(a, (list, tuple)):
            self.assertEqual((type(a), len(a)), (type(b), len(b)), where)
            for i, (x, y) in enumerate(zip(a, b, strict=True)):
                self.assert_same(x, y, f"{where}[{i}]")
        else:
            self.assertEqual((type(a), repr(a)), (type(b), repr(b)), where)

    def test_plain_values(self):
        integers = [
            0,
            1,
            255,
            256,
            65535,
            65536,
            -1,
            2**31 - 1,
            2**31,
            -(2**31) - 1,
            2**40,
            -(2**47),
            2**55,
            2**63 - 1,
            -(2**63),
        ]
        value = {
            "integers": integers,
            "floats": [0.0, -0.0, 0.1, 1e-320, 1e308, float("inf"), float("nan")],
            "rest": (True, False, None, "", "dög 猫 🌳", "zero\0byte", "\udcff\udc80", [], {}, ()),
            "nested": {"a": {"b": [{"c": (1, (2, (3, 4, 5, 6)))}]}},
            3: "an integer as key",
            -(2**40): "another",
            **{f"key {i}": i for i in range(3000)},  # pickled in batches
        }
        self.assert_same(value, self.copy(value))

    def test_tensors(self):
        torch.manual_seed(3)
        types = [
            torch.float32,
            torch.float64,
            torch.float16,
            torch.bfloat16,
            torch.int64,
            torch.int32,
            torch.int16,
            torch.int8,
            torch.uint8,
            torch.bool,
            torch.complex64,
            torch.complex128,
        ]
        base = torch.randn(10, 10)
        value = {
            **{str(kind): (torch.randn(3, 5) * 40).to(kind) for kind in types},
            "scalar": torch.tensor(5),
            "empty": torch.empty(0, 3),
            "rows": base[2:4],
            "columns": base[:, 3],
            "transposed": base.t(),
            "expanded": torch.randn(1, 3).expand(4, 3),
            "channels last": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
            "parameter": torch.nn.Parameter(torch.randn(3)),
            "random state": torch.get_rng_state(),
        }
        back = self.copy(value)
        self.assert_same(value, back)
        self.assertFalse(back["parameter"].requires_grad)

    def test_state_dicts(self):
        model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Linear(4, 2)
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model[2](torch.randn(2, 4)).sum().backward()
        optimizer.step()
        for value in [
            model.state_dict(),
            collections.OrderedDict(a=1),
            {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3},
        ]:
            self.assert_same(value, self.copy(value))
        model.load_state_dict(torch.load(self.folder / "out.pth", weights_only=True)["model"])

    def test_layout(self):
        self.copy({"a": torch.randn(1000), "b": torch.randn(3).half()})
        path = self.folder / "out.pth"
        with zipfile.ZipFile(path) as archive:
            self.assertIsNone(archive.testzip())
            names = {name.split("/", 1)[1] for name in archive.namelist()}
            self.assertLessEqual({"data.pkl", "byteorder", "data/0", "data/1", "version"}, names)
        mapped = torch.load(path, weights_only=True, mmap=True)
        self.assert_same(torch.load(self.folder / "in.pth"), mapped)

    def test_refusals(self):
        def refusal(value, **save_options):
            torch.save(value, self.folder / "in.pth", **save_options)
            message = self.probe("copy", self.folder / "in.pth", self.folder / "out.pth", code=6)
            self.assertIn("in.pth", message)
            return message

        self.assertIn("torch.nn.modules.linear.Linear", refusal(torch.nn.Linear(2, 2)))
        self.assertIn("pathlib", refusal({"path": pathlib.Path("a")}))
        self.assertIn("before version 1.6", refusal({"a": 1}, _use_new_zipfile_serialization=False))
        self.assertIn("more than 64 bits", refusal({"a": 2**63}))
        marker = self.folder / "ran"

        class Evil:
            def __reduce__(self):
                return os.system, (f"touch {marker}",)

        self.assertIn("system", refusal({"a": Evil()}))
        self.assertFalse(marker.exists())
        self.assertFalse((self.folder / "out.pth").exists())

    def test_export(self):
        self.probe("export", self.folder / "a.ts", self.folder / "a.pth")
        values = torch.load(self.folder / "a.pth", weights_only=True)
        extra = {"orchard.json": "", "classes.txt": ""}
        script = torch.jit.load(str(self.folder / "a.ts"), _extra_files=extra)
        self.assertEqual(
            {k: (v.shape, v.dtype) for k, v in script.state_dict().items()},
            {k: (v.shape, v.dtype) for k, v in values["model"].items()},
        )
        for name, tensor in script.state_dict().items():
            self.assert_same(values["model"][name], tensor, name)
        self.assertFalse(any(p.requires_grad for p in script.parameters()))
        constants = [n for n in script.graph.nodes() if n.kind() == "prim::Constant"]
        self.assertFalse(any(str(n.output().type()).endswith("Tensor") for n in constants))
        with torch.no_grad():
            for batch in [9, 1, 4, 9, 9]:
                images = values["images"][:batch]
                expected = values["logits"][:batch]
                self.assertLess(
                    (script(images) - expected).abs().max().item(),
                    1e-5 * expected.abs().max().item(),
                )
        card = json.loads(extra["orchard.json"])
        self.assertEqual(card["classes"], ["a", "b", "c", "dög"])
        self.assertEqual(extra["classes.txt"].decode(), "a\nb\nc\ndög\n")
        self.assertEqual(card["preprocess"]["crop_px"], 224)


if __name__ == "__main__":
    unittest.main()
