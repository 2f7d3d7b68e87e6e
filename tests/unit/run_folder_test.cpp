#include "artifacts/run_folder.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <fstream>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/philox.hpp"
#include "base/text.hpp"
#include "support/temp_folder.hpp"

using namespace orchard;
using namespace orchard::artifacts;
namespace fs = std::filesystem;

namespace {

TrainState state_at(std::int64_t step) {
  TrainState state;
  state.model["w"] = torch::full({50}, static_cast<double>(step));
  state.optimizer_name = "sgd";
  state.step = step;
  state.config_json = "{}";
  state.classes = {"a", "b"};
  return state;
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::Checkpoint);
    return std::string(e.what()) + " | " + e.remedy();
  }
  return "";
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void damage(const fs::path& file) {
  std::string content = read_file(file);
  content[content.size() / 2] = static_cast<char>(content[content.size() / 2] ^ 1);
  write_atomically(file, content);
}

}  // namespace

TEST_CASE("a new run never takes the folder of another one") {
  const TempFolder folder;
  for (int i = 1; i <= 11; ++i) {
    const auto run = RunFolder::create(folder / "runs", "net");
    CHECK(run.path() == folder / "runs" / (i == 1 ? "net" : str("net-", i)));
  }
}

TEST_CASE("the newest run is the one of the highest number that has a checkpoint") {
  const TempFolder folder;
  CHECK_FALSE(RunFolder::find_newest(folder / "runs", "net").has_value());
  for (int i = 1; i <= 11; ++i) {
    auto run = RunFolder::create(folder / "runs", "net");
    if (i == 2 || i == 10) {
      run.save_last(state_at(i));
    }
  }
  RunFolder::create(folder / "runs", "net-other").save_last(state_at(1));
  CHECK(RunFolder::find_newest(folder / "runs", "net") == folder / "runs" / "net-10");
}

TEST_CASE("two programs cannot train in one folder") {
  const TempFolder folder;
  const auto path = [&] {
    auto run = RunFolder::create(folder.path(), "net");
    CHECK(has(error_of([&] { RunFolder::open(run.path()); }), "net"));
    return run.path();
  }();
  RunFolder::open(path);  // free again
  CHECK(has(error_of([&] { RunFolder::open(folder / "none"); }), "none"));
}

TEST_CASE("metrics: one header, rows replaced from a resumed epoch on, values that come back") {
  const TempFolder folder;
  auto run = RunFolder::create(folder.path(), "net");
  for (int epoch = 1; epoch <= 4; ++epoch) {
    run.write_metrics({{"epoch", epoch}, {"loss", 1.0 / epoch}});
  }
  run.write_metrics({{"epoch", 3}, {"loss", 0.1 + 0.2}, {"val_top1", 0.5}});
  std::ifstream csv(run.path() / "metrics.csv");
  std::vector<std::string> lines;
  for (std::string line; std::getline(csv, line);) {
    lines.push_back(line);
  }
  REQUIRE(lines.size() == 4);
  CHECK(lines[0] == "epoch,loss,val_top1");
  CHECK(lines[1] == "1,1,");
  CHECK(std::stod(lines[3].substr(2)) == 0.1 + 0.2);
  CHECK(lines[3].substr(lines[3].size() - 4) == ",0.5");
  const std::string jsonl = read_file(run.path() / "metrics.jsonl");
  CHECK(std::count(jsonl.begin(), jsonl.end(), '\n') == 3);
}

TEST_CASE("only the newest epoch checkpoints are kept, and nothing foreign is removed") {
  const TempFolder folder;
  auto run = RunFolder::create(folder.path(), "net");
  fs::create_directories(run.checkpoint_folder());
  write_atomically(run.checkpoint_folder() / "epoch_0001.pth.mine", "x");
  write_atomically(run.checkpoint_folder() / "my_epoch_0001.pth", "x");
  for (int epoch = 1; epoch <= 4; ++epoch) {
    auto state = state_at(epoch * 10);
    state.epoch = epoch;
    run.save_last(state);
    run.save_best(state);
    run.save_epoch(state, 2);
  }
  CHECK(names_in(run.checkpoint_folder()) ==
        std::vector<std::string>{"best.pth", "epoch_0001.pth.mine", "epoch_0003.pth",
                                 "epoch_0004.pth", "last.pth", "my_epoch_0001.pth"});
  // Each name is a file of its own: writing one leaves the others.
  run.save_last(state_at(99));
  CHECK(load_checkpoint(run.checkpoint_folder() / "best.pth").step == 40);
  CHECK(load_checkpoint(run.checkpoint_folder() / "epoch_0004.pth").step == 40);
}

TEST_CASE("resume takes the furthest good checkpoint") {
  const TempFolder folder;
  fs::path path;
  {
    auto run = RunFolder::create(folder.path(), "net");
    path = run.path();
    auto state = state_at(10);
    state.epoch = 1;
    run.save_last(state);
    run.save_epoch(state, 5);
    run.save_last(state_at(15));
  }
  const fs::path last = path / "checkpoints" / "last.pth";
  const fs::path epoch = path / "checkpoints" / "epoch_0001.pth";
  auto found = find_checkpoint(path);
  CHECK(found.file == last);
  CHECK(found.state.step == 15);
  CHECK(found.newest);
  CHECK(fs::equivalent(found.run_folder, path));
  found = find_checkpoint(epoch);
  CHECK(found.state.step == 10);
  CHECK_FALSE(found.newest);
  damage(last);
  found = find_checkpoint(path);
  CHECK(found.file == epoch);
  CHECK(found.newest);
  damage(epoch);
  CHECK(has(error_of([&] { find_checkpoint(path); }), "net"));
  CHECK(has(error_of([&] { find_checkpoint(folder / "none"); }), "none"));
  fs::copy_file(last, folder / "alone.pth");
  CHECK(has(error_of([&] { find_checkpoint(folder / "alone.pth"); }), "alone.pth"));
}

TEST_CASE("a process that is killed while it saves leaves a whole checkpoint") {
  const TempFolder folder;
  fs::path path;
  {
    auto run = RunFolder::create(folder.path(), "net");
    path = run.path();
    run.save_last(state_at(0));
  }
  Philox draws(1, 0, 0, 0);
  std::int64_t num_new = 0;
  std::int64_t step = 0;
  for (int i = 0; i < 25; ++i) {
    std::array<int, 2> ready{};
    REQUIRE(::pipe(ready.data()) == 0);
    const pid_t child = ::fork();
    if (child == 0) {
      at::set_num_threads(1);
      auto run = RunFolder::open(path);
      for (std::int64_t next = step + 1;; ++next) {
        auto state = state_at(next);
        state.epoch = next;
        run.save_last(state);
        run.save_best(state);
        run.save_epoch(state, 2);
        if (next == step + 1 && ::write(ready[1], "x", 1) != 1) {
          ::_exit(1);
        }
      }
    }
    char byte = 0;
    REQUIRE(::read(ready[0], &byte, 1) == 1);
    ::usleep(static_cast<useconds_t>(draws.below(6000)));  // a random moment of the saving
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    ::close(ready[0]);
    ::close(ready[1]);
    const auto found = find_checkpoint(path);
    CHECK(found.state.step > step);
    CHECK(found.file.filename() == "last.pth");
    CHECK(torch::equal(found.state.model.at("w"), state_at(found.state.step).model.at("w")));
    num_new += found.state.step - step;
    step = found.state.step;
  }
  CHECK(num_new >= 25);
  RunFolder::open(path);  // removes what the killed ones left
  for (const auto& name : names_in(path / "checkpoints")) {
    CHECK(name.find(".tmp") == std::string::npos);
  }
}
