// Many query rows: flash attention (Dao 2023, arXiv 2307.08691) over packed tiles of K and V.
#pragma once

#include "finish.h"
#include "gemm.h"
#include "keys.h"
#include "softmax.h"

namespace headstock {

struct TileScratch {
    const char *key[TILE_KEYS], *value[TILE_KEYS];
    float *query, *packed_keys, *packed_values, *sums, *top, *total;
    alignas(64) float logits[PANEL_ROWS * TILE_KEYS];
    alignas(64) float rest[1];

    static int64_t rows(const Problem& problem) { return std::max(TILE_ROWS, group_of(problem)); }

    static int64_t bytes(const Problem& problem) {
        const int64_t padded_v = padded_values(problem);
        const int64_t floats = rows(problem) * (padded_keys(problem) + padded_v + 2) + TILE_KEYS * (problem.head_size + padded_v);
        return int64_t(sizeof(TileScratch)) + (floats + 6 * 16) * 4;
    }

    void carve(const Problem& problem) {
        float* at = rest;
        const auto take = [&](int64_t floats) { return std::exchange(at, at + rounded_up(floats, 16)); };
        const int64_t padded_v = padded_values(problem);
        packed_keys = take(TILE_KEYS * problem.head_size);
        packed_values = take(TILE_KEYS * padded_v);
        query = take(rows(problem) * padded_keys(problem));
        sums = take(rows(problem) * padded_v);
        top = take(rows(problem));
        total = take(rows(problem));
    }
};

template <class T>
struct Tile {
    const Call& call;
    const Task& task;
    const int64_t head;
    TileScratch& scratch;
    const Problem& problem = *call.problem;
    const int64_t group = group_of(problem), rows = task.tokens * group;
    const int64_t size = problem.head_size, size_v = problem.head_size_v;
    const int64_t padded = padded_keys(problem), padded_v = padded_values(problem);
    Sums sums{};

    void run() {
        scratch.carve(problem);
        sums = task.parts > 1 ? part_of(call, task, head, task.part)
                              : Sums{scratch.sums, scratch.top, scratch.total, padded_v};
        std::fill_n(sums.values, rows * padded_v, 0.0f);
        std::fill_n(sums.top, rows, -INFINITY);
        std::fill_n(sums.total, rows, 0.0f);
        load_queries(call, task, head, padded, scratch.query);
        for (int64_t first = task.first; first < task.end; first += TILE_KEYS) {
            const int64_t count = std::min(TILE_KEYS, task.end - first);
            addresses(call, task, first, count, scratch.key, scratch.value);
            pack_keys(count);
            pack_values(count);
            for (int64_t r = 0; r < rows; r += PANEL_ROWS) panel(r, std::min<int64_t>(PANEL_ROWS, rows - r), first, count);
        }
        finish(call, task, head, sums);
    }

    // Panels of (size, PANEL): the keys are columns. Columns past `count` are 0.
    void pack_keys(int64_t count) {
        for (int64_t j = 0; j < TILE_KEYS; j += W) {
            float* to = scratch.packed_keys + j / PANEL * PANEL * size + j % PANEL;
            int64_t i = 0;
            for (; i < size; i += W) {
                const int n = int(std::min<int64_t>(W, size - i));
                Floats block[W];
                for (int64_t k = 0; k < W; ++k) {
                    const T* row = reinterpret_cast<const T*>(scratch.key[std::min(j + k, count - 1)] + head * call.key_head) + i;
                    block[k] = j + k >= count ? Floats{} : n == W ? widen(row) : widen_some(row, n);
                }
                transpose(block);
                for (int k = 0; k < n; ++k) store(to + (i + k) * PANEL, block[k]);
            }
        }
    }

    // Panels of (TILE_KEYS, PANEL), then of (TILE_KEYS, W) where the head size leaves a rest.
    void pack_values(int64_t count) {
        for (int64_t j = 0; j < count; ++j) {
            const T* row = reinterpret_cast<const T*>(scratch.value[j] + head * call.value_head);
            for (int64_t i = 0; i < padded_v; i += W) {
                const int64_t panel = i / PANEL * PANEL, width = panel + PANEL <= padded_v ? PANEL : W;
                const int64_t first = width == PANEL ? panel : i;
                float* to = scratch.packed_values + first * TILE_KEYS + j * width + (i - first);
                store(to, i + W <= size_v ? widen(row + i) : widen_some(row + i, int(size_v - i)));
            }
        }
    }

    Range seen(int64_t r, int64_t first, int64_t count) const {
        const Range range = visible(problem, task.position + r / group, first, first + count);
        return {range.first - first, range.end - first};
    }

    void panel(int64_t first_row, int64_t count, int64_t first, int64_t keys) {
        Range ranges[PANEL_ROWS], common{0, keys}, any{keys, 0};
        for (int64_t r = 0; r < count; ++r) {
            const Range range = ranges[r] = seen(first_row + r, first, keys);
            common = {std::max(common.first, range.first), std::min(common.end, range.end)};
            if (!range.empty()) any = {std::min(any.first, range.first), std::max(any.end, range.end)};
        }
        if (any.empty()) return;
        float factors[PANEL_ROWS];
        const float* query = scratch.query + first_row * padded;
        for (int64_t j = any.first / PANEL * PANEL; j < any.end; j += PANEL)
            product_of_rows<PANEL_VECTORS, false>(int(count), query, padded, scratch.packed_keys + j * size, size,
                                                  scratch.logits + j, TILE_KEYS, nullptr);
        for (int64_t r = 0; r < count; ++r) factors[r] = weights(first_row + r, r, ranges[r], first);
        float* values = sums.values + first_row * padded_v;
        if (common.empty()) {
            for (int64_t r = 0; r < count; ++r) add(1, r, ranges[r], values + r * padded_v, factors + r);
            return;
        }
        add(int(count), 0, common, values, factors);
        const float one = 1;
        for (int64_t r = 0; r < count; ++r) {  // keys that only some of the rows see: no weight of 0 meets a value
            add(1, r, {ranges[r].first, common.first}, values + r * padded_v, &one);
            add(1, r, {common.end, ranges[r].end}, values + r * padded_v, &one);
        }
    }

    // Turns a row's logits into weights; returns by what the row's sums so far are to be multiplied.
    float weights(int64_t row, int64_t r, Range range, int64_t first) {
        if (range.empty()) return 1;
        float* logits = scratch.logits + r * TILE_KEYS;
        const float slope = call.slopes ? call.slopes[head * group + row % group] * LOG2_E : 0.0f;
        const Bend bend{float(problem.softcap), slope, float(task.position + row / group)};
        bend.apply(logits, first, range.first, range.end);
        const float old = sums.top[row], top = std::max(old, bound(logits, range.first, range.end));
        const float factor = old == top ? 1.0f : std::exp2(old - top);
        sums.top[row] = top;
        sums.total[row] = sums.total[row] * factor + weigh(logits, range.first, range.end, top);
        return factor;
    }

    void add(int count, int64_t r, Range range, float* values, const float* factors) {
        if (range.empty()) return;
        const float* weight = scratch.logits + r * TILE_KEYS + range.first;
        const int64_t keys = range.end - range.first;
        int64_t i = 0;
        for (; i + PANEL <= padded_v; i += PANEL)
            product_of_rows<PANEL_VECTORS, true>(count, weight, TILE_KEYS,
                                                 scratch.packed_values + i * TILE_KEYS + range.first * PANEL, keys,
                                                 values + i, padded_v, factors);
        for (; i < padded_v; i += W)
            product_of_rows<1, true>(count, weight, TILE_KEYS, scratch.packed_values + i * TILE_KEYS + range.first * W,
                                     keys, values + i, padded_v, factors);
    }
};

}  // namespace headstock
