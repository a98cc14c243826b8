// Few query rows: K and V are read once, where they lie and in the order in which they lie.
//
// What decides is how the memory is read. Processors fetch ahead by themselves only along runs of addresses, and small
// pages of one head are short ones. So a task has several KV heads and goes block by block, in a block head by head: in
// head-major pages that is one run. On top of that the rows of the next run are asked for while these are computed.
#pragma once

#include "dot.h"
#include "finish.h"
#include "keys.h"
#include "softmax.h"

namespace headstock {

constexpr int64_t NEAR = 4096;  // bytes that are asked for before they are used, and about as many that are taken at a time

constexpr int64_t LOGITS = STREAM_KEYS + 16;  // of a row: keys are taken by fours, so up to three are too many

// Keys of one head that lie together, or as many of them as are taken at a time.
struct Run {
    int64_t head, first, count;
};

// The runs of some keys and heads, in the order of memory: block by block, in a block head by head.
struct Walk {
    Range heads;
    int64_t keys, unit, step;
    int64_t unit_first, unit_end, head = heads.first, key = 0;

    bool done() const { return unit_first >= keys; }
    Run run() const { return {head, key, std::min(step, unit_end - key)}; }

    void next() {
        key += step;
        if (key < unit_end) return;
        if (++head == heads.end) {
            head = heads.first;
            unit_first = unit_end;
            unit_end = std::min(keys, unit_end + unit);
        }
        key = unit_first;
    }
};

struct StreamScratch {
    const char *key[STREAM_KEYS + 4], *value[STREAM_KEYS + 4];
    float *query, *sums;
    alignas(64) float top[TASK_ROWS], total[TASK_ROWS];
    alignas(64) float logits[TASK_ROWS * LOGITS];
    alignas(64) float rest[1];

    static int64_t bytes(const Problem& problem) {
        return int64_t(sizeof(StreamScratch)) + TASK_ROWS * (padded_keys(problem) + padded_values(problem)) * 4;
    }

    void carve(const Problem& problem) {
        query = rest;
        sums = rest + TASK_ROWS * padded_keys(problem);
    }
};

template <class T>
struct Stream {
    const Call& call;
    const Task& task;
    const Range heads;
    StreamScratch& scratch;
    const Problem& problem = *call.problem;
    const int64_t group = group_of(problem), rows = task.tokens * group, keys = task.end - task.first;
    const int64_t size = problem.head_size, size_v = problem.head_size_v;
    const int64_t bytes = size * int64_t(sizeof(T)), bytes_v = size_v * int64_t(sizeof(T));
    const int64_t padded = padded_keys(problem), padded_v = padded_values(problem);
    Walk asked{};

    void run() {
        scratch.carve(problem);
        addresses(call, task, task.first, keys, scratch.key, scratch.value);
        for (int64_t i = keys; keys && i < keys + 4; ++i) {
            scratch.key[i] = scratch.key[keys - 1];
            scratch.value[i] = scratch.value[keys - 1];
        }
        asked = walk(bytes);
        ask(scratch.key, call.key_head, bytes);
        for (int64_t head = heads.first; head < heads.end; ++head) {
            load_queries(call, task, head, padded, query(head));
            std::fill_n(sums(head).values, rows * padded_v, 0.0f);
        }
        multiply_keys();
        asked = walk(bytes_v);
        ask(scratch.value, call.value_head, bytes_v);
        for (int64_t head = heads.first; head < heads.end; ++head) {
            for (int64_t r = 0; r < rows; ++r) weigh_row(head, r);
        }
        multiply_values();
        for (int64_t head = heads.first; head < heads.end; ++head) finish(call, task, head, sums(head));
    }

    int64_t row_of(int64_t head) const { return (head - heads.first) * rows; }
    float* query(int64_t head) const { return scratch.query + row_of(head) * padded; }
    float* logits(int64_t head, int64_t r) const { return scratch.logits + (row_of(head) + r) * LOGITS; }

    Sums sums(int64_t head) const {
        if (task.parts > 1) return part_of(call, task, head, task.part);
        const int64_t row = row_of(head);
        return {scratch.sums + row * padded_v, scratch.top + row, scratch.total + row, padded_v};
    }

    Walk walk(int64_t row_bytes) const {
        const int64_t unit = unit_of(problem), first_end = std::min(keys, unit - task.first % unit);
        return {heads, keys, unit, std::clamp<int64_t>(NEAR / row_bytes / 4 * 4, 4, 64), 0, first_end};
    }

    // Asks for the first rows.
    void ask(const char* const* rows, int64_t head_stride, int64_t row_bytes) {
        for (int64_t left = NEAR; left > 0 && !asked.done(); asked.next()) {
            const Run run = asked.run();
            left -= run.count * row_bytes;
            for (int64_t i = 0; i < run.count; ++i) fetch(rows[run.first + i] + run.head * head_stride, row_bytes);
        }
    }

    // The next run to ask for, unless that is far enough ahead.
    Ahead ahead(const char* const* rows, int64_t head_stride, int64_t row_bytes) {
        if (asked.done()) return {};
        const Run run = asked.run();
        asked.next();
        return {rows + run.first, run.head * head_stride, row_bytes, run.count};
    }

    void multiply_keys() {
        for (Walk at = walk(bytes); !at.done(); at.next()) {
            const Run run = at.run();
            const Ahead next = ahead(scratch.key, call.key_head, bytes);
            by_fours(rows, [&](auto count, int64_t r) {
                dot_run<T, count>(query(run.head) + r * padded, padded, scratch.key + run.first, run.head * call.key_head,
                                  run.count, size, logits(run.head, r) + run.first, LOGITS, r ? Ahead{} : next);
            });
        }
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
        for (Walk at = walk(bytes_v); !at.done(); at.next()) {
            const Run run = at.run();
            const Ahead next = ahead(scratch.value, call.value_head, bytes_v);
            const int64_t first = std::max(run.first, range.first), n = std::min(run.first + run.count, range.end) - first;
            if (n <= 0) continue;
            float* to = sums(run.head).values;
            by_fours(count, [&](auto R, int64_t r) {
                mix_run<T, R>(logits(run.head, first_row + r) + first, LOGITS, scratch.value + first,
                              run.head * call.value_head, n, size_v, to + (first_row + r) * padded_v, padded_v,
                              r ? Ahead{} : next);
            });
        }
    }
};

}  // namespace headstock
