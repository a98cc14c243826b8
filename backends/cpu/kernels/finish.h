// What a task computed becomes output, or a part that the last of its siblings merges.
#pragma once

#include "elementary.h"
#include "plan.h"
#include "storage.h"

namespace headstock {

// Unnormalised sums of V (rows, stride), with the largest logit of each row and the sum of its weights, in base 2.
struct Sums {
    float *values, *top, *total;
    int64_t stride;
};

// The part of a task in the workspace.
inline Sums part_of(const Call& call, const Task& task, int64_t head, int64_t part) {
    const Problem& problem = *call.problem;
    const int64_t rows = task.tokens * group_of(problem), stride = padded_values(problem);
    const int64_t size = rows * (stride + 2);
    float* at = reinterpret_cast<float*>(call.workspace) + task.partial + (part * problem.kv_heads + head) * size;
    return {at, at + rows * stride, at + rows * stride + rows, stride};
}

// Divides, takes the sink in, and writes rows of output and LSE. Overwrites the sums.
inline void write_out(const Call& call, const Task& task, int64_t head, const Sums& sums) {
    const Problem& problem = *call.problem;
    const int64_t group = group_of(problem), bytes = element_bytes(call.dtype);
    const float scale = call.value_scales ? call.value_scales[head] : 1.0f;
    for (int64_t r = 0; r < task.tokens * group; ++r) {
        const int64_t token = task.token + r / group, h = head * group + r % group;
        float top = sums.top[r], total = sums.total[r], factor = scale;
        if (call.sinks && call.sinks[h] != -INFINITY) {
            const float sink = call.sinks[h] * LOG2_E, highest = sink > top ? sink : top;
            factor *= std::exp2(top - highest);
            total = total * std::exp2(top - highest) + std::exp2(sink - highest);
            top = highest;
        }
        float* values = sums.values + r * sums.stride;
        const Floats by = splat(total == 0 ? 0.0f : factor / total);
        for (int64_t i = 0; i < sums.stride; i += W) store(values + i, load<Floats>(values + i) * by);
        narrow_row(values, problem.head_size_v, call.dtype, call.out + (token * call.out_token + h * call.out_head) * bytes);
        if (call.lse)
            call.lse[token * call.lse_token + h * call.lse_head] = total == 0 ? -INFINITY : (top + std::log2(total)) * LN_2;
    }
}

// Adds the parts up, in their order, in place of the first.
inline void merge(const Call& call, const Task& task, int64_t head) {
    const Sums all = part_of(call, task, head, 0);
    const int64_t rows = task.tokens * group_of(*call.problem);
    for (int64_t part = 1; part < task.parts; ++part) {
        const Sums one = part_of(call, task, head, part);
        for (int64_t r = 0; r < rows; ++r) {
            const float top = std::max(all.top[r], one.top[r]);
            if (top == -INFINITY) continue;
            const float old_by = std::exp2(all.top[r] - top), one_by = std::exp2(one.top[r] - top);
            all.top[r] = top;
            all.total[r] = all.total[r] * old_by + one.total[r] * one_by;
            float *to = all.values + r * all.stride, *from = one.values + r * one.stride;
            for (int64_t i = 0; i < all.stride; i += W)
                store(to + i, load<Floats>(to + i) * old_by + load<Floats>(from + i) * one_by);
        }
    }
}

// Sums of a task: where it has siblings they stand in the workspace already.
inline void finish(const Call& call, const Task& task, int64_t head, const Sums& sums) {
    if (task.parts == 1) return write_out(call, task, head, sums);
    auto& counter = call.plan->counters[size_t(task.counter * call.problem->kv_heads + head)];
    if (counter.fetch_add(1, std::memory_order_acq_rel) + 1 < task.parts) return;
    counter.store(0, std::memory_order_relaxed);
    merge(call, task, head);
    write_out(call, task, head, part_of(call, task, head, 0));
}

}  // namespace headstock
