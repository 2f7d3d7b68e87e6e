#include "models/model.hpp"

#include <doctest/doctest.h>
#include <torch/csrc/jit/api/compilation_unit.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>
#include <string>

using namespace orchard;
using models::make_model;
using models::ModelOptions;

namespace {

// A model as after some training: random running statistics, in evaluation mode.
std::shared_ptr<models::ImageModel> trained(const std::string& name) {
  auto model = make_model({.name = name, .num_classes = 11, .seed = 3});
  torch::manual_seed(5);
  for (auto& item : model->named_buffers()) {
    if (item.key().ends_with("running_mean")) {
      item.value().uniform_(-0.1, 0.1);
    } else if (item.key().ends_with("running_var")) {
      item.value().uniform_(0.8, 1.2);
    }
  }
  model->eval();
  return model;
}

// On images this small two threads mostly wait for each other.
class OneThread {
 public:
  OneThread() { torch::set_num_threads(1); }
  ~OneThread() { torch::set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_ = torch::get_num_threads();
};

double relative_difference(const torch::Tensor& got, const torch::Tensor& expected) {
  return (got - expected).abs().max().item<double>() / expected.abs().max().item<double>();
}

bool same_values(const torch::nn::Module& left, const torch::nn::Module& right) {
  bool same = true;
  const auto rights = right.named_parameters();
  for (const auto& item : left.named_parameters()) {
    same &= torch::equal(item.value(), rights[item.key()]);
  }
  return same;
}

}  // namespace

TEST_CASE("the models have the published numbers of parameters") {
  // num_params of torchvision's weight descriptions (1000 classes).
  const std::map<std::string, std::int64_t> published = {
      {"resnet18", 11689512},  {"resnet34", 21797672},  {"resnet50", 25557032},
      {"resnet101", 44549160}, {"resnet152", 60192808}, {"mobilenet_v2", 3504872}};
  CHECK(models::model_names().size() == published.size());
  for (const auto& name : models::model_names()) {
    CAPTURE(name);
    const auto model = make_model({.name = name});
    CHECK(models::num_parameters(*model) == published.at(name));
    CHECK(model->is_training());
  }
}

TEST_CASE("width_mult scales every channel count, in multiples of 8") {
  const auto model = make_model({.name = "resnet18", .num_classes = 5, .width_mult = 0.375});
  const auto parameters = model->named_parameters();
  CHECK(parameters["conv1.weight"].sizes() == torch::IntArrayRef({24, 3, 7, 7}));
  CHECK(parameters["layer1.0.conv1.weight"].sizes() == torch::IntArrayRef({24, 24, 3, 3}));
  CHECK(parameters["layer4.0.downsample.0.weight"].sizes() == torch::IntArrayRef({192, 96, 1, 1}));
  CHECK(parameters["fc.weight"].sizes() == torch::IntArrayRef({5, 192}));
  CHECK(model->forward(torch::ones({2, 3, 32, 32})).sizes() == torch::IntArrayRef({2, 5}));

  const auto narrow = make_model({.name = "resnet50", .num_classes = 5, .width_mult = 0.01});
  CHECK(narrow->named_parameters()["fc.weight"].sizes() == torch::IntArrayRef({5, 32}));
}

TEST_CASE("a wrong name names the right ones") {
  std::string text;
  try {
    make_model({.name = "resnet5O"});
  } catch (const std::invalid_argument& e) {
    text = e.what();
  }
  CHECK(text.find("'resnet5O', did you mean 'resnet50'?") != std::string::npos);
  for (const auto& name : models::model_names()) {
    CHECK(text.find(name) != std::string::npos);
  }
  CHECK_THROWS_AS(make_model({.name = ""}), std::invalid_argument);
  CHECK_THROWS_AS(make_model({.name = "resnet18", .num_classes = 0}), std::invalid_argument);
}

TEST_CASE("the seed alone decides the weights, and the global generator does not move") {
  for (const std::string name : {"resnet18", "mobilenet_v2"}) {
    CAPTURE(name);
    torch::manual_seed(1);
    const auto expected_draw = torch::rand({3});
    torch::manual_seed(1);
    const auto first = make_model({.name = name, .num_classes = 5, .seed = 42});
    CHECK(torch::equal(torch::rand({3}), expected_draw));
    const auto again = make_model({.name = name, .num_classes = 5, .seed = 42});
    const auto other = make_model({.name = name, .num_classes = 5, .seed = 43});
    const auto high = make_model({.name = name, .num_classes = 5, .seed = 42 + (1ULL << 40U)});
    CHECK(same_values(*first, *again));
    CHECK(!same_values(*first, *other));
    CHECK(!same_values(*first, *high));
  }
}

TEST_CASE("weights start by torchvision's laws") {
  for (const std::string name : {"resnet18", "resnet50", "mobilenet_v2"}) {
    CAPTURE(name);
    const auto model = make_model({.name = name, .num_classes = 1000, .seed = 1});
    for (const auto& item : model->named_parameters()) {
      CAPTURE(item.key());
      const auto value = item.value().detach().to(torch::kFloat64);
      const bool is_last_layer =
          item.key().starts_with("fc.") || item.key().starts_with("classifier.");
      double deviation = 0;
      if (value.dim() == 4) {
        deviation =
            std::sqrt(2.0 / static_cast<double>(value.size(0) * value.size(2) * value.size(3)));
      } else if (is_last_layer && name == "mobilenet_v2") {
        deviation = value.dim() == 2 ? 0.01 : 0.0;
      } else if (is_last_layer) {
        const auto inputs = static_cast<double>(model->named_parameters()["fc.weight"].size(1));
        CHECK(value.abs().max().item<double>() <= 1 / std::sqrt(inputs));
        deviation = 1 / std::sqrt(3 * inputs);
      } else {
        CHECK((value == (item.key().ends_with("weight") ? 1.0 : 0.0)).all().item<bool>());
        continue;
      }
      // Six standard errors; a uniform's are smaller than a normal's.
      const auto count = static_cast<double>(value.numel());
      CHECK(std::abs(value.mean().item<double>()) <= 6 * deviation / std::sqrt(count));
      CHECK(std::abs(value.std().item<double>() - deviation) <=
            6 * deviation / std::sqrt(2 * count));
    }
    for (const auto& item : model->named_buffers()) {
      CAPTURE(item.key());
      const bool counts = item.key().ends_with("num_batches_tracked");
      CHECK((item.value().scalar_type() == (counts ? torch::kInt64 : torch::kFloat32)));
      CHECK((item.value() == (item.key().ends_with("running_var") ? 1 : 0)).all().item<bool>());
    }
  }
}

TEST_CASE("zero_init_residual makes every residual block start as its shortcut") {
  for (const auto& [name, last_norm, blocks] :
       {std::tuple{"resnet18", ".bn2.weight", 8}, std::tuple{"resnet50", ".bn3.weight", 16}}) {
    const auto model =
        make_model({.name = name, .num_classes = 5, .zero_init_residual = true, .seed = 1});
    const auto without = make_model({.name = name, .num_classes = 5, .seed = 1});
    int zeros = 0;
    for (const auto& item : model->named_parameters()) {
      CAPTURE(item.key());
      if (item.key().ends_with(last_norm)) {
        CHECK((item.value() == 0).all().item<bool>());
        ++zeros;
      } else {
        CHECK(torch::equal(item.value(), without->named_parameters()[item.key()]));
      }
    }
    CHECK(zeros == blocks);
  }
}

TEST_CASE("an image has the same logits in a batch of any size and in both memory orders") {
  const OneThread one_thread;
  const torch::NoGradGuard no_grad;
  for (const auto& name : models::model_names()) {
    CAPTURE(name);
    const auto model = trained(name);
    torch::manual_seed(9);
    const auto images = torch::randn({7, 3, 32, 32});
    const auto logits = model->forward(images);
    REQUIRE((logits.sizes() == torch::IntArrayRef({7, 11})));
    REQUIRE((logits.std(0) > 0).all().item<bool>());  // the images differ at all
    // Sums in another order: some last bits of float32, grown through up to 150 layers.
    constexpr double kTolerance = 2e-5;
    CHECK(relative_difference(model->forward(images.slice(0, 2, 3)), logits.slice(0, 2, 3)) <
          kTolerance);
    CHECK(relative_difference(model->forward(images.slice(0, 0, 3)), logits.slice(0, 0, 3)) <
          kTolerance);
    for (auto& parameter : model->parameters()) {
      if (parameter.dim() == 4) {
        parameter.set_data(parameter.contiguous(torch::MemoryFormat::ChannelsLast));
      }
    }
    CHECK(relative_difference(model->forward(images.contiguous(torch::MemoryFormat::ChannelsLast)),
                              logits) < kTolerance);
    CHECK(relative_difference(model->forward(images), logits) < kTolerance);
  }
}

// In float64: in float32 the order of sums differs, and one ReLU near 0 that flips in a late layer
// of ResNet-50 moves all gradients by some percent.
TEST_CASE("training in channels_last gives the loss and gradients of contiguous") {
  const OneThread one_thread;
  for (const std::string name : {"resnet18", "resnet50", "mobilenet_v2"}) {
    CAPTURE(name);
    const auto gradients = [&name](torch::MemoryFormat format) {
      const auto model = make_model({.name = name, .num_classes = 11, .dropout = 0, .seed = 3});
      model->to(torch::kFloat64);
      for (auto& parameter : model->parameters()) {
        if (parameter.dim() == 4) {
          parameter.set_data(parameter.contiguous(format));
        }
      }
      torch::manual_seed(9);
      const auto images = torch::randn({8, 3, 64, 64}, torch::kFloat64).contiguous(format);
      const auto labels = torch::randint(11, {8}, torch::kInt64);
      const auto loss = torch::cross_entropy_loss(model->forward(images), labels);
      loss.backward();
      std::map<std::string, torch::Tensor> result = {{"loss", loss.detach()}};
      for (const auto& item : model->named_parameters()) {
        result[item.key()] = item.value().grad();
      }
      return result;
    };
    const auto expected = gradients(torch::MemoryFormat::Contiguous);
    const auto got = gradients(torch::MemoryFormat::ChannelsLast);
    double largest = 0;
    for (const auto& [key, value] : expected) {
      largest = std::max(largest, value.norm().item<double>());
    }
    for (const auto& [key, value] : expected) {
      CAPTURE(key);
      // A norm's bias that the next norm takes away again has no gradient but rounding.
      const double scale = std::max(value.norm().item<double>(), 1e-3 * largest);
      CHECK((got.at(key) - value).norm().item<double>() / scale < 1e-8);
    }
  }
}

TEST_CASE("dropout follows its option in training and is off in evaluation") {
  const auto images = torch::randn({4, 3, 32, 32});
  const auto with = make_model({.name = "mobilenet_v2", .num_classes = 5, .dropout = 0.5});
  with->eval();
  CHECK(torch::equal(with->forward(images), with->forward(images)));
  with->train();
  CHECK(!torch::equal(with->forward(images), with->forward(images)));
  const auto without = make_model({.name = "mobilenet_v2", .num_classes = 5, .dropout = 0});
  CHECK(torch::equal(without->forward(images), without->forward(images)));
}

TEST_CASE("a training forward moves the running statistics and counts the batch") {
  const auto model = make_model({.name = "resnet18", .num_classes = 5});
  model->forward(torch::randn({4, 3, 32, 32}));
  for (const auto& item : model->named_buffers()) {
    CAPTURE(item.key());
    if (item.key().ends_with("num_batches_tracked")) {
      CHECK(item.value().item<std::int64_t>() == 1);
    } else {
      const float start = item.key().ends_with("running_var") ? 1 : 0;
      CHECK((item.value() != start).any().item<bool>());
    }
  }
}

TEST_CASE("a traced model holds no size and only lists of two") {
  const OneThread one_thread;
  for (const std::string name : {"resnet18", "resnet50", "mobilenet_v2"}) {
    CAPTURE(name);
    const auto model = trained(name);
    for (auto& parameter : model->parameters()) {
      parameter.requires_grad_(false);
    }
    torch::manual_seed(9);
    const auto traced = torch::jit::tracer::trace(
        {torch::randn({2, 3, 32, 32})},
        [&](torch::jit::Stack inputs) -> torch::jit::Stack {
          return {model->forward(inputs.at(0).toTensor())};
        },
        [](const torch::autograd::Variable&) { return std::string(); });
    const auto graph = traced.first->graph;
    int lists = 0;
    for (const auto* node : graph->nodes()) {
      if (node->kind() == torch::jit::prim::ListConstruct) {
        CHECK(node->inputs().size() == 2);  // coremltools refuses other lengths
        ++lists;
      }
    }
    CHECK(lists > 0);
    const auto unit = std::make_shared<torch::jit::CompilationUnit>();
    auto* function = unit->create_function(c10::QualifiedName("forward"), graph);
    for (const std::int64_t batch : {1, 5}) {
      for (const std::int64_t side_px : {32, 48}) {
        const auto images = torch::randn({batch, 3, side_px, side_px});
        torch::jit::Stack stack = {images};
        CHECK(relative_difference((*function)(stack).toTensor(), model->forward(images)) < 1e-5);
      }
    }
  }
}
