#include <torch/types.h>
#include <torch/utils.h>

#include <cstdio>

#include "artifacts/inference.hpp"
#include "artifacts/torchscript.hpp"
#include "base/error.hpp"
#include "base/text.hpp"
#include "commands/commands.hpp"

namespace orchard::commands {
namespace {

// <run folder>/export/<model>.ts for a run folder or a checkpoint in one, else beside the
// checkpoint.
std::filesystem::path default_output(const std::filesystem::path& where,
                                     const std::string& model_name) {
  const auto name = model_name + ".ts";
  if (std::filesystem::is_directory(where)) {
    return where / "export" / name;
  }
  const auto folder = std::filesystem::absolute(where).parent_path();
  if (folder.filename() == "checkpoints") {
    return std::filesystem::proximate(folder.parent_path()) / "export" / name;
  }
  return where.parent_path() / name;
}

}  // namespace

int export_model(const ExportArgs& args) {
  auto loaded = artifacts::load_model(args.model);
  const auto side = loaded.card.preprocess.crop_px;
  const std::filesystem::path output = args.output.empty()
                                           ? default_output(args.model, loaded.card.model_name)
                                           : std::filesystem::path(args.output);
  if (args.output.empty()) {
    std::error_code code;
    std::filesystem::create_directories(output.parent_path(),
                                        code);  // a failure shows in the writing
  }
  // Normalised pixels have a mean near 0 and a deviation near 1.
  auto generator = at::detail::createCPUGenerator(1);
  const auto images = torch::randn({7, 3, side, side}, generator);
  const auto checks = artifacts::export_torchscript(*loaded.model, loaded.card, images, output);
  std::printf("wrote       %s (%s)\n", output.string().c_str(),
              bytes_text(static_cast<double>(std::filesystem::file_size(output))).c_str());
  std::printf("input       float32 [N, 3, %ld, %ld], RGB, normalised; see orchard.json inside\n",
              static_cast<long>(side), static_cast<long>(side));
  for (const auto& check : checks) {
    std::printf("checked     batch %ld: largest difference of a logit %s\n",
                static_cast<long>(check.batch_size), compact(check.max_abs_difference).c_str());
  }
  return 0;
}

}  // namespace orchard::commands
