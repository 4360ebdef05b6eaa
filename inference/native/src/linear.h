// A product of a packed matrix with quantized activations.
#pragma once

#include "elementwise.h"
#include "kernels.h"
#include "vector.h"

namespace seedance {
namespace {

// Calls for the block of the next strip that lies beside this one. It is done with a strip's first
// tile, when that has several tokens: the strip then lasts long enough for the next to arrive. With
// one or two, memory is all there is to wait for, and the processor's own reading ahead is better.
template <int BITS>
inline void prefetch_next(const uint8_t* block, int groups) {
    const uint8_t* next = block + static_cast<size_t>(groups) * block_bytes(BITS);
    for (int line = 0; line < block_bytes(BITS); line += CACHE_LINE)
        __builtin_prefetch(next + line, 0, SECOND_CACHE);
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

// One strip times a tile: `records` as in layout.h. `ahead`: call for the next strip.
using StripKernel = void (*)(const uint8_t* block, const Record* records, int groups, bool ahead,
                             float (*out)[STRIP_ROWS]);

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

// What is done to a strip's sums: `V` is a vector of them, or one number.
template <typename V>
inline void finish(const float* sums, const float* bias, float* out, Write write) {
    V value = load<V>(sums);
    if (bias) value += load<V>(bias);
    if (write == Write::ADD) value += load<V>(out);
    store(out, value);
}

inline void finish(const float* sums, const float* bias, int rows, float* out, Write write) {
    int row = 0;
    for (; row + LANES <= rows; row += LANES)
        finish<Floats>(sums + row, bias ? bias + row : nullptr, out + row, write);
    for (; row < rows; row++)
        finish<float>(sums + row, bias ? bias + row : nullptr, out + row, write);
}

// Gives `take(token, sums)` the sums of one strip's rows for each token of [first, last). Tokens
// are inside: a strip is read from memory once and stays in the first cache.
template <typename Take>
inline void strip_times_all(const Matrix& matrix, int strip, const Activations& in, int first,
                            int last, Take take) {
    float sums[TILE_TOKENS][STRIP_ROWS];
    for (int token = first; token < last; token += TILE_TOKENS) {
        const int count = last - token < TILE_TOKENS ? last - token : TILE_TOKENS;
        const StripKernel kernel = strip_kernel(matrix.bits, in.part, count);
        kernel(matrix.strip(strip), in.of(token), matrix.groups(), token == first, sums);
        for (int t = 0; t < count; t++) take(token + t, sums[t]);
    }
}

void linear(const Product& product, int strip, int first, int last) {
    const Matrix& matrix = product.matrix;
    const int row = strip * STRIP_ROWS;
    const int rows = matrix.rows - row < STRIP_ROWS ? matrix.rows - row : STRIP_ROWS;
    const float* bias = matrix.bias ? matrix.bias + row : nullptr;
    strip_times_all(matrix, strip, product.in, first, last, [&](int token, const float* sums) {
        finish(sums, bias, rows, product.out + token * product.out_stride + row, product.write);
    });
}

// The strips of a group's gates, then those of its ups:  values[token] = | 32 gates | 32 ups |
void gated_linear(const GatedProduct& product, int group, int first, int last) {
    constexpr int STRIPS = GROUP / STRIP_ROWS;
    float values[TOKENS_TOGETHER][2][GROUP];
    const Matrix& matrix = product.gate_up;
    for (int half = 0; half < 2; half++)
        for (int s = 0; s < STRIPS; s++) {
            const int strip = half * (matrix.strips() / 2) + group * STRIPS + s;
            const float* bias = matrix.bias ? matrix.bias + strip * STRIP_ROWS : nullptr;
            strip_times_all(matrix, strip, product.in, first, last,
                            [&](int token, const float* sums) {
                                float* out = values[token - first][half] + s * STRIP_ROWS;
                                finish(sums, bias, STRIP_ROWS, out, Write::STORE);
                            });
        }
    for (int token = first; token < last; token++) {
        float* gates = values[token - first][0];
        gate(gates, values[token - first][1]);
        quantize_group(gates, product.out, product.out.of(token) + group * TILE_TOKENS);
    }
}

}  // namespace
}  // namespace seedance
