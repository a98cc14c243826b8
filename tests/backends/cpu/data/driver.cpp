// Runs the kernels without Python, against sums in double precision: for machines that only an emulator stands for.
// Prints a line a case, and ends with 1 if one is off.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "abi.h"
#include "storage.h"

using namespace headstock;

extern "C" {
int64_t headstock_width();
Plan* headstock_plan_new();
void headstock_plan_free(Plan*);
int64_t headstock_plan_fill(Plan*, const Problem*, const Batch*, int64_t threads);
void headstock_attend(const Call*);
}

namespace {

struct Case {
    const char* name;
    Storage dtype;
    int64_t heads, kv_heads, size, block, left;
    double softcap;
    std::vector<int32_t> queries, keys;
    double tolerance;
};

// What is stored for x, and the value that it stands for.
double put(std::vector<char>& to, size_t i, float x, Storage dtype) {
    if (dtype == FP32) return reinterpret_cast<float*>(to.data())[i] = x;
    const uint16_t raw = dtype == BF16 ? to_bf16(x) : to_fp16(x);
    reinterpret_cast<uint16_t*>(to.data())[i] = raw;
    if (dtype == BF16) return bits<float>(uint32_t(raw) << 16);
    const int exponent = raw >> 10 & 31, mantissa = raw & 1023;
    const double size = exponent ? std::ldexp(1024 + mantissa, exponent - 25) : std::ldexp(mantissa, -24);
    return raw & 0x8000 ? -size : size;
}

double get(const std::vector<char>& from, size_t i, Storage dtype) {
    if (dtype == FP32) return reinterpret_cast<const float*>(from.data())[i];
    const uint16_t raw = reinterpret_cast<const uint16_t*>(from.data())[i];
    if (dtype == BF16) return bits<float>(uint32_t(raw) << 16);
    const int exponent = raw >> 10 & 31, mantissa = raw & 1023;
    const double size = exponent ? std::ldexp(1024 + mantissa, exponent - 25) : std::ldexp(mantissa, -24);
    return raw & 0x8000 ? -size : size;
}

// Largest error of a case: a paged cache in head-major order, its blocks in reverse.
double error_of(const Case& c) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    const int64_t bytes = element_bytes(c.dtype), rows = int64_t(c.keys.size()), group = c.heads / c.kv_heads;
    std::vector<int32_t> starts{0}, table;
    int64_t width = 0, blocks = 1;
    for (int32_t n : c.queries) starts.push_back(starts.back() + n);
    for (int32_t n : c.keys) width = std::max<int64_t>(width, (n + c.block - 1) / c.block), blocks += (n + c.block - 1) / c.block;
    table.assign(size_t(rows * width), 0);
    for (int64_t row = 0, next = blocks - 1; row < rows; ++row)
        for (int64_t i = 0; i * c.block < c.keys[size_t(row)]; ++i) table[size_t(row * width + i)] = int32_t(next--);
    const auto tensor = [&](int64_t n, std::vector<double>& exact) {
        std::vector<char> stored(size_t(n * bytes));
        exact.resize(size_t(n));
        for (size_t i = 0; i < size_t(n); ++i) exact[i] = put(stored, i, normal(random), c.dtype);
        return stored;
    };
    std::vector<double> q, k, v;
    const std::vector<char> query = tensor(starts.back() * c.heads * c.size, q);
    const std::vector<char> key = tensor(blocks * c.kv_heads * c.block * c.size, k);
    const std::vector<char> value = tensor(blocks * c.kv_heads * c.block * c.size, v);
    std::vector<char> out(query.size());
    const double scale = 1 / std::sqrt(double(c.size));
    const Problem problem{c.heads, c.kv_heads, c.size, c.size, c.block, 1, c.left, -1, scale, c.softcap};
    const Batch batch{starts.data(), c.keys.data(), nullptr, table.data(), width, rows};
    Plan* plan = headstock_plan_new();
    std::vector<char> workspace(size_t(headstock_plan_fill(plan, &problem, &batch, 1)));
    Call call{};
    call.problem = &problem;
    call.key = key.data(), call.value = value.data();
    call.storage = call.dtype = c.dtype;
    call.key_token = call.value_token = c.size * bytes;
    call.key_head = call.value_head = c.block * c.size * bytes;
    call.key_block = call.value_block = c.kv_heads * call.key_head;
    call.plan = plan, call.workspace = workspace.data();
    call.query = query.data(), call.query_token = c.heads * c.size, call.query_head = c.size;
    call.out = out.data(), call.out_token = c.heads * c.size, call.out_head = c.size, call.out_tokens = starts.back();
    headstock_attend(&call);
    headstock_plan_free(plan);
    double worst = 0;
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t keys = c.keys[size_t(row)], queries = c.queries[size_t(row)];
        for (int64_t t = 0; t < queries; ++t) {
            const int64_t last = keys - queries + t, first = c.left < 0 ? 0 : std::max<int64_t>(0, last - c.left);
            for (int64_t h = 0; h < c.heads; ++h) {
                const double* one = &q[size_t(((starts[size_t(row)] + t) * c.heads + h) * c.size)];
                const auto at = [&](int64_t j) {
                    const int64_t block = table[size_t(row * width + j / c.block)];
                    return size_t(((block * c.kv_heads + h / group) * c.block + j % c.block) * c.size);
                };
                std::vector<double> sums(size_t(c.size), 0.0);
                double total = 0;
                for (int64_t j = first; j <= last; ++j) {
                    double logit = 0;
                    for (int64_t i = 0; i < c.size; ++i) logit += one[i] * k[at(j) + size_t(i)];
                    logit *= scale;
                    if (c.softcap > 0) logit = c.softcap * std::tanh(logit / c.softcap);
                    const double weight = std::exp(logit);
                    total += weight;
                    for (int64_t i = 0; i < c.size; ++i) sums[size_t(i)] += weight * v[at(j) + size_t(i)];
                }
                for (int64_t i = 0; i < c.size; ++i) {
                    const size_t where = size_t(((starts[size_t(row)] + t) * c.heads + h) * c.size + i);
                    const double error = std::abs(get(out, where, c.dtype) - sums[size_t(i)] / total);
                    worst = error > worst || error != error ? error : worst;
                }
            }
        }
    }
    return worst;
}

}  // namespace

int main() {
    const Case cases[] = {
        {"decode", FP32, 9, 3, 64, 16, -1, 0, {1, 1, 1}, {700, 33, 1}, 1e-5},
        {"decode of four rows", FP32, 8, 2, 128, 16, -1, 0, {1, 1}, {1100, 17}, 1e-5},
        {"odd sizes", FP32, 5, 1, 44, 3, -1, 0, {1, 2}, {301, 50}, 1e-5},
        {"prompt", FP32, 6, 2, 64, 16, -1, 0, {70}, {70}, 1e-5},
        {"chunk with a window and a softcap", FP32, 4, 4, 80, 16, 40, 20, {50, 1}, {230, 90}, 1e-5},
        {"decode, bfloat16", BF16, 9, 3, 64, 16, -1, 0, {1, 1}, {600, 5}, 1e-2},
        {"prompt, bfloat16", BF16, 4, 2, 64, 16, -1, 0, {60}, {60}, 2e-2},
        {"decode, float16", FP16, 4, 2, 64, 32, -1, 0, {1, 1}, {600, 5}, 2e-3},
        {"prompt, float16", FP16, 4, 2, 64, 32, -1, 0, {60}, {60}, 2e-3},
    };
    bool good = true;
    for (const Case& c : cases) {
        const double error = error_of(c);
        const bool right = error <= c.tolerance;
        std::printf("%s %s: error %.2g, allowed %.2g\n", right ? "ok" : "WRONG", c.name, error, c.tolerance);
        good = good && right;
    }
    std::printf("%d floats a vector\n", int(headstock_width()));
    return good ? 0 : 1;
}
