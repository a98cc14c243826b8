// A plan: the tasks of one step. The same for every KV head and layer.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "task.h"

namespace headstock {

// A task for some KV heads: what one thread does at a time.
struct Item {
    int32_t task, first_head, end_head;
};

struct Plan {
    Batch batch{};
    std::vector<Task> tasks;
    std::vector<Item> items;
    int64_t tokens = 0;           // real ones; what the output has beyond is padding
    int64_t partials = 0;         // floats, for all KV heads
    int64_t scratch = 0;          // bytes a thread
    int64_t threads = 1;          // worth waking
    std::unique_ptr<std::atomic<int32_t>[]> counters;  // one a group of parts and KV head; 0 between calls
    int64_t num_counters = 0, counter_room = 0;
};

// Makes the tasks of a step for at most so many threads.
void fill(Plan& plan, const Problem& problem, const Batch& batch, int64_t threads);

}  // namespace headstock
