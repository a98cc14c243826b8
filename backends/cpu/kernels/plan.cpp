// Cutting a step into tasks.

#include "plan.h"

#include "stream.h"
#include "tile.h"

namespace headstock {
namespace {

// Keys that any of the tokens sees.
Range seen_by_any(const Problem& problem, int64_t position, int64_t tokens, int64_t keys) {
    const Range first = visible(problem, position, 0, keys);
    const Range last = visible(problem, position + tokens - 1, 0, keys);
    return {std::min(first.first, last.first), std::max(first.end, last.end)};
}

int64_t work(const Task& task) { return int64_t(task.tokens) * (task.end - task.first); }

// Appends the tasks of one block of query tokens: one, or a part for each stretch of `split` keys that it sees.
void append(Plan& plan, const Problem& problem, Task task, int64_t split, int32_t& counters) {
    const Range keys = seen_by_any(problem, task.position, task.tokens, task.keys);
    const int64_t first = keys.first / split, end = keys.empty() ? first + 1 : (keys.end + split - 1) / split;
    task.parts = int32_t(end - first);
    if (task.parts > 1) {
        task.counter = counters++;
        task.partial = plan.partials;
        plan.partials += partial_floats(problem, task.tokens) * task.parts * problem.kv_heads;
    }
    for (int64_t part = first; part < end; ++part) {
        task.part = int32_t(part - first);
        task.first = int32_t(std::max(keys.first, part * split));
        task.end = int32_t(std::max<int64_t>(task.first, std::min(keys.end, (part + 1) * split)));
        plan.tasks.push_back(task);
    }
}

void make_counters(Plan& plan, int64_t count) {
    plan.num_counters = count;
    if (count <= plan.counter_room) return;
    plan.counter_room = std::max(count, 2 * plan.counter_room);
    plan.counters = std::make_unique<std::atomic<int32_t>[]>(size_t(plan.counter_room));
    for (int64_t i = 0; i < plan.counter_room; ++i) plan.counters[size_t(i)].store(0, std::memory_order_relaxed);
}

// KV heads of one item: many, since they lie together; fewer where threads would go idle. No result depends on it.
int64_t heads_of_items(const Plan& plan, const Problem& problem, int64_t threads) {
    int64_t heads = 1, count = 0, rows = 1;
    for (const Task& task : plan.tasks)
        if (task.stream) ++count, rows = std::max(rows, task.tokens * group_of(problem));
    heads = std::min(problem.kv_heads, TASK_ROWS / rows);
    while (heads > 1 && count * ((problem.kv_heads + heads - 1) / heads) < 4 * threads) heads = (heads + 1) / 2;
    return heads;
}

void make_items(Plan& plan, const Problem& problem, int64_t threads) {
    plan.items.clear();
    int64_t total = 0;
    for (const Task& task : plan.tasks) total += work(task) * problem.heads;
    plan.threads = std::max<int64_t>(1, std::min(threads, total / 2048));
    const int64_t several = heads_of_items(plan, problem, plan.threads);
    for (size_t i = 0; i < plan.tasks.size(); ++i) {
        const int64_t step = plan.tasks[i].stream ? several : 1;
        for (int64_t h = 0; h < problem.kv_heads; h += step)
            plan.items.push_back({int32_t(i), int32_t(h), int32_t(std::min(h + step, problem.kv_heads))});
    }
    plan.threads = std::min(plan.threads, std::max<int64_t>(1, int64_t(plan.items.size())));
}

}  // namespace

void fill(Plan& plan, const Problem& problem, const Batch& batch, int64_t threads) {
    plan.batch = batch;
    plan.tasks.clear();
    plan.partials = 0;
    plan.tokens = batch.rows ? batch.query_start[batch.rows] : 0;
    const int64_t group = group_of(problem);
    int32_t counters = 0;
    for (const bool streaming : {false, true}) {
        for (int64_t row = 0; row < batch.rows; ++row) {
            const int64_t start = batch.query_start[row], tokens = batch.query_start[row + 1] - start;
            if (tokens == 0 || streams(problem, tokens) != streaming) continue;
            const int64_t keys = batch.table || !batch.key_start ? batch.seq_lens[row]
                                                                 : batch.key_start[row + 1] - batch.key_start[row];
            const int64_t block = streaming ? tokens : std::max<int64_t>(1, TILE_ROWS / group);
            for (int64_t t = 0; t < tokens; t += block) {
                Task task{};
                task.stream = streaming;
                task.row = int32_t(row);
                task.token = int32_t(start + t);
                task.tokens = int32_t(std::min(block, tokens - t));
                task.position = int32_t(keys - tokens + t);
                task.keys = int32_t(keys);
                append(plan, problem, task, streaming ? STREAM_KEYS : SPLIT_KEYS, counters);
            }
        }
        if (!streaming)  // the longest first: they are the ones that a thread could be left alone with
            std::stable_sort(plan.tasks.begin(), plan.tasks.end(), [](auto& a, auto& b) { return work(a) > work(b); });
    }
    make_counters(plan, counters * problem.kv_heads);
    const bool any = !plan.tasks.empty(), tiles = any && !plan.tasks.front().stream, streams = any && plan.tasks.back().stream;
    plan.scratch = rounded_up(std::max(tiles ? TileScratch::bytes(problem) : 0, streams ? StreamScratch::bytes(problem) : 0), 64) + 128;
    make_items(plan, problem, threads);
}

}  // namespace headstock
