// Sixteen floats at a time, and the two number formats that weights and the cache are kept in.
//
// Knows the processor's vectors: AVX-512 where the compiler targets it, else the compiler's own vectors of 64 bytes,
// which it cuts into whatever the processor has. Knows nothing of layers.
//
// Every reduction here has one order, whatever stands beside it in a batch; that is what the rest builds on.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__SSE__)
#include <immintrin.h>
#endif

namespace rota {

constexpr int LANES = 16;

struct bf16 {
    uint16_t bits;
};

#if defined(__AVX512F__)
using V = __m512;
#else
typedef float V __attribute__((vector_size(64)));
typedef int32_t VI __attribute__((vector_size(64)));
typedef uint32_t VU __attribute__((vector_size(64)));
#endif

inline V set1(float x) {
#if defined(__AVX512F__)
    return _mm512_set1_ps(x);
#else
    return x - V{};
#endif
}

inline V load(const float* p) {
    V v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

inline void store(float* p, V v) { std::memcpy(p, &v, sizeof v); }

inline V fma(V a, V b, V c) {
#if defined(__AVX512F__)
    return _mm512_fmadd_ps(a, b, c);
#else
    return a * b + c;
#endif
}

inline V max(V a, V b) {
#if defined(__AVX512F__)
    return _mm512_max_ps(a, b);
#else
    return a > b ? a : b;
#endif
}

inline V min(V a, V b) {
#if defined(__AVX512F__)
    return _mm512_min_ps(a, b);
#else
    return a < b ? a : b;
#endif
}

// Lanes `first` .. `end - 1` keep their value, the others become `other`.
inline V between(V v, int first, int end, float other) {
    if (first <= 0 && end >= LANES) return v;
#if defined(__AVX512F__)
    first = first < 0 ? 0 : first > LANES ? LANES : first;
    end = end < first ? first : end > LANES ? LANES : end;
    const __mmask16 kept = static_cast<__mmask16>(((1u << end) - 1u) & ~((1u << first) - 1u));
    return _mm512_mask_blend_ps(kept, set1(other), v);
#else
    for (int i = 0; i < LANES; ++i)
        if (i < first || i >= end) v[i] = other;
    return v;
#endif
}

inline float sum(V v) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps(v);
#else
    float lane[LANES];
    store(lane, v);
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) lane[i] += lane[i + width];
    return lane[0];
#endif
}

inline float maximum(V v) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps(v);
#else
    float lane[LANES];
    store(lane, v);
    float most = lane[0];
    for (int i = 1; i < LANES; ++i) most = lane[i] > most ? lane[i] : most;
    return most;
#endif
}

// 2^x for x <= 127; 0 below -150. The exponent is set apart, and 2^t on [-1/2, 1/2] is Taylor's polynomial in t ln 2:
// of the seventh power, within 2 units in the last place of a float, or of the fourth, within 1/100 of one of a bf16.
template <bool EXACT = true>
inline V exp2(V x) {
    x = max(x, set1(-151.0f));
#if defined(__AVX512F__)
    const V whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    const V magic = set1(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
    const V whole = (x + magic) - magic;
#endif
    const V t = x - whole;
    V y;
    if constexpr (EXACT) {
        y = set1(1.52527338e-5f);
        y = fma(y, t, set1(1.54035304e-4f));
        y = fma(y, t, set1(1.33335581e-3f));
        y = fma(y, t, set1(9.61812911e-3f));
    } else {
        y = set1(9.61812911e-3f);
    }
    y = fma(y, t, set1(5.55041087e-2f));
    y = fma(y, t, set1(2.40226507e-1f));
    y = fma(y, t, set1(6.93147181e-1f));
    y = fma(y, t, set1(1.0f));
#if defined(__AVX512F__)
    return _mm512_scalef_ps(y, whole);
#else
    for (int i = 0; i < LANES; ++i) y[i] = std::ldexp(y[i], static_cast<int>(whole[i]));
    return y;
#endif
}

constexpr float LOG2_E = 1.44269504088896341f;

inline float exp2_one(float x) { return exp2(set1(x))[0]; }

// 1 / x
template <bool EXACT>
inline V inverse(V x) {
#if defined(__AVX512F__)
    if constexpr (!EXACT) {
        const V near = _mm512_rcp14_ps(x);
        return near * (set1(2.0f) - x * near);  // one step of Newton's
    }
#endif
    return set1(1.0f) / x;
}

// x / (1 + e^-x)
template <bool EXACT>
inline V silu(V x) {
    return x * inverse<EXACT>(set1(1.0f) + exp2<EXACT>(min(x * set1(-LOG2_E), set1(126.0f))));
}

// While one of these lives, this thread takes numbers too small for a float's full precision for 0. A softmax makes many
// of them, and on x86 each costs more than a hundred cycles.
class NoDenormals {
   public:
    NoDenormals(const NoDenormals&) = delete;
    NoDenormals& operator=(const NoDenormals&) = delete;
#if defined(__SSE__)
    NoDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040u); }
    ~NoDenormals() { _mm_setcsr(before_); }

   private:
    const unsigned before_;
#else
    NoDenormals() {}
    ~NoDenormals() {}
#endif
};

// -- the two formats

inline float widen(float x) { return x; }

inline float widen(bf16 x) {
    const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
    float f;
    std::memcpy(&f, &bits, sizeof f);
    return f;
}

template <class E>
inline E narrow(float x);

template <>
inline float narrow<float>(float x) {
    return x;
}

// To nearest, ties to even.
template <>
inline bf16 narrow<bf16>(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
    return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

inline V widened(const float* p) { return load(p); }

inline V widened(const bf16* p) {
#if defined(__AVX512F__)
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
#else
    V v;
    for (int i = 0; i < LANES; ++i) v[i] = widen(p[i]);
    return v;
#endif
}

inline void narrowed(float* p, V v) { store(p, v); }

inline void narrowed(bf16* p, V v) {
#if defined(__AVX512BF16__)
    const __m256bh half = _mm512_cvtneps_pbh(v);  // to nearest, ties to even; NaN stays NaN
    std::memcpy(p, &half, sizeof half);
#elif defined(__AVX512F__)
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd), 16);
    const __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    const __m256i half = _mm512_cvtepi32_epi16(_mm512_mask_blend_epi32(nan, rounded, quiet));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), half);
#else
    for (int i = 0; i < LANES; ++i) p[i] = narrow<bf16>(v[i]);
#endif
}

// -- products of what is stored together: one float, or two neighbouring bf16 in the order they are summed

template <class E>
constexpr int TOGETHER = sizeof(E) == 4 ? 1 : 2;

// c + a x b over one lane each: `a` is TOGETHER elements, given to every lane; `b` is LANES times TOGETHER elements.
inline V product(const float* a, const float* b, V c) { return fma(set1(*a), load(b), c); }

inline V product(const bf16* a, const bf16* b, V c) {
    uint32_t pair;
    std::memcpy(&pair, a, sizeof pair);
#if defined(__AVX512BF16__)
    __m512i left = _mm512_set1_epi32(static_cast<int>(pair));
    __m512i right;
    std::memcpy(&right, b, sizeof right);
    return _mm512_dpbf16_ps(c, reinterpret_cast<__m512bh&>(left), reinterpret_cast<__m512bh&>(right));
#elif defined(__AVX512F__)
    const __m512i right = _mm512_loadu_si512(b);
    const V even = _mm512_castsi512_ps(_mm512_slli_epi32(right, 16));
    const V odd = _mm512_castsi512_ps(_mm512_and_si512(right, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
    c = fma(set1(widen(a[0])), even, c);
    return fma(set1(widen(a[1])), odd, c);
#else
    VU right;
    std::memcpy(&right, b, sizeof right);
    const VU low = right << 16, high = right & 0xffff0000u;
    V even, odd;
    std::memcpy(&even, &low, sizeof even);
    std::memcpy(&odd, &high, sizeof odd);
    c = fma(set1(widen(a[0])), even, c);
    return fma(set1(widen(a[1])), odd, c);
#endif
}

}  // namespace rota
