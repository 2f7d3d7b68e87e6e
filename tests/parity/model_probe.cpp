// What models_parity.py compares with torchvision and torch.optim: runs our models, optimizer and
// schedule on inputs that Python wrote, and writes the results for it to read.
//
//   model_probe describe NAME CLASSES WIDTH_MULT          parameters and buffers in order, on
//   stdout model_probe weights FOLDER KEY=VALUE...               new weights -> FOLDER model_probe
//   schedule KEY=VALUE...                     one learning rate a line, on stdout model_probe run
//   FOLDER KEY=VALUE...                   FOLDER/in -> FOLDER/out model_probe time KEY=VALUE...
//   seconds a training step, on stdout model_probe version                                   of
//   LibTorch
//
// A folder of tensors holds index.tsv (name, float32 or int64, shape with commas, offset in bytes)
// and data.bin.
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "models/model.hpp"
#include "train/optimizer.hpp"
#include "train/schedule.hpp"

namespace {

using namespace orchard;
using Tensors = std::map<std::string, torch::Tensor>;

// KEY=VALUE arguments; a key that nothing asks for is a mistake in the script.
class Options {
 public:
  Options(int argc, char** argv, int first) {
    for (int i = first; i < argc; ++i) {
      const std::string argument = argv[i];
      const auto equals = argument.find('=');
      values_[argument.substr(0, equals)] = argument.substr(equals + 1);
    }
  }
  std::string text(const std::string& key, const std::string& otherwise) {
    const auto found = values_.extract(key);
    return found.empty() ? otherwise : found.mapped();
  }
  double number(const std::string& key, double otherwise) {
    const auto value = text(key, "");
    return value.empty() ? otherwise : std::stod(value);
  }
  std::int64_t whole(const std::string& key, std::int64_t otherwise) {
    return static_cast<std::int64_t>(number(key, static_cast<double>(otherwise)));
  }
  void check_all_used() const {
    if (!values_.empty()) {
      throw std::invalid_argument("unknown option " + values_.begin()->first);
    }
  }

 private:
  std::map<std::string, std::string> values_;
};

std::string shape_text(const torch::Tensor& tensor) {
  std::string text;
  for (const auto size : tensor.sizes()) {
    text += (text.empty() ? "" : ",") + std::to_string(size);
  }
  return text;
}

const char* type_text(const torch::Tensor& tensor) {
  return tensor.scalar_type() == torch::kInt64 ? "int64" : "float32";
}

Tensors read_folder(const std::filesystem::path& folder) {
  std::ifstream data_file(folder / "data.bin", std::ios::binary);
  std::ostringstream all;
  all << data_file.rdbuf();
  std::string data = std::move(all).str();
  std::ifstream index(folder / "index.tsv");
  Tensors tensors;
  for (std::string line; std::getline(index, line);) {
    std::istringstream fields(line);
    std::string name;
    std::string type;
    std::string shape;
    std::string offset;
    std::getline(fields, name, '\t');
    std::getline(fields, type, '\t');
    std::getline(fields, shape, '\t');
    std::getline(fields, offset, '\t');
    std::vector<std::int64_t> sizes;
    std::istringstream shape_fields(shape);
    for (std::string size; std::getline(shape_fields, size, ',');) {
      sizes.push_back(std::stoll(size));
    }
    tensors[name] = torch::from_blob(data.data() + std::stoll(offset), sizes,
                                     type == "int64" ? torch::kInt64 : torch::kFloat32)
                        .clone();
  }
  return tensors;
}

void write_folder(const std::filesystem::path& folder, const Tensors& tensors) {
  std::filesystem::create_directories(folder);
  std::ofstream data(folder / "data.bin", std::ios::binary);
  std::ofstream index(folder / "index.tsv");
  std::int64_t offset = 0;
  for (const auto& [name, value] : tensors) {
    const auto tensor = value.detach().contiguous();
    index << name << '\t' << type_text(tensor) << '\t' << shape_text(tensor) << '\t' << offset
          << '\n';
    const auto num_bytes = static_cast<std::int64_t>(tensor.nbytes());
    data.write(static_cast<const char*>(tensor.const_data_ptr()), num_bytes);
    offset += num_bytes;
  }
  if (!data.flush() || !index.flush()) {
    throw std::runtime_error("cannot write into " + folder.string());
  }
}

// Names and shapes must be those of the model, all of them and no other.
void load_strictly(models::ImageModel& model, const Tensors& weights) {
  const torch::NoGradGuard no_grad;
  std::size_t count = 0;
  const auto load = [&](const std::string& name, torch::Tensor& own) {
    const auto& given = weights.at(name);
    TORCH_CHECK(given.sizes() == own.sizes(), name, " has another shape");
    own.copy_(given);
    ++count;
  };
  for (auto& item : model.named_parameters()) {
    load(item.key(), item.value());
  }
  for (auto& item : model.named_buffers()) {
    load(item.key(), item.value());
  }
  TORCH_CHECK(count == weights.size(), "there are more weights than the model has");
}

void place(models::ImageModel& model, torch::MemoryFormat format) {
  for (auto& parameter : model.parameters()) {
    if (parameter.dim() == 4) {
      parameter.set_data(parameter.contiguous(format));
    }
  }
}

models::ModelOptions model_options(Options& options) {
  return {.name = options.text("model", "resnet18"),
          .num_classes = options.whole("classes", 10),
          .width_mult = options.number("width_mult", 1.0),
          .dropout = 0.0,
          .seed = static_cast<std::uint64_t>(options.whole("seed", 0))};
}

config::OptimizerConfig optimizer_config(Options& options) {
  return {.momentum = options.number("momentum", 0.9),
          .nesterov = options.whole("nesterov", 0) != 0,
          .weight_decay = options.number("weight_decay", 1e-4),
          .decay_norm_and_bias = options.whole("decay_norm_and_bias", 1) != 0};
}

void describe(const std::string& name, std::int64_t num_classes, double width_mult) {
  const auto model =
      models::make_model({.name = name, .num_classes = num_classes, .width_mult = width_mult});
  for (const auto& item : model->named_parameters()) {
    std::cout << "parameter\t" << item.key() << '\t' << type_text(item.value()) << '\t'
              << shape_text(item.value()) << '\n';
  }
  for (const auto& item : model->named_buffers()) {
    std::cout << "buffer\t" << item.key() << '\t' << type_text(item.value()) << '\t'
              << shape_text(item.value()) << '\n';
  }
}

void weights(const std::filesystem::path& folder, Options& options) {
  const auto model = models::make_model(model_options(options));
  options.check_all_used();
  Tensors tensors;
  for (const auto& item : model->named_parameters()) {
    tensors[item.key()] = item.value();
  }
  for (const auto& item : model->named_buffers()) {
    tensors[item.key()] = item.value();
  }
  write_folder(folder, tensors);
}

void schedule(Options& options) {
  const auto name = options.text("name", "constant");
  const config::ScheduleConfig config = {
      .name = name == "cosine" ? config::ScheduleName::Cosine
              : name == "step" ? config::ScheduleName::Step
                               : config::ScheduleName::Constant,
      .warmup_epochs = options.number("warmup_epochs", 0),
      .warmup_start_factor = options.number("warmup_start_factor", 0.01),
      .min_lr = options.number("min_lr", 0),
      .step_epochs = options.number("step_epochs", 30),
      .step_gamma = options.number("step_gamma", 0.1)};
  const double peak = options.number("peak", 0.1);
  const auto steps_per_epoch = options.whole("steps_per_epoch", 10);
  const auto total_steps = options.whole("epochs", 90) * steps_per_epoch;
  options.check_all_used();
  for (std::int64_t step = 0; step < total_steps; ++step) {
    std::cout << std::setprecision(17)
              << train::learning_rate(config, peak, step, steps_per_epoch, total_steps) << '\n';
  }
}

// Evaluation logits, then `steps` training steps on one batch; what the first step saw is written
// too.
void run(const std::filesystem::path& folder, Options& options) {
  auto inputs = read_folder(folder / "in");
  const auto images = inputs.extract("images").mapped();
  const auto labels = inputs.extract("labels").mapped();
  const auto model = models::make_model(model_options(options));
  load_strictly(*model, inputs);
  const auto format = options.whole("channels_last", 0) != 0 ? torch::MemoryFormat::ChannelsLast
                                                             : torch::MemoryFormat::Contiguous;
  place(*model, format);
  const double smoothing = options.number("label_smoothing", 0.1);
  const double lr = options.number("lr", 0.05);
  const auto steps = options.whole("steps", 5);
  train::Optimizer optimizer(optimizer_config(options), *model);
  options.check_all_used();

  Tensors results;
  {
    const torch::NoGradGuard no_grad;
    model->eval();
    results["eval_logits"] = model->forward(images.contiguous(format));
    model->train();
  }
  for (std::int64_t step = 0; step < steps; ++step) {
    const auto loss = torch::cross_entropy_loss(model->forward(images.contiguous(format)), labels,
                                                {}, at::Reduction::Mean, -100, smoothing);
    loss.backward();
    results["loss." + std::to_string(step)] = loss.detach();
    if (step == 0) {
      for (const auto& item : model->named_parameters()) {
        results["grad." + item.key()] = item.value().grad().clone();
      }
      for (const auto& item : model->named_buffers()) {
        results["stat." + item.key()] = item.value().clone();
      }
    }
    optimizer.step(lr);
    optimizer.zero_grad();
  }
  for (const auto& item : model->named_parameters()) {
    results["final." + item.key()] = item.value();
  }
  write_folder(folder / "out", results);
}

// The median of some training steps, as Python's side of the measurement does it.
void time_steps(Options& options) {
  torch::set_num_threads(static_cast<int>(options.whole("threads", 2)));
  const auto format = options.whole("channels_last", 0) != 0 ? torch::MemoryFormat::ChannelsLast
                                                             : torch::MemoryFormat::Contiguous;
  const auto batch = options.whole("batch", 32);
  const auto side_px = options.whole("side_px", 64);
  const auto steps = options.whole("steps", 7);
  const auto made = model_options(options);
  const auto model = models::make_model(made);
  place(*model, format);
  train::Optimizer optimizer(optimizer_config(options), *model);
  options.check_all_used();
  const auto images = torch::randn({batch, 3, side_px, side_px}).contiguous(format);
  const auto labels = torch::randint(made.num_classes, {batch}, torch::kInt64);
  std::vector<double> seconds;
  for (std::int64_t step = 0; step < steps + 2; ++step) {
    const auto began = std::chrono::steady_clock::now();
    torch::cross_entropy_loss(model->forward(images), labels).backward();
    optimizer.step(0.01);
    optimizer.zero_grad();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - began;
    if (step >= 2) {  // the first ones fill caches
      seconds.push_back(taken.count());
    }
  }
  std::ranges::sort(seconds);
  std::cout << seconds.at(seconds.size() / 2) << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::string verb = argc > 1 ? argv[1] : "";
    if (verb == "describe" && argc == 5) {
      describe(argv[2], std::stoll(argv[3]), std::stod(argv[4]));
    } else if (verb == "version") {
      std::cout << TORCH_VERSION << '\n';
    } else if (verb == "weights" && argc > 2) {
      Options options(argc, argv, 3);
      weights(argv[2], options);
    } else if (verb == "schedule") {
      Options options(argc, argv, 2);
      schedule(options);
    } else if (verb == "run" && argc > 2) {
      Options options(argc, argv, 3);
      run(argv[2], options);
    } else if (verb == "time") {
      Options options(argc, argv, 2);
      time_steps(options);
    } else {
      std::cerr << "describe, weights, schedule, run, time or version\n";
      return 2;
    }
  } catch (const std::exception& e) {
    std::cerr << e.what() << '\n';
    return 1;
  }
  return 0;
}
