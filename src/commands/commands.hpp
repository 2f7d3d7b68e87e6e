// The verbs. Each takes its arguments as a plain struct, wires the rooms together and returns the
// exit code; faults leave as Error.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace orchard::commands {

struct TrainArgs {
  std::string config;  // path or name of a shipped config; may be empty with resume_from
  std::vector<std::string> overrides;
  bool resume = false;
  std::string resume_from;  // checkpoint or run folder; empty: the newest run of the config's name
  bool allow_config_change = false;
  bool print_config = false;
  std::filesystem::path shipped;  // folder of the shipped configs
  std::string program;            // how to call orchard, for the commands told at the end
};
int train(const TrainArgs& args);

struct EvaluateArgs {
  std::string model;  // run folder, checkpoint or exported file
  std::string data;   // root with val/, or the split itself; empty: the root that it was trained on
  std::string device = "auto";
  std::int64_t batch_size = 64;
  std::int64_t workers = -1;
  std::string format = "text";  // text, json
};
int evaluate(const EvaluateArgs& args);

struct PredictArgs {
  std::string model;
  std::vector<std::string> inputs;  // files and folders
  std::string device = "auto";
  std::int64_t batch_size = 64;
  std::int64_t workers = -1;
  std::int64_t top_k = 1;
  std::string format = "table";  // table, csv, json, jsonl
  std::string output;            // file; empty: stdout
};
int predict(const PredictArgs& args);

struct ExportArgs {
  std::string model;
  std::string output;  // file; empty: <run folder>/export/<model name>.ts
};
int export_model(const ExportArgs& args);

struct MakeSampleArgs {
  std::string root;
  std::int64_t train_per_class = 120;
  std::int64_t val_per_class = 30;
  std::int64_t seed = 1;
};
int make_sample(const MakeSampleArgs& args);

int models();
int devices();

enum class SchemaFormat { Json, Markdown };
int schema(SchemaFormat format);

}  // namespace orchard::commands
