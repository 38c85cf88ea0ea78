// Memory: load, store, gather and scatter for every element type.
//
// bf16 and f16 exist only in memory: they load as float and are rounded once, to nearest even, when
// stored. A bool is a byte that is 0 or 1. Masked forms touch no memory in a lane that is off and
// load 0 there.
#pragma once

namespace ot {

struct bf16 { uint16_t bits; };
struct f16 { uint16_t bits; };

// The type in registers of an element in memory.
template <class T> struct in_register { typedef T type; };
template <> struct in_register<bf16> { typedef float type; };
template <> struct in_register<f16> { typedef float type; };
template <class T> using register_type = typename in_register<T>::type;

// The same-size plain type whose bytes a load moves.
template <class T> struct in_memory { typedef T type; };
template <> struct in_memory<bf16> { typedef uint16_t type; };
template <> struct in_memory<f16> { typedef uint16_t type; };
template <> struct in_memory<bool> { typedef uint8_t type; };
template <class T> using memory_type = typename in_memory<T>::type;

// ---- half precision --------------------------------------------------------------------------

OT_INLINE vec<float> widen_bf16(vec<uint16_t> bits) {
  vec<uint32_t> wide = convert<uint32_t>(bits);
  wide.r[0] <<= 16;
  return bitcast<float>(wide);
}

// NaN becomes 0xffff, as in PyTorch's vectorized kernels.
OT_INLINE vec<uint16_t> narrow_bf16(vec<float> x) {
  vec<uint32_t> b = bitcast<uint32_t>(x);
  vec<uint32_t> rounded;
  rounded.r[0] = (b.r[0] + 0x7fffu + ((b.r[0] >> 16) & 1u)) >> 16;
  return convert<uint16_t>(where(x == x, rounded, vec<uint32_t>(0xffffu)));
}

#if !OT_AVX512 && !OT_AVX2
// One f16 to float and back without hardware, by scaling through a denormal product.
OT_INLINE float widen_f16_lane(uint16_t h) {
  uint32_t magnitude = (uint32_t)(h & 0x7fffu) << 13, sign = (uint32_t)(h & 0x8000u) << 16;
  float f;
  memcpy(&f, &magnitude, 4);
  f *= 0x1p112f;  // moves the exponent bias from 15 to 127; denormals come out normal
  uint32_t b;
  memcpy(&b, &f, 4);
  if ((h & 0x7c00u) == 0x7c00u) b = magnitude | 0x7f800000u;
  b |= sign;
  memcpy(&f, &b, 4);
  return f;
}
OT_INLINE uint16_t narrow_f16_lane(float x) {
  uint32_t b;
  memcpy(&b, &x, 4);
  uint16_t sign = (uint16_t)((b >> 16) & 0x8000u);
  b &= 0x7fffffffu;
  if (b > 0x7f800000u) return sign | 0x7e00u | (uint16_t)((b >> 13) & 0x3ffu);
  if (b >= 0x477ff000u) return sign | 0x7c00u;  // 65520 and above round to infinity
  if (b < 0x38800000u) {                        // below 2^-14: the adder rounds at 2^-24
    float m;
    memcpy(&m, &b, 4);
    m += 0.5f;
    memcpy(&b, &m, 4);
    return sign | (uint16_t)(b - 0x3f000000u);
  }
  return sign | (uint16_t)((b - 0x38000000u + 0xfffu + ((b >> 13) & 1u)) >> 13);
}
#endif

OT_INLINE vec<float> widen_f16(vec<uint16_t> bits) {
  vec<float> x;
#if OT_AVX512
  x.r[0] = (vec<float>::reg)_mm512_cvtph_ps((__m256i)bits.r[0]);
#elif OT_AVX2
  x.r[0] = (vec<float>::reg)_mm256_cvtph_ps((__m128i)bits.r[0]);
#else
  x = map_lanes<float>(bits, widen_f16_lane);
#endif
  return x;
}

OT_INLINE vec<uint16_t> narrow_f16(vec<float> x) {
  vec<uint16_t> bits;
#if OT_AVX512
  bits.r[0] = (vec<uint16_t>::reg)_mm512_cvtps_ph((__m512)x.r[0], _MM_FROUND_TO_NEAREST_INT);
#elif OT_AVX2
  bits.r[0] = (vec<uint16_t>::reg)_mm256_cvtps_ph((__m256)x.r[0], _MM_FROUND_TO_NEAREST_INT);
#else
  bits = map_lanes<uint16_t>(x, narrow_f16_lane);
#endif
  return bits;
}

// Rounding points kept in registers.
OT_INLINE vec<float> round_bf16(vec<float> x) { return widen_bf16(narrow_bf16(x)); }
OT_INLINE vec<float> round_f16(vec<float> x) { return widen_f16(narrow_f16(x)); }
OT_INLINE float round_bf16(float x) { return round_bf16(vec<float>(x))[0]; }
OT_INLINE float round_f16(float x) { return round_f16(vec<float>(x))[0]; }

// Between the form in memory and the form in registers.
template <class T> struct form {
  static OT_INLINE vec<T> decode(vec<T> x) { return x; }
  static OT_INLINE vec<T> encode(vec<T> x) { return x; }
};
template <> struct form<bf16> {
  static OT_INLINE vec<float> decode(vec<uint16_t> x) { return widen_bf16(x); }
  static OT_INLINE vec<uint16_t> encode(vec<float> x) { return narrow_bf16(x); }
};
template <> struct form<f16> {
  static OT_INLINE vec<float> decode(vec<uint16_t> x) { return widen_f16(x); }
  static OT_INLINE vec<uint16_t> encode(vec<float> x) { return narrow_f16(x); }
};
template <> struct form<bool> {
  static OT_INLINE vec<bool> decode(vec<uint8_t> x) { return x != vec<uint8_t>((uint8_t)0); }
  static OT_INLINE vec<uint8_t> encode(vec<bool> x) {
    return convert<uint8_t>(mask_bits(x)) & vec<uint8_t>((uint8_t)1);
  }
};

// x rounded to the type in memory M, and back in a register.
template <class M> OT_INLINE vec<register_type<M>> round_to(vec<register_type<M>> x) {
  return form<M>::decode(form<M>::encode(x));
}

// ---- contiguous ------------------------------------------------------------------------------

template <class T> OT_INLINE vec<T> load_bits(const T* p) {
  vec<T> x;
  memcpy(&x, p, sizeof x);
  return x;
}

#if OT_AVX512
OT_INLINE __mmask16 lane_mask(vec<bool> m) { return _mm512_movepi32_mask((__m512i)m.r[0]); }
#endif

// All bits of a lane of T, or none.
template <class T> OT_INLINE vec<signed_like<T>> masks_of(vec<bool> m) {
  return convert<signed_like<T>>(mask_bits(m));
}

template <class T> OT_INLINE vec<T> load_bits(const T* p, vec<bool> mask) {
  vec<T> x;
#if OT_AVX512
  typedef typename vec<T>::reg reg;
  __mmask16 k = lane_mask(mask);
  if constexpr (sizeof(T) == 1) x.r[0] = (reg)_mm_maskz_loadu_epi8(k, p);
  if constexpr (sizeof(T) == 2) x.r[0] = (reg)_mm256_maskz_loadu_epi16(k, p);
  if constexpr (sizeof(T) == 4) x.r[0] = (reg)_mm512_maskz_loadu_epi32(k, p);
  if constexpr (sizeof(T) == 8) {
    x.r[0] = (reg)_mm512_maskz_loadu_epi64((__mmask8)k, p);
    x.r[1] = (reg)_mm512_maskz_loadu_epi64((__mmask8)(k >> 8), p + 8);
  }
  return x;
#elif OT_AVX2
  if constexpr (sizeof(T) == 4 || sizeof(T) == 8) {
    vec<signed_like<T>> m = masks_of<T>(mask);
    for (int i = 0; i < vec<T>::N; i++) {
      typedef typename vec<T>::reg reg;
      __m256i k = (__m256i)m.r[i];
      if constexpr (sizeof(T) == 4) x.r[i] = (reg)_mm256_maskload_epi32((const int*)p, k);
      else x.r[i] = (reg)_mm256_maskload_epi64((const long long*)p + 4 * i, k);
    }
    return x;
  }
#endif
  T t[W];
  for (int i = 0; i < W; i++) t[i] = mask[i] ? p[i] : T(0);
  memcpy(&x, t, sizeof x);
  return x;
}

template <class T> OT_INLINE void store_bits(T* p, vec<T> x) { memcpy(p, &x, sizeof x); }

template <class T> OT_INLINE void store_bits(T* p, vec<T> x, vec<bool> mask) {
#if OT_AVX512
  __mmask16 k = lane_mask(mask);
  if constexpr (sizeof(T) == 1) _mm_mask_storeu_epi8(p, k, (__m128i)x.r[0]);
  if constexpr (sizeof(T) == 2) _mm256_mask_storeu_epi16(p, k, (__m256i)x.r[0]);
  if constexpr (sizeof(T) == 4) _mm512_mask_storeu_epi32(p, k, (__m512i)x.r[0]);
  if constexpr (sizeof(T) == 8) {
    _mm512_mask_storeu_epi64(p, (__mmask8)k, (__m512i)x.r[0]);
    _mm512_mask_storeu_epi64(p + 8, (__mmask8)(k >> 8), (__m512i)x.r[1]);
  }
  return;
#elif OT_AVX2
  if constexpr (sizeof(T) == 4 || sizeof(T) == 8) {
    vec<signed_like<T>> m = masks_of<T>(mask);
    for (int i = 0; i < vec<T>::N; i++) {
      __m256i k = (__m256i)m.r[i], bits = (__m256i)x.r[i];
      if constexpr (sizeof(T) == 4) _mm256_maskstore_epi32((int*)p, k, bits);
      else _mm256_maskstore_epi64((long long*)p + 4 * i, k, bits);
    }
    return;
  }
#endif
  for (int i = 0; i < W; i++)
    if (mask[i]) p[i] = x[i];
}

// W elements from p on. T may be any element type, bf16 and f16 included.
template <class T> OT_INLINE vec<register_type<T>> load(const T* p) {
  return form<T>::decode(load_bits((const memory_type<T>*)p));
}
// Only the lanes in which mask is set.
template <class T> OT_INLINE vec<register_type<T>> load(const T* p, vec<bool> mask) {
  return form<T>::decode(load_bits((const memory_type<T>*)p, mask));
}
// Only the first n elements.
template <class T> OT_INLINE vec<register_type<T>> load(const T* p, int64_t n) {
  return load(p, first_lanes(n));
}
template <class T> OT_INLINE void store(T* p, vec<register_type<T>> x) {
  store_bits((memory_type<T>*)p, form<T>::encode(x));
}
template <class T> OT_INLINE void store(T* p, vec<register_type<T>> x, vec<bool> mask) {
  store_bits((memory_type<T>*)p, form<T>::encode(x), mask);
}
template <class T> OT_INLINE void store(T* p, vec<register_type<T>> x, int64_t n) {
  store(p, x, first_lanes(n));
}

// One element, as a plain scalar.
template <class T> OT_INLINE register_type<T> load_one(const T* p) {
  return form<T>::decode(vec<memory_type<T>>(*(const memory_type<T>*)p))[0];
}
template <class T> OT_INLINE void store_one(T* p, register_type<T> x) {
  *(memory_type<T>*)p = form<T>::encode(vec<register_type<T>>(x))[0];
}

// ---- scattered -------------------------------------------------------------------------------

// p[index] in every lane; indices count elements.
template <class T> OT_INLINE vec<T> gather_bits(const T* p, vec<int64_t> index, vec<bool> mask) {
  vec<T> x;
#if OT_AVX512
  typedef typename vec<T>::reg reg;
  __mmask16 k = lane_mask(mask);
  __mmask8 low = (__mmask8)k, high = (__mmask8)(k >> 8);
  __m512i a = (__m512i)index.r[0], b = (__m512i)index.r[1], zero = _mm512_setzero_si512();
  if constexpr (sizeof(T) == 4) {
    __m256i z = _mm256_setzero_si256();
    x.r[0] = (reg)_mm512_inserti64x4(
        _mm512_castsi256_si512(_mm512_mask_i64gather_epi32(z, low, a, p, 4)),
        _mm512_mask_i64gather_epi32(z, high, b, p, 4), 1);
    return x;
  } else if constexpr (sizeof(T) == 8) {
    x.r[0] = (reg)_mm512_mask_i64gather_epi64(zero, low, a, p, 8);
    x.r[1] = (reg)_mm512_mask_i64gather_epi64(zero, high, b, p, 8);
    return x;
  }
#elif OT_AVX2
  typedef typename vec<T>::reg reg;
  __m256i low = (__m256i)index.r[0], high = (__m256i)index.r[1];
  if constexpr (sizeof(T) == 4) {
    __m256i m = (__m256i)mask.r[0];
    __m128i z = _mm_setzero_si128();
    __m128i first = _mm256_castsi256_si128(m), second = _mm256_extracti128_si256(m, 1);
    __m128i a = _mm256_mask_i64gather_epi32(z, (const int*)p, low, first, 4);
    __m128i b = _mm256_mask_i64gather_epi32(z, (const int*)p, high, second, 4);
    x.r[0] = (reg)_mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1);
    return x;
  } else if constexpr (sizeof(T) == 8) {
    vec<int64_t> m = masks_of<int64_t>(mask);
    const long long* q = (const long long*)p;
    __m256i z = _mm256_setzero_si256();
    x.r[0] = (reg)_mm256_mask_i64gather_epi64(z, q, low, (__m256i)m.r[0], 8);
    x.r[1] = (reg)_mm256_mask_i64gather_epi64(z, q, high, (__m256i)m.r[1], 8);
    return x;
  }
#endif
  T t[W];
  for (int i = 0; i < W; i++) t[i] = mask[i] ? p[index[i]] : T(0);
  memcpy(&x, t, sizeof x);
  return x;
}

template <class T>
OT_INLINE vec<register_type<T>> gather(const T* p, vec<int64_t> index, vec<bool> mask) {
  return form<T>::decode(gather_bits((const memory_type<T>*)p, index, mask));
}
template <class T> OT_INLINE vec<register_type<T>> gather(const T* p, vec<int64_t> index) {
  return gather(p, index, vec<bool>(true));
}

// p[0], p[stride], p[2 * stride], ...
template <class T> OT_INLINE vec<register_type<T>> load_strided(const T* p, int64_t stride) {
  typedef memory_type<T> memory;
  memory t[W];
  for (int i = 0; i < W; i++) t[i] = ((const memory*)p)[i * stride];
  vec<memory> x;
  memcpy(&x, t, sizeof x);
  return form<T>::decode(x);
}
template <class T>
OT_INLINE vec<register_type<T>> load_strided(const T* p, int64_t stride, vec<bool> mask) {
  return gather(p, iota<int64_t>(0) * vec<int64_t>(stride), mask);
}

// In lane order, so that of several lanes with one index the last stays. `combine(old, new)`
// makes an accumulating scatter, e.g. a sum.
template <class T, class F>
OT_INLINE void scatter(T* p, vec<int64_t> index, vec<register_type<T>> x, vec<bool> mask,
                       F combine) {
  for (int i = 0; i < W; i++)
    if (mask[i]) store_one(p + index[i], combine(load_one(p + index[i]), x[i]));
}
template <class T>
OT_INLINE void scatter(T* p, vec<int64_t> index, vec<register_type<T>> x, vec<bool> mask) {
  memory_type<T> t[W];
  vec<memory_type<T>> bits = form<T>::encode(x);
  memcpy(t, &bits, sizeof t);
  for (int i = 0; i < W; i++)
    if (mask[i]) ((memory_type<T>*)p)[index[i]] = t[i];
}
template <class T>
OT_INLINE void store_strided(T* p, int64_t stride, vec<register_type<T>> x, vec<bool> mask) {
  scatter(p, iota<int64_t>(0) * vec<int64_t>(stride), x, mask);
}
template <class T>
OT_INLINE void store_strided(T* p, int64_t stride, vec<register_type<T>> x) {
  store_strided(p, stride, x, vec<bool>(true));
}

// ---- transposed ------------------------------------------------------------------------------

// The halves of two registers with their lanes in turn: a0 b0 a1 b1 ...
#if OT_AVX512
#define OT_LOW 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define OT_HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif OT_AVX2
#define OT_LOW 0, 8, 1, 9, 2, 10, 3, 11
#define OT_HIGH 4, 12, 5, 13, 6, 14, 7, 15
#else
#define OT_LOW 0, 4, 1, 5
#define OT_HIGH 2, 6, 3, 7
#endif

// A square of W rows turned around: interleaving row i with row i + W/2, log2(W) times over.
template <class T> OT_INLINE void transpose_square(T* to, int64_t rows, const T* from,
                                                   int64_t columns) {
#if __has_builtin(__builtin_shufflevector)
  if constexpr (vec<T>::N == 1) {
    typename vec<T>::reg x[W], y[W];
    for (int i = 0; i < W; i++) x[i] = load_bits(from + i * columns).r[0];
    for (int step = 1; step < W; step *= 2) {
      for (int i = 0; i < W / 2; i++) {
        y[2 * i] = __builtin_shufflevector(x[i], x[i + W / 2], OT_LOW);
        y[2 * i + 1] = __builtin_shufflevector(x[i], x[i + W / 2], OT_HIGH);
      }
      for (int i = 0; i < W; i++) x[i] = y[i];
    }
    for (int i = 0; i < W; i++) memcpy(to + i * rows, &x[i], sizeof x[i]);
    return;
  }
#endif
  for (int i = 0; i < W; i++)
    for (int j = 0; j < W; j++) to[j * rows + i] = from[i * columns + j];
}
#undef OT_LOW
#undef OT_HIGH

// to[j * rows + i] = from[i * columns + j] for i < m and j < n.
template <class E>
OT_INLINE void transpose(E* to_, int64_t rows, const E* from_, int64_t columns, int64_t m,
                         int64_t n) {
  typedef memory_type<E> T;
  T* to = (T*)to_;
  const T* from = (const T*)from_;
  int64_t i = 0;
  for (; i + W <= m; i += W) {
    int64_t j = 0;
    for (; j + W <= n; j += W)
      transpose_square(to + j * rows + i, rows, from + i * columns + j, columns);
    for (; j < n; j++)
      for (int k = 0; k < W; k++) to[j * rows + i + k] = from[(i + k) * columns + j];
  }
  for (; i < m; i++)
    for (int64_t j = 0; j < n; j++) to[j * rows + i] = from[i * columns + j];
}

// The accumulating scatter for an output that several threads share.
template <class T, class F>
OT_INLINE void scatter_atomic(T* p, vec<int64_t> index, vec<register_type<T>> x, vec<bool> mask,
                              F combine) {
  typedef memory_type<T> memory;
  for (int i = 0; i < W; i++) {
    if (!mask[i]) continue;
    memory* cell = (memory*)(p + index[i]);
    memory old, next;
    __atomic_load(cell, &old, __ATOMIC_RELAXED);
    do {
      register_type<T> sum = combine(load_one((const T*)&old), x[i]);
      store_one((T*)&next, sum);
    } while (!__atomic_compare_exchange(cell, &old, &next, true, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED));
  }
}

// Index `i` into `size` elements, negative counted from the end; outside it notes a fault and
// yields 0, which is safe to read when size > 0.
OT_INLINE vec<int64_t> checked_index(vec<int64_t> i, int64_t size, faults& f) {
  vec<int64_t> n(size), zero((int64_t)0);
  vec<int64_t> j = where(i < zero, i + n, i);
  vec<bool> wrong = (j < zero) | (j >= n);
  f.note_index(wrong, j, -size, size);
  return where(wrong, zero, j);
}

}  // namespace ot
