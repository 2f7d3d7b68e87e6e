#include <cstdio>

#include "commands/commands.hpp"
#include "config/describe.hpp"

namespace orchard::commands {

int schema(SchemaFormat format) {
  const auto text = format == SchemaFormat::Json ? config::json_schema() : config::markdown_table();
  std::fputs(text.c_str(), stdout);
  return 0;
}

}  // namespace orchard::commands
