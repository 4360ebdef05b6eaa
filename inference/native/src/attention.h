// Attention of one token over paged keys and values.
//
// Three passes over the positions 0 .. length-1: scores, softmax, weighted values. What a token
// reads depends on its own position alone, never on the step's other tokens.
#pragma once

#include "kernels.h"
#include "vector.h"

namespace seedance {
namespace {

constexpr int VALUE_VECTORS = 4;  // of a head's dims, summed in registers at once

inline const uint32_t* page_of(const AttentionTask& task, int index) {
    return task.pages + task.shape.page(task.block_table[index], task.layer, task.kv_head);
}

// Scores of 16 neighbouring keys: each lane sums one key, pair of dims by pair of dims. The page's
// values, `values` words behind its keys, are called for meanwhile.
template <int QUERIES>
inline void score_keys(const uint32_t* keys, const uint32_t* queries, int pairs, float* scores,
                       size_t stride, size_t values) {
    constexpr int VECTORS = KEY_LANES / LANES;
    Floats sums[QUERIES][VECTORS] = {};
    for (int pair = 0; pair < pairs; pair++)
        for (int v = 0; v < VECTORS; v++) {
            const uint32_t* words = keys + pair * KEY_LANES + v * LANES;
            __builtin_prefetch(words + values, 0, SECOND_CACHE);
            const Words key = load<Words>(words);
            for (int q = 0; q < QUERIES; q++)
                sums[q][v] = dot_bf16(sums[q][v], key, all(queries[q * pairs + pair]));
        }
    for (int q = 0; q < QUERIES; q++)
        for (int v = 0; v < VECTORS; v++) store(scores + q * stride + v * LANES, sums[q][v]);
}

template <int QUERIES>
void score_pages(const AttentionTask& task) {
    const int block_size = task.shape.block_size, pairs = task.shape.head_dim / 2;
    const size_t values = task.shape.half_words();
    for (int start = 0; start < task.length; start += block_size) {
        const uint32_t* page = page_of(task, start / block_size);
        for (int slot = 0; slot < block_size && start + slot < task.length; slot += KEY_LANES)
            score_keys<QUERIES>(page + task.shape.key_word(slot, 0), task.queries, pairs,
                                task.scores + start + slot, task.scores_stride, values);
    }
}

// Scores become weights in bf16, in place, not yet divided by their sum, which is returned. The
// sum is taken of what was rounded, so that the weights that are used add up to one.
//
//   scores   | s0 | s1 | ...            fp32
//   weights  | w0 w1 | w2 w3 | ...      pairs of bf16, behind which the reading never falls
float softmax(float* scores, int length, float scale) {
    const int end = (length + LANES - 1) / LANES * LANES;
    for (int i = length; i < end; i++) scores[i] = -__builtin_inff();
    Floats largest = all(-__builtin_inff());
    for (int i = 0; i < end; i += LANES) largest = larger(largest, load<Floats>(scores + i));
    const float peak = largest_of(largest);
    uint16_t* weights = reinterpret_cast<uint16_t*>(scores);
    Floats total = all(0.0f);
    for (int i = 0; i < end; i += LANES) {
        const Floats weight = exp_of((load<Floats>(scores + i) - peak) * scale);
        // Keys past the end score minus infinity, and exp_of clamps: they must weigh exactly zero.
        const Words seen = bits_as<Words>(load<Floats>(scores + i) > -__builtin_inff());
        const Words rounded = to_bf16(weight) & seen;
        total += low_bf16(rounded);
        store(weights + i, __builtin_convertvector(rounded, Halves));
    }
    return sum_of(total);
}

// Weighted values of `VECTORS` vectors of dims from `dim` on, summed over all pairs of keys.
template <int QUERIES, int VECTORS>
void sum_values(const AttentionTask& task, int dim, const float* inverses) {
    const PageShape& shape = task.shape;
    Floats sums[QUERIES][VECTORS] = {};
    for (int start = 0; start < task.length; start += shape.block_size) {
        const uint32_t* values = page_of(task, start / shape.block_size) + shape.value_word(0, dim);
        for (int slot = 0; slot < shape.block_size && start + slot < task.length; slot += 2) {
            Words pair[VECTORS];
            for (int v = 0; v < VECTORS; v++) pair[v] = load<Words>(values + v * LANES);
            values += shape.head_dim;
            for (int q = 0; q < QUERIES; q++) {
                const float* weights = task.scores + q * task.scores_stride + (start + slot) / 2;
                const Words weight = all(load<uint32_t>(weights));
                for (int v = 0; v < VECTORS; v++)
                    sums[q][v] = dot_bf16(sums[q][v], pair[v], weight);
            }
        }
    }
    for (int q = 0; q < QUERIES; q++)
        for (int v = 0; v < VECTORS; v++)
            store(task.out + q * shape.head_dim + dim + v * LANES, sums[q][v] * inverses[q]);
}

template <int QUERIES>
void attend_queries(const AttentionTask& task) {
    const int head_dim = task.shape.head_dim;
    score_pages<QUERIES>(task);
    const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(head_dim));
    float inverses[QUERIES];
    for (int q = 0; q < QUERIES; q++)
        inverses[q] = 1.0f / softmax(task.scores + q * task.scores_stride, task.length, scale);
    constexpr int STEP = VALUE_VECTORS * LANES;
    int dim = 0;
    for (; dim + STEP <= head_dim; dim += STEP)
        sum_values<QUERIES, VALUE_VECTORS>(task, dim, inverses);
    for (; dim < head_dim; dim += LANES) sum_values<QUERIES, 1>(task, dim, inverses);
}

void attend(const AttentionTask& task) {
    static constexpr void (*BY_HEADS[TILE_QUERIES])(const AttentionTask&) = {
        attend_queries<1>, attend_queries<2>, attend_queries<3>,
        attend_queries<4>, attend_queries<5>, attend_queries<6>,
    };
    BY_HEADS[task.heads - 1](task);
}

}  // namespace
}  // namespace seedance
