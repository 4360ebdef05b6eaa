// 16 outputs of a few tokens in plain C++: what the other versions are checked against.
#pragma once

#include "layout.h"
#include "vector.h"

namespace seedance {
namespace {

template <int BITS>
inline int level_at(const uint8_t* block, int row, int quad, int column) {
    const int inside = row * QUAD + column;
    if constexpr (BITS == 8) return block[quad * QUAD_BYTES + inside];
    const int shared = block[quad % (QUADS / 2) * QUAD_BYTES + inside];
    return quad < QUADS / 2 ? shared & 0x0F : shared >> 4;
}

inline float factor_at(const uint8_t* factors, int row) {
    uint16_t half;
    std::memcpy(&half, factors + row * 2, sizeof half);
    return from_fp16(half);
}

template <int BITS>
inline float dot_half(const uint8_t* block, int row, int half, const int8_t* x) {
    int dot = 0;
    for (int q = half * HALF_QUADS; q < (half + 1) * HALF_QUADS; q++)
        for (int c = 0; c < QUAD; c++) dot += level_at<BITS>(block, row, q, c) * x[q * QUAD + c];
    return static_cast<float>(dot);
}

template <int BITS, int TOKENS>
void strip_times_tokens(const uint8_t* block, const Activations& in, int token,
                        float (*out)[STRIP_ROWS]) {
    std::memset(out, 0, sizeof(float) * TOKENS * STRIP_ROWS);
    for (int g = 0; g < in.groups(); g++, block += block_bytes(BITS)) {
        const uint8_t* weight_scales = block + level_bytes(BITS);
        const uint8_t* minima = weight_scales + FACTOR_BYTES;
        for (int row = 0; row < STRIP_ROWS; row++) {
            const float scale = factor_at(weight_scales, row), minimum = factor_at(minima, row);
            for (int t = 0; t < TOKENS; t++) {
                const int8_t* x = in.levels_of(token + t) + g * GROUP;
                const float* scales = in.scales_of(token + t) + g * HALVES;
                const float first = dot_half<BITS>(block, row, 0, x) * scales[0];
                const float last = dot_half<BITS>(block, row, 1, x) * scales[1];
                out[t][row] += (first + last) * scale;
                out[t][row] += minimum * in.sums_of(token + t)[g];
            }
        }
    }
}

}  // namespace
}  // namespace seedance
