// The command line: argv to one of the verbs.
#pragma once

#include <functional>
#include <optional>

namespace orchard::cli {

// What to do, or nothing when the parser has already answered (--help, --version). Throws
// Error(Usage). A program called `train` means `orchard train`.
std::optional<std::function<int()>> parse(int argc, char** argv);

}  // namespace orchard::cli
