#include "cli/cli.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "base/version.hpp"
#include "commands/commands.hpp"

namespace orchard::cli {
namespace {

using Action = std::function<int()>;

constexpr const char* kExitCodes =
    "Exit codes: 0 done, 2 wrong command line, 3 wrong configuration, 4 images, 5 device or "
    "memory,\n"
    "6 files of the run, 7 training diverged, 70 fault of Orchard, 130/143 stopped by a signal.";

// The folder of the shipped configs: $ORCHARD_CONFIGS, beside an installed program, or the source
// tree.
std::filesystem::path shipped_configs(const std::filesystem::path& program) {
  if (const char* folder = std::getenv("ORCHARD_CONFIGS"); folder != nullptr) {
    return folder;
  }
  std::error_code code;
  auto self = std::filesystem::read_symlink("/proc/self/exe", code);
  if (code) {
    self = std::filesystem::weakly_canonical(program, code);
  }
  const auto installed = self.parent_path().parent_path() / "share" / "orchard" / "configs";
  return std::filesystem::is_directory(installed, code) ? installed
                                                        : std::filesystem::path(kSourceConfigs);
}

// How a person calls orchard when argv[0] is `called`.
std::string orchard_command(const std::filesystem::path& called) {
  return called.has_parent_path() ? (called.parent_path() / "orchard").string() : "orchard";
}

void add_inference_options(CLI::App& verb, std::string& model, std::string& device,
                           std::int64_t& batch_size, std::int64_t& workers) {
  verb.add_option("-m,--model", model, "run folder, checkpoint (.pth) or exported file (.ts)")
      ->required()
      ->type_name("PATH");
  verb.add_option("--device", device, "auto, cuda, cuda:N, mps or cpu")->capture_default_str();
  verb.add_option("--batch-size", batch_size, "images per step")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  verb.add_option("--workers", workers, "threads that read images; -1: one per core")
      ->check(CLI::Range(-1, 256))
      ->capture_default_str();
}

void add_train(CLI::App& app, Action& action, const std::filesystem::path& called) {
  auto* verb = app.add_subcommand("train", "train a model on a folder of images");
  auto args = std::make_shared<commands::TrainArgs>();
  auto shortcuts = std::make_shared<std::vector<std::string>>(4);
  args->program = orchard_command(called);
  args->shipped = shipped_configs(called);
  verb->add_option("-c,--config", args->config, "JSON file, or the name of a shipped config")
      ->type_name("FILE");
  verb->add_option("--data", (*shortcuts)[0], "same as --set data.root=FOLDER")
      ->type_name("FOLDER");
  verb->add_option("--device", (*shortcuts)[1], "same as --set device=NAME")->type_name("NAME");
  verb->add_option("--name", (*shortcuts)[2], "same as --set run.name=NAME")->type_name("NAME");
  verb->add_option("--epochs", (*shortcuts)[3], "same as --set train.epochs=N")->type_name("N");
  verb->add_option("--set", args->overrides, "set any field: --set optimizer.lr=0.05")
      ->type_name("FIELD=VALUE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  auto* resume =
      verb->add_option("--resume", args->resume_from,
                       "go on from a run folder or checkpoint; without a value: from the "
                       "newest run of this config")
          ->type_name("[WHERE]")
          ->expected(0, 1);
  verb->add_flag("--allow-config-change", args->allow_config_change,
                 "resume even though fields differ that should stay the same");
  verb->add_flag("--print-config", args->print_config,
                 "print the effective configuration and stop");
  verb->footer(
      "Examples:\n"
      "  train --config resnet50.json --data /data/imagenet\n"
      "  train --config resnet50 --data photos --set train.batch_size=64 --device mps\n"
      "  train --config resnet50.json --data /data/imagenet --resume\n"
      "  train --resume runs/resnet50\n"
      "  train --config mobilenet_v2.json --print-config");
  verb->callback([&action, args, resume, shortcuts] {
    args->resume = resume->count() > 0;
    const std::vector<std::string> fields = {"data.root", "device", "run.name", "train.epochs"};
    for (std::size_t i = 0; i < fields.size(); ++i) {
      if (!(*shortcuts)[i].empty()) {
        args->overrides.push_back(fields[i] + "=" + (*shortcuts)[i]);
      }
    }
    action = [args] { return commands::train(*args); };
  });
}

void add_evaluate(CLI::App& app, Action& action) {
  auto* verb =
      app.add_subcommand("evaluate", "top-1, top-5 and loss of a model on labelled images");
  auto args = std::make_shared<commands::EvaluateArgs>();
  add_inference_options(*verb, args->model, args->device, args->batch_size, args->workers);
  verb->add_option(
          "--data", args->data,
          "folder with val/<class>/, or with the class folders; default: the one that it was "
          "trained on")
      ->type_name("FOLDER");
  verb->add_option("--format", args->format, "text or json")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  verb->footer(
      "Examples:\n"
      "  orchard evaluate --model runs/resnet50\n"
      "  orchard evaluate --model resnet50.ts --data /data/imagenet/val --format json");
  verb->callback([&action, args] { action = [args] { return commands::evaluate(*args); }; });
}

void add_predict(CLI::App& app, Action& action) {
  auto* verb = app.add_subcommand("predict", "classes of image files");
  auto args = std::make_shared<commands::PredictArgs>();
  add_inference_options(*verb, args->model, args->device, args->batch_size, args->workers);
  verb->add_option("inputs", args->inputs, "image files, and folders that are searched for images")
      ->required()
      ->type_name("PATH");
  verb->add_option("-k,--top-k", args->top_k, "best classes to tell")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  verb->add_option("--format", args->format, "table, csv, json or jsonl")
      ->check(CLI::IsMember({"table", "csv", "json", "jsonl"}))
      ->capture_default_str();
  verb->add_option("-o,--output", args->output, "write to this file")->type_name("FILE");
  verb->footer(
      "Examples:\n"
      "  orchard predict --model runs/resnet50 cat.jpg dog.png\n"
      "  orchard predict --model resnet50.ts photos/ --top-k 5 --format csv --output photos.csv");
  verb->callback([&action, args] { action = [args] { return commands::predict(*args); }; });
}

void add_export(CLI::App& app, Action& action) {
  auto* verb = app.add_subcommand("export", "write a model for other programs, and check it");
  auto args = std::make_shared<commands::ExportArgs>();
  auto format = std::make_shared<std::string>("torchscript");
  verb->add_option("-m,--model", args->model, "run folder (its best weights) or checkpoint (.pth)")
      ->required()
      ->type_name("PATH");
  verb->add_option("--format", *format, "torchscript")
      ->check(CLI::IsMember({"torchscript"}))
      ->capture_default_str();
  verb->add_option("-o,--output", args->output, "default: <run folder>/export/<model>.ts")
      ->type_name("FILE");
  verb->footer(
      "Examples:\n"
      "  orchard export --model runs/resnet50\n"
      "  orchard export --model runs/resnet50/checkpoints/last.pth --output resnet50.ts");
  verb->callback(
      [&action, args, format] { action = [args] { return commands::export_model(*args); }; });
}

void add_make_sample(CLI::App& app, Action& action) {
  auto* verb = app.add_subcommand("make-sample", "draw a small data set to try things on");
  auto args = std::make_shared<commands::MakeSampleArgs>();
  verb->add_option("folder", args->root, "the folder to make")->required()->type_name("FOLDER");
  verb->add_option("--train-per-class", args->train_per_class, "training images of each class")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  verb->add_option("--val-per-class", args->val_per_class, "evaluation images of each class")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  verb->add_option("--seed", args->seed, "another seed draws other images")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 53))
      ->capture_default_str();
  verb->footer("Examples:\n  orchard make-sample data/sample\n  train --config quickstart.json");
  verb->callback([&action, args] { action = [args] { return commands::make_sample(*args); }; });
}

void add_others(CLI::App& app, Action& action) {
  auto* models = app.add_subcommand("models", "the models and their sizes");
  models->footer("Examples:\n  orchard models");
  models->callback([&action] { action = [] { return commands::models(); }; });
  auto* devices = app.add_subcommand("devices", "the devices, and whether each computes rightly");
  devices->footer("Examples:\n  orchard devices");
  devices->callback([&action] { action = [] { return commands::devices(); }; });
  auto* schema =
      app.add_subcommand("schema", "the JSON Schema of a config, for completion in editors");
  auto markdown = std::make_shared<bool>(false);
  schema->add_flag("--markdown", *markdown, "a table of all fields instead");
  schema->footer("Examples:\n  orchard schema > orchard.schema.json\n  orchard schema --markdown");
  schema->callback([&action, markdown] {
    action = [markdown] {
      return commands::schema(*markdown ? commands::SchemaFormat::Markdown
                                        : commands::SchemaFormat::Json);
    };
  });
}

// CLI11 says of a misspelt verb only that one is required.
void check_verb(const CLI::App& app, const std::vector<std::string>& words) {
  std::vector<std::string> verbs;
  for (const auto* verb : app.get_subcommands({})) {
    verbs.push_back(verb->get_name());
  }
  const auto given = std::find_if(words.begin(), words.end(),
                                  [](const std::string& word) { return !word.starts_with("-"); });
  if (given != words.end() && std::find(verbs.begin(), verbs.end(), *given) == verbs.end()) {
    throw Error(ErrorKind::Usage, "there is no verb '" + *given + "'" + did_you_mean(*given, verbs),
                "use one of " + join(verbs, ", "));
  }
}

}  // namespace

std::optional<Action> parse(int argc, char** argv) {
  const std::filesystem::path called = argc > 0 ? argv[0] : "orchard";
  std::vector<std::string> words(argv + std::min(1, argc), argv + argc);
  if (called.filename() == "train") {
    words.insert(words.begin(), "train");
  }

  CLI::App app(
      "Orchard trains image classifiers on a folder of images: Apple silicon, NVIDIA, CPU.",
      "orchard");
  app.set_version_flag("--version", std::string("orchard ") + kVersion);
  app.require_subcommand(1);
  app.footer(std::string("Each verb has --help with examples.\n") + kExitCodes);
  app.fallthrough();
  bool verbose = false;
  app.add_flag("--verbose", verbose, "tell more");
  Action action;
  add_train(app, action, called);
  add_evaluate(app, action);
  add_predict(app, action);
  add_export(app, action);
  add_make_sample(app, action);
  add_others(app, action);
  check_verb(app, words);
  try {
    std::vector<std::string> reversed(words.rbegin(), words.rend());  // as CLI11 wants them
    app.parse(reversed);
  } catch (const CLI::Success& e) {
    app.exit(e);  // prints the help or the version
    return std::nullopt;
  } catch (const CLI::ParseError& e) {
    const auto chosen = app.get_subcommands();
    const std::string verb = chosen.empty() ? "" : " " + chosen.front()->get_name();
    throw Error(ErrorKind::Usage, e.what(), "see `orchard" + verb + " --help`");
  }
  log::set_verbose(verbose);
  return action;
}

}  // namespace orchard::cli
