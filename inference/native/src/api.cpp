// The C interface that library.py calls. No exception leaves it.
#include <new>
#include <system_error>

#include "model.h"

using seedance::Kernels;
using seedance::Model;
using seedance::ModelShape;
using seedance::NormSlot;
using seedance::Slot;
using seedance::StepInput;

namespace {

enum Status : int { OK = 0, OUT_OF_MEMORY = 1 };

template <typename Call>
Status guarded(Call call) {
    try {
        call();
        return OK;
    } catch (const std::bad_alloc&) {
        return OUT_OF_MEMORY;
    }
}

}  // namespace

#define SEEDANCE_EXPORT __attribute__((visibility("default")))

extern "C" {

// The fastest instruction set of this machine.
SEEDANCE_EXPORT const char* seedance_fastest_path() { return seedance::fastest_kernels()->name; }

// Whether the instruction set called `path` was built and runs here.
SEEDANCE_EXPORT int seedance_has_path(const char* path) {
    return seedance::find_kernels(path) != nullptr;
}

// A model without weights yet; null when memory, threads or the path are not to be had.
SEEDANCE_EXPORT void* seedance_create(const ModelShape* shape, const char* path, int threads) {
    const Kernels* kernels = seedance::find_kernels(path);
    if (!kernels) return nullptr;
    try {
        return new Model(*shape, *kernels, threads);
    } catch (const std::bad_alloc&) {
        return nullptr;
    } catch (const std::system_error&) {
        return nullptr;
    }
}

SEEDANCE_EXPORT void seedance_destroy(void* model) { delete static_cast<Model*>(model); }

SEEDANCE_EXPORT int seedance_set_matrix(void* model, int slot, int layer, int bits, int rows,
                                        int columns, const uint8_t* levels,
                                        const uint16_t* scales, const uint16_t* minima,
                                        const float* bias) {
    return guarded([&] {
        static_cast<Model*>(model)->set_matrix(static_cast<Slot>(slot), layer, bits, rows, columns,
                                               levels, scales, minima, bias);
    });
}

SEEDANCE_EXPORT int seedance_set_norm(void* model, int slot, int layer, const float* values) {
    return guarded(
        [&] { static_cast<Model*>(model)->set_norm(static_cast<NormSlot>(slot), layer, values); });
}

SEEDANCE_EXPORT int seedance_set_window(void* model, int layer, int window) {
    return guarded([&] { static_cast<Model*>(model)->set_window(layer, window); });
}

SEEDANCE_EXPORT int seedance_set_frequencies(void* model, const float* values) {
    return guarded([&] { static_cast<Model*>(model)->set_frequencies(values); });
}

SEEDANCE_EXPORT int seedance_step(void* model, const StepInput* input) {
    return guarded([&] { static_cast<Model*>(model)->step(*input); });
}

// Copies a block's keys and values out to `words` [PageShape::block_words], or back in.
SEEDANCE_EXPORT void seedance_copy_block(void* model, int block, uint32_t* words, int out) {
    static_cast<Model*>(model)->copy_block(block, words, out != 0);
}

}  // extern "C"
