// How weights, activations and keys and values lie in memory: the one place that knows.
#pragma once

#include <cstddef>
#include <cstdint>

// This header is compiled with several sets of CPU flags into one library: a body that is not
// inlined would be kept once for all of them, perhaps with instructions the CPU lacks.
#define SEEDANCE_INLINE __attribute__((always_inline)) inline

namespace seedance {

constexpr int CACHE_LINE = 64;

// ---- Weights -------------------------------------------------------------------------------
//
// A matrix [rows, columns] is cut into blocks of 16 rows by 32 columns. A weight is
// `scale * level + minimum`, with one scale and one minimum per row of a block:
//
//   strip 0  | block 0 | block 1 | ... | block columns/32 - 1 |     rows  0 .. 15
//   strip 1  | block 0 | ...                                        rows 16 .. 31
//
// A strip is read from its first byte to its last when 16 outputs are computed. In a block, what
// one instruction multiplies lies together: a *quad* is 4 neighbouring columns of all 16 rows,
// 64 bytes, one register of AVX-512.
//
//   8 bits:  | quad 0 | quad 1 | ... | quad 7 | 16 scales (fp16) | 16 minima (fp16) |   576 bytes
//   4 bits:  | 0 and 4 | 1 and 5 | 2 and 6 | 3 and 7 | scales | minima |                320 bytes
//
//   quad:       row 0: c0 c1 c2 c3 | row 1: c0 c1 c2 c3 | ... | row 15: c0 c1 c2 c3
//   "0 and 4":  quad 0 in the low half of each byte, quad 4 in the high half
constexpr int STRIP_ROWS = 16;
constexpr int GROUP = 32;  // columns that share a scale, in weights and in activations
constexpr int QUAD = 4;
constexpr int QUADS = GROUP / QUAD;
constexpr int QUAD_BYTES = QUAD * STRIP_ROWS;
constexpr int FACTOR_BYTES = STRIP_ROWS * 2;  // scales, or minima

constexpr int level_bytes(int bits) { return GROUP * STRIP_ROWS * bits / 8; }
constexpr int block_bytes(int bits) { return level_bytes(bits) + 2 * FACTOR_BYTES; }

struct Matrix {
    const uint8_t* blocks = nullptr;
    const float* bias = nullptr;  // [rows], or null
    int rows = 0;
    int columns = 0;
    int bits = 0;  // 4 or 8

    SEEDANCE_INLINE int strips() const { return (rows + STRIP_ROWS - 1) / STRIP_ROWS; }
    SEEDANCE_INLINE int groups() const { return columns / GROUP; }
    SEEDANCE_INLINE const uint8_t* strip(int index) const {
        return blocks + static_cast<size_t>(index) * groups() * block_bytes(bits);
    }
    SEEDANCE_INLINE size_t bytes() const {
        return static_cast<size_t>(strips()) * groups() * block_bytes(bits);
    }
};

// ---- Activations ---------------------------------------------------------------------------
//
// The input of a product, quantized: value = scale * level, level in -127 .. 127, one scale per
// token and *part* of a group. `sum` is the sum of a group's values, which a weight's minimum is
// multiplied with:
//
//   dot(weights, values) = minimum_w * sum_x
//                        + scale_w * sum over parts p of scale_x[p] * dot(levels_w, levels_x in p)
//
// Activations have outliers, and an outlier coarsens the levels of those that share its scale. The
// shorter the part, the nearer to fp32, and the more scales to apply. Measured on four texts, KL
// per token of the default model: 0.0025 to 0.0048 with parts of 32 columns, 0.0014 to 0.0024
// with 16 (one instruction more in twelve), 0.0007 to 0.0012 with 8 (12 % slower). Part of
// what is left at 16 comes from the inputs of attention's projections and of the head, a third of
// the work: those have 8, and the four texts then 0.0011 to 0.0017.
constexpr int FINE = 8;
constexpr int COARSE = 16;

// A token's group: all that a product reads of it, on one cache line.
struct alignas(CACHE_LINE) Record {
    int8_t levels[GROUP];
    float scales[GROUP / FINE];  // of the parts; coarse ones are half as many
    float sum;
};
static_assert(sizeof(Record) == CACHE_LINE, "a record is a cache line");

// Tokens of one step that a product takes through a strip together: unpacking the strip is then an
// eighth of the work, and 16 at once are only 2 % faster.
constexpr int TILE_TOKENS = 8;
// Tokens that go through a strip while it is in the first cache, and whose records stay in the
// second: a few tiles. More would make a product's last chunks long.
constexpr int TOKENS_TOGETHER = 4 * TILE_TOKENS;

// Records lie as a product reads them, a tile of tokens after the other, places unused in the last:
//
//   tile 0  | group 0: token 0, 1, .. 7 | group 1: token 0, 1, .. 7 | ...
//   tile 1  | group 0: token 8, 9, ..   | ...
struct Activations {
    Record* records;
    int columns;
    int part;  // FINE or COARSE

    SEEDANCE_INLINE int groups() const { return columns / GROUP; }
    // The first group's record; the next group's is TILE_TOKENS behind it.
    SEEDANCE_INLINE Record* of(int token) const {
        const size_t tile = token / TILE_TOKENS;
        return records + tile * groups() * TILE_TOKENS + token % TILE_TOKENS;
    }
};

// ---- Keys and values -----------------------------------------------------------------------
//
// A page is what one layer and one key-value head keep of one of the engine's blocks; all pages
// of a block are neighbours: [block][layer][kv head]. Numbers are bf16, two in a 32-bit word, low
// half first, so that one instruction multiplies two of them at once:
//
//   keys    [block_size / 16][head_dim / 2][16 keys]   word = dims 2i and 2i+1 of one key
//   values  [block_size / 2][head_dim]                 word = one dim of keys 2i and 2i+1
constexpr int KEY_LANES = 16;

struct PageShape {
    int layers;
    int kv_heads;
    int head_dim;
    int block_size;

    SEEDANCE_INLINE size_t half_words() const {
        return static_cast<size_t>(block_size) * head_dim / 2;
    }
    SEEDANCE_INLINE size_t page_words() const { return 2 * half_words(); }
    SEEDANCE_INLINE size_t block_words() const { return page_words() * layers * kv_heads; }
    SEEDANCE_INLINE size_t page(int block, int layer, int head) const {
        const size_t inside = static_cast<size_t>(layer) * kv_heads + head;
        return block * block_words() + inside * page_words();
    }
    SEEDANCE_INLINE size_t key_word(int slot, int pair) const {
        const size_t tile = static_cast<size_t>(slot / KEY_LANES) * (head_dim / 2);
        return (tile + pair) * KEY_LANES + slot % KEY_LANES;
    }
    SEEDANCE_INLINE size_t value_word(int slot, int dim) const {
        return half_words() + static_cast<size_t>(slot / 2) * head_dim + dim;
    }
};

// Queries, of one token or of neighbours in a prompt, that read keys and values together.
constexpr int TILE_QUERIES = 8;

}  // namespace seedance
