// Where the rows of K and V lie: pages of a cache, or the rows of a ragged batch.
#pragma once

#include "plan.h"
#include "elementary.h"
#include "storage.h"

namespace headstock {

// Writes the addresses of keys first ≤ j < first + count of a task's sequence, for KV head 0.
inline void addresses(const Call& call, const Task& task, int64_t first, int64_t count, const char** key,
                      const char** value) {
    const char *k = call.key, *v = call.value;
    const Batch& batch = call.plan->batch;
    if (batch.table == nullptr) {
        const int64_t start = batch.key_start ? batch.key_start[task.row] : batch.query_start[task.row];
        for (int64_t i = 0; i < count; ++i) {
            key[i] = k + (start + first + i) * call.key_token;
            value[i] = v + (start + first + i) * call.value_token;
        }
        return;
    }
    const int32_t* table = batch.table + task.row * batch.table_stride;
    const int64_t size = call.problem->block_size;
    int64_t block = first / size, offset = first % size;
    for (int64_t i = 0; i < count; ++block, offset = 0) {
        const int64_t run = std::min(size - offset, count - i);
        const char* from_k = k + int64_t(table[block]) * call.key_block + offset * call.key_token;
        const char* from_v = v + int64_t(table[block]) * call.value_block + offset * call.value_token;
        for (const int64_t end = i + run; i < end; ++i) {
            key[i] = from_k;
            value[i] = from_v;
            from_k += call.key_token;
            from_v += call.value_token;
        }
    }
}

// Writes the query rows of one KV head, times all constant factors of a logit, `stride` apart and filled up by zeros.
inline void load_queries(const Call& call, const Task& task, int64_t head, int64_t stride, float* to) {
    const Problem& problem = *call.problem;
    const float factor = float(problem.scale) * (problem.softcap > 0 ? 1.0f : LOG2_E) * (call.key_scales ? call.key_scales[head] : 1.0f);
    const int64_t group = group_of(problem), bytes = element_bytes(call.dtype);
    for (int64_t r = 0; r < task.tokens * group; ++r) {
        const int64_t token = task.token + r / group, h = head * group + r % group;
        const char* from = call.query + (token * call.query_token + h * call.query_head) * bytes;
        with_storage(call.dtype, [&](auto* type) {
            widen_row(reinterpret_cast<decltype(type)>(from), problem.head_size, splat(factor), to + r * stride);
        });
    }
}

}  // namespace headstock
