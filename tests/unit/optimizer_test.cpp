#include "train/optimizer.hpp"
#include "support/contains.hpp"

#include <doctest/doctest.h>
#include <torch/torch.h>

#include <stdexcept>
#include <string>

using namespace orchard;
using config::OptimizerConfig;
using train::Optimizer;

namespace {

// A module of the parameters given, with values and gradients of a seed.
struct Parameters : torch::nn::Module {
  Parameters(const std::vector<std::pair<std::string, std::vector<std::int64_t>>>& shapes,
             std::uint64_t seed) {
    torch::manual_seed(seed);
    for (const auto& [name, shape] : shapes) {
      register_parameter(name, torch::randn(shape));
    }
  }
  torch::Tensor& at(const std::string& name) { return parameters_[name]; }
  void draw_gradients(std::uint64_t seed) {
    torch::manual_seed(seed);
    for (auto& item : parameters_) {
      item.value().mutable_grad() = torch::randn_like(item.value());
    }
  }
};

const std::vector<std::pair<std::string, std::vector<std::int64_t>>> kShapes = {
    {"kernel", {5, 3, 3, 3}}, {"point", {7, 5, 1, 1}}, {"linear", {4, 7}}, {"bias", {4}}};

// The rule in doubles, element by element, for a fixed list of gradients.
double sgd_by_hand(double weight, const std::vector<double>& gradients,
                   const std::vector<double>& rates, double momentum, bool nesterov,
                   double weight_decay) {
  double velocity = 0;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const double g = gradients[i] + weight_decay * weight;
    velocity = i == 0 ? g : momentum * velocity + g;
    weight -= rates[i] * (nesterov ? g + momentum * velocity : velocity);
  }
  return weight;
}

Optimizer::State cloned(const Optimizer::State& state) {
  Optimizer::State copy;
  for (const auto& [name, kinds] : state) {
    for (const auto& [kind, tensor] : kinds) {
      copy[name][kind] = tensor.clone();
    }
  }
  return copy;
}

std::string refusal(Optimizer& optimizer, const Optimizer::State& state) {
  try {
    optimizer.load_state(state);
  } catch (const std::invalid_argument& e) {
    return e.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("every weight follows the rule of SGD, fused and plain") {
  const std::vector<double> rates = {0.1, 0.05, 0.2, 0.01};
  for (const bool fused : {true, false}) {
    for (const double momentum : {0.0, 0.9}) {
      for (const bool nesterov : {false, true}) {
        for (const bool decay_all : {false, true}) {
          if (nesterov && momentum == 0) {
            continue;
          }
          CAPTURE(fused);
          CAPTURE(momentum);
          CAPTURE(nesterov);
          CAPTURE(decay_all);
          Parameters model(kShapes, 1);
          std::vector<torch::Tensor> start;
          for (const auto& parameter : model.parameters()) {
            start.push_back(parameter.detach().clone());
          }
          Optimizer optimizer({.momentum = momentum,
                               .nesterov = nesterov,
                               .weight_decay = 0.3,
                               .decay_norm_and_bias = decay_all},
                              model, fused);
          std::vector<std::vector<torch::Tensor>> gradients;
          for (std::size_t step = 0; step < rates.size(); ++step) {
            model.draw_gradients(10 + step);
            gradients.emplace_back();
            for (const auto& parameter : model.parameters()) {
              gradients.back().push_back(parameter.grad().clone());
            }
            optimizer.step(rates[step]);
          }
          const auto after = model.parameters();
          for (std::size_t i = 0; i < after.size(); ++i) {
            const double decay = decay_all || after[i].dim() > 1 ? 0.3 : 0.0;
            const auto flat = after[i].detach().flatten();
            for (std::int64_t k = 0; k < flat.numel(); ++k) {
              std::vector<double> own;
              own.reserve(gradients.size());
              for (const auto& step : gradients) {
                own.push_back(step[i].flatten()[k].item<double>());
              }
              const double expected = sgd_by_hand(start[i].flatten()[k].item<double>(), own, rates,
                                                  momentum, nesterov, decay);
              // float32 keeps 6e-8 of values around 1.
              REQUIRE(std::abs(flat[k].item<double>() - expected) < 2e-6);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("a parameter without a gradient stays, whatever the decay, and can join later") {
  Parameters model(kShapes, 1);
  Optimizer optimizer({.momentum = 0.9, .weight_decay = 0.5}, model);
  const auto bias = model.at("bias").detach().clone();
  model.draw_gradients(2);
  model.at("bias").mutable_grad().reset();
  optimizer.step(0.1);
  CHECK(torch::equal(model.at("bias").detach(), bias));

  model.draw_gradients(3);
  const auto gradient = model.at("bias").grad().clone();
  optimizer.step(0.1);  // the first step of the bias, the second of the others
  CHECK(
      torch::allclose(model.at("bias").detach(), bias - 0.1 * (gradient + 0.5 * bias), 1e-6, 1e-7));

  optimizer.zero_grad();
  for (const auto& parameter : model.parameters()) {
    CHECK(!parameter.grad().defined());
  }
  const auto before = model.at("kernel").detach().clone();
  optimizer.step(0.1);  // nothing to do
  CHECK(torch::equal(model.at("kernel").detach(), before));
}

TEST_CASE("the memory order of a gradient or weight does not matter") {
  const auto run = [](bool fused, bool weight_last, bool gradient_last) {
    const auto order = [](bool last) {
      return last ? torch::MemoryFormat::ChannelsLast : torch::MemoryFormat::Contiguous;
    };
    Parameters model({{"kernel", {5, 3, 3, 3}}, {"point", {7, 5, 1, 1}}}, 1);
    for (auto& parameter : model.parameters()) {
      parameter.set_data(parameter.detach().clone(order(weight_last)));
    }
    Optimizer optimizer({.momentum = 0.9, .nesterov = true, .weight_decay = 0.1}, model, fused);
    for (std::uint64_t step = 0; step < 3; ++step) {
      torch::manual_seed(step);
      for (auto& parameter : model.parameters()) {
        const auto values = torch::randn(parameter.sizes());
        parameter.mutable_grad() = values.clone(order(gradient_last));
      }
      optimizer.step(0.1);
    }
    return std::pair{model.at("kernel").detach().contiguous(),
                     model.at("point").detach().contiguous()};
  };
  const auto [kernel, point] = run(false, false, false);
  for (const bool weight_last : {false, true}) {
    for (const bool gradient_last : {false, true}) {
      CAPTURE(weight_last);
      CAPTURE(gradient_last);
      const auto [other_kernel, other_point] = run(true, weight_last, gradient_last);
      CHECK(torch::allclose(kernel, other_kernel, 1e-6, 1e-6));
      CHECK(torch::allclose(point, other_point, 1e-6, 1e-6));
    }
  }
}

TEST_CASE("the model may change its memory order between two steps") {
  const auto run = [](bool moves) {
    Parameters model({{"kernel", {5, 3, 3, 3}}}, 1);
    Optimizer optimizer({.momentum = 0.9}, model);
    auto& kernel = model.at("kernel");
    for (std::uint64_t step = 0; step < 4; ++step) {
      torch::manual_seed(step);
      if (moves && step == 2) {
        kernel.mutable_grad().reset();
        kernel.set_data(kernel.detach().clone(torch::MemoryFormat::ChannelsLast));
      }
      kernel.mutable_grad() = torch::randn(kernel.sizes());
      optimizer.step(0.1);
    }
    return kernel.detach().contiguous();
  };
  CHECK(torch::allclose(run(false), run(true), 1e-6, 1e-6));
}

TEST_CASE("a resumed run equals an uninterrupted one bit for bit") {
  const OptimizerConfig config{.momentum = 0.9, .nesterov = true, .weight_decay = 1e-3};
  const auto make_net = [] {
    torch::manual_seed(7);
    return torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).bias(false)),
                                 torch::nn::BatchNorm2d(8), torch::nn::ReLU(), torch::nn::Flatten(),
                                 torch::nn::Linear(8 * 6 * 6, 5));
  };
  const auto train = [](torch::nn::Sequential& net, Optimizer& optimizer, std::int64_t from,
                        std::int64_t to) {
    for (std::int64_t step = from; step < to; ++step) {
      torch::manual_seed(100 + static_cast<std::uint64_t>(step));
      const auto images = torch::randn({4, 3, 8, 8});
      const auto labels = torch::randint(5, {4}, torch::kInt64);
      torch::nn::functional::cross_entropy(net->forward(images), labels).backward();
      optimizer.step(0.1 / static_cast<double>(1 + step));
      optimizer.zero_grad();
    }
  };
  auto whole = make_net();
  Optimizer whole_optimizer(config, *whole);
  train(whole, whole_optimizer, 0, 6);

  auto first = make_net();
  Optimizer first_optimizer(config, *first);
  train(first, first_optimizer, 0, 3);
  const auto state = cloned(first_optimizer.state());

  for (const bool with_state : {true, false}) {
    auto second = make_net();
    {
      const torch::NoGradGuard no_grad;
      for (std::size_t i = 0; i < second->parameters().size(); ++i) {
        second->parameters()[i].copy_(first->parameters()[i]);
      }
      for (std::size_t i = 0; i < second->buffers().size(); ++i) {
        second->buffers()[i].copy_(first->buffers()[i]);
      }
    }
    Optimizer second_optimizer(config, *second);
    if (with_state) {
      second_optimizer.load_state(state);
    }
    train(second, second_optimizer, 3, 6);
    bool equal = true;
    for (const auto& item : whole->named_parameters()) {
      equal &= torch::equal(item.value(), second->named_parameters()[item.key()]);
    }
    CHECK(equal == with_state);  // without the momentum the comparison must fail
  }
}

TEST_CASE("state goes by name, not by position, and copies") {
  Parameters model({{"a", {3}}, {"b", {3}}}, 1);
  Optimizer optimizer({.momentum = 0.9, .weight_decay = 0}, model);
  model.draw_gradients(2);
  optimizer.step(0.1);
  const auto state = optimizer.state();

  Parameters swapped({{"b", {3}}, {"a", {3}}}, 1);
  Optimizer other({.momentum = 0.9}, swapped);
  other.load_state(state);
  CHECK(torch::equal(other.state().at("a").at("momentum_buffer"), model.at("a").grad()));
  CHECK(torch::equal(other.state().at("b").at("momentum_buffer"), model.at("b").grad()));
  optimizer.step(0.1);
  CHECK(torch::equal(other.state().at("a").at("momentum_buffer"), model.at("a").grad()));
}

TEST_CASE("a state that does not fit is refused by name, and nothing changes") {
  Parameters model(kShapes, 1);
  Optimizer optimizer({.momentum = 0.9}, model);
  model.draw_gradients(2);
  optimizer.step(0.1);
  const auto good = cloned(optimizer.state());
  auto changed = cloned(good);
  for (auto& [name, kinds] : changed) {
    kinds.at("momentum_buffer").add_(1);
  }

  auto missing = changed;
  missing.erase("linear");
  CHECK(contains(refusal(optimizer, missing), "missing: linear (momentum_buffer)"));
  auto empty = changed;
  empty.at("bias").clear();
  CHECK(contains(refusal(optimizer, empty), "missing: bias (momentum_buffer)"));
  auto unexpected = changed;
  unexpected["fc.weight"]["momentum_buffer"] = torch::zeros({2});
  unexpected["bias"]["exp_avg"] = torch::zeros({4});
  CHECK(contains(refusal(optimizer, unexpected),
                 "unexpected: bias (exp_avg), fc.weight (momentum_buffer)"));
  auto misshapen = changed;
  misshapen["bias"]["momentum_buffer"] = torch::zeros({5});
  misshapen["linear"]["momentum_buffer"] = torch::zeros({4, 7}, torch::kFloat64);
  const auto text = refusal(optimizer, misshapen);
  CHECK(contains(text, "bias (momentum_buffer) is Float[5], not Float[4]"));
  CHECK(contains(text, "linear (momentum_buffer) is Double[4, 7], not Float[4, 7]"));
  auto hollow = changed;
  hollow["bias"]["momentum_buffer"] = torch::Tensor();
  CHECK(contains(refusal(optimizer, hollow), "undefined"));
  for (const auto& [name, kinds] : optimizer.state()) {
    CHECK(torch::equal(kinds.at("momentum_buffer"), good.at(name).at("momentum_buffer")));
  }

  Optimizer plain({.momentum = 0}, model);
  CHECK(plain.state().empty());
  CHECK(contains(refusal(plain, good), "unexpected: "));
  CHECK(refusal(plain, {}) == "accepted");
}

TEST_CASE("Nesterov without momentum is refused") {
  Parameters model(kShapes, 1);
  CHECK_THROWS_AS(Optimizer({.momentum = 0, .nesterov = true}, model), std::invalid_argument);
}
