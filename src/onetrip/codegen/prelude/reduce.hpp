// Folds over the lanes of one vector, and the scalar flavour of every function of one value.
#pragma once

namespace ot {

template <class T> OT_INLINE T maximum(T a, T b) { return a != a ? a : a > b ? a : b; }
template <class T> OT_INLINE T minimum(T a, T b) { return a != a ? a : a < b ? a : b; }

// Halves folded onto each other: lane i with lane i + W/2, then W/4, ... down to lane 0. Whole
// registers first, the lanes of a small one by themselves.
template <class T, class Reg, class F> OT_INLINE T fold_register(Reg x, F f) {
  constexpr int lanes = sizeof(Reg) / sizeof(T);
  if constexpr (sizeof(Reg) > 16) {
    typedef T half __attribute__((vector_size(sizeof(Reg) / 2)));
    return fold_register<T>(f(low_half<half>(x), high_half<half>(x)), f);
  } else {
    T t[lanes];
    for (int i = 0; i < lanes; i++) t[i] = x[i];
    for (int half = lanes / 2; half > 0; half /= 2)
      for (int i = 0; i < half; i++) t[i] = f(t[i], t[i + half]);
    return t[0];
  }
}
template <class T, class F> OT_INLINE T fold_lanes(vec<T> x, F f) {
  if constexpr (vec<T>::N == 2) return fold_register<T>(f(x.r[0], x.r[1]), f);
  return fold_register<T>(x.r[0], f);
}

template <class T> OT_INLINE T sum_lanes(vec<T> x) {
  return fold_lanes(x, [](auto a, auto b) { return decltype(a)(a + b); });
}
template <class T> OT_INLINE T prod_lanes(vec<T> x) {
  return fold_lanes(x, [](auto a, auto b) { return decltype(a)(a * b); });
}
template <class T> OT_INLINE T max_lanes(vec<T> x) {
  return fold_lanes(x, [](auto a, auto b) { return maximum(a, b); });
}
template <class T> OT_INLINE T min_lanes(vec<T> x) {
  return fold_lanes(x, [](auto a, auto b) { return minimum(a, b); });
}
// Conditions are held as masks: the largest is whether any holds, the least whether all do.
OT_INLINE bool max_lanes(vec<bool> x) { return any(x); }
OT_INLINE bool min_lanes(vec<bool> x) { return all(x); }

// The running best of an arg-reduction: a value and where it stands, one pair per lane.
template <class T> struct best {
  vec<T> value;
  vec<int64_t> index;
};
template <class T> struct best_lane {
  T value;
  int64_t index;
};

// Whether b beats a: NaN beats every number, and of equals the smaller index wins.
template <bool greatest, class V, class I> OT_INLINE auto beats(V b, I ib, V a, I ia) {
  auto ahead = greatest ? b > a : b < a;
  auto tie = (b == a) | ((b != b) & (a != a));
  return (ahead & (a == a)) | ((b != b) & (a == a)) | (tie & (ib < ia));
}
template <bool greatest, class T>
OT_INLINE best<T> better(best<T> a, vec<T> value, vec<int64_t> index) {
  vec<bool> take = beats<greatest>(value, index, a.value, a.index);
  return {where(take, value, a.value), where(take, index, a.index)};
}
template <bool greatest, class T> OT_INLINE best_lane<T> better(best_lane<T> a, best_lane<T> b) {
  return beats<greatest>(b.value, b.index, a.value, a.index) ? b : a;
}
template <bool greatest, class T> OT_INLINE best_lane<T> best_of_lanes(best<T> x) {
  best_lane<T> a{x.value[0], x.index[0]};
  for (int i = 1; i < W; i++) a = better<greatest>(a, best_lane<T>{x.value[i], x.index[i]});
  return a;
}

// ---- scalar flavour: the vector's lane 0, hence the same bits -------------------------------

template <class T> struct is_scalar { static constexpr bool value = false; };
#define OT_SCALAR(T) \
  template <> struct is_scalar<T> { static constexpr bool value = true; };
OT_SCALAR(float) OT_SCALAR(double) OT_SCALAR(int8_t) OT_SCALAR(int16_t) OT_SCALAR(int32_t)
OT_SCALAR(int64_t) OT_SCALAR(uint8_t) OT_SCALAR(uint16_t) OT_SCALAR(uint32_t) OT_SCALAR(uint64_t)
#undef OT_SCALAR
template <bool, class T> struct only_if {};
template <class T> struct only_if<true, T> { typedef T type; };
template <class T, class R = T> using for_scalar = typename only_if<is_scalar<T>::value, R>::type;

#define OT_SCALAR1(name) \
  template <class T> OT_INLINE for_scalar<T> name(T x) { return name(vec<T>(x))[0]; }
#define OT_SCALAR2(name)                                      \
  template <class T> OT_INLINE for_scalar<T> name(T x, T y) { \
    return name(vec<T>(x), vec<T>(y))[0];                     \
  }
#define OT_SCALAR2_FAULTS(name)                                          \
  template <class T> OT_INLINE for_scalar<T> name(T x, T y, faults& f) { \
    return name(vec<T>(x), vec<T>(y), f)[0];                             \
  }
#define OT_SCALAR_TEST(name) \
  template <class T> OT_INLINE for_scalar<T, bool> name(T x) { return name(vec<T>(x))[0]; }

OT_SCALAR1(exp) OT_SCALAR1(exp2) OT_SCALAR1(expm1) OT_SCALAR1(log) OT_SCALAR1(log2)
OT_SCALAR1(log10) OT_SCALAR1(log1p) OT_SCALAR1(sin) OT_SCALAR1(cos) OT_SCALAR1(tan)
OT_SCALAR1(asin) OT_SCALAR1(acos) OT_SCALAR1(atan) OT_SCALAR1(sinh) OT_SCALAR1(cosh)
OT_SCALAR1(tanh) OT_SCALAR1(tanh_short) OT_SCALAR1(asinh) OT_SCALAR1(acosh) OT_SCALAR1(atanh)
OT_SCALAR1(erf) OT_SCALAR1(erfc) OT_SCALAR1(erfinv) OT_SCALAR1(lgamma) OT_SCALAR1(sigmoid)
OT_SCALAR1(sqrt) OT_SCALAR1(rsqrt) OT_SCALAR1(reciprocal) OT_SCALAR1(floor) OT_SCALAR1(ceil)
OT_SCALAR1(trunc) OT_SCALAR1(round) OT_SCALAR1(abs) OT_SCALAR1(sign) OT_SCALAR1(relu)
OT_SCALAR2(pow) OT_SCALAR2(atan2) OT_SCALAR2(hypot) OT_SCALAR2(fmod) OT_SCALAR2(copysign)
OT_SCALAR2(nextafter) OT_SCALAR2(gcd) OT_SCALAR2(fmax) OT_SCALAR2(fmin) OT_SCALAR2(clamp_min) OT_SCALAR2(clamp_max)
OT_SCALAR2(trunc_div) OT_SCALAR2(floor_div) OT_SCALAR2(floor_mod) OT_SCALAR2(int_pow)
OT_SCALAR2(shift_left) OT_SCALAR2(shift_right)
OT_SCALAR2(hermite_h) OT_SCALAR2(hermite_he) OT_SCALAR2(laguerre) OT_SCALAR2(legendre)
OT_SCALAR2(zeta)
template <class T> OT_INLINE for_scalar<T> chebyshev(T x, T first, T n) {
  return chebyshev(vec<T>(x), vec<T>(first), vec<T>(n))[0];
}
OT_SCALAR2_FAULTS(trunc_div) OT_SCALAR2_FAULTS(trunc_mod)
OT_SCALAR2_FAULTS(floor_div) OT_SCALAR2_FAULTS(floor_mod)
OT_SCALAR_TEST(isnan) OT_SCALAR_TEST(isinf) OT_SCALAR_TEST(isfinite) OT_SCALAR_TEST(signbit)
OT_INLINE float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
OT_INLINE double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }

}  // namespace ot
