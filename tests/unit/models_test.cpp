#include <doctest/doctest.h>
#include <torch/torch.h>

#include <stdexcept>

#include "models/model.hpp"

using namespace orchard;
using namespace orchard::models;

TEST_CASE("parameter counts are those that torchvision publishes") {
  const std::map<std::string, std::int64_t> published = {
      {"resnet18", 11'689'512},  {"resnet34", 21'797'672},  {"resnet50", 25'557'032},
      {"resnet101", 44'549'160}, {"resnet152", 60'192'808}, {"mobilenet_v2", 3'504'872}};
  CHECK(model_names().size() == published.size());
  for (const auto& name : model_names()) {
    CAPTURE(name);
    CHECK(num_parameters(*make_model({.name = name})) == published.at(name));
  }
}

TEST_CASE("the same seed gives the same weights, and the global generator stays as it was") {
  torch::manual_seed(5);
  const auto expected = torch::randn({4});
  torch::manual_seed(5);
  const auto a = make_model({.name = "resnet18", .num_classes = 3, .seed = 1});
  CHECK(torch::equal(torch::randn({4}), expected));
  const auto b = make_model({.name = "resnet18", .num_classes = 3, .seed = 1});
  const auto c = make_model({.name = "resnet18", .num_classes = 3, .seed = 2});
  const auto weights = [](const auto& model) {
    return model->named_parameters()["layer2.0.conv1.weight"];
  };
  CHECK(torch::equal(weights(a), weights(b)));
  CHECK_FALSE(torch::equal(weights(a), weights(c)));
}

TEST_CASE("initialisation follows torchvision's law") {
  const auto model = make_model({.name = "resnet50", .zero_init_residual = true, .seed = 3});
  const auto parameters = model->named_parameters();
  const auto deviation = [&](const char* name) { return parameters[name].std().item<double>(); };
  CHECK(deviation("layer4.0.conv2.weight") ==
        doctest::Approx(std::sqrt(2.0 / (512 * 9))).epsilon(0.01));
  CHECK(deviation("conv1.weight") == doctest::Approx(std::sqrt(2.0 / (64 * 49))).epsilon(0.03));
  CHECK(deviation("fc.weight") == doctest::Approx(1 / std::sqrt(3.0 * 2048)).epsilon(0.01));
  CHECK(parameters["fc.bias"].abs().max().item<double>() <= 1 / std::sqrt(2048.0));
  CHECK(parameters["bn1.weight"].eq(1).all().item<bool>());
  CHECK(parameters["bn1.bias"].eq(0).all().item<bool>());
  CHECK(parameters["layer3.2.bn3.weight"].eq(0).all().item<bool>());
  CHECK(parameters["layer3.2.bn2.weight"].eq(1).all().item<bool>());
  const auto mobile = make_model({.name = "mobilenet_v2", .seed = 3})->named_parameters();
  CHECK(mobile["classifier.1.weight"].std().item<double>() == doctest::Approx(0.01).epsilon(0.01));
  CHECK(mobile["classifier.1.bias"].eq(0).all().item<bool>());
}

TEST_CASE("logits do not depend on the batch or on the order in memory") {
  for (const auto& name : {"resnet18", "resnet50", "mobilenet_v2"}) {
    CAPTURE(name);
    const auto model = make_model({.name = name, .num_classes = 10, .seed = 1});
    model->eval();
    const torch::NoGradGuard no_grad;
    const auto images = torch::randn({7, 3, 64, 64}, at::detail::createCPUGenerator(2));
    const auto all = model->forward(images);
    const double scale = all.abs().max().item<double>();
    REQUIRE(scale > 1e-3);
    // The library may choose another algorithm for another batch: equal to rounding of float32.
    for (const std::int64_t size : {1, 3}) {
      const auto part = model->forward(images.slice(0, 0, size));
      CHECK((part - all.slice(0, 0, size)).abs().max().item<double>() < 1e-5 * scale);
    }
    const auto reordered = model->forward(images.contiguous(torch::MemoryFormat::ChannelsLast));
    CHECK((reordered - all).abs().max().item<double>() < 1e-5 * scale);
  }
}

TEST_CASE("an unknown name lists the known ones") {
  try {
    make_model({.name = "resnet51"});
    FAIL("must throw");
  } catch (const std::invalid_argument& e) {
    CHECK(std::string(e.what()).find("did you mean 'resnet50'?") != std::string::npos);
    CHECK(std::string(e.what()).find("mobilenet_v2") != std::string::npos);
  }
}
