// Logging to the console (stderr) and, once opened, to a file. Shows neither spdlog nor fmt, so
// that files which include torch can use it. Results that a program may want to read go to stdout
// instead, and not through here.
//
// All functions may be called from any thread.
#pragma once

#include <filesystem>
#include <string_view>

namespace orchard::log {

void open_file(
    const std::filesystem::path& path);  // appends; throws Error(Checkpoint) when it cannot
void close_file();
void set_verbose(bool verbose);  // shows debug lines on the console; the file always has them

void debug(std::string_view text);
void info(std::string_view text);
void warn(std::string_view text);
void error(std::string_view text);

// Progress. On a terminal the text replaces the last live line in place; elsewhere it becomes a
// plain line, at most one every 10 seconds. Never written to the file.
void live(std::string_view text);
void end_live();  // wipes the live line, if one is shown

}  // namespace orchard::log
