"""scripts/check_rooms finds each kind of fault in a small tree, and none in this one."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]

# A small tree without a fault; the tests add one each.
GOOD = {
    "src/main.cpp": '#include "base/error.hpp"\n#include "cli/cli.hpp"\nint main() {}\n',
    "src/base/error.hpp": "#pragma once\n#include <string>\n",
    "src/base/log.cpp": "#include <spdlog/spdlog.h>\n",
    "src/base/stop.cpp": "void stop() { std::_Exit(130); }\n",
    "src/config/config.hpp": '#pragma once\n#include "base/error.hpp"\n',
    "src/config/load.cpp": '#include "config/config.hpp"\n#include <nlohmann/json.hpp>\n',
    "src/device/device.hpp": "#pragma once\n#include <torch/types.h>\n#ifdef __APPLE__\n#endif\n",
    "src/data/decode.cpp": "#include <opencv2/imgcodecs.hpp>\n",
    "src/models/model.hpp": "#pragma once\n#include <torch/nn/module.h>\n",
    "src/artifacts/pth.hpp": '#pragma once\n#include "models/model.hpp"\n',
    "src/train/trainer.cpp": '#include "artifacts/pth.hpp"\n#include "device/device.hpp"\n',
    "src/commands/commands.hpp": "#pragma once\n",
    "src/commands/train.cpp": '#include "commands/commands.hpp"\nvoid f() { std::printf("x"); }\n',
    "src/cli/cli.hpp": "#pragma once\n",
    "src/cli/cli.cpp": '#include <CLI/CLI.hpp>\nauto* x = std::getenv("X");\n',
}


class CheckRooms(unittest.TestCase):
    def check(self, root):
        return subprocess.run(
            [sys.executable, "-B", SOURCE / "scripts/check_rooms", root],
            text=True,
            capture_output=True,
        )

    def check_tree(self, changes=(), build_file=None):
        """Runs the check on GOOD with these files added or replaced; None removes a file."""
        tree = {k: v for k, v in {**GOOD, **dict(changes)}.items() if v is not None}
        if build_file is None:
            build_file = "\n".join(name for name in tree if name.endswith(".cpp"))
        with tempfile.TemporaryDirectory(prefix="orchard-rooms-") as folder:
            root = pathlib.Path(folder)
            for name, text in {**tree, "CMakeLists.txt": build_file}.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            return self.check(root)

    def assert_fault(self, path, text, *parts):
        """A tree with this one file is refused, with one line that names the file and the parts."""
        done = self.check_tree({path: text})
        faults = [line for line in done.stdout.splitlines() if line.startswith(path)]
        self.assertEqual((done.returncode, len(faults)), (1, 1), done.stdout + done.stderr)
        for part in parts:
            self.assertIn(part, faults[0])

    def assert_good(self, changes=()):
        done = self.check_tree(changes)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_this_tree_is_good(self):
        done = self.check(SOURCE)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_the_small_tree_is_good(self):
        self.assertIn(f"{len(GOOD)} files, 0 faults", self.assert_good())

    def test_an_include_that_points_up(self):
        upward = [
            ("base", "config/config.hpp"),
            ("config", "device/device.hpp"),
            ("config", "models/model.hpp"),
            ("device", "models/model.hpp"),
            ("data", "device/device.hpp"),
            ("models", "config/config.hpp"),
            ("artifacts", "device/device.hpp"),
            ("artifacts", "train/trainer.hpp"),
            ("train", "commands/commands.hpp"),
            ("commands", "cli/cli.hpp"),
            ("cli", "train/trainer.hpp"),
        ]
        for room, header in upward:
            with self.subTest(room=room, header=header):
                text = f'// a line before\n#include "{header}"\n'
                self.assert_fault(
                    f"src/{room}/new.cpp", text, ":2: ", f'{room} includes "{header}"'
                )

    def test_main_may_not_reach_below_cli(self):
        self.assert_fault("src/main.cpp", '#include "train/trainer.hpp"\n', "base, cli")

    def test_libraries_stay_in_their_rooms(self):
        wrong = [
            ("base/new.cpp", "torch/torch.h"),
            ("config/new.cpp", "ATen/ATen.h"),
            ("data/new.hpp", "c10/util/Exception.h"),
            ("cli/new.cpp", "torch/torch.h"),
            ("train/new.cpp", "torch/cuda.h"),
            ("models/new.cpp", "c10/cuda/CUDACachingAllocator.h"),
            ("train/new.cpp", "ATen/detail/MPSHooksInterface.h"),
            ("data/new.hpp", "opencv2/core.hpp"),
            ("commands/new.cpp", "opencv2/imgcodecs.hpp"),
            ("config/new.hpp", "nlohmann/json.hpp"),
            ("train/new.cpp", "nlohmann/json.hpp"),
            ("base/new.cpp", "spdlog/spdlog.h"),
            ("train/new.cpp", "fmt/format.h"),
            ("commands/new.cpp", "CLI/CLI.hpp"),
        ]
        for path, header in wrong:
            with self.subTest(path=path, header=header):
                text = f"#pragma once\n#include <{header}>\n"
                self.assert_fault(f"src/{path}", text, f"<{header}> is not for")

    def test_words_stay_in_their_rooms(self):
        wrong = [
            ("train", 'auto* x = std::getenv("X");', "getenv"),
            ("data", "#ifdef __APPLE__\n#endif", "__APPLE__"),
            ("train", 'std::cout << "x";', "std::cout"),
            ("artifacts", 'std::printf("x");', "printf"),
            ("artifacts", 'printf("x");', "printf"),
            ("base", 'std::fprintf(stdout, "x");', "stdout"),
            ("commands", "std::exit(1);", "exit"),
            ("train", "abort();", "abort"),
        ]
        for room, line, word in wrong:
            with self.subTest(room=room, line=line):
                self.assert_fault(f"src/{room}/new.cpp", line + "\n", ":1: ", word)

    def test_words_that_only_look_alike(self):
        harmless = [
            "// getenv(x), std::cout, __APPLE__ and exit(1) in a comment",
            "/* std::cout\n   printf(x) */",
            'const char* text = "use printf( or std::cout \\" getenv(";',
            'const char* text = R"(std::cout << getenv("X"))";',
            "std::snprintf(buffer, 3, format); std::fprintf(stderr, format);",
            "return app.exit(error);",
            "void catch_exit(); int my_abort(int);",
            "long million = 1'000'000; char quote = '\"'; int exits = 0;",
        ]
        for line in harmless:
            with self.subTest(line=line):
                self.assert_good({"src/train/new.cpp": line + "\n"})

    def test_a_word_after_a_harmless_string_is_found(self):
        line = "char quote = '\"'; long n = 1'000; std::cout << n;\n"
        self.assert_fault("src/train/new.cpp", line, "std::cout")

    def test_paths_of_includes(self):
        self.assert_fault("src/train/new.cpp", '#include "../base/error.hpp"\n', "out of a folder")
        self.assert_fault("src/train/new.cpp", '#include "base/../base/error.hpp"\n', "folder")
        self.assert_fault("src/train/new.cpp", '#include "error.hpp"\n', "in no known room")
        self.assert_fault("src/train/new.cpp", "#include <base/error.hpp>\n", "a file of ours")

    def test_a_room_that_is_not_in_the_table(self):
        self.assert_fault("src/utils/new.cpp", "\n", "'utils' is no room")

    def test_a_header_without_pragma_once(self):
        self.assert_fault("src/train/new.hpp", "int x();\n", "#pragma once")

    def test_the_build_file_names_every_source_once(self):
        named = [name for name in GOOD if name.endswith(".cpp")]
        for build_file, fault in [
            (named[1:], f"{named[0]}: is not in CMakeLists.txt"),
            ([*named, "src/train/gone.cpp"], "src/train/gone.cpp does not exist"),
            ([*named, named[0]], f"{named[0]} is named more than once"),
        ]:
            with self.subTest(fault=fault):
                done = self.check_tree(build_file="\n".join(build_file))
                self.assertEqual(done.returncode, 1)
                self.assertIn(fault, done.stdout)

    def test_a_long_file_is_a_warning_alone(self):
        out = self.assert_good({"src/train/new.cpp": "\n" * 501})
        self.assertIn("src/train/new.cpp: warning: 501 lines", out)
        self.assertNotIn("warning", self.assert_good({"src/train/new.cpp": "\n" * 500}))

    def test_an_empty_tree_is_an_error(self):
        with tempfile.TemporaryDirectory(prefix="orchard-rooms-") as folder:
            done = self.check(folder)
        self.assertEqual(done.returncode, 2)
        self.assertIn("no source files", done.stderr)


if __name__ == "__main__":
    unittest.main()
