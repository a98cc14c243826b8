// Few query rows: K and V are read once, where they lie and in the order in which they lie.
//
// What decides is how the memory is read. Processors fetch ahead by themselves only along runs of addresses, of which they
// follow several at a time, and small pages of one head are short ones. So a task has several KV heads and goes block by
// block, in a block head by head: in head-major pages that is one run. Two blocks are read in turn, one from each half of
// the keys. And the first rows of the next runs are asked for while these are computed.
#pragma once

#include "dot.h"
#include "finish.h"
#include "keys.h"
#include "softmax.h"

namespace headstock {

constexpr int64_t RUN = 4096;       // bytes of a run that are taken at a time; so many are asked for before they are used
constexpr int64_t MOST_UNIT = 256;  // keys

constexpr int64_t LOGITS = STREAM_KEYS + 16;  // of a row; whole vectors of them are computed

// The runs of some keys and heads, in the order of memory: block by block, in a block head by head, in both halves alike.
struct Walk {
    Range heads;
    int64_t keys, unit, offset, units, step;
    int64_t at = 0, head = heads.first, key = 0;

    int64_t half() const { return (units + 1) / 2; }
    bool done() const { return at >= half(); }

    // Keys of a unit.
    Range bounds(int64_t i) const {
        if (i >= units) return {0, 0};
        return {std::max<int64_t>(0, i * unit - offset), std::min(keys, (i + 1) * unit - offset)};
    }

    // What is left of it, as far as it is taken at a time.
    Range piece(int64_t i) const {
        const Range all = bounds(i);
        const int64_t first = std::min(all.first + key, all.end);
        return {first, std::min(first + step, all.end)};
    }

    Run run() const {
        const Range first = piece(at), second = piece(at + half());
        return {head, first.first, first.end - first.first, second.first, second.end - second.first};
    }

    void next() {
        key += step;
        const Range first = bounds(at), second = bounds(at + half());
        if (key < std::max(first.end - first.first, second.end - second.first)) return;
        key = 0;
        if (++head < heads.end) return;
        head = heads.first;
        ++at;
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
        const int64_t unit = std::min(unit_of(problem), MOST_UNIT), offset = task.first % unit;
        const int64_t units = (keys + offset + unit - 1) / unit;
        return {heads, keys, unit, offset, units, std::clamp<int64_t>(RUN / row_bytes / 4 * 4, 4, 64)};
    }

    // Asks for the first run.
    void ask(const char* const* rows, int64_t head_stride, int64_t row_bytes) {
        const Ahead first = ahead(rows, head_stride, row_bytes);
        for (int64_t i = 0; i < first.count; ++i) fetch(first, i);
    }

    // The next run to ask for.
    Ahead ahead(const char* const* rows, int64_t head_stride, int64_t row_bytes) {
        if (asked.done()) return {};
        const Run run = asked.run();
        asked.next();
        const int64_t count = std::min(run.count, run.second_count) & ~int64_t{1};
        return {rows + run.first, rows + run.second, run.head * head_stride, row_bytes, count};
    }

    void multiply_keys() {
        for (Walk at = walk(bytes); !at.done(); at.next()) {
            const Run run = at.run();
            const Ahead next = ahead(scratch.key, call.key_head, bytes);
            by_fours(rows, [&](auto count, int64_t r) {
                dot_run<T, count>(query(run.head) + r * padded, padded, scratch.key, run.head * call.key_head, run, size,
                                  logits(run.head, r), LOGITS, r ? Ahead{} : next);
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
            const Run all = at.run();
            const Ahead next = ahead(scratch.value, call.value_head, bytes_v);
            const Range a = within(range, all.first, all.count), b = within(range, all.second, all.second_count);
            if (a.empty() && b.empty()) continue;
            const Run run{all.head, a.first, a.end - a.first, b.first, b.end - b.first};
            float* to = sums(run.head).values;
            by_fours(count, [&](auto R, int64_t r) {
                mix_run<T, R>(logits(run.head, first_row + r), LOGITS, scratch.value, run.head * call.value_head, run,
                              size_v, to + (first_row + r) * padded_v, padded_v, r ? Ahead{} : next);
            });
        }
    }

    static Range within(Range range, int64_t first, int64_t count) {
        const int64_t from = std::max(first, range.first);
        return {from, std::max(from, std::min(first + count, range.end))};
    }
};

}  // namespace headstock
