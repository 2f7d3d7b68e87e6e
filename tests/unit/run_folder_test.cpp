#include "artifacts/run_folder.hpp"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <chrono>
#include <cmath>
#include <csignal>
#include <fstream>
#include <set>
#include <sstream>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/philox.hpp"
#include "base/text.hpp"
#include "support/child.hpp"
#include "support/contains.hpp"
#include "support/same_bits.hpp"
#include "support/temp_folder.hpp"
#include "support/train_state.hpp"

using namespace orchard;
using namespace orchard::artifacts;
namespace fs = std::filesystem;

namespace {

void put(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// A bit of a tensor's data: the pickle, and with it the step, can still be read.
void damage(const fs::path& path) {
  std::string bytes = read_file(path);
  bytes[bytes.size() / 2] ^= 1;
  fs::remove(path);  // it may be a second name of another file
  put(path, bytes);
}

template <class Action>
std::string cause_of(Action action, ErrorKind kind = ErrorKind::Checkpoint) {
  try {
    action();
    return "";
  } catch (const Error& e) {
    CHECK(e.kind() == kind);
    CHECK(!e.remedy().empty());
    return e.what();
  }
}

ino_t inode(const fs::path& path) {
  struct stat status{};
  return ::stat(path.c_str(), &status) == 0 ? status.st_ino : 0;
}

}  // namespace

TEST_CASE("a taken name gets the next number") {
  const TempFolder folder;
  const fs::path runs = folder / "new" / "runs";
  CHECK(RunFolder::create(runs, "a").path() == runs / "a");
  CHECK(RunFolder::create(runs, "a").path() == runs / "a-2");
  fs::create_directory(runs / "a-9");
  put(runs / "a-10", "a file takes a name too");
  fs::create_directory(runs / "a-020");  // not a number as we write it
  fs::create_directory(runs / "a-99x");
  CHECK(RunFolder::create(runs, "a").path() == runs / "a-11");
  CHECK(fs::is_directory(runs / "a-11" / "checkpoints"));
  CHECK(fs::is_directory(runs / "a-11" / "export"));
  CHECK(RunFolder::create(runs, "a-2").path() == runs / "a-2-2");
  for (const char* name : {"", ".", "..", "a/b", "/tmp"}) {
    CHECK(
        contains(cause_of([&] { RunFolder::create(runs, name); }, ErrorKind::Config), "run.name"));
  }
  CHECK(contains(cause_of([&] { RunFolder::create(runs / "a-10", "b"); }), "a-10"));
}

TEST_CASE("programs that start at the same time get folders of their own") {
  const TempFolder folder;
  std::vector<pid_t> children;
  for (int i = 0; i < 8; ++i) {
    children.push_back(start_child([&] {
      const RunFolder run = RunFolder::create(folder.path(), "a");
      put(run.path() / "mine", std::to_string(::getpid()));
      return 0;
    }));
  }
  for (const pid_t child : children) {
    CHECK(wait_for(child) == 0);
  }
  std::set<std::string> owners;
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    owners.insert(read_file(entry.path() / "mine"));
  }
  CHECK(owners.size() == 8);
}

TEST_CASE("a run folder has one program at a time, and a dead one frees it") {
  const TempFolder folder;
  const fs::path path = folder / "a";
  {
    RunFolder run = RunFolder::create(folder.path(), "a");
    const auto cause = cause_of([&] { RunFolder::open(path); });
    CHECK(contains(cause, "another program is training in '" + path.string()));
    CHECK(contains(cause, std::to_string(::getpid())));
    const RunFolder moved = std::move(run);
    CHECK(!cause_of([&] { RunFolder::open(path); }).empty());
  }
  CHECK(RunFolder::open(path).path() == path);

  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const pid_t child = start_child([&] {
    const RunFolder run = RunFolder::open(path);
    if (::write(ready[1], "x", 1) != 1) {
      return 1;
    }
    for (;;) {
      ::pause();
    }
    return 0;
  });
  char byte = 0;
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  CHECK(contains(cause_of([&] { RunFolder::open(path); }), str("process ", child)));
  ::kill(child, SIGKILL);
  CHECK(wait_for(child) == -1);
  CHECK(RunFolder::open(path).path() == path);
  ::close(ready[0]);
  ::close(ready[1]);

  CHECK(contains(cause_of([&] { RunFolder::open(folder / "none"); }), "there is no such folder"));
  CHECK(contains(cause_of([&] { RunFolder::open(folder.path()); }), "it is not a run folder"));
}

TEST_CASE("config, classes and skipped images are one record a line") {
  const TempFolder folder;
  RunFolder run = RunFolder::create(folder.path(), "a");
  run.write_config("{}");
  run.write_classes({"cat", "dög"});
  run.write_skipped({{"train/b.jpg", "cut\noff"}, {"train/a\t.jpg", "empty"}});
  CHECK(read_file(run.path() / "config.json") == "{}\n");
  CHECK(read_file(run.path() / "classes.txt") == "cat\ndög\n");
  CHECK(read_file(run.path() / "skipped_images.txt") ==
        "train/a\\t.jpg\tempty\ntrain/b.jpg\tcut\\noff\n");
}

TEST_CASE("metrics keep one header and one row an epoch, whatever was resumed") {
  const TempFolder folder;
  RunFolder run = RunFolder::create(folder.path(), "a");
  const auto csv = [&] { return read_file(run.path() / "metrics.csv"); };
  run.write_metrics({{"epoch", 1}, {"lr", 0.1}, {"loss", 1.0 / 3.0}});
  CHECK(csv() == "epoch,lr,loss\n1,0.1,0.3333333333333333\n");
  run.write_metrics({{"epoch", 2}, {"lr", 1e-5}, {"loss", 100}, {"val, \"top1\"", 0.5}});
  CHECK(csv() ==
        "epoch,lr,loss,\"val, \"\"top1\"\"\"\n1,0.1,0.3333333333333333,\n2,1e-05,100,0.5\n");
  run.write_metrics({{"epoch", 3}, {"loss", std::nan("")}, {"lr", HUGE_VAL}});
  CHECK(read_file(run.path() / "metrics.jsonl") ==
        "{\"epoch\": 1, \"lr\": 0.1, \"loss\": 0.3333333333333333}\n"
        "{\"epoch\": 2, \"lr\": 1e-05, \"loss\": 100, \"val, \\\"top1\\\"\": 0.5}\n"
        "{\"epoch\": 3, \"loss\": \"nan\", \"lr\": \"inf\"}\n");
  // Resumed from the end of epoch 1: the second row replaces the second and the third.
  run.write_metrics({{"epoch", 2}, {"lr", 0.25}});
  CHECK(csv() == "epoch,lr,loss\n1,0.1,0.3333333333333333\n2,0.25,\n");
  run.write_metrics({{"epoch", 10}, {"lr", 0.5}});
  run.write_metrics({{"epoch", 9}, {"lr", 0.5}});  // numbers, not texts, are compared
  CHECK(csv() == "epoch,lr,loss\n1,0.1,0.3333333333333333\n2,0.25,\n9,0.5,\n");

  fs::create_directory(folder / "b");
  fs::create_directory(folder / "b" / "metrics.jsonl");
  CHECK(contains(cause_of([&] { write_metrics(folder / "b", {{"epoch", 1}}); }), "it is a folder"));

  // A kill between the two files left the table behind: the next row brings it up to date.
  put(run.path() / "metrics.csv", "epoch,lr\n1,0.1\n");
  run.write_metrics({{"epoch", 10}, {"lr", 0.5}});
  CHECK(csv() == "epoch,lr,loss\n1,0.1,0.3333333333333333\n2,0.25,\n9,0.5,\n10,0.5,\n");
}

TEST_CASE("numbers in the metrics read back exactly") {
  const TempFolder folder;
  RunFolder run = RunFolder::create(folder.path(), "a");
  Philox draws(1, 2, 3, 4);
  std::vector<double> values = {5e-324, 1e15, 1e16, 123456789012345678.0, -0.0, 1e308, 0.1 + 0.2};
  for (int i = 0; i < 200; ++i) {
    const double value = std::bit_cast<double>(draws.next_u64());
    values.push_back(std::isfinite(value) ? value : draws.next_double());
  }
  MetricsRow row = {{"epoch", 1}};
  for (std::size_t i = 0; i < values.size(); ++i) {
    row.emplace_back(str("v", i), values[i]);
  }
  run.write_metrics(row);
  run.write_metrics({{"epoch", 2}});  // the first row went through the parser
  std::string line = read_file(run.path() / "metrics.csv");
  line = line.substr(line.find('\n') + 3);  // after the header and "1,"
  for (const double value : values) {
    CHECK(std::bit_cast<std::uint64_t>(std::strtod(line.c_str(), nullptr)) ==
          std::bit_cast<std::uint64_t>(value));
    line.erase(0, std::min(line.find(',') + 1, line.size()));
  }
}

TEST_CASE("checkpoints: one write for one state, independent names, pruning") {
  const TempFolder folder;
  RunFolder run = RunFolder::create(folder.path(), "a");
  const fs::path files = run.checkpoint_folder();
  for (const char* foreign :
       {"epoch_1.pth", "epoch_00007.pth", "epoch_0001.pth.bak", "my_epoch_0001.pth",
        "epoch_+001.pth", "epoch_-001.pth", "epoch_00a1.pth", "notes.txt"}) {
    put(files / foreign, "mine");
  }
  fs::create_directory(files / "epoch_0000.pth");
  const auto foreign = names_in(files);

  for (std::int64_t epoch = 9998; epoch <= 10'001; ++epoch) {
    const auto state = make_state(10 * epoch);
    if (epoch == 9998) {
      run.save_best(state);
    }
    run.save_last(make_state(10 * epoch));
    run.save_epoch(make_state(10 * epoch), 2);
    CHECK(inode(files / "last.pth") == inode(files / str("epoch_", epoch, ".pth")));
    CHECK((inode(files / "best.pth") == inode(files / "last.pth")) == (epoch == 9998));
  }
  auto expected = foreign;
  expected.insert({"best.pth", "last.pth", "epoch_10000.pth", "epoch_10001.pth"});
  CHECK(names_in(files) == expected);
  CHECK(load_checkpoint(files / "best.pth").step == 99'980);
  CHECK(load_checkpoint(files / "last.pth").step == 100'010);

  run.save_last(make_state(100'015));  // replaces one name only
  CHECK(load_checkpoint(files / "last.pth").step == 100'015);
  CHECK(load_checkpoint(files / "epoch_10001.pth").step == 100'010);

  auto other = make_state(100'015);  // the same step, another best
  other.best_metric = 0.9;
  run.save_last(other);
  CHECK(load_checkpoint(files / "last.pth").best_metric == 0.9);

  run.save_epoch(make_state(100'020), 0);  // none are wanted
  expected.erase("epoch_10000.pth");
  expected.erase("epoch_10001.pth");
  CHECK(names_in(files) == expected);
  run.save_last(make_state(100'020));
  CHECK(load_checkpoint(files / "last.pth").step == 100'020);
}

TEST_CASE("the newest run by number that holds a checkpoint") {
  const TempFolder folder;
  CHECK(!RunFolder::find_newest(folder.path(), "a"));
  CHECK(!RunFolder::find_newest(folder / "none", "a"));
  for (const char* name : {"a", "a-9", "a-10", "a-11", "a-12x", "b-20", "a-b-30"}) {
    fs::create_directories(folder / name / "checkpoints");
  }
  CHECK(!RunFolder::find_newest(folder.path(), "a"));
  for (const char* name : {"a", "a-9", "a-10", "a-12x", "b-20", "a-b-30"}) {
    put(folder / name / "checkpoints" / "last.pth", "x");
  }
  put(folder / "a-11" / "checkpoints" / "best.pth", "x");  // nothing to go on from
  CHECK(RunFolder::find_newest(folder.path(), "a") == folder / "a-10");
  CHECK(RunFolder::find_newest(folder.path(), "b") == folder / "b-20");  // b itself was removed
  CHECK(RunFolder::find_newest(folder.path(), "a-b") == folder / "a-b-30");
  CHECK(RunFolder::find_newest(folder.path(), "a-1") == std::nullopt);
}

TEST_CASE("resume takes the furthest good checkpoint") {
  const TempFolder folder;
  const fs::path path = folder / "a";
  const fs::path files = path / "checkpoints";
  RunFolder run = RunFolder::create(folder.path(), "a");
  CHECK(
      contains(cause_of([&] { find_checkpoint(path); }), "there is no checkpoint to resume from"));
  CHECK(contains(cause_of([&] { find_checkpoint(folder / "none"); }), "there is no such file"));
  for (const std::int64_t step : {10, 20, 30}) {
    run.save_epoch(make_state(step), 5);
  }
  run.save_best(make_state(20));
  run.save_last(make_state(35));

  auto found = find_checkpoint(path);
  CHECK(found.file == files / "last.pth");
  CHECK(found.run_folder == path);
  CHECK(found.newest);
  CHECK(found.state.step == 35);
  CHECK(same_bits(found.state.model.at("conv.weight"), make_state(35).model.at("conv.weight")));
  CHECK(find_checkpoint(files).file == files / "last.pth");
  CHECK(find_checkpoint(files / "last.pth").newest);
  CHECK(find_checkpoint(files / "last.pth").run_folder == path);
  CHECK(!find_checkpoint(files / "epoch_0003.pth").newest);

  // An older last.pth (copied back by hand, say) is not the furthest.
  fs::copy_file(files / "epoch_0001.pth", files / "last.pth", fs::copy_options::overwrite_existing);
  CHECK(find_checkpoint(path).file == files / "epoch_0003.pth");
  CHECK(find_checkpoint(files / "epoch_0003.pth").newest);

  damage(files / "epoch_0003.pth");
  CHECK(find_checkpoint(path).state.step == 20);
  put(files / "epoch_0002.pth", "");
  found = find_checkpoint(path);
  CHECK(found.state.step == 10);
  CHECK(found.file == files / "last.pth");  // the same step in two files
  CHECK(contains(cause_of([&] { find_checkpoint(files / "epoch_0003.pth"); }), "epoch_0003.pth"));
  damage(files / "last.pth");
  damage(files / "epoch_0001.pth");
  try {
    find_checkpoint(path);
    FAIL("damaged files were read");
  } catch (const Error& e) {
    CHECK(contains(e.what(), "can be read (4 tried)"));
    CHECK(contains(e.remedy(), "best.pth"));
  }

  save_checkpoint(folder / "lone.pth", make_state(5));
  found = find_checkpoint(folder / "lone.pth");
  CHECK(found.run_folder.empty());
  CHECK(found.newest);
}

TEST_CASE("the best checkpoint, else the last") {
  const TempFolder folder;
  RunFolder run = RunFolder::create(folder.path(), "a");
  CHECK(contains(cause_of([&] { find_best(run.path()); }), "there is no checkpoint"));
  run.save_last(make_state(1));
  CHECK(find_best(run.path()) == run.checkpoint_folder() / "last.pth");
  run.save_best(make_state(2));
  CHECK(find_best(run.path()) == run.checkpoint_folder() / "best.pth");
}

TEST_CASE("opening removes what dead programs left, and nothing else") {
  const TempFolder folder;
  const fs::path path = RunFolder::create(folder.path(), "a").path();
  const pid_t dead = start_child([] { return 0; });
  CHECK(wait_for(dead) == 0);
  const std::string end = str(".tmp-", dead);
  put(path / ("metrics.csv" + end), "x");
  put(path / "checkpoints" / ("epoch_0003.pth" + end), "x");
  put(path / "checkpoints" / str("last.pth.tmp-", ::getpid()), "x");
  put(path / "export" / ("resnet50.ts" + end), "x");
  put(path / "export" / str("resnet50.ts.tmp-", ::getppid()), "alive");
  put(path / "checkpoints" / ("notes" + end), "not ours");
  put(path / "checkpoints" / "last.pth.tmp-12x", "not ours");
  put(path / "checkpoints" / "last.pth.tmp-", "not ours");
  RunFolder::open(path);
  CHECK(names_in(path) == std::set<std::string>{".lock", "checkpoints", "export"});
  CHECK(names_in(path / "checkpoints") ==
        std::set<std::string>{"notes" + end, "last.pth.tmp-12x", "last.pth.tmp-"});
  CHECK(names_in(path / "export") == std::set<std::string>{str("resnet50.ts.tmp-", ::getppid())});
}

TEST_CASE("a full disk keeps every earlier checkpoint and row") {
  const TempFolder folder;
  std::vector<TrainState> states = {make_state(10, 50'000), make_state(20, 50'000)};
  CHECK(in_child([&] {
          RunFolder run = RunFolder::create(folder.path(), "a");
          run.write_metrics({{"epoch", 1}});
          run.save_best(states[0]);
          run.save_last(states[0]);
          ::signal(SIGXFSZ, SIG_IGN);
          const rlimit limit = {9, 9};
          ::setrlimit(RLIMIT_FSIZE, &limit);
          int errors = 0;
          const auto count = [&](auto action) {
            try {
              action();
            } catch (const Error& e) {
              errors += e.kind() == ErrorKind::Checkpoint ? 1 : 0;
            }
          };
          count([&] { run.write_metrics({{"epoch", 2}}); });
          count([&] { run.save_best(states[1]); });
          count([&] { run.save_last(states[1]); });
          count([&] { run.save_epoch(states[1], 2); });
          return errors;
        }) == 4);
  const fs::path path = folder / "a";
  CHECK(names_in(path / "checkpoints") == std::set<std::string>{"best.pth", "last.pth"});
  CHECK(load_checkpoint(path / "checkpoints" / "best.pth").step == 10);
  CHECK(load_checkpoint(path / "checkpoints" / "last.pth").step == 10);
  CHECK(read_file(path / "metrics.jsonl") == "{\"epoch\": 1}\n");
}

TEST_CASE("killed at any moment, a run folder opens and goes on") {
  const TempFolder folder;
  const fs::path path = RunFolder::create(folder.path(), "a").path();
  std::vector<TrainState> states;
  for (std::int64_t epoch = 0; epoch < 40; ++epoch) {
    states.push_back(make_state(10 * epoch, 20'000));
  }
  const auto train = [&](const fs::path& where, std::int64_t first, std::int64_t last) {
    RunFolder run = RunFolder::open(where);
    for (std::int64_t epoch = first; epoch <= last; ++epoch) {
      const auto& state = states[static_cast<std::size_t>(epoch)];
      const auto number = static_cast<double>(epoch);
      run.write_metrics({{"epoch", number}, {"twice", 2 * number}});
      run.save_best(state);
      run.save_last(state);
      run.save_epoch(state, 2);
    }
    return 0;
  };
  // The kills are spread over the first four epochs, however fast this machine and build are.
  const fs::path trial = RunFolder::create(folder.path(), "trial").path();
  const auto began = std::chrono::steady_clock::now();
  CHECK(in_child([&] { return train(trial, 1, 4); }) == 0);
  const auto epoch_us = static_cast<std::uint64_t>(
      std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - began).count() /
      4);
  Philox draws(7, 0, 0, 0);
  std::int64_t reached = 0;
  int went_on = 0;
  for (int kill = 0; kill < 30; ++kill) {
    const std::int64_t start = reached;
    const pid_t child = start_child([&] { return train(path, start + 1, 39); });
    ::usleep(static_cast<useconds_t>(draws.below(4 * epoch_us)));
    ::kill(child, SIGKILL);
    wait_for(child);
    const RunFolder run = RunFolder::open(path);
    for (const auto& name : names_in(run.checkpoint_folder())) {
      CAPTURE(name);
      CHECK(name.ends_with(".pth"));
      const auto state = load_checkpoint(run.checkpoint_folder() / name);
      CHECK(same_bits(state.model.at("conv.weight"),
                      states[static_cast<std::size_t>(state.epoch)].model.at("conv.weight")));
    }
    if (fs::exists(run.checkpoint_folder() / "last.pth")) {
      const auto found = find_checkpoint(path);
      CHECK(found.state.epoch >= start);  // nothing that was saved is lost
      went_on += found.state.epoch > start ? 1 : 0;
      reached = found.state.epoch == 39 ? 0 : found.state.epoch;
      std::istringstream lines(read_file(path / "metrics.jsonl"));
      std::int64_t rows = 0;
      for (std::string line; std::getline(lines, line);) {
        ++rows;
        CHECK(line == str("{\"epoch\": ", rows, ", \"twice\": ", 2 * rows, "}"));
      }
      CHECK(rows >= found.state.epoch);
      if (reached == 0) {  // begin again
        fs::remove_all(run.checkpoint_folder());
        fs::create_directory(run.checkpoint_folder());
        fs::remove(path / "metrics.jsonl");
      }
    }
  }
  CHECK(went_on > 3);  // else the kills came too early and prove nothing
}
