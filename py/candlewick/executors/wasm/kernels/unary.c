/* y[i] = op(x[i]); x and y may be the same. */
#include "runtime.h"

#define LOG10E 0.434294481903251828f

INLINE vec log10_of(vec x) { return mul(vlog(x), splat(LOG10E)); }
INLINE vec square_of(vec x) { return mul(x, x); }

/* sin(n pi + r) = +-sin r, |r| <= pi / 2: an odd polynomial of degree 11 (error 6e-8); pi in three parts, so that n times the
 * first two is exact for n below 2^12. */
static const float SIN[] = {-2.50521084e-8f, 2.75573192e-6f, -1.98412698e-4f, 8.33333333e-3f, -1.66666667e-1f,
                            0.318309886f, ROUNDER, -3.140625f, -9.67502593994140625e-4f, -1.509957990978376e-7f};
INLINE vec sine_shifted(vec x, float half) { /* sin(x + half pi) for half 0 or 1/2 */
    const float *k = table(SIN);
    vec rounder = load_splat(k + 6), shift = splat(half);
    vec rounded = add(madd(x, load_splat(k + 5), shift), rounder);
    vec n = sub(sub(rounded, rounder), shift);
    vec r = madd(n, load_splat(k + 9), madd(n, load_splat(k + 8), madd(n, load_splat(k + 7), x))), square = mul(r, r);
    HORNER(p, square, k, 4);
    return wasm_v128_xor(madd(mul(p, square), r, r), wasm_i32x4_shl(rounded, 31));
}
INLINE vec sine(vec x) { return sine_shifted(x, 0.0f); }
INLINE vec cosine(vec x) { return sine_shifted(x, 0.5f); }

/* One loop an op, so that nothing is decided inside it; the last one to three values go through a padded vector. */
#define LOOP(NAME, FUNCTION)                                                                                             \
    static __attribute__((noinline)) void unary_##NAME(const float *x, float *y, int32_t count) {                        \
        int32_t i = 0;                                                                                                   \
        for (; i + 4 <= count; i += 4) store(y + i, FUNCTION(load(x + i)));                                              \
        if (i < count) {                                                                                                 \
            float line[4] __attribute__((aligned(16))) = {1.0f, 1.0f, 1.0f, 1.0f};                                       \
            for (int32_t j = i; j < count; j++) line[j - i] = x[j];                                                      \
            store(line, FUNCTION(load(line)));                                                                           \
            for (int32_t j = i; j < count; j++) y[j] = line[j - i];                                                      \
        }                                                                                                                \
    }
#define OPS(X)                                                                                                           \
    X(gelu, gelu) X(relu, relu) X(silu, silu) X(exp, vexp) X(log, vlog) X(log10, log10_of) X(sqrt, wasm_f32x4_sqrt)      \
    X(square, square_of) X(neg, wasm_f32x4_neg) X(tanh, vtanh) X(sigmoid, sigmoid) X(sin, sine) X(cos, cosine)
OPS(LOOP)

int32_t kernel_unary(const unary_args *a, const Context *c) {
    Range part = share(c, a->count, 64);
    const float *x = AT(float, a->x) + part.from;
    float *y = AT(float, a->y) + part.from;
    switch (a->op) {
#define CASE(NAME, FUNCTION)                                                                                             \
    case UNARY_##NAME: unary_##NAME(x, y, part.to - part.from); return DONE;
        OPS(CASE)
#undef CASE
    }
    return BAD_CODE;
}
