#include "artifacts/checkpoint.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <vector>

#include "artifacts/pth.hpp"
#include "base/error.hpp"
#include "base/files.hpp"
#include "base/philox.hpp"
#include "support/child.hpp"
#include "support/contains.hpp"
#include "support/same_bits.hpp"
#include "support/temp_folder.hpp"
#include "support/train_state.hpp"

using namespace orchard;
using namespace orchard::artifacts;
namespace fs = std::filesystem;

namespace {

bool same(const NamedTensors& a, const NamedTensors& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.first == y.first && same_bits(x.second, y.second);
  });
}

// Every field, one by one: a field that is forgotten in the file keeps its default and shows here.
void check_same(const TrainState& a, const TrainState& b) {
  CHECK(same(a.model, b.model));
  CHECK(a.optimizer_name == b.optimizer_name);
  CHECK(std::equal(
      a.optimizer.begin(), a.optimizer.end(), b.optimizer.begin(), b.optimizer.end(),
      [](const auto& x, const auto& y) { return x.first == y.first && same(x.second, y.second); }));
  CHECK(same(a.generators, b.generators));
  CHECK(a.epoch == b.epoch);
  CHECK(a.position == b.position);
  CHECK(a.step == b.step);
  CHECK(a.epoch_loss_sum == b.epoch_loss_sum);
  CHECK(a.epoch_correct == b.epoch_correct);
  CHECK(a.epoch_samples == b.epoch_samples);
  CHECK(a.epoch_seconds == b.epoch_seconds);
  CHECK(a.best_metric == b.best_metric);
  CHECK(a.best_epoch == b.best_epoch);
  CHECK(a.config_json == b.config_json);
  CHECK(a.classes == b.classes);
  CHECK(a.data_fingerprint == b.data_fingerprint);
  CHECK(a.versions == b.versions);
  CHECK(a.skipped_images == b.skipped_images);
}

std::string cause_of(const fs::path& path) {
  try {
    load_checkpoint(path);
    return "";
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::Checkpoint);
    return std::string(e.what()) + " | " + e.remedy();
  }
}

}  // namespace

TEST_CASE("a train state comes back exactly") {
  const TempFolder folder;
  const TrainState state = make_state(47);
  save_checkpoint(folder / "a.pth", state);
  check_same(load_checkpoint(folder / "a.pth"), state);
  CHECK(read_progress(folder / "a.pth") == Progress{47, 4, 7 * 32});

  const TrainState fresh;  // nothing trained, nothing measured
  save_checkpoint(folder / "b.pth", fresh);
  check_same(load_checkpoint(folder / "b.pth"), fresh);
}

TEST_CASE("tensors of a loaded state are its own") {
  const TempFolder folder;
  save_checkpoint(folder / "a.pth", make_state(1));
  const auto loaded = load_checkpoint(folder / "a.pth");
  loaded.model.at("conv.weight").zero_();
  check_same(load_checkpoint(folder / "a.pth"), make_state(1));
}

TEST_CASE("a checkpoint that is not ours, newer or incomplete is told what it is") {
  const TempFolder folder;
  const fs::path path = folder / "a.pth";
  auto plain = new_dict();
  plain.insert("conv.weight", torch::ones({3}));
  write_pth(path, plain);
  CHECK(contains(cause_of(path), "it is not a checkpoint of Orchard"));
  write_pth(path, std::int64_t{5});
  CHECK(contains(cause_of(path), "it is not a checkpoint of Orchard"));

  save_checkpoint(path, make_state(3));
  const auto whole = read_pth(path).toGenericDict();
  auto changed = whole.copy();
  changed.insert_or_assign("format_version", 2);
  write_pth(path, changed);
  CHECK(contains(cause_of(path),
                 "its format_version is 2 (Orchard 0.1.0), this program reads up to 1"));
  CHECK(contains(cause_of(path), "use a newer Orchard"));

  changed = whole.copy();
  REQUIRE(changed.erase("generators") == 1);
  auto progress = whole.at("progress").toGenericDict().copy();
  REQUIRE(progress.erase("step") == 1);
  changed.insert_or_assign("progress", progress);
  changed.insert_or_assign("classes", "cat");
  write_pth(path, changed);
  CHECK(contains(cause_of(path),
                 "it lacks 'generators', 'progress.step'; its 'classes' is not a list"));

  for (const auto& entry : whole) {  // none is optional
    changed = whole.copy();
    REQUIRE(changed.erase(entry.key()) == 1);
    write_pth(path, changed);
    CAPTURE(entry.key().toStringRef());
    CHECK(!cause_of(path).empty());
  }
  changed = whole.copy();
  changed.insert_or_assign("from the future", 1);
  write_pth(path, changed);
  check_same(load_checkpoint(path), make_state(3));
}

TEST_CASE("killed at any moment, the file is one of the saved states") {
  const TempFolder folder;
  const fs::path path = folder / "last.pth";
  std::vector<TrainState> states;
  for (std::int64_t step = 0; step < 4; ++step) {
    states.push_back(make_state(step, 200'000));  // 1.6 MB
  }
  save_checkpoint(path, states[0]);
  Philox draws(3, 0, 0, 0);
  int half_written = 0;
  std::vector<int> seen(states.size());
  for (int kill = 0; kill < 30; ++kill) {
    const pid_t child = start_child([&] {
      for (std::size_t i = 1;; ++i) {
        save_checkpoint(path, states[i % states.size()]);
      }
      return 0;
    });
    ::usleep(static_cast<useconds_t>(draws.below(20'000)));
    ::kill(child, SIGKILL);
    REQUIRE(wait_for(child) == -1);
    const auto loaded = load_checkpoint(path);
    REQUIRE(loaded.step < 4);
    check_same(loaded, states[static_cast<std::size_t>(loaded.step)]);
    ++seen[static_cast<std::size_t>(loaded.step)];
    for (const auto& entry : fs::directory_iterator(folder.path())) {
      if (entry.path() != path) {
        ++half_written;
        fs::remove(entry.path());
      }
    }
  }
  MESSAGE(half_written, " of 30 kills hit a half written file");
  CHECK(half_written > 5);  // else the kills came at the wrong moments and prove nothing
  CHECK(std::count(seen.begin(), seen.end(), 0) < 3);
}
