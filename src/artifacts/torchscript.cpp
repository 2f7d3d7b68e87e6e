#include "artifacts/torchscript.hpp"

#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/serialization/export.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/torch.h>

#include <array>
#include <cctype>
#include <nlohmann/json.hpp>
#include <utility>

#include "artifacts/pth.hpp"
#include "base/error.hpp"
#include "base/files.hpp"
#include "base/text.hpp"
#include "config/load.hpp"

namespace orchard::artifacts {
namespace {

namespace jit = torch::jit;
using Json = nlohmann::ordered_json;

constexpr const char* kCardFile = "orchard.json";
constexpr const char* kClassesFile = "classes.txt";
constexpr const char* kFormat = "orchard-model";
constexpr std::int64_t kFormatVersion = 1;
constexpr double kTolerance = 1e-5;  // of the largest logit

// --- the card ---

std::string card_json(const ModelCard& card) {
  Json json;
  json["format"] = kFormat;
  json["format_version"] = kFormatVersion;
  json["model_name"] = card.model_name;
  json["input"] =
      "float32 [N, 3, H, W]; RGB in 0..1, preprocess.mean subtracted, divided by preprocess.std";
  json["output"] = "float32 [N, classes] logits (softmax gives probabilities)";
  json["preprocess"] = Json::parse(config::dump(card.preprocess));
  json["top1"] = card.top1 < 0 ? Json(nullptr) : Json(card.top1);
  json["epoch"] = card.epoch;
  json["versions"] = card.versions;
  json["classes"] = card.classes;
  return json.dump(2) + "\n";
}

ModelCard parse_card(const std::string& text, const std::string& origin) {
  const Json json = Json::parse(text);
  if (json.at("format") != kFormat) {
    throw std::runtime_error("its card is of another format");
  }
  if (const auto version = json.at("format_version").get<std::int64_t>();
      version > kFormatVersion) {
    throw Error(ErrorKind::Checkpoint,
                str("cannot use '", origin, "': its format_version is ", version,
                    ", this program reads up to ", kFormatVersion),
                "use a newer Orchard, at least the one that wrote the file");
  }
  ModelCard card;
  card.model_name = json.at("model_name").get<std::string>();
  card.classes = json.at("classes").get<std::vector<std::string>>();
  card.preprocess = config::load_preprocess(json.at("preprocess").dump(), origin);
  card.top1 = json.at("top1").is_null() ? -1 : json.at("top1").get<double>();
  card.epoch = json.at("epoch").get<std::int64_t>();
  card.versions = json.at("versions").get<std::string>();
  return card;
}

// --- tracing ---

// The name of a C++ class as an identifier: "torch::nn::Conv2dImpl" -> "Conv2dImpl".
std::string class_name(const torch::nn::Module& module) {
  std::string name = module.name();
  name.erase(0, name.rfind(':') + 1);
  for (char& c : name) {
    c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  }
  return name.empty() || std::isdigit(static_cast<unsigned char>(name[0])) != 0 ? "M" + name : name;
}

// The module tree with the very same tensors: the tracer knows them by identity, and writes them as
// attributes. A tensor that it does not know would become a constant inside the code.
jit::Module mirror(const torch::nn::Module& module, const std::string& scope,
                   const std::shared_ptr<jit::CompilationUnit>& unit) {
  const std::string name = scope + "." + class_name(module);
  jit::Module result(c10::QualifiedName(name), unit, /*shouldMangle=*/true);
  result.register_attribute("training", c10::BoolType::get(), false);
  for (const auto& parameter : module.named_parameters(/*recurse=*/false)) {
    result.register_parameter(parameter.key(), parameter.value(), /*is_buffer=*/false);
  }
  for (const auto& buffer : module.named_buffers(/*recurse=*/false)) {
    result.register_buffer(buffer.key(), buffer.value());
  }
  for (const auto& child : module.named_children()) {
    result.register_module(child.key(), mirror(*child.value(), name, unit));
  }
  return result;
}

// Exported weights take no gradients; the model's own tensors stay as they are.
void detach_parameters(const jit::Module& script, const torch::nn::Module& module) {
  for (const auto& parameter : module.named_parameters(/*recurse=*/false)) {
    script._ivalue()->setAttr(parameter.key(), parameter.value().detach());
  }
  for (const auto& child : module.named_children()) {
    detach_parameters(script.attr(child.key()).toModule(), *child.value());
  }
}

jit::Module trace(models::ImageModel& model, const torch::Tensor& example) {
  auto unit = std::make_shared<jit::CompilationUnit>();
  jit::Module script = mirror(model, "__torch__", unit);
  const auto traced = jit::tracer::trace(
      {example},
      [&](jit::Stack inputs) -> jit::Stack { return {model.forward(inputs.at(0).toTensor())}; },
      [](const torch::Tensor&) { return std::string(); }, /*strict=*/true, /*force_outplace=*/true,
      &script, {"images"});
  auto* function = unit->create_function(c10::QualifiedName(*script.type()->name(), "forward"),
                                         traced.first->graph);
  script.type()->addMethod(function);
  detach_parameters(script, model);
  return script;
}

// Puts a model into evaluation mode, and each of its parts back as it was.
class EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module& module) {
    for (const auto& part : module.modules()) {
      before_.emplace_back(part, part->is_training());
    }
    module.eval();
  }
  ~EvaluationMode() {
    for (const auto& [part, training] : before_) {  // parents come before their parts
      part->train(training);
    }
  }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> before_;
};

// --- running ---

// The optimising executor watches the first calls and then runs another, fused graph for the shapes
// it saw; on a GPU that changes results from one call to the next. Every call runs the graph as it
// is written, which gives the model's own results from the first call on.
torch::Tensor run(jit::Module& script, const torch::Tensor& images) {
  const torch::NoGradGuard no_grad;
  const jit::GraphOptimizerEnabledGuard as_written(false);
  return script.forward({images}).toTensor();
}

std::vector<ExportCheck> compare(models::ImageModel& model, jit::Module& script,
                                 const torch::Tensor& images, const std::filesystem::path& path) {
  const torch::NoGradGuard no_grad;
  std::vector<ExportCheck> checks;
  for (const std::int64_t batch_size : {1, 3, 7}) {
    const auto batch = images.slice(0, 0, batch_size);
    const auto expected = model.forward(batch);
    const double largest = expected.abs().max().item<double>();
    const auto given = run(script, batch);
    const double difference = given.sizes() == expected.sizes()
                                  ? (given - expected).abs().max().item<double>()
                                  : std::numeric_limits<double>::infinity();
    if (!(difference <= kTolerance * largest)) {  // holds for NaN too
      throw Error(
          ErrorKind::Checkpoint,
          str("the exported '", path.string(), "' gives other logits than the model: batch of ",
              batch_size, ", difference ", compact(difference), ", largest logit ",
              compact(largest)),
          "no file was written; check that the weights are finite, and report this otherwise");
    }
    checks.push_back({batch_size, difference});
  }
  return checks;
}

}  // namespace

std::vector<ExportCheck> export_torchscript(models::ImageModel& model, const ModelCard& card,
                                            const torch::Tensor& images,
                                            const std::filesystem::path& path) {
  if (images.dim() != 4 || images.size(0) < 7) {
    throw Error(ErrorKind::Internal, "an export is checked with at least 7 images",
                "report this as a fault of Orchard");
  }
  std::string classes;
  for (const auto& name : card.classes) {
    classes += name + "\n";
  }
  const EvaluationMode evaluation(model);
  try {
    const torch::NoGradGuard no_grad;
    const jit::Module script = trace(model, images.slice(0, 0, 2).clone());
    const jit::ExtraFilesMap extra = {{kCardFile, card_json(card)}, {kClassesFile, classes}};
    AtomicFile file(path);
    // The sink never fails: LibTorch's writer would end the process. check() throws instead.
    jit::ExportModule(
        script,
        [&file](const void* data, std::size_t num_bytes) {
          file.write(data, num_bytes);
          return num_bytes;
        },
        extra);
    file.check();
    jit::Module reloaded = jit::load(file.temporary().string(), torch::kCPU);
    auto checks = compare(model, reloaded, images, path);
    file.commit();
    return checks;
  } catch (const Error&) {
    throw;
  } catch (const Json::type_error&) {
    throw Error(ErrorKind::Checkpoint,
                str("cannot write '", path.string(), "': a class name is not UTF-8"),
                "rename the class's folder and train again");
  } catch (const std::exception& e) {
    throw Error(ErrorKind::Checkpoint, str("cannot export '", path.string(), "': ", reason_of(e)),
                "report this with the message above");
  }
}

InferenceModel load_torchscript(const std::filesystem::path& path, torch::Device device) {
  require_torch_file(path);
  if (!is_torchscript(path)) {
    throw Error(ErrorKind::Checkpoint,
                str("cannot use '", path.string(), "': it is not a TorchScript file"),
                "give a file that `orchard export` wrote, or a checkpoint");
  }
  try {
    jit::ExtraFilesMap extra = {{kCardFile, ""}};
    auto script = std::make_shared<jit::Module>(jit::load(path.string(), device, extra));
    if (extra.at(kCardFile).empty()) {
      throw Error(ErrorKind::Checkpoint,
                  str("cannot use '", path.string(),
                      "': it is a TorchScript file of another program, "
                      "without '",
                      kCardFile, "' (classes and preprocessing)"),
                  "give a file that `orchard export` wrote, or a checkpoint");
    }
    InferenceModel result;
    result.card = parse_card(extra.at(kCardFile), path.string());
    result.file = path;
    result.forward = [script](const torch::Tensor& images) { return run(*script, images); };
    return result;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {
    throw Error(ErrorKind::Checkpoint, str("cannot read '", path.string(), "': ", reason_of(e)),
                "the file is damaged or was written by another program; export it again");
  }
}

}  // namespace orchard::artifacts
