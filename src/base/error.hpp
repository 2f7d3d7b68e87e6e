// The one exception type of Orchard. Its kind is the exit code of the program.
//
// Throw it for everything that a user, the disk, the data or the device can cause. The cause says
// what happened, to which value, where; the remedy says what to do. Both are one sentence without a
// full stop. Only main() catches it for good.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace orchard {

enum class ErrorKind : int {
  Usage = 2,       // wrong command line
  Config = 3,      // wrong configuration
  Data = 4,        // wrong or missing images
  Device = 5,      // device missing, failing, or out of memory
  Checkpoint = 6,  // a checkpoint, export or run folder that cannot be read or written
  Diverged = 7,    // the loss or a weight is not finite any more
  Internal = 70,   // a fault of Orchard itself
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& cause, std::string remedy)
      : std::runtime_error(cause), kind_(kind), remedy_(std::move(remedy)) {}

  ErrorKind kind() const { return kind_; }
  int exit_code() const { return static_cast<int>(kind_); }
  const std::string& remedy() const { return remedy_; }

 private:
  ErrorKind kind_;
  std::string remedy_;
};

}  // namespace orchard
