#include "artifacts/torchscript.hpp"

#include <doctest/doctest.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <sstream>

#include "base/error.hpp"
#include "base/files.hpp"
#include "models/model.hpp"
#include "support/temp_folder.hpp"

using namespace orchard;
using namespace orchard::artifacts;

namespace {

ModelCard card_of(const std::string& model_name) {
  ModelCard card;
  card.model_name = model_name;
  card.classes = {"a", "b \"quoted\"", "\xc3\xa9"};
  card.preprocess.crop_px = 64;
  card.preprocess.resize_px = 72;
  card.preprocess.mean = {0.1, 0.2, 0.3};
  card.top1 = 1.0 / 3;
  card.epoch = 7;
  card.versions = "orchard x, torch y";
  return card;
}

torch::Tensor images() {
  return torch::randn({7, 3, 64, 64}, at::detail::createCPUGenerator(5));
}

// A model whose forward depends on the batch it was traced with.
class Baked : public models::ImageModel {
 public:
  Baked() { register_parameter("w", torch::ones({3})); }
  torch::Tensor forward(torch::Tensor x) override {
    return x.mean({2, 3}) * parameters()[0] * static_cast<double>(x.size(0));
  }
};

}  // namespace

TEST_CASE("an exported model says the same, on any batch, and carries its card") {
  const TempFolder folder;
  for (const char* name : {"resnet18", "mobilenet_v2"}) {
    CAPTURE(name);
    auto model = models::make_model({.name = name, .num_classes = 3, .seed = 1});
    {
      const torch::NoGradGuard no_grad;
      for (auto& buffer : model->named_buffers()) {
        if (buffer.key().find("running_mean") != std::string::npos) {
          buffer.value().add_(0.01);
        }
      }
    }
    model->train();
    const auto path = folder / (std::string(name) + ".ts");
    const auto checks = export_torchscript(*model, card_of(name), images(), path);
    REQUIRE(checks.size() == 3);
    CHECK(checks[0].batch_size == 1);
    CHECK(checks[2].batch_size == 7);
    CHECK(model->is_training());  // left as it was
    CHECK(model->parameters()[0].requires_grad());

    const auto loaded = load_torchscript(path, torch::kCPU);
    CHECK(loaded.card.model_name == name);
    CHECK(loaded.card.classes == card_of(name).classes);
    CHECK(loaded.card.preprocess.crop_px == 64);
    CHECK(loaded.card.preprocess.mean[1] == 0.2);
    CHECK(loaded.card.top1 == 1.0 / 3);
    CHECK(loaded.card.epoch == 7);
    model->eval();
    const torch::NoGradGuard no_grad;
    const auto expected = model->forward(images());
    for (int call = 0; call < 4; ++call) {  // an optimising executor may change its mind
      CHECK((loaded.forward(images()) - expected).abs().max().item<double>() < 1e-6);
    }
    const auto five = images().slice(0, 0, 5);
    CHECK((loaded.forward(five) - model->forward(five)).abs().max().item<double>() < 1e-6);

    // Weights are attributes under torchvision's names, not constants of the graph.
    auto script = torch::jit::load(path.string());
    std::int64_t num_tensors = 0;
    for (const auto& parameter : script.named_parameters()) {
      CHECK(torch::equal(parameter.value, model->named_parameters()[parameter.name]));
      ++num_tensors;
    }
    CHECK(num_tensors == static_cast<std::int64_t>(model->named_parameters().size()));
    for (const auto* node : script.get_method("forward").graph()->nodes()) {
      const bool is_tensor_constant = node->kind() == torch::jit::prim::Constant &&
                                      node->output()->type()->isSubtypeOf(*c10::TensorType::get());
      CHECK_FALSE(is_tensor_constant);
    }
  }
}

TEST_CASE("an export that does not say the same leaves no file") {
  const TempFolder folder;
  Baked model;
  CHECK_THROWS_AS(export_torchscript(model, card_of("baked"), images(), folder / "baked.ts"),
                  Error);
  CHECK(std::filesystem::is_empty(folder.path()));
  write_atomically(folder / "old.ts", "old");
  CHECK_THROWS_AS(export_torchscript(model, card_of("baked"), images(), folder / "old.ts"), Error);
  CHECK(read_file(folder / "old.ts") == "old");
}

TEST_CASE("what is no export of ours is refused with its name") {
  const TempFolder folder;
  write_atomically(folder / "text.ts", "hello");
  torch::jit::Module plain("plain");
  plain.define("def forward(self, x):\n  return x\n");
  plain.save((folder / "plain.ts").string());
  for (const char* name : {"text.ts", "plain.ts", "none.ts"}) {
    CAPTURE(name);
    try {
      load_torchscript(folder / name, torch::kCPU);
      FAIL("must throw");
    } catch (const Error& e) {
      CHECK(e.kind() == ErrorKind::Checkpoint);
      CHECK(std::string(e.what()).find(name) != std::string::npos);
    }
  }
}
