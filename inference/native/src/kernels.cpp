// Compiled once per instruction set, with SEEDANCE_PATH naming the result (see build.py).
#include "kernels.h"

#include "attention.h"
#include "elementwise.h"
#include "linear.h"

#define SEEDANCE_JOIN(a, b) a##b
#define SEEDANCE_NAME(path) SEEDANCE_JOIN(kernels_, path)
#define SEEDANCE_TEXT_OF(path) #path
#define SEEDANCE_TEXT(path) SEEDANCE_TEXT_OF(path)

namespace seedance {

extern const Kernels SEEDANCE_NAME(SEEDANCE_PATH);
const Kernels SEEDANCE_NAME(SEEDANCE_PATH) = {
    SEEDANCE_TEXT(SEEDANCE_PATH), linear, gated_linear, quantize, norm_quantize,
    attend, argmax, dequantize_row,
};

}  // namespace seedance
