#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "artifacts/inference.hpp"
#include "base/error.hpp"
#include "base/files.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "commands/commands.hpp"
#include "data/image_folder.hpp"
#include "data/loader.hpp"
#include "device/device.hpp"
#include "train/evaluate.hpp"

namespace orchard::commands {
namespace {

struct Guess {
  std::int64_t label;
  double probability;
};

struct Prediction {
  std::string path;
  std::vector<Guess> guesses;  // best first; empty when the file could not be read
  std::string error;
};

using Json = nlohmann::ordered_json;

Json to_json(const Prediction& prediction, const std::vector<std::string>& classes) {
  Json entry = {{"path", prediction.path}};
  if (!prediction.error.empty()) {
    entry["error"] = prediction.error;
    return entry;
  }
  Json guesses = Json::array();
  for (const auto& guess : prediction.guesses) {
    guesses.push_back({{"class", classes[static_cast<std::size_t>(guess.label)]},
                       {"index", guess.label},
                       {"probability", guess.probability}});
  }
  entry["predictions"] = guesses;
  return entry;
}

// File names need not be valid UTF-8; JSON must be.
std::string json_text(const Json& value, int indent) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

std::string as_csv(const std::vector<Prediction>& predictions,
                   const std::vector<std::string>& classes) {
  std::string text = "path,rank,class,index,probability,error\n";
  for (const auto& prediction : predictions) {
    if (!prediction.error.empty()) {
      text += csv_field(prediction.path) + ",,,,," + csv_field(prediction.error) + "\n";
    }
    for (std::size_t rank = 0; rank < prediction.guesses.size(); ++rank) {
      const auto& guess = prediction.guesses[rank];
      text += csv_field(prediction.path) +
              str(",", rank + 1, ",", csv_field(classes[static_cast<std::size_t>(guess.label)]),
                  ",", guess.label, ",", Json(guess.probability).dump(), ",\n");
    }
  }
  return text;
}

std::string as_table(const std::vector<Prediction>& predictions,
                     const std::vector<std::string>& classes) {
  std::size_t width = 4;
  for (const auto& prediction : predictions) {
    width = std::max(width, prediction.path.size());
  }
  std::string text;
  for (const auto& prediction : predictions) {
    text += prediction.path + std::string(width - prediction.path.size() + 2, ' ');
    if (!prediction.error.empty()) {
      text += "cannot be read: " + prediction.error;
    }
    for (const auto& guess : prediction.guesses) {
      text += classes[static_cast<std::size_t>(guess.label)] + " " + percent(guess.probability, 2) +
              "  ";
    }
    text.erase(text.find_last_not_of(' ') + 1);
    text += "\n";
  }
  return text;
}

std::string formatted(const std::vector<Prediction>& predictions,
                      const std::vector<std::string>& classes, const std::string& format) {
  if (format == "csv") {
    return as_csv(predictions, classes);
  }
  if (format == "table") {
    return as_table(predictions, classes);
  }
  Json list = Json::array();
  std::string lines;
  for (const auto& prediction : predictions) {
    auto entry = to_json(prediction, classes);
    if (format == "jsonl") {
      lines += json_text(entry, -1) + "\n";
    } else {
      list.push_back(std::move(entry));
    }
  }
  return format == "jsonl" ? lines : json_text(list, 2) + "\n";
}

// A model may have more outputs than its data has class names.
std::vector<std::string> padded_names(std::vector<std::string> classes, std::int64_t num_outputs) {
  for (auto i = static_cast<std::int64_t>(classes.size()); i < num_outputs; ++i) {
    classes.push_back(str("unnamed_", i));
  }
  return classes;
}

}  // namespace

int predict(const PredictArgs& args) {
  const auto device = device::choose(args.device, 0);
  const auto model = artifacts::load_for_inference(args.model, device.torch);
  data::ImageFolder images;
  images.classes = model.card.classes;
  std::vector<Prediction> predictions;
  for (const auto& path : data::list_images(args.inputs)) {
    images.samples.push_back({.path = path, .label = 0});
    predictions.push_back({.path = path, .guesses = {}, .error = "not read"});
  }
  config::DataConfig data_config;
  data_config.workers = args.workers;
  data_config.max_bad_fraction = 1.0;  // every file gets its row
  data::Loader loader(images, train::eval_loader_options(model.card.preprocess, data_config,
                                                         args.batch_size, device));
  std::int64_t num_outputs = 0;
  train::for_each_logits(
      model.forward, loader, device, model.card.preprocess,
      [&](const data::Batch& batch, const torch::Tensor& logits) {
        num_outputs = logits.size(1);
        for (std::int64_t i = 0; i < batch.size(); ++i) {
          const auto row = train::row_of(logits, i);
          const auto probabilities = train::softmax(row);
          auto& prediction =
              predictions[static_cast<std::size_t>(batch.samples[static_cast<std::size_t>(i)])];
          prediction.error.clear();
          for (const auto label : train::top_classes(row, args.top_k)) {
            prediction.guesses.push_back({label, probabilities[static_cast<std::size_t>(label)]});
          }
        }
        log::live(str("predicting  ", thousands(batch.end_position), "/",
                      thousands(loader.num_samples()), " images"));
      });
  log::end_live();

  std::map<std::string, std::string> reasons;
  for (const auto& bad : loader.bad_files()) {
    reasons[bad.path] = bad.reason;
  }
  std::size_t num_bad = 0;
  for (auto& prediction : predictions) {
    if (!prediction.error.empty()) {
      prediction.error = reasons[prediction.path];
      ++num_bad;
    }
  }
  const auto text =
      formatted(predictions, padded_names(model.card.classes, num_outputs), args.format);
  if (args.output.empty()) {
    std::fwrite(text.data(), 1, text.size(), stdout);
  } else {
    write_atomically(args.output, text);
  }
  if (num_bad > 0) {
    throw Error(ErrorKind::Data,
                str(num_bad, " of ", predictions.size(), " files could not be read"),
                "the others are predicted; see the rows with an error");
  }
  return 0;
}

}  // namespace orchard::commands
