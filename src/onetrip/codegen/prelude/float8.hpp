// The 8-bit floats: bytes in memory and in registers, converted as PyTorch does. Ties go to even;
// what is too large becomes the largest number (e4m3) or infinity (e5m2).
#pragma once

namespace ot {

template <int Fraction, int Bias> OT_INLINE vec<float> widen_float8(vec<uint8_t> x) {
  vec<int32_t> byte = convert<int32_t>(x), size = byte & vec<int32_t>(0x7F);
  vec<int32_t> lifted;
  lifted.r[0] = (size.r[0] << (23 - Fraction)) + ((127 - Bias) << 23);
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
template <int Fraction, int Bias> OT_INLINE vec<uint8_t> narrow_float8(vec<float> x) {
  constexpr int shift = 23 - Fraction, beyond = Fraction == 3 ? 0x7E : 0x7C;
  constexpr int32_t offset = (127 - Bias) << 23, least = (128 - Bias) << 23;
  constexpr int32_t most = Fraction == 3 ? 1087 << 20 : 143 << 23, infinite = 255 << 23;
  vec<float> anchor(float(1 << (24 - Bias - Fraction)));
  vec<int32_t> bits = bitcast<int32_t>(x), size = bits & vec<int32_t>(0x7FFFFFFF), made, sign;
  made.r[0] = (size.r[0] + ((size.r[0] >> shift) & 1) + ((1 << (shift - 1)) - 1 - offset)) >> shift;
  made = clamp_max(made, vec<int32_t>(beyond));
  vec<int32_t> small = bitcast<int32_t>(bitcast<float>(size) + anchor) - bitcast<int32_t>(anchor);
  made = where(size < vec<int32_t>(least), small, made);
  made = where(size >= vec<int32_t>(most), vec<int32_t>(beyond), made);
  made = where(size > vec<int32_t>(infinite), vec<int32_t>(0x7F), made);
  sign.r[0] = (bits.r[0] >> 24) & 0x80;
  return convert<uint8_t>(made | sign);
}

OT_INLINE vec<float> from_f8e4m3(vec<uint8_t> x) { return widen_float8<3, 7>(x); }
OT_INLINE vec<float> from_f8e5m2(vec<uint8_t> x) { return widen_float8<2, 15>(x); }
OT_INLINE vec<uint8_t> to_f8e4m3(vec<float> x) { return narrow_float8<3, 7>(x); }
OT_INLINE vec<uint8_t> to_f8e5m2(vec<float> x) { return narrow_float8<2, 15>(x); }
OT_INLINE float from_f8e4m3(uint8_t x) { return from_f8e4m3(vec<uint8_t>(x))[0]; }
OT_INLINE float from_f8e5m2(uint8_t x) { return from_f8e5m2(vec<uint8_t>(x))[0]; }
OT_INLINE uint8_t to_f8e4m3(float x) { return to_f8e4m3(vec<float>(x))[0]; }
OT_INLINE uint8_t to_f8e5m2(float x) { return to_f8e5m2(vec<float>(x))[0]; }

}  // namespace ot
