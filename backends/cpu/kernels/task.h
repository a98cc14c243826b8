// A task: some query tokens of one sequence, with all query heads of one KV head, over some of the keys.
#pragma once

#include <algorithm>

#include "abi.h"
#include "vector.h"

namespace headstock {

// Fixed sizes, so that a row's result depends on nothing but itself: neither batch mates nor the number of threads.
constexpr int64_t STREAM_ROWS = 16;    // up to so many query rows, K and V are read once and never copied
constexpr int64_t STREAM_KEYS = 512;   // keys of one task then
constexpr int64_t TASK_ROWS = 64;      // query rows of all KV heads of one task then
constexpr int64_t TILE_ROWS = 144;     // query rows of a tile
constexpr int64_t TILE_KEYS = 64;      // keys that are packed at a time
constexpr int64_t SPLIT_KEYS = 4096;   // keys of one task of tiles

struct Task {
    bool stream;              // by `Stream`, not by `Tile`
    int32_t row;              // in the batch
    int32_t token, tokens;    // query tokens, counted in the batch
    int32_t position;         // of the first of them, counted in keys; negative where it has none
    int32_t keys;             // of the sequence
    int32_t first, end;       // keys of this task
    int32_t part, parts;      // of the same tokens
    int32_t counter;          // of the finished parts
    int64_t partial;          // floats into the workspace, where there are several parts
};

struct Range {
    int64_t first, end;
    bool empty() const { return end <= first; }
};

// Keys that a query at `position` sees, of those first ≤ j < end.
INLINE Range visible(const Problem& problem, int64_t position, int64_t first, int64_t end) {
    if (problem.causal) end = std::min(end, position + 1);
    if (problem.left >= 0) first = std::max(first, position - problem.left);
    if (problem.right >= 0) end = std::min(end, position + problem.right + 1);
    return {first, std::max(first, end)};
}

inline int64_t group_of(const Problem& problem) { return problem.heads / problem.kv_heads; }

inline bool streams(const Problem& problem, int64_t tokens) { return tokens * group_of(problem) <= STREAM_ROWS; }

// Keys that lie together: a block, or as many small ones as make 16.
inline int64_t unit_of(const Problem& problem) { return rounded_up(std::max<int64_t>(16, problem.block_size), problem.block_size); }

inline int64_t padded_keys(const Problem& problem) { return rounded_up(problem.head_size, W); }
inline int64_t padded_values(const Problem& problem) { return rounded_up(problem.head_size_v, W); }

// Floats of one part: the sums of V (rows, padded head size), and maximum and denominator a row.
inline int64_t partial_floats(const Problem& problem, int64_t tokens) {
    return tokens * group_of(problem) * (rounded_up(problem.head_size_v, W) + 2);
}

}  // namespace headstock
