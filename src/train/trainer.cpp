#include "train/trainer.hpp"

#include <torch/types.h>
#include <torch/utils.h>
#include <torch/version.h>

#include <algorithm>
#include <cmath>

#include "artifacts/inference.hpp"
#include "base/error.hpp"
#include "base/log.hpp"
#include "base/stop.hpp"
#include "base/text.hpp"
#include "base/version.hpp"
#include "config/load.hpp"
#include "data/transforms.hpp"
#include "train/schedule.hpp"

namespace orchard::train {
namespace {

// Beside the steps that config.log_every_steps asks for, the loss is looked at this often, so that
// a slow machine shows progress too.
constexpr auto kLookInterval = std::chrono::seconds(2);

double seconds_between(std::chrono::steady_clock::time_point from,
                       std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

data::LoaderOptions train_loader_options(const config::Config& config,
                                         const device::Device& device) {
  const auto seed = static_cast<std::uint64_t>(config.seed);
  return {.batch_size = config.train.batch_size,
          .workers = num_workers(config.data.workers),
          .prefetch_batches = config.data.prefetch_batches,
          .seed = seed,
          .shuffle = true,
          .substitute_bad = true,
          .bad_image = config.data.bad_image,
          .max_bad_fraction = config.data.max_bad_fraction,
          .side_px = static_cast<int>(config.augment.image_size_px),
          .view =
              [augment = config.augment, mean = config.preprocess.mean, seed](
                  const data::Image& image, std::uint64_t sample, std::uint32_t epoch,
                  std::uint8_t* out) {
                data::train_view(image, augment, Philox(seed, sample, epoch, data::kViewDraws), out,
                                 mean);
              },
          .exif = config.preprocess.exif_orientation,
          .allocate = device::batch_allocator(device)};
}

std::int64_t eval_batch_size(const config::TrainConfig& config) {
  return config.eval_batch_size > 0 ? config.eval_batch_size : config.batch_size;
}

// Batch norm cannot learn from one image. A last batch of one is left out; the order of the next
// epoch brings another image to that place.
bool leaves_one_over(std::int64_t num_samples, std::int64_t batch_size) {
  return batch_size > 1 && num_samples > batch_size && num_samples % batch_size == 1;
}

void place_model(models::ImageModel& model, const device::Device& device) {
  model.to(device.torch);
  for (auto& parameter : model.parameters()) {
    const bool is_image_kernel = parameter.dim() == 4;
    parameter.set_data(parameter.contiguous(device.channels_last && is_image_kernel
                                                ? torch::MemoryFormat::ChannelsLast
                                                : torch::MemoryFormat::Contiguous));
  }
}

}  // namespace

Trainer::Trainer(const config::Config& config, const device::Device& device,
                 std::shared_ptr<models::ImageModel> model, const data::ImageFolder& train_images,
                 const data::ImageFolder& val_images, artifacts::RunFolder& run, Progress& progress)
    : config_(config),
      device_(device),
      model_((place_model(*model, device), std::move(model))),
      train_images_(train_images),
      run_(run),
      progress_(progress),
      normalization_(config.preprocess, device),
      optimizer_(config.optimizer, *model_),
      train_loader_(train_images, train_loader_options(config, device)),
      val_loader_(val_images, eval_loader_options(config.preprocess, config.data,
                                                  eval_batch_size(config.train), device)),
      leaves_one_over_(leaves_one_over(train_loader_.num_samples(), config.train.batch_size)),
      steps_per_epoch_(train_loader_.num_batches() - (leaves_one_over_ ? 1 : 0)),
      peak_lr_(peak_learning_rate(config.optimizer, config.train.batch_size)) {
  state_.optimizer_name = config::choice_name(config.optimizer.name);
  state_.config_json = config::dump(config);
  state_.classes = train_images.classes;
  state_.data_fingerprint = train_images.fingerprint();
  state_.versions = {{"orchard", kVersion}, {"torch", TORCH_VERSION}};
}

double Trainer::learning_rate_at(std::int64_t step) const {
  return learning_rate(config_.schedule, peak_lr_, step, steps_per_epoch_,
                       steps_per_epoch_ * config_.train.epochs);
}

std::int64_t Trainer::steps_of_epoch() const {
  const auto batches = (state_.position + config_.train.batch_size - 1) / config_.train.batch_size;
  return std::min(batches, steps_per_epoch_);
}

double Trainer::learning_rate_of(std::int64_t step) const {
  return learning_rate_at(state_.epoch * steps_per_epoch_ + steps_of_epoch() - 1 -
                          (state_.step - step));
}

void Trainer::restore(const artifacts::TrainState& state, const std::filesystem::path& file) {
  if (state.classes != state_.classes) {
    throw Error(ErrorKind::Checkpoint,
                str("the checkpoint was trained on ", state.classes.size(),
                    " classes that are not those of '", train_images_.root.string(), "' (",
                    state_.classes.size(), ")"),
                "resume with the folder that the run was started with, or start a new run");
  }
  if (state.data_fingerprint != state_.data_fingerprint) {
    throw Error(ErrorKind::Checkpoint,
                "the training images in '" + train_images_.root.string() +
                    "' are not those that the run was started with (files were added, removed or "
                    "renamed)",
                "bring the folder back to what it was, or start a new run");
  }
  if (state.optimizer_name != state_.optimizer_name) {
    throw Error(ErrorKind::Checkpoint,
                "the checkpoint holds the state of the optimizer '" + state.optimizer_name +
                    "', not of '" + state_.optimizer_name + "'",
                "set optimizer.name to " + state.optimizer_name);
  }
  artifacts::load_weights(*model_, state.model);
  try {
    optimizer_.load_state(state.optimizer);
  } catch (const std::invalid_argument& e) {
    throw Error(ErrorKind::Checkpoint,
                std::string("the optimizer's state does not fit: ") + e.what(),
                "resume with the model and optimizer that the run was started with");
  }
  device::set_generator_states(device_, state.generators);
  last_checkpoint_ = file;
  auto own = std::move(state_);
  state_ = state;
  state_.config_json = own.config_json;
  state_.versions = own.versions;
  state_.model.clear();
  state_.optimizer.clear();
  state_.generators.clear();
}

Outcome Trainer::fit() {
  const auto began = Clock::now();
  last_save_ = began;
  Outcome outcome;
  try {
    while (state_.epoch < config_.train.epochs) {
      train_epoch();
      finish_epoch();
    }
  } catch (const Stopped& stopped) {
    save_in_mid_epoch();
    outcome.stop_signal = stopped.exit_code() - 128;
  }
  outcome.best_top1 = state_.best_metric;
  outcome.best_epoch = state_.best_epoch;
  outcome.last_checkpoint = last_checkpoint_;
  for (const auto& [path, reason] : state_.skipped_images) {
    outcome.bad_files.push_back({path, reason});
  }
  outcome.seconds = seconds_between(began, Clock::now());
  return outcome;
}

void Trainer::train_epoch() {
  model_->train();
  train_loader_.start(state_.epoch, state_.position);
  epoch_began_ = last_look_ = Clock::now();
  waited_at_last_look_s_ = train_loader_.waited_s();
  images_at_last_look_ = state_.epoch_samples;
  const double seconds_before = state_.epoch_seconds;
  while (const auto batch = train_loader_.next()) {
    if (!leaves_one_over_ || batch->size() > 1) {
      train_step(*batch);
      ++state_.step;
    }
    state_.position = batch->end_position;
    state_.epoch_seconds = seconds_before + seconds_between(epoch_began_, Clock::now());
    const auto steps_done = static_cast<std::int64_t>(pending_losses_.size());
    if (steps_done >= config_.train.log_every_steps || state_.step == 1 ||
        Clock::now() - last_look_ > kLookInterval) {
      report_step(steps_done);
    }
    if (config_.memory.empty_cache_every_steps > 0 &&
        state_.step % config_.memory.empty_cache_every_steps == 0) {
      device::empty_cache(device_);
    }
    save_if_due();
    throw_if_stopped();
  }
  read_pending_metrics();
  state_.epoch_seconds = seconds_before + seconds_between(epoch_began_, Clock::now());
}

void Trainer::train_step(const data::Batch& batch) {
  // A function of the position alone, so that it is the same after a resume.
  const double lr = learning_rate_at(state_.epoch * steps_per_epoch_ +
                                     state_.position / config_.train.batch_size);
  try {
    const auto images = to_input(batch, device_, normalization_);
    const auto labels = torch::tensor(batch.labels, torch::kInt64).to(device_.torch);
    const auto logits = model_->forward(images);
    const auto loss = torch::cross_entropy_loss(logits, labels, {}, at::Reduction::Mean, -100,
                                                config_.train.label_smoothing);
    loss.backward();
    optimizer_.step(lr);
    optimizer_.zero_grad();
    pending_losses_.push_back(loss.detach());
    pending_correct_.push_back(logits.detach().argmax(1).eq(labels).sum());
    pending_sizes_.push_back(batch.size());
  } catch (const std::exception& e) {
    const auto half = std::max<std::int64_t>(1, config_.train.batch_size / 2);
    rethrow_device_error(
        e, device_,
        str("a training step of ", batch.size(), " images of ", batch.side_px, "x", batch.side_px),
        str("use less memory: --set train.batch_size=", half,
            " --set optimizer.lr_batch_size=", config_.train.batch_size,
            " (keeps lr in proportion), a smaller augment.image_size_px or a smaller model"));
  }
}

// Waits for the device and takes the metrics of the steps since the last look, in order and in
// double, so that the sums do not depend on when they are taken.
void Trainer::read_pending_metrics() {
  if (pending_losses_.empty()) {
    return;
  }
  const auto losses = torch::stack(pending_losses_).to(torch::kCPU).to(torch::kFloat64);
  const auto correct = torch::stack(pending_correct_).to(torch::kCPU);
  const auto num_steps = static_cast<std::int64_t>(pending_losses_.size());
  const auto sizes = std::move(pending_sizes_);
  pending_losses_.clear();
  pending_correct_.clear();
  pending_sizes_.clear();
  for (std::int64_t i = 0; i < num_steps; ++i) {
    const double loss = losses[i].item<double>();
    if (!std::isfinite(loss)) {
      const auto step = state_.step - num_steps + i + 1;
      throw_diverged(str("the loss is not finite (", loss, ") at step "), step);
    }
    const auto size = sizes[static_cast<std::size_t>(i)];
    state_.epoch_loss_sum += loss * static_cast<double>(size);
    state_.epoch_correct += correct[i].item<std::int64_t>();
    state_.epoch_samples += size;
  }
}

// `what` ends where the number of the step (from 1) goes.
void Trainer::throw_diverged(const std::string& what, std::int64_t step) const {
  throw Error(
      ErrorKind::Diverged,
      str(what, step, ", epoch ", state_.epoch + 1, ", learning rate ",
          compact(learning_rate_of(step))),
      "lower optimizer.lr or lengthen schedule.warmup_epochs; " +
          (last_checkpoint_.empty() ? std::string("nothing was saved yet")
                                    : "the last good checkpoint is " + last_checkpoint_.string()));
}

void Trainer::report_step(std::int64_t steps_done) {
  read_pending_metrics();
  const auto now = Clock::now();
  const double elapsed_s = std::max(1e-9, seconds_between(last_look_, now));
  const double per_step_s = elapsed_s / static_cast<double>(std::max<std::int64_t>(1, steps_done));
  train_s_per_step_ =
      train_s_per_step_ == 0 ? per_step_s : 0.7 * train_s_per_step_ + 0.3 * per_step_s;
  const auto steps_left =
      (config_.train.epochs - state_.epoch) * steps_per_epoch_ - steps_of_epoch();
  const auto evaluations_left =
      (config_.train.epochs - state_.epoch + config_.train.eval_every_epochs - 1) /
      config_.train.eval_every_epochs;
  progress_.on_step(
      {.epoch = state_.epoch + 1,
       .num_epochs = config_.train.epochs,
       .step = steps_of_epoch(),
       .num_steps = steps_per_epoch_,
       .loss = state_.epoch_loss_sum /
               static_cast<double>(std::max<std::int64_t>(1, state_.epoch_samples)),
       .lr = learning_rate_of(state_.step),
       .images_per_s = static_cast<double>(state_.epoch_samples - images_at_last_look_) / elapsed_s,
       .waiting_share =
           std::min(1.0, (train_loader_.waited_s() - waited_at_last_look_s_) / elapsed_s),
       .memory_bytes = device::memory_in_use_bytes(device_),
       .eta_s = static_cast<double>(steps_left) * train_s_per_step_ +
                static_cast<double>(evaluations_left) * eval_s_});
  last_look_ = now;
  waited_at_last_look_s_ = train_loader_.waited_s();
  images_at_last_look_ = state_.epoch_samples;
}

EvalResult Trainer::evaluate_model() {
  model_->eval();
  return evaluate([this](const torch::Tensor& images) { return model_->forward(images); },
                  val_loader_, device_, config_.preprocess,
                  [this](std::int64_t num_done) {
                    progress_.on_evaluation(num_done, val_loader_.num_samples());
                  });
}

void Trainer::finish_epoch() {
  EpochReport report = {.epoch = state_.epoch + 1,
                        .num_epochs = config_.train.epochs,
                        .lr = learning_rate_at((state_.epoch + 1) * steps_per_epoch_ - 1),
                        .train_s = state_.epoch_seconds};
  const auto num_samples = static_cast<double>(std::max<std::int64_t>(1, state_.epoch_samples));
  report.train_loss = state_.epoch_loss_sum / num_samples;
  report.train_top1 = static_cast<double>(state_.epoch_correct) / num_samples;
  const bool is_last = report.epoch == config_.train.epochs;
  report.evaluated = is_last || report.epoch % config_.train.eval_every_epochs == 0;
  if (report.evaluated) {
    report.val = evaluate_model();  // a stop signal leaves here with the epoch still open
    eval_s_ = report.val.seconds;
    report.is_best = report.val.top1() > state_.best_metric;
  }
  note_bad_files();

  artifacts::MetricsRow row = {{"epoch", static_cast<double>(report.epoch)},
                               {"step", static_cast<double>(state_.step)},
                               {"lr", report.lr},
                               {"train_loss", report.train_loss},
                               {"train_top1", report.train_top1},
                               {"images_per_s", num_samples / std::max(1e-9, report.train_s)},
                               {"train_s", report.train_s}};
  if (report.evaluated) {
    row.insert(row.end(), {{"val_loss", report.val.loss()},
                           {"val_top1", report.val.top1()},
                           {"val_top5", report.val.top5()},
                           {"val_images", static_cast<double>(report.val.num_images)},
                           {"val_s", report.val.seconds}});
  }
  run_.write_metrics(row);

  ++state_.epoch;
  state_.position = 0;
  state_.epoch_loss_sum = 0;
  state_.epoch_correct = 0;
  state_.epoch_samples = 0;
  state_.epoch_seconds = 0;
  if (report.is_best) {
    state_.best_metric = report.val.top1();
    state_.best_epoch = report.epoch;
  }
  const bool is_due = is_last || report.epoch % config_.checkpoint.every_epochs == 0;
  if (report.is_best || is_due) {
    const auto state = snapshot();
    if (report.is_best) {
      run_.save_best(state);
    }
    if (is_due) {
      save_last(state);
      run_.save_epoch(state, config_.checkpoint.keep);
    }
  }
  if (config_.memory.empty_cache_every_epochs > 0 &&
      report.epoch % config_.memory.empty_cache_every_epochs == 0) {
    device::empty_cache(device_);
  }
  progress_.on_epoch(report);
}

void Trainer::save_if_due() {
  const bool by_steps =
      config_.checkpoint.every_steps > 0 && state_.step % config_.checkpoint.every_steps == 0;
  const bool by_time =
      config_.checkpoint.every_minutes > 0 &&
      seconds_between(last_save_, Clock::now()) > 60 * config_.checkpoint.every_minutes;
  if (by_steps || by_time) {
    save_in_mid_epoch();
  }
}

void Trainer::save_in_mid_epoch() {
  read_pending_metrics();
  note_bad_files();
  save_last(snapshot());
}

void Trainer::save_last(const artifacts::TrainState& state) {
  last_checkpoint_ = run_.save_last(state);
  last_save_ = Clock::now();
}

artifacts::TrainState Trainer::snapshot() {
  auto state = state_;
  state.model = artifacts::named_tensors(*model_);
  for (const auto& [name, tensor] : state.model) {
    // The loss of a step is known before its update: weights can be spoiled while the loss was
    // sound.
    if (tensor.is_floating_point() && !torch::isfinite(tensor).all().item<bool>()) {
      throw_diverged(str("'", name, "' is not finite after step "), state_.step);
    }
  }
  state.optimizer = optimizer_.state();
  state.generators = device::generator_states(device_);
  return state;
}

void Trainer::note_bad_files() {
  const auto before = state_.skipped_images.size();
  for (const auto* loader : {&train_loader_, &val_loader_}) {
    for (const auto& bad : loader->bad_files()) {
      state_.skipped_images[bad.path] = bad.reason;
    }
  }
  if (state_.skipped_images.size() != before) {
    run_.write_skipped(state_.skipped_images);
  }
}

}  // namespace orchard::train
