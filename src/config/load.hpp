// Reading and writing configurations.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "config/config.hpp"

namespace orchard::config {

// The file that `name` stands for: the path as given if there is such a file, else the config of
// that name (with or without ".json") in the folder `shipped`. Throws Error(Config) that lists the
// shipped ones.
std::filesystem::path find_config(const std::string& name, const std::filesystem::path& shipped);

// Reads `file` (JSON, comments allowed), after the file that it `extends` (looked for beside it,
// then in `shipped`), then applies `overrides` ("a.b=value"; the value is JSON, or plain text for
// text fields) and validates. Throws one Error(Config) that lists every problem with its dotted
// path and line.
Config load(const std::filesystem::path& file, const std::filesystem::path& shipped,
            const std::vector<std::string>& overrides);

// The same from JSON text; `origin` names it in messages.
Config load_text(const std::string& text, const std::string& origin,
                 const std::vector<std::string>& overrides);

// The effective configuration as indented JSON; load_text gives back the same values.
std::string dump(const Config& config);
std::string dump(const PreprocessConfig& preprocess);
PreprocessConfig load_preprocess(const std::string& text, const std::string& origin);

// One line for each field that differs and must stay the same when a run is resumed:
// "train.batch_size: 32, was 64". Empty when the run may go on.
std::vector<std::string> resume_conflicts(const Config& started, const Config& now);

}  // namespace orchard::config
