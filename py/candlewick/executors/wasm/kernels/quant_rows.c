/* Many rows of activations times a panel of quantised weights: the panel is made plain once, then rows pass it four at a time.
 * Also the activations' own quantisation. See quant.h. */
#include "quant.h"
#include "quant_codes.h"

/* ---- activations ---- */

INLINE void quantise(const float *x, int32_t k, const int form, void *to) {
    const float steps = form == X_NARROW ? 127.0f : 32639.0f; /* 127 x 257: the high byte stays within 127 */
    vec rounder = splat(ROUNDER);
    for (int32_t from = 0; from < k; from += QBLOCK, x += QBLOCK) {
        vec v[8], top = zero(), spoilt = zero();
        FULLY for (int i = 0; i < 8; i++) {
            v[i] = load(x + 4 * i);
            top = vmax(top, wasm_f32x4_abs(v[i]));
            spoilt = add(spoilt, mul(v[i], zero())); /* NaN if there is a NaN or an infinity, which the maximum may lose */
        }
        float most = lane_max(top), d = 0.0f, inverse = 0.0f;
        if (most > 0x1p-100f) {
            d = most * (1.0f / steps) * X_SCALE;
            inverse = steps / most;
        }
        d += lane_sum(spoilt);
        vec scale = splat(inverse), sums[2] = {zero(), zero()}, q[4];
        FULLY for (int i = 0; i < 8; i++) {
            v[i] = wasm_i32x4_sub(madd(v[i], scale, rounder), rounder); /* the integer stands in the low bits */
            sums[i / 4] = wasm_i32x4_add(sums[i / 4], v[i]);
        }
        FULLY for (int i = 0; i < 4; i++) q[i] = wasm_i16x8_narrow_i32x4(v[2 * i], v[2 * i + 1]);
        char *block = to;
        FULLY for (int i = 0; i < 4 && form == X_WIDE; i++)
            wasm_v128_store(block + 16 * i, wasm_i16x8_shuffle(q[i], q[i], 0, 2, 1, 3, 4, 6, 5, 7));
        FULLY for (int i = 0; i < 2 && form == X_NARROW; i++)
            wasm_v128_store(block + 16 * i, wasm_i8x16_narrow_i16x8(q[2 * i], q[2 * i + 1]));
        FULLY for (int i = 0; i < 2 && form == X_BYTES; i++) {
            vec high[2], low[2];
            FULLY for (int j = 0; j < 2; j++) {
                vec one = q[2 * i + j];
                high[j] = wasm_i16x8_shr(wasm_i16x8_add_sat(one, wasm_i16x8_splat(128)), 8);
                low[j] = wasm_i16x8_sub(one, wasm_i16x8_shl(high[j], 8));
            }
            wasm_v128_store(block + 16 * i, wasm_i8x16_narrow_i16x8(high[0], high[1]));
            wasm_v128_store(block + 32 + 16 * i, wasm_i8x16_narrow_i16x8(low[0], low[1]));
        }
        float low_sum = d * lane_sum(wasm_f32x4_convert_i32x4(sums[0]));
        float high_sum = d * lane_sum(wasm_f32x4_convert_i32x4(sums[1]));
        block += form == X_NARROW ? QBLOCK : 2 * QBLOCK;
        *(XScales *)block = (XScales){d, low_sum + high_sum, low_sum, high_sum};
        to = block + sizeof(XScales);
    }
}

static __attribute__((noinline)) void quantise_narrow(const float *x, int32_t k, void *to) { quantise(x, k, X_NARROW, to); }
static __attribute__((noinline)) void quantise_wide(const float *x, int32_t k, void *to) { quantise(x, k, X_WIDE, to); }
static __attribute__((noinline)) void quantise_bytes(const float *x, int32_t k, void *to) { quantise(x, k, X_BYTES, to); }

void quantise_row(const float *x, int32_t k, int32_t form, void *to) {
    if (form == X_NARROW) quantise_narrow(x, k, to);
    else if (form == X_WIDE) quantise_wide(x, k, to);
    else quantise_bytes(x, k, to);
}

/* ---- panels made plain ---- */

INLINE void unpack_of(int bits, int offset, int kind, int subs, const uint8_t *w, int32_t k, int8_t *to) {
    const QType t = {bits, offset, kind, subs};
    vec mask = wasm_i8x16_splat(15), half = half_mask(), rest = splat(X_REST), even = wasm_i16x8_splat(0x00ff);
    const int codes_bytes = q_codes_bytes(t), pieces = q_block(t) / QBLOCK;
    for (int32_t from = 0; from < k; from += q_block(t)) {
        const uint8_t *shared = w + pieces * q_piece_bytes(t); /* d and dmin of 256 */
        for (int i = 0; i < pieces; i++) {
            if (bits == 8) {
                FULLY for (int n = 0; n < 16; n++) wasm_v128_store(to + 16 * n, load_16(w + 16 * n));
            } else {
                FULLY for (int p = 0; p < 4; p++) {
                    vec code[2][2]; /* [k / 16][row / 4] */
                    FULLY for (int h = 0; h < 2; h++) codes(bits, w, p, h, mask, &code[0][h], &code[1][h]);
                    FULLY for (int s = 0; s < 2; s++) {
                        vec *c = code[s];
                        int8_t *at = to + 128 * s + 32 * p;
                        wasm_v128_store(at, NARROW(bits) ? c[0] : wasm_u8x16_narrow_i16x8(wasm_v128_and(c[0], even),
                                                                                          wasm_v128_and(c[1], even)));
                        wasm_v128_store(at + 16, NARROW(bits) ? c[1] : wasm_u8x16_narrow_i16x8(wasm_u16x8_shr(c[0], 8),
                                                                                               wasm_u16x8_shr(c[1], 8)));
                    }
                }
            }
            float *numbers = (float *)(to + 256);
            const uint16_t *d = (const uint16_t *)(q_is_super(t) ? shared : w + codes_bytes);
            FULLY for (int s = 0; s < subs; s++) {
                vec scale[2], minimum[2];
                if (q_is_super(t)) small_numbers(w + codes_bytes + 8 * s, kind == BY_SCALE, scale);
                if (kind == BY_SCALE_MIN) small_numbers(w + codes_bytes + 8 * (subs + s), 0, minimum);
                FULLY for (int h = 0; h < 2; h++) {
                    vec main = mul(half_load(d + 4 * h, half), rest);
                    vec value = q_is_super(t) ? mul(main, scale[h]) : main, least_value;
                    if (q_has_min(t)) {
                        least_value = mul(half_load(d + 8 + 4 * h, half), rest);
                        if (q_is_super(t)) least_value = wasm_f32x4_neg(mul(least_value, minimum[h]));
                    } else {
                        least_value = mul(value, splat(-(float)offset));
                    }
                    store(numbers + 16 * s + 4 * h, value);
                    store(numbers + 16 * s + 8 + 4 * h, least_value);
                }
            }
            w += q_piece_bytes(t);
            to += plain_piece_bytes(t);
        }
        if (q_is_super(t)) w += 2 * QPANEL * (1 + q_has_min(t));
    }
}

#define UNPACK(name, bits, offset, kind, subs)                                                                           \
    static __attribute__((noinline)) void unpack_##name(const uint8_t *w, int32_t k, int8_t *to) {                       \
        unpack_of(bits, offset, kind, subs, w, k, to);                                                                   \
    }
QTYPES(UNPACK)

void unpack_panel(int32_t dtype, const uint8_t *panel, int32_t k, int8_t *to) {
    switch (dtype) {
#define CASE(name, ...) case DTYPE_##name: unpack_##name(panel, k, to); break;
        QTYPES(CASE)
#undef CASE
    }
}

/* ---- tiles ---- */

/* ROWS rows of x against a plain panel. At most 8 sums of integers are alive; those of floats wait in out. */
INLINE void tile_of(int rows, int bits, int subs, const char *x, int32_t x_row, const int8_t *w, int32_t k, float *out) {
    const int x_bytes = NARROW(bits) ? sizeof(XNarrow) : sizeof(XWide), x_scales = x_bytes - (int)sizeof(XScales);
    const char *row[4];
    FULLY for (int r = 0; r < rows; r++) {
        row[r] = x + r * x_row;
        FIX(row[r]);
        store(out + 8 * r, zero());
        store(out + 8 * r + 4, zero());
    }
    for (int32_t left = k; left > 0; left -= QBLOCK) {
        FULLY for (int s = 0; s < subs; s++) {
            vec sum[4][2];
            if (!NARROW(bits)) {
                FULLY for (int pair = 0; pair < 16 / subs; pair++) {
                    int at = 16 / subs * s + pair;
                    vec w0 = load_8(w + 16 * at), w1 = load_8(w + 16 * at + 8);
                    FULLY for (int r = 0; r < rows; r++) {
                        vec a = splat_4(row[r] + 4 * at), p0 = dot_16(a, w0), p1 = dot_16(a, w1);
                        sum[r][0] = pair ? wasm_i32x4_add(sum[r][0], p0) : p0;
                        sum[r][1] = pair ? wasm_i32x4_add(sum[r][1], p1) : p1;
                        FIX(sum[r][0]);
                        FIX(sum[r][1]);
                    }
                }
            } else {
#ifdef __wasm_relaxed_simd__
                const int steps = 8 / subs, run = bits == 4 ? 8 : bits == 5 ? 4 : 2; /* k by fours; what 16 bits hold */
                vec part[4][2];
                FULLY for (int step = 0; step < steps; step++) {
                    int at = steps * s + step;
                    vec w0 = load_16(w + 32 * at), w1 = load_16(w + 32 * at + 16);
                    FULLY for (int r = 0; r < rows; r++) {
                        vec a = splat_4(row[r] + 4 * at), p0 = dot_8(a, w0), p1 = dot_8(a, w1);
                        part[r][0] = step % run ? wasm_i16x8_add(part[r][0], p0) : p0;
                        part[r][1] = step % run ? wasm_i16x8_add(part[r][1], p1) : p1;
                        FIX(part[r][0]);
                        FIX(part[r][1]);
                    }
                    if (step % run == run - 1 || step == steps - 1) {
                        vec ones = wasm_i16x8_splat(1);
                        FULLY for (int r = 0; r < rows; r++) FULLY for (int h = 0; h < 2; h++) {
                            vec wide = dot_16(part[r][h], ones);
                            sum[r][h] = step < run ? wide : wasm_i32x4_add(sum[r][h], wide);
                        }
                    }
                }
#endif
            }
            const float *numbers = (const float *)(w + 256) + 16 * s;
            FULLY for (int h = 0; h < 2; h++) {
                vec scale = load(numbers + 4 * h), minimum = load(numbers + 8 + 4 * h);
                FULLY for (int r = 0; r < rows; r++) {
                    vec d = splat_4(row[r] + x_scales), total = splat_4(row[r] + x_scales + (subs == 1 ? 4 : 8 + 4 * s));
                    vec acc = madd(wasm_f32x4_convert_i32x4(sum[r][h]), mul(scale, d), load(out + 8 * r + 4 * h));
                    store(out + 8 * r + 4 * h, madd(minimum, total, acc));
                }
            }
        }
        w += 256 + 64 * subs;
        FIX(w);
        FULLY for (int r = 0; r < rows; r++) {
            row[r] += x_bytes;
            FIX(row[r]);
        }
    }
}

#define TILES(BITS, SUBS)                                                                                                \
    static __attribute__((noinline)) void tile_##BITS##_##SUBS##_4(const char *x, int32_t x_row, const int8_t *w,        \
                                                                   int32_t k, float *out) {                              \
        tile_of(4, BITS, SUBS, x, x_row, w, k, out);                                                                     \
    }                                                                                                                    \
    static __attribute__((noinline)) void tile_##BITS##_##SUBS##_1(const char *x, int32_t x_row, const int8_t *w,        \
                                                                   int32_t k, float *out) {                              \
        tile_of(1, BITS, SUBS, x, x_row, w, k, out);                                                                     \
    }
TILES(4, 1)
TILES(4, 2)
TILES(5, 1)
TILES(6, 2)
TILES(8, 1)

int32_t tile_rows(int32_t dtype, const char *x, int32_t rows, const int8_t *plain, int32_t k, float *out) {
    QType t = q_type(dtype);
    int32_t x_row = x_row_bytes(x_form(t, 2), k);
#define PICK(BITS, SUBS)                                                                                                 \
    if (t.bits == BITS && t.subs == SUBS) {                                                                              \
        if (rows >= 4) return tile_##BITS##_##SUBS##_4(x, x_row, plain, k, out), 4;                                      \
        return tile_##BITS##_##SUBS##_1(x, x_row, plain, k, out), 1;                                                     \
    }
    PICK(4, 1)
    PICK(4, 2)
    PICK(5, 1)
    PICK(6, 2)
    PICK(8, 1)
#undef PICK
    return rows;
}
