// Lanes: one value per lane, W lanes in every vector of a kernel whatever its element type.
//
// A kernel is written once over `vec<T>`; the same text runs at 16 lanes (AVX-512), 8 (AVX2) or
// 4 (NEON, SSE2). Scalars convert to vectors implicitly, so `x * 2.0f` means what it says.
// This part knows no memory and no function of analysis.
#pragma once
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__AVX2__) && !defined(__AVX512F__) && __GNUC__ >= 9 && __GNUC__ <= 14 && \
    !defined(__clang__) && !defined(__INTEL_COMPILER)
// The parts of immintrin.h for these vectors: reading all of it takes longer than all that follows.
// Those of GCC want to know that they are read from there.
#define _IMMINTRIN_H_INCLUDED
#include <smmintrin.h>
#include <avxintrin.h>
#include <avx2intrin.h>
#include <fmaintrin.h>
#include <f16cintrin.h>
#elif defined(__x86_64__)
#include <immintrin.h>
#endif

#define OT_INLINE inline __attribute__((always_inline))

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define OT_AVX512 1
#define OT_BYTES 64
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define OT_AVX2 1
#define OT_BYTES 32
#else
#define OT_BYTES 16
#endif

namespace ot {

constexpr int W = OT_BYTES / 4;  // lanes: as many as fit one register of 32-bit values

template <int bytes> struct int_of_size;
template <> struct int_of_size<1> { typedef int8_t type; typedef uint8_t bits; };
template <> struct int_of_size<2> { typedef int16_t type; typedef uint16_t bits; };
template <> struct int_of_size<4> { typedef int32_t type; typedef uint32_t bits; };
template <> struct int_of_size<8> { typedef int64_t type; typedef uint64_t bits; };
template <class T> using signed_like = typename int_of_size<sizeof(T)>::type;

template <class T> struct is_float { static constexpr bool value = false; };
template <> struct is_float<float> { static constexpr bool value = true; };
template <> struct is_float<double> { static constexpr bool value = true; };

template <bool, class A, class B> struct choice { typedef A type; };
template <class A, class B> struct choice<false, A, B> { typedef B type; };

// The integer with the width of To and the sign of From; To itself where a float takes part.
template <class To, class From> using same_sign = typename choice<
    is_float<To>::value || is_float<From>::value, To,
    typename choice<(From(-1) < From(0)), signed_like<To>,
                    typename int_of_size<sizeof(To)>::bits>::type>::type;

template <class T> struct vec;
template <class To, class From> OT_INLINE vec<To> convert(vec<From> x);

// A truth value per lane: all bits set, or none, in 32 bits.
template <> struct vec<bool> {
  static constexpr int N = 1, L = W;
  typedef int32_t reg __attribute__((vector_size(OT_BYTES)));
  reg r[1];

  vec() = default;
  OT_INLINE vec(bool x) { r[0] = (x ? -1 : 0) - reg{}; }
  static OT_INLINE vec of_mask(reg m) {
    vec b;
    b.r[0] = m;
    return b;
  }
  OT_INLINE bool operator[](int lane) const { return r[0][lane] != 0; }
  OT_INLINE void set(int lane, bool x) { r[0][lane] = x ? -1 : 0; }

#define OT_OPERATOR(op) \
  friend OT_INLINE vec operator op(vec a, vec b) { a.r[0] = a.r[0] op b.r[0]; return a; }
  OT_OPERATOR(&) OT_OPERATOR(|) OT_OPERATOR(^)
#undef OT_OPERATOR
  friend OT_INLINE vec operator!(vec a) { a.r[0] = ~a.r[0]; return a; }
  friend OT_INLINE vec operator~(vec a) { a.r[0] = ~a.r[0]; return a; }
  friend OT_INLINE vec operator==(vec a, vec b) { return ~(a ^ b); }
  friend OT_INLINE vec operator!=(vec a, vec b) { return a ^ b; }
  friend OT_INLINE vec operator<(vec a, vec b) { return ~a & b; }
  friend OT_INLINE vec operator<=(vec a, vec b) { return ~a | b; }
  friend OT_INLINE vec operator>(vec a, vec b) { return a & ~b; }
  friend OT_INLINE vec operator>=(vec a, vec b) { return a | ~b; }
};

// W lanes of T in one register, or in two when T is 64 bits wide.
template <class T> struct vec {
  static constexpr int N = sizeof(T) == 8 ? 2 : 1;  // registers
  static constexpr int L = W / N;                   // lanes of one register
  typedef T reg __attribute__((vector_size(L * sizeof(T))));
  typedef signed_like<T> same_size_int;
  reg r[N];

  vec() = default;
  // `x - 0`, because `x + 0` would lose the sign of -0.0.
  OT_INLINE vec(T x) { for (int i = 0; i < N; i++) r[i] = x - reg{}; }
  OT_INLINE T operator[](int lane) const { return r[lane / L][lane % L]; }
  OT_INLINE void set(int lane, T x) { r[lane / L][lane % L] = x; }

#define OT_OPERATOR(op)                                        \
  friend OT_INLINE vec operator op(vec a, vec b) {             \
    for (int i = 0; i < N; i++) a.r[i] = a.r[i] op b.r[i];     \
    return a;                                                  \
  }
  OT_OPERATOR(+) OT_OPERATOR(-) OT_OPERATOR(*) OT_OPERATOR(/)
  OT_OPERATOR(&) OT_OPERATOR(|) OT_OPERATOR(^)
#undef OT_OPERATOR
#define OT_COMPARE(op)                                                              \
  friend OT_INLINE vec<bool> operator op(vec a, vec b) {                            \
    vec<same_size_int> m;                                                           \
    for (int i = 0; i < N; i++)                                                     \
      m.r[i] = (typename vec<same_size_int>::reg)(a.r[i] op b.r[i]);                \
    return vec<bool>::of_mask(convert<int32_t>(m).r[0]);                                 \
  }
  OT_COMPARE(<) OT_COMPARE(<=) OT_COMPARE(>) OT_COMPARE(>=) OT_COMPARE(==) OT_COMPARE(!=)
#undef OT_COMPARE
  friend OT_INLINE vec operator-(vec a) {
    for (int i = 0; i < N; i++) a.r[i] = -a.r[i];
    return a;
  }
  friend OT_INLINE vec operator~(vec a) {
    for (int i = 0; i < N; i++) a.r[i] = ~a.r[i];
    return a;
  }
};

OT_INLINE vec<int32_t> mask_bits(vec<bool> m) {
  vec<int32_t> v;
  v.r[0] = m.r[0];
  return v;
}

template <class T> OT_INLINE vec<T> splat(T x) { return vec<T>(x); }

// ---- halves: a 64-bit vector spans two registers, its 32-bit companion one -------------------

template <class Half, class Reg> OT_INLINE Half low_half(Reg x) {
  Half h;
  memcpy(&h, &x, sizeof h);
  return h;
}

template <class Half, class Reg> OT_INLINE Half high_half(Reg x) {
  Half h;
  memcpy(&h, (const char*)&x + sizeof h, sizeof h);
  return h;
}

template <class Reg, class Half> OT_INLINE Reg join_halves(Half a, Half b) {
  Reg x;
  memcpy(&x, &a, sizeof a);
  memcpy((char*)&x + sizeof a, &b, sizeof b);
  return x;
}

// The same bits under another type of the same width.
template <class To, class From> OT_INLINE vec<To> bitcast(vec<From> x) {
  static_assert(sizeof(To) == sizeof(From), "bitcast keeps the width");
  vec<To> y;
  for (int i = 0; i < vec<To>::N; i++) y.r[i] = (typename vec<To>::reg)x.r[i];
  return y;
}

// The same values in another element type, lane by lane, as C converts them. Conversions that C
// leaves undefined belong to `cast`. GCC converts between integers well only when both are signed
// or both unsigned; the other pairs differ from those in name only.
template <class To, class From> OT_INLINE vec<To> convert(vec<From> x) {
  typedef vec<To> to;
  typedef vec<From> from;
  typedef same_sign<To, From> step;
  if constexpr (sizeof(To) == sizeof(From) && !is_float<To>::value && !is_float<From>::value) {
    return bitcast<To>(x);
  } else if constexpr (!__is_same(step, To)) {
    return bitcast<To>(convert<step>(x));
  } else {
    typedef To to_half __attribute__((vector_size(W / 2 * sizeof(To))));
    typedef From from_half __attribute__((vector_size(W / 2 * sizeof(From))));
    to y;
    if constexpr (from::N == to::N) {
      for (int i = 0; i < to::N; i++) y.r[i] = __builtin_convertvector(x.r[i], typename to::reg);
    } else if constexpr (to::N == 2) {
      y.r[0] = __builtin_convertvector(low_half<from_half>(x.r[0]), typename to::reg);
      y.r[1] = __builtin_convertvector(high_half<from_half>(x.r[0]), typename to::reg);
    } else {
      y.r[0] = join_halves<typename to::reg>(__builtin_convertvector(x.r[0], to_half),
                                             __builtin_convertvector(x.r[1], to_half));
    }
    return y;
  }
}

// Where one instruction converts, but compilers spell it in several.
#define OT_CONVERT(To, From)                                            \
  template <> OT_INLINE vec<To> convert<To, From>(vec<From> x)
#define OT_CONVERT_1_1(To, From, operand, intrinsic)                    \
  OT_CONVERT(To, From) {                                                \
    vec<To> y;                                                          \
    y.r[0] = (vec<To>::reg)intrinsic((operand)x.r[0]);                  \
    return y;                                                           \
  }
#define OT_CONVERT_1_2(To, From, operand, low, high, intrinsic)         \
  OT_CONVERT(To, From) {                                                \
    vec<To> y;                                                          \
    y.r[0] = (vec<To>::reg)intrinsic(low((operand)x.r[0]));             \
    y.r[1] = (vec<To>::reg)intrinsic(high((operand)x.r[0], 1));         \
    return y;                                                           \
  }
#define OT_CONVERT_2_1(To, From, operand, widen, insert, intrinsic)     \
  OT_CONVERT(To, From) {                                                \
    vec<To> y;                                                          \
    y.r[0] = (vec<To>::reg)insert(widen(intrinsic((operand)x.r[0])),    \
                                  intrinsic((operand)x.r[1]), 1);       \
    return y;                                                           \
  }
#if OT_AVX512
OT_CONVERT_1_1(uint32_t, uint16_t, __m256i, _mm512_cvtepu16_epi32)
OT_CONVERT_1_1(int32_t, int16_t, __m256i, _mm512_cvtepi16_epi32)
OT_CONVERT_1_1(uint32_t, uint8_t, __m128i, _mm512_cvtepu8_epi32)
OT_CONVERT_1_1(int32_t, int8_t, __m128i, _mm512_cvtepi8_epi32)
OT_CONVERT_1_1(int16_t, int32_t, __m512i, _mm512_cvtepi32_epi16)
OT_CONVERT_1_1(uint16_t, uint32_t, __m512i, _mm512_cvtepi32_epi16)
OT_CONVERT_1_1(int8_t, int32_t, __m512i, _mm512_cvtepi32_epi8)
OT_CONVERT_1_1(uint8_t, uint32_t, __m512i, _mm512_cvtepi32_epi8)
OT_CONVERT_1_2(double, float, __m512, _mm512_castps512_ps256, _mm512_extractf32x8_ps,
               _mm512_cvtps_pd)
OT_CONVERT_1_2(int64_t, float, __m512, _mm512_castps512_ps256, _mm512_extractf32x8_ps,
               _mm512_cvttps_epi64)
OT_CONVERT_1_2(int64_t, int32_t, __m512i, _mm512_castsi512_si256, _mm512_extracti32x8_epi32,
               _mm512_cvtepi32_epi64)
OT_CONVERT_1_2(uint64_t, uint32_t, __m512i, _mm512_castsi512_si256, _mm512_extracti32x8_epi32,
               _mm512_cvtepu32_epi64)
OT_CONVERT_1_2(double, int32_t, __m512i, _mm512_castsi512_si256, _mm512_extracti32x8_epi32,
               _mm512_cvtepi32_pd)
OT_CONVERT_2_1(float, double, __m512d, _mm512_castps256_ps512, _mm512_insertf32x8,
               _mm512_cvtpd_ps)
OT_CONVERT_2_1(float, int64_t, __m512i, _mm512_castps256_ps512, _mm512_insertf32x8,
               _mm512_cvtepi64_ps)
OT_CONVERT_2_1(int32_t, double, __m512d, _mm512_castsi256_si512, _mm512_inserti32x8,
               _mm512_cvttpd_epi32)
OT_CONVERT_2_1(int32_t, int64_t, __m512i, _mm512_castsi256_si512, _mm512_inserti32x8,
               _mm512_cvtepi64_epi32)
OT_CONVERT_2_1(uint32_t, uint64_t, __m512i, _mm512_castsi256_si512, _mm512_inserti32x8,
               _mm512_cvtepi64_epi32)
#elif OT_AVX2
OT_CONVERT_1_1(uint32_t, uint16_t, __m128i, _mm256_cvtepu16_epi32)
OT_CONVERT_1_1(int32_t, int16_t, __m128i, _mm256_cvtepi16_epi32)
OT_CONVERT_1_2(double, float, __m256, _mm256_castps256_ps128, _mm256_extractf128_ps,
               _mm256_cvtps_pd)
OT_CONVERT_1_2(int64_t, int32_t, __m256i, _mm256_castsi256_si128, _mm256_extracti128_si256,
               _mm256_cvtepi32_epi64)
OT_CONVERT_1_2(uint64_t, uint32_t, __m256i, _mm256_castsi256_si128, _mm256_extracti128_si256,
               _mm256_cvtepu32_epi64)
OT_CONVERT_1_2(double, int32_t, __m256i, _mm256_castsi256_si128, _mm256_extracti128_si256,
               _mm256_cvtepi32_pd)
OT_CONVERT_2_1(float, double, __m256d, _mm256_castps128_ps256, _mm256_insertf128_ps,
               _mm256_cvtpd_ps)
OT_CONVERT_2_1(int32_t, double, __m256d, _mm256_castsi128_si256, _mm256_inserti128_si256,
               _mm256_cvttpd_epi32)
#endif
#undef OT_CONVERT
#undef OT_CONVERT_1_1
#undef OT_CONVERT_1_2
#undef OT_CONVERT_2_1

// ---- choice, lane numbers, folds over lanes --------------------------------------------------

// condition ? a : b in every lane.
template <class T> OT_INLINE vec<T> where(vec<bool> condition, vec<T> a, vec<T> b) {
  vec<signed_like<T>> m = convert<signed_like<T>>(mask_bits(condition));
  for (int i = 0; i < vec<T>::N; i++) a.r[i] = m.r[i] ? a.r[i] : b.r[i];
  return a;
}
OT_INLINE vec<bool> where(vec<bool> condition, vec<bool> a, vec<bool> b) {
  return (condition & a) | (~condition & b);
}
template <class T> OT_INLINE T where(bool condition, T a, T b) { return condition ? a : b; }

// first, first + 1, first + 2, ...
template <class T> OT_INLINE vec<T> iota(T first) {
  vec<T> v;
  for (int i = 0; i < W; i++) v.r[i / vec<T>::L][i % vec<T>::L] = (T)i;
  return v + vec<T>(first);
}

// True in the first n lanes.
OT_INLINE vec<bool> first_lanes(int64_t n) { return iota<int32_t>(0) < vec<int32_t>((int32_t)n); }

OT_INLINE bool any(vec<bool> m) {
#if OT_AVX512
  return _mm512_movepi32_mask((__m512i)m.r[0]) != 0;
#elif OT_AVX2
  return _mm256_movemask_ps((__m256)m.r[0]) != 0;
#else
  int32_t t = 0;
  for (int i = 0; i < W; i++) t |= m.r[0][i];
  return t != 0;
#endif
}
OT_INLINE bool all(vec<bool> m) { return !any(~m); }

// f applied to every lane, for what has no vector instruction.
template <class R, class T, class F> OT_INLINE vec<R> map_lanes(vec<T> x, F f) {
  vec<R> y;
  T in[W];
  R out[W];
  for (int i = 0; i < W; i++) in[i] = x[i];
  for (int i = 0; i < W; i++) out[i] = f(in[i]);
  for (int i = 0; i < W; i++) y.set(i, out[i]);
  return y;
}
template <class R, class T, class F> OT_INLINE vec<R> map_lanes(vec<T> x, vec<T> y, F f) {
  vec<R> z;
  for (int i = 0; i < W; i++) z.set(i, f(x[i], y[i]));
  return z;
}

// What a thread found wrong first; of an index, which one and the range [least, size) it is not in.
struct finding {
  int32_t code = 0;
  int64_t index = 0, least = 0, size = 0;
};

// The value of the first lane of `m`, which has one. A call, so that no lane needs an address
// where nothing is wrong.
__attribute__((cold, noinline)) static int64_t first_of(vec<bool> m, vec<int64_t> x) {
  int lane = 0;
  while (!m[lane]) lane++;
  return x[lane];
}

// What a kernel found wrong. `active` names the lanes that exist: the tail of a row has fewer.
struct faults {
  enum code { none = 0, division_by_zero = 1, index_out_of_range = 2 };
  vec<bool> active = vec<bool>(true);
  finding first;
  OT_INLINE bool finds(vec<bool> wrong) { return __builtin_expect(any(wrong & active), 0); }
  OT_INLINE void note(vec<bool> wrong, code what) {
    if (finds(wrong) && !first.code) first.code = what;
  }
  // `least` is 0, or -size where negative indices count from the end: `i` is what they came to.
  OT_INLINE void note_index(vec<bool> wrong, vec<int64_t> i, int64_t least, int64_t size) {
    if (!finds(wrong) || first.code) return;
    int64_t found = first_of(wrong & active, i);
    first.code = index_out_of_range;
    first.index = found < 0 ? found + least : found;
    first.least = least;
    first.size = size;
  }
};

}  // namespace ot
