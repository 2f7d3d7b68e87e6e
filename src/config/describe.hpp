// The field lists as documents.
#pragma once

#include <string>

namespace orchard::config {

std::string json_schema();     // draft 2020-12, for completion in editors
std::string markdown_table();  // the table in the README

}  // namespace orchard::config
