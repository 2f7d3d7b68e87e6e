// Our readers and writers for tests/parity/artifacts_parity.py.
//
//   artifacts_probe copy IN.pth OUT.pth    reads one and writes what it read to the other
//   artifacts_probe export OUT.ts OUT.pth  exports a model; writes its tensors, images and logits
#include <torch/torch.h>

#include <cstdio>
#include <string>

#include "artifacts/pth.hpp"
#include "artifacts/torchscript.hpp"
#include "base/error.hpp"
#include "models/model.hpp"

namespace {

using namespace orchard;

void export_model(const std::string& script, const std::string& values) {
  const auto model = models::make_model({.name = "resnet18", .num_classes = 4, .seed = 7});
  const torch::NoGradGuard no_grad;
  torch::manual_seed(1);
  model->forward(torch::randn({4, 3, 64, 64}) + 1);  // running statistics of their own
  artifacts::ModelCard card;
  card.model_name = "resnet18";
  card.classes = {"a", "b", "c", "dög"};
  const auto images = torch::randn({9, 3, 64, 64});
  artifacts::export_torchscript(*model, card, images, script);
  auto out = artifacts::new_dict();
  auto tensors = artifacts::new_dict();
  for (const auto& [name, tensor] : artifacts::named_tensors(*model)) {
    tensors.insert(name, tensor);
  }
  model->eval();
  out.insert("model", tensors);
  out.insert("images", images);
  out.insert("logits", model->forward(images));
  artifacts::write_pth(values, out);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::string verb = argc == 4 ? argv[1] : "";
    if (verb == "copy") {
      artifacts::write_pth(argv[3], artifacts::read_pth(argv[2]));
    } else if (verb == "export") {
      export_model(argv[2], argv[3]);
    } else {
      std::fputs("usage: artifacts_probe copy|export FILE FILE\n", stderr);
      return 2;
    }
  } catch (const Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return e.exit_code();
  }
  return 0;
}
