// Where the keys of a JSON text stand: nlohmann's parser keeps values but not lines.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace orchard::config {

struct JsonLines {
  std::map<std::string, int> line_of;   // "train.batch_size" -> 12, lines from 1
  std::vector<std::string> duplicates;  // paths of keys that are given twice in one object
};

// `text` must be valid JSON (comments allowed).
JsonLines find_lines(const std::string& text);

}  // namespace orchard::config
