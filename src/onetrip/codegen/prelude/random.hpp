// Random numbers: Philox4x32 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3").
//
// Element i of a stream is word i % 4 of the block at counter i / 4; the key is the 64-bit seed.
// So a value depends on the seed and its place only, never on lanes, threads or order.
#pragma once

namespace ot {

struct philox_words { vec<uint32_t> word[4]; };

// The high and low 32 bits of a * b. The machine multiplies every second lane to 64 bits.
OT_INLINE void multiply_wide(vec<uint32_t> a, uint32_t b, vec<uint32_t>& high, vec<uint32_t>& low) {
#if OT_AVX512
  __m512i x = (__m512i)a.r[0], k = _mm512_set1_epi64(b);
  __m512i even = _mm512_mul_epu32(x, k), odd = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), k);
  __m512i h = _mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64(even, 32), odd);
  __m512i l = _mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64(odd, 32));
  high.r[0] = (vec<uint32_t>::reg)h;
  low.r[0] = (vec<uint32_t>::reg)l;
#elif OT_AVX2
  __m256i x = (__m256i)a.r[0], k = _mm256_set1_epi64x(b);
  __m256i even = _mm256_mul_epu32(x, k), odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), k);
  high.r[0] = (vec<uint32_t>::reg)_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
  low.r[0] = (vec<uint32_t>::reg)_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
#else
  vec<uint64_t> product = convert<uint64_t>(a) * vec<uint64_t>((uint64_t)b);
  vec<uint64_t> top;
  for (int i = 0; i < 2; i++) top.r[i] = product.r[i] >> 32;
  high = convert<uint32_t>(top);
  low = a * vec<uint32_t>(b);
#endif
}

// The four words at each counter.
template <int Rounds>
OT_INLINE philox_words philox(uint64_t seed, vec<uint64_t> counter) {
  vec<uint64_t> upper;
  for (int i = 0; i < 2; i++) upper.r[i] = counter.r[i] >> 32;
  vec<uint32_t> a = convert<uint32_t>(counter), b = convert<uint32_t>(upper);
  vec<uint32_t> c(0u), d(0u);
  uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);
  for (int round = 0; round < Rounds; round++) {
    vec<uint32_t> high0, low0, high1, low1;
    multiply_wide(a, 0xD2511F53u, high0, low0);
    multiply_wide(c, 0xCD9E8D57u, high1, low1);
    a = high1 ^ b ^ vec<uint32_t>(key0);
    b = low1;
    c = high0 ^ d ^ vec<uint32_t>(key1);
    d = low0;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return {{a, b, c, d}};
}

// The random word of each element, at any elements.
template <int Rounds>
OT_INLINE vec<uint32_t> random_word(uint64_t seed, vec<uint64_t> element) {
  vec<uint64_t> counter;
  for (int i = 0; i < 2; i++) counter.r[i] = element.r[i] >> 2;
  philox_words w = philox<Rounds>(seed, counter);
  vec<uint32_t> which = convert<uint32_t>(element) & vec<uint32_t>(3u);
  vec<uint32_t> low = where(which == vec<uint32_t>(0u), w.word[0], w.word[1]);
  vec<uint32_t> high = where(which == vec<uint32_t>(2u), w.word[2], w.word[3]);
  return where(which < vec<uint32_t>(2u), low, high);
}

// The same words for a walk over neighbouring elements: one Philox call serves 4 W of them.
template <int Rounds>
struct random_run {
  uint64_t seed;
  uint64_t held = ~0ull;  // first element of `words`; no run starts at the all-ones element
  uint32_t words[4 * W];

  explicit random_run(uint64_t s) : seed(s) {}
  // The words of elements first .. first + W - 1.
  OT_INLINE vec<uint32_t> at(uint64_t first) {
    uint64_t start = first - first % (4 * W);
    if (__builtin_expect(first % W != 0, 0)) return random_word<Rounds>(seed, iota<uint64_t>(first));
    if (start != held) refill(start);
    return load_bits(words + (first - start));
  }
  __attribute__((noinline)) void refill(uint64_t start) {
    held = start;
    philox_words w = philox<Rounds>(seed, iota<uint64_t>(start / 4));
    uint32_t by_word[4][W];
    for (int k = 0; k < 4; k++) store_bits(by_word[k], w.word[k]);
    for (int i = 0; i < W; i++)
      for (int k = 0; k < 4; k++) words[4 * i + k] = by_word[k][i];
  }
};

// Uniform in [0, 1): multiples of 2^-24.
OT_INLINE vec<float> uniform(vec<uint32_t> word) {
  vec<int32_t> top;
  top.r[0] = (vec<int32_t>::reg)(word.r[0] >> 8);
  return convert<float>(top) * vec<float>(0x1p-24f);
}

}  // namespace ot
