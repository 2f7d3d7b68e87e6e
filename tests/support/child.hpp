// Runs an action in a child process, which may have limits of its own or be killed.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

namespace orchard {

// Returns when the child runs. The action must not compute with tensors: LibTorch's threads do not
// come along.
template <class Action>
pid_t start_child(Action action) {
  int ready[2];
  if (::pipe(ready) != 0) {
    return -1;
  }
  const pid_t child = ::fork();
  char byte = 'x';
  if (child == 0) {
    ::alarm(60);
    ::_exit(::write(ready[1], &byte, 1) == 1 ? action() : 99);
  }
  ::close(ready[1]);
  const bool runs = ::read(ready[0], &byte, 1) == 1;
  ::close(ready[0]);
  return runs ? child : -1;
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
