// Runs an action in a child process, which may have limits of its own or be killed.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

namespace orchard {

// The action must not compute with tensors: LibTorch's threads do not come along.
template <class Action>
pid_t start_child(Action action) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    ::_exit(action());
  }
  return child;
}

// Its exit status, -1 when a signal ended it.
inline int wait_for(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

template <class Action>
int in_child(Action action) {
  return wait_for(start_child(action));
}

}  // namespace orchard
