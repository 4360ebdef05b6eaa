#include "memory.h"

#include <sys/mman.h>

namespace seedance {

Region::Region(size_t bytes) : size_(bytes) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#if defined(MAP_NORESERVE)
    flags |= MAP_NORESERVE;
#endif
    void* start = mmap(nullptr, size_, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (start == MAP_FAILED) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
    madvise(start, size_, MADV_HUGEPAGE);  // advice: where it is refused, small pages do
#endif
    start_ = static_cast<uint8_t*>(start);
}

Region::~Region() { munmap(start_, size_); }

void* Region::take(size_t bytes) {
    const size_t rounded = (bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
    if (rounded > size_ - used_) throw std::bad_alloc();
    void* result = start_ + used_;
    used_ += rounded;
    return result;
}

}  // namespace seedance
