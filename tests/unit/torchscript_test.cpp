#include "artifacts/torchscript.hpp"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <set>

#include "artifacts/run_folder.hpp"
#include "base/error.hpp"
#include "base/files.hpp"
#include "base/text.hpp"
#include "config/load.hpp"
#include "support/contains.hpp"
#include "support/same_bits.hpp"
#include "support/temp_folder.hpp"

using namespace orchard;
using namespace orchard::artifacts;
namespace fs = std::filesystem;
namespace nn = torch::nn;

namespace {

struct Block : nn::Module {
  nn::Conv2d conv{nullptr};
  nn::BatchNorm2d bn{nullptr};
  Block(std::int64_t in, std::int64_t out) {
    conv = register_module(
        "conv",
        nn::Conv2d(nn::Conv2dOptions(in, out, 3).stride({2, 2}).padding({1, 1}).bias(false)));
    bn = register_module("bn", nn::BatchNorm2d(out));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::relu(bn->forward(conv->forward(x)));
  }
};

struct SmallNet : models::ImageModel {
  std::shared_ptr<Block> first;
  std::shared_ptr<Block> second;
  nn::Dropout dropout{nullptr};
  nn::Linear fc{nullptr};
  bool depends_on_batch = false;  // a fault that tracing bakes in

  SmallNet() {
    first = register_module("first", std::make_shared<Block>(3, 8));
    second = register_module("second", std::make_shared<Block>(8, 16));
    dropout = register_module("dropout", nn::Dropout(0.5));
    fc = register_module("fc", nn::Linear(16, 5));
  }
  torch::Tensor forward(torch::Tensor images) override {
    auto x = second->forward(first->forward(images));
    x = torch::adaptive_avg_pool2d(x, {1, 1}).flatten(1);
    x = fc->forward(dropout->forward(x));
    return depends_on_batch ? x * static_cast<double>(images.size(0)) : x;
  }
};

std::shared_ptr<SmallNet> trained_net() {
  torch::manual_seed(2);
  auto net = std::make_shared<SmallNet>();
  const torch::NoGradGuard no_grad;
  net->train();
  for (int i = 0; i < 3; ++i) {
    net->forward(torch::randn({4, 3, 32, 32}) * 2 + 1);  // running statistics of their own
  }
  return net;
}

ModelCard make_card() {
  ModelCard card;
  card.model_name = "small";
  card.classes = {"cat", "dög", "a \"b\"", "d", "e"};
  card.preprocess.resize_px = 40;
  card.preprocess.crop_px = 32;
  card.preprocess.interpolation = config::Interpolation::Bicubic;
  card.preprocess.mean = {0.1, 0.2, 1.0 / 3.0};
  card.top1 = 0.7531;
  card.epoch = 12;
  card.versions = "orchard 0.1.0, torch 2.13.0";
  return card;
}

template <class Action>
std::string cause_of(Action action) {
  try {
    action();
    return "";
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::Checkpoint);
    CHECK(!e.remedy().empty());
    return e.what();
  }
}

std::int64_t tensor_constants(const std::shared_ptr<torch::jit::Graph>& graph) {
  const auto nodes = graph->nodes();
  return std::count_if(nodes.begin(), nodes.end(), [](const torch::jit::Node* node) {
    return node->kind() == torch::jit::prim::Constant &&
           node->output()->type()->isSubtypeOf(*c10::TensorType::get());
  });
}

}  // namespace

TEST_CASE("an exported model gives the same bits, at every call and batch") {
  const TempFolder folder;
  const auto net = trained_net();
  const auto images = torch::randn({9, 3, 32, 32});
  const auto checks = export_torchscript(*net, make_card(), images, folder / "a.ts");
  REQUIRE(checks.size() == 3);
  CHECK(checks[0].batch_size == 1);
  CHECK(checks[1].batch_size == 3);
  CHECK(checks[2].batch_size == 7);
  CHECK(names_in(folder.path()) == std::set<std::string>{"a.ts"});

  const auto loaded = load_torchscript(folder / "a.ts", torch::kCPU);
  net->eval();
  const torch::NoGradGuard no_grad;
  for (const std::int64_t batch_size : {9, 1, 4, 9, 9, 9, 4}) {
    const auto batch = images.slice(0, 0, batch_size);
    CHECK(same_bits(loaded.forward(batch), net->forward(batch)));
  }
  // Another size than it was traced with.
  const auto larger = torch::randn({2, 3, 48, 40});
  CHECK(same_bits(loaded.forward(larger), net->forward(larger)));
  CHECK(!loaded.forward(images).requires_grad());
}

TEST_CASE("weights are attributes under their own names, without gradients") {
  const TempFolder folder;
  const auto net = trained_net();
  export_torchscript(*net, make_card(), torch::randn({7, 3, 32, 32}), folder / "a.ts");
  const auto script = torch::jit::load((folder / "a.ts").string());
  CHECK(tensor_constants(script.get_method("forward").graph()) == 0);
  NamedTensors stored;
  for (const auto& parameter : script.named_parameters()) {
    CHECK(!parameter.value.requires_grad());
    stored.emplace(parameter.name, parameter.value);
  }
  CHECK(stored.size() == net->named_parameters().size());
  for (const auto& buffer : script.named_buffers()) {
    stored.emplace(buffer.name, buffer.value);
  }
  const auto own = named_tensors(*net);
  CHECK(stored.size() == own.size());
  for (const auto& [name, tensor] : own) {
    CAPTURE(name);
    REQUIRE(stored.contains(name));
    CHECK(same_bits(stored.at(name), tensor));
  }
}

TEST_CASE("the model is left as it was") {
  const TempFolder folder;
  const auto net = trained_net();
  net->train();
  net->first->eval();  // a part that is frozen
  net->fc->bias.requires_grad_(false);
  NamedTensors before;
  for (const auto& [name, tensor] : named_tensors(*net)) {
    before.emplace(name, tensor.detach().clone());
  }
  export_torchscript(*net, make_card(), torch::randn({7, 3, 32, 32}), folder / "a.ts");
  CHECK(net->is_training());
  CHECK(!net->first->is_training());
  CHECK(!net->first->bn->is_training());
  CHECK(net->second->bn->is_training());
  CHECK(net->dropout->is_training());
  CHECK(net->fc->weight.requires_grad());
  CHECK(!net->fc->bias.requires_grad());
  for (const auto& [name, tensor] : named_tensors(*net)) {
    CHECK(same_bits(tensor, before.at(name)));
  }
  net->forward(torch::randn({2, 3, 32, 32})).sum().backward();
  CHECK(net->fc->weight.grad().defined());
}

TEST_CASE("the card travels inside") {
  const TempFolder folder;
  const auto net = trained_net();
  const auto card = make_card();
  export_torchscript(*net, card, torch::randn({7, 3, 32, 32}), folder / "a.ts");
  const auto back = load_torchscript(folder / "a.ts", torch::kCPU).card;
  CHECK(back.model_name == card.model_name);
  CHECK(back.classes == card.classes);
  CHECK(config::dump(back.preprocess) == config::dump(card.preprocess));
  CHECK(back.preprocess.mean == card.preprocess.mean);
  CHECK(back.top1 == card.top1);
  CHECK(back.epoch == card.epoch);
  CHECK(back.versions == card.versions);

  torch::jit::ExtraFilesMap extra = {{"classes.txt", ""}};
  torch::jit::load((folder / "a.ts").string(), torch::kCPU, extra);
  CHECK(extra.at("classes.txt") == "cat\ndög\na \"b\"\nd\ne\n");

  auto other = card;
  other.top1 = -1;
  export_torchscript(*net, other, torch::randn({7, 3, 32, 32}), folder / "a.ts");
  CHECK(load_torchscript(folder / "a.ts", torch::kCPU).card.top1 == -1);
  other.classes[1] = "caf\xE9";
  CHECK(contains(cause_of([&] {
                   export_torchscript(*net, other, torch::randn({7, 3, 32, 32}), folder / "b.ts");
                 }),
                 "is not UTF-8"));
  CHECK(!fs::exists(folder / "b.ts"));
}

TEST_CASE("an export that differs from its model is not written") {
  const TempFolder folder;
  const auto net = trained_net();
  write_atomically(folder / "a.ts", "old");
  net->depends_on_batch = true;
  CHECK(contains(cause_of([&] {
                   export_torchscript(*net, make_card(), torch::randn({7, 3, 32, 32}),
                                      folder / "a.ts");
                 }),
                 "gives other logits than the model: batch of 1"));
  net->depends_on_batch = false;
  {
    const torch::NoGradGuard no_grad;
    net->fc->bias.fill_(std::nanf(""));
  }
  CHECK(contains(cause_of([&] {
                   export_torchscript(*net, make_card(), torch::randn({7, 3, 32, 32}),
                                      folder / "a.ts");
                 }),
                 "gives other logits"));
  CHECK(read_file(folder / "a.ts") == "old");
  CHECK(names_in(folder.path()) == std::set<std::string>{"a.ts"});
}

TEST_CASE("other files are told apart") {
  const TempFolder folder;
  torch::jit::Module foreign("Foreign");
  foreign.define("def forward(self, x):\n  return x\n");
  foreign.save((folder / "foreign.ts").string());
  CHECK(contains(cause_of([&] { load_torchscript(folder / "foreign.ts", torch::kCPU); }),
                 "TorchScript file of another program"));
  CHECK(contains(cause_of([&] { load_for_inference(folder / "foreign.ts", torch::kCPU); }),
                 "TorchScript file of another program"));
  CHECK(contains(cause_of([&] { load_model(folder / "foreign.ts"); }),
                 "it is a TorchScript program"));
  TrainState state;
  save_checkpoint(folder / "a.pth", state);
  CHECK(contains(cause_of([&] { load_torchscript(folder / "a.pth", torch::kCPU); }),
                 "it is not a TorchScript file"));
  CHECK(contains(cause_of([&] { load_for_inference(folder / "none", torch::kCPU); }),
                 "there is no such file"));

  const auto net = trained_net();
  export_torchscript(*net, make_card(), torch::randn({7, 3, 32, 32}), folder / "b.ts");
  const std::string bytes = read_file(folder / "b.ts");
  for (std::size_t length = 0; length < bytes.size(); length += 97) {
    std::ofstream(folder / "cut.ts", std::ios::binary) << bytes.substr(0, length);
    CHECK(!cause_of([&] { load_torchscript(folder / "cut.ts", torch::kCPU); }).empty());
  }
}

TEST_CASE("a full disk during export is an error and leaves the old file") {
  // Here and not in a child: LibTorch's threads do not come along with fork.
  const TempFolder folder;
  write_atomically(folder / "a.ts", "old");
  const auto net = trained_net();
  const auto images = torch::randn({7, 3, 32, 32});
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  auto* handler = ::signal(SIGXFSZ, SIG_IGN);
  std::string cause;
  for (const rlim_t limit_bytes : {rlim_t{1}, rlim_t{1000}, rlim_t{10'000}}) {
    const rlimit limit = {limit_bytes, before.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    cause = cause_of([&] { export_torchscript(*net, make_card(), images, folder / "a.ts"); });
    ::setrlimit(RLIMIT_FSIZE, &before);
    CHECK(contains(cause, "cannot write"));
    CHECK(contains(cause, "File too large"));
  }
  ::signal(SIGXFSZ, handler);
  CHECK(read_file(folder / "a.ts") == "old");
  CHECK(names_in(folder.path()) == std::set<std::string>{"a.ts"});
}

TEST_CASE("weights are copied by name, and what does not fit is listed") {
  const auto from = trained_net();
  SmallNet to;
  const auto* memory = to.fc->weight.data_ptr();
  load_weights(to, named_tensors(*from));
  CHECK(to.fc->weight.data_ptr() == memory);  // in place
  CHECK(to.fc->weight.requires_grad());
  for (const auto& [name, tensor] : named_tensors(to)) {
    CHECK(same_bits(tensor, named_tensors(*from).at(name)));
  }
  auto wrong = named_tensors(*from);
  wrong.erase("first.conv.weight");
  wrong["fc.weight"] = torch::zeros({7, 16});
  wrong["second.bn.running_mean"] = torch::zeros({3});
  for (int i = 0; i < 8; ++i) {
    wrong[str("extra.", i)] = torch::zeros({1});
  }
  const auto before = to.fc->weight.detach().clone();
  const auto cause = cause_of([&] { load_weights(to, wrong); });
  CHECK(contains(cause, "1 missing: first.conv.weight"));
  CHECK(contains(cause, "8 unexpected: extra.0, extra.1, extra.2, extra.3, extra.4 and 3 more"));
  CHECK(contains(cause, "fc.weight ([7, 16] instead of [5, 16])"));
  CHECK(contains(cause, "second.bn.running_mean ([3] instead of [16])"));
  CHECK(same_bits(to.fc->weight, before));  // nothing was copied
}

TEST_CASE("a checkpoint and its export give equal results") {
  const TempFolder folder;
  const auto model = models::make_model({.name = "resnet18", .num_classes = 4, .seed = 3});
  TrainState state;
  config::Config config;
  config.model.name = "resnet18";
  config.preprocess.crop_px = 64;
  config.preprocess.resize_px = 72;
  config.data.root = "here";
  state.model = named_tensors(*model);
  state.config_json = config::dump(config);
  state.classes = {"a", "b", "c", "d"};
  state.versions = {{"orchard", "0.1.0"}, {"torch", "2.13.0"}};
  state.epoch = 3;
  state.best_epoch = 3;
  state.best_metric = 0.5;
  RunFolder run = RunFolder::create(folder.path(), "a");
  run.save_last(state);

  const auto from_checkpoint = load_for_inference(run.path(), torch::kCPU);
  CHECK(from_checkpoint.file == run.checkpoint_folder() / "last.pth");
  CHECK(from_checkpoint.data_root == "here");
  CHECK(from_checkpoint.card.model_name == "resnet18");
  CHECK(from_checkpoint.card.classes == state.classes);
  CHECK(from_checkpoint.card.preprocess.crop_px == 64);
  CHECK(from_checkpoint.card.top1 == 0.5);
  CHECK(from_checkpoint.card.epoch == 3);
  CHECK(from_checkpoint.card.versions == "orchard 0.1.0, torch 2.13.0");

  const auto images = torch::randn({8, 3, 64, 64});
  auto loaded = load_model(run.path());
  CHECK(!loaded.model->is_training());
  for (const auto& check :
       export_torchscript(*loaded.model, loaded.card, images, folder / "a.ts")) {
    MESSAGE("resnet18, batch of ", check.batch_size, ": difference ", check.max_abs_difference);
  }
  const auto from_export = load_for_inference(folder / "a.ts", torch::kCPU);
  for (int call = 0; call < 4; ++call) {
    const auto expected = from_checkpoint.forward(images);
    CHECK(same_bits(from_export.forward(images), expected));
    CHECK(!expected.requires_grad());
  }

  state.position = 32;  // trained on since it was measured
  run.save_last(state);
  CHECK(load_for_inference(run.path(), torch::kCPU).card.top1 == -1);
  auto broken = state;
  broken.config_json = "{\"model\": {\"name\": \"resnet17\"}}";
  run.save_last(broken);
  CHECK(contains(cause_of([&] { load_model(run.path()); }), "last.pth"));
  broken = state;
  broken.classes.pop_back();
  run.save_last(broken);
  CHECK(contains(cause_of([&] { load_model(run.path()); }), "fc.bias ([4] instead of [3])"));
}
