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
constexpr int CHUNK_PRODUCTS = 1 << 18;

uint32_t bf16(float value) {
    uint32_t bits = bits_as<uint32_t>(value);
    return (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
}

// The size of parts that are at most `most` and as equal as can be: 9 in parts of 5, not of 8.
int evenly(int count, int most) {
    const int parts = (count + most - 1) / most;
    return (count + parts - 1) / parts;
}

uint32_t bf16_pair(float low, float high) { return bf16(low) | bf16(high) << 16; }

}  // namespace

// Neighbouring tokens of one sequence, in neighbouring rows of `x_`: they attend together.
struct Tile {
    int row;
    int count;
};

// Rows of `x_`, and which of the step's tokens each is.
struct Rows {
    int count;
    const int32_t* tokens;  // [count], or null: row and token are one
    std::vector<Tile> tiles;

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

    // All threads together do item(part, first, last) for all parts of a product and all tokens,
    // TOKENS_TOGETHER at a time; a part has so many products with a token.
    template <typename Item>
    void each_part(int parts, int products, int tokens, Item item) {
        const int count = parts * ((tokens + TOKENS_TOGETHER - 1) / TOKENS_TOGETHER);
        const int chunk_products = std::min(tokens, TOKENS_TOGETHER) * products;
        const int enough = std::max(1, CHUNK_PRODUCTS / chunk_products);
        pool_.share(count, std::min(enough, pool_.grain(count)), [&](int begin, int end) {
            for (int index = begin; index < end; index++) {
                const int first = index / parts * TOKENS_TOGETHER;
                item(index % parts, first, std::min(first + TOKENS_TOGETHER, tokens));
            }
        });
    }

    void embed();
    void fill_pages(int layer, int thread);
    void keep_samplers();
    void attention(int layer, const Rows& rows, int thread);
    std::vector<Tile> tiles(const Rows& rows) const;
    bool neighbours(int token, int next) const;
    void mlp(const Layer& layer, int rows, int thread);
    void logits(int thread);

    void norm(const float* norm, int rows, const Activations& out, int thread);
    void product(const Matrix& matrix, const Activations& in, int tokens, float* out,
                 size_t out_stride, Write write);
    void rotate_and_keep(int layer, int token);
    void norm_heads(const float* norm, float* values, int heads);
    void keep(int layer, int token, int head, const float* key, const float* value);
    void attend(int layer, const Tile& tile, int token, int kv_head, int thread);

    const int32_t* table(int token) const { return in_.tables + in_.table_starts[token]; }
    const float* rotation(int token) const {
        return rotations_ + static_cast<size_t>(token) * shape_.head_dim;
    }
    float* scratch(int thread) const { return scratch_ + static_cast<size_t>(thread) * widest_; }
    Activations activations(int columns, int part) const {
        return {records_, columns, part};
    }

    Model& model_;
    const ModelShape& shape_;
    const Kernels& kernels_;
    ThreadPool& pool_;
    const StepInput& in_;
    const int group_;        // query heads per key-value head
    const int heads_;        // of a group, that attend together
    const int tile_tokens_;  // that attend together
    Rows all_, samplers_;

    float* x_;           // [tokens, hidden]: what the layers add to
    size_t qkv_stride_;
    float* qkv_;         // [tokens, qkv_stride]: queries, keys and values
    float* attended_;    // [tokens, heads * head_dim]
    float* rotations_;   // [tokens, head_dim / 2] cosines and sines
    uint32_t* queries_;  // [tokens, heads, head_dim / 2] pairs of bf16
    Record* records_;    // inputs of products, by tiles of tokens, but the last of a layer
    Record* gated_;      // input of a layer's last product
    size_t widest_;       // of those inputs
    float* scratch_;      // [threads, widest]
    size_t scores_size_;  // longest context, rounded up
    float* scores_;       // [threads, TILE_QUERIES, scores_size]
    uint32_t* packed_;    // [threads, TILE_QUERIES, head_dim / 2]
};

Step::Step(Model& model, const StepInput& input)
    : model_(model),
      shape_(model.shape_),
      kernels_(model.kernels_),
      pool_(model.pool_),
      in_(input),
      group_(shape_.heads / shape_.kv_heads),
      heads_(evenly(group_, TILE_QUERIES)),
      tile_tokens_(TILE_QUERIES / heads_),
      all_{input.tokens, nullptr, {}},
      samplers_{input.samplers, input.sampled, {}} {
    all_.tiles = tiles(all_);
    samplers_.tiles = tiles(samplers_);
    const size_t tokens = input.tokens;
    const int query_size = shape_.query_size();
    widest_ = std::max(shape_.hidden, query_size);
    scores_size_ = (static_cast<size_t>(shape_.context) / KEY_LANES + 1) * KEY_LANES;
    x_ = model.x_.reserve(tokens * shape_.hidden);
    // A cache line more than needed: where rows are whole pages apart, all tokens' numbers for one
    // strip would fall into the same few places of the first cache.
    qkv_stride_ = shape_.qkv_size() + CACHE_LINE / sizeof(float);
    qkv_ = model.qkv_.reserve(tokens * qkv_stride_);
    attended_ = model.attended_.reserve(tokens * query_size);
    rotations_ = model.rotations_.reserve(tokens * shape_.head_dim);
    queries_ = model.queries_.reserve(tokens * query_size / 2);
    records_ = model.records_.reserve((tokens + TILE_TOKENS) * (widest_ / GROUP));
    gated_ = model.gated_.reserve((tokens + TILE_TOKENS) * (shape_.mlp / GROUP));
    scratch_ = model.scratch_.reserve(pool_.size() * widest_);
    scores_ = model.scores_.reserve(pool_.size() * TILE_QUERIES * scores_size_);
    packed_ = model.packed_.reserve(pool_.size() * TILE_QUERIES * shape_.head_dim / 2);
}

// All tokens go through all layers but the last: there, a token that does not sample is done when
// its keys and values are kept, since nobody asks what it leads to.
void Step::run(int thread) {
    const int last = shape_.layers - 1;
    embed();
    for (int layer = 0; layer < last; layer++) {
        fill_pages(layer, thread);
        attention(layer, all_, thread);
        mlp(model_.layers_[layer], in_.tokens, thread);
    }
    fill_pages(last, thread);
    if (in_.samplers == 0) return;
    keep_samplers();
    attention(last, samplers_, thread);
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
    product(weights.qkv, normed, in_.tokens, qkv_, qkv_stride_, Write::STORE);
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
    each(static_cast<int>(rows.tiles.size()) * shape_.kv_heads, [&](int item) {
        const Tile& tile = rows.tiles[item / shape_.kv_heads];
        attend(layer, tile, rows.token(tile.row), item % shape_.kv_heads, thread);
    });
    const Activations in = activations(shape_.query_size(), COARSE);
    each(rows.count, [&](int row) {
        kernels_.quantize(attended_ + static_cast<size_t>(row) * in.columns, in, row);
    });
    product(model_.layers_[layer].output, in, rows.count, x_, shape_.hidden, Write::ADD);
}

bool Step::neighbours(int token, int next) const {
    return next == token + 1 && in_.table_starts[next] == in_.table_starts[token] &&
           in_.positions[next] == in_.positions[token] + 1;
}

std::vector<Tile> Step::tiles(const Rows& rows) const {
    std::vector<Tile> tiles;
    for (int row = 0; row < rows.count; row++) {
        const bool joins = row > 0 && tiles.back().count < tile_tokens_ &&
                           neighbours(rows.token(row - 1), rows.token(row));
        if (joins) tiles.back().count++;
        else tiles.push_back({row, 1});
    }
    return tiles;
}

void Step::mlp(const Layer& layer, int rows, int thread) {
    const Activations normed = activations(shape_.hidden, COARSE);
    norm(layer.mlp_norm, rows, normed, thread);
    const Activations gated{gated_, shape_.mlp, COARSE};
    const GatedProduct gating{layer.gate_up, normed, gated};
    const int products = 2 * GROUP * shape_.hidden;
    each_part(gated.groups(), products, rows, [&](int group, int first, int last) {
        kernels_.gated_linear(gating, group, first, last);
    });
    product(layer.down, gated, rows, x_, shape_.hidden, Write::ADD);
}

void Step::logits(int thread) {
    const Activations in = activations(shape_.hidden, FINE);
    norm(model_.final_norm_, in_.samplers, in, thread);
    product(model_.head_, in, in_.samplers, in_.logits, shape_.vocab, Write::STORE);
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
                   size_t out_stride, Write write) {
    const Product product{matrix, in, out, out_stride, write};
    const int products = STRIP_ROWS * matrix.columns;
    each_part(matrix.strips(), products, tokens, [&](int strip, int first, int last) {
        kernels_.linear(product, strip, first, last);
    });
}

// RMSNorm of each of a token's heads.
void Step::norm_heads(const float* norm, float* values, int heads) {
    if (!norm) return;
    const int size = shape_.head_dim;
    for (int head = 0; head < heads; head++, values += size) {
        float squares = 0.0f;
        for (int dim = 0; dim < size; dim++) squares += values[dim] * values[dim];
        const float mean = squares / static_cast<float>(size);
        const float factor = 1.0f / std::sqrt(mean + shape_.norm_eps);
        for (int dim = 0; dim < size; dim++) values[dim] *= factor * norm[dim];
    }
}

// Queries and keys, normed where the model does so, are turned by their position (RoPE, Su et al.
// 2021), neighbours as a pair; then queries wait as bf16, and keys and values go into the token's
// place in the cache.
//
//   qkv of a token:  | queries: heads | keys: kv_heads | values: kv_heads |, head_dim each
void Step::rotate_and_keep(int layer, int token) {
    float* qkv = qkv_ + token * qkv_stride_;
    const int pairs = shape_.head_dim / 2;
    const Layer& weights = model_.layers_[layer];
    norm_heads(weights.query_norm, qkv, shape_.heads);
    norm_heads(weights.key_norm, qkv + shape_.query_size(), shape_.kv_heads);
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

// One key-value head's queries of a tile whose first token is `token`.
void Step::attend(int layer, const Tile& tile, int token, int kv_head, int thread) {
    const size_t head_dim = shape_.head_dim, query_size = shape_.query_size();
    for (int first = 0; first < group_; first += heads_) {
        const size_t head = kv_head * group_ + first;
        AttentionTask task;
        task.tokens = tile.count;
        task.heads = std::min(heads_, group_ - first);
        task.position = in_.positions[token];
        task.window = model_.layers_[layer].window;
        task.queries = queries_ + (token * query_size + head * head_dim) / 2;
        task.queries_stride = query_size / 2;
        task.pages = model_.pages_;
        task.shape = shape_.pages();
        task.layer = layer;
        task.kv_head = kv_head;
        task.block_table = table(token);
        task.scores = scores_ + thread * TILE_QUERIES * scores_size_;
        task.scores_stride = scores_size_;
        task.packed = packed_ + thread * TILE_QUERIES * head_dim / 2;
        task.out = attended_ + tile.row * query_size + head * head_dim;
        task.out_stride = query_size;
        kernels_.attend(task);
    }
}

void Model::step(const StepInput& input) {
    if (input.tokens == 0) return;
    Step step(*this, input);
    pool_.run([](void* context, int thread) { static_cast<Step*>(context)->run(thread); }, &step);
}

}  // namespace seedance
