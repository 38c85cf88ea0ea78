// The 8-bit floats: bytes in memory and in registers, converted as PyTorch does. Ties go to even;
// what is too large becomes the largest number (e4m3) or infinity (e5m2).
#pragma once

namespace ot {

template <int Fraction, int Bias> OT_INLINE vec<float> widen_float8(vec<uint8_t> x) {
  vec<int32_t> byte = convert<int32_t>(x), size = byte & vec<int32_t>(0x7F);
  vec<int32_t> lifted = map_lanes<int32_t>(size, [](int32_t v) {
    return (v << (23 - Fraction)) + ((127 - Bias) << 23);
  });
  vec<float> small = convert<float>(size) * vec<float>(1.0f / (1 << (Bias + Fraction - 1)));
  vec<float> wide = where(size < vec<int32_t>(1 << Fraction), small, bitcast<float>(lifted));
  if constexpr (Fraction == 2)
    wide = where(size == vec<int32_t>(0x7C), vec<float>(__builtin_inff()), wide);
  vec<bool> none = size >= vec<int32_t>(Fraction == 3 ? 0x7F : 0x7D);
  wide = where(none, vec<float>(__builtin_nanf("")), wide);
  return where(byte >= vec<int32_t>(0x80), -wide, wide);
}

// Adding half a step below the fraction, and one more where it is odd, rounds ties to even; small
// numbers are rounded by an addition at whose size the step is theirs.
template <int Fraction, int Bias> OT_INLINE uint8_t narrow_float8_lane(float x) {
  constexpr int shift = 23 - Fraction, beyond = Fraction == 3 ? 0x7E : 0x7C;
  constexpr uint32_t offset = uint32_t(127 - Bias) << 23, least = uint32_t(128 - Bias) << 23;
  constexpr uint32_t most = Fraction == 3 ? 1087u << 20 : 143u << 23, infinite = 255u << 23;
  constexpr float anchor = float(1 << (24 - Bias - Fraction));
  uint32_t bits = __builtin_bit_cast(uint32_t, x), size = bits & 0x7FFFFFFFu, made;
  if (size >= most) {
    made = size > infinite ? 0x7F : beyond;
  } else if (size < least) {
    float sum = __builtin_bit_cast(float, size) + anchor;
    made = __builtin_bit_cast(uint32_t, sum) - __builtin_bit_cast(uint32_t, anchor);
  } else {
    made = (size + ((size >> shift) & 1) + ((1u << (shift - 1)) - 1) - offset) >> shift;
    if (made > beyond) made = beyond;
  }
  return uint8_t(made | (bits >> 31 << 7));
}

OT_INLINE vec<float> from_f8e4m3(vec<uint8_t> x) { return widen_float8<3, 7>(x); }
OT_INLINE vec<float> from_f8e5m2(vec<uint8_t> x) { return widen_float8<2, 15>(x); }
OT_INLINE vec<uint8_t> to_f8e4m3(vec<float> x) {
  return map_lanes<uint8_t>(x, narrow_float8_lane<3, 7>);
}
OT_INLINE vec<uint8_t> to_f8e5m2(vec<float> x) {
  return map_lanes<uint8_t>(x, narrow_float8_lane<2, 15>);
}
OT_INLINE float from_f8e4m3(uint8_t x) { return from_f8e4m3(vec<uint8_t>(x))[0]; }
OT_INLINE float from_f8e5m2(uint8_t x) { return from_f8e5m2(vec<uint8_t>(x))[0]; }
OT_INLINE uint8_t to_f8e4m3(float x) { return narrow_float8_lane<3, 7>(x); }
OT_INLINE uint8_t to_f8e5m2(float x) { return narrow_float8_lane<2, 15>(x); }

}  // namespace ot
