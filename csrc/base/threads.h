// Threads of the engine: how they start, and what is said where the system gives no more; forks.
#pragma once

#include <functional>
#include <string>
#include <thread>

namespace cgx {

/// A thread that runs `body`. ResourceError: the system starts no more threads; the text says so of
/// `purpose` ("the thread that ..."), and names the limits.
std::thread start_thread(const std::string& purpose, std::function<void()> body);

/// What ResourceErrors say: the limits of processes and threads that hold for this process, with
/// what is in use, and the remedy. `root` has the folders proc and sys; tests have another one.
std::string thread_limits(const std::string& root = "");

/// True on the thread that came into this process by fork(), if the parent had other threads: a
/// library that keeps threads for it, as OpenMP does, waits for ever for those.
bool lost_threads_in_fork();

}  // namespace cgx
