"""The JSON Schema agrees with the program, judged by a public library."""

import json
import pathlib
import re
import sys

import jsonschema

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from orchard_cli import SOURCE, CliTest, unittest  # noqa: E402


def without_comments(text):
    return re.sub(r'("(?:[^"\\]|\\.)*")|//[^\n]*', lambda match: match.group(1) or "", text)


class Schema(CliTest):
    def setUp(self):
        super().setUp()
        self.schema = json.loads(self.run_orchard("schema").out)
        jsonschema.Draft202012Validator.check_schema(self.schema)
        self.validator = jsonschema.Draft202012Validator(self.schema)

    def test_shipped_configs_are_valid(self):
        paths = sorted((SOURCE / "configs").glob("*.json"))
        self.assertGreaterEqual(len(paths), 4)
        for path in paths:
            with self.subTest(config=path.name):
                self.validator.validate(json.loads(without_comments(path.read_text())))

    def test_effective_configurations_are_valid(self):
        for name in ["quickstart", "resnet50", "mobilenet_v2"]:
            shown = self.run_orchard("train", "--config", name, "--print-config").out
            self.validator.validate(json.loads(shown))

    def test_schema_and_program_refuse_the_same(self):
        cases = [
            ({"train": {"bacth_size": 1}}, "unknown field"),
            ({"train": {"epochs": 0}}, "must be at least 1"),
            ({"train": {"epochs": "x"}}, "must be a whole number"),
            ({"schedule": {"name": "cosin"}}, "must be one of"),
            ({"augment": {"scale": [0.5]}}, "must be an array of 2 numbers"),
            ({"optimizer": {"nesterov": 1}}, "must be true or false"),
            ({"preprocess": {"mean": [0.5, 0.5, 2]}}, "must be from 0 to 1"),
            ({"data": []}, "must be an object"),
        ]
        for config, message in cases:
            with self.subTest(config=config):
                self.assertTrue(list(self.validator.iter_errors(config)))
                (self.folder / "bad.json").write_text(json.dumps(config))
                self.assert_fault(3, "train", "--config", "bad.json", cause=message)

    def test_the_readme_holds_the_generated_table(self):
        table = self.run_orchard("schema", "--markdown").out.strip()
        self.assertIn(
            table,
            (SOURCE / "README.md").read_text(),
            "run: build/release/orchard schema --markdown, and put it into README.md",
        )


if __name__ == "__main__":
    unittest.main()
