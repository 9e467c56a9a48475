/* One row of activations times panels of quantised weights, straight from memory. See quant.h for what lies where.
 *
 * 8 rows of weights by 4 neighbouring k make two vectors; the four activations are broadcast to all lanes once for both, and
 * no sum ever goes across lanes. 2 x 1 to 2 x 2 sums of integers, 2 of floats and what is on its way stay in registers. */
#include "quant.h"
#include "quant_codes.h"

/* The integer sums of a piece: sum[sub][row / 4]. */
INLINE void dots(int bits, int subs, const uint8_t *w, const char *x, vec sum[2][2], vec mask) {
    FULLY for (int s = 0; s < subs; s++) sum[s][0] = sum[s][1] = zero();
    if (bits == 8) {
        FULLY for (int pair = 0; pair < 16; pair++) {
            vec a = splat_4(x + 4 * pair);
            FULLY for (int h = 0; h < 2; h++) sum[0][h] = wasm_i32x4_add(sum[0][h], dot_16(a, load_8(w + 16 * pair + 8 * h)));
            FIX(sum[0][0]);
            FIX(sum[0][1]);
        }
        return;
    }
    if (!NARROW(bits)) {
        vec even = wasm_i16x8_splat(0x00ff);
        FULLY for (int p = 0; p < 4; p++) {
            FULLY for (int h = 0; h < 2; h++) {
                vec code[2];
                codes(bits, w, p, h, mask, &code[0], &code[1]);
                FULLY for (int s = 0; s < 2; s++) {
                    vec *to = &sum[subs == 2 ? s : 0][h];
                    *to = wasm_i32x4_add(*to, dot_16(splat_4(x + 8 * (p + 4 * s)), wasm_v128_and(code[s], even)));
                    *to = wasm_i32x4_add(*to, dot_16(splat_4(x + 8 * (p + 4 * s) + 4), wasm_u16x8_shr(code[s], 8)));
                    FIX(*to);
                }
            }
        }
        return;
    }
#ifdef __wasm_relaxed_simd__
    /* Both bytes of the activations, each with sums of its own. Where a piece needs two sets of those (5 and 6 bits, or two
     * scales), the rows take turns, or there would be too many sums for the registers. */
    const int sets = subs == 2 || bits > 4 ? 2 : 1, run = bits == 6 ? 2 : 4; /* steps of p that 16 bits hold */
    const int turns = sets;
    FULLY for (int turn = 0; turn < turns; turn++) {
        vec part[2][2][2]; /* [byte][set][row / 4] */
        FULLY for (int p = 0; p < 4; p++) {
            FULLY for (int h = turn; h < turn + 3 - turns; h++) {
                vec code[2];
                codes(bits, w, p, h, mask, &code[0], &code[1]);
                FULLY for (int s = 0; s < 2; s++) {
                    FULLY for (int byte = 0; byte < 2; byte++) {
                        vec *to = &part[byte][s < sets ? s : 0][h], product = dot_8(splat_4(x + 32 * byte + 16 * s + 4 * p), code[s]);
                        *to = p % run == 0 && s < sets ? product : wasm_i16x8_add(*to, product);
                        FIX(*to);
                    }
                }
            }
            if (p % run == run - 1) {
                vec ones = wasm_i16x8_splat(1), steps = wasm_i16x8_splat(256);
                FULLY for (int s = 0; s < sets; s++) FULLY for (int h = turn; h < turn + 3 - turns; h++) {
                    vec *to = &sum[subs == 2 ? s : 0][h];
                    vec wide = wasm_i32x4_add(dot_16(part[0][s][h], steps), dot_16(part[1][s][h], ones));
                    *to = p == run - 1 && s < subs ? wide : wasm_i32x4_add(*to, wide);
                }
            }
        }
    }
#endif
}

INLINE void panel_of(int bits, int offset, int kind, int subs, const char *x, const uint8_t *w, int32_t k, float *out) {
    const QType t = {bits, offset, kind, subs};
    vec acc[2] = {zero(), zero()}, mask = wasm_i8x16_splat(15), half = half_mask();
    FIX(mask);
    const int codes_bytes = q_codes_bytes(t), x_bytes = sizeof(XWide);
    const int x_scales = x_bytes - (int)sizeof(XScales);
    if (!q_is_super(t)) {
        for (int32_t left = k; left > 0; left -= QBLOCK) {
            vec sum[2][2];
            dots(bits, subs, w, x, sum, mask);
            vec d = splat_4(x + x_scales), low = splat_4(x + x_scales + 4);
            if (kind == BY_D && offset) low = mul(low, splat(-(float)offset));
            FULLY for (int h = 0; h < 2; h++) {
                vec f = wasm_f32x4_convert_i32x4(sum[0][h]);
                vec scale = half_load((const uint16_t *)(w + codes_bytes) + 4 * h, half);
                if (kind == BY_D) {
                    f = offset ? madd(f, d, low) : mul(f, d);
                    acc[h] = madd(f, scale, acc[h]);
                } else {
                    acc[h] = madd(f, mul(scale, d), acc[h]);
                    acc[h] = madd(half_load((const uint16_t *)(w + codes_bytes + 16) + 4 * h, half), low, acc[h]);
                }
                FIX(acc[h]);
            }
            w += q_piece_bytes(t);
            x += x_bytes;
            FIX(w);
            FIX(x);
        }
    } else {
        for (int32_t left = k; left > 0; left -= 256) {
            vec high[2] = {zero(), zero()}, low[2] = {zero(), zero()};
            for (int i = 0; i < 8; i++) {
                vec sum[2][2];
                dots(bits, subs, w, x, sum, mask);
                vec d = splat_4(x + x_scales);
                FULLY for (int s = 0; s < subs; s++) {
                    vec x_sum = splat_4(x + x_scales + (subs == 1 ? 4 : 8 + 4 * s));
                    const uint8_t *at = w + codes_bytes + 8 * s;
                    vec scale[2], minimum[2];
                    small_numbers(at, kind == BY_SCALE, scale);
                    if (kind == BY_SCALE_MIN) small_numbers(at + 8 * subs, 0, minimum);
                    else x_sum = mul(x_sum, splat(-(float)offset));
                    FULLY for (int h = 0; h < 2; h++) {
                        vec f = wasm_f32x4_convert_i32x4(sum[s][h]);
                        if (kind == BY_SCALE) {
                            high[h] = madd(madd(f, d, x_sum), scale[h], high[h]);
                        } else {
                            high[h] = madd(f, mul(scale[h], d), high[h]);
                            low[h] = madd(minimum[h], x_sum, low[h]);
                        }
                    }
                }
                w += q_piece_bytes(t);
                x += x_bytes;
            }
            FULLY for (int h = 0; h < 2; h++) {
                acc[h] = madd(high[h], half_load((const uint16_t *)w + 4 * h, half), acc[h]);
                if (kind == BY_SCALE_MIN)
                    acc[h] = sub(acc[h], mul(low[h], half_load((const uint16_t *)w + 8 + 4 * h, half)));
            }
            w += 2 * QPANEL * (1 + q_has_min(t));
        }
    }
    FULLY for (int h = 0; h < 2; h++) store(out + 4 * h, mul(acc[h], splat(X_REST)));
}

#define VECTOR(name, bits, offset, kind, subs)                                                                           \
    static __attribute__((noinline)) void vector_##name(const char *x, const uint8_t *w, int32_t k, float *out) {        \
        panel_of(bits, offset, kind, subs, x, w, k, out);                                                                \
    }
QTYPES(VECTOR)

void vector_panel(int32_t dtype, const void *x, const uint8_t *panel, int32_t k, float *out) {
    switch (dtype) {
#define CASE(name, ...) case DTYPE_##name: vector_##name(x, panel, k, out); break;
        QTYPES(CASE)
#undef CASE
    }
}
