// What crosses the border to Python: plain structs of 8-byte fields, in the order in which structs.py packs them.
#pragma once

#include <cstdint>

namespace headstock {

constexpr int64_t ABI = 2;

// What an instance bakes in. Raising a window side to -1 means no bound; softcap 0 means off.
struct Problem {
    int64_t heads, kv_heads, head_size, head_size_v, block_size, causal, left, right;
    double scale, softcap;
};

// One step. Arrays are int32; key_start is null over a cache, table is null for ragged keys.
struct Batch {
    const int32_t *query_start, *seq_lens, *key_start, *table;
    int64_t table_stride, rows;
};

// Runs `work(data)` on so many threads of the pool that torch uses: GOMP_parallel of its OpenMP runtime.
using Parallel = void (*)(void (*work)(void*), void* data, unsigned threads, unsigned flags);

struct Plan;

// One layer of one step. The first part is the layer's, the second is packed anew for each call.
struct Call {
    const Problem* problem;
    Parallel parallel;
    const char *key, *value;                                        // planes, or ragged rows
    int64_t storage;                                                // of K and V, a Storage
    int64_t key_block, key_token, key_head;                         // strides in bytes
    int64_t value_block, value_token, value_head;
    const float *key_scales, *value_scales;                         // one a KV head, or null
    const float *sinks, *slopes;                                    // one a query head, or null
    int64_t dtype;                                                  // of query and output, a Storage
    Plan* plan;
    char* workspace;
    const char* query;
    int64_t query_token, query_head;                                // strides in elements
    char* out;
    int64_t out_token, out_head, out_tokens;
    float* lse;
    int64_t lse_token, lse_head;
};

enum Storage : int64_t { FP32, BF16, FP16, E4M3, E4M3FNUZ, E5M2, INT8 };

}  // namespace headstock
