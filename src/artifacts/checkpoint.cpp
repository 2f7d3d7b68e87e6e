#include "artifacts/checkpoint.hpp"

#include <list>
#include <string_view>
#include <utility>

#include "artifacts/pth.hpp"
#include "base/error.hpp"
#include "base/text.hpp"

namespace orchard::artifacts {
namespace {

constexpr const char* kFormat = "orchard-checkpoint";
constexpr std::int64_t kFormatVersion = 1;

using Texts = std::map<std::string, std::string>;

c10::impl::GenericDict to_dict(const NamedTensors& tensors) {
  auto dict = new_dict();
  for (const auto& [name, tensor] : tensors) {
    dict.insert(name, tensor);
  }
  return dict;
}

c10::impl::GenericDict to_dict(const Texts& texts) {
  auto dict = new_dict();
  for (const auto& [name, text] : texts) {
    dict.insert(name, text);
  }
  return dict;
}

// --- reading; `where` is the dotted path of a value in the file ---

// Collects what is missing or of the wrong kind, to tell all of it at once.
class Reader {
 public:
  Reader(const std::filesystem::path& path, c10::IValue root)
      : path_(path), root_(std::move(root)) {}

  // The value at a dotted path of at most two keys, or none.
  const c10::IValue* find(std::string_view where) {
    const c10::IValue* value = &root_;
    for (std::string_view rest = where; !rest.empty();) {
      const auto dot = rest.find('.');
      const std::string key(rest.substr(0, dot));
      rest = dot == std::string_view::npos ? "" : rest.substr(dot + 1);
      if (!value->isGenericDict() || !value->toGenericDict().contains(key)) {
        return nullptr;
      }
      value = &found_.emplace_back(value->toGenericDict().at(key));
    }
    return value;
  }

  void read(const char* where, std::int64_t& out) {
    if (const auto* value = need(where, "an integer", [](const auto& v) { return v.isInt(); })) {
      out = value->toInt();
    }
  }
  void read(const char* where, double& out) {
    if (const auto* value = need(where, "a number", [](const auto& v) { return v.isScalar(); })) {
      out = value->toScalar().toDouble();
    }
  }
  void read(const char* where, std::string& out) {
    if (const auto* value = need(where, "a text", [](const auto& v) { return v.isString(); })) {
      out = value->toStringRef();
    }
  }
  void read(const char* where, std::vector<std::string>& out) {
    if (const auto* value = need(where, "a list", [](const auto& v) { return v.isList(); })) {
      for (const auto& element : value->toListRef()) {
        if (check(element.isString(), where, "a list of texts")) {
          out.push_back(element.toStringRef());
        }
      }
    }
  }
  void read(const char* where, Texts& out) {
    each(where, [&](const std::string& key, const c10::IValue& value) {
      if (check(value.isString(), where, "a dict of texts")) {
        out.emplace(key, value.toStringRef());
      }
    });
  }
  void read(const char* where, NamedTensors& out) {
    each(where, [&](const std::string& key, const c10::IValue& value) {
      if (check(value.isTensor(), where, "a dict of tensors")) {
        out.emplace(key, value.toTensor());
      }
    });
  }
  void read(const char* where, std::map<std::string, NamedTensors>& out) {
    each(where, [&](const std::string& name, const c10::IValue& tensors) {
      if (!check(tensors.isGenericDict(), where, "a dict of dicts")) {
        return;
      }
      auto& inner = out[name];
      for (const auto& entry : tensors.toGenericDict()) {
        if (check(entry.key().isString() && entry.value().isTensor(), where,
                  "a dict of dicts of tensors")) {
          inner.emplace(entry.key().toStringRef(), entry.value().toTensor());
        }
      }
    });
  }

  void require_complete() const {
    std::vector<std::string> problems;
    if (!missing_.empty()) {
      problems.push_back("it lacks " + join(missing_, ", "));
    }
    if (!wrong_.empty()) {
      problems.push_back(join(wrong_, ", "));
    }
    if (!problems.empty()) {
      throw Error(ErrorKind::Checkpoint,
                  str("cannot use '", path_.string(), "': ", join(problems, "; ")),
                  "take another checkpoint; this one was changed or written by another program");
    }
  }

 private:
  template <class Is>
  const c10::IValue* need(const char* where, const char* kind, Is is) {
    const auto* value = find(where);
    if (value == nullptr) {
      missing_.push_back(str("'", where, "'"));
      return nullptr;
    }
    return check(is(*value), where, kind) ? value : nullptr;
  }
  template <class Take>
  void each(const char* where, Take take) {
    const auto* value = need(where, "a dict", [](const auto& v) { return v.isGenericDict(); });
    if (value == nullptr) {
      return;
    }
    for (const auto& entry : value->toGenericDict()) {
      if (check(entry.key().isString(), where, "a dict with texts as keys")) {
        take(entry.key().toStringRef(), entry.value());
      }
    }
  }
  bool check(bool right, const char* where, const char* kind) {
    if (!right) {
      std::string problem = str("its '", where, "' is not ", kind);
      if (wrong_.empty() || wrong_.back() != problem) {
        wrong_.push_back(std::move(problem));
      }
    }
    return right;
  }

  const std::filesystem::path& path_;
  c10::IValue root_;
  std::list<c10::IValue> found_;  // keeps what find() points to
  std::vector<std::string> missing_;
  std::vector<std::string> wrong_;
};

Reader open(const std::filesystem::path& path, Tensors tensors) {
  Reader reader(path, read_pth(path, tensors));
  const auto* format = reader.find("format");
  if (format == nullptr || !format->isString() || format->toStringRef() != kFormat) {
    throw Error(ErrorKind::Checkpoint,
                str("cannot use '", path.string(), "': it is not a checkpoint of Orchard"),
                "give a file that `orchard train` wrote into a run folder's checkpoints/");
  }
  const auto* version = reader.find("format_version");
  if (version == nullptr || !version->isInt() || version->toInt() < 1) {
    throw Error(ErrorKind::Checkpoint,
                str("cannot use '", path.string(), "': it lacks 'format_version'"),
                "take another checkpoint; this one was changed or written by another program");
  }
  if (version->toInt() > kFormatVersion) {
    const auto* by = reader.find("versions.orchard");
    throw Error(
        ErrorKind::Checkpoint,
        str("cannot use '", path.string(), "': its format_version is ", version->toInt(),
            by != nullptr && by->isString() ? str(" (Orchard ", by->toStringRef(), ")") : "",
            ", this program reads up to ", kFormatVersion),
        "use a newer Orchard, at least the one that wrote the file");
  }
  return reader;
}

}  // namespace

void save_checkpoint(const std::filesystem::path& path, const TrainState& state) {
  auto parameters = new_dict();
  for (const auto& [name, tensors] : state.optimizer) {
    parameters.insert(name, to_dict(tensors));
  }
  auto optimizer = new_dict();
  optimizer.insert("name", state.optimizer_name);
  optimizer.insert("state", parameters);

  auto progress = new_dict();
  progress.insert("epoch", state.epoch);
  progress.insert("position", state.position);
  progress.insert("step", state.step);
  progress.insert("epoch_loss_sum", state.epoch_loss_sum);
  progress.insert("epoch_correct", state.epoch_correct);
  progress.insert("epoch_samples", state.epoch_samples);
  progress.insert("epoch_seconds", state.epoch_seconds);

  auto best = new_dict();
  best.insert("metric", state.best_metric);
  best.insert("epoch", state.best_epoch);

  auto classes = new_list();
  for (const auto& name : state.classes) {
    classes.push_back(name);
  }

  auto root = new_dict();
  root.insert("format", kFormat);
  root.insert("format_version", kFormatVersion);
  root.insert("model", to_dict(state.model));
  root.insert("optimizer", optimizer);
  root.insert("generators", to_dict(state.generators));
  root.insert("progress", progress);
  root.insert("best", best);
  root.insert("config", state.config_json);
  root.insert("classes", classes);
  root.insert("data_fingerprint", state.data_fingerprint);
  root.insert("versions", to_dict(state.versions));
  root.insert("skipped_images", to_dict(state.skipped_images));
  write_pth(path, root);
}

TrainState load_checkpoint(const std::filesystem::path& path) {
  Reader reader = open(path, Tensors::Read);
  TrainState state;
  reader.read("model", state.model);
  reader.read("optimizer.name", state.optimizer_name);
  reader.read("optimizer.state", state.optimizer);
  reader.read("generators", state.generators);
  reader.read("progress.epoch", state.epoch);
  reader.read("progress.position", state.position);
  reader.read("progress.step", state.step);
  reader.read("progress.epoch_loss_sum", state.epoch_loss_sum);
  reader.read("progress.epoch_correct", state.epoch_correct);
  reader.read("progress.epoch_samples", state.epoch_samples);
  reader.read("progress.epoch_seconds", state.epoch_seconds);
  reader.read("best.metric", state.best_metric);
  reader.read("best.epoch", state.best_epoch);
  reader.read("config", state.config_json);
  reader.read("classes", state.classes);
  reader.read("data_fingerprint", state.data_fingerprint);
  reader.read("versions", state.versions);
  reader.read("skipped_images", state.skipped_images);
  reader.require_complete();
  return state;
}

Progress read_progress(const std::filesystem::path& path) {
  Reader reader = open(path, Tensors::Skip);
  Progress progress;
  reader.read("progress.step", progress.step);
  reader.read("progress.epoch", progress.epoch);
  reader.read("progress.position", progress.position);
  reader.require_complete();
  return progress;
}

}  // namespace orchard::artifacts
