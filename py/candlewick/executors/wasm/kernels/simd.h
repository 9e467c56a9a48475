/* Four float32 lanes and the vector maths that several kernels share.
 *
 * madd(a, b, c) = a * b + c is the relaxed (fused where the machine can) multiply-add in the relaxed build and a multiply
 * and an add elsewhere. Every polynomial below says its error; results never depend on which build more than rounding.
 */
#pragma once
#include <stdint.h>
#include <wasm_simd128.h>

typedef v128_t vec;

#define FULLY _Pragma("clang loop unroll(full)")
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

/* Constants of polynomials are read from memory, one instruction each: V8 builds a v128.const from two 64-bit halves with
 * four. `table` hides from the compiler that it knows what the memory holds. */
#define FIX(x) __asm__ volatile("" : "+r"(x))
INLINE const float *table(const float *p) {
    FIX(p);
    return p;
}

/* p times 2^n, n in the low bits of `rounded`. Adding 1.5 * 2^23 rounds a float of magnitude below 2^22 to the nearest
 * integer, which then stands in the low bits. */
#define ROUNDER 12582912.0f
INLINE vec scale_by_power(vec p, vec rounded) { return wasm_i32x4_add(p, wasm_i32x4_shl(rounded, 23)); }

/* Horner's rule: the coefficients of x^n ... x^0 stand at k. */
#define HORNER(p, x, k, n)                                                                                               \
    vec p = load_splat(k);                                                                                               \
    FULLY for (int i_ = 1; i_ <= (n); i_++) p = madd(p, x, load_splat((k) + i_))

/* The softmax exponential 2^(x - top), x <= top, for a whole number top below 2^21: then adding ROUNDER - top rounds and
 * subtracts at once, exactly. Relative error 2.2e-7 (minimax on |r| <= 1/2, degree 5). More than 60 below top the answer
 * stays at 2^-60, which is nothing beside the largest, yet its products are never subnormal (slow). */
static const float EXP2[] = {0x1.5c08e6p-10f, 0x1.3d0c52p-7f, 0x1.c6b6e4p-5f, 0x1.ebf918p-3f, 0x1.62e428p-1f,
                             0x1.000002p+0f};
typedef struct { vec k[6], lowest, shift; } Exp2;
INLINE Exp2 exp2_from(float top) { /* once, before a loop */
    Exp2 e;
    const float *k = table(EXP2);
    FULLY for (int i = 0; i < 6; i++) e.k[i] = load_splat(k + i);
    e.lowest = splat(top - 60.0f);
    e.shift = splat(ROUNDER - top);
    return e;
}
INLINE vec exp2_below(const Exp2 *e, vec x) {
    x = vmax(x, e->lowest);
    vec rounded = add(x, e->shift);
    vec r = sub(x, sub(rounded, e->shift)), square = mul(r, r);
    vec high = madd(madd(e->k[0], r, e->k[1]), square, madd(e->k[2], r, e->k[3]));
    return scale_by_power(madd(high, square, madd(e->k[4], r, e->k[5])), rounded);
}

#define LOG2E 1.44269504088896341f

/* e^x, relative error 2e-7: x = n ln2 + r, degree 6 in r / ln2. Overflow gives infinity, below 2.4e-38 it is 0, NaN stays.
 * ln2 is taken in two parts, the first of 15 bits so that n times it is exact. */
static const float EXP[] = {-86.6f, 88.73f, LOG2E, ROUNDER, -0x1.62e4p-1f, -0x1.7f7d1cp-20f, 88.7228394f,
                            0x1.41d334p-13f, 0x1.5f456ap-10f, 0x1.3b2dbcp-7f, 0x1.c6aed4p-5f, 0x1.ebfbdap-3f,
                            0x1.62e430p-1f, 1.0f};
INLINE vec vexp(vec x) {
    const float *k = table(EXP);
    vec lowest = load_splat(k), log2e = load_splat(k + 2), rounder = load_splat(k + 3);
    vec clamped = vmin(vmax(x, lowest), load_splat(k + 1));
    vec rounded = madd(clamped, log2e, rounder);
    vec n = sub(rounded, rounder);
    vec r = mul(madd(n, load_splat(k + 5), madd(n, load_splat(k + 4), clamped)), log2e);
    HORNER(p, r, k + 7, 6);
    /* n - 1, then doubled: 2^128 has no float, yet e^88.7 is finite */
    vec y = scale_by_power(p, wasm_i32x4_sub(rounded, wasm_i32x4_splat(1)));
    y = add(y, y);
    y = choose(wasm_f32x4_gt(x, load_splat(k + 6)), splat(__builtin_inff()), y);
    y = wasm_v128_andnot(y, wasm_f32x4_lt(x, lowest));
    return choose(wasm_f32x4_ne(x, x), x, y);
}

/* Natural logarithm, relative error 2e-7 (Cephes coefficients); 0 -> -infinity, below 0 -> NaN. */
static const float LOG[] = {7.0376836292E-2f, -1.1514610310E-1f, 1.1676998740E-1f, -1.2420140846E-1f, 1.4249322787E-1f,
                            -1.6668057665E-1f, 2.0000714765E-1f, -2.4999993993E-1f, 3.3333331174E-1f,
                            1.0f, 0.707106781186547524f, -2.12194440e-4f, -0.5f, 0.693359375f};
INLINE vec vlog(vec x) {
    const float *k = table(LOG);
    vec one = load_splat(k + 9);
    vec tiny = wasm_f32x4_lt(x, splat(0x1p-126f));
    vec y = choose(tiny, mul(x, splat(0x1p23f)), x); /* subnormals */
    vec exponent = sub(wasm_f32x4_convert_i32x4(wasm_i32x4_sub(wasm_u32x4_shr(y, 23), wasm_i32x4_splat(126))),
                       wasm_v128_and(tiny, splat(23.0f)));
    vec f = wasm_v128_or(wasm_v128_and(y, wasm_i32x4_splat(0x007fffff)), wasm_i32x4_splat(0x3f000000));
    vec low = wasm_f32x4_lt(f, load_splat(k + 10));
    exponent = sub(exponent, wasm_v128_and(low, one));
    f = sub(add(f, wasm_v128_and(low, f)), one);
    vec square = mul(f, f);
    HORNER(p, f, k, 8);
    p = mul(mul(p, f), square);
    p = madd(exponent, load_splat(k + 11), p);
    p = madd(square, load_splat(k + 12), p);
    p = madd(exponent, load_splat(k + 13), add(f, p));
    p = choose(wasm_f32x4_eq(x, zero()), splat(-__builtin_inff()), p);
    p = choose(wasm_f32x4_lt(x, zero()), splat(__builtin_nanf("")), p);
    p = choose(wasm_f32x4_eq(x, splat(__builtin_inff())), x, p);
    return choose(wasm_f32x4_ne(x, x), x, p);
}

INLINE vec sigmoid(vec x) {
    vec one = load_splat(table(EXP) + 13);
    return vdiv(one, add(one, vexp(wasm_f32x4_neg(x))));
}

INLINE vec silu(vec x) { return mul(x, sigmoid(x)); }

/* tanh: an odd polynomial near 0 (Cephes), 1 - 2 / (e^2|x| + 1) elsewhere. */
static const float TANH[] = {-5.70498872745E-3f, 2.06390887954E-2f, -5.37397155531E-2f, 1.33314422036E-1f,
                             -3.33332819422E-1f, 0.625f, 60.0f, 1.0f, 2.0f};
INLINE vec vtanh(vec x) {
    const float *k = table(TANH);
    vec size = wasm_f32x4_abs(x), square = mul(x, x), one = load_splat(k + 7);
    HORNER(p, square, k, 4);
    vec near = madd(mul(p, square), x, x);
    vec far = sub(one, vdiv(load_splat(k + 8), add(vexp(vmin(add(size, size), load_splat(k + 6))), one)));
    far = wasm_v128_or(far, wasm_v128_and(x, wasm_i32x4_splat(0x80000000)));
    return choose(wasm_f32x4_lt(size, load_splat(k + 5)), near, far);
}

/* GELU, the exact erf form: max(x, 0) - z Q(z), z = min(|x|, 5.2), with the normal tail Q as a polynomial of degree 15 in
 * 2z / 5.2 - 1 (minimax for z Q). Absolute error below 2e-7, from 5.2 on below 5e-7; finite for every finite x. Three
 * vectors at a time hide each other's latency and share the loads of the coefficients. */
static const float GELU[] = {5.2f, 2.0f / 5.2f, -1.0f, -0x1.ca3c32p-9f, 0x1.6da690p-8f, 0x1.ee987cp-7f, -0x1.21f12ep-5f,
                             -0x1.7c7df8p-7f, 0x1.74c684p-4f, -0x1.0f92fep-4f, -0x1.551710p-4f, 0x1.8602eep-3f, -0x1.ad5246p-4f,
                             -0x1.c10a5cp-4f, 0x1.02ef24p-2f, -0x1.d558d4p-3f, 0x1.e8ec10p-4f, -0x1.214edcp-5f, 0x1.3179ecp-8f};
INLINE void gelu_many(vec *x, int n) {
    const float *k = table(GELU);
    vec z[3], u[3], square[3], odd[3], even[3];
    FULLY for (int i = 0; i < n; i++) {
        z[i] = vmin(wasm_f32x4_abs(x[i]), load_splat(k));
        u[i] = madd(z[i], load_splat(k + 1), load_splat(k + 2));
        square[i] = mul(u[i], u[i]);
        odd[i] = load_splat(k + 3);
        even[i] = load_splat(k + 4);
    }
    FULLY for (int c = 5; c < 19; c += 2) {
        vec c_odd = load_splat(k + c), c_even = load_splat(k + c + 1);
        FULLY for (int i = 0; i < n; i++) {
            odd[i] = madd(odd[i], square[i], c_odd);
            even[i] = madd(even[i], square[i], c_even);
            FIX(odd[i]);
            FIX(even[i]);
        }
    }
    FULLY for (int i = 0; i < n; i++)
        x[i] = sub(vmax(x[i], zero()), mul(z[i], madd(odd[i], u[i], even[i])));
}
INLINE vec gelu(vec x) {
    gelu_many(&x, 1);
    return x;
}

INLINE vec relu(vec x) { return vmax(x, zero()); }

/* Half precision without a conversion instruction: shift exponent and mantissa into place, then multiply by 2^112 to
 * move the exponent's bias. Exact for every finite half, subnormals too. */
#define HALF_SCALE 0x1p112f
#define HALF_MASK 0x8fffe000u
INLINE vec half_mask(void) { /* once, before a loop */
    vec mask = wasm_i32x4_splat((int32_t)HALF_MASK);
    FIX(mask);
    return mask;
}
INLINE vec half_load(const uint16_t *p, vec mask) { /* the value times 2^-112 */
    return wasm_v128_and(wasm_i32x4_shl(wasm_i32x4_load16x4((const void *)p), 13), mask);
}
INLINE vec bfloat_load(const uint16_t *p, vec mask) {
    (void)mask;
    return wasm_i32x4_shl(wasm_u32x4_load16x4((const void *)p), 16);
}
INLINE vec float_load(const float *p, vec mask) {
    (void)mask;
    return load(p);
}

INLINE float half_scalar(uint16_t h) {
    union { uint32_t i; float f; } u = {((uint32_t)(int32_t)(int16_t)h << 13) & HALF_MASK};
    return u.f * HALF_SCALE;
}
INLINE float bfloat_scalar(uint16_t h) {
    union { uint32_t i; float f; } u = {(uint32_t)h << 16};
    return u.f;
}
