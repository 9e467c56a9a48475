/* Reading quantised weights: what quant.h describes, in registers. */
#pragma once
#include "quant.h"

INLINE vec splat_4(const void *p) { return wasm_v128_load32_splat(p); }
INLINE vec load_16(const void *p) { return wasm_v128_load(p); }
INLINE vec load_8(const void *p) { return wasm_i16x8_load8x8(p); }
INLINE vec dot_16(vec a, vec b) { return wasm_i32x4_dot_i16x8(a, b); }
#ifdef __wasm_relaxed_simd__
/* Sums of two neighbours' products; codes may use 7 bits. */
INLINE vec dot_8(vec x, vec code) { return __builtin_wasm_relaxed_dot_i8x16_i7x16_s_i16x8(x, code); }
#endif

/* The codes of four rows (4 h ...) at k = 4 p + b and 16 + 4 p + b. mask: 15 in every byte. */
INLINE void codes(int bits, const uint8_t *piece, int p, int h, vec mask, vec *low, vec *high) {
    vec both = load_16(piece + 32 * p + 16 * h);
    *low = wasm_v128_and(both, mask);
    *high = wasm_v128_and(wasm_u16x8_shr(both, 4), mask);
    if (bits == 5) {
        vec fifth = load_16(piece + 128 + 16 * h), bit = wasm_i8x16_splat(16);
        *low = wasm_v128_or(*low, wasm_v128_and(wasm_i16x8_shl(fifth, 4 - p), bit));
        *high = wasm_v128_or(*high, wasm_v128_and(p ? wasm_u16x8_shr(fifth, p) : fifth, bit));
    } else if (bits == 6) {
        vec two = wasm_i8x16_splat(48), top[2];
        FULLY for (int s = 0; s < 2; s++) {
            vec v = load_16(piece + 128 + 32 * s + 16 * h);
            top[s] = wasm_v128_and(p < 2 ? wasm_i16x8_shl(v, 4 - 2 * p) : p == 2 ? v : wasm_u16x8_shr(v, 2), two);
        }
        *low = wasm_v128_or(*low, top[0]);
        *high = wasm_v128_or(*high, top[1]);
    }
}

/* Eight small integers as floats. */
INLINE void small_numbers(const uint8_t *at, int with_sign, vec to[2]) {
    vec v = with_sign ? wasm_i16x8_load8x8(at) : wasm_u16x8_load8x8(at);
    to[0] = wasm_f32x4_convert_i32x4(wasm_i32x4_extend_low_i16x8(v));
    to[1] = wasm_f32x4_convert_i32x4(wasm_i32x4_extend_high_i16x8(v));
}
