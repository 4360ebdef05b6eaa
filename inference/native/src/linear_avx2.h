// 16 outputs of a few tokens, AVX2: 8 rows at a time, products summed in 16 bits.
//
// `vpmaddubsw` adds two products of an unsigned and a signed byte into 16 bits and saturates. With
// levels of 4 bits nothing can: the 4 quads of a coarse part give at most 4 * 2 * 15 * 127, that is
// 15,240. So 8-bit levels are taken as two planes of 4 bits, and the high plane counts 16 times.
#pragma once

#include "layout.h"
#include "vector.h"

namespace seedance {
namespace {

constexpr int SIDE_ROWS = STRIP_ROWS / 2;
constexpr int SIDE_QUAD_BYTES = QUAD_BYTES / 2;

inline __m256i load_side(const uint8_t* block, int quad, int side) {
    const uint8_t* from = block + quad * QUAD_BYTES + side * SIDE_QUAD_BYTES;
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

inline __m256i low_plane(__m256i bytes) { return _mm256_and_si256(bytes, _mm256_set1_epi8(0x0F)); }
inline __m256i high_plane(__m256i bytes) { return low_plane(_mm256_srli_epi16(bytes, 4)); }

// Planes of 8 quads each: one for 4 bits, low and high for 8 bits.
template <int BITS>
inline void unpack(const uint8_t* block, int side, __m256i (&planes)[BITS / 4][QUADS]) {
    if constexpr (BITS == 8) {
        for (int q = 0; q < QUADS; q++) {
            const __m256i bytes = load_side(block, q, side);
            planes[0][q] = low_plane(bytes);
            planes[1][q] = high_plane(bytes);
        }
    } else {
        for (int q = 0; q < QUADS / 2; q++) {
            const __m256i both = load_side(block, q, side);
            planes[0][q] = low_plane(both);
            planes[0][q + QUADS / 2] = high_plane(both);
        }
    }
}

template <int PART>
inline __m256i dot_plane(const __m256i* quads, const int8_t* x, int16_t weight) {
    __m256i words = _mm256_setzero_si256();
    for (int q = 0; q < PART / QUAD; q++) {
        int32_t quad;
        std::memcpy(&quad, x + q * QUAD, sizeof quad);
        const __m256i products = _mm256_maddubs_epi16(quads[q], _mm256_set1_epi32(quad));
        words = _mm256_add_epi16(words, products);
    }
    return _mm256_madd_epi16(words, _mm256_set1_epi16(weight));
}

// dot(levels_w, levels_x) of the part whose first quad is `quad`.
template <int BITS, int PART>
inline __m256 dot_part(const __m256i (&planes)[BITS / 4][QUADS], int quad, const int8_t* x) {
    __m256i dot = dot_plane<PART>(planes[0] + quad, x, 1);
    if constexpr (BITS == 8)
        dot = _mm256_add_epi32(dot, dot_plane<PART>(planes[1] + quad, x, 16));
    return _mm256_cvtepi32_ps(dot);
}

// The sum over a group's parts of scale_x * dot(levels_w, levels_x).
template <int BITS, int PART>
inline __m256 dot_group(const __m256i (&planes)[BITS / 4][QUADS], const int8_t* x,
                        const float* scales) {
    __m256 total = _mm256_mul_ps(dot_part<BITS, PART>(planes, 0, x), _mm256_set1_ps(scales[0]));
#pragma GCC unroll 3
    for (int p = 1; p < GROUP / PART; p++) {
        const __m256 dot = dot_part<BITS, PART>(planes, p * PART / QUAD, x + p * PART);
        total = _mm256_fmadd_ps(dot, _mm256_set1_ps(scales[p]), total);
    }
    return total;
}

inline __m256 load_factors(const uint8_t* from, int side) {
    const uint8_t* at = from + side * SIDE_ROWS * 2;
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
}

template <int BITS, int PART, int TOKENS>
void side_times_tokens(const uint8_t* block, int side, const Record* records, int groups,
                       bool ahead, float (*out)[STRIP_ROWS]) {
    __m256 totals[TOKENS];
#pragma GCC unroll 8
    for (int t = 0; t < TOKENS; t++) totals[t] = _mm256_setzero_ps();
    for (int g = 0; g < groups; g++, block += block_bytes(BITS), records += TILE_TOKENS) {
        if (TOKENS > 2 && ahead) prefetch_next<BITS>(block, groups);
        __m256i planes[BITS / 4][QUADS];
        unpack<BITS>(block, side, planes);
        const __m256 scale = load_factors(block + level_bytes(BITS), side);
        const __m256 minimum = load_factors(block + level_bytes(BITS) + FACTOR_BYTES, side);
#pragma GCC unroll 8  // or the totals live in memory instead of registers
        for (int t = 0; t < TOKENS; t++) {
            const __m256 dot = dot_group<BITS, PART>(planes, records[t].levels, records[t].scales);
            totals[t] = _mm256_fmadd_ps(dot, scale, totals[t]);
            totals[t] = _mm256_fmadd_ps(minimum, _mm256_set1_ps(records[t].sum), totals[t]);
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < TOKENS; t++) _mm256_storeu_ps(out[t] + side * SIDE_ROWS, totals[t]);
}

// A token's result takes the same operations in the same order whatever TOKENS is.
template <int BITS, int PART, int TOKENS>
void strip_times_tokens(const uint8_t* block, const Record* records, int groups, bool ahead,
                        float (*out)[STRIP_ROWS]) {
    side_times_tokens<BITS, PART, TOKENS>(block, 0, records, groups, ahead, out);
    side_times_tokens<BITS, PART, TOKENS>(block, 1, records, groups, false, out);
}

}  // namespace
}  // namespace seedance
