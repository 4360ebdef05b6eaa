// Checks of the thread pool, compiled and run by test_thread_pool.py; exit 0 when all hold.
#include "thread_pool.h"

#include <cstdio>

using namespace seedance;

namespace {

constexpr int ITEMS = 997;
constexpr int LOOPS = 50;

struct Count {
    ThreadPool* pool;
    std::atomic<int> done[LOOPS][ITEMS];
    std::atomic<int> early{0};  // items of a loop that began before the last one had ended
};

int sum(const std::atomic<int> (&row)[ITEMS]) {
    int total = 0;
    for (const std::atomic<int>& item : row) total += item.load();
    return total;
}

void count(void* context, int) {
    Count& count = *static_cast<Count*>(context);
    for (int loop = 0; loop < LOOPS; loop++)
        count.pool->share(ITEMS, 1 + loop % 7, [&](int begin, int end) {
            if (begin == 0 && loop > 0 && sum(count.done[loop - 1]) != ITEMS) count.early++;
            for (int item = begin; item < end; item++) count.done[loop][item]++;
        });
}

bool shares_each_item_once(int threads) {
    ThreadPool pool(threads);
    for (int run = 0; run < 20; run++) {
        Count state{};
        state.pool = &pool;
        pool.run(count, &state);
        for (auto& loop : state.done)
            for (auto& item : loop)
                if (item.load() != 1) return false;
        if (state.early.load()) return false;
    }
    return true;
}

using std::chrono::milliseconds;

// For how many ms the next runs are one thread's, after a run that waited so long of its 10 ms.
int alone_after(Crowding& crowding, Clock::time_point now, int waited_ms) {
    crowding.record(now, milliseconds(10), milliseconds(waited_ms), 2);
    int ms = 0;
    while (crowding.alone(now + milliseconds(ms))) ms++;
    return ms;
}

bool crowding_backs_off() {
    Crowding crowding;
    Clock::time_point now = Clock::now();
    if (crowding.alone(now) || alone_after(crowding, now, 2) != 0) return false;
    const int first = alone_after(crowding, now, 9);
    now += milliseconds(first);
    const int second = alone_after(crowding, now, 9);
    if (first == 0 || second != 2 * first) return false;
    int longest = 0;
    for (int i = 0; i < 20; i++) {
        now += milliseconds(2000);
        longest = alone_after(crowding, now, 9);
    }
    if (longest > 2000) return false;
    now += milliseconds(2000);
    return alone_after(crowding, now, 0) == 0 && alone_after(crowding, now, 9) == first;
}

}  // namespace

int main() {
    for (int threads : {1, 2, 5})
        if (!shares_each_item_once(threads)) return std::printf("share, %d threads\n", threads), 1;
    if (!crowding_backs_off()) return std::printf("crowding\n"), 1;
    return 0;
}
