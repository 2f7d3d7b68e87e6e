// The metrics of a run as a table (metrics.csv) and as records (metrics.jsonl).
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace orchard::artifacts {

// One row as ordered (name, value) pairs; the first is "epoch", from 1.
using MetricsRow = std::vector<std::pair<std::string, double>>;

// Adds a row to both files in `folder`, each atomically. A row for an epoch that is already there
// replaces it and all later ones (the run was resumed from before them). The table has one header
// with every name; a value that a row lacks is an empty cell. Throws Error(Checkpoint).
void write_metrics(const std::filesystem::path& folder, const MetricsRow& row);

}  // namespace orchard::artifacts
