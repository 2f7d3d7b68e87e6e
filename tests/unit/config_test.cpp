#include <doctest/doctest.h>

#include <filesystem>
#include <string>

#include "base/error.hpp"
#include "base/files.hpp"
#include "config/describe.hpp"
#include "config/json_text.hpp"
#include "config/load.hpp"
#include "support/contains.hpp"
#include "support/temp_folder.hpp"

using namespace orchard;
using namespace orchard::config;

namespace {

std::string error_of(const std::string& text, const std::vector<std::string>& overrides = {}) {
  try {
    load_text(text, "test.json", overrides);
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::Config);
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("an empty object gives the defaults") {
  const Config config = load_text("{}", "test.json", {});
  CHECK(config.train.batch_size == 256);
  CHECK(config.optimizer.lr == 0.1);
  CHECK(config.preprocess.mean[0] == 0.485);
}

TEST_CASE("values of every type are read") {
  const Config config = load_text(R"({
    // a comment
    "seed": 7, "device": "cpu",
    "augment": {"scale": [0.25, 1], "interpolation": "bicubic"},
    "optimizer": {"nesterov": true, "lr": 1},
    "train": {"batch_size": 1e2}
  })",
                                  "test.json", {});
  CHECK(config.seed == 7);
  CHECK(config.device == "cpu");
  CHECK(config.augment.scale[0] == 0.25);
  CHECK(config.augment.interpolation == Interpolation::Bicubic);
  CHECK(config.optimizer.nesterov);
  CHECK(config.optimizer.lr == 1.0);
  CHECK(config.train.batch_size == 100);
}

TEST_CASE("all problems are told at once, with path, line and the nearest name") {
  const std::string error = error_of(R"({
    "train": {
      "bacth_size": 3,
      "epochs": "many",
      "label_smoothing": 1.5
    },
    "epochs": 3,
    "schedule": {"name": "cosin"},
    "data": 5
  })");
  CHECK(contains(error, "6 problems"));
  CHECK(
      contains(error, "test.json:3: train.bacth_size: unknown field, did you mean 'batch_size'?"));
  CHECK(contains(error, "test.json:4: train.epochs: must be a whole number, not \"many\""));
  CHECK(contains(error, "test.json:5: train.label_smoothing: must be from 0 to 0.999, not 1.5"));
  CHECK(contains(error, "test.json:7: epochs: unknown field, did you mean 'train.epochs'?"));
  CHECK(contains(error, "test.json:8: schedule.name: must be one of constant, cosine, step"));
  CHECK(contains(error, "test.json:9: data: must be an object, not the whole number 5"));
}

TEST_CASE("keys given twice and broken JSON are told with their lines") {
  CHECK(contains(error_of("{\n\"seed\": 1,\n\"seed\": 2}"), "test.json:3: seed: is given twice"));
  CHECK(contains(error_of("{\n\"seed\": 1,\n\"device\" \"cpu\"}"), "test.json:3: not valid JSON"));
  CHECK(contains(error_of("[1]"), "must hold a JSON object"));
}

TEST_CASE("a whole number out of range or with a fraction is refused") {
  CHECK(contains(error_of(R"({"train": {"epochs": 1.5}})"), "must be a whole number"));
  CHECK(contains(error_of(R"({"train": {"epochs": 0}})"), "must be at least 1, not 0"));
  CHECK(contains(error_of(R"({"train": {"epochs": 1e300}})"), "must be a whole number"));
  CHECK(contains(error_of(R"({"seed": true})"), "must be a whole number, not true"));
}

TEST_CASE("fields that must fit each other") {
  CHECK(contains(error_of(R"({"preprocess": {"crop_px": 300}})"),
                 "must be at most preprocess.resize_px"));
  CHECK(contains(error_of(R"({"augment": {"scale": [1, 0.5]}})"), "the first number"));
  CHECK(contains(error_of(R"({"optimizer": {"nesterov": true, "momentum": 0}})"),
                 "optimizer.nesterov"));
  CHECK(contains(error_of(R"({"optimizer": {"lr": 0.1}, "schedule": {"min_lr": 0.2}})"),
                 "schedule.min_lr"));
}

TEST_CASE("overrides win, keep their kind and are checked too") {
  const Config config = load_text(R"({"train": {"epochs": 3}})", "test.json",
                                  {"train.epochs=5", "run.name=17", "augment.scale=[0.5,1]",
                                   "data.root=/a b/c=d", "optimizer.nesterov=true"});
  CHECK(config.train.epochs == 5);
  CHECK(config.run.name == "17");
  CHECK(config.augment.scale[0] == 0.5);
  CHECK(config.data.root == "/a b/c=d");
  CHECK(contains(error_of("{}", {"train.epoch=5"}),
                 "--set train.epoch=5: train.epoch: unknown field, did you mean 'epochs'?"));
  CHECK(contains(error_of("{}", {"train.epochs=x"}), "must be a whole number, not \"x\""));
  CHECK(
      contains(error_of("{}", {"trian.epochs=5"}), "trian: unknown field, did you mean 'train'?"));
  CHECK_THROWS_AS(load_text("{}", "test.json", {"nothing"}), Error);
}

TEST_CASE("a dump reads back as the same configuration") {
  Config config;
  config.optimizer.lr = 0.1 + 0.2;
  config.schedule.name = ScheduleName::Step;
  config.data.root = "with \"quotes\" and \n newline";
  const Config again = load_text(dump(config), "dump", {});
  CHECK(dump(again) == dump(config));
  CHECK(again.optimizer.lr == config.optimizer.lr);
  CHECK(again.data.root == config.data.root);
  PreprocessConfig preprocess;
  preprocess.crop_px = 160;
  CHECK(load_preprocess(dump(preprocess), "card").crop_px == 160);
}

TEST_CASE("extends: the base holds where the file is silent") {
  const TempFolder folder;
  write_atomically(folder / "base.json", R"({"train": {"epochs": 3, "batch_size": 8}, "seed": 5})");
  write_atomically(folder / "own.json", R"({"extends": "base.json", "train": {"epochs": 4}})");
  const Config config = load(folder / "own.json", folder / "none", {});
  CHECK(config.train.epochs == 4);
  CHECK(config.train.batch_size == 8);
  CHECK(config.seed == 5);
  CHECK(config.run.name == "own");

  write_atomically(folder / "wrong.json", "{\"extends\": \"base.json\",\n \"sed\": 1}");
  try {
    load(folder / "wrong.json", folder / "none", {});
    FAIL("must throw");
  } catch (const Error& e) {
    CHECK(contains(e.what(), "wrong.json:2: sed: unknown field, did you mean 'seed'?"));
  }

  write_atomically(folder / "a.json", R"({"extends": "b.json"})");
  write_atomically(folder / "b.json", R"({"extends": "a.json"})");
  try {
    load(folder / "a.json", folder / "none", {});
    FAIL("must throw");
  } catch (const Error& e) {
    CHECK(contains(e.what(), "extends itself"));
  }
}

TEST_CASE("configs are found by path and among the shipped ones") {
  const TempFolder folder;
  std::filesystem::create_directory(folder / "shipped");
  write_atomically(folder / "shipped" / "resnet50.json", "{}");
  CHECK(find_config("resnet50", folder / "shipped") == folder / "shipped" / "resnet50.json");
  CHECK(find_config("resnet50.json", folder / "shipped") == folder / "shipped" / "resnet50.json");
  try {
    find_config("resnet5.json", folder / "shipped");
    FAIL("must throw");
  } catch (const Error& e) {
    CHECK(contains(e.what(), "did you mean 'resnet50.json'?"));
  }
}

TEST_CASE("what may not change at resume is told with both values") {
  Config started;
  Config now = started;
  now.data.workers = 3;
  now.device = "cpu";
  CHECK(resume_conflicts(started, now).empty());
  now.train.epochs = 12;
  const auto conflicts = resume_conflicts(started, now);
  REQUIRE(conflicts.size() == 1);
  CHECK(conflicts[0] == "train.epochs: 12, was 90");
}

TEST_CASE("lines are found below arrays and in nested objects") {
  const JsonLines lines =
      find_lines("{\n\"a\": [1,\n{\"x\": 2}],\n\"b\": {\n\"c\": 1,\n\"d\": 2}\n}");
  CHECK(lines.line_of.at("a") == 2);
  CHECK(lines.line_of.at("b") == 4);
  CHECK(lines.line_of.at("b.c") == 5);
  CHECK(lines.line_of.at("b.d") == 6);
  CHECK(lines.duplicates.empty());
}

TEST_CASE("the table and the schema name every field") {
  CHECK(contains(markdown_table(), "| `optimizer.lr` | `0.1` | 0..1e+06 |"));
  CHECK(contains(json_schema(), "\"label_smoothing\""));
}
