// Attention of a few neighbouring tokens of one sequence over its paged keys and values.
//
// Three passes over the positions that any of them sees: scores, softmax, weighted values. Each
// pair of a token and a head is a *query*, and all queries share what is loaded of keys and values.
// A query's numbers do not depend on its company: what it does not see weighs zero, and a zero
// added anywhere leaves a sum as it is.
//
//   positions      begin ....................... end      begin: a multiple of KEY_LANES
//   first query         |first .......... last|
//   last query             |first ........... last|
#pragma once

#include "kernels.h"
#include "vector.h"

namespace seedance {
namespace {

// Registers that hold sums: three quarters leave room for what is multiplied.
constexpr int SUM_REGISTERS = LANES == 16 ? 24 : 12;

// Vectors of a head's dims that fit into registers for so many queries.
constexpr int value_vectors(int queries) {
    return queries * 4 <= SUM_REGISTERS ? 4 : queries * 2 <= SUM_REGISTERS ? 2 : 1;
}

struct Span {
    int begin;
    int end;
};

// What any of the tokens sees; nothing before `begin` is read, for its block may be another's now.
inline Span seen_by_all(const AttentionTask& task) {
    const int first = task.position + 1 - task.window;
    return {first > 0 ? first / KEY_LANES * KEY_LANES : 0, task.position + task.tokens};
}

inline Span seen_by(const AttentionTask& task, int query) {
    const int end = task.position + query / task.heads + 1;
    const int first = end - task.window;
    return {first > 0 ? first : 0, end};
}

// Calls `visit(page, slot, last, index)` for each page of a span: its slots slot .. last - 1, of
// which the first stands at `index` in the span.
template <typename Visit>
inline void each_page(const AttentionTask& task, Span span, Visit visit) {
    const int block_size = task.shape.block_size;
    for (int at = span.begin; at < span.end;) {
        const int block = at / block_size, slot = at % block_size;
        const int left = span.end - block * block_size;
        const int last = left < block_size ? left : block_size;
        const int32_t id = task.block_table[block];
        visit(task.pages + task.shape.page(id, task.layer, task.kv_head), slot, last,
              at - span.begin);
        at += last - slot;
    }
}

// [pair][query], so that one address serves all queries.
template <int QUERIES>
void pack_queries(const AttentionTask& task) {
    const int pairs = task.shape.head_dim / 2;
    for (int q = 0; q < QUERIES; q++) {
        const uint32_t* from =
            task.queries + q / task.heads * task.queries_stride + q % task.heads * pairs;
        for (int pair = 0; pair < pairs; pair++) task.packed[pair * QUERIES + q] = from[pair];
    }
}

// Scores of `VECTORS` vectors of neighbouring keys: each lane sums one key, pair of dims by pair of
// dims. The page's values, `values` words behind its keys, are called for meanwhile.
template <int QUERIES, int VECTORS>
inline void score_keys(const uint32_t* keys, const AttentionTask& task, size_t values,
                       float* scores) {
    const int pairs = task.shape.head_dim / 2;
    const uint32_t* queries = task.packed;
    Floats sums[QUERIES][VECTORS] = {};
    for (int pair = 0; pair < pairs; pair++, keys += KEY_LANES, queries += QUERIES) {
        __builtin_prefetch(keys + values, 0, SECOND_CACHE);
        for (int v = 0; v < VECTORS; v++) {
            const Words key = load<Words>(keys + v * LANES);
            for (int q = 0; q < QUERIES; q++)
                sums[q][v] = dot_bf16(sums[q][v], key, all(queries[q]));
        }
    }
    for (int q = 0; q < QUERIES; q++)
        for (int v = 0; v < VECTORS; v++)
            store(scores + q * task.scores_stride + v * LANES, sums[q][v]);
}

template <int QUERIES>
void score_pages(const AttentionTask& task, Span span) {
    constexpr int ALL = KEY_LANES / LANES;
    constexpr int VECTORS = QUERIES * ALL <= SUM_REGISTERS ? ALL : 1;
    const size_t values = task.shape.half_words();
    each_page(task, span, [&](const uint32_t* page, int slot, int last, int index) {
        for (; slot < last; slot += KEY_LANES, index += KEY_LANES)
            for (int lane = 0; lane < KEY_LANES; lane += VECTORS * LANES)
                score_keys<QUERIES, VECTORS>(page + task.shape.key_word(slot, 0) + lane, task,
                                             values, task.scores + index + lane);
    });
}

// Scores become weights in bf16, in place, not yet divided by their sum, which is returned. The
// sum is taken of what was rounded, so that the weights that are used add up to one. `seen` are
// the places of `scores` [count] that weigh anything.
//
//   scores   | s0 | s1 | ...            fp32
//   weights  | w0 w1 | w2 w3 | ...      pairs of bf16, behind which the reading never falls
float softmax(float* scores, int count, Span seen, float scale) {
    const int end = (count + LANES - 1) / LANES * LANES;
    for (int i = 0; i < seen.begin; i++) scores[i] = -__builtin_inff();
    for (int i = seen.end; i < end; i++) scores[i] = -__builtin_inff();
    Floats largest = all(-__builtin_inff());
    for (int i = 0; i < end; i += LANES) largest = larger(largest, load<Floats>(scores + i));
    const float peak = largest_of(largest);
    uint16_t* weights = reinterpret_cast<uint16_t*>(scores);
    Floats total = all(0.0f);
    for (int i = 0; i < end; i += LANES) {
        const Floats score = load<Floats>(scores + i);
        const Floats weight = exp_of((score - peak) * scale);
        // Keys that are not seen score minus infinity, and exp_of clamps: they must weigh zero.
        const Words rounded = to_bf16(weight) & bits_as<Words>(score > -__builtin_inff());
        total += low_bf16(rounded);
        store(weights + i, __builtin_convertvector(rounded, Halves));
    }
    return sum_of(total);
}

// Weighted values of `VECTORS` vectors of dims from `dim` on, summed over all pairs of keys.
template <int QUERIES, int VECTORS>
void sum_values(const AttentionTask& task, Span span, int dim, const float* inverses) {
    const PageShape& shape = task.shape;
    Floats sums[QUERIES][VECTORS] = {};
    each_page(task, span, [&](const uint32_t* page, int slot, int last, int index) {
        const uint32_t* values = page + shape.value_word(slot, dim);
        for (; slot < last; slot += 2, index += 2, values += shape.head_dim) {
            Words pair[VECTORS];
            for (int v = 0; v < VECTORS; v++) pair[v] = load<Words>(values + v * LANES);
            for (int q = 0; q < QUERIES; q++) {
                const float* weights = task.scores + q * task.scores_stride + index / 2;
                const Words weight = all(load<uint32_t>(weights));
                for (int v = 0; v < VECTORS; v++)
                    sums[q][v] = dot_bf16(sums[q][v], pair[v], weight);
            }
        }
    });
    for (int q = 0; q < QUERIES; q++) {
        float* out = task.out + q / task.heads * task.out_stride +
                     static_cast<size_t>(q % task.heads) * shape.head_dim + dim;
        for (int v = 0; v < VECTORS; v++) store(out + v * LANES, sums[q][v] * inverses[q]);
    }
}

template <int QUERIES>
void attend_queries(const AttentionTask& task) {
    const int head_dim = task.shape.head_dim;
    const Span span = seen_by_all(task);
    pack_queries<QUERIES>(task);
    score_pages<QUERIES>(task, span);
    const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(head_dim));
    float inverses[QUERIES];
    for (int q = 0; q < QUERIES; q++) {
        const Span seen = seen_by(task, q);
        inverses[q] = 1.0f / softmax(task.scores + q * task.scores_stride, span.end - span.begin,
                                     {seen.begin - span.begin, seen.end - span.begin}, scale);
    }
    constexpr int VECTORS = value_vectors(QUERIES);
    int dim = 0;
    for (; dim + VECTORS * LANES <= head_dim; dim += VECTORS * LANES)
        sum_values<QUERIES, VECTORS>(task, span, dim, inverses);
    for (; dim < head_dim; dim += LANES) sum_values<QUERIES, 1>(task, span, dim, inverses);
}

void attend(const AttentionTask& task) {
    static constexpr void (*BY_QUERIES[TILE_QUERIES])(const AttentionTask&) = {
        attend_queries<1>, attend_queries<2>, attend_queries<3>, attend_queries<4>,
        attend_queries<5>, attend_queries<6>, attend_queries<7>, attend_queries<8>,
    };
    BY_QUERIES[task.tokens * task.heads - 1](task);
}

}  // namespace
}  // namespace seedance
