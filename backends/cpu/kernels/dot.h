// Products of few query rows with rows of K and V where they lie.
#pragma once

#include <algorithm>

#include "storage.h"

namespace headstock {

constexpr int64_t LINE = 64;

// Rows to ask for meanwhile.
struct Ahead {
    const char* const* rows = nullptr;
    int64_t offset = 0, bytes = 0, count = 0;
};

// Asks for a row. The loop stays a loop: what fetches ahead by itself follows single instructions and their strides.
INLINE void fetch(const char* row, int64_t bytes) {
#pragma GCC unroll 1
    for (int64_t i = 0; i < bytes; i += LINE) __builtin_prefetch(row + i, 0, 3);
}

// Logits of R query rows (padded, `stride` apart) with J keys. What is summed and what is held fits into 16 registers.
template <class T, int R, int J>
INLINE void dot(const float* query, int64_t stride, const char* const* keys, int64_t offset, int64_t size,
                Floats (&total)[R][J]) {
    const T* key[J];
#pragma GCC unroll 4
    for (int j = 0; j < J; ++j) key[j] = reinterpret_cast<const T*>(keys[j] + offset);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int j = 0; j < J; ++j) total[r][j] = Floats{};
    int64_t i = 0;
    for (; i + W <= size; i += W) {
        Floats q[R];
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
            q[r] = load<Floats>(query + r * stride + i);
            hold(q[r]);
        }
#pragma GCC unroll 4
        for (int j = 0; j < J; ++j) {
            Floats k = widen(key[j] + i);
            hold(k);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) total[r][j] += q[r] * k;
        }
    }
    if (i < size) {
#pragma GCC unroll 4
        for (int j = 0; j < J; ++j) {
            const Floats k = widen_some(key[j] + i, int(size - i));
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) total[r][j] += load<Floats>(query + r * stride + i) * k;
        }
    }
}

// Logits of R query rows with four keys, to `logits`, rows `logits_stride` apart.
template <class T, int R>
INLINE void dot_four(const float* query, int64_t stride, const char* const* keys, int64_t offset, int64_t size,
                     float* logits, int64_t logits_stride) {
    if constexpr (R == 4) {
#pragma GCC unroll 1
        for (int j = 0; j < 4; j += 2) {
            Floats t[4][2];
            dot<T, 4, 2>(query, stride, keys + j, offset, size, t);
            const Four a = sums(t[0][0], t[0][1], t[1][0], t[1][1]), b = sums(t[2][0], t[2][1], t[3][0], t[3][1]);
            __builtin_memcpy(logits + j, &a, 8);
            __builtin_memcpy(logits + logits_stride + j, reinterpret_cast<const float*>(&a) + 2, 8);
            __builtin_memcpy(logits + 2 * logits_stride + j, &b, 8);
            __builtin_memcpy(logits + 3 * logits_stride + j, reinterpret_cast<const float*>(&b) + 2, 8);
        }
    } else {
        Floats t[R][4];
        dot<T, R, 4>(query, stride, keys, offset, size, t);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) store(logits + r * logits_stride, sums(t[r][0], t[r][1], t[r][2], t[r][3]));
    }
}

// The same with all keys of a run; up to three logits too many are written.
template <class T, int R>
void dot_run(const float* query, int64_t stride, const char* const* keys, int64_t offset, int64_t count, int64_t size,
             float* logits, int64_t logits_stride, Ahead ahead) {
    for (int64_t j = 0; j < count; j += 4) {
        if (j < ahead.count)
#pragma GCC unroll 1
            for (int64_t i = j; i < j + 4; ++i) fetch(ahead.rows[i] + ahead.offset, ahead.bytes);
        dot_four<T, R>(query, stride, keys + j, offset, size, logits + j, logits_stride);
    }
}

// Vectors of columns that are summed at a time for R rows.
template <int R>
constexpr int COLUMNS = R == 4 ? 2 : 4;

// Adds to N vectors of the sums of R rows the weighted values of `count` keys; SOME: `some` elements of one vector.
template <class T, int R, int N, bool SOME>
INLINE void mix(const float* weights, int64_t weights_stride, const char* const* values, int64_t offset, int64_t count,
                int some, float* sums, int64_t stride) {
    Floats total[R][N];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) total[r][n] = load<Floats>(sums + r * stride + n * W);
    for (int64_t j = 0; j < count; ++j) {
        const T* value = reinterpret_cast<const T*>(values[j] + offset);
        Floats weight[R];
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
            weight[r] = splat(weights[r * weights_stride + j]);
            hold(weight[r]);
        }
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) {
            Floats v = SOME ? widen_some(value, some) : widen(value + n * W);
            hold(v);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) total[r][n] += weight[r] * v;
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) store(sums + r * stride + n * W, total[r][n]);
}

// All columns of R rows, for all keys of a run.
template <class T, int R>
void mix_run(const float* weights, int64_t weights_stride, const char* const* values, int64_t offset, int64_t count,
             int64_t size, float* sums, int64_t stride, Ahead ahead) {
    constexpr int N = COLUMNS<R>;
    const int64_t share = (ahead.count * N * W + size - 1) / size;  // rows to ask for a time
    int64_t column = 0, asked = 0;
    const auto ask = [&](int64_t end) INLINE_LAMBDA {
        for (; asked < std::min(end, ahead.count); ++asked) fetch(ahead.rows[asked] + ahead.offset, ahead.bytes);
    };
    for (; column + N * W <= size; column += N * W, offset += N * W * int64_t(sizeof(T))) {
        ask(asked + share);
        mix<T, R, N, false>(weights, weights_stride, values, offset, count, 0, sums + column, stride);
    }
    ask(ahead.count);
    for (; column + W <= size; column += W, offset += W * int64_t(sizeof(T)))
        mix<T, R, 1, false>(weights, weights_stride, values, offset, count, 0, sums + column, stride);
    if (column < size)
        mix<T, R, 1, true>(weights, weights_stride, values, offset, count, int(size - column), sums + column, stride);
}

// Calls f(R, first row) for groups of up to four of the rows.
template <class F>
INLINE void by_fours(int64_t rows, F&& f) {
    int64_t r = 0;
    for (int64_t left; (left = rows - r) > 0;) {
        if (left % 3 && left >= 4 && left != 5) {
            f(std::integral_constant<int, 4>{}, r);
            r += 4;
        } else if (left >= 3) {
            f(std::integral_constant<int, 3>{}, r);
            r += 3;
        } else if (left == 2) {
            f(std::integral_constant<int, 2>{}, r);
            r += 2;
        } else {
            f(std::integral_constant<int, 1>{}, r);
            r += 1;
        }
    }
}

}  // namespace headstock
