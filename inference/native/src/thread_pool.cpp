#include "thread_pool.h"

#include <algorithm>

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

// For how long one thread runs alone after a crowded run; doubled while the next is crowded too.
constexpr auto ALONE_MIN = std::chrono::milliseconds(50);
constexpr auto ALONE_MAX = std::chrono::milliseconds(1600);
// Waiting that makes a run crowded, as a share of what all threads but one had. At 1 the threads
// did no more than one would have.
constexpr double CROWDED_SHARE = 0.75;

inline void pause() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace

void Crowding::record(Clock::time_point now, Clock::duration took, Clock::duration waited,
                      int threads) {
    const double bound = CROWDED_SHARE * static_cast<double>(took.count()) * (threads - 1);
    if (static_cast<double>(waited.count()) <= bound) {
        alone_next_ = ALONE_MIN;
        return;
    }
    alone_next_ = std::max<Clock::duration>(alone_next_, ALONE_MIN);
    alone_until_ = now + alone_next_;
    alone_next_ = std::min<Clock::duration>(alone_next_ * 2, ALONE_MAX);
}

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
    const Clock::time_point start = Clock::now();
    active_ = crowding_.alone(start) ? 1 : size();
    if (active_ == 1) return body(context, 0);
    waited_.store(0, std::memory_order_relaxed);
    {
        std::lock_guard<std::mutex> lock(mutex_);
        body_ = body;
        context_ = context;
        runs_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    body(context, 0);
    barrier();
    const Clock::duration waited(waited_.load(std::memory_order_relaxed));
    const Clock::time_point end = Clock::now();
    crowding_.record(end, end - start, waited, active_);
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
    // Read before arriving: afterwards the caller may be let go and change it for its next run.
    const int active = active_;
    const unsigned phase = phase_.load(std::memory_order_relaxed);
    if (active == 1) {
        next_.store(0, std::memory_order_relaxed);
        return;
    }
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < active)
        return wait_for_phase(phase);
    arrived_.store(0, std::memory_order_relaxed);
    next_.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
}

void ThreadPool::wait_for_phase(unsigned last) {
    for (int look = 0; look < BARRIER_LOOKS; look++) {
        if (phase_.load(std::memory_order_acquire) != last) return;
        pause();
    }
    const Clock::time_point start = Clock::now();
    while (phase_.load(std::memory_order_acquire) == last) std::this_thread::yield();
    waited_.fetch_add((Clock::now() - start).count(), std::memory_order_relaxed);
}

}  // namespace seedance
