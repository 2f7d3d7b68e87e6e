#include "artifacts/metrics.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/log.hpp"
#include "base/text.hpp"

namespace orchard::artifacts {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// The shortest text that reads back as the same number.
std::string number_text(double value) {
  if (!std::isfinite(value)) {
    return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
  }
  std::array<char, 40> text{};
  for (int digits = 1; digits <= 17; ++digits) {
    std::snprintf(text.data(), text.size(), "%.*g", digits, value);
    if (std::strtod(text.data(), nullptr) == value) {
      break;
    }
  }
  if (value == 0 && std::signbit(value)) {
    return "-0.0";  // JSON's -0 is an integer, which has no sign
  }
  // "1e+02" is the shortest of 100, but not what anyone writes.
  if (std::abs(value) < 1e15 && value == std::floor(value)) {
    std::snprintf(text.data(), text.size(), "%.0f", value);
  }
  return text.data();
}

std::string json_line(const MetricsRow& row) {
  std::string line;
  for (const auto& [name, value] : row) {
    // JSON has no word for these, so they are texts.
    const std::string number = number_text(value);
    line += str(line.empty() ? "{" : ", ", Json(name).dump(), ": ",
                std::isfinite(value) ? number : "\"" + number + "\"");
  }
  return line + "}\n";
}

std::optional<MetricsRow> parse_row(const std::string& line) {
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || json.empty() || json.begin().key() != "epoch") {
    return std::nullopt;
  }
  MetricsRow row;
  for (const auto& [name, value] : json.items()) {
    if (value.is_number()) {
      row.emplace_back(name, value.get<double>());
    } else if (value == "nan" || value == "inf" || value == "-inf") {
      row.emplace_back(name, std::strtod(value.get<std::string>().c_str(), nullptr));
    } else {
      return std::nullopt;
    }
  }
  return row;
}

// One header: all names, in the order in which they first come.
std::string csv_text(const std::vector<MetricsRow>& rows) {
  std::vector<std::string> names;
  for (const auto& row : rows) {
    for (const auto& [name, value] : row) {
      if (std::find(names.begin(), names.end(), name) == names.end()) {
        names.push_back(name);
      }
    }
  }
  std::string text;
  for (const auto& name : names) {
    text += (text.empty() ? "" : ",") + csv_field(name);
  }
  text += "\n";
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < names.size(); ++i) {
      const auto cell = std::find_if(row.begin(), row.end(),
                                     [&](const auto& pair) { return pair.first == names[i]; });
      text += (i == 0 ? "" : ",") + (cell == row.end() ? "" : number_text(cell->second));
    }
    text += "\n";
  }
  return text;
}

std::string read_rows(const fs::path& path) {
  try {
    return read_file(path);
  } catch (const Error& e) {
    throw Error(ErrorKind::Checkpoint, e.what(), "move the file away, and run again");
  }
}

}  // namespace

void write_metrics(const fs::path& folder, const MetricsRow& row) {
  if (row.empty() || row.front().first != "epoch") {
    throw Error(ErrorKind::Internal, "a metrics row does not begin with its epoch",
                "report this as a fault of Orchard");
  }
  // metrics.jsonl is what counts and is written first; metrics.csv is made from it, so that a
  // program killed between the two loses nothing.
  const fs::path jsonl = folder / "metrics.jsonl";
  std::vector<MetricsRow> rows;
  if (fs::exists(jsonl)) {
    std::istringstream lines(read_rows(jsonl));
    std::int64_t number = 0;
    for (std::string line; std::getline(lines, line);) {
      ++number;
      if (line.empty()) {
        continue;
      }
      auto old = parse_row(line);
      if (!old) {
        log::warn(str("'", jsonl.string(), "' line ", number,
                      " is not a row of metrics and is left out"));
      } else if (old->front().second < row.front().second) {
        rows.push_back(std::move(*old));
      }
    }
  }
  rows.push_back(row);
  std::string text;
  for (const auto& each : rows) {
    text += json_line(each);
  }
  write_atomically(jsonl, text);
  write_atomically(folder / "metrics.csv", csv_text(rows));
}

}  // namespace orchard::artifacts
