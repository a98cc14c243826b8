// Products of few query rows with rows of K and V where they lie.
#pragma once

#include <algorithm>

#include "storage.h"

namespace headstock {

constexpr int64_t LINE = 64;

// Keys of a head that are taken together: some from `first`, and some from `second` in turn with them.
struct Run {
    int64_t head, first, count, second, second_count;
};

// Rows to ask for meanwhile: `count` from each of two places.
struct Ahead {
    const char *const *first = nullptr, *const *second = nullptr;
    int64_t offset = 0, bytes = 0, count = 0;
};

// Asks for a row. The loop stays a loop: what fetches ahead by itself follows single instructions and their strides.
INLINE void fetch(const char* row, int64_t bytes) {
#pragma GCC unroll 1
    for (int64_t i = 0; i < bytes; i += LINE) __builtin_prefetch(row + i, 0, 3);
}

INLINE void fetch(const Ahead& ahead, int64_t i) {
    fetch(ahead.first[i] + ahead.offset, ahead.bytes);
    fetch(ahead.second[i] + ahead.offset, ahead.bytes);
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
    const auto add = [&](int64_t i) INLINE_LAMBDA {
        Floats q[R];
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) q[r] = held(load<Floats>(query + r * stride + i));
#pragma GCC unroll 4
        for (int j = 0; j < J; ++j) {
            const Floats k = held(widen(key[j] + i));
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) total[r][j] += q[r] * k;
        }
    };
    int64_t i = 0;
    for (; R * J < 12 && i + 2 * W <= size; i += 2 * W) {  // what is little for one turn of a loop
        add(i);
        add(i + W);
    }
    for (; i + W <= size; i += W) add(i);
    if (i < size) {
#pragma GCC unroll 4
        for (int j = 0; j < J; ++j) {
            const Floats k = widen_some(key[j] + i, int(size - i));
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) total[r][j] += load<Floats>(query + r * stride + i) * k;
        }
    }
}

// Logits of R query rows with four keys: two to `first`, two to `second`, rows `logits_stride` apart.
template <class T, int R>
INLINE void dot_four(const float* query, int64_t stride, const char* const* keys, int64_t offset, int64_t size,
                     float* first, float* second, int64_t logits_stride) {
    if constexpr (R == 4) {
#pragma GCC unroll 1
        for (int j = 0; j < 4; j += 2) {
            Floats t[4][2];
            dot<T, 4, 2>(query, stride, keys + j, offset, size, t);
            const Four a = sums(t[0][0], t[0][1], t[1][0], t[1][1]), b = sums(t[2][0], t[2][1], t[3][0], t[3][1]);
            float* to = j ? second : first;
            __builtin_memcpy(to, &a, 8);
            __builtin_memcpy(to + logits_stride, reinterpret_cast<const float*>(&a) + 2, 8);
            __builtin_memcpy(to + 2 * logits_stride, &b, 8);
            __builtin_memcpy(to + 3 * logits_stride, reinterpret_cast<const float*>(&b) + 2, 8);
        }
    } else {
        Floats t[R][4];
        dot<T, R, 4>(query, stride, keys, offset, size, t);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
            const Four four = sums(t[r][0], t[r][1], t[r][2], t[r][3]);
            __builtin_memcpy(first + r * logits_stride, &four, 8);
            __builtin_memcpy(second + r * logits_stride, reinterpret_cast<const float*>(&four) + 2, 8);
        }
    }
}

// The same with `count` keys that follow each other.
template <class T, int R>
APART void dot_more(const float* query, int64_t stride, const char* const* keys, int64_t offset, int64_t count,
                     int64_t size, float* logits, int64_t logits_stride) {
    for (int64_t j = 0; j < count; j += 4) {
        float four[R * 4];
        dot_four<T, R>(query, stride, keys + j, offset, size, four, four + 2, 4);
        for (int64_t r = 0; r < R; ++r)
            for (int64_t i = j; i < std::min(j + 4, count); ++i) logits[r * logits_stride + i] = four[r * 4 + i - j];
    }
}

// The same with all keys of a run.
template <class T, int R>
void dot_run(const float* query, int64_t stride, const char* const* keys, int64_t offset, const Run& run, int64_t size,
             float* logits, int64_t logits_stride, const Ahead& ahead) {
    const char *const *first = keys + run.first, *const *second = keys + run.second;
    const int64_t both = std::min(run.count, run.second_count) & ~int64_t{1};
    for (int64_t j = 0; j < both; j += 2) {
        if (j < ahead.count) fetch(ahead, j), fetch(ahead, j + 1);
        const char* four[] = {first[j], first[j + 1], second[j], second[j + 1]};
        dot_four<T, R>(query, stride, four, offset, size, logits + run.first + j, logits + run.second + j, logits_stride);
    }
    dot_more<T, R>(query, stride, first + both, offset, run.count - both, size, logits + run.first + both, logits_stride);
    dot_more<T, R>(query, stride, second + both, offset, run.second_count - both, size, logits + run.second + both,
                   logits_stride);
}

// Vectors of columns that are summed at a time for R rows.
template <int R>
constexpr int COLUMNS = R == 4 ? 2 : 4;

// Adds to N vectors of the sums of R rows the weighted values of a run; SOME: `some` elements of one vector.
template <class T, int R, int N, bool SOME>
APART void mix(const float* weights, int64_t weights_stride, const char* const* values, int64_t offset, const Run& run,
               int some, float* sums, int64_t stride) {
    Floats total[R][N];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) total[r][n] = load<Floats>(sums + r * stride + n * W);
    const auto add = [&](int64_t key) INLINE_LAMBDA {
        const T* value = reinterpret_cast<const T*>(values[key] + offset);
        Floats weight[R];
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) weight[r] = held(splat(weights[r * weights_stride + key]));
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) {
            const Floats v = held(SOME ? widen_some(value, some) : widen(value + n * W));
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) total[r][n] += weight[r] * v;
        }
    };
    const int64_t both = std::min(run.count, run.second_count);
    for (int64_t j = 0; j < both; ++j) {
        add(run.first + j);
        add(run.second + j);
    }
    const int64_t longer = run.count > both ? run.first : run.second;
    for (int64_t j = both; j < std::max(run.count, run.second_count); ++j) add(longer + j);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) store(sums + r * stride + n * W, total[r][n]);
}

// All columns of R rows, for all keys of a run.
template <class T, int R>
void mix_run(const float* weights, int64_t weights_stride, const char* const* values, int64_t offset, const Run& run,
             int64_t size, float* sums, int64_t stride, const Ahead& ahead) {
    constexpr int N = COLUMNS<R>;
    const int64_t share = (ahead.count * N * W + size - 1) / size;  // rows to ask for a time
    int64_t column = 0, asked = 0;
    const auto ask = [&](int64_t end) INLINE_LAMBDA {
        for (; asked < std::min(end, ahead.count); ++asked) fetch(ahead, asked);
    };
    for (; column + N * W <= size; column += N * W, offset += N * W * int64_t(sizeof(T))) {
        ask(asked + share);
        mix<T, R, N, false>(weights, weights_stride, values, offset, run, 0, sums + column, stride);
    }
    ask(ahead.count);
    for (; column + W <= size; column += W, offset += W * int64_t(sizeof(T)))
        mix<T, R, 1, false>(weights, weights_stride, values, offset, run, 0, sums + column, stride);
    if (column < size)
        mix<T, R, 1, true>(weights, weights_stride, values, offset, run, int(size - column), sums + column, stride);
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
