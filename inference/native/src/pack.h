// From rows and columns into the blocks of layout.h.
#pragma once

#include <cstdint>

namespace seedance {

// `blocks` is zeroed memory of Matrix::bytes(); rows that fill up the last strip stay zero.
void pack(uint8_t* blocks, int bits, int rows, int columns, const uint8_t* levels,
          const uint16_t* scales, const uint16_t* minima);

}  // namespace seedance
