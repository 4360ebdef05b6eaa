// What is done to one token's vector between products.
#pragma once

#include "kernels.h"
#include "vector.h"

namespace seedance {
namespace {

constexpr float LEVEL_MAX = 127.0f;

// One part: its levels and scale. Returns its values, lanes that fall on each other added up.
template <int PART>
inline typename Short<PART>::Floats quantize_part(const float* in, int8_t* levels, float* scale) {
    using V = typename Short<PART>::Floats;
    constexpr int WIDTH = Short<PART>::WIDTH;
    V largest = {};
    for (int i = 0; i < PART; i += WIDTH) {
        const V x = load<V>(in + i);
        largest = larger(largest, larger(x, -x));
    }
    const float peak = largest_of(largest);
    const float inverse = peak > 0.0f ? LEVEL_MAX / peak : 0.0f;
    V total = {};
    for (int i = 0; i < PART; i += WIDTH) {
        const V shifted = load<V>(in + i) * inverse + ROUNDER;
        const auto level = bits_as<typename Short<PART>::Ints>(shifted) - ROUNDER_BITS;
        store(levels + i, __builtin_convertvector(level, typename Short<PART>::Bytes));
        total += shifted - ROUNDER;
    }
    *scale = peak * (1.0f / LEVEL_MAX);
    return total * *scale;
}

template <int PART>
inline void quantize_parts(const float* in, Record* record) {
    typename Short<PART>::Floats values = {};
    for (int p = 0; p < GROUP / PART; p++)
        values += quantize_part<PART>(in + p * PART, record->levels + p * PART, record->scales + p);
    record->sum = sum_of(values);
}

inline void quantize_group(const float* in, const Activations& out, Record* record) {
    if (out.part == FINE) quantize_parts<FINE>(in, record);
    else quantize_parts<COARSE>(in, record);
}

void quantize(const float* in, const Activations& out, int token) {
    Record* record = out.of(token);
    for (int g = 0; g < out.groups(); g++, in += GROUP, record += TILE_TOKENS)
        quantize_group(in, out, record);
}

void norm_quantize(const float* in, const float* norm, float eps, float* scratch,
                   const Activations& out, int token) {
    Floats squares = all(0.0f);
    for (int i = 0; i < out.columns; i += LANES) {
        const Floats x = load<Floats>(in + i);
        squares += x * x;
    }
    const float mean = sum_of(squares) / static_cast<float>(out.columns);
    const float factor = 1.0f / __builtin_sqrtf(mean + eps);
    for (int i = 0; i < out.columns; i += LANES)
        store(scratch + i, load<Floats>(in + i) * factor * load<Floats>(norm + i));
    quantize(scratch, out, token);
}

// A group's gates become silu(gate) * up.
inline void gate(float* gates, const float* ups) {
    for (int i = 0; i < GROUP; i += LANES) {
        const Floats gate = load<Floats>(gates + i);
        store(gates + i, gate / (exp_of(-gate) + 1.0f) * load<Floats>(ups + i));
    }
}

int argmax(const float* values, int count) {
    Floats largest = all(-__builtin_inff());
    int i = 0;
    for (; i + LANES <= count; i += LANES) largest = larger(largest, load<Floats>(values + i));
    float peak = largest_of(largest);
    for (; i < count; i++) peak = values[i] > peak ? values[i] : peak;
    int index = 0;
    while (index < count - 1 && values[index] != peak) index++;
    return index;
}

void dequantize_row(const Matrix& matrix, int row, float* out) {
    const int inside = row % STRIP_ROWS;
    const uint8_t* block = matrix.strip(row / STRIP_ROWS);
    const int size = block_bytes(matrix.bits), levels = level_bytes(matrix.bits);
    for (int g = 0; g < matrix.groups(); g++, block += size) {
        uint16_t scale, minimum;
        std::memcpy(&scale, block + levels + inside * 2, sizeof scale);
        std::memcpy(&minimum, block + levels + FACTOR_BYTES + inside * 2, sizeof minimum);
        for (int i = 0; i < GROUP; i++) {
            const int quad = i / QUAD, at = inside * QUAD + i % QUAD;
            const int half = QUADS / 2;
            int level = block[(matrix.bits == 8 ? quad : quad % half) * QUAD_BYTES + at];
            if (matrix.bits == 4) level = quad < half ? level & 0x0F : level >> 4;
            out[g * GROUP + i] = from_fp16(scale) * static_cast<float>(level) + from_fp16(minimum);
        }
    }
}

}  // namespace
}  // namespace seedance
