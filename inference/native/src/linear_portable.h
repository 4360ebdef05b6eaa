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

// The sum over a group's parts of scale_x * dot(levels_w, levels_x).
template <int BITS, int PART>
inline float dot_group(const uint8_t* block, int row, const int8_t* x, const float* scales) {
    float total = 0.0f;
    for (int p = 0; p < GROUP / PART; p++) {
        int dot = 0;
        for (int i = p * PART; i < (p + 1) * PART; i++)
            dot += level_at<BITS>(block, row, i / QUAD, i % QUAD) * x[i];
        total += static_cast<float>(dot) * scales[p];
    }
    return total;
}

template <int BITS, int PART, int TOKENS>
void strip_times_tokens(const uint8_t* block, const Record* records, int groups, bool,
                        float (*out)[STRIP_ROWS]) {
    std::memset(out, 0, sizeof(float) * TOKENS * STRIP_ROWS);
    for (int g = 0; g < groups; g++, block += block_bytes(BITS), records += TILE_TOKENS) {
        const uint8_t* scales = block + level_bytes(BITS);
        const uint8_t* minima = scales + FACTOR_BYTES;
        for (int row = 0; row < STRIP_ROWS; row++) {
            const float scale = factor_at(scales, row), minimum = factor_at(minima, row);
            for (int t = 0; t < TOKENS; t++) {
                const Record& record = records[t];
                out[t][row] +=
                    dot_group<BITS, PART>(block, row, record.levels, record.scales) * scale;
                out[t][row] += minimum * record.sum;
            }
        }
    }
}

}  // namespace
}  // namespace seedance
