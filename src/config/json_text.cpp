#include "config/json_text.hpp"

#include <cstddef>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

namespace orchard::config {
namespace {

// Hands a text to the parser and counts the lines that the parser has taken.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, int* line) : at_(at), line_(line) {}

  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    *line_ += *at_ == '\n' ? 1 : 0;
    ++at_;
    return *this;
  }
  CountingIterator operator++(int) {
    CountingIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const CountingIterator& other) const { return at_ == other.at_; }
  bool operator!=(const CountingIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  int* line_;
};

}  // namespace

JsonLines find_lines(const std::string& text) {
  using Json = nlohmann::json;
  JsonLines result;
  int line = 1;
  std::vector<std::string> keys;  // the key in progress at each depth of objects
  std::vector<std::set<std::string>> seen = {{}};
  const auto path_of = [&keys] {
    std::string path;
    for (const auto& key : keys) {
      path += (path.empty() ? "" : ".") + key;
    }
    return path;
  };
  // Arrays count as a depth too, with an empty key, so that depth always equals keys.size().
  const auto on_event = [&](int depth, Json::parse_event_t event, Json& parsed) {
    const auto level = static_cast<std::size_t>(depth);
    switch (event) {
      case Json::parse_event_t::object_start:
      case Json::parse_event_t::array_start:
        keys.resize(level + 1);
        seen.resize(level + 2);
        seen[level + 1].clear();
        break;
      case Json::parse_event_t::key: {
        keys.resize(level);
        seen.resize(level + 1);
        const auto& key = parsed.get_ref<const std::string&>();
        keys[level - 1] = key;
        const std::string path = path_of();
        if (!seen[level].insert(key).second) {
          result.duplicates.push_back(path);
        }
        result.line_of[path] = line;
        break;
      }
      default:
        break;
    }
    return true;
  };
  const Json ignored =
      Json::parse(CountingIterator(text.data(), &line),
                  CountingIterator(text.data() + text.size(), &line), on_event, true, true);
  return result;
}

}  // namespace orchard::config
