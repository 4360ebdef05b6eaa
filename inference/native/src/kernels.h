// The inner loops of a step, once per instruction set (see kernels.cpp).
#pragma once

#include "layout.h"

namespace seedance {

enum class Write { STORE, ADD };  // what a product does to its output

// One token's query heads of one key-value head, over the positions 0 .. length-1.
struct AttentionTask {
    const uint32_t* queries;  // [heads, head_dim / 2] pairs of bf16
    int heads;
    const uint32_t* pages;  // the whole pool
    PageShape shape;
    int layer;
    int kv_head;
    const int32_t* block_table;
    int length;
    float* scores;  // scratch: [TILE_QUERIES, scores_stride]
    size_t scores_stride;
    float* out;  // [heads, head_dim]
};

struct Kernels {
    const char* name;

    // outputs[token, 16 * strip ...] of the strips [first, last), for all `tokens`.
    void (*linear)(const Matrix& matrix, int first, int last, const Activations& in, int tokens,
                   float* out, size_t out_stride, Write write);

    // in[columns] -> levels, scales and sums of `token`.
    void (*quantize)(const float* in, const Activations& out, int token);

    // RMSNorm (Zhang & Sennrich 2019) with weight `norm`, then quantize. `scratch`: [columns].
    void (*norm_quantize)(const float* in, const float* norm, float eps, float* scratch,
                          const Activations& out, int token);

    // silu(gate) * up (Shazeer 2020), then quantize. `in`: gate and up, `columns` each.
    void (*swiglu_quantize)(const float* in, float* scratch, const Activations& out, int token);

    void (*attend)(const AttentionTask& task);

    int (*argmax)(const float* values, int count);  // the lowest index of the largest value

    void (*dequantize_row)(const Matrix& matrix, int row, float* out);
};

// Every instruction set that this machine can run, fastest first; the last is always "portable".
const Kernels* find_kernels(const char* name);  // null: unknown, not built, or no such CPU
const Kernels* fastest_kernels();

}  // namespace seedance
