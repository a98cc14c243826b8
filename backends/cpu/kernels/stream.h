// Few query rows: K and V are read once, where they lie and in the order in which they lie.
//
// What decides is how the memory is read. Processors fetch ahead by themselves only along runs of addresses, and small
// pages of one head are short ones. So a task has several KV heads and goes block by block, in a block head by head: in
// head-major pages that is one run. The rows a few keys ahead are asked for explicitly, four at a time and in order.
#pragma once

#include "dot.h"
#include "finish.h"
#include "keys.h"
#include "softmax.h"

namespace headstock {

#ifndef HX_MIX
#define HX_MIX 8
#endif
#ifndef HX_AB
#define HX_AB 4096
#endif
constexpr int64_t MOST_AHEAD = 32;   // keys between asking for a row and using it
constexpr int64_t MIX_KEYS = HX_MIX;   // keys whose values are summed before the sums go back to memory
constexpr int64_t LINE = 64;

struct StreamScratch {
    const char *key[STREAM_KEYS + MOST_AHEAD], *value[STREAM_KEYS + MOST_AHEAD];
    float *query, *sums;
    alignas(64) float top[TASK_ROWS], total[TASK_ROWS];
    alignas(64) float logits[TASK_ROWS * STREAM_KEYS];
    alignas(64) float rest[1];

    static int64_t bytes(const Problem& problem) {
        return int64_t(sizeof(StreamScratch)) + TASK_ROWS * (padded_keys(problem) + padded_values(problem)) * 4;
    }

    void carve(const Problem& problem) {
        query = rest;
        sums = rest + TASK_ROWS * padded_keys(problem);
    }
};

// Asks for a row. The loop stays a loop: what fetches ahead by itself follows single instructions and their strides.
INLINE void fetch(const char* row, int64_t bytes) {
#pragma GCC unroll 1
    for (int64_t i = 0; i < bytes; i += LINE) __builtin_prefetch(row + i, 0, 3);
}

template <class T>
struct Stream {
    const Call& call;
    const Task& task;
    const Range heads;
    StreamScratch& scratch;
    const Problem& problem = *call.problem;
    const int64_t group = group_of(problem), rows = task.tokens * group, keys = task.end - task.first;
    const int64_t size = problem.head_size, size_v = problem.head_size_v;
    const int64_t padded = padded_keys(problem), padded_v = padded_values(problem);
    const int64_t unit = unit_of(problem);

    void run() {
        scratch.carve(problem);
        addresses(call, task, task.first, keys, scratch.key, scratch.value);
        for (int64_t i = keys; keys && i < keys + MOST_AHEAD; ++i) {
            scratch.key[i] = scratch.key[keys - 1];
            scratch.value[i] = scratch.value[keys - 1];
        }
        for (int64_t head = heads.first; head < heads.end; ++head) {
            load_queries(call, task, head, padded, query(head));
            std::fill_n(sums(head).values, rows * padded_v, 0.0f);
        }
#ifndef HX_SKIPK
        multiply_keys();
#endif
        for (int64_t i = 0; i < std::min(MOST_AHEAD, keys); ++i)
            fetch(scratch.value[i] + heads.first * call.value_head, size_v * int64_t(sizeof(T)));
        for (int64_t head = heads.first; head < heads.end; ++head)
            for (int64_t r = 0; r < rows; ++r) weigh_row(head, r);
#ifndef HX_SKIPV
        multiply_values();
#endif
        for (int64_t head = heads.first; head < heads.end; ++head) finish(call, task, head, sums(head));
    }

    int64_t row_of(int64_t head) const { return (head - heads.first) * rows; }
    float* query(int64_t head) const { return scratch.query + row_of(head) * padded; }
    float* logits(int64_t head, int64_t r) const { return scratch.logits + (row_of(head) + r) * STREAM_KEYS; }

    Sums sums(int64_t head) const {
        if (task.parts > 1) return part_of(call, task, head, task.part);
        const int64_t row = row_of(head);
        return {scratch.sums + row * padded_v, scratch.top + row, scratch.total + row, padded_v};
    }

    // Calls f(head, key, end of its unit, place ahead) for every `step` of the keys, in the order of memory.
    struct Place { int64_t head, key; };

    template <class F>
    INLINE void walk(Range range, int64_t step, int64_t bytes, F&& f) const {
        const int64_t distance = std::clamp<int64_t>(HX_AB / bytes / 8 * 8, 8, MOST_AHEAD);
        int64_t end = (task.first + range.first) / unit * unit - task.first;
        for (int64_t first = range.first; first < range.end; first = end) {
            end = std::min(range.end, end + unit);
            for (int64_t head = heads.first; head < heads.end; ++head) {
                for (int64_t j = first; j < end; j += step) {
                    Place ahead{head, j + distance};
                    if (ahead.key >= end) {
                        ahead = {head + 1, first + ahead.key - end};
                        if (ahead.head == heads.end) ahead = {heads.first, end + ahead.key - first};
                    }
                    f(head, j, end, Place{ahead.head, std::min(ahead.key, keys)});
                }
            }
        }
    }

    void multiply_keys() {
        const int64_t bytes = size * int64_t(sizeof(T)), stride = call.key_head;
        walk({0, keys}, 4, bytes, [&](int64_t head, int64_t j, int64_t, Place ahead) INLINE_LAMBDA {
#pragma GCC unroll 1
            for (int i = 0; i < 4; ++i) fetch(scratch.key[ahead.key + i] + ahead.head * stride, bytes);
            by_fours(rows, [&](auto count, int64_t r) INLINE_LAMBDA {
                dot_four<T, count>(query(head) + r * padded, padded, scratch.key + j, head * stride, size, logits(head, r) + j,
                              STREAM_KEYS);
            });
        });
    }

    Range seen(int64_t token) const {
        const Range range = visible(problem, task.position + token, task.first, task.end);
        return {range.first - task.first, range.end - task.first};
    }

    void weigh_row(int64_t head, int64_t r) {
        const Range range = seen(r / group);
        const Sums to = sums(head);
        if (range.empty()) {
            to.top[r] = -INFINITY;
            to.total[r] = 0;
            return;
        }
        const float slope = call.slopes ? call.slopes[head * group + r % group] * LOG2_E : 0.0f;
        const Bend bend{float(problem.softcap), slope, float(task.position + r / group)};
        float* row = logits(head, r);
        bend.apply(row, task.first, range.first, range.end);
        to.top[r] = bound(row, range.first, range.end);
        to.total[r] = weigh(row, range.first, range.end, to.top[r]);
    }

    // Keys that all tokens see come first, for all rows at once; then each token's own. No weight of 0 meets a value.
    void multiply_values() {
        Range common{0, keys};
        for (int64_t t = 0; t < task.tokens; ++t) {
            const Range range = seen(t);
            common = {std::max(common.first, range.first), std::min(common.end, range.end)};
        }
        if (common.empty()) common = {0, 0};
        add(common, 0, rows);
        for (int64_t t = 0; task.tokens > 1 && t < task.tokens; ++t) {
            const Range range = seen(t);
            if (common.empty()) {
                add(range, t * group, group);
            } else {
                add({range.first, common.first}, t * group, group);
                add({common.end, range.end}, t * group, group);
            }
        }
    }

    void add(Range range, int64_t first_row, int64_t count) {
        const int64_t stride = call.value_head;
        walk(range, MIX_KEYS, size_v * int64_t(sizeof(T)), [&](int64_t head, int64_t j, int64_t end, Place ahead) INLINE_LAMBDA {
            const Sums to = sums(head);
            const int64_t n = std::min(MIX_KEYS, end - j);
            by_fours(count, [&](auto R, int64_t r) INLINE_LAMBDA {
                mix_rows<R>(logits(head, first_row + r) + j, scratch.value + j, head * stride, n,
                            to.values + (first_row + r) * padded_v, scratch.value + ahead.key, ahead.head * stride, r == 0);
            });
        });
    }

    // All columns of R rows. Rows ahead are asked for between them.
    template <int R>
    INLINE void mix_rows(const float* weights, const char* const* values, int64_t offset, int64_t count, float* sums,
                         const char* const* ahead, int64_t ahead_offset, bool asks) {
        constexpr int N = COLUMNS<R>;
        const int64_t bytes = size_v * int64_t(sizeof(T)), share = std::max<int64_t>(1, MIX_KEYS * N * W / size_v);
        int64_t column = 0, asked = asks ? 0 : MIX_KEYS;
        const auto ask = [&](int64_t more) INLINE_LAMBDA {
            for (; more && asked < MIX_KEYS; --more, ++asked) fetch(ahead[asked] + ahead_offset, bytes);
        };
        for (; column + N * W <= size_v; column += N * W) {
            ask(share);
            mix<T, R, N, false>(weights, STREAM_KEYS, values, offset + column * int64_t(sizeof(T)), count, 0,
                                sums + column, padded_v);
        }
        ask(MIX_KEYS);
        for (; column + W <= size_v; column += W)
            mix<T, R, 1, false>(weights, STREAM_KEYS, values, offset + column * int64_t(sizeof(T)), count, 0,
                                sums + column, padded_v);
        if (column < size_v)
            mix<T, R, 1, true>(weights, STREAM_KEYS, values, offset + column * int64_t(sizeof(T)), count,
                               int(size_v - column), sums + column, padded_v);
    }
};

}  // namespace headstock
