// One row of logits becomes weights, in base 2.
#pragma once

#include "elementary.h"
#include "task.h"

namespace headstock {

// What is done to a logit on its way, of one query head.
struct Bend {
    float cap;        // 0: none. The logits come without the factor log2(e) then, and leave with it
    float slope;      // of ALiBi, times log2(e); 0: none
    float position;   // of the query

    // `logits` are those of keys `key`, key + 1, …; the elements first ≤ i < end are changed, and some beside them.
    INLINE void apply(float* logits, int64_t key, int64_t first, int64_t end) const {
        if (cap != 0) {
            for (int64_t i = first / W * W; i < end; i += W) {
                const Floats x = load<Floats>(logits + i) / cap;
                store(logits + i, hyperbolic_tangent(x) * (cap * LOG2_E));
            }
        }
        if (slope != 0) {
            for (int64_t i = first / W * W; i < end; i += W) {
                const Floats distance = ramp() + (float(key + i) - position);
                store(logits + i, load<Floats>(logits + i) - slope * (distance < 0.0f ? -distance : distance));
            }
        }
    }
};

// The elements beside first ≤ i < end, out to whole vectors, become -inf; returns the largest of all.
INLINE float bound(float* logits, int64_t first, int64_t end) {
    for (int64_t i = first / W * W; i < first; ++i) logits[i] = -INFINITY;
    for (int64_t i = end; i < rounded_up(end, W); ++i) logits[i] = -INFINITY;
    Floats top = splat(-INFINITY);
    for (int64_t i = first / W * W; i < end; i += W) top = maximum(load<Floats>(logits + i), top);
    return largest(top);
}

// Logits become 2^(logit - top); returns their sum.
INLINE float weigh(float* logits, int64_t first, int64_t end, float top) {
    const Floats shift = splat(top == -INFINITY ? 0.0f : top);
    Floats total{};
    for (int64_t i = first / W * W; i < end; i += W) {
        const Floats p = power_of_two(load<Floats>(logits + i) - shift);
        store(logits + i, p);
        total += p;
    }
    return sum(total);
}

}  // namespace headstock
