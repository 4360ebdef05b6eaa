// One step of the model over a ragged batch: decodes and chunks of prompts alike are tokens.
//
// Every thread runs the same function and they share each loop (ThreadPool::share); the end of a
// loop is where all of them have its results.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "model.h"
#include "vector.h"

namespace seedance {
namespace {

// A product's chunks take some microseconds: taking one costs little beside that, and nobody waits
// long for the last.
constexpr int64_t CHUNK_PRODUCTS = 1 << 18;

uint32_t bf16(float value) {
    uint32_t bits = bits_as<uint32_t>(value);
    return (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
}

uint32_t bf16_pair(float low, float high) { return bf16(low) | bf16(high) << 16; }

}  // namespace

// Rows of `x_`, and which of the step's tokens each is.
struct Rows {
    int count;
    const int32_t* tokens;  // [count], or null: row and token are one

    int token(int row) const { return tokens ? tokens[row] : row; }
};

class Step {
  public:
    Step(Model& model, const StepInput& input);
    void run(int thread);

  private:
    // All threads together do item(0) .. item(count - 1).
    template <typename Item>
    void each(int count, Item item) {
        pool_.share(count, pool_.grain(count), [&](int begin, int end) {
            for (int index = begin; index < end; index++) item(index);
        });
    }

    void embed();
    void fill_pages(int layer, int thread);
    void keep_samplers();
    void attention(int layer, const Rows& rows, int thread);
    void mlp(const Layer& layer, int rows, int thread);
    void logits(int thread);

    void norm(const float* norm, int rows, const Activations& out, int thread);
    void product(const Matrix& matrix, const Activations& in, int tokens, float* out, Write write);
    void rotate_and_keep(int layer, int token);
    void keep(int layer, int token, int head, const float* key, const float* value);
    void attend(int layer, int row, int token, int kv_head, int thread);

    const int32_t* table(int token) const { return in_.tables + in_.table_starts[token]; }
    const float* rotation(int token) const {
        return rotations_ + static_cast<size_t>(token) * shape_.head_dim;
    }
    float* scratch(int thread) const { return scratch_ + static_cast<size_t>(thread) * widest_; }
    Activations activations(int columns, int part) const {
        return {levels_, scales_, sums_, columns, part};
    }

    Model& model_;
    const ModelShape& shape_;
    const Kernels& kernels_;
    ThreadPool& pool_;
    const StepInput& in_;
    const int group_;  // query heads per key-value head

    float* x_;           // [tokens, hidden]: what the layers add to
    float* wide_;        // [tokens, qkv or 2 mlp]: outputs of the wide products
    float* attended_;    // [tokens, heads * head_dim]
    float* rotations_;   // [tokens, head_dim / 2] cosines and sines
    uint32_t* queries_;  // [tokens, heads, head_dim / 2] pairs of bf16
    int8_t* levels_;
    float* scales_;
    float* sums_;
    size_t widest_;       // input of a product
    float* scratch_;      // [threads, widest]
    size_t scores_size_;  // longest context, rounded up
    float* scores_;       // [threads, TILE_QUERIES, scores_size]
};

Step::Step(Model& model, const StepInput& input)
    : model_(model),
      shape_(model.shape_),
      kernels_(model.kernels_),
      pool_(model.pool_),
      in_(input),
      group_(shape_.heads / shape_.kv_heads) {
    const size_t tokens = input.tokens;
    const int query_size = shape_.query_size();
    widest_ = std::max({shape_.hidden, shape_.mlp, query_size});
    scores_size_ = (static_cast<size_t>(shape_.context) / KEY_LANES + 1) * KEY_LANES;
    x_ = model.x_.reserve(tokens * shape_.hidden);
    wide_ = model.wide_.reserve(tokens * std::max(shape_.qkv_size(), 2 * shape_.mlp));
    attended_ = model.attended_.reserve(tokens * query_size);
    rotations_ = model.rotations_.reserve(tokens * shape_.head_dim);
    queries_ = model.queries_.reserve(tokens * query_size / 2);
    levels_ = model.levels_.reserve(tokens * widest_);
    scales_ = model.scales_.reserve(tokens * widest_ / FINE);
    sums_ = model.sums_.reserve(tokens * widest_ / GROUP);
    scratch_ = model.scratch_.reserve(pool_.size() * widest_);
    scores_ = model.scores_.reserve(pool_.size() * TILE_QUERIES * scores_size_);
}

// All tokens go through all layers but the last: there, a token that does not sample is done when
// its keys and values are kept, since nobody asks what it leads to.
void Step::run(int thread) {
    const int last = shape_.layers - 1;
    embed();
    for (int layer = 0; layer < last; layer++) {
        fill_pages(layer, thread);
        attention(layer, {in_.tokens, nullptr}, thread);
        mlp(model_.layers_[layer], in_.tokens, thread);
    }
    fill_pages(last, thread);
    if (in_.samplers == 0) return;
    keep_samplers();
    attention(last, {in_.samplers, in_.sampled}, thread);
    mlp(model_.layers_[last], in_.samplers, thread);
    logits(thread);
}

// Token embeddings, and each token's rotations, which all layers share.
void Step::embed() {
    const int pairs = shape_.head_dim / 2;
    each(in_.tokens, [&](int token) {
        float* x = x_ + static_cast<size_t>(token) * shape_.hidden;
        kernels_.dequantize_row(model_.embedding_, in_.token_ids[token], x);
        float* rotation = rotations_ + static_cast<size_t>(token) * shape_.head_dim;
        const float position = static_cast<float>(in_.positions[token]);
        for (int pair = 0; pair < pairs; pair++) {
            const float angle = position * model_.frequencies_[pair];
            rotation[2 * pair] = std::cos(angle);
            rotation[2 * pair + 1] = std::sin(angle);
        }
    });
}

// Queries, keys and values of all tokens; keys and values go into their pages.
void Step::fill_pages(int layer, int thread) {
    const Layer& weights = model_.layers_[layer];
    const Activations normed = activations(shape_.hidden, FINE);
    norm(weights.attention_norm, in_.tokens, normed, thread);
    product(weights.qkv, normed, in_.tokens, wide_, Write::STORE);
    each(in_.tokens, [&](int token) { rotate_and_keep(layer, token); });
}

// The samplers' rows of `x_` move to its front. They stand in rising order, so that none is
// written over before it has moved.
void Step::keep_samplers() {
    const size_t hidden = shape_.hidden;
    each(1, [&](int) {
        for (int row = 0; row < in_.samplers; row++)
            std::memmove(x_ + row * hidden, x_ + in_.sampled[row] * hidden, hidden * sizeof *x_);
    });
}

void Step::attention(int layer, const Rows& rows, int thread) {
    each(rows.count * shape_.kv_heads, [&](int item) {
        const int row = item / shape_.kv_heads;
        attend(layer, row, rows.token(row), item % shape_.kv_heads, thread);
    });
    const Activations in = activations(shape_.query_size(), COARSE);
    each(rows.count, [&](int row) {
        kernels_.quantize(attended_ + static_cast<size_t>(row) * in.columns, in, row);
    });
    product(model_.layers_[layer].output, in, rows.count, x_, Write::ADD);
}

void Step::mlp(const Layer& layer, int rows, int thread) {
    const Activations normed = activations(shape_.hidden, COARSE);
    norm(layer.mlp_norm, rows, normed, thread);
    product(layer.gate_up, normed, rows, wide_, Write::STORE);
    const Activations in = activations(shape_.mlp, COARSE);
    each(rows, [&](int row) {
        const float* gate_up = wide_ + static_cast<size_t>(row) * 2 * shape_.mlp;
        kernels_.swiglu_quantize(gate_up, scratch(thread), in, row);
    });
    product(layer.down, in, rows, x_, Write::ADD);
}

void Step::logits(int thread) {
    const Activations in = activations(shape_.hidden, FINE);
    norm(model_.final_norm_, in_.samplers, in, thread);
    product(model_.head_, in, in_.samplers, in_.logits, Write::STORE);
    if (!in_.greedy) return;
    each(in_.samplers, [&](int sampler) {
        const float* values = in_.logits + static_cast<size_t>(sampler) * shape_.vocab;
        in_.greedy[sampler] = kernels_.argmax(values, shape_.vocab);
    });
}

void Step::norm(const float* norm, int rows, const Activations& out, int thread) {
    each(rows, [&](int row) {
        const float* x = x_ + static_cast<size_t>(row) * shape_.hidden;
        kernels_.norm_quantize(x, norm, shape_.norm_eps, scratch(thread), out, row);
    });
}

void Step::product(const Matrix& matrix, const Activations& in, int tokens, float* out,
                   Write write) {
    const int strips = matrix.strips();
    const int64_t strip_products = static_cast<int64_t>(tokens) * STRIP_ROWS * matrix.columns;
    const int enough = static_cast<int>(std::max<int64_t>(1, CHUNK_PRODUCTS / strip_products));
    const int grain = std::min(enough, pool_.grain(strips));
    pool_.share(strips, grain, [&](int first, int last) {
        kernels_.linear(matrix, first, last, in, tokens, out, matrix.rows, write);
    });
}

// Queries and keys are turned by their position (RoPE, Su et al. 2021), neighbours as a pair;
// then queries wait as bf16, and keys and values go into the token's place in the cache.
//
//   qkv of a token:  | queries: heads | keys: kv_heads | values: kv_heads |, head_dim each
void Step::rotate_and_keep(int layer, int token) {
    float* qkv = wide_ + static_cast<size_t>(token) * shape_.qkv_size();
    const int pairs = shape_.head_dim / 2;
    const float* turn = rotation(token);
    for (int head = 0; head < shape_.heads + shape_.kv_heads; head++) {
        float* values = qkv + head * shape_.head_dim;
        for (int pair = 0; pair < pairs; pair++) {
            const float a = values[2 * pair], b = values[2 * pair + 1];
            const float cosine = turn[2 * pair], sine = turn[2 * pair + 1];
            values[2 * pair] = a * cosine - b * sine;
            values[2 * pair + 1] = a * sine + b * cosine;
        }
    }
    const int query_pairs = shape_.query_size() / 2;
    uint32_t* queries = queries_ + static_cast<size_t>(token) * query_pairs;
    for (int pair = 0; pair < query_pairs; pair++)
        queries[pair] = bf16_pair(qkv[2 * pair], qkv[2 * pair + 1]);
    const float* keys = qkv + shape_.query_size();
    const float* values = keys + shape_.kv_size();
    for (int head = 0; head < shape_.kv_heads; head++)
        keep(layer, token, head, keys + head * shape_.head_dim, values + head * shape_.head_dim);
}

void Step::keep(int layer, int token, int head, const float* key, const float* value) {
    const PageShape shape = shape_.pages();
    const int slot = in_.positions[token] % shape.block_size;
    const int block = table(token)[in_.positions[token] / shape.block_size];
    uint32_t* page = model_.pages_ + shape.page(block, layer, head);
    uint32_t* keys = page + shape.key_word(slot, 0);
    for (int pair = 0; pair < shape.head_dim / 2; pair++)
        keys[pair * KEY_LANES] = bf16_pair(key[2 * pair], key[2 * pair + 1]);
    // A word's other half is the neighbouring slot, perhaps another thread's to write at this
    // moment. What an ended sequence left there is finite, and weighs nothing.
    uint32_t* words = page + shape.value_word(slot, 0);
    for (int dim = 0; dim < shape.head_dim; dim++) {
        const uint16_t half = static_cast<uint16_t>(bf16(value[dim]));
        uint8_t* word = reinterpret_cast<uint8_t*>(words + dim);
        std::memcpy(word + slot % 2 * sizeof half, &half, sizeof half);
    }
}

void Step::attend(int layer, int row, int token, int kv_head, int thread) {
    const int head_dim = shape_.head_dim;
    for (int first = 0; first < group_; first += TILE_QUERIES) {
        const size_t heads = shape_.heads, head = kv_head * group_ + first;
        AttentionTask task;
        task.queries = queries_ + (token * heads + head) * head_dim / 2;
        task.heads = std::min(TILE_QUERIES, group_ - first);
        task.pages = model_.pages_;
        task.shape = shape_.pages();
        task.layer = layer;
        task.kv_head = kv_head;
        task.block_table = table(token);
        task.length = in_.positions[token] + 1;
        task.scores = scores_ + thread * TILE_QUERIES * scores_size_;
        task.scores_stride = scores_size_;
        task.out = attended_ + (row * heads + head) * head_dim;
        kernels_.attend(task);
    }
}

void Model::step(const StepInput& input) {
    Step step(*this, input);
    pool_.run([](void* context, int thread) { static_cast<Step*>(context)->run(thread); }, &step);
}

}  // namespace seedance
