// Lowers the libstdc++ that a wheel needs from GCC 12's to GCC 11's: RHEL 9 and its relatives have that one.
//
// GCC 12 gave condition_variable::wait a second symbol version, GLIBCXX_3.4.30, for an exception specification; the
// function of the first one, GLIBCXX_3.4.11, is the same. This object binds to the first. It is linked into the
// extension of wheels alone, with -Wl,--wrap for the function's name.
#include <condition_variable>
#include <mutex>

#define CGX_WAIT "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE"

extern "C" {
void cgx_wait(std::condition_variable*, std::unique_lock<std::mutex>&);
__asm__(".symver cgx_wait, " CGX_WAIT "@GLIBCXX_3.4.11");

__attribute__((visibility("hidden"))) void
__wrap__ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE(std::condition_variable* condition,
                                                                 std::unique_lock<std::mutex>& lock) {
  cgx_wait(condition, lock);
}
}
