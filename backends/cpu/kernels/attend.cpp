// The functions that Python calls.

#include "stream.h"
#include "tile.h"

namespace headstock {
namespace {

void compute(const Call& call, const Task& task, Range heads, char* scratch) {
    with_storage(call.storage, [&](auto* type) {
        using T = std::remove_const_t<std::remove_pointer_t<decltype(type)>>;
        if (task.stream)
            Stream<T>{call, task, heads, *reinterpret_cast<StreamScratch*>(scratch)}.run();
        else
            Tile<T>{call, task, heads.first, *reinterpret_cast<TileScratch*>(scratch)}.run();
    });
}

// One call: threads take the next task until none is left.
struct Team {
    const Call& call;
    char* scratch;
    std::atomic<int64_t> next{0}, threads{0};

    static void work(void* self) { static_cast<Team*>(self)->work(); }

    void work() {
        const Plan& plan = *call.plan;
        char* mine = scratch + threads.fetch_add(1, std::memory_order_relaxed) * plan.scratch;
        const int64_t items = int64_t(plan.items.size());
        for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < items;) {
            const Item& item = plan.items[size_t(i)];
            compute(call, plan.tasks[size_t(item.task)], {item.first_head, item.end_head}, mine);
        }
    }
};

// Rows of the output past the last real token stay finite.
void clear_padding(const Call& call) {
    const Problem& problem = *call.problem;
    const int64_t bytes = element_bytes(call.dtype);
    for (int64_t t = call.plan->tokens; t < call.out_tokens; ++t) {
        for (int64_t h = 0; h < problem.heads; ++h) {
            std::memset(call.out + (t * call.out_token + h * call.out_head) * bytes, 0, size_t(problem.head_size_v * bytes));
            if (call.lse) call.lse[t * call.lse_token + h * call.lse_head] = 0;
        }
    }
}

int64_t partial_bytes(const Plan& plan) { return rounded_up(plan.partials * 4, 64); }

}  // namespace

extern "C" {
#pragma GCC visibility push(default)

int64_t headstock_abi() { return ABI * 1000000 + int64_t(sizeof(Problem) + sizeof(Batch) + sizeof(Call)); }

int64_t headstock_width() { return W; }

Plan* headstock_plan_new() { return new Plan; }

void headstock_plan_free(Plan* plan) { delete plan; }

// Plans a step; returns the bytes of workspace that each of its calls needs.
int64_t headstock_plan_fill(Plan* plan, const Problem* problem, const Batch* batch, int64_t threads) {
    fill(*plan, *problem, *batch, threads);
    return partial_bytes(*plan) + plan->scratch * plan->threads + 64;
}

void headstock_attend(const Call* call) {
    Plan& plan = *call->plan;
    Call aligned = *call;
    aligned.workspace += -reinterpret_cast<uintptr_t>(call->workspace) % 64;
    clear_padding(aligned);
    Team team{aligned, aligned.workspace + partial_bytes(plan)};
    if (plan.threads > 1)
        aligned.parallel(Team::work, &team, unsigned(plan.threads), 0);
    else
        team.work();
}

#pragma GCC visibility pop
}  // extern "C"

}  // namespace headstock
