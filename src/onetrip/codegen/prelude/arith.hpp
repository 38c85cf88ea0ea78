// Arithmetic: rounding, comparison by value, casts and integer division, as PyTorch defines them.
#pragma once

namespace ot {

// ---- casts -----------------------------------------------------------------------------------

// The same lanes, of which the compiler no longer knows where they came from. GCC makes trunc(x) of
// float(int64_t(x)), which keeps the sign of zero, NaN and what does not fit.
template <class T> OT_INLINE vec<T> hidden(vec<T> x) {
#if OT_AVX512
  for (int i = 0; i < vec<T>::N; i++) asm("" : "+v"(x.r[i]));
#elif defined(__x86_64__)
  for (int i = 0; i < vec<T>::N; i++) asm("" : "+x"(x.r[i]));
#elif defined(__aarch64__)
  for (int i = 0; i < vec<T>::N; i++) asm("" : "+w"(x.r[i]));
#endif
  return x;
}

// The value as To. Floats truncate towards zero; what does not fit follows the machine's own
// conversion to 32 or 64 bits (the most negative integer on x86), and narrower integers keep the
// low bits. To bool: nonzero, NaN included.
template <class To, class From> OT_INLINE vec<To> cast(vec<From> x) {
  if constexpr (__is_same(To, bool)) {
    if constexpr (__is_same(From, bool)) return x;
    else return x != vec<From>(From(0));
  } else if constexpr (__is_same(From, bool)) {
    return where(x, vec<To>(To(1)), vec<To>(To(0)));
  } else if constexpr (__is_same(To, From)) {
    return x;
  } else if constexpr (is_float<From>::value && !is_float<To>::value) {
    if constexpr (sizeof(To) < 4 && To(-1) < To(0)) {
      return convert<To>(convert<int32_t>(x));
    } else if constexpr (To(-1) < To(0)) {
      return convert<To>(x);
    } else {
      return convert<To>(convert<int64_t>(x));
    }
  } else if constexpr (is_float<To>::value && !is_float<From>::value) {
    return convert<To>(hidden(x));
  } else {
    return convert<To>(x);
  }
}
template <class To, class From> OT_INLINE To cast(From x) {
  return cast<To>(vec<From>(x))[0];
}

// ---- rounding to an integral value -----------------------------------------------------------

#if OT_AVX512
#define OT_ROUND(name, mode, libm)                                                   \
  OT_INLINE vec<float> name(vec<float> x) {                                          \
    x.r[0] = (vec<float>::reg)_mm512_roundscale_ps((__m512)x.r[0], mode);            \
    return x;                                                                        \
  }                                                                                  \
  OT_INLINE vec<double> name(vec<double> x) {                                        \
    for (int i = 0; i < 2; i++)                                                      \
      x.r[i] = (vec<double>::reg)_mm512_roundscale_pd((__m512d)x.r[i], mode);        \
    return x;                                                                        \
  }
#elif OT_AVX2
#define OT_ROUND(name, mode, libm)                                                   \
  OT_INLINE vec<float> name(vec<float> x) {                                          \
    x.r[0] = (vec<float>::reg)_mm256_round_ps((__m256)x.r[0], mode);                 \
    return x;                                                                        \
  }                                                                                  \
  OT_INLINE vec<double> name(vec<double> x) {                                        \
    for (int i = 0; i < 2; i++)                                                      \
      x.r[i] = (vec<double>::reg)_mm256_round_pd((__m256d)x.r[i], mode);             \
    return x;                                                                        \
  }
#else
#define OT_ROUND(name, mode, libm)                                                   \
  OT_INLINE vec<float> name(vec<float> x) {                                          \
    return map_lanes<float>(x, [](float v) { return ::libm##f(v); });                \
  }                                                                                  \
  OT_INLINE vec<double> name(vec<double> x) {                                        \
    return map_lanes<double>(x, [](double v) { return ::libm(v); });                 \
  }
#endif
OT_ROUND(floor, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC, floor)
OT_ROUND(ceil, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC, ceil)
OT_ROUND(trunc, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC, trunc)
OT_ROUND(round, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC, nearbyint)  // half to even
#undef OT_ROUND

// ---- signs, fused multiply-add, square root --------------------------------------------------

template <class T> OT_INLINE vec<T> sign_bit_of(vec<T> x) {
  typedef signed_like<T> I;
  return bitcast<T>(bitcast<I>(x) & vec<I>(I(1) << (8 * sizeof(T) - 1)));
}
template <class T> OT_INLINE vec<T> copysign(vec<T> magnitude, vec<T> sign) {
  typedef signed_like<T> I;
  vec<I> top(I(1) << (8 * sizeof(T) - 1));
  return bitcast<T>((bitcast<I>(magnitude) & ~top) | (bitcast<I>(sign) & top));
}
template <class T> OT_INLINE vec<bool> signbit(vec<T> x) {
  if constexpr (is_float<T>::value) return bitcast<signed_like<T>>(x) < vec<signed_like<T>>(0);
  else return x < vec<T>(T(0));
}
// The most negative integer is its own absolute value.
template <class T> OT_INLINE vec<T> abs(vec<T> x) {
  if constexpr (is_float<T>::value) return copysign(x, vec<T>(T(0)));
  else if constexpr (T(-1) < T(0)) return where(x < vec<T>(T(0)), -x, x);
  else return x;
}
// -1, 0 or 1. PyTorch's sign of NaN is 0.
template <class T> OT_INLINE vec<T> sign(vec<T> x) {
  vec<T> zero(T(0)), one(T(1));
  vec<T> up = where(zero < x, one, zero);
  if constexpr (T(-1) < T(0)) return up - where(x < zero, one, zero);
  else return up;
}

OT_INLINE vec<float> fma(vec<float> a, vec<float> b, vec<float> c) {
#if OT_AVX512
  a.r[0] = (vec<float>::reg)_mm512_fmadd_ps((__m512)a.r[0], (__m512)b.r[0], (__m512)c.r[0]);
#elif OT_AVX2
  a.r[0] = (vec<float>::reg)_mm256_fmadd_ps((__m256)a.r[0], (__m256)b.r[0], (__m256)c.r[0]);
#else
  for (int i = 0; i < W; i++) a.set(i, __builtin_fmaf(a[i], b[i], c[i]));
#endif
  return a;
}
OT_INLINE vec<double> fma(vec<double> a, vec<double> b, vec<double> c) {
#if OT_AVX512
  for (int i = 0; i < 2; i++)
    a.r[i] = (vec<double>::reg)_mm512_fmadd_pd((__m512d)a.r[i], (__m512d)b.r[i], (__m512d)c.r[i]);
#elif OT_AVX2
  for (int i = 0; i < 2; i++)
    a.r[i] = (vec<double>::reg)_mm256_fmadd_pd((__m256d)a.r[i], (__m256d)b.r[i], (__m256d)c.r[i]);
#else
  for (int i = 0; i < W; i++) a.set(i, __builtin_fma(a[i], b[i], c[i]));
#endif
  return a;
}

// Correctly rounded.
OT_INLINE vec<float> sqrt(vec<float> x) {
#if OT_AVX512
  x.r[0] = (vec<float>::reg)_mm512_sqrt_ps((__m512)x.r[0]);
#elif OT_AVX2
  x.r[0] = (vec<float>::reg)_mm256_sqrt_ps((__m256)x.r[0]);
#else
  for (int i = 0; i < W; i++) x.set(i, __builtin_sqrtf(x[i]));
#endif
  return x;
}
OT_INLINE vec<double> sqrt(vec<double> x) {
#if OT_AVX512
  for (int i = 0; i < 2; i++) x.r[i] = (vec<double>::reg)_mm512_sqrt_pd((__m512d)x.r[i]);
#elif OT_AVX2
  for (int i = 0; i < 2; i++) x.r[i] = (vec<double>::reg)_mm256_sqrt_pd((__m256d)x.r[i]);
#else
  for (int i = 0; i < W; i++) x.set(i, __builtin_sqrt(x[i]));
#endif
  return x;
}
template <class T> OT_INLINE vec<T> rsqrt(vec<T> x) { return vec<T>(T(1)) / sqrt(x); }
template <class T> OT_INLINE vec<T> reciprocal(vec<T> x) { return vec<T>(T(1)) / x; }

// ---- the larger and the smaller --------------------------------------------------------------

template <class T> OT_INLINE vec<bool> isnan(vec<T> x) { return x != x; }
template <class T> OT_INLINE vec<bool> isinf(vec<T> x) {
  return abs(x) == vec<T>(T(__builtin_inff()));
}
template <class T> OT_INLINE vec<bool> isfinite(vec<T> x) {
  return abs(x) < vec<T>(T(__builtin_inff()));
}

// NaN if either is NaN; b where they are equal, which settles 0.0 against -0.0.
template <class T> OT_INLINE vec<T> maximum(vec<T> a, vec<T> b) {
  vec<T> m = where(a > b, a, b);
  if constexpr (is_float<T>::value) return where(a != a, a, m);
  else return m;
}
template <class T> OT_INLINE vec<T> minimum(vec<T> a, vec<T> b) {
  vec<T> m = where(a < b, a, b);
  if constexpr (is_float<T>::value) return where(a != a, a, m);
  else return m;
}
// The one that is a number, if only one is; a where they are equal.
template <class T> OT_INLINE vec<T> fmax(vec<T> a, vec<T> b) {
  return where((b != b) | (a >= b), a, b);
}
template <class T> OT_INLINE vec<T> fmin(vec<T> a, vec<T> b) {
  return where((b != b) | (a <= b), a, b);
}
// x unless it is below (above) the bound: keeps NaN, and -0.0 against a bound of 0.
template <class T> OT_INLINE vec<T> clamp_min(vec<T> x, vec<T> low) {
  return where(low > x, low, x);
}
template <class T> OT_INLINE vec<T> clamp_max(vec<T> x, vec<T> high) {
  return where(high < x, high, x);
}
template <class T> OT_INLINE vec<T> relu(vec<T> x) { return clamp_min(x, vec<T>(T(0))); }

// ---- integer division, powers and shifts -----------------------------------------------------

template <class T> OT_INLINE vec<T> safe_divisor(vec<T> b, faults& f) {
  vec<bool> zero = b == vec<T>(T(0));
  f.note(zero, faults::division_by_zero);
  return where(zero, vec<T>(T(1)), b);
}

// Towards zero. The most negative integer divided by -1 wraps to itself.
template <class T> OT_INLINE vec<T> trunc_div(vec<T> a, vec<T> b, faults& f) {
  return map_lanes<T>(a, safe_divisor(b, f), [](T x, T y) {
    if constexpr (T(-1) < T(0))
      if (y == T(-1)) return T(-(uint64_t)x);
    return T(x / y);
  });
}
// The remainder of trunc_div: it has the sign of a.
template <class T> OT_INLINE vec<T> trunc_mod(vec<T> a, vec<T> b, faults& f) {
  vec<T> d = safe_divisor(b, f);
  return a - trunc_div(a, d, f) * d;
}
// Towards minus infinity.
template <class T> OT_INLINE vec<T> floor_div(vec<T> a, vec<T> b, faults& f) {
  vec<T> d = safe_divisor(b, f), zero(T(0));
  vec<T> q = trunc_div(a, d, f), r = a - q * d;
  vec<bool> below = (r != zero) & ((r < zero) != (d < zero));
  return q - where(below, vec<T>(T(1)), zero);
}
// The remainder of floor_div: it has the sign of b.
template <class T> OT_INLINE vec<T> floor_mod(vec<T> a, vec<T> b, faults& f) {
  vec<T> d = safe_divisor(b, f), zero(T(0));
  vec<T> r = trunc_mod(a, d, f);
  return r + where((r != zero) & ((r < zero) != (d < zero)), d, zero);
}

// a to the power b by squaring, wrapping. A negative power is 0 unless a is 1 or -1.
template <class T> OT_INLINE vec<T> int_pow(vec<T> a, vec<T> b) {
  return map_lanes<T>(a, b, [](T x, T n) {
    if constexpr (T(-1) < T(0))
      if (n < T(0)) return x == T(1) ? T(1) : x == T(-1) ? (n % 2 ? T(-1) : T(1)) : T(0);
    uint64_t result = 1, base = (uint64_t)x, e = (uint64_t)n;
    for (; e; e >>= 1, base *= base)
      if (e & 1) result *= base;
    return T(result);
  });
}

// The greatest common divisor of the absolute values, by Euclid's algorithm; 0 with x is |x|.
template <class T> OT_INLINE vec<T> gcd(vec<T> a, vec<T> b) {
  return map_lanes<T>(abs(a), abs(b), [](T x, T y) {
    while (y != T(0)) {
      T rest = T(-1) < T(0) && y == T(-1) ? T(0) : T(x % y);
      x = y;
      y = rest;
    }
    return x;
  });
}

// A shift by a negative count or by the width or more gives 0, or the sign where it goes right.
template <class T> OT_INLINE vec<T> shift_left(vec<T> a, vec<T> n) {
  return map_lanes<T>(a, n, [](T x, T k) {
    bool inside = k >= T(0) && (uint64_t)k < 8 * sizeof(T);
    return inside ? T((uint64_t)x << (k & 63)) : T(0);
  });
}
template <class T> OT_INLINE vec<T> shift_right(vec<T> a, vec<T> n) {
  return map_lanes<T>(a, n, [](T x, T k) {
    constexpr int widest = 8 * sizeof(T) - (T(-1) < T(0) ? 1 : 0);
    bool inside = k >= T(0) && (uint64_t)k < 8 * sizeof(T);
    if (!inside) return widest == 8 * sizeof(T) ? T(0) : T(x >> (widest - 1) >> 1);
    return T(x >> k);
  });
}

}  // namespace ot
