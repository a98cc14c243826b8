// Products of a few rows of A with a panel of B, held in registers: C (R, N·W) = A (R, k) · B (k, N·W).
#pragma once

#include "vector.h"

namespace headstock {

// Rows and vectors of columns that fill the registers: 12 sums of 16, or 24 of 32.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int PANEL_VECTORS = W == 16 ? 2 : 4;
constexpr int PANEL_ROWS = W == 16 ? 12 : 6;
#else
constexpr int PANEL_VECTORS = W == 4 ? 4 : 2;
constexpr int PANEL_ROWS = W == 4 ? 3 : W == 16 ? 12 : 6;
#endif
constexpr int PANEL = PANEL_VECTORS * W;

// A is row-major with `stride`; B is (k, N·W). With `factors`, C is multiplied by its row's factor and added to.
template <int R, int N, bool ADD>
INLINE void product(const float* a, int64_t stride, const float* b, int64_t k, float* c, int64_t c_stride,
                    const float* factors) {
    Floats sums[R][N];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) sums[r][n] = ADD ? load<Floats>(c + r * c_stride + n * W) * factors[r] : Floats{};
    for (int64_t i = 0; i < k; ++i) {
        Floats row[N];
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) row[n] = load<Floats>(b + i * (N * W) + n * W);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const Floats x = splat(a[r * stride + i]);
#pragma GCC unroll 4
            for (int n = 0; n < N; ++n) sums[r][n] += x * row[n];
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) store(c + r * c_stride + n * W, sums[r][n]);
}

template <int N, bool ADD>
inline void product_of_rows(int rows, const float* a, int64_t stride, const float* b, int64_t k, float* c,
                            int64_t c_stride, const float* factors) {
    if (rows == PANEL_ROWS) return product<PANEL_ROWS, N, ADD>(a, stride, b, k, c, c_stride, factors);
    int r = 0;
    for (; r + 4 <= rows; r += 4) product<4, N, ADD>(a + r * stride, stride, b, k, c + r * c_stride, c_stride, factors + r);
    for (; r + 2 <= rows; r += 2) product<2, N, ADD>(a + r * stride, stride, b, k, c + r * c_stride, c_stride, factors + r);
    for (; r < rows; ++r) product<1, N, ADD>(a + r * stride, stride, b, k, c + r * c_stride, c_stride, factors + r);
}

}  // namespace headstock
