// A few threads that run one function together and share its loops.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace seedance {

using Clock = std::chrono::steady_clock;

// Whether several threads are worth it just now. Where other processes want the same cores, a
// thread the system has put aside holds up the rest at every barrier, and one thread alone is
// faster. Results do not depend on who computes what, so this may change from run to run.
class Crowding {
  public:
    // Whether a run that begins now should be one thread's.
    bool alone(Clock::time_point now) const { return now < alone_until_; }
    // What a run of several threads that ends now took, and the sum of what they waited for each
    // other.
    void record(Clock::time_point now, Clock::duration took, Clock::duration waited, int threads);

  private:
    Clock::time_point alone_until_{};
    Clock::duration alone_next_{};  // for how long, after the next crowded run
};

class ThreadPool {
  public:
    explicit ThreadPool(int threads);  // the caller of run() is one of them
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int size() const { return static_cast<int>(workers_.size()) + 1; }

    // Every thread, or the caller alone where cores are crowded, runs body(context, thread);
    // returns when all have. One caller at a time.
    void run(void (*body)(void*, int), void* context);

    // Neighbours to take at once of so many: few enough that nobody waits long for the last.
    int grain(int count) const {
        const int chunks = size() * CHUNKS_PER_THREAD;
        return count > chunks ? count / chunks : 1;
    }

    // Called by every thread inside run(), with equal arguments: together they do each of 0 ..
    // count-1 once, `grain` neighbours at a time, as chunk(begin, end). Who is free takes the
    // next chunk, so that a thread the system interrupts delays the others by one chunk at most.
    // Returns when all is done.
    template <typename Chunk>
    void share(int count, int grain, Chunk chunk) {
        for (;;) {
            const int begin = next_.fetch_add(grain, std::memory_order_relaxed);
            if (begin >= count) break;
            chunk(begin, begin + grain < count ? begin + grain : count);
        }
        barrier();
    }

  private:
    static constexpr int CHUNKS_PER_THREAD = 8;

    void barrier();
    void wait_for_phase(unsigned last);
    void work(int thread);
    unsigned wait_for_run(unsigned last);

    // On lines of their own: every thread hammers each of these, but not at the same moments.
    alignas(64) std::atomic<int> next_{0};         // of the loop being shared
    alignas(64) std::atomic<int> arrived_{0};      // at the barrier
    alignas(64) std::atomic<unsigned> phase_{0};   // barriers passed
    alignas(64) std::atomic<unsigned> runs_{0};    // runs begun
    alignas(64) std::atomic<int64_t> waited_{0};   // in this run, by all threads, ticks of Clock
    int active_ = 1;                               // threads in this run
    Crowding crowding_;
    void (*body_)(void*, int) = nullptr;
    void* context_ = nullptr;
    std::mutex mutex_;
    std::condition_variable wake_;
    bool stopping_ = false;
    std::vector<std::thread> workers_;
};

}  // namespace seedance
