// Small text functions shared by messages and tables. (A format library cannot be used here: the
// torch wheel carries another fmt than the system.)
#pragma once

#include <cstdint>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace orchard {

// Joins its arguments as operator<< prints them: str("lr ", 0.1, " at step ", 3).
template <class... Parts>
std::string str(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return std::move(out).str();
}

std::string fixed(double value, int digits);  // 0.5, 2 -> "0.50"
std::string compact(double value);  // shortest of up to 4 significant digits: "0.1", "3e-05"
std::string percent(double fraction, int digits);  // 0.957, 1 -> "95.7%"
std::string thousands(std::int64_t value);         // 1281167 -> "1,281,167"
std::string bytes_text(double bytes);              // 1536 -> "1.5 KiB"
std::string duration_text(double seconds);         // 75 -> "1m 15s"
std::string join(const std::vector<std::string>& parts, std::string_view separator);
std::string lower(std::string_view text);

// "a, b and 4 more": at most five of the names.
std::string some_of(const std::vector<std::string>& names);

// The text as one field of a CSV line: quoted where it has to be (RFC 4180).
std::string csv_field(const std::string& text);

// The candidate with the smallest edit distance to `name`, or "" when none is close (more than half
// of the name's letters differ).
std::string nearest(std::string_view name, const std::vector<std::string>& candidates);

// ", did you mean 'x'?" when a candidate is close, else "".
std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace orchard
