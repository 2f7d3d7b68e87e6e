#include "base/log.hpp"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>

#include "base/error.hpp"
#include "base/text.hpp"

namespace orchard::log {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPlainInterval = std::chrono::seconds(10);

struct State {
  std::mutex mutex;
  std::shared_ptr<spdlog::sinks::stderr_color_sink_mt> console =
      std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
  std::shared_ptr<spdlog::logger> to_console = std::make_shared<spdlog::logger>("console", console);
  std::shared_ptr<spdlog::logger> to_file;
  bool terminal = isatty(STDERR_FILENO) == 1;
  bool live_shown = false;
  Clock::time_point last_plain = Clock::now();

  State() {
    to_console->set_pattern("%^%v%$");
    to_console->set_level(spdlog::level::info);
  }

  void wipe() {
    if (live_shown) {
      std::fputs("\r\033[K", stderr);
      std::fflush(stderr);
      live_shown = false;
    }
  }
};

State& state() {
  static State instance;
  return instance;
}

void write(spdlog::level::level_enum level, std::string_view text) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.wipe();
  const char* prefix = level == spdlog::level::err    ? "error: "
                       : level == spdlog::level::warn ? "warning: "
                                                      : "";
  s.to_console->log(level, "{}{}", prefix, text);
  if (s.to_file) {
    s.to_file->log(level, "{}", text);
  }
}

}  // namespace

void open_file(const std::filesystem::path& path) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  try {
    auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path.string(), false);
    s.to_file = std::make_shared<spdlog::logger>("file", sink);
    s.to_file->set_pattern("%Y-%m-%dT%H:%M:%S%z %l %v");
    s.to_file->set_level(spdlog::level::debug);
    s.to_file->flush_on(spdlog::level::info);
    // A full disk must not flood the console: the log file is the one file that may be lost.
    s.to_file->set_error_handler([](const std::string&) {});
  } catch (const spdlog::spdlog_ex& e) {
    throw Error(ErrorKind::Checkpoint, str("cannot open the log file: ", e.what()),
                "make the run folder writable, or set run.dir to another folder");
  }
}

void close_file() {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.to_file.reset();
}

void set_verbose(bool verbose) {
  state().to_console->set_level(verbose ? spdlog::level::debug : spdlog::level::info);
}

void debug(std::string_view text) {
  write(spdlog::level::debug, text);
}
void info(std::string_view text) {
  write(spdlog::level::info, text);
}
void warn(std::string_view text) {
  write(spdlog::level::warn, text);
}
void error(std::string_view text) {
  write(spdlog::level::err, text);
}

void live(std::string_view text) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (s.terminal) {
    std::fprintf(stderr, "\r%.*s\033[K", static_cast<int>(text.size()), text.data());
    std::fflush(stderr);
    s.live_shown = true;
  } else if (Clock::now() - s.last_plain >= kPlainInterval) {
    std::fprintf(stderr, "%.*s\n", static_cast<int>(text.size()), text.data());
    s.last_plain = Clock::now();
  }
}

void end_live() {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.wipe();
}

}  // namespace orchard::log
