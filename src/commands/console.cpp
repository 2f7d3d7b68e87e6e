#include "commands/console.hpp"

#include <torch/version.h>

#include <algorithm>
#include <iomanip>

#include "base/log.hpp"
#include "base/text.hpp"
#include "base/version.hpp"

namespace orchard::commands {
namespace {

constexpr double kHighWaitingShare = 0.3;

void line(const std::string& name, const std::string& text) {
  log::info(name + std::string(name.size() < 12 ? 12 - name.size() : 1, ' ') + text);
}

std::string schedule_text(const config::Config& config) {
  std::string text = config::choice_name(config.schedule.name);
  if (config.schedule.warmup_epochs > 0) {
    text += str(" after ", compact(config.schedule.warmup_epochs), " epochs of warm-up");
  }
  return text;
}

std::string lr_text(const config::Config& config, double peak_lr) {
  const auto& optimizer = config.optimizer;
  std::string text = compact(peak_lr);
  if (optimizer.lr_batch_size > 0) {
    text += str(" (", compact(optimizer.lr), " at batch ", optimizer.lr_batch_size, ", scaled to ",
                config.train.batch_size, ")");
  }
  return text + ", " + schedule_text(config);
}

std::string padded(const std::string& text, int width) {
  std::ostringstream out;
  out << std::setw(width) << text;
  return out.str();
}

}  // namespace

void print_start(const config::Config& config, const device::Device& device,
                 const data::ImageFolder& train_images, const data::ImageFolder& val_images,
                 const RunSummary& summary) {
  line("orchard", str(kVersion, ", LibTorch ", TORCH_VERSION, ", ", summary.origin));
  line("device", device.name + " (" + device.reason + ")");
  line("model", str(summary.model_name, ", ", thousands(summary.num_parameters), " parameters"));
  line("train",
       str(thousands(static_cast<std::int64_t>(train_images.samples.size())), " images in ",
           train_images.classes.size(), " classes, ", train_images.root.string()));
  line("val", str(thousands(static_cast<std::int64_t>(val_images.samples.size())), " images, ",
                  val_images.root.string()));
  for (const auto* folder : {&train_images, &val_images}) {
    for (const auto& note : folder->notes) {
      log::warn(note);
    }
  }
  line("classes", train_images.classes.front() + (train_images.classes.size() > 2 ? " .. " : " ") +
                      (train_images.classes.size() > 1 ? train_images.classes.back() : "") +
                      " (indices by byte order of the names)");
  line("training", str(config.train.epochs, " epochs of ", thousands(summary.steps_per_epoch),
                       " steps, ", config.train.batch_size, " images of ",
                       config.augment.image_size_px, "x", config.augment.image_size_px));
  line("lr", lr_text(config, summary.peak_lr));
  line("run folder", summary.run_folder);
  if (!summary.resumed.empty()) {
    line("resumed", summary.resumed);
  }
}

void ConsoleProgress::on_step(const train::StepReport& report) {
  std::string text = str(
      "epoch ", report.epoch, "/", report.num_epochs, "  step ", report.step, "/", report.num_steps,
      "  loss ", fixed(report.loss, 4), "  lr ", compact(report.lr), "  ",
      fixed(report.images_per_s, 0), " images/s  data ", percent(report.waiting_share, 0), "  ",
      bytes_text(static_cast<double>(report.memory_bytes)), "  ETA ", duration_text(report.eta_s));
  if (report.waiting_share > kHighWaitingShare && report.step > 10) {
    text += "  (waiting for images: raise data.workers or use a faster disk)";
  }
  log::live(text);
}

void ConsoleProgress::on_evaluation(std::int64_t num_done, std::int64_t num_images) {
  log::live(str("evaluating  ", thousands(num_done), "/", thousands(num_images), " images"));
}

void ConsoleProgress::on_epoch(const train::EpochReport& report) {
  if (!header_shown_) {
    log::info(
        "  epoch  train loss  train top-1   val loss  val top-1  val top-5         lr      time");
    header_shown_ = true;
  }
  std::string row = padded(str(report.epoch, "/", report.num_epochs), 7) +
                    padded(fixed(report.train_loss, 4), 12) +
                    padded(percent(report.train_top1, 2), 13);
  if (report.evaluated) {
    row += padded(fixed(report.val.loss(), 4), 11) + padded(percent(report.val.top1(), 2), 11) +
           padded(percent(report.val.top5(), 2), 11);
  } else {
    row += padded("-", 11) + padded("-", 11) + padded("-", 11);
  }
  row += padded(compact(report.lr), 11) +
         padded(duration_text(report.train_s + report.val.seconds), 10);
  log::info(row + (report.is_best ? "  best" : ""));
  if (report.evaluated && report.val.num_bad > 0) {
    log::warn(str(report.val.num_bad,
                  " val images could not be read; the val numbers are over the other ",
                  report.val.num_images));
  }
}

std::string shell_word(const std::string& text) {
  const bool plain = !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '/' || c == '.' || c == '_' || c == '-' || c == '=' ||
           c == '+';
  });
  if (plain) {
    return text;
  }
  std::string quoted = "'";
  for (const char c : text) {
    quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  }
  return quoted + "'";
}

void print_end(const train::Outcome& outcome, const std::string& program,
               const std::string& run_folder, const std::string& data_root) {
  log::end_live();
  const std::string run = shell_word(run_folder);
  const std::string data = shell_word(data_root);
  const std::string orchard = shell_word(program);
  if (outcome.stop_signal != 0) {
    log::info("");
    line("stopped", "by a signal; everything is saved in " + outcome.last_checkpoint.string());
    line("go on with", orchard + " train --resume " + run);
    return;
  }
  log::info("");
  if (outcome.best_epoch > 0) {
    line("best",
         str("val top-1 ", percent(outcome.best_top1, 2), " at epoch ", outcome.best_epoch));
  }
  line("time", duration_text(outcome.seconds));
  line("files", run_folder + "/checkpoints/{best,last}.pth, metrics.csv, log.txt");
  if (!outcome.bad_files.empty()) {
    line("skipped", str(outcome.bad_files.size(), " images could not be read: ", run_folder,
                        "/skipped_images.txt"));
    constexpr std::size_t kShown = 5;
    for (std::size_t i = 0; i < std::min(kShown, outcome.bad_files.size()); ++i) {
      line("", outcome.bad_files[i].path + ": " + outcome.bad_files[i].reason);
    }
  }
  line("evaluate", orchard + " evaluate --model " + run + " --data " + data);
  line("predict", orchard + " predict --model " + run + " " + data);
  line("export", orchard + " export --model " + run);
  line("resume", orchard + " train --resume " + run);
}

}  // namespace orchard::commands
