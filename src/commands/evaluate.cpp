#include <cstdio>
#include <nlohmann/json.hpp>

#include "artifacts/inference.hpp"
#include "base/error.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "commands/commands.hpp"
#include "data/image_folder.hpp"
#include "data/loader.hpp"
#include "device/device.hpp"
#include "train/evaluate.hpp"

namespace orchard::commands {
namespace {

// DATA may be a root with val/ in it, or the evaluation split itself.
std::filesystem::path find_split(const std::filesystem::path& data) {
  return data::has_val(data) ? data::find_val(data) : data;
}

std::string text_report(const artifacts::InferenceModel& model, const train::EvalResult& result,
                        const std::filesystem::path& split) {
  const auto& preprocess = model.card.preprocess;
  const auto three = [](const std::array<double, 3>& values) {
    return str(compact(values[0]), " ", compact(values[1]), " ", compact(values[2]));
  };
  std::string text = str("model       ", model.card.model_name, ", ", model.file.string(), "\n");
  text += str("images      ", result.num_images, " of ", split.string());
  text += result.num_bad > 0 ? str(" (", result.num_bad, " more could not be read)\n") : "\n";
  text += str("view        resize ", preprocess.resize_px, ", centre crop ", preprocess.crop_px,
              ", ", config::choice_name(preprocess.interpolation), ", EXIF ",
              config::choice_name(preprocess.exif_orientation), ", mean ", three(preprocess.mean),
              ", std ", three(preprocess.std), "\n");
  text += str("top-1       ", percent(result.top1(), 3), "\n");
  text += str("top-5       ", percent(result.top5(), 3), "\n");
  text += str("loss        ", fixed(result.loss(), 5), "\n");
  return text + str("speed       ",
                    fixed(static_cast<double>(result.num_images) / result.seconds, 0),
                    " images/s\n");
}

}  // namespace

int evaluate(const EvaluateArgs& args) {
  const auto device = device::choose(args.device, 0);
  const auto model = artifacts::load_for_inference(args.model, device.torch);
  const std::string data = args.data.empty() ? model.data_root : args.data;
  if (data.empty()) {
    throw Error(
        ErrorKind::Usage, "evaluate needs images",
        "add --data FOLDER, a folder with val/<class>/ or with the class folders themselves");
  }
  const auto images = data::scan(find_split(data), model.card.classes);
  for (const auto& note : images.notes) {
    log::warn(note);
  }
  config::DataConfig data_config;
  data_config.workers = args.workers;
  data_config.max_bad_fraction = 1.0;  // told in the report instead
  data::Loader loader(images, train::eval_loader_options(model.card.preprocess, data_config,
                                                         args.batch_size, device));
  const auto result = train::evaluate(model.forward, loader, device, model.card.preprocess,
                                      [&](std::int64_t num_done) {
                                        log::live(str("evaluating  ", thousands(num_done), "/",
                                                      thousands(loader.num_samples()), " images"));
                                      });
  log::end_live();
  for (const auto& bad : loader.bad_files()) {
    log::warn(bad.path + ": " + bad.reason);
  }
  if (result.num_images == 0) {
    throw Error(ErrorKind::Data, "none of the images in '" + images.root.string() + "' can be read",
                "see the warnings above");
  }
  if (args.format == "json") {
    const nlohmann::ordered_json report = {
        {"model", model.file.string()}, {"data", images.root.string()},
        {"images", result.num_images},  {"unreadable", result.num_bad},
        {"top1", result.top1()},        {"top5", result.top5()},
        {"loss", result.loss()},        {"seconds", result.seconds}};
    std::printf("%s\n", report.dump(2).c_str());
  } else {
    std::fputs(text_report(model, result, images.root).c_str(), stdout);
  }
  return 0;
}

}  // namespace orchard::commands
