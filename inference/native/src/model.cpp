#include "model.h"

#include <algorithm>
#include <new>

#include "pack.h"

namespace seedance {
namespace {

size_t most_bytes(int rows, int columns) {
    Matrix matrix;
    matrix.rows = rows;
    matrix.columns = columns;
    matrix.bits = 8;
    return matrix.bytes() + (rows + CACHE_LINE) * sizeof(float);  // and a bias
}

// What the weights need when every matrix has 8 bits and a bias.
size_t weights_bytes(const ModelShape& shape) {
    const size_t norms = (shape.hidden + CACHE_LINE) * sizeof(float);
    const size_t head_norms = 2 * (shape.head_dim + CACHE_LINE) * sizeof(float);
    const size_t layer = most_bytes(shape.qkv_size(), shape.hidden) +
                         most_bytes(shape.hidden, shape.query_size()) +
                         most_bytes(2 * shape.mlp, shape.hidden) +
                         most_bytes(shape.hidden, shape.mlp) + 2 * norms + head_norms;
    const size_t outer = 2 * most_bytes(shape.vocab, shape.hidden) + 2 * norms;
    return layer * shape.layers + outer + shape.head_dim * sizeof(float);
}

size_t cache_bytes(const ModelShape& shape) {
    return shape.pages().block_words() * shape.blocks * sizeof(uint32_t);
}

}  // namespace

Model::Model(const ModelShape& shape, const Kernels& kernels, int threads)
    : shape_(shape),
      kernels_(kernels),
      pool_(threads),
      weights_(weights_bytes(shape)),
      cache_(cache_bytes(shape)),
      pages_(cache_.take_array<uint32_t>(shape.pages().block_words() * shape.blocks)),
      layers_(shape.layers) {}

Matrix& Model::matrix(Slot slot, int layer) {
    switch (slot) {
        case Slot::QKV: return layers_.at(layer).qkv;
        case Slot::OUTPUT: return layers_.at(layer).output;
        case Slot::GATE_UP: return layers_.at(layer).gate_up;
        case Slot::DOWN: return layers_.at(layer).down;
        case Slot::EMBEDDING: return embedding_;
        case Slot::HEAD: return head_;
    }
    throw std::bad_alloc();
}

void Model::set_matrix(Slot slot, int layer, int bits, int rows, int columns,
                       const uint8_t* levels, const uint16_t* scales, const uint16_t* minima,
                       const float* bias) {
    Matrix packed;
    packed.rows = rows;
    packed.columns = columns;
    packed.bits = bits;
    uint8_t* blocks = weights_.take_array<uint8_t>(packed.bytes());
    pack(blocks, bits, rows, columns, levels, scales, minima);
    packed.blocks = blocks;
    if (bias) {
        float* copy = weights_.take_array<float>(rows);
        std::copy(bias, bias + rows, copy);
        packed.bias = copy;
    }
    matrix(slot, layer) = packed;
    if (slot == Slot::EMBEDDING && shape_.tied_head) head_ = packed;
}

void Model::set_norm(NormSlot slot, int layer, const float* values) {
    const bool of_heads = slot == NormSlot::QUERY || slot == NormSlot::KEY;
    const int size = of_heads ? shape_.head_dim : shape_.hidden;
    float* copy = weights_.take_array<float>(size);
    std::copy(values, values + size, copy);
    switch (slot) {
        case NormSlot::ATTENTION: layers_.at(layer).attention_norm = copy; break;
        case NormSlot::MLP: layers_.at(layer).mlp_norm = copy; break;
        case NormSlot::FINAL: final_norm_ = copy; break;
        case NormSlot::QUERY: layers_.at(layer).query_norm = copy; break;
        case NormSlot::KEY: layers_.at(layer).key_norm = copy; break;
    }
}

void Model::set_frequencies(const float* values) {
    float* copy = weights_.take_array<float>(shape_.head_dim / 2);
    std::copy(values, values + shape_.head_dim / 2, copy);
    frequencies_ = copy;
}

void Model::copy_block(int block, uint32_t* words, bool out) {
    const size_t count = shape_.pages().block_words();
    uint32_t* page = pages_ + shape_.pages().page(block, 0, 0);
    if (out) std::copy(page, page + count, words);
    else std::copy(words, words + count, page);
}

}  // namespace seedance
