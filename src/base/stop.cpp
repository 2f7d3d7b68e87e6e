#include "base/stop.hpp"

#include <csignal>
#include <cstdlib>

namespace orchard {
namespace {

volatile std::sig_atomic_t g_signal = 0;

extern "C" void on_stop_signal(int signal) {
  if (g_signal != 0) {
    std::_Exit(128 + signal);
  }
  g_signal = signal;
}

}  // namespace

void catch_stop_signals() {
  struct sigaction action{};
  action.sa_handler = on_stop_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  // A file size limit shows as a failed write, which is told, and not as a silent end.
  std::signal(SIGXFSZ, SIG_IGN);
}

int stop_signal() noexcept {
  return g_signal;
}

}  // namespace orchard
