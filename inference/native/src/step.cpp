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

// Chunks per thread that a product is cut into: enough that nobody waits long for the last one.
constexpr int CHUNKS_PER_THREAD = 8;

uint32_t bf16(float value) {
    uint32_t bits = bits_as<uint32_t>(value);
    return (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
}

uint32_t bf16_pair(float low, float high) { return bf16(low) | bf16(high) << 16; }

}  // namespace

class Step {
  public:
    Step(Model& model, const StepInput& input);
    void run(int thread);

  private:
    void embed();
    void attention(int index, int thread);
    void mlp(const Layer& layer, int thread);
    void logits(int thread);

    void norm(const float* norm, const Activations& out, int thread);
    void product(const Matrix& matrix, const Activations& in, int tokens, float* out, Write write);
    void rotate_and_keep(int layer, int token);
    void keep(int layer, int token, int head, const float* key, const float* value);
    void attend(int layer, int token, int kv_head, int thread);

    const int32_t* table(int token) const { return in_.tables + in_.table_starts[token]; }
    const float* rotation(int token) const {
        return rotations_ + static_cast<size_t>(token) * shape_.head_dim;
    }
    float* row(int thread) const { return row_ + static_cast<size_t>(thread) * row_size_; }
    Activations activations(int columns, int part) const {
        return {levels_, scales_, sums_, columns, part};
    }

    Model& model_;
    const ModelShape& shape_;
    const Kernels& kernels_;
    ThreadPool& pool_;
    const StepInput& in_;
    const int tokens_;
    const int group_;  // query heads per key-value head

    float* x_;           // [tokens, hidden]: what the layers add to
    float* wide_;        // [tokens, qkv or 2 mlp]: outputs of the wide products
    float* attended_;    // [tokens, heads * head_dim]
    float* rotations_;   // [tokens, head_dim / 2] cosines and sines
    uint32_t* queries_;  // [tokens, heads, head_dim / 2] pairs of bf16
    int8_t* levels_;
    float* scales_;
    float* sums_;
    size_t row_size_;     // widest input of a product
    float* row_;          // [threads, row_size]
    size_t scores_size_;  // longest context, rounded up
    float* scores_;       // [threads, TILE_QUERIES, scores_size]
};

Step::Step(Model& model, const StepInput& input)
    : model_(model),
      shape_(model.shape_),
      kernels_(model.kernels_),
      pool_(model.pool_),
      in_(input),
      tokens_(input.tokens),
      group_(shape_.heads / shape_.kv_heads) {
    const size_t tokens = tokens_;
    const int query_size = shape_.query_size();
    row_size_ = std::max({shape_.hidden, shape_.mlp, query_size});
    scores_size_ = (static_cast<size_t>(shape_.context) / KEY_LANES + 1) * KEY_LANES;
    x_ = model.x_.reserve(tokens * shape_.hidden);
    wide_ = model.wide_.reserve(tokens * std::max(shape_.qkv_size(), 2 * shape_.mlp));
    attended_ = model.attended_.reserve(tokens * query_size);
    rotations_ = model.rotations_.reserve(tokens * shape_.head_dim);
    queries_ = model.queries_.reserve(tokens * query_size / 2);
    levels_ = model.levels_.reserve(tokens * row_size_);
    scales_ = model.scales_.reserve(tokens * row_size_ / FINE);
    sums_ = model.sums_.reserve(tokens * row_size_ / GROUP);
    row_ = model.row_.reserve(pool_.size() * row_size_);
    scores_ = model.scores_.reserve(pool_.size() * TILE_QUERIES * scores_size_);
}

void Step::run(int thread) {
    embed();
    for (int index = 0; index < shape_.layers; index++) {
        attention(index, thread);
        mlp(model_.layers_[index], thread);
    }
    if (in_.samplers) logits(thread);
}

// Token embeddings, and each token's rotations, which all layers share.
void Step::embed() {
    const int pairs = shape_.head_dim / 2;
    pool_.share(tokens_, 1, [&](int token, int) {
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

void Step::attention(int index, int thread) {
    const Layer& layer = model_.layers_[index];
    const Activations normed = activations(shape_.hidden, FINE);
    norm(layer.attention_norm, normed, thread);
    product(layer.qkv, normed, tokens_, wide_, Write::STORE);
    pool_.share(tokens_, 1, [&](int token, int) { rotate_and_keep(index, token); });
    pool_.share(tokens_ * shape_.kv_heads, 1, [&](int item, int) {
        attend(index, item / shape_.kv_heads, item % shape_.kv_heads, thread);
    });
    const Activations in = activations(shape_.query_size(), COARSE);
    pool_.share(tokens_, 1, [&](int token, int) {
        kernels_.quantize(attended_ + static_cast<size_t>(token) * in.columns, in, token);
    });
    product(layer.output, in, tokens_, x_, Write::ADD);
}

void Step::mlp(const Layer& layer, int thread) {
    const Activations normed = activations(shape_.hidden, COARSE);
    norm(layer.mlp_norm, normed, thread);
    product(layer.gate_up, normed, tokens_, wide_, Write::STORE);
    const Activations in = activations(shape_.mlp, COARSE);
    pool_.share(tokens_, 1, [&](int token, int) {
        const float* gate_up = wide_ + static_cast<size_t>(token) * 2 * shape_.mlp;
        kernels_.swiglu_quantize(gate_up, row(thread), in, token);
    });
    product(layer.down, in, tokens_, x_, Write::ADD);
}

void Step::logits(int thread) {
    const Activations in = activations(shape_.hidden, FINE);
    pool_.share(in_.samplers, 1, [&](int sampler, int) {
        const float* x = x_ + static_cast<size_t>(in_.sampled[sampler]) * shape_.hidden;
        kernels_.norm_quantize(x, model_.final_norm_, shape_.norm_eps, row(thread), in, sampler);
    });
    product(model_.head_, in, in_.samplers, in_.logits, Write::STORE);
    if (!in_.greedy) return;
    pool_.share(in_.samplers, 1, [&](int sampler, int) {
        const float* values = in_.logits + static_cast<size_t>(sampler) * shape_.vocab;
        in_.greedy[sampler] = kernels_.argmax(values, shape_.vocab);
    });
}

void Step::norm(const float* norm, const Activations& out, int thread) {
    pool_.share(tokens_, 1, [&](int token, int) {
        const float* x = x_ + static_cast<size_t>(token) * shape_.hidden;
        kernels_.norm_quantize(x, norm, shape_.norm_eps, row(thread), out, token);
    });
}

void Step::product(const Matrix& matrix, const Activations& in, int tokens, float* out,
                   Write write) {
    const int strips = matrix.strips();
    const int grain = std::max(1, strips / (pool_.size() * CHUNKS_PER_THREAD));
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

void Step::attend(int layer, int token, int kv_head, int thread) {
    const int head_dim = shape_.head_dim;
    for (int first = 0; first < group_; first += TILE_QUERIES) {
        const size_t head = static_cast<size_t>(token) * shape_.heads + kv_head * group_ + first;
        AttentionTask task;
        task.queries = queries_ + head * head_dim / 2;
        task.heads = std::min(TILE_QUERIES, group_ - first);
        task.pages = model_.pages_;
        task.shape = shape_.pages();
        task.layer = layer;
        task.kv_head = kv_head;
        task.block_table = table(token);
        task.length = in_.positions[token] + 1;
        task.scores = scores_ + thread * TILE_QUERIES * scores_size_;
        task.scores_stride = scores_size_;
        task.out = attended_ + head * head_dim;
        kernels_.attend(task);
    }
}

void Model::step(const StepInput& input) {
    Step step(*this, input);
    pool_.run([](void* context, int thread) { static_cast<Step*>(context)->run(thread); }, &step);
}

}  // namespace seedance
