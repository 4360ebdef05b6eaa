#include "thread_pool.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace seedance {
namespace {

// Inside a step the others arrive within microseconds; after so many looks they were interrupted,
// and the core is better left to whom they wait for.
constexpr int BARRIER_LOOKS = 4096;
// Between two steps a thread looks for about 50 µs, the time a sleeper takes to wake, then sleeps.
constexpr int IDLE_LOOKS = 1024;

inline void pause() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
    for (int thread = 1; thread < threads; thread++)
        workers_.emplace_back([this, thread] { work(thread); });
}

ThreadPool::~ThreadPool() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(void (*body)(void*, int), void* context) {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        body_ = body;
        context_ = context;
        runs_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    body(context, 0);
    barrier();
}

void ThreadPool::work(int thread) {
    for (unsigned seen = 0;;) {
        const unsigned run = wait_for_run(seen);
        if (run == seen) return;
        seen = run;
        body_(context_, thread);
        barrier();
    }
}

// The number of the run to join, or `last` when the pool is stopping.
unsigned ThreadPool::wait_for_run(unsigned last) {
    for (int look = 0; look < IDLE_LOOKS; look++) {
        const unsigned run = runs_.load(std::memory_order_acquire);
        if (run != last) return run;
        pause();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    wake_.wait(lock, [&] { return stopping_ || runs_.load(std::memory_order_relaxed) != last; });
    return stopping_ ? last : runs_.load(std::memory_order_relaxed);
}

void ThreadPool::barrier() {
    if (workers_.empty()) {
        next_.store(0, std::memory_order_relaxed);
        return;
    }
    const unsigned phase = phase_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size()) {
        arrived_.store(0, std::memory_order_relaxed);
        next_.store(0, std::memory_order_relaxed);
        phase_.store(phase + 1, std::memory_order_release);
        return;
    }
    for (int look = 0; phase_.load(std::memory_order_acquire) == phase; look++) {
        if (look < BARRIER_LOOKS) pause();
        else std::this_thread::yield();
    }
}

}  // namespace seedance
