/* y[i] = op(x[i]); x and y may be the same. */
#include "runtime.h"

#define LOG10E 0.434294481903251828f

INLINE vec apply(int32_t op, vec x) {
    switch (op) {
    case UNARY_gelu: return gelu(x);
    case UNARY_relu: return relu(x);
    case UNARY_silu: return silu(x);
    case UNARY_exp: return vexp(x);
    case UNARY_log: return vlog(x);
    case UNARY_log10: return mul(vlog(x), splat(LOG10E));
    case UNARY_sqrt: return wasm_f32x4_sqrt(x);
    case UNARY_square: return mul(x, x);
    case UNARY_neg: return wasm_f32x4_neg(x);
    case UNARY_tanh: return vtanh(x);
    case UNARY_sigmoid: return sigmoid(x);
    }
    return x;
}

int32_t kernel_unary(const unary_args *a, const Context *c) {
    if (a->op < 0 || a->op > UNARY_sigmoid) return BAD_CODE;
    Range part = share(c, a->count, 64);
    const float *x = AT(float, a->x);
    float *y = AT(float, a->y);
    int32_t i = part.from;
    for (; i + 4 <= part.to; i += 4) store(y + i, apply(a->op, load(x + i)));
    if (i < part.to) {
        float line[4] __attribute__((aligned(16))) = {1.0f, 1.0f, 1.0f, 1.0f};
        for (int32_t j = i; j < part.to; j++) line[j - i] = x[j];
        store(line, apply(a->op, load(line)));
        for (int32_t j = i; j < part.to; j++) y[j] = line[j - i];
    }
    return DONE;
}
