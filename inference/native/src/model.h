// A decoder-only transformer's weights, its cache of keys and values, and one step of it.
#pragma once

#include <memory>
#include <vector>

#include "kernels.h"
#include "memory.h"
#include "thread_pool.h"

namespace seedance {

// Mirrored by library.py.
struct ModelShape {
    int32_t layers;
    int32_t hidden;
    int32_t mlp;
    int32_t heads;
    int32_t kv_heads;
    int32_t head_dim;
    int32_t vocab;
    int32_t block_size;
    int32_t blocks;
    int32_t context;
    float norm_eps;
    int32_t tied_head;

    int query_size() const { return heads * head_dim; }
    int kv_size() const { return kv_heads * head_dim; }
    int qkv_size() const { return query_size() + 2 * kv_size(); }
    PageShape pages() const { return {layers, kv_heads, head_dim, block_size}; }
};

// A step's ragged batch: all rows' tokens, concatenated. Mirrored by library.py.
struct StepInput {
    int32_t tokens;
    int32_t samplers;
    const int32_t* token_ids;     // [tokens]
    const int32_t* positions;     // [tokens]
    const int32_t* tables;        // all rows' block tables, concatenated
    const int32_t* table_starts;  // [tokens]: where the table of the token's row begins in `tables`
    const int32_t* sampled;       // [samplers]: which tokens' logits are wanted, in rising order
    float* logits;                // [samplers, vocab]
    int32_t* greedy;              // [samplers]: the likeliest ids, or null when nobody asks
};

// Which tensor of the model; names and order are mirrored by library.py.
enum class Slot : int32_t { QKV, OUTPUT, GATE_UP, DOWN, EMBEDDING, HEAD };
enum class NormSlot : int32_t { ATTENTION, MLP, FINAL, QUERY, KEY };

struct Layer {
    const float* attention_norm = nullptr;
    const float* mlp_norm = nullptr;
    const float* query_norm = nullptr;  // [head_dim], or null: queries are not normed
    const float* key_norm = nullptr;
    int window = INT32_MAX;  // positions that a token sees, its own counted
    Matrix qkv, output, gate_up, down;
};

class Model {
  public:
    Model(const ModelShape& shape, const Kernels& kernels, int threads);

    // levels [rows, columns], scales and minima (fp16) [rows, columns / 32], bias [rows] or null.
    void set_matrix(Slot slot, int layer, int bits, int rows, int columns, const uint8_t* levels,
                    const uint16_t* scales, const uint16_t* minima, const float* bias);
    // [hidden], or [head_dim] for queries and keys.
    void set_norm(NormSlot slot, int layer, const float* values);
    void set_window(int layer, int window) { layers_.at(layer).window = window; }
    void set_frequencies(const float* values);  // [head_dim / 2], radians per position

    void step(const StepInput& input);

    void copy_block(int block, uint32_t* words, bool out);

    const Kernels& kernels() const { return kernels_; }

  private:
    friend class Step;

    Matrix& matrix(Slot slot, int layer);

    const ModelShape shape_;
    const Kernels& kernels_;
    ThreadPool pool_;
    Region weights_;
    Region cache_;
    uint32_t* pages_;
    std::vector<Layer> layers_;
    Matrix embedding_, head_;
    const float* final_norm_ = nullptr;
    const float* frequencies_ = nullptr;

    // Per token of a step.
    Scratch<float> x_, qkv_, attended_, rotations_;
    Scratch<uint32_t> queries_;
    Scratch<Record> records_, gated_;
    // Per thread.
    Scratch<float> scratch_, scores_;
    Scratch<uint32_t> packed_;
};

}  // namespace seedance
