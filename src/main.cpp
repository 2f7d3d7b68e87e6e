// Parse, run, exit code. The single place that catches everything.
#include <exception>
#include <string>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/stop.hpp"
#include "cli/cli.hpp"

int main(int argc, char** argv) {
  using namespace orchard;
  try {
    catch_stop_signals();
    const auto action = cli::parse(argc, argv);
    return action ? (*action)() : 0;
  } catch (const Error& e) {
    log::error(e.what());
    log::info("  what to do: " + e.remedy());
    return e.exit_code();
  } catch (const Stopped& stopped) {
    log::warn("stopped by a signal; nothing was under way that had to be saved");
    return stopped.exit_code();
  } catch (const std::bad_alloc&) {
    log::error("out of memory");
    log::info("  what to do: close other programs, or use a smaller batch or fewer workers");
    return static_cast<int>(ErrorKind::Device);
  } catch (const std::exception& e) {
    const std::string text = e.what();
    log::error("fault in Orchard: " + text.substr(0, text.find('\n')));
    log::info("  what to do: report this line with the command and the log file");
    return static_cast<int>(ErrorKind::Internal);
  }
}
