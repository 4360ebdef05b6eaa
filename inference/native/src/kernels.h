// The inner loops of a step, once per instruction set (see kernels.cpp).
#pragma once

#include "layout.h"

namespace seedance {

enum class Write { STORE, ADD };  // what a product does to its output

// A product with a step's tokens: out[token, row].
struct Product {
    const Matrix& matrix;
    Activations in;
    float* out;
    size_t out_stride;  // numbers from a token's to the next one's
    Write write;
};

// A gated MLP's first half (Shazeer 2020), silu(gate) * up, quantized for the second. Rows of
// `gate_up`: all gates, then all ups.
struct GatedProduct {
    const Matrix& gate_up;
    Activations in;
    Activations out;
};

// A few neighbouring tokens' query heads of one key-value head. A token at position p sees the
// positions p - window + 1 .. p, as far as they are not negative.
struct AttentionTask {
    int tokens;
    int heads;                // tokens * heads is at most TILE_QUERIES
    int position;             // of the first token
    int window;
    const uint32_t* queries;  // of the first token: [heads, head_dim / 2] pairs of bf16
    size_t queries_stride;    // words from a token's queries to the next one's
    const uint32_t* pages;    // the whole pool
    PageShape shape;
    int layer;
    int kv_head;
    const int32_t* block_table;
    float* scores;  // scratch: [TILE_QUERIES, scores_stride]
    size_t scores_stride;
    uint32_t* packed;   // scratch: [head_dim / 2, TILE_QUERIES]
    float* out;         // of the first token: [heads, head_dim]
    size_t out_stride;  // numbers from a token's to the next one's
};

struct Kernels {
    const char* name;

    // The outputs of one strip's rows for the tokens [first, last), at most TOKENS_TOGETHER;
    // `first` begins a tile.
    void (*linear)(const Product& product, int strip, int first, int last);

    // The same for one group of `product.out`.
    void (*gated_linear)(const GatedProduct& product, int group, int first, int last);

    // in[columns] -> the records of `token`.
    void (*quantize)(const float* in, const Activations& out, int token);

    // RMSNorm (Zhang & Sennrich 2019) with weight `norm`, then quantize. `scratch`: [columns].
    void (*norm_quantize)(const float* in, const float* norm, float eps, float* scratch,
                          const Activations& out, int token);

    void (*attend)(const AttentionTask& task);

    int (*argmax)(const float* values, int count);  // the lowest index of the largest value

    void (*dequantize_row)(const Matrix& matrix, int row, float* out);
};

// Every instruction set that this machine can run, fastest first; the last is always "portable".
const Kernels* find_kernels(const char* name);  // null: unknown, not built, or no such CPU
const Kernels* fastest_kernels();

}  // namespace seedance
