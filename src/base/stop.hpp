// Asking a run to stop. The first SIGINT or SIGTERM sets a flag that loops look at between steps,
// so that they can save; the second one ends the process at once with the signal's exit code.
#pragma once

#include <exception>

namespace orchard {

void catch_stop_signals();
int stop_signal() noexcept;  // 0, or the signal that asks to stop

// Thrown by long work that holds nothing worth saving (scans, evaluation, prediction).
class Stopped : public std::exception {
 public:
  explicit Stopped(int signal) : signal_(signal) {}
  const char* what() const noexcept override { return "stopped by a signal"; }
  int exit_code() const { return 128 + signal_; }

 private:
  int signal_;
};

inline void throw_if_stopped() {
  if (const int signal = stop_signal(); signal != 0) {
    throw Stopped(signal);
  }
}

}  // namespace orchard
