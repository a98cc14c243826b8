// Vectors of W floats, W being the width this library is compiled for, through the vector extensions of GCC and Clang.
#pragma once

#include <cstdint>
#include <utility>
#ifdef __AVX2__
#include <immintrin.h>
#endif

#define INLINE inline __attribute__((always_inline))
#define APART __attribute__((noinline))  // a copy instead of one for each call: it takes long to compile
#define INLINE_LAMBDA __attribute__((always_inline))

namespace headstock {

#ifdef HEADSTOCK_WIDTH
constexpr int W = HEADSTOCK_WIDTH;
#elif defined(__AVX512F__)
constexpr int W = 16;
#elif defined(__AVX2__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif
#if defined(__AVX512F__)
constexpr int NATIVE = 16;
#elif defined(__AVX__)
constexpr int NATIVE = 8;
#else
constexpr int NATIVE = 4;
#endif
constexpr int LANES = W / 4;  // of 128 bits: shuffles within one are cheap everywhere

typedef float Floats __attribute__((vector_size(W * 4)));
typedef int32_t Ints __attribute__((vector_size(W * 4)));
typedef uint32_t Words __attribute__((vector_size(W * 4)));
typedef uint16_t Halves __attribute__((vector_size(W * 2)));
typedef uint8_t Bytes __attribute__((vector_size(W)));
typedef float Four __attribute__((vector_size(16)));

template <class V>
INLINE V load(const void* p) {
    V v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}

template <class V>
INLINE void store(void* p, V v) {
    __builtin_memcpy(p, &v, sizeof v);
}

template <class To, class From>
INLINE To bits(From v) {
    static_assert(sizeof(To) == sizeof(From));
    return load<To>(&v);
}

// Unsigned integers of twice the size. Compilers split what is one instruction here.
INLINE Words wide(Halves v) {
#ifdef __AVX2__
    if constexpr (W == 8) return bits<Words>(_mm256_cvtepu16_epi32(bits<__m128i>(v)));
#endif
    return __builtin_convertvector(v, Words);
}

INLINE Halves wide(Bytes v) {
#ifdef __AVX2__
    if constexpr (W == 8) return bits<Halves>(_mm_cvtepu8_epi16(_mm_cvtsi64_si128(bits<int64_t>(v))));
#endif
    return __builtin_convertvector(v, Halves);
}

// The same for signed ones, from bytes to words.
INLINE Ints wide_signed(Bytes v) {
#ifdef __AVX2__
    if constexpr (W == 8) return bits<Ints>(_mm256_cvtepi8_epi32(_mm_cvtsi64_si128(bits<int64_t>(v))));
#endif
    typedef int8_t Small __attribute__((vector_size(W)));
    return __builtin_convertvector(bits<Small>(v), Ints);
}

namespace detail {
template <int... I>
INLINE Floats splat(float x, std::integer_sequence<int, I...>) {
    return Floats{(static_cast<void>(I), x)...};
}
template <int... I>
INLINE Floats ramp(std::integer_sequence<int, I...>) {
    return Floats{float(I)...};
}
template <class Pattern, int... I>
INLINE Floats shuffle(Floats a, Floats b, std::integer_sequence<int, I...>) {
#if defined(__has_builtin) && __has_builtin(__builtin_shufflevector)
    return __builtin_shufflevector(a, b, Pattern::from(I)...);
#else
    return __builtin_shuffle(a, b, Ints{Pattern::from(I)...});
#endif
}
}  // namespace detail

using Indices = std::make_integer_sequence<int, W>;

INLINE Floats splat(float x) { return detail::splat(x, Indices{}); }
INLINE Floats ramp() { return detail::ramp(Indices{}); }
INLINE Floats maximum(Floats a, Floats b) { return a > b ? a : b; }

// Makes the compiler hold a vector in a register, where it would rather load it again for each use.
INLINE Floats held(Floats v) {
#if defined(__x86_64__)
    if constexpr (W == NATIVE) asm("" : "+v"(v));
#elif defined(__aarch64__)
    if constexpr (W == NATIVE) asm("" : "+w"(v));
#endif
    return v;
}

// Within each lane of 128 bits: elements 0 and 2 of a, then of b (OFFSET 1: elements 1 and 3).
template <int OFFSET>
struct Alternate {
    static constexpr int from(int i) { return (i % 4 < 2 ? 0 : W) + i / 4 * 4 + i % 2 * 2 + OFFSET; }
};

// Whole lanes: 0, 2, … of a, then of b (OFFSET 1: 1, 3, …).
template <int OFFSET>
struct AlternateLanes {
    static constexpr int from(int i) {
        const int lane = i / 4, half = LANES / 2;
        return (lane < half ? 0 : W) + (lane % (half ? half : 1) * 2 + OFFSET) * 4 + i % 4;
    }
};

template <class Pattern>
INLINE Floats shuffle(Floats a, Floats b) {
    return detail::shuffle<Pattern>(a, b, Indices{});
}

// Sums of the elements of four vectors.
INLINE Four sums(Floats a, Floats b, Floats c, Floats d) {
    using Even = Alternate<0>;
    using Odd = Alternate<1>;
    const Floats ab = shuffle<Even>(a, b) + shuffle<Odd>(a, b);
    const Floats cd = shuffle<Even>(c, d) + shuffle<Odd>(c, d);
    const Floats all = shuffle<Even>(ab, cd) + shuffle<Odd>(ab, cd);
    Four lanes[LANES];
    store(lanes, all);
    Four total = lanes[0];
    for (int i = 1; i < LANES; ++i) total += lanes[i];
    return total;
}

INLINE float sum(Floats v) {
    float total = 0;
    for (int i = 0; i < W; ++i) total += v[i];
    return total;
}

INLINE float largest(Floats v) {
    float top = v[0];
    for (int i = 1; i < W; ++i) top = v[i] > top ? v[i] : top;
    return top;
}

// Turns W rows into W columns, in place.
INLINE void transpose(Floats (&v)[W]) {
    Floats t[W];
    for (int g = 0; g < W; g += 4) {
        const Floats a = shuffle<Alternate<0>>(v[g], v[g + 1]), b = shuffle<Alternate<1>>(v[g], v[g + 1]);
        const Floats c = shuffle<Alternate<0>>(v[g + 2], v[g + 3]), d = shuffle<Alternate<1>>(v[g + 2], v[g + 3]);
        t[g] = shuffle<Alternate<0>>(a, c);
        t[g + 1] = shuffle<Alternate<0>>(b, d);
        t[g + 2] = shuffle<Alternate<1>>(a, c);
        t[g + 3] = shuffle<Alternate<1>>(b, d);
    }
    for (int c = 0; c < 4; ++c) {
        if constexpr (LANES == 1) {
            v[c] = t[c];
        } else if constexpr (LANES == 2) {
            v[c] = shuffle<AlternateLanes<0>>(t[c], t[4 + c]);
            v[4 + c] = shuffle<AlternateLanes<1>>(t[c], t[4 + c]);
        } else {
            const Floats x0 = shuffle<AlternateLanes<0>>(t[c], t[4 + c]);
            const Floats x1 = shuffle<AlternateLanes<1>>(t[c], t[4 + c]);
            const Floats y0 = shuffle<AlternateLanes<0>>(t[8 + c], t[12 + c]);
            const Floats y1 = shuffle<AlternateLanes<1>>(t[8 + c], t[12 + c]);
            v[c] = shuffle<AlternateLanes<0>>(x0, y0);
            v[4 + c] = shuffle<AlternateLanes<0>>(x1, y1);
            v[8 + c] = shuffle<AlternateLanes<1>>(x0, y0);
            v[12 + c] = shuffle<AlternateLanes<1>>(x1, y1);
        }
    }
}

constexpr int64_t rounded_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

}  // namespace headstock
