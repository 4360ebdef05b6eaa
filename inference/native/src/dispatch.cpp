// Which instruction sets were built, and which of them this CPU has.
#include <cstring>

#include "kernels.h"

namespace seedance {

extern const Kernels kernels_portable;
#if defined(SEEDANCE_HAS_avx2)
extern const Kernels kernels_avx2;
#endif
#if defined(SEEDANCE_HAS_avx512)
extern const Kernels kernels_avx512;
#endif
#if defined(SEEDANCE_HAS_avx512bf16)
extern const Kernels kernels_avx512bf16;
#endif

namespace {

[[maybe_unused]] bool has_avx2() {
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return false;
#endif
}

[[maybe_unused]] bool has_avx512() {
#if defined(__x86_64__)
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni");
#else
    return false;
#endif
}

[[maybe_unused]] bool has_avx512bf16() {
#if defined(SEEDANCE_HAS_avx512bf16)
    return has_avx512() && __builtin_cpu_supports("avx512bf16");
#else
    return false;
#endif
}

struct Choice {
    const Kernels* kernels;
    bool runs_here;
};

// Fastest first; the last runs everywhere.
const Choice* choices() {
    static const Choice ALL[] = {
#if defined(SEEDANCE_HAS_avx512bf16)
        {&kernels_avx512bf16, has_avx512bf16()},
#endif
#if defined(SEEDANCE_HAS_avx512)
        {&kernels_avx512, has_avx512()},
#endif
#if defined(SEEDANCE_HAS_avx2)
        {&kernels_avx2, has_avx2()},
#endif
        {&kernels_portable, true},
        {nullptr, false},
    };
    return ALL;
}

}  // namespace

const Kernels* find_kernels(const char* name) {
    for (const Choice* choice = choices(); choice->kernels; choice++)
        if (choice->runs_here && std::strcmp(choice->kernels->name, name) == 0)
            return choice->kernels;
    return nullptr;
}

const Kernels* fastest_kernels() {
    const Choice* choice = choices();
    while (!choice->runs_here) choice++;
    return choice->kernels;
}

}  // namespace seedance
