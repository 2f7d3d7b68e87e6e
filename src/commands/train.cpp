#include <cstdio>
#include <stdexcept>

#include "artifacts/inference.hpp"
#include "artifacts/run_folder.hpp"
#include "base/error.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "commands/commands.hpp"
#include "commands/console.hpp"
#include "config/load.hpp"
#include "data/image_folder.hpp"
#include "device/device.hpp"
#include "models/model.hpp"
#include "train/trainer.hpp"

namespace orchard::commands {
namespace {

using artifacts::FoundCheckpoint;
using artifacts::RunFolder;

// The configuration of the run and, when it is resumed, where from.
struct Plan {
  config::Config config;
  std::string origin;
  std::optional<FoundCheckpoint> checkpoint;
};

void check_changes(const Plan& plan, bool allowed) {
  const auto started =
      config::load_text(plan.checkpoint->state.config_json, plan.checkpoint->file.string(), {});
  const auto conflicts = config::resume_conflicts(started, plan.config);
  if (conflicts.empty()) {
    return;
  }
  const std::string list = "\n  " + join(conflicts, "\n  ");
  if (!allowed) {
    throw Error(ErrorKind::Config,
                "the configuration differs from the one that the run was started with:" + list,
                "take the old values, or add --allow-config-change to go on with the new ones");
  }
  log::warn("the run goes on with a changed configuration:" + list);
}

Plan make_plan(const TrainArgs& args) {
  Plan plan;
  std::filesystem::path file;
  if (!args.config.empty()) {
    file = config::find_config(args.config, args.shipped);
    plan.config = config::load(file, args.shipped, args.overrides);
    plan.origin = file.filename().string();
  } else if (args.resume_from.empty()) {
    throw Error(ErrorKind::Usage, "train needs a configuration",
                "give one, for instance --config resnet50.json, or --resume RUN_FOLDER");
  }
  if (!args.resume) {
    return plan;
  }
  std::filesystem::path where = args.resume_from;
  if (where.empty()) {
    const auto newest = RunFolder::find_newest(plan.config.run.dir, plan.config.run.name);
    if (!newest) {
      throw Error(ErrorKind::Checkpoint,
                  "there is no run '" + plan.config.run.name + "' with a checkpoint in '" +
                      plan.config.run.dir + "'",
                  "start it without --resume, or name a run folder: --resume RUN_FOLDER");
    }
    where = *newest;
  }
  plan.checkpoint = artifacts::find_checkpoint(where);
  if (args.config.empty()) {
    plan.origin = plan.checkpoint->file.string();
    plan.config =
        config::load_text(plan.checkpoint->state.config_json, plan.origin, args.overrides);
  }
  check_changes(plan, args.allow_config_change);
  return plan;
}

// A run goes on in its own folder, but only from its furthest checkpoint: an older one starts a new
// folder, so that nothing is overwritten.
RunFolder open_folder(const Plan& plan) {
  if (plan.checkpoint && plan.checkpoint->newest) {
    return RunFolder::open(plan.checkpoint->run_folder);
  }
  return RunFolder::create(plan.config.run.dir, plan.config.run.name);
}

std::shared_ptr<models::ImageModel> build_model(const config::Config& config,
                                                std::size_t num_data_classes) {
  const auto& model = config.model;
  const auto num_classes = static_cast<std::int64_t>(num_data_classes);
  if (model.num_classes != 0 && model.num_classes < num_classes) {
    throw Error(ErrorKind::Config,
                str("model.num_classes is ", model.num_classes, ", but the images have ",
                    num_classes, " classes"),
                "set it to 0 (as many as the data has), or remove class folders");
  }
  try {
    return models::make_model(artifacts::model_options(model, num_data_classes, config.seed));
  } catch (const std::invalid_argument& e) {
    throw Error(ErrorKind::Config, std::string("model.name: ") + e.what(),
                "choose a name that `orchard models` lists");
  }
}

}  // namespace

int train(const TrainArgs& args) {
  Plan plan = make_plan(args);
  const config::Config& config = plan.config;
  if (args.print_config) {
    std::fputs(config::dump(config).c_str(), stdout);
    return 0;
  }
  if (config.data.root.empty()) {
    throw Error(ErrorKind::Config, "data.root is not set",
                "add --data FOLDER, a folder that holds train/<class>/ and val/<class>/");
  }
  const auto device = device::choose(config.device, config.threads);
  device::limit_memory(device, config.memory.fraction);
  device::seed_all(static_cast<std::uint64_t>(config.seed));

  log::live("looking for images in " + config.data.root);
  const auto train_images = data::scan(data::find_train(config.data.root));
  const auto val_images = data::scan(data::find_val(config.data.root), train_images.classes);
  log::end_live();
  auto model = build_model(config, train_images.classes.size());

  RunFolder run = open_folder(plan);
  log::open_file(run.log_file());
  ConsoleProgress progress;
  train::Trainer trainer(config, device, model, train_images, val_images, run, progress);
  RunSummary summary = {.origin = plan.origin,
                        .model_name = config.model.name,
                        .num_parameters = models::num_parameters(*model),
                        .steps_per_epoch = trainer.steps_per_epoch(),
                        .peak_lr = trainer.peak_lr(),
                        .run_folder = run.path().string()};
  if (plan.checkpoint) {
    const auto& state = plan.checkpoint->state;
    trainer.restore(state, plan.checkpoint->file);
    summary.resumed = str(plan.checkpoint->file.string(), ", epoch ", state.epoch + 1, " of ",
                          config.train.epochs, ", after ", state.step, " steps");
    plan.checkpoint.reset();  // its tensors would stay in memory to the end
  }
  run.write_config(config::dump(config));
  run.write_classes(train_images.classes);
  print_start(config, device, train_images, val_images, summary);
  const auto outcome = trainer.fit();
  print_end(outcome, args.program, summary.run_folder, config.data.root);
  return outcome.stop_signal == 0 ? 0 : 128 + outcome.stop_signal;
}

}  // namespace orchard::commands
