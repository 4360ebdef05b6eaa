#include "pack.h"

#include <cstring>

#include "layout.h"

namespace seedance {
namespace {

// One row's 32 levels into their places in a block.
template <int BITS>
void pack_levels(uint8_t* block, int inside, const uint8_t* levels) {
    for (int q = 0; q < QUADS; q++) {
        const bool high = BITS == 4 && q >= QUADS / 2;
        const int line = high ? q - QUADS / 2 : q;
        const int shift = high ? 4 : 0;
        uint8_t* to = block + line * QUAD_BYTES + inside * QUAD;
        for (int c = 0; c < QUAD; c++) to[c] |= levels[q * QUAD + c] << shift;
    }
}

template <int BITS>
void pack_rows(uint8_t* blocks, int rows, int columns, const uint8_t* levels,
               const uint16_t* scales, const uint16_t* minima) {
    const size_t groups = columns / GROUP, size = block_bytes(BITS);
    for (size_t row = 0; row < static_cast<size_t>(rows); row++) {
        const int inside = row % STRIP_ROWS;
        for (size_t g = 0; g < groups; g++) {
            uint8_t* block = blocks + (row / STRIP_ROWS * groups + g) * size;
            uint8_t* factors = block + level_bytes(BITS) + inside * 2;
            pack_levels<BITS>(block, inside, levels + row * columns + g * GROUP);
            std::memcpy(factors, scales + row * groups + g, 2);
            std::memcpy(factors + FACTOR_BYTES, minima + row * groups + g, 2);
        }
    }
}

}  // namespace

void pack(uint8_t* blocks, int bits, int rows, int columns, const uint8_t* levels,
          const uint16_t* scales, const uint16_t* minima) {
    if (bits == 4) pack_rows<4>(blocks, rows, columns, levels, scales, minima);
    else pack_rows<8>(blocks, rows, columns, levels, scales, minima);
}

}  // namespace seedance
