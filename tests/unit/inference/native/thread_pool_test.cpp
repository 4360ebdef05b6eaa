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

int runs_alone(Crowding& crowding) {
    int runs = 0;
    while (crowding.alone()) runs++;
    return runs;
}

bool crowding_backs_off() {
    using std::chrono::milliseconds;
    Crowding crowding;
    if (crowding.alone()) return false;
    crowding.record(milliseconds(10), milliseconds(2), 2);
    if (runs_alone(crowding) != 0) return false;
    crowding.record(milliseconds(10), milliseconds(9), 2);
    const int first = runs_alone(crowding);
    crowding.record(milliseconds(10), milliseconds(9), 2);
    if (first == 0 || runs_alone(crowding) != 2 * first) return false;
    for (int i = 0; i < 20; i++) crowding.record(milliseconds(10), milliseconds(9), 2);
    if (runs_alone(crowding) > 1000) return false;
    crowding.record(milliseconds(10), milliseconds(0), 2);
    crowding.record(milliseconds(10), milliseconds(9), 2);
    return runs_alone(crowding) == first;
}

}  // namespace

int main() {
    for (int threads : {1, 2, 5})
        if (!shares_each_item_once(threads)) return std::printf("share, %d threads\n", threads), 1;
    if (!crowding_backs_off()) return std::printf("crowding\n"), 1;
    return 0;
}
