#include "artifacts/run_folder.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/log.hpp"
#include "base/text.hpp"

namespace orchard::artifacts {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLast = "last.pth";
constexpr const char* kBest = "best.pth";

// --- names ---

std::optional<std::int64_t> parse_number(std::string_view digits) {
  std::int64_t value = 0;
  const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  const bool whole = code == std::errc() && end == digits.data() + digits.size();
  return whole && digits[0] != '-' ? std::optional(value) : std::nullopt;
}

std::string epoch_file(std::int64_t epoch) {
  std::array<char, 48> name{};
  std::snprintf(name.data(), name.size(), "epoch_%04lld.pth", static_cast<long long>(epoch));
  return name.data();
}

// The number in exactly such a name.
std::optional<std::int64_t> epoch_of(const std::string& name) {
  constexpr std::string_view kStart = "epoch_";
  constexpr std::string_view kEnd = ".pth";
  if (!name.starts_with(kStart) || !name.ends_with(kEnd) ||
      name.size() < kStart.size() + 4 + kEnd.size()) {
    return std::nullopt;
  }
  const auto number = parse_number(
      std::string_view(name).substr(kStart.size(), name.size() - kStart.size() - kEnd.size()));
  return number && epoch_file(*number) == name ? number : std::nullopt;
}

// 1 for `name`, N for `name-N`, none for others.
std::optional<std::int64_t> run_number(const std::string& folder, const std::string& name) {
  if (folder == name) {
    return 1;
  }
  if (!folder.starts_with(name + "-")) {
    return std::nullopt;
  }
  const auto number = parse_number(std::string_view(folder).substr(name.size() + 1));
  return number && *number >= 2 && folder == str(name, "-", *number) ? number : std::nullopt;
}

std::string run_name(const std::string& name, std::int64_t number) {
  return number == 1 ? name : str(name, "-", number);
}

// What lies in a folder; empty when it cannot be listed.
std::vector<fs::directory_entry> entries_of(const fs::path& folder) {
  std::vector<fs::directory_entry> entries;
  std::error_code code;
  for (fs::directory_iterator at(folder, code), end; !code && at != end; at.increment(code)) {
    entries.push_back(*at);
  }
  return entries;
}

bool is_regular(const fs::directory_entry& entry) {
  std::error_code code;
  return entry.symlink_status(code).type() == fs::file_type::regular;
}

bool is_run_folder(const fs::path& path) {
  std::error_code code;
  return fs::is_directory(path / "checkpoints", code) || fs::exists(path / "config.json", code);
}

// The files to resume from: last.pth and the epochs'.
std::vector<fs::path> checkpoints_in(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : entries_of(folder)) {
    const std::string name = entry.path().filename().string();
    std::error_code code;
    if ((name == kLast || epoch_of(name)) && entry.is_regular_file(code)) {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

// Removes `<file of ours>.tmp-<pid>` that killed programs left. The lock is held, so a number like
// our own is a leftover too.
void remove_leftovers(const fs::path& folder) {
  for (const auto& entry : entries_of(folder)) {
    const std::string name = entry.path().filename().string();
    const auto at = name.rfind(".tmp-");
    if (at == std::string::npos || !is_regular(entry)) {
      continue;
    }
    const std::string target = name.substr(0, at);
    const auto pid = parse_number(std::string_view(name).substr(at + 5));
    constexpr std::array kOurs = {
        "config.json",        "classes.txt", "metrics.csv", "metrics.jsonl",
        "skipped_images.txt", kLast,         kBest};
    const bool ours = std::find(kOurs.begin(), kOurs.end(), target) != kOurs.end() ||
                      epoch_of(target) || target.ends_with(".ts");
    if (!ours || !pid || *pid <= 0 || *pid > std::numeric_limits<pid_t>::max()) {
      continue;
    }
    const bool dead =
        *pid == ::getpid() || (::kill(static_cast<pid_t>(*pid), 0) != 0 && errno == ESRCH);
    std::error_code code;
    if (dead && fs::remove(entry.path(), code)) {
      log::info(
          str("removed '", entry.path().string(), "', left half written by a program that ended"));
    }
  }
}

[[noreturn]] void fail(const std::string& what, const fs::path& path, int error_number) {
  throw Error(ErrorKind::Checkpoint,
              str(what, " '", path.string(), "': ", std::strerror(error_number)),
              "make the folder writable, or set run.dir to another one");
}

int lock_folder(const fs::path& path) {
  const fs::path file = path / ".lock";
  const int lock = ::open(file.c_str(), O_CREAT | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (lock < 0) {
    fail("cannot open the lock", file, errno);
  }
  if (::flock(lock, LOCK_EX | LOCK_NB) != 0) {
    const int error_number = errno;
    std::array<char, 32> pid{};
    const ssize_t length = ::pread(lock, pid.data(), pid.size() - 1, 0);
    ::close(lock);
    if (error_number != EWOULDBLOCK) {
      fail("cannot lock", file, error_number);
    }
    throw Error(ErrorKind::Checkpoint,
                str("another program is training in '", path.string(), "'",
                    length > 0 ? str(" (process ", std::strtol(pid.data(), nullptr, 10), ")") : ""),
                "wait until it has ended, or stop it; its lock goes with it");
  }
  // Who holds it, for the message above; nothing depends on it.
  const std::string pid = str(::getpid(), "\n");
  if (::ftruncate(lock, 0) != 0 ||
      ::pwrite(lock, pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    log::debug(str("cannot note the process in '", file.string(), "'"));
  }
  return lock;
}

// Keeps one record on one line.
std::string one_line(const std::string& text) {
  std::string line;
  for (const char c : text) {
    switch (c) {
      case '\n':
        line += "\\n";
        break;
      case '\r':
        line += "\\r";
        break;
      case '\t':
        line += "\\t";
        break;
      default:
        line += c;
    }
  }
  return line;
}

// The state without the tensors of model and optimizer.
TrainState outline(const TrainState& state) {
  TrainState copy = state;
  copy.model.clear();
  copy.optimizer.clear();
  for (auto& [device, generator] : copy.generators) {
    generator = generator.clone();
  }
  return copy;
}

// Whether two states of one run are the same: the weights follow from the step.
bool same_state(const TrainState& a, const TrainState& b) {
  const auto scalars = [](const TrainState& s) {
    return std::tie(s.epoch, s.position, s.step, s.epoch_loss_sum, s.epoch_correct, s.epoch_samples,
                    s.epoch_seconds, s.best_metric, s.best_epoch, s.optimizer_name, s.config_json,
                    s.classes, s.data_fingerprint, s.versions, s.skipped_images);
  };
  return scalars(a) == scalars(b) &&
         std::equal(a.generators.begin(), a.generators.end(), b.generators.begin(),
                    b.generators.end(), [](const auto& x, const auto& y) {
                      return x.first == y.first && torch::equal(x.second, y.second);
                    });
}

}  // namespace

// --- making and opening ---

RunFolder::RunFolder(fs::path path) : path_(std::move(path)), lock_(lock_folder(path_)) {}

RunFolder::RunFolder(RunFolder&& other) noexcept
    : path_(std::move(other.path_)),
      lock_(std::exchange(other.lock_, -1)),
      saved_file_(std::move(other.saved_file_)),
      saved_state_(std::move(other.saved_state_)) {}

RunFolder::~RunFolder() {
  if (lock_ >= 0) {
    ::close(lock_);
  }
}

RunFolder RunFolder::create(const fs::path& dir, const std::string& name) {
  if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos) {
    throw Error(ErrorKind::Config, str("run.name is '", name, "', which cannot name a folder"),
                "set run.name to a plain name, and run.dir to the folder that holds it");
  }
  std::error_code code;
  fs::create_directories(dir, code);
  if (code) {
    fail("cannot make the folder", dir, code.value());
  }
  std::int64_t number = 1;
  for (const auto& entry : entries_of(dir)) {
    if (const auto taken = run_number(entry.path().filename().string(), name)) {
      number = std::max(number, *taken + 1);
    }
  }
  // mkdir decides between programs that start at the same time.
  for (;; ++number) {
    const fs::path path = dir / run_name(name, number);
    if (::mkdir(path.c_str(), 0755) == 0) {
      RunFolder folder(path);
      for (const auto& inner : {folder.checkpoint_folder(), folder.export_folder()}) {
        if (::mkdir(inner.c_str(), 0755) != 0) {
          fail("cannot make the folder", inner, errno);
        }
      }
      return folder;
    }
    if (errno != EEXIST) {
      fail("cannot make the folder", path, errno);
    }
  }
}

RunFolder RunFolder::open(const fs::path& path) {
  std::error_code code;
  if (!fs::is_directory(path, code) || !is_run_folder(path)) {
    throw Error(ErrorKind::Checkpoint,
                str("cannot open '", path.string(), "': ",
                    fs::exists(path, code) ? "it is not a run folder" : "there is no such folder"),
                "give a folder that `orchard train` made (it holds config.json and checkpoints/)");
  }
  RunFolder folder(path);
  for (const auto& inner : {folder.checkpoint_folder(), folder.export_folder()}) {
    if (::mkdir(inner.c_str(), 0755) != 0 && errno != EEXIST) {
      fail("cannot make the folder", inner, errno);
    }
  }
  remove_leftovers(folder.path());
  remove_leftovers(folder.checkpoint_folder());
  remove_leftovers(folder.export_folder());
  return folder;
}

std::optional<fs::path> RunFolder::find_newest(const fs::path& dir, const std::string& name) {
  std::int64_t newest = 0;
  for (const auto& entry : entries_of(dir)) {
    const auto number = run_number(entry.path().filename().string(), name);
    if (number && *number > newest && !checkpoints_in(entry.path() / "checkpoints").empty()) {
      newest = *number;
    }
  }
  return newest == 0 ? std::nullopt : std::optional(dir / run_name(name, newest));
}

// --- writing ---

void RunFolder::write_config(const std::string& json) {
  write_atomically(path_ / "config.json", json.ends_with('\n') ? json : json + "\n");
}

void RunFolder::write_classes(const std::vector<std::string>& classes) {
  std::string text;
  for (const auto& name : classes) {
    text += one_line(name) + "\n";
  }
  write_atomically(path_ / "classes.txt", text);
}

void RunFolder::write_skipped(const std::map<std::string, std::string>& skipped) {
  std::string text;
  for (const auto& [path, reason] : skipped) {
    text += one_line(path) + "\t" + one_line(reason) + "\n";
  }
  write_atomically(path_ / "skipped_images.txt", text);
}

void RunFolder::write_metrics(const MetricsRow& row) {
  artifacts::write_metrics(path_, row);
}

fs::path RunFolder::save(const std::string& file, const TrainState& state) {
  const fs::path target = checkpoint_folder() / file;
  std::error_code code;
  if (fs::exists(saved_file_, code) && same_state(saved_state_, state)) {
    if (target != saved_file_) {
      link_atomically(saved_file_, target);
    }
    return target;
  }
  saved_file_.clear();  // it may be the one that is being replaced
  save_checkpoint(target, state);
  saved_file_ = target;
  saved_state_ = outline(state);
  return target;
}

fs::path RunFolder::save_last(const TrainState& state) {
  return save(kLast, state);
}
fs::path RunFolder::save_best(const TrainState& state) {
  return save(kBest, state);
}

void RunFolder::save_epoch(const TrainState& state, std::int64_t keep) {
  std::string saved;
  if (keep > 0) {
    saved = save(epoch_file(state.epoch), state).filename().string();
  }
  std::vector<std::int64_t> epochs;
  for (const auto& entry : entries_of(checkpoint_folder())) {
    const std::string name = entry.path().filename().string();
    if (const auto epoch = epoch_of(name); epoch && name != saved && is_regular(entry)) {
      epochs.push_back(*epoch);
    }
  }
  std::sort(epochs.rbegin(), epochs.rend());
  // The one just saved is always among the kept.
  for (auto at = static_cast<std::size_t>(std::max<std::int64_t>(0, keep - 1)); at < epochs.size();
       ++at) {
    const fs::path old = checkpoint_folder() / epoch_file(epochs[at]);
    std::error_code code;
    if (!fs::remove(old, code) && code) {
      log::warn(str("cannot remove the old checkpoint '", old.string(), "': ", code.message()));
    }
  }
}

// --- finding ---

fs::path find_best(const fs::path& run_folder) {
  for (const auto& folder : {run_folder / "checkpoints", run_folder}) {
    for (const char* name : {kBest, kLast}) {
      std::error_code code;
      if (fs::exists(folder / name, code)) {
        return folder / name;
      }
    }
  }
  throw Error(ErrorKind::Checkpoint, str("there is no checkpoint in '", run_folder.string(), "'"),
              "give a run folder with checkpoints/best.pth or last.pth, or the path of a file");
}

FoundCheckpoint find_checkpoint(const fs::path& where) {
  std::error_code code;
  const bool is_folder = fs::is_directory(where, code);
  const fs::path absolute = fs::absolute(where).lexically_normal();
  fs::path folder = is_folder ? absolute : absolute.parent_path();
  if (is_folder && fs::is_directory(absolute / "checkpoints", code)) {
    folder = absolute / "checkpoints";
  }
  FoundCheckpoint found;
  if (folder.filename() == "checkpoints" && is_run_folder(folder.parent_path())) {
    found.run_folder = folder.parent_path();
    if (where.is_relative()) {
      found.run_folder = found.run_folder.lexically_proximate(fs::current_path());
    }
  }

  if (!is_folder) {
    found.file = where;
    found.state = load_checkpoint(where);
    const Progress here = {found.state.step, found.state.epoch, found.state.position};
    found.newest = true;
    for (const auto& other : checkpoints_in(folder)) {
      try {
        found.newest &= !(here < read_progress(other));
      } catch (const Error&) {
        continue;  // a damaged one cannot be resumed from, so it is not further
      }
    }
    return found;
  }

  struct Candidate {
    Progress progress;
    fs::path file;
  };
  std::vector<Candidate> candidates;
  const auto files = checkpoints_in(folder);
  const auto pass_over = [](const Error& e) { log::warn(str(e.what(), "; it is passed over")); };
  for (const auto& file : files) {
    try {
      candidates.push_back({read_progress(file), file});
    } catch (const Error& e) {
      pass_over(e);
    }
  }
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    const auto key = [](const Candidate& c) {
      return std::pair(c.progress, c.file.filename() == kLast);
    };
    return key(b) < key(a);
  });
  for (const auto& candidate : candidates) {
    try {
      found.state = load_checkpoint(candidate.file);
      found.file = candidate.file;
      found.newest = true;
      return found;
    } catch (const Error& e) {
      pass_over(e);
    }
  }
  if (files.empty()) {
    throw Error(ErrorKind::Checkpoint,
                str("there is no checkpoint to resume from in '", where.string(), "'"),
                "give a run folder that holds checkpoints/last.pth, or the path of a checkpoint");
  }
  const bool has_best = fs::exists(folder / kBest, code);
  throw Error(
      ErrorKind::Checkpoint,
      str("no checkpoint in '", folder.string(), "' can be read (", files.size(), " tried)"),
      has_best ? str("resume from '", (folder / kBest).string(), "', or start a new run")
               : "start a new run");
}

}  // namespace orchard::artifacts
