// Counts what a process allocates, for test_steady_state.py: preloaded before the C library.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>

static atomic_int counting;
static atomic_size_t calls, large, largest;
enum { LARGE = 4096 };

static void note(size_t bytes) {
  if (!atomic_load(&counting)) return;
  atomic_fetch_add(&calls, 1);
  if (bytes < LARGE) return;
  atomic_fetch_add(&large, 1);
  size_t seen = atomic_load(&largest);
  while (seen < bytes && !atomic_compare_exchange_weak(&largest, &seen, bytes)) {
  }
}

extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);
extern void* __libc_memalign(size_t, size_t);

void* malloc(size_t bytes) { note(bytes); return __libc_malloc(bytes); }
void* calloc(size_t n, size_t bytes) { note(n * bytes); return __libc_calloc(n, bytes); }
void* realloc(void* old, size_t bytes) { note(bytes); return __libc_realloc(old, bytes); }
void* aligned_alloc(size_t to, size_t bytes) { note(bytes); return __libc_memalign(to, bytes); }
void* memalign(size_t to, size_t bytes) { note(bytes); return __libc_memalign(to, bytes); }
int posix_memalign(void** out, size_t to, size_t bytes) {
  note(bytes);
  *out = __libc_memalign(to, bytes);
  return *out ? 0 : 12;
}
void* mmap(void* at, size_t bytes, int prot, int flags, int fd, long offset) {
  static void* (*next)(void*, size_t, int, int, int, long);
  if (!next) next = (void* (*)(void*, size_t, int, int, int, long))dlsym(RTLD_NEXT, "mmap");
  note(bytes);
  return next(at, bytes, prot, flags, fd, offset);
}

void cgx_count(int on) { atomic_store(&counting, on); }
size_t cgx_counted(int what) {
  return what == 0 ? atomic_exchange(&calls, 0)
                   : what == 1 ? atomic_exchange(&large, 0) : atomic_exchange(&largest, 0);
}
