// What a person sees of a training run: start block, live line, a row per epoch, end block.
#pragma once

#include <string>

#include "train/trainer.hpp"

namespace orchard::commands {

struct RunSummary {
  std::string origin;  // config file or checkpoint
  std::string model_name;
  std::int64_t num_parameters = 0;
  std::int64_t steps_per_epoch = 0;
  double peak_lr = 0;
  std::string run_folder;
  std::string resumed;  // "epoch 3, image 640", or empty
};

void print_start(const config::Config& config, const device::Device& device,
                 const data::ImageFolder& train_images, const data::ImageFolder& val_images,
                 const RunSummary& summary);

// `program` is how to call orchard; `data_root` and `run_folder` go into the commands as they are.
void print_end(const train::Outcome& outcome, const std::string& program,
               const std::string& run_folder, const std::string& data_root);

class ConsoleProgress : public train::Progress {
 public:
  void on_step(const train::StepReport& report) override;
  void on_evaluation(std::int64_t num_done, std::int64_t num_images) override;
  void on_epoch(const train::EpochReport& report) override;

 private:
  bool header_shown_ = false;
};

// The path as a word of a shell command: quoted when it has to be.
std::string shell_word(const std::string& text);

}  // namespace orchard::commands
