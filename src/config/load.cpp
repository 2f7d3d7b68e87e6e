#include "config/load.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <system_error>
#include <type_traits>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/text.hpp"
#include "config/json_text.hpp"
#include "config/section.hpp"

namespace orchard::config {
namespace {

using Json = nlohmann::ordered_json;

std::string child_path(const std::string& parent, const std::string& key) {
  return parent.empty() ? key : parent + "." + key;
}

// A value of which we know where it was written.
struct Source {
  Json tree = Json::object();
  std::map<std::string, std::string> origin;     // path -> "resnet50.json:12" or "--set"
  std::map<std::string, std::string> overrides;  // path -> text after the '=' of --set
  std::vector<std::string> problems;

  void problem(const std::string& path, const std::string& what) {
    const auto found = origin.find(path);
    problems.push_back((found == origin.end() ? "" : found->second + ": ") + path + ": " + what);
  }
};

std::string type_name(const Json& value) {
  if (value.is_number_float()) {
    return "the number " + value.dump();
  }
  if (value.is_number()) {
    return "the whole number " + value.dump();
  }
  if (value.is_string() || value.is_boolean()) {
    return value.dump();
  }
  return value.is_null() ? "null" : value.is_array() ? "an array" : "an object";
}

std::string range_text(const Field& field) {
  const bool low = std::isfinite(field.min);
  const bool high = std::isfinite(field.max);
  if (low && high) {
    return "from " + compact(field.min) + " to " + compact(field.max);
  }
  return low ? "at least " + compact(field.min) : "at most " + compact(field.max);
}

// Reads one section strictly: every problem is noted, the field then keeps its default.
class Reader {
 public:
  Reader(Source& source, const Json& node, std::string path)
      : source_(source), node_(node), path_(std::move(path)) {}

  template <class T>
  void operator()(T& target, const Field& field) {
    known_.emplace_back(field.key);
    const auto found = node_.find(field.key);
    if (found == node_.end()) {
      return;
    }
    const std::string path = child_path(path_, field.key);
    if constexpr (kIsSection<T>) {
      if (!found->is_object()) {
        source_.problem(path, "must be an object, not " + type_name(*found));
        return;
      }
      Reader inner(source_, *found, path);
      T::fields(target, inner);
      inner.report_unknown();
    } else {
      read(*found, target, field, path);
    }
  }

  void report_unknown() {
    for (const auto& [key, value] : node_.items()) {
      const bool allowed_on_top = path_.empty() && (key == "extends" || key == "$schema");
      if (!allowed_on_top && std::find(known_.begin(), known_.end(), key) == known_.end()) {
        source_.problem(child_path(path_, key), "unknown field" + suggestion(key));
      }
    }
  }

 private:
  std::string suggestion(const std::string& key) const;

  void read(const Json& value, bool& target, const Field& /*field*/, const std::string& path) {
    if (value.is_boolean()) {
      target = value.get<bool>();
    } else {
      source_.problem(path, "must be true or false, not " + type_name(value));
    }
  }

  void read(const Json& value, std::int64_t& target, const Field& field, const std::string& path) {
    double number = 0;
    if (value.is_number()) {
      number = value.get<double>();
    }
    // 1e5 is a whole number too, as long as a double holds it exactly.
    constexpr double kLargest = 9007199254740992.0;
    if (!value.is_number() || number != std::floor(number) || std::abs(number) > kLargest) {
      source_.problem(path, "must be a whole number, not " + type_name(value));
    } else if (number < field.min || number > field.max) {
      source_.problem(path, "must be " + range_text(field) + ", not " + value.dump());
    } else {
      target = static_cast<std::int64_t>(number);
    }
  }

  void read(const Json& value, double& target, const Field& field, const std::string& path) {
    if (!value.is_number() || !std::isfinite(value.get<double>())) {
      source_.problem(path, "must be a number, not " + type_name(value));
    } else if (value.get<double>() < field.min || value.get<double>() > field.max) {
      source_.problem(path, "must be " + range_text(field) + ", not " + value.dump());
    } else {
      target = value.get<double>();
    }
  }

  void read(const Json& value, std::string& target, const Field& /*field*/,
            const std::string& path) {
    const auto given = source_.overrides.find(path);
    if (value.is_string()) {
      target = value.get<std::string>();
    } else if (given != source_.overrides.end()) {
      target = given->second;  // --set run.name=5 means the text "5"
    } else {
      source_.problem(path, "must be a text in quotes, not " + type_name(value));
    }
  }

  template <std::size_t N>
  void read(const Json& value, std::array<double, N>& target, const Field& field,
            const std::string& path) {
    if (!value.is_array() || value.size() != N) {
      source_.problem(path, str("must be an array of ", N, " numbers, not ", type_name(value)));
      return;
    }
    for (std::size_t i = 0; i < N; ++i) {
      read(value[i], target.at(i), field, path);
    }
  }

  template <class Enum>
    requires std::is_enum_v<Enum>
  void read(const Json& value, Enum& target, const Field& /*field*/, const std::string& path) {
    std::vector<std::string> names;
    for (const auto& [choice, name] : Choices<Enum>::kAll) {
      if (value.is_string() && value.get<std::string>() == name) {
        target = choice;
        return;
      }
      names.emplace_back(name);
    }
    const std::string close =
        value.is_string() ? did_you_mean(value.get<std::string>(), names) : "";
    source_.problem(path,
                    "must be one of " + join(names, ", ") + ", not " + type_name(value) + close);
  }

  Source& source_;
  const Json& node_;
  std::string path_;
  std::vector<std::string> known_;
};

// Flattens a configuration to its leaves, in the order of the field lists.
struct Leaf {
  std::string path;
  Json value;
  OnResume on_resume;
};

class Writer {
 public:
  Writer(Json& node, std::string path, std::vector<Leaf>& leaves)
      : node_(node), path_(std::move(path)), leaves_(leaves) {}

  template <class T>
  void operator()(const T& value, const Field& field) {
    const std::string path = child_path(path_, field.key);
    if constexpr (kIsSection<T>) {
      Json section = Json::object();
      Writer inner(section, path, leaves_);
      T::fields(value, inner);
      node_[field.key] = std::move(section);
    } else {
      if constexpr (std::is_enum_v<T>) {
        node_[field.key] = choice_name(value);
      } else {
        node_[field.key] = value;
      }
      leaves_.push_back({path, node_[field.key], field.on_resume});
    }
  }

 private:
  Json& node_;
  std::string path_;
  std::vector<Leaf>& leaves_;
};

template <class T>
std::vector<Leaf> leaves_of(const T& config, Json& tree) {
  std::vector<Leaf> leaves;
  tree = Json::object();
  Writer writer(tree, "", leaves);
  T::fields(config, writer);
  return leaves;
}

// For a wrong key, a close name in the same section or, failing that, the same name in another one.
std::string Reader::suggestion(const std::string& key) const {
  std::string close = did_you_mean(key, known_);
  if (!close.empty()) {
    return close;
  }
  Json tree;
  std::vector<std::string> paths;
  for (const auto& leaf : leaves_of(Config{}, tree)) {
    if (leaf.path.substr(leaf.path.rfind('.') + 1) == key) {
      return ", did you mean '" + leaf.path + "'?";
    }
  }
  return ". The fields here are " + join(known_, ", ");
}

// Objects on one line a field, arrays on one line.
void print(const Json& value, int indent, std::string& out) {
  if (!value.is_object()) {
    out += value.dump();
    return;
  }
  out += "{\n";
  std::size_t left = value.size();
  for (const auto& [key, inner] : value.items()) {
    out += std::string(static_cast<std::size_t>(indent) + 2, ' ') + Json(key).dump() + ": ";
    print(inner, indent + 2, out);
    out += --left == 0 ? "\n" : ",\n";
  }
  out += std::string(static_cast<std::size_t>(indent), ' ') + "}";
}

template <class T>
std::string dump_any(const T& config) {
  Json tree;
  leaves_of(config, tree);
  std::string out;
  print(tree, 0, out);
  return out + "\n";
}

[[noreturn]] void throw_problems(const std::vector<std::string>& problems,
                                 const std::string& origin) {
  const std::string count = problems.size() == 1 ? "1 problem" : str(problems.size(), " problems");
  std::string text = count + " in the configuration " + origin;
  for (const auto& problem : problems) {
    text += "\n  " + problem;
  }
  throw Error(
      ErrorKind::Config, text,
      "correct the lines above; `orchard train --print-config` shows all fields and values");
}

void merge(Json& into, const Json& from) {
  for (const auto& [key, value] : from.items()) {
    if (value.is_object() && into.contains(key) && into[key].is_object()) {
      merge(into[key], value);
    } else {
      into[key] = value;
    }
  }
}

// Adds a JSON text on top of what the source holds already.
void add_text(Source& source, const std::string& text, const std::string& origin) {
  Json tree;
  try {
    tree = Json::parse(text, nullptr, true, true);
  } catch (const Json::parse_error& e) {
    const auto upto = std::min<std::size_t>(e.byte, text.size());
    const auto line =
        1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(upto), '\n');
    const std::string reason = e.what();
    const auto colon = reason.rfind(": ", reason.find("; "));
    throw Error(ErrorKind::Config,
                str(origin, ":", line, ": not valid JSON: ",
                    colon == std::string::npos ? reason : reason.substr(colon + 2)),
                "correct that line (a comma too many or too few, a missing quote or bracket)");
  }
  if (!tree.is_object()) {
    throw Error(ErrorKind::Config, origin + ": must hold a JSON object, not " + type_name(tree),
                "start the file with { and end it with }");
  }
  const JsonLines lines = find_lines(text);
  for (const auto& [path, line] : lines.line_of) {
    source.origin[path] = str(origin, ":", line);
  }
  for (const auto& path : lines.duplicates) {
    source.problem(path, "is given twice");
  }
  merge(source.tree, tree);
}

void add_file(Source& source, const std::filesystem::path& file,
              const std::filesystem::path& shipped, std::vector<std::filesystem::path> chain) {
  std::string text;
  try {
    text = read_file(file);
  } catch (const Error& e) {
    throw Error(ErrorKind::Config, e.what(), e.remedy());
  }
  const auto canonical = std::filesystem::weakly_canonical(file);
  if (std::find(chain.begin(), chain.end(), canonical) != chain.end()) {
    throw Error(ErrorKind::Config, "'" + file.string() + "' extends itself",
                "remove \"extends\" from one of the files");
  }
  chain.push_back(canonical);
  Json own = Json::parse(text, nullptr, false, true);
  if (own.is_object() && own.contains("extends")) {
    if (!own["extends"].is_string()) {
      throw Error(ErrorKind::Config, file.string() + ": extends must be the name of a config",
                  "write for instance \"extends\": \"resnet50.json\"");
    }
    const std::string base = own["extends"];
    const auto beside = file.parent_path() / base;
    std::error_code code;
    add_file(source,
             std::filesystem::is_regular_file(beside, code) ? beside : find_config(base, shipped),
             shipped, chain);
  }
  add_text(source, text, file.filename().string());
}

void add_override(Source& source, const std::string& text) {
  const auto equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw Error(ErrorKind::Usage, "--set " + text + ": not of the form field=value",
                "write for instance --set train.epochs=10");
  }
  const std::string path = text.substr(0, equals);
  const std::string value = text.substr(equals + 1);
  Json parsed = Json::parse(value, nullptr, false);
  if (parsed.is_discarded()) {
    parsed = value;
  }
  Json* node = &source.tree;
  std::string rest = path;
  std::string walked;
  for (auto dot = rest.find('.'); dot != std::string::npos; dot = rest.find('.')) {
    const std::string key = rest.substr(0, dot);
    walked = child_path(walked, key);
    source.origin.try_emplace(walked, "--set " + text);
    Json& next = (*node)[key];
    if (!next.is_object()) {
      next = Json::object();
    }
    node = &next;
    rest = rest.substr(dot + 1);
  }
  source.origin[path] = "--set " + text;
  source.overrides[path] = value;
  Json& leaf = (*node)[rest];
  if (leaf.is_object() && parsed.is_object()) {
    merge(leaf, parsed);
  } else {
    leaf = parsed;
  }
}

// What no single field can tell.
void validate(const Config& config, Source& source) {
  const auto check = [&source](bool right, const char* path, const std::string& what) {
    if (!right) {
      source.problem(path, what);
    }
  };
  check(config.preprocess.crop_px <= config.preprocess.resize_px, "preprocess.crop_px",
        str("must be at most preprocess.resize_px (", config.preprocess.resize_px, "), not ",
            config.preprocess.crop_px));
  const AugmentConfig& augment = config.augment;
  for (const auto& [path, range] : {std::pair{"augment.scale", augment.scale},
                                    {"augment.ratio", augment.ratio},
                                    {"augment.blur_sigma", augment.blur_sigma},
                                    {"augment.erasing_scale", augment.erasing_scale},
                                    {"augment.erasing_ratio", augment.erasing_ratio}}) {
    check(range[0] <= range[1], path, "the first number must not be larger than the second");
  }
  check(augment.color_jitter[3] <= 0.5, "augment.color_jitter",
        "the last number (hue) must be at most 0.5, not " + compact(augment.color_jitter[3]));
  check(augment.blur_kernel_px % 2 == 1 &&
            (augment.blur_prob == 0 || augment.blur_kernel_px < 2 * augment.image_size_px),
        "augment.blur_kernel_px",
        str("must be odd and below twice augment.image_size_px (", augment.image_size_px, "), not ",
            augment.blur_kernel_px));
  check(config.schedule.warmup_epochs <= static_cast<double>(config.train.epochs),
        "schedule.warmup_epochs", str("must be at most train.epochs (", config.train.epochs, ")"));
  check(config.schedule.min_lr <= config.optimizer.lr, "schedule.min_lr",
        str("must be at most optimizer.lr (", config.optimizer.lr, ")"));
  check(!config.optimizer.nesterov || config.optimizer.momentum > 0, "optimizer.nesterov",
        "needs optimizer.momentum above 0");
  check(config.run.name.find('/') == std::string::npos, "run.name",
        "must be a plain name; the folder goes into run.dir");
}

template <class T>
T read_all(Source& source, const std::string& origin) {
  T config;
  Reader reader(source, source.tree, "");
  T::fields(config, reader);
  reader.report_unknown();
  if constexpr (std::is_same_v<T, Config>) {
    validate(config, source);
  }
  if (!source.problems.empty()) {
    throw_problems(source.problems, origin);
  }
  return config;
}

}  // namespace

std::filesystem::path find_config(const std::string& name, const std::filesystem::path& shipped) {
  std::error_code code;
  for (const auto& candidate :
       {std::filesystem::path(name), shipped / name, shipped / (name + ".json")}) {
    if (std::filesystem::is_regular_file(candidate, code)) {
      return candidate;
    }
  }
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(shipped, code)) {
    if (entry.path().extension() == ".json") {
      names.push_back(entry.path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  throw Error(ErrorKind::Config,
              "there is no config '" + name + "', neither here nor among the shipped ones" +
                  did_you_mean(name, names),
              names.empty() ? "give the path of a JSON file"
                            : "give the path of a JSON file, or one of " + join(names, ", "));
}

Config load(const std::filesystem::path& file, const std::filesystem::path& shipped,
            const std::vector<std::string>& overrides) {
  Source source;
  add_file(source, file, shipped, {});
  for (const auto& text : overrides) {
    add_override(source, text);
  }
  auto config = read_all<Config>(source, file.filename().string());
  if (config.run.name.empty()) {
    config.run.name = file.stem().string();
  }
  return config;
}

Config load_text(const std::string& text, const std::string& origin,
                 const std::vector<std::string>& overrides) {
  Source source;
  add_text(source, text, origin);
  for (const auto& override_text : overrides) {
    add_override(source, override_text);
  }
  return read_all<Config>(source, origin);
}

std::string dump(const Config& config) {
  return dump_any(config);
}
std::string dump(const PreprocessConfig& preprocess) {
  return dump_any(preprocess);
}

PreprocessConfig load_preprocess(const std::string& text, const std::string& origin) {
  Source source;
  add_text(source, text, origin);
  return read_all<PreprocessConfig>(source, origin);
}

std::vector<std::string> resume_conflicts(const Config& started, const Config& now) {
  Json tree;
  const auto before = leaves_of(started, tree);
  const auto after = leaves_of(now, tree);
  std::vector<std::string> conflicts;
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (after[i].on_resume == OnResume::Same && before[i].value != after[i].value) {
      conflicts.push_back(after[i].path + ": " + after[i].value.dump() + ", was " +
                          before[i].value.dump());
    }
  }
  return conflicts;
}

}  // namespace orchard::config
