// The training loop: epochs of steps, evaluation, checkpoints.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "artifacts/run_folder.hpp"
#include "config/config.hpp"
#include "data/image_folder.hpp"
#include "data/loader.hpp"
#include "device/device.hpp"
#include "models/model.hpp"
#include "train/evaluate.hpp"
#include "train/optimizer.hpp"

namespace orchard::train {

struct StepReport {
  std::int64_t epoch = 0;  // from 1
  std::int64_t num_epochs = 0;
  std::int64_t step = 0;  // of this epoch, from 1
  std::int64_t num_steps = 0;
  double loss = 0;  // mean over the epoch so far
  double lr = 0;
  double images_per_s = 0;   // since the last report
  double waiting_share = 0;  // of that time, spent waiting for images
  std::int64_t memory_bytes = 0;
  double eta_s = 0;  // to the end of the run
};

struct EpochReport {
  std::int64_t epoch = 0;  // from 1
  std::int64_t num_epochs = 0;
  double train_loss = 0;
  double train_top1 = 0;
  bool evaluated = false;
  EvalResult val;
  bool is_best = false;
  double lr = 0;  // of the last step
  double train_s = 0;
};

// What the loop tells while it runs. Called from the training thread.
class Progress {
 public:
  virtual ~Progress() = default;
  virtual void on_step(const StepReport& report) = 0;
  virtual void on_evaluation(std::int64_t num_done, std::int64_t num_images) = 0;
  virtual void on_epoch(const EpochReport& report) = 0;
};

struct Outcome {
  int stop_signal =
      0;  // the signal that ended the run early, after it was saved; 0: it is finished
  double best_top1 = -1;
  std::int64_t best_epoch = -1;  // from 1; -1: never evaluated
  std::filesystem::path last_checkpoint;
  std::vector<data::BadFile> bad_files;  // of both splits
  double seconds = 0;
};

class Trainer {
 public:
  // All references must outlive the trainer. The model is moved to the device.
  Trainer(const config::Config& config, const device::Device& device,
          std::shared_ptr<models::ImageModel> model, const data::ImageFolder& train_images,
          const data::ImageFolder& val_images, artifacts::RunFolder& run, Progress& progress);

  // Goes on from a checkpoint of the same run, read from `file`. Throws Error(Checkpoint) when it
  // does not fit the model or the images.
  void restore(const artifacts::TrainState& state, const std::filesystem::path& file);

  // Trains to the end, or until a signal asks to stop; either way the state is saved. Throws Error
  // when the loss is not finite any more, memory runs out, images fail or a file cannot be written;
  // the last checkpoint is then the one before.
  Outcome fit();

  std::int64_t steps_per_epoch() const { return steps_per_epoch_; }
  double peak_lr() const { return peak_lr_; }
  double learning_rate_at(std::int64_t step) const;

 private:
  std::int64_t steps_of_epoch() const;               // done in this epoch
  double learning_rate_of(std::int64_t step) const;  // of the run's step number `step`, from 1

  using Clock = std::chrono::steady_clock;

  void train_epoch();
  void train_step(const data::Batch& batch);
  void read_pending_metrics();
  [[noreturn]] void throw_diverged(const std::string& what, std::int64_t step) const;
  void report_step(std::int64_t steps_done);
  EvalResult evaluate_model();
  void finish_epoch();
  void save_if_due();
  void save_in_mid_epoch();
  void save_last(const artifacts::TrainState& state);
  artifacts::TrainState snapshot();
  void note_bad_files();

  const config::Config& config_;
  const device::Device& device_;
  std::shared_ptr<models::ImageModel> model_;
  const data::ImageFolder& train_images_;
  artifacts::RunFolder& run_;
  Progress& progress_;
  Normalization normalization_;
  Optimizer optimizer_;
  data::Loader train_loader_;
  data::Loader val_loader_;
  bool leaves_one_over_;
  std::int64_t steps_per_epoch_;
  double peak_lr_;

  // Position, sums and best: what of the run is in a checkpoint beside the tensors.
  artifacts::TrainState state_;

  // Loss and number of right answers of the steps since the last look, still on the device.
  std::vector<torch::Tensor> pending_losses_;
  std::vector<torch::Tensor> pending_correct_;
  std::vector<std::int64_t> pending_sizes_;

  Clock::time_point epoch_began_;
  Clock::time_point last_look_;
  Clock::time_point last_save_;
  double waited_at_last_look_s_ = 0;
  std::int64_t images_at_last_look_ = 0;
  double train_s_per_step_ = 0;
  double eval_s_ = 0;
  std::filesystem::path last_checkpoint_;
};

}  // namespace orchard::train
