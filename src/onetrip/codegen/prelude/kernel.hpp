// What the frame of a kernel needs: how many threads, working memory, checks of single indices.
#pragma once
#include <stdlib.h>

namespace ot {

// Threads worth starting for `bytes` of traffic: one for each 32 KiB.
OT_INLINE int team(int threads, int64_t bytes) {
  int64_t worth = bytes >> 15;
  return worth < 2 ? 1 : worth < threads ? (int)worth : threads;
}

// floor(a / b) and a - b * floor(a / b), for b > 0.
OT_INLINE int64_t floor_quotient(int64_t a, int64_t b) { return a / b - (a % b < 0); }
OT_INLINE int64_t floor_modulo(int64_t a, int64_t b) { return a % b + (a % b < 0 ? b : 0); }
template <class F> OT_INLINE vec<int64_t> each_index(vec<int64_t> a, vec<int64_t> b, F f) {
  return map_lanes<int64_t>(a, b, f);
}
OT_INLINE vec<int64_t> floor_quotient(vec<int64_t> a, vec<int64_t> b) {
  return each_index(a, b, [](int64_t x, int64_t y) { return floor_quotient(x, y); });
}
OT_INLINE vec<int64_t> floor_modulo(vec<int64_t> a, vec<int64_t> b) {
  return each_index(a, b, [](int64_t x, int64_t y) { return floor_modulo(x, y); });
}

// The lanes in which what follows really happens: faults elsewhere are none.
OT_INLINE faults& within(faults& f, vec<bool> lanes) {
  f.active = lanes;
  return f;
}

// An index that must lie in [0, size): elsewhere a fault is noted and 0 taken. `least` is -size
// where what is negative was counted from the end already.
OT_INLINE vec<int64_t> inside(vec<int64_t> i, int64_t least, int64_t size, faults& f) {
  vec<bool> wrong = (i < vec<int64_t>(int64_t(0))) | (i >= vec<int64_t>(size));
  f.note_index(wrong, i, least, size);
  return where(wrong, vec<int64_t>(int64_t(0)), i);
}
OT_INLINE int64_t inside(int64_t i, int64_t least, int64_t size, faults& f) {
  if (__builtin_expect(i >= 0 && i < size, 1)) return i;
  return inside(vec<int64_t>(i), least, size, f)[0];
}

#ifdef _OPENMP
extern "C" int omp_get_thread_num(void);
OT_INLINE int thread() { return omp_get_thread_num(); }
#else
OT_INLINE int thread() { return 0; }
#endif

// What all threads of a kernel found: that of the lowest one, which has the lowest iterations.
struct findings {
  finding first;
  int of = 0;
  __attribute__((cold, noinline)) void add(finding found) {
#pragma omp critical(onetrip_findings)
    if (!first.code || thread() < of) {
      first = found;
      of = thread();
    }
  }
};

// The failed launch of the calling thread's last call that failed, to be asked for behind it.
static thread_local struct { int64_t launch; finding found; } last_failure;

__attribute__((cold, noinline)) static int failed(finding found) {
  last_failure.found = found;
  return found.code;
}
__attribute__((cold, noinline)) static int failed_at(int64_t launch, int code) {
  last_failure.launch = launch;
  return code;
}

}  // namespace ot

// (position of the launch in its run, index, least, size)
extern "C" __attribute__((visibility("default"))) void onetrip_failure(int64_t* told) {
  told[0] = ot::last_failure.launch;
  told[1] = ot::last_failure.found.index;
  told[2] = ot::last_failure.found.least;
  told[3] = ot::last_failure.found.size;
}

namespace ot {

// Memory of one thread that stays for the next call: fresh pages cost more than most kernels.
// `tag` keeps the pieces of one kernel apart.
template <class T, int tag> inline T* workspace(int64_t count) {
  static thread_local struct held {
    void* memory = nullptr;
    size_t bytes = 0;
    ~held() { free(memory); }
  } mine;
  size_t wanted = ((size_t)count * sizeof(T) + 127) / 64 * 64;
  if (wanted > mine.bytes) {
    free(mine.memory);
    mine.memory = aligned_alloc(64, wanted);
    mine.bytes = wanted;
  }
  return (T*)mine.memory;
}

}  // namespace ot
