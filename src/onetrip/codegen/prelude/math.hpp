// Functions of analysis, spelled so that they round as eager's contiguous kernels do.
//
// OT_SLEEF: PyTorch's own library exports the Sleef functions behind its vectorized kernels; they
//   are called at the width that eager uses. Without it (no vector unit): libm, lane by lane.
// OT_VML: PyTorch was built with MKL, whose array functions serve a few float32 and float64
//   operators; `ot::vml` calls those. They pay about 25 ns a call, so `ot::vml::exp_n` and its
//   like take a whole tile. Without MKL they are the plain spellings.
// Which spelling equals eager's bits, per operator and dtype: cpp_exactness.toml.
#pragma once

namespace ot {

typedef vec<float>::reg reg_f32;
typedef vec<double>::reg reg_f64;

#if OT_AVX512
#define OT_SLEEF_F(name, suffix) Sleef_##name##f16##suffix
#define OT_SLEEF_D(name, suffix) Sleef_##name##d8##suffix
#elif OT_AVX2
#define OT_SLEEF_F(name, suffix) Sleef_##name##f8##suffix
#define OT_SLEEF_D(name, suffix) Sleef_##name##d4##suffix
#else
#define OT_SLEEF_F(name, suffix) Sleef_##name##f4##suffix
#define OT_SLEEF_D(name, suffix) Sleef_##name##d2##suffix
#endif

#if OT_SLEEF
#define OT_UNARY_F(name, suffix, libm)                                          \
  extern "C" reg_f32 OT_SLEEF_F(name, suffix)(reg_f32);                         \
  OT_INLINE vec<float> name(vec<float> x) {                                       \
    x.r[0] = OT_SLEEF_F(name, suffix)(x.r[0]);                                  \
    return x;                                                                     \
  }
#define OT_UNARY_D(name, suffix, libm)                                          \
  extern "C" reg_f64 OT_SLEEF_D(name, suffix)(reg_f64);                         \
  OT_INLINE vec<double> name(vec<double> x) {                                     \
    for (int i = 0; i < 2; i++) x.r[i] = OT_SLEEF_D(name, suffix)(x.r[i]);      \
    return x;                                                                     \
  }
#define OT_BINARY(name, suffix, libm)                                           \
  extern "C" reg_f32 OT_SLEEF_F(name, suffix)(reg_f32, reg_f32);                \
  extern "C" reg_f64 OT_SLEEF_D(name, suffix)(reg_f64, reg_f64);                \
  OT_INLINE vec<float> name(vec<float> x, vec<float> y) {                         \
    x.r[0] = OT_SLEEF_F(name, suffix)(x.r[0], y.r[0]);                          \
    return x;                                                                     \
  }                                                                               \
  OT_INLINE vec<double> name(vec<double> x, vec<double> y) {                      \
    for (int i = 0; i < 2; i++) x.r[i] = OT_SLEEF_D(name, suffix)(x.r[i], y.r[i]); \
    return x;                                                                     \
  }
#else
#define OT_UNARY_F(name, suffix, libm) OT_LIBM_UNARY_F(name, libm)
#define OT_UNARY_D(name, suffix, libm) OT_LIBM_UNARY_D(name, libm)
#define OT_BINARY(name, suffix, libm) OT_LIBM_BINARY(name, libm)
#endif
#define OT_UNARY(name, suffix, libm) OT_UNARY_F(name, suffix, libm) OT_UNARY_D(name, suffix, libm)

#define OT_LIBM_UNARY_F(name, libm)                                  \
  OT_INLINE vec<float> name(vec<float> x) {                          \
    return map_lanes<float>(x, [](float v) { return ::libm##f(v); }); \
  }
#define OT_LIBM_UNARY_D(name, libm)                                  \
  OT_INLINE vec<double> name(vec<double> x) {                        \
    return map_lanes<double>(x, [](double v) { return ::libm(v); }); \
  }
#define OT_LIBM_UNARY(name, libm) OT_LIBM_UNARY_F(name, libm) OT_LIBM_UNARY_D(name, libm)
#define OT_LIBM_BINARY(name, libm)                                                      \
  OT_INLINE vec<float> name(vec<float> x, vec<float> y) {                               \
    return map_lanes<float>(x, y, [](float a, float b) { return ::libm##f(a, b); });    \
  }                                                                                     \
  OT_INLINE vec<double> name(vec<double> x, vec<double> y) {                            \
    return map_lanes<double>(x, y, [](double a, double b) { return ::libm(a, b); });    \
  }

// ---- exp of float32, in line: loops are full of it, and it has the bits of Sleef's -----------

#if OT_AVX512 || OT_AVX2
// exp(x) = 2^n exp(r) of a whole n and x = n ln2 + r, in the steps in which Sleef rounds; p of
// exp(r) = 1 + r + r r p.
OT_INLINE vec<float> exp_terms(vec<float> x, vec<float>& n, vec<float>& r) {
  n = round(x * vec<float>(0x1.715476p+0f));
  r = fma(n, vec<float>(-0x1.62e4p-1f), x);
  r = fma(n, vec<float>(-0x1.7f7d1cp-20f), r);
  vec<float> p = fma(vec<float>(0x1.a057b4p-13f), r, vec<float>(0x1.6d2d92p-10f));
  p = fma(p, r, vec<float>(0x1.11114cp-7f));
  p = fma(p, r, vec<float>(0x1.5554f4p-5f));
  p = fma(p, r, vec<float>(0x1.555556p-3f));
  return fma(p, r, vec<float>(0.5f));
}
OT_INLINE vec<float> exp_rest(vec<float> x, vec<float>& n) {
  vec<float> r, p = exp_terms(x, n, r);
  return vec<float>(1.0f) + fma(r * r, p, r);
}
// y times 2^n where a result may be no normal number: rounded once. Where exp is 0 nothing is
// multiplied, since a product that vanishes takes a hundred cycles.
OT_INLINE vec<float> exp_scaled(vec<float> x, vec<float> y, vec<float> n) {
  vec<bool> vanishes = x < vec<float>(-104.0f);
#if OT_AVX512
  y.r[0] = (reg_f32)_mm512_maskz_scalef_ps(lane_mask(!vanishes), (__m512)y.r[0], (__m512)n.r[0]);
#else
  vec<float> zero(0.0f);
  vec<int32_t> whole = convert<int32_t>(where(vanishes, zero, n)), half, rest;
  half.r[0] = whole.r[0] >> 1;
  rest.r[0] = whole.r[0] - half.r[0];
  half.r[0] = (half.r[0] + 127) << 23;
  rest.r[0] = (rest.r[0] + 127) << 23;
  y = where(vanishes, zero, y * bitcast<float>(half) * bitcast<float>(rest));
#endif
  return where(x > vec<float>(100.0f), vec<float>(__builtin_inff()), y);
}
OT_INLINE vec<float> exp(vec<float> x) {
  vec<float> n, y = exp_rest(x, n);
#if !OT_AVX512
  if (__builtin_expect(all(abs(x) < vec<float>(87.0f)), 1)) {
    vec<int32_t> bits = bitcast<int32_t>(y);
    bits.r[0] += convert<int32_t>(n).r[0] << 23;
    return bitcast<float>(bits);
  }
#endif
  return exp_scaled(x, y, n);
}
OT_UNARY_D(exp, _u10, exp)
#else
OT_UNARY(exp, _u10, exp)
#endif

OT_UNARY(exp2, _u10, exp2)
OT_UNARY(expm1, _u10, expm1)
OT_UNARY(log, _u10, log)
OT_UNARY(log2, _u10, log2)
OT_UNARY(log10, _u10, log10)
OT_UNARY(log1p, _u10, log1p)
OT_UNARY(sin, _u10, sin)
OT_UNARY(cos, _u10, cos)
OT_UNARY(tan, _u10, tan)
OT_UNARY(asin, _u10, asin)
OT_UNARY(acos, _u10, acos)
OT_UNARY(atan, _u10, atan)
OT_UNARY(sinh, _u10, sinh)
OT_UNARY(cosh, _u10, cosh)
OT_UNARY(tanh, _u10, tanh)
OT_UNARY(atanh, _u10, atanh)
OT_UNARY(erf, _u10, erf)
OT_UNARY(erfc, _u15, erfc)
OT_UNARY(lgamma, _u10, lgamma)
OT_BINARY(pow, _u10, pow)
OT_BINARY(atan2, _u10, atan2)
OT_BINARY(hypot, _u05, hypot)
OT_BINARY(fmod, , fmod)
// Eager calls libm for these. Sleef's fmod yields NaN where the quotient overflows; libm's is exact.
OT_LIBM_BINARY(fmod_exact, fmod)
OT_LIBM_UNARY(asinh, asinh)
OT_LIBM_UNARY(acosh, acosh)
OT_LIBM_BINARY(nextafter, nextafter)

template <class T> OT_INLINE vec<T> sigmoid(vec<T> x) {
  vec<T> one(T(1));
  return one / (one + exp(-x));
}

// ---- division of floats ----------------------------------------------------------------------

template <class T> OT_INLINE vec<T> trunc_div(vec<T> a, vec<T> b) { return trunc(a / b); }
// The remainder with the sign of b.
template <class T> OT_INLINE vec<T> floor_mod(vec<T> a, vec<T> b) {
  vec<T> r = fmod(a, b), zero(T(0));
  return where((r != zero) & ((b < zero) != (r < zero)), r + b, r);
}
// floor(a / b) as of exact quotients: a - fmod(a, b) divides without rounding across an integer.
// Every step rounds to M, the type in memory.
template <class M, class T> OT_INLINE vec<T> floor_div_in(vec<T> a, vec<T> b) {
  vec<T> zero(T(0)), one(T(1));
  vec<T> r = round_to<M>(fmod_exact(a, b)), plain = round_to<M>(a / b);
  vec<T> q = round_to<M>(round_to<M>(a - r) / b);
  q = where((r != zero) & ((b < zero) != (r < zero)), round_to<M>(q - one), q);
  vec<T> whole = floor(q);
  whole = where(round_to<M>(q - whole) > vec<T>(T(0.5)), round_to<M>(whole + one), whole);
  whole = where(q == zero, copysign(zero, plain), whole);
  return where(b == zero, plain, whole);
}
template <class T> OT_INLINE vec<T> floor_div(vec<T> a, vec<T> b) {
  return floor_div_in<T>(a, b);
}

// ---- eager's short erf -----------------------------------------------------------------------

// Abramowitz and Stegun 7.1.26, within 1.5e-7 of erf: eager's erf of bf16 and f16, so only this
// spelling has its bits. It is far from erf near 0.
OT_INLINE vec<float> erf_short(vec<float> x) {
  vec<float> one(1.0f), t = one / fma(vec<float>(0.3275911f), abs(x), one);
  vec<float> r = fma(vec<float>(1.061405429f), t, vec<float>(-1.453152027f));
  r = fma(r, t, vec<float>(1.421413741f));
  r = fma(r, t, vec<float>(-0.284496736f));
  r = fma(r, t, vec<float>(0.254829592f));
  vec<float> magnitude = fma(-exp(-(x * x)) * t, r, one);
  return bitcast<float>(bitcast<int32_t>(magnitude) ^ bitcast<int32_t>(sign_bit_of(x)));
}
OT_INLINE vec<double> erf_short(vec<double> x) { return erf(x); }

// ---- inverse error function ------------------------------------------------------------------

#if !OT_VML
// Winitzki's approximation, then Newton steps on erf (erfc in the tail, where erf saturates).
template <class T> OT_INLINE T erfinv_lane(T y) {
  double v = (double)y, a = v < 0 ? -v : v;
  if (!(a < 1)) return a == 1 ? ::copysign((T)__builtin_inf(), y) : (T)__builtin_nan("");
  double l = ::log1p(-a * a), t = 2 / (3.14159265358979323846 * 0.147) + l / 2;
  double x = ::sqrt(::sqrt(t * t - l / 0.147) - t);
  for (int step = 0; step < 3; step++) {
    double miss = a < 0.5 ? ::erf(x) - a : (1 - a) - ::erfc(x);
    x -= miss / (1.12837916709551257390 * ::exp(-x * x));
  }
  return (T)::copysign(x, v);
}
template <class T> OT_INLINE vec<T> erfinv(vec<T> x) {
  return map_lanes<T>(x, [](T v) { return erfinv_lane(v); });
}
#endif

// ---- orthogonal polynomials ------------------------------------------------------------------

// p(n) of p(0) = 1, p(1) = first, p(k + 1) = step(lane, k, p(k), p(k - 1)), to the first NaN. The
// fraction of n is left out; NaN, negative numbers and those above 2^63 count as 0.
template <class T, class Step> OT_INLINE vec<T> three_term(vec<T> first, vec<T> n, Step step) {
  vec<T> y;
  for (int lane = 0; lane < W; lane++) {
    bool counts = n[lane] > T(0) && n[lane] < T(9223372036854775808.0);
    int64_t last = counts ? (int64_t)n[lane] : 0;
    T p = T(1), q = last > 0 ? first[lane] : p;
    for (int64_t k = 1; k < last && q == q; k++) {
      T next = step(lane, k, q, p);
      p = q;
      q = next;
    }
    y.set(lane, q);
  }
  return y;
}
template <class T> OT_INLINE vec<T> chebyshev(vec<T> x, vec<T> first, vec<T> n) {
  auto step = [&](int i, int64_t k, T q, T p) { return (x[i] + x[i]) * q - p; };
  return three_term(first, n, step);
}
template <class T> OT_INLINE vec<T> hermite_h(vec<T> x, vec<T> n) {
  auto step = [&](int i, int64_t k, T q, T p) { return (x[i] + x[i]) * q - T(2 * k) * p; };
  return three_term(x + x, n, step);
}
template <class T> OT_INLINE vec<T> hermite_he(vec<T> x, vec<T> n) {
  auto step = [&](int i, int64_t k, T q, T p) { return x[i] * q - T(k) * p; };
  return three_term(x, n, step);
}
template <class T> OT_INLINE vec<T> laguerre(vec<T> x, vec<T> n) {
  auto step = [&](int i, int64_t k, T q, T p) {
    return ((T(2 * k) + (T(1) - x[i])) * q - T(k) * p) / T(k + 1);
  };
  return three_term(vec<T>(T(1)) - x, n, step);
}
template <class T> OT_INLINE vec<T> legendre(vec<T> x, vec<T> n) {
  auto step = [&](int i, int64_t k, T q, T p) {
    return (T(2 * k + 1) * x[i] * q - T(k) * p) / T(k + 1);
  };
  return three_term(x, n, step);
}

// ---- Hurwitz's zeta function -----------------------------------------------------------------

// (2j)! / B(2j).
constexpr double zeta_divisors[] = {
    12.0, -720.0, 30240.0, -1209600.0, 47900160.0, -1892437580.3183792, 74724249600.0,
    -2950130727918.164, 116467828143500.67, -4597978722407473.0, 1.8152105401943546e+17,
    -7.166165256175667e+18};

// The sum of (q + k)^-x, q > 0: ten terms, then the tail of Euler and Maclaurin. It ends at a term
// of no weight, as eager's does.
inline double zeta_positive(double x, double q) {
  constexpr double epsilon = 0x1p-53;
  double w = q, b = ::pow(q, -x), total = b;
  for (int k = 1; k < 10; k++) {
    w += 1;
    b = ::pow(w, -x);
    total += b;
  }
  if (::fabs(b / total) < epsilon) return total;
  total = total + b * w / (x - 1) - b * 0.5;
  double rising = 1;
  for (int j = 0; j < 12; j++) {
    rising *= x + 2 * j;
    b /= w;
    double part = rising * b / zeta_divisors[j];
    total += part;
    if (::fabs(part / total) < epsilon) return total;
    rising *= x + (2 * j + 1);
    b /= w;
  }
  return total;
}
// Below 0, q = f - n: what precedes f are (-1)^x times the first n terms from 1 - f on.
inline double zeta_lane(double x, double q) {
  if (x == 1) return __builtin_inf();
  if (x < 1) return __builtin_nan("");
  if (!(q <= 0)) return zeta_positive(x, q);
  double below = ::floor(q), part = q - below;
  if (q == below || x == __builtin_inf()) return __builtin_inf();
  if (x != ::floor(x)) return __builtin_nan("");
  double far = zeta_positive(x, 1 - part - below);
  double first = zeta_positive(x, 1 - part) - (far == far ? far : 0.0);
  bool even = ::floor(x * 0.5) == x * 0.5;
  return (even ? first : -first) + zeta_positive(x, part);
}
template <class T> OT_INLINE vec<T> zeta(vec<T> x, vec<T> q) {
  return map_lanes<T>(x, q, [](T a, T b) { return (T)zeta_lane((double)a, (double)b); });
}

// ---- tanh of float32, in line: those of MKL and Sleef take three times as long ----------------

#if OT_AVX512 || OT_AVX2
// With exp(-2|x|) = m (1 + s), m = 2^n:   tanh |x| = (1 - m - m s) / (1 + m + m s)
// 1 - m and 1 + m are exact where the result is not 1, and s is as precise as x is where n is 0.
// What s, the sums and the quotient lose when they are rounded is carried along and added last.
OT_INLINE vec<float> tanh_short(vec<float> x) {
  const vec<float> one(1.0f);
  vec<float> a = abs(x), n, r;
  a = where(a < vec<float>(10.0f), a, vec<float>(10.0f)) * vec<float>(-2.0f);
  vec<float> p = exp_terms(a, n, r), t = r * r * p, s = r + t, low = t - (s - r);
  vec<int32_t> bits;
  bits.r[0] = (convert<int32_t>(n).r[0] + 127) << 23;
  vec<float> m = bitcast<float>(bits), whole = one + m, rest = one - m, term = m * s;
  vec<float> over = rest - term, under = whole + term;
  low = m * low;
  vec<float> over_low = (rest - over) - term - low, under_low = (whole - under) + term + low;
  vec<float> inverse = one / under, y = over * inverse;
  vec<float> missing = fma(-y, under, over) + fma(-y, under_low, over_low);
  y = copysign(fma(missing, inverse, y), x);
  return where(x == x, y, x);
}
#else
OT_INLINE vec<float> tanh_short(vec<float> x) { return tanh(x); }
#endif
OT_INLINE vec<double> tanh_short(vec<double> x) { return tanh(x); }

// ---- MKL's array functions -------------------------------------------------------------------

namespace vml {
#if OT_VML
// High accuracy, denormals kept, errors silent: the mode that eager asks for.
constexpr long long mode = 0x2 | 0x140000 | 0x100;
#define OT_ARRAY(name, mkl)                                                             \
  extern "C" void vms##mkl(int, const float*, float*, long long);                       \
  extern "C" void vmd##mkl(int, const double*, double*, long long);                     \
  OT_INLINE void name##_n(const float* x, float* y, int n) { vms##mkl(n, x, y, mode); } \
  OT_INLINE void name##_n(const double* x, double* y, int n) { vmd##mkl(n, x, y, mode); }
#else
#define OT_ARRAY(name, mkl)                                                             \
  template <class T> OT_INLINE void name##_n(const T* x, T* y, int n) {                 \
    int i = 0;                                                                          \
    for (; i + W <= n; i += W) store(y + i, ot::name(load(x + i)));                     \
    if (i < n) store(y + i, ot::name(load(x + i, n - i)), n - i);                       \
  }
#endif
#define OT_VML_UNARY(name, mkl)                        \
  OT_ARRAY(name, mkl)                                  \
  template <class T> OT_INLINE vec<T> name(vec<T> x) { \
    T in[W], out[W];                                   \
    store(in, x);                                      \
    name##_n(in, out, W);                              \
    return load(out);                                  \
  }
OT_VML_UNARY(exp, Exp)
OT_VML_UNARY(log, Ln)
OT_VML_UNARY(log2, Log2)
OT_VML_UNARY(log10, Log10)
OT_VML_UNARY(sin, Sin)
OT_VML_UNARY(cos, Cos)
OT_VML_UNARY(tan, Tan)
OT_VML_UNARY(asin, Asin)
OT_VML_UNARY(acos, Acos)
OT_VML_UNARY(atan, Atan)
OT_VML_UNARY(tanh, Tanh)
OT_VML_UNARY(erf, Erf)
OT_VML_UNARY(erfc, Erfc)
OT_VML_UNARY(erfinv, ErfInv)
OT_VML_UNARY(sqrt, Sqrt)
}  // namespace vml

#if OT_VML
using vml::erfinv;
#endif

}  // namespace ot
