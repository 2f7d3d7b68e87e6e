#include "config/describe.hpp"

#include <array>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "base/text.hpp"
#include "config/config.hpp"
#include "config/section.hpp"

namespace orchard::config {
namespace {

using Json = nlohmann::ordered_json;

void add_range(Json& schema, const Field& field) {
  if (std::isfinite(field.min)) {
    schema["minimum"] = field.min;
  }
  if (std::isfinite(field.max)) {
    schema["maximum"] = field.max;
  }
}

Json leaf_schema(bool value, const Field& /*field*/) {
  return {{"type", "boolean"}, {"default", value}};
}
Json leaf_schema(std::int64_t value, const Field& field) {
  Json schema = {{"type", "integer"}, {"default", value}};
  add_range(schema, field);
  return schema;
}
Json leaf_schema(double value, const Field& field) {
  Json schema = {{"type", "number"}, {"default", value}};
  add_range(schema, field);
  return schema;
}
Json leaf_schema(const std::string& value, const Field& /*field*/) {
  return {{"type", "string"}, {"default", value}};
}
template <std::size_t N>
Json leaf_schema(const std::array<double, N>& value, const Field& field) {
  Json items = {{"type", "number"}};
  add_range(items, field);
  return {
      {"type", "array"}, {"items", items}, {"minItems", N}, {"maxItems", N}, {"default", value}};
}
template <class Enum>
  requires std::is_enum_v<Enum>
Json leaf_schema(Enum value, const Field& /*field*/) {
  Json names = Json::array();
  for (const auto& choice : Choices<Enum>::kAll) {
    names.push_back(choice.second);
  }
  return {{"type", "string"}, {"enum", names}, {"default", choice_name(value)}};
}

class SchemaWriter {
 public:
  template <class T>
  void operator()(const T& value, const Field& field) {
    Json schema;
    if constexpr (kIsSection<T>) {
      SchemaWriter inner;
      T::fields(value, inner);
      schema = inner.object();
    } else {
      schema = leaf_schema(value, field);
    }
    schema["description"] = field.help;
    properties_[field.key] = schema;
  }

  void add(const char* key, Json schema) { properties_[key] = std::move(schema); }

  Json object() const {
    return {{"type", "object"}, {"properties", properties_}, {"additionalProperties", false}};
  }

 private:
  Json properties_ = Json::object();
};

class TableWriter {
 public:
  explicit TableWriter(std::string path) : path_(std::move(path)) {}

  template <class T>
  void operator()(const T& value, const Field& field) {
    const std::string path = path_.empty() ? field.key : path_ + "." + field.key;
    if constexpr (kIsSection<T>) {
      TableWriter inner(path);
      T::fields(value, inner);
      rows_ += inner.rows_;
    } else {
      const Json schema = leaf_schema(value, field);
      std::string allowed;
      if (schema.contains("enum")) {
        for (const auto& name : schema["enum"]) {
          allowed += (allowed.empty() ? "" : ", ") + name.get<std::string>();
        }
      } else if (schema["type"] == "boolean") {
        allowed = "true, false";
      } else if (std::isfinite(field.min) || std::isfinite(field.max)) {
        allowed = (std::isfinite(field.min) ? compact(field.min) : "") + ".." +
                  (std::isfinite(field.max) ? compact(field.max) : "");
      }
      rows_ += "| `" + path + "` | `" + schema["default"].dump() + "` | " + allowed + " | " +
               field.help + " |\n";
    }
  }

  const std::string& rows() const { return rows_; }

 private:
  std::string path_;
  std::string rows_;
};

}  // namespace

std::string json_schema() {
  SchemaWriter writer;
  writer.add("$schema", {{"type", "string"}});
  writer.add("extends", {{"type", "string"},
                         {"description", "a config whose values hold where this one is silent"}});
  const Config defaults;
  Config::fields(defaults, writer);
  Json schema = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
                 {"title", "Orchard training configuration"}};
  schema.update(writer.object());
  return schema.dump(2) + "\n";
}

std::string markdown_table() {
  TableWriter writer("");
  const Config defaults;
  Config::fields(defaults, writer);
  return "| field | default | allowed | meaning |\n|---|---|---|---|\n" + writer.rows();
}

}  // namespace orchard::config
