#include "artifacts/checkpoint.hpp"

#include <doctest/doctest.h>
#include <torch/torch.h>

#include <limits>

#include "artifacts/pth.hpp"
#include "base/error.hpp"
#include "base/files.hpp"
#include "support/temp_folder.hpp"

using namespace orchard;
using namespace orchard::artifacts;

namespace {

TrainState example() {
  auto generator = at::detail::createCPUGenerator(1);
  TrainState state;
  state.model = {{"conv.weight", torch::randn({4, 3, 3, 3}, generator)},
                 {"norm.num_batches_tracked", torch::tensor(std::int64_t{7})},
                 {"half", torch::randn({3}, generator).to(torch::kHalf)}};
  state.optimizer_name = "sgd";
  state.optimizer["conv.weight"]["momentum_buffer"] = torch::randn({4, 3, 3, 3}, generator);
  state.generators["cpu"] = torch::arange(100).to(torch::kUInt8);
  state.epoch = 3;
  state.position = 1281167;
  state.step = std::int64_t{1} << 40;
  state.epoch_loss_sum = 0.1 + 0.2;
  state.epoch_correct = 5;
  state.epoch_samples = 9;
  state.epoch_seconds = std::numeric_limits<double>::denorm_min();
  state.best_metric = 1.0 / 3;
  state.best_epoch = 2;
  state.config_json = "{\"a\": \"\\u00e9\\n\"}";
  state.classes = {"apple", "b\xc3\xa9ta", "with space", ""};
  state.data_fingerprint = "00ff";
  state.versions = {{"orchard", "0.1.0"}, {"torch", "2.13.0"}};
  state.skipped_images = {{"a/b.jpg", "truncated JPEG"}};
  return state;
}

std::string error_of(const std::filesystem::path& path) {
  try {
    load_checkpoint(path);
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::Checkpoint);
    CHECK_FALSE(e.remedy().empty());
    return e.what();
  }
  return "";
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a checkpoint comes back to the last bit") {
  const TempFolder folder;
  const TrainState state = example();
  save_checkpoint(folder / "a.pth", state);
  const TrainState back = load_checkpoint(folder / "a.pth");
  REQUIRE(back.model.size() == 3);
  for (const auto& [name, tensor] : state.model) {
    CAPTURE(name);
    CHECK(back.model.at(name).scalar_type() == tensor.scalar_type());
    CHECK(torch::equal(back.model.at(name), tensor));
  }
  CHECK(torch::equal(back.optimizer.at("conv.weight").at("momentum_buffer"),
                     state.optimizer.at("conv.weight").at("momentum_buffer")));
  CHECK(torch::equal(back.generators.at("cpu"), state.generators.at("cpu")));
  CHECK(back.optimizer_name == "sgd");
  CHECK(back.epoch == state.epoch);
  CHECK(back.position == state.position);
  CHECK(back.step == state.step);
  CHECK(back.epoch_loss_sum == state.epoch_loss_sum);
  CHECK(back.epoch_correct == state.epoch_correct);
  CHECK(back.epoch_samples == state.epoch_samples);
  CHECK(back.epoch_seconds == state.epoch_seconds);
  CHECK(back.best_metric == state.best_metric);
  CHECK(back.best_epoch == state.best_epoch);
  CHECK(back.config_json == state.config_json);
  CHECK(back.classes == state.classes);
  CHECK(back.data_fingerprint == state.data_fingerprint);
  CHECK(back.versions == state.versions);
  CHECK(back.skipped_images == state.skipped_images);
}

TEST_CASE("what is no checkpoint is refused with its name and the reason") {
  const TempFolder folder;
  CHECK(has(error_of(folder / "none.pth"), "none.pth"));
  auto dict = new_dict();
  dict.insert("conv1.weight", torch::zeros({1}));
  write_pth(folder / "weights.pth", dict);
  CHECK(has(error_of(folder / "weights.pth"), "weights.pth"));
}

TEST_CASE("a checkpoint of a newer format, or one without a key, is told as such") {
  const TempFolder folder;
  save_checkpoint(folder / "a.pth", example());
  auto dict = read_pth(folder / "a.pth").toGenericDict();
  auto newer = dict.copy();
  newer.insert_or_assign("format_version", std::int64_t{99});
  write_pth(folder / "newer.pth", newer);
  CHECK(has(error_of(folder / "newer.pth"), "99"));
  for (const char* key : {"model", "progress", "classes", "optimizer", "config"}) {
    auto holed = dict.copy();
    CHECK(holed.erase(key) == 1);
    write_pth(folder / "holed.pth", holed);
    CHECK(has(error_of(folder / "holed.pth"), key));
    auto wrong = dict.copy();
    wrong.insert_or_assign(key, 1.5);
    write_pth(folder / "wrong.pth", wrong);
    CHECK(has(error_of(folder / "wrong.pth"), key));
  }
}

TEST_CASE("no flipped bit of a checkpoint goes unnoticed") {
  const TempFolder folder;
  save_checkpoint(folder / "a.pth", example());
  const std::string whole = read_file(folder / "a.pth");
  const TrainState state = example();
  int num_refused = 0;
  int num_harmless = 0;
  for (std::size_t at = 0; at < whole.size(); at += 37) {
    std::string flipped = whole;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x10);
    write_atomically(folder / "b.pth", flipped);
    try {
      const TrainState back = load_checkpoint(folder / "b.pth");
      // Zip padding and time stamps may change; the content may not.
      CHECK(torch::equal(back.model.at("conv.weight"), state.model.at("conv.weight")));
      CHECK(torch::equal(back.optimizer.at("conv.weight").at("momentum_buffer"),
                         state.optimizer.at("conv.weight").at("momentum_buffer")));
      CHECK(back.step == state.step);
      CHECK(back.classes == state.classes);
      CHECK(back.best_metric == state.best_metric);
      ++num_harmless;
    } catch (const Error&) {
      ++num_refused;
    }
  }
  CHECK(num_refused > 20);
  MESSAGE("flipped bytes refused: ", num_refused, ", in padding: ", num_harmless);
}
