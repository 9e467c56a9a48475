/* y = softmax(scale q . k^T + bias) v, one head after another, streaming over keys: no (queries, keys) matrix is ever stored.
 *
 * Softmax is kept in base 2 (scale carries log2 e) and online: with each block of keys the running maximum, the sum and the
 * weighted values are brought to the new maximum. attention_many.c is for prompts and encoders, attention_few.c for decoding.
 */
#include "attention.h"

#define TOP_LIMIT 0x1p20f

float soften(float *scores, int32_t keys, int32_t padded, float *maximum, float *sum) {
    for (int32_t i = keys; i < padded; i++) scores[i] = NOTHING;
    vec high0 = splat(*maximum), high1 = high0, high2 = high0;
    const float *end = scores + padded, *end_12 = scores + padded / 12 * 12;
    float *p = scores;
    for (; p < end_12; p += 12) {
        high0 = vmax(high0, load(p));
        high1 = vmax(high1, load(p + 4));
        high2 = vmax(high2, load(p + 8));
    }
    for (; p < end; p += 4) high0 = vmax(high0, load(p));
    float top = __builtin_ceilf(lane_max(vmax(vmax(high0, high1), high2))), base = top;
    if (top > TOP_LIMIT || top < -TOP_LIMIT) { /* too large for the trick of exp2_below: subtract first */
        for (p = scores; p < end; p += 4) store(p, sub(load(p), splat(top)));
        base = 0.0f;
    }
    const Exp2 e = exp2_from(base);
    float factor = wasm_f32x4_extract_lane(exp2_below(&e, splat(*maximum - top + base)), 0);
    vec total = zero();
    for (p = scores; p < end_12; p += 12)
        FULLY for (int j = 0; j < 12; j += 4) {
            vec v = exp2_below(&e, load(p + j));
            FIX(v); /* one after the other: the machine overlaps them, the compiler would run out of registers */
            store(p + j, v);
            total = add(total, v);
        }
    for (; p < end; p += 4) {
        vec v = exp2_below(&e, load(p));
        store(p, v);
        total = add(total, v);
    }
    *sum = *sum * factor + lane_sum(total);
    for (int32_t i = keys; i < padded; i++) scores[i] = 0.0f; /* not the 2^-60 of masked keys */
    *maximum = top;
    return factor;
}

void soften_twelve(float *scores, int32_t ld, int32_t rows, int32_t keys, float *sums) {
    vec index = wasm_i32x4_make(0, 1, 2, 3), mask[3], nothing = splat(NOTHING);
    Exp2 e = exp2_from(0.0f);
    FULLY for (int i = 0; i < 3; i++)
        mask[i] = wasm_i32x4_lt(wasm_i32x4_add(index, wasm_i32x4_splat(4 * i)), wasm_i32x4_splat(keys));
    for (int32_t r = 0; r < rows; r++, scores += ld) {
        vec v[3];
        FULLY for (int i = 0; i < 3; i++) v[i] = choose(mask[i], load(scores + 4 * i), nothing);
        float top = __builtin_ceilf(lane_max(vmax(vmax(v[0], v[1]), v[2])));
        vec shift = splat(top);
        vec total = zero();
        FULLY for (int i = 0; i < 3; i++) {
            vec p = wasm_v128_and(exp2_below(&e, sub(v[i], shift)), mask[i]);
            store(scores + 4 * i, p);
            total = add(total, p);
        }
        sums[r] = lane_sum(total);
    }
}

void add_bias(float *scores, const float *bias, int32_t keys) {
    int32_t i = 0;
    for (vec scale = splat(LOG2E); i + 4 <= keys; i += 4) store(scores + i, madd(load(bias + i), scale, load(scores + i)));
    for (; i < keys; i++) scores[i] += bias[i] * LOG2E;
}

int32_t kernel_attention(const attention_args *a, const Context *c) {
    if (a->n_head <= 0 || a->n_q <= 0 || a->d <= 0) return DONE;
    if (a->n_group <= 0 || a->n_head % a->n_group) return BAD_CODE;
    int32_t start = a->start ? *AT(int32_t, a->start) : 0;
    return a->scratch ? attend_many(a, c, start) : attend_few(a, c, start);
}
