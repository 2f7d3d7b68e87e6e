// What a fault of the data room says.
#pragma once

#include <doctest/doctest.h>

#include <functional>
#include <string>

#include "base/error.hpp"

namespace orchard {

// "cause | remedy" of the Error(Data) that the action throws, or "" when it throws none.
inline std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::Data);
    return std::string(e.what()) + " | " + e.remedy();
  }
  return "";
}

}  // namespace orchard
