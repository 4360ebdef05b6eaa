// Short vectors in the compiler's own notation, as wide as the instruction set compiled for.
//
// This header is compiled several times with different CPU flags into one library. Everything in
// it has internal linkage: otherwise the linker would keep one body for all, and the portable
// path could run AVX-512 instructions.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace seedance {
namespace {

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX2__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef uint32_t Words __attribute__((vector_size(4 * LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));

// As wide as `COUNT` numbers, or as the widest registers.
template <int COUNT>
struct Short {
    static constexpr int WIDTH = LANES < COUNT ? LANES : COUNT;
    typedef float Floats __attribute__((vector_size(4 * WIDTH)));
    typedef int32_t Ints __attribute__((vector_size(4 * WIDTH)));
    typedef int8_t Bytes __attribute__((vector_size(WIDTH)));
};

constexpr int SECOND_CACHE = 2;  // where __builtin_prefetch brings a line

// Added to a float below 2^22 and taken away again, this rounds it to an integer, which then
// stands in the low bits of the sum.
constexpr float ROUNDER = 12582912.0f;  // 1.5 * 2^23
constexpr int32_t ROUNDER_BITS = 0x4B400000;

template <typename V, typename T>
inline V load(const T* from) {
    V value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

template <typename V, typename T>
inline void store(T* to, V value) {
    std::memcpy(to, &value, sizeof value);
}

template <typename To, typename From>
inline To bits_as(From value) {
    static_assert(sizeof(To) == sizeof(From), "same bits");
    To result;
    std::memcpy(&result, &value, sizeof result);
    return result;
}

inline Floats all(float value) { return Floats{} + value; }
inline Words all(uint32_t value) { return Words{} + value; }

template <typename V>
inline V larger(V a, V b) {
    return a > b ? a : b;
}
template <typename V>
inline V smaller(V a, V b) {
    return a < b ? a : b;
}

// Reductions halve the vector until one lane is left: the same order on every call. With AVX the
// halves are taken from registers, because a store and shorter loads would wait for each other.
#if defined(__AVX2__)
template <typename Join>
inline float reduce_register(__m128 four, Join join) {
    const __m128 two = join(four, _mm_movehl_ps(four, four));
    return join(two, _mm_shuffle_ps(two, two, 1))[0];
}

template <typename Join>
inline float reduce_register(__m256 eight, Join join) {
    const __m128 low = _mm256_castps256_ps128(eight), high = _mm256_extractf128_ps(eight, 1);
    return reduce_register(join(low, high), join);
}
#endif
#if defined(__AVX512F__)
template <typename Join>
inline float reduce_register(__m512 all, Join join) {
    const __m256 low = _mm512_castps512_ps256(all), high = _mm512_extractf32x8_ps(all, 1);
    return reduce_register(join(low, high), join);
}
#endif

template <typename V, typename Join>
inline float reduce(V value, Join join) {
#if defined(__AVX512F__)
    if constexpr (sizeof(V) == 64) return reduce_register((__m512)value, join);
#endif
#if defined(__AVX2__)
    if constexpr (sizeof(V) == 32) return reduce_register((__m256)value, join);
#endif
    constexpr int WIDTH = sizeof(V) / sizeof(float);
    float lanes[WIDTH];
    store(lanes, value);
    for (int width = WIDTH / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++) lanes[i] = join(lanes[i], lanes[i + width]);
    return lanes[0];
}

template <typename V>
inline float sum_of(V value) {
    return reduce(value, [](auto a, auto b) { return a + b; });
}

template <typename V>
inline float largest_of(V value) {
    return reduce(value, [](auto a, auto b) { return a > b ? a : b; });
}

// fp16 to fp32: moved into place, exponents differ by 112. Subnormal halves come out right too.
inline Floats from_fp16(const uint8_t* from) {
    const Words bits = __builtin_convertvector(load<Halves>(from), Words);
    const Floats absolute = bits_as<Floats>((bits & 0x7FFFu) << 13) * 0x1p112f;
    return bits_as<Floats>(bits_as<Words>(absolute) | ((bits & 0x8000u) << 16));
}

inline float from_fp16(uint16_t half) {
    const uint32_t magnitude_bits = (half & 0x7FFFu) << 13;
    const float absolute = bits_as<float>(magnitude_bits) * 0x1p112f;
    return half & 0x8000u ? -absolute : absolute;
}

// fp32 to bf16, to nearest even; the result stands in the low half of each word.
inline Words to_bf16(Floats value) {
    const Words bits = bits_as<Words>(value);
    return (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
}

inline Floats low_bf16(Words pair) { return bits_as<Floats>(pair << 16); }
inline Floats high_bf16(Words pair) { return bits_as<Floats>(pair & 0xFFFF0000u); }

// sum + low(a) * low(b) + high(a) * high(b)
inline Floats dot_bf16(Floats sum, Words a, Words b) {
#if defined(__AVX512BF16__)
    return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#else
    sum += low_bf16(a) * low_bf16(b);
    return sum + high_bf16(a) * high_bf16(b);
#endif
}

// e^x with a relative error below 2e-7: x = n ln 2 + r, a polynomial for e^r, n into the exponent.
inline Floats exp_of(Floats x) {
    constexpr float LOG2_E = 1.44269504f, LN2_HIGH = 0.693359375f, LN2_LOW = -2.12194440e-4f;
    x = smaller(larger(x, all(-87.0f)), all(88.0f));
    const Floats shifted = x * LOG2_E + ROUNDER;
    const Floats n = shifted - ROUNDER;
    const Floats r = x - n * LN2_HIGH - n * LN2_LOW;
    Floats p = r * 1.9875691e-4f + 1.3981999e-3f;
    p = p * r + 8.3334519e-3f;
    p = p * r + 4.1665796e-2f;
    p = p * r + 1.6666666e-1f;
    p = p * r + 5.0000001e-1f;
    p = p * r * r + r + 1.0f;
    const Words exponent = (bits_as<Words>(shifted) + 127u) << 23;
    return p * bits_as<Floats>(exponent);
}

}  // namespace
}  // namespace seedance
