/* Four float32 lanes and the vector maths that several kernels share.
 *
 * madd(a, b, c) = a * b + c is the relaxed (fused where the machine can) multiply-add in the relaxed build and a multiply
 * and an add elsewhere. Every polynomial below says its error; results never depend on which build more than rounding.
 */
#pragma once
#include <stdint.h>
#include <wasm_simd128.h>

typedef v128_t vec;

#define INLINE static inline __attribute__((always_inline))

INLINE vec load(const float *p) { return wasm_v128_load(p); }
INLINE void store(float *p, vec v) { wasm_v128_store(p, v); }
INLINE vec load_splat(const float *p) { return wasm_v128_load32_splat(p); }
INLINE vec splat(float x) { return wasm_f32x4_splat(x); }
INLINE vec zero(void) { return wasm_i32x4_const_splat(0); }
INLINE vec add(vec a, vec b) { return wasm_f32x4_add(a, b); }
INLINE vec sub(vec a, vec b) { return wasm_f32x4_sub(a, b); }
INLINE vec mul(vec a, vec b) { return wasm_f32x4_mul(a, b); }
INLINE vec vdiv(vec a, vec b) { return wasm_f32x4_div(a, b); }

/* pmax(a, b) = a < b ? b : a, one machine instruction on x86 and ARM (f32x4.max costs eight on x86). A NaN in `a` stays. */
INLINE vec vmax(vec a, vec b) { return wasm_f32x4_pmax(a, b); }
INLINE vec vmin(vec a, vec b) { return wasm_f32x4_pmin(a, b); }

INLINE vec madd(vec a, vec b, vec c) {
#ifdef __wasm_relaxed_simd__
    return __builtin_wasm_relaxed_madd_f32x4(a, b, c);
#else
    return wasm_f32x4_add(wasm_f32x4_mul(a, b), c);
#endif
}

/* mask lanes are all ones or all zeros */
INLINE vec choose(vec mask, vec yes, vec no) {
#ifdef __wasm_relaxed_simd__
    return __builtin_wasm_relaxed_laneselect_i32x4(yes, no, mask);
#else
    return wasm_v128_bitselect(yes, no, mask);
#endif
}

INLINE float lane_sum(vec v) {
    v = add(v, wasm_i32x4_shuffle(v, v, 2, 3, 0, 1));
    v = add(v, wasm_i32x4_shuffle(v, v, 1, 0, 3, 2));
    return wasm_f32x4_extract_lane(v, 0);
}

INLINE float lane_max(vec v) {
    v = vmax(v, wasm_i32x4_shuffle(v, v, 2, 3, 0, 1));
    v = vmax(v, wasm_i32x4_shuffle(v, v, 1, 0, 3, 2));
    return wasm_f32x4_extract_lane(v, 0);
}

/* (a, b, c, d) rows -> columns, in place. */
INLINE void transpose4(vec *a, vec *b, vec *c, vec *d) {
    vec ab_low = wasm_i32x4_shuffle(*a, *b, 0, 4, 1, 5), ab_high = wasm_i32x4_shuffle(*a, *b, 2, 6, 3, 7);
    vec cd_low = wasm_i32x4_shuffle(*c, *d, 0, 4, 1, 5), cd_high = wasm_i32x4_shuffle(*c, *d, 2, 6, 3, 7);
    *a = wasm_i64x2_shuffle(ab_low, cd_low, 0, 2);
    *b = wasm_i64x2_shuffle(ab_low, cd_low, 1, 3);
    *c = wasm_i64x2_shuffle(ab_high, cd_high, 0, 2);
    *d = wasm_i64x2_shuffle(ab_high, cd_high, 1, 3);
}

/* Adding 1.5 * 2^23 rounds a float of magnitude below 2^22 to the nearest integer, which then stands in the low bits. */
#define ROUNDER 12582912.0f

/* p times 2^n, n in the low bits of `rounded`. */
INLINE vec scale_by_power(vec p, vec rounded) { return wasm_i32x4_add(p, wasm_i32x4_shl(rounded, 23)); }

/* 2^x for x <= 0, the softmax exponential: relative error 2.2e-7 (minimax on |r| <= 1/2, degree 5); below 2^-126 the answer
 * stays about 1e-38. */
INLINE vec exp2_negative(vec x) {
    x = vmax(x, splat(-126.0f));
    vec rounded = add(x, splat(ROUNDER));
    vec r = sub(x, sub(rounded, splat(ROUNDER)));
    vec p = splat(0x1.5c08e6p-10f);
    p = madd(p, r, splat(0x1.3d0c52p-7f));
    p = madd(p, r, splat(0x1.c6b6e4p-5f));
    p = madd(p, r, splat(0x1.ebf918p-3f));
    p = madd(p, r, splat(0x1.62e428p-1f));
    p = madd(p, r, splat(0x1.000002p+0f));
    return scale_by_power(p, rounded);
}

#define LOG2E 1.44269504088896341f

/* e^x, relative error 2e-7: x = n ln2 + r, degree 6 in r / ln2. Overflow gives infinity, below 2.4e-38 it is 0, NaN stays. */
INLINE vec vexp(vec x) {
    vec clamped = vmin(vmax(x, splat(-86.6f)), splat(88.73f));
    vec rounded = madd(clamped, splat(LOG2E), splat(ROUNDER));
    vec n = sub(rounded, splat(ROUNDER));
    /* ln2 in two parts, the first of 15 bits so that n times it is exact */
    vec r = madd(n, splat(-0x1.7f7d1cp-20f), madd(n, splat(-0x1.62e4p-1f), clamped));
    r = mul(r, splat(LOG2E));
    vec p = splat(0x1.41d334p-13f);
    p = madd(p, r, splat(0x1.5f456ap-10f));
    p = madd(p, r, splat(0x1.3b2dbcp-7f));
    p = madd(p, r, splat(0x1.c6aed4p-5f));
    p = madd(p, r, splat(0x1.ebfbdap-3f));
    p = madd(p, r, splat(0x1.62e430p-1f));
    p = madd(p, r, splat(1.0f));
    /* n - 1, then doubled: 2^128 has no float, yet e^88.7 is finite */
    vec y = scale_by_power(p, wasm_i32x4_sub(rounded, wasm_i32x4_splat(1)));
    y = add(y, y);
    y = choose(wasm_f32x4_gt(x, splat(88.7228394f)), splat(__builtin_inff()), y);
    y = choose(wasm_f32x4_lt(x, splat(-86.6f)), zero(), y);
    return choose(wasm_f32x4_ne(x, x), x, y);
}

/* Natural logarithm, relative error 2e-7 (Cephes coefficients); 0 -> -infinity, below 0 -> NaN. */
INLINE vec vlog(vec x) {
    vec tiny = wasm_f32x4_lt(x, splat(0x1p-126f));
    vec y = choose(tiny, mul(x, splat(0x1p23f)), x); /* subnormals */
    vec exponent = sub(wasm_f32x4_convert_i32x4(wasm_i32x4_sub(wasm_u32x4_shr(y, 23), wasm_i32x4_splat(126))),
                       choose(tiny, splat(23.0f), zero()));
    vec f = wasm_v128_or(wasm_v128_and(y, wasm_i32x4_splat(0x007fffff)), wasm_i32x4_splat(0x3f000000));
    vec low = wasm_f32x4_lt(f, splat(0.707106781186547524f));
    exponent = sub(exponent, wasm_v128_and(low, splat(1.0f)));
    f = sub(add(f, wasm_v128_and(low, f)), splat(1.0f));
    vec square = mul(f, f);
    vec p = splat(7.0376836292E-2f);
    p = madd(p, f, splat(-1.1514610310E-1f));
    p = madd(p, f, splat(1.1676998740E-1f));
    p = madd(p, f, splat(-1.2420140846E-1f));
    p = madd(p, f, splat(1.4249322787E-1f));
    p = madd(p, f, splat(-1.6668057665E-1f));
    p = madd(p, f, splat(2.0000714765E-1f));
    p = madd(p, f, splat(-2.4999993993E-1f));
    p = madd(p, f, splat(3.3333331174E-1f));
    p = mul(mul(p, f), square);
    p = madd(exponent, splat(-2.12194440e-4f), p);
    p = madd(square, splat(-0.5f), p);
    p = madd(exponent, splat(0.693359375f), add(f, p));
    p = choose(wasm_f32x4_eq(x, zero()), splat(-__builtin_inff()), p);
    p = choose(wasm_f32x4_lt(x, zero()), splat(__builtin_nanf("")), p);
    p = choose(wasm_f32x4_eq(x, splat(__builtin_inff())), x, p);
    return choose(wasm_f32x4_ne(x, x), x, p);
}

INLINE vec sigmoid(vec x) { return vdiv(splat(1.0f), add(splat(1.0f), vexp(wasm_f32x4_neg(x)))); }

INLINE vec silu(vec x) { return mul(x, vdiv(splat(1.0f), add(splat(1.0f), vexp(wasm_f32x4_neg(x))))); }

/* tanh: an odd polynomial near 0 (Cephes), 1 - 2 / (e^2|x| + 1) elsewhere. */
INLINE vec vtanh(vec x) {
    vec size = wasm_f32x4_abs(x), square = mul(x, x);
    vec p = splat(-5.70498872745E-3f);
    p = madd(p, square, splat(2.06390887954E-2f));
    p = madd(p, square, splat(-5.37397155531E-2f));
    p = madd(p, square, splat(1.33314422036E-1f));
    p = madd(p, square, splat(-3.33332819422E-1f));
    vec near = madd(mul(p, square), x, x);
    vec far = sub(splat(1.0f), vdiv(splat(2.0f), add(vexp(vmin(add(size, size), splat(60.0f))), splat(1.0f))));
    far = wasm_v128_or(far, wasm_v128_and(x, wasm_i32x4_splat(0x80000000)));
    return choose(wasm_f32x4_lt(size, splat(0.625f)), near, far);
}

/* GELU, the exact erf form: max(x, 0) - |x| Q(|x|) with the normal tail Q(z) = t (c0 + ... + c4 t^4) e^(-z^2/2) and
 * t = 1 / (1 + p z / sqrt 2) (Abramowitz and Stegun 7.1.26, erf to 1.5e-7). Absolute error below 1e-6, finite for all x. */
INLINE vec gelu(vec x) {
    vec size = wasm_f32x4_abs(x);
    vec z = vmin(size, splat(13.0f)); /* e^(-z^2/2) stays normal, and z times it is below 1e-35 */
    vec t = vdiv(splat(1.0f), madd(z, splat(0.231641888f), splat(1.0f)));
    vec p = splat(0.5307027145f);
    p = madd(p, t, splat(-0.7265760135f));
    p = madd(p, t, splat(0.7107068705f));
    p = madd(p, t, splat(-0.142248368f));
    p = madd(p, t, splat(0.127414796f));
    vec tail = mul(mul(p, t), exp2_negative(mul(mul(z, z), splat(-0.5f * LOG2E))));
    vec y = sub(vmax(x, zero()), mul(size, tail));
    return choose(wasm_f32x4_gt(size, splat(13.0f)), vmax(x, zero()), y);
}

INLINE vec relu(vec x) { return vmax(x, zero()); }

/* Half precision without a conversion instruction: shift exponent and mantissa into place, then multiply by 2^112 to
 * move the exponent's bias. Exact for every finite half, subnormals too. `bits` holds sign-extended 16-bit values. */
#define HALF_SCALE 0x1p112f
INLINE vec half_unscaled(vec bits) {
    return wasm_v128_and(wasm_i32x4_shl(bits, 13), wasm_i32x4_splat((int32_t)0x8fffe000));
}
INLINE vec half_load(const uint16_t *p) { return half_unscaled(wasm_i32x4_load16x4((const void *)p)); }
INLINE vec half_to_float(const uint16_t *p) { return mul(half_load(p), splat(HALF_SCALE)); }
INLINE vec bfloat_load(const uint16_t *p) { return wasm_i32x4_shl(wasm_u32x4_load16x4((const void *)p), 16); }

INLINE float half_scalar(uint16_t h) {
    union { uint32_t i; float f; } u = {((uint32_t)(int32_t)(int16_t)h << 13) & 0x8fffe000u};
    return u.f * HALF_SCALE;
}
INLINE float bfloat_scalar(uint16_t h) {
    union { uint32_t i; float f; } u = {(uint32_t)h << 16};
    return u.f;
}
