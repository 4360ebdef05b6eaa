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

template <int BITS, int PART>
StripKernel strip_kernel(int tokens) {
    static constexpr StripKernel BY_TOKENS[TILE_TOKENS] = {
        strip_times_tokens<BITS, PART, 1>, strip_times_tokens<BITS, PART, 2>,
        strip_times_tokens<BITS, PART, 3>, strip_times_tokens<BITS, PART, 4>,
        strip_times_tokens<BITS, PART, 5>, strip_times_tokens<BITS, PART, 6>,
        strip_times_tokens<BITS, PART, 7>, strip_times_tokens<BITS, PART, 8>,
    };
    return BY_TOKENS[tokens - 1];
}

StripKernel strip_kernel(int bits, int part, int tokens) {
    if (bits == 4)
        return part == FINE ? strip_kernel<4, FINE>(tokens) : strip_kernel<4, COARSE>(tokens);
    return part == FINE ? strip_kernel<8, FINE>(tokens) : strip_kernel<8, COARSE>(tokens);
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
            const StripKernel kernel = strip_kernel(matrix.bits, in.part, count);
            kernel(matrix.strip(strip), in, token, tile);
            for (int t = 0; t < count; t++)
                finish(tile[t], bias, rows, out + (token + t) * out_stride + row, write);
        }
    }
}

}  // namespace
}  // namespace seedance
