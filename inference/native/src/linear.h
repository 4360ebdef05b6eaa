// A product of a packed matrix with quantized activations.
#pragma once

#include "kernels.h"
#include "vector.h"

namespace seedance {
namespace {

// Calls for the block of the next strip that lies beside this one. Several tokens keep a strip long
// enough for the next to arrive; with one or two, memory is all there is to wait for, and the
// processor's own reading ahead is better.
template <int BITS, int TOKENS>
inline void prefetch_next(const uint8_t* block, int groups) {
    if constexpr (TOKENS > 2) {
        const uint8_t* next = block + static_cast<size_t>(groups) * block_bytes(BITS);
        for (int line = 0; line < block_bytes(BITS); line += CACHE_LINE)
            __builtin_prefetch(next + line, 0, SECOND_CACHE);
    }
}

}  // namespace
}  // namespace seedance

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

SEEDANCE_INLINE void finish(const float* sums, const float* bias, int rows, float* out,
                            Write write) {
    for (int row = 0; row < rows; row++) {
        const float value = bias ? sums[row] + bias[row] : sums[row];
        out[row] = write == Write::ADD ? out[row] + value : value;
    }
}

// One strip times all tokens, in tiles as equal as can be: 9 tokens are 5 and 4, not 8 and 1.
void strip_times_all(const Matrix& matrix, int strip, const Activations& in, int tokens,
                     float* out, size_t out_stride, Write write) {
    float tile[TILE_TOKENS][STRIP_ROWS];
    const int row = strip * STRIP_ROWS;
    const int rows = matrix.rows - row < STRIP_ROWS ? matrix.rows - row : STRIP_ROWS;
    const float* bias = matrix.bias ? matrix.bias + row : nullptr;
    int tiles = (tokens + TILE_TOKENS - 1) / TILE_TOKENS;
    for (int token = 0; token < tokens; tiles--) {
        const int count = (tokens - token + tiles - 1) / tiles;
        strip_kernel(matrix.bits, in.part, count)(matrix.strip(strip), in, token, tile);
        for (int t = 0; t < count; t++, token++) {
            float* to = out + token * out_stride + row;
            // A number the compiler knows makes a few instructions of the loop.
            if (rows == STRIP_ROWS) finish(tile[t], bias, STRIP_ROWS, to, write);
            else finish(tile[t], bias, rows, to, write);
        }
    }
}

// Strips outside, tokens inside: a strip is read from memory once and stays in the first cache.
void linear(const Matrix& matrix, int first, int last, const Activations& in, int tokens,
            float* out, size_t out_stride, Write write) {
    for (int strip = first; strip < last; strip++)
        strip_times_all(matrix, strip, in, tokens, out, out_stride, write);
}

}  // namespace
}  // namespace seedance
