// 16 outputs of a few tokens, AVX-512 with VNNI: one instruction multiplies a quad.
#pragma once

#include "layout.h"
#include "vector.h"

namespace seedance {
namespace {

template <int BITS>
inline void unpack(const uint8_t* block, __m512i (&quads)[QUADS]) {
    if constexpr (BITS == 8) {
        for (int q = 0; q < QUADS; q++) quads[q] = _mm512_loadu_si512(block + q * QUAD_BYTES);
    } else {
        const __m512i low = _mm512_set1_epi8(0x0F);
        for (int q = 0; q < QUADS / 2; q++) {
            const __m512i both = _mm512_loadu_si512(block + q * QUAD_BYTES);
            quads[q] = _mm512_and_si512(both, low);
            quads[q + QUADS / 2] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
        }
    }
}

inline __m512 load_factors(const uint8_t* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

// dot(levels_w, levels_x) of one part.
template <int PART>
inline __m512 dot_part(const __m512i* quads, const int8_t* x) {
    __m512i dot = _mm512_setzero_si512();
    for (int q = 0; q < PART / QUAD; q++) {
        int32_t quad;
        std::memcpy(&quad, x + q * QUAD, sizeof quad);
        dot = _mm512_dpbusd_epi32(dot, quads[q], _mm512_set1_epi32(quad));
    }
    return _mm512_cvtepi32_ps(dot);
}

// The sum over a group's parts of scale_x * dot(levels_w, levels_x).
template <int PART>
inline __m512 dot_group(const __m512i* quads, const int8_t* x, const float* scales) {
    __m512 total = _mm512_mul_ps(dot_part<PART>(quads, x), _mm512_set1_ps(scales[0]));
#pragma GCC unroll 3
    for (int p = 1; p < GROUP / PART; p++) {
        const __m512 dot = dot_part<PART>(quads + p * PART / QUAD, x + p * PART);
        total = _mm512_fmadd_ps(dot, _mm512_set1_ps(scales[p]), total);
    }
    return total;
}

// A token's result takes the same operations in the same order whatever TOKENS is.
template <int BITS, int PART, int TOKENS>
void strip_times_tokens(const uint8_t* block, const Record* records, int groups, bool ahead,
                        float (*out)[STRIP_ROWS]) {
    __m512 totals[TOKENS];
#pragma GCC unroll 8
    for (int t = 0; t < TOKENS; t++) totals[t] = _mm512_setzero_ps();
    for (int g = 0; g < groups; g++, block += block_bytes(BITS), records += TILE_TOKENS) {
        if (TOKENS > 2 && ahead) prefetch_next<BITS>(block, groups);
        __m512i quads[QUADS];
        unpack<BITS>(block, quads);
        const __m512 scale = load_factors(block + level_bytes(BITS));
        const __m512 minimum = load_factors(block + level_bytes(BITS) + FACTOR_BYTES);
#pragma GCC unroll 8  // or the totals live in memory instead of registers
        for (int t = 0; t < TOKENS; t++) {
            const __m512 dot = dot_group<PART>(quads, records[t].levels, records[t].scales);
            totals[t] = _mm512_fmadd_ps(dot, scale, totals[t]);
            totals[t] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(records[t].sum), totals[t]);
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < TOKENS; t++) _mm512_storeu_ps(out[t], totals[t]);
}

}  // namespace
}  // namespace seedance
