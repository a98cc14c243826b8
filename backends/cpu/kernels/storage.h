// How K, V, queries and outputs are stored, and how W of their elements become a vector of floats.
#pragma once

#include <cmath>
#include <cstring>

#include "abi.h"
#include "vector.h"

namespace headstock {

struct Bf16 { uint16_t raw; };
struct Fp16 { uint16_t raw; };
struct E4m3 { uint8_t raw; };
struct E4m3fnuz { uint8_t raw; };
struct E5m2 { uint8_t raw; };

// Half precision by integer arithmetic, exact for subnormals, infinities and NaN, whatever the denormal mode.
INLINE Floats from_half(Halves h) {
#if defined(__F16C__)
    if constexpr (W == 8) return bits<Floats>(_mm256_cvtph_ps(bits<__m128i>(h)));
#endif
    const Words u = wide(h);
    const Words magnitude = (u & 0x7fffu) << 13, exponent = u & 0x7c00u;
    const Words least = magnitude + (113u << 23);
    const Floats subnormal = bits<Floats>(least) - splat(6.103515625e-05f);
    const Floats normal = bits<Floats>(magnitude + (exponent == 0x7c00u ? Words{} + (224u << 23) : Words{} + (112u << 23)));
    const Floats value = exponent == 0u ? subnormal : normal;
    return bits<Floats>(bits<Words>(value) | (u & 0x8000u) << 16);
}

INLINE Floats widen(const float* p) { return load<Floats>(p); }

INLINE Floats widen(const Bf16* p) {
    return bits<Floats>(wide(load<Halves>(p)) << 16);
}

INLINE Floats widen(const Fp16* p) { return from_half(load<Halves>(p)); }

INLINE Floats widen(const E5m2* p) { return from_half(wide(load<Bytes>(p)) << 8); }

// Four bits of exponent fit into half precision's five: the value is that of a half, times a power of two.
INLINE Halves as_half(Halves u) { return (u & 0x7f) << 7 | (u & 0x80) << 8; }

INLINE Floats widen(const E4m3* p) {
    const Halves h = as_half(wide(load<Bytes>(p)));
    return from_half(h | (bits<Halves>((h & 0x7fff) == 0x3f80) & 0x7c00)) * 256.0f;  // all ones but the sign is NaN
}

INLINE Floats widen(const E4m3fnuz* p) {
    const Halves h = as_half(wide(load<Bytes>(p)));
    return from_half(h | (bits<Halves>(h == 0x8000) & 0x7e00)) * 128.0f;  // what would be -0 is NaN
}

INLINE Floats widen(const int8_t* p) {
    return __builtin_convertvector(wide_signed(load<Bytes>(p)), Floats);
}

// The first n < W elements, and zeros: nothing past them is read.
template <class T>
INLINE Floats widen_some(const T* p, int n) {
    T some[W] = {};
    for (int i = 0; i < n; ++i) some[i] = p[i];
    return widen(some);
}

// A row of n elements as floats times `factor`, filled up to a multiple of W by zeros.
template <class T>
inline void widen_row(const T* p, int64_t n, Floats factor, float* to) {
    int64_t i = 0;
    for (; i + W <= n; i += W) store(to + i, widen(p + i) * factor);
    if (i < n) store(to + i, widen_some(p + i, int(n - i)) * factor);
}

// Nearest, ties to even.
inline uint16_t to_bf16(float x) {
    const uint32_t u = bits<uint32_t>(x);
    return x != x ? 0x7fc0 : uint16_t((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

inline uint16_t to_fp16(float x) {
    const uint32_t u = bits<uint32_t>(x), sign = u >> 16 & 0x8000, magnitude = u & 0x7fffffff;
    if (magnitude > 0x7f800000) return 0x7e00;
    if (magnitude >= 0x477ff000) return uint16_t(sign | 0x7c00);          // 65520 and above round to infinity
    if (magnitude < 0x38800000) {                                         // subnormal: adding 0.5 shifts it into place
        const float shifted = bits<float>(magnitude) + 0.5f;
        return uint16_t(sign | (bits<uint32_t>(shifted) - bits<uint32_t>(0.5f)));
    }
    return uint16_t(sign | (magnitude + 0xfff + (magnitude >> 13 & 1) - (112u << 23)) >> 13);
}

inline void narrow_row(const float* from, int64_t n, int64_t dtype, char* to) {
    if (dtype == FP32) {
        std::memcpy(to, from, size_t(n) * 4);
        return;
    }
    auto* raw = reinterpret_cast<uint16_t*>(to);
    if (dtype == BF16) {
        for (int64_t i = 0; i < n; ++i) raw[i] = to_bf16(from[i]);
    } else {
        for (int64_t i = 0; i < n; ++i) raw[i] = to_fp16(from[i]);
    }
}

constexpr int64_t element_bytes(int64_t storage) { return storage == FP32 ? 4 : storage <= FP16 ? 2 : 1; }

// Calls `f` with a null pointer of the element type.
template <class F>
INLINE void with_storage(int64_t storage, F&& f) {
    switch (storage) {
        case FP32: return f(static_cast<const float*>(nullptr));
        case BF16: return f(static_cast<const Bf16*>(nullptr));
        case FP16: return f(static_cast<const Fp16*>(nullptr));
        case E4M3: return f(static_cast<const E4m3*>(nullptr));
        case E4M3FNUZ: return f(static_cast<const E4m3fnuz*>(nullptr));
        case E5M2: return f(static_cast<const E5m2*>(nullptr));
        default: return f(static_cast<const int8_t*>(nullptr));
    }
}

}  // namespace headstock
