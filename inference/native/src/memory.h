// Large memory: from the system, zeroed at first touch, on huge pages where there are any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

#include "layout.h"

namespace seedance {

// Address space for the largest size it may need; only what is touched becomes memory. Reading
// weights on huge pages is half again as fast as on small ones: fewer misses in the page tables.
class Region {
  public:
    explicit Region(size_t bytes);
    ~Region();
    Region(const Region&) = delete;
    Region& operator=(const Region&) = delete;

    // The next `bytes`, aligned to a cache line. Throws std::bad_alloc past the end.
    void* take(size_t bytes);
    template <typename T>
    T* take_array(size_t count) {
        return static_cast<T*>(take(count * sizeof(T)));
    }

  private:
    uint8_t* start_;
    size_t size_;
    size_t used_ = 0;
};

// An array for a step's intermediate values: grows, never shrinks, keeps nothing when it grows.
template <typename T>
class Scratch {
  public:
    Scratch() = default;
    ~Scratch() { std::free(data_); }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

    T* reserve(size_t count) {
        if (count > count_) {
            std::free(data_);
            count_ = 0;
            const size_t bytes = (count * sizeof(T) + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
            data_ = static_cast<T*>(std::aligned_alloc(CACHE_LINE, bytes));
            if (!data_) throw std::bad_alloc();
            count_ = count;
        }
        return data_;
    }
    T* data() const { return data_; }

  private:
    T* data_ = nullptr;
    size_t count_ = 0;
};

}  // namespace seedance
