// The folder of one run:
//
//   runs/<name>/config.json          the effective configuration
//               classes.txt          one name a line; the line is the index
//               metrics.csv, .jsonl  one row an epoch, one header, whatever was resumed
//               log.txt
//               skipped_images.txt   path <tab> reason, when there are any
//               checkpoints/last.pth, best.pth, epoch_0007.pth
//               export/
//               .lock                held while a program trains here
//
// Everything in it but the log is written through this class, atomically.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "artifacts/checkpoint.hpp"
#include "artifacts/metrics.hpp"

namespace orchard::artifacts {

class RunFolder {
 public:
  // Makes `dir/name`, or when that is taken `dir/name-N` with the next number, and locks it.
  static RunFolder create(const std::filesystem::path& dir, const std::string& name);
  // Opens and locks an existing one. Throws Error(Checkpoint) when it is not a run folder, or when
  // another program holds it.
  static RunFolder open(const std::filesystem::path& path);
  // The newest run called `name` in `dir` (the highest number) that holds a checkpoint, if any.
  static std::optional<std::filesystem::path> find_newest(const std::filesystem::path& dir,
                                                          const std::string& name);

  RunFolder(RunFolder&& other) noexcept;
  RunFolder& operator=(RunFolder&&) = delete;
  ~RunFolder();  // releases the lock

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path log_file() const { return path_ / "log.txt"; }
  std::filesystem::path checkpoint_folder() const { return path_ / "checkpoints"; }
  std::filesystem::path export_folder() const { return path_ / "export"; }

  void write_config(const std::string& json);
  void write_classes(const std::vector<std::string>& classes);
  void write_skipped(const std::map<std::string, std::string>& skipped);

  // See artifacts/metrics.hpp.
  void write_metrics(const MetricsRow& row);

  // A state of one step saved under several names is written once (see link_atomically).
  std::filesystem::path save_last(const TrainState& state);
  std::filesystem::path save_best(const TrainState& state);
  // checkpoints/epoch_NNNN.pth, then removes all but the newest `keep` of these. Only files that
  // carry exactly that kind of name are ever removed.
  void save_epoch(const TrainState& state, std::int64_t keep);

 private:
  explicit RunFolder(std::filesystem::path path);  // locks

  std::filesystem::path save(const std::string& file, const TrainState& state);

  std::filesystem::path path_;
  int lock_ = -1;

  // The file written last and the state in it, without the model's and the optimizer's tensors: the
  // same state under another name is a second name of that file.
  std::filesystem::path saved_file_;
  TrainState saved_state_;
};

// The best checkpoint of a run folder, else the last. Throws Error(Checkpoint) when there is none.
std::filesystem::path find_best(const std::filesystem::path& run_folder);

// What `--resume WHERE` means: a checkpoint file as it is; a run folder's newest good checkpoint (a
// damaged one is passed over with a warning and the one before it is taken).
struct FoundCheckpoint {
  std::filesystem::path file;
  std::filesystem::path run_folder;  // empty when the file does not lie in one
  bool newest = false;               // the furthest of its run folder
  TrainState state;
};
FoundCheckpoint find_checkpoint(const std::filesystem::path& where);

}  // namespace orchard::artifacts
