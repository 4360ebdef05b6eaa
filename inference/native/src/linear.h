// A product of a packed matrix with quantized activations.
#pragma once

#include "kernels.h"

#if defined(__AVX512VNNI__)
#include "linear_avx512.h"
#elif defined(__AVX2__)
#include "linear_avx2.h"
#else
#include "linear_portable.h"
#endif

namespace seedance {
namespace {

using StripKernel = void (*)(const uint8_t*, const Activations&, int, float (*)[STRIP_ROWS]);

template <int BITS>
StripKernel strip_kernel(int tokens) {
    static constexpr StripKernel BY_TOKENS[TILE_TOKENS] = {
        strip_times_tokens<BITS, 1>, strip_times_tokens<BITS, 2>, strip_times_tokens<BITS, 3>,
        strip_times_tokens<BITS, 4>, strip_times_tokens<BITS, 5>, strip_times_tokens<BITS, 6>,
        strip_times_tokens<BITS, 7>, strip_times_tokens<BITS, 8>,
    };
    return BY_TOKENS[tokens - 1];
}

inline void finish(const float* outputs, const float* bias, int rows, float* out, Write write) {
    for (int row = 0; row < rows; row++) {
        const float value = bias ? outputs[row] + bias[row] : outputs[row];
        out[row] = write == Write::ADD ? out[row] + value : value;
    }
}

// Strips outside, tokens inside: a strip is read from memory once and stays in the first cache.
void linear(const Matrix& matrix, int first, int last, const Activations& in, int tokens,
            float* out, size_t out_stride, Write write) {
    float tile[TILE_TOKENS][STRIP_ROWS];
    for (int strip = first; strip < last; strip++) {
        const int row = strip * STRIP_ROWS;
        const int rows = matrix.rows - row < STRIP_ROWS ? matrix.rows - row : STRIP_ROWS;
        const float* bias = matrix.bias ? matrix.bias + row : nullptr;
        for (int token = 0; token < tokens; token += TILE_TOKENS) {
            const int count = tokens - token < TILE_TOKENS ? tokens - token : TILE_TOKENS;
            const StripKernel kernel =
                matrix.bits == 4 ? strip_kernel<4>(count) : strip_kernel<8>(count);
            kernel(matrix.strip(strip), in, token, tile);
            for (int t = 0; t < count; t++)
                finish(tile[t], bias, rows, out + (token + t) * out_stride + row, write);
        }
    }
}

}  // namespace
}  // namespace seedance
