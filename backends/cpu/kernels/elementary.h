// Powers of two and tanh, by polynomials fitted for this file: relative errors below 2e-7.
#pragma once

#include <cmath>

#include "vector.h"

namespace headstock {

constexpr float LOG2_E = 1.44269504088896341f;
constexpr float LN_2 = 0.693147180559945309f;

// 2^x for x < 127. Below 2^-126 it is 0, at 0 exactly 1; NaN stays NaN.
INLINE Floats power_of_two(Floats x) {
    const Floats magic = splat(12582912.0f + 127.0f);  // adding it rounds to an integer and biases the exponent
    const Floats shifted = x + magic;
    const Floats scale = bits<Floats>(bits<Words>(shifted) << 23);
    const Floats f = x - (shifted - magic);
    Floats p = f * 0.001326472731307149f + 0.009671512991189957f;
    p = p * f + 0.05550733581185341f;
    p = p * f + 0.24022242426872253f;
    p = p * f + 0.6931470036506653f;
    p = p * f + 1.0f;
    return x < -126.0f ? Floats{} : p * scale;
}

INLINE Floats hyperbolic_tangent(Floats x) {
    const Floats square = x * x;
    Floats p = square * -0.005717042367905378f + 0.020650586113333702f;
    p = p * square - 0.05374349653720856f;
    p = p * square + 0.13331490755081177f;
    p = p * square - 0.3333328366279602f;
    const Floats small = x + x * square * p;
    const Floats size = x < 0.0f ? -x : x;
    const Floats power = power_of_two((size > 10.0f ? splat(10.0f) : size) * (2.0f * LOG2_E));
    const Floats large = 1.0f - 2.0f / (power + 1.0f);
    return size < 0.625f ? small : x < 0.0f ? -large : large;
}

}  // namespace headstock
