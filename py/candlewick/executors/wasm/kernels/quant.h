/* Block-quantised weights in kernel memory: what `pack` makes of a file's blocks, and how kernels read it.
 *
 * A panel is QPANEL = 8 rows. Along k it is cut into pieces of 32, each of which lies in one stretch of memory:
 *
 *     codes  8 vectors of 16 bytes: [p 0..3][row / 4][row % 4][b 0..3], a byte holds two codes of its row:
 *            the low four bits of k = 4 p + b, the high four bits of k = 16 + 4 p + b
 *     high   bits above the fourth: 5 bits: 2 vectors [row / 4][row % 4][b], bit g is that of k = 4 g + b;
 *            6 bits: 4 vectors [k / 16][row / 4][row % 4][b], bits 2 p and 2 p + 1 are those of k = 16 (k / 16) + 4 p + b
 *     scales half-precision d[8], and m[8] where the type has minima; or small integers, [k / 16] or one for all 32
 *            scale[8], then the minima likewise; after eight such pieces come d[8] and dmin[8] of the 256
 *
 * int8 codes: [pair 0..15][row][2], pairs 2 g and 2 g + 1 hold k = 4 g + (0, 2) and 4 g + (1, 3), as i16x8 dot products of
 * the even and the odd bytes of other codes want their activations too.
 *
 * Activations are quantised by blocks of 32 with one scale. In the relaxed build codes of up to 6 bits are the second operand
 * of i16x8.relaxed_dot_i8x16_i7x16: sums of two products, which 16 bits can add up 8, 4 or 2 at a time (4, 5, 6 bits) before
 * they are widened. For one row (decoding) both bytes of 16-bit activations go through it, for many rows one byte is enough to
 * be as exact as others are, at twice the speed. Elsewhere, and for int8 codes, codes are widened to 16 bits first, and
 * activations have 16 bits for nothing.
 */
#pragma once
#include "product.h"

#ifdef __wasm_relaxed_simd__
#define NARROW(bits) ((bits) < 8)
#else
#define NARROW(bits) ((bits) < 0)
#endif

enum { QBLOCK = 32, HALF_PANEL = 4 };

/* How the scales of a type are kept: one d for 32, d and m, or integers under a d (and dmin) of 256. */
enum { BY_D, BY_D_M, BY_SCALE, BY_SCALE_MIN };

typedef struct {
    int16_t bits;   /* 4, 5, 6 or 8 */
    int16_t offset; /* weight = scale (code - offset), or scale code + minimum where there are minima */
    int16_t kind;   /* BY_... */
    int16_t subs;   /* scales for 32 numbers: 1 or 2 */
} QType;

#define QTYPES(X)                                                                                                        \
    X(q4_0, 4, 8, BY_D, 1)                                                                                               \
    X(q4_1, 4, 0, BY_D_M, 1)                                                                                             \
    X(q5_0, 5, 16, BY_D, 1)                                                                                              \
    X(q5_1, 5, 0, BY_D_M, 1)                                                                                             \
    X(q8_0, 8, 0, BY_D, 1)                                                                                               \
    X(q2_k, 4, 0, BY_SCALE_MIN, 2)                                                                                       \
    X(q3_k, 4, 4, BY_SCALE, 2)                                                                                           \
    X(q4_k, 4, 0, BY_SCALE_MIN, 1)                                                                                       \
    X(q5_k, 5, 0, BY_SCALE_MIN, 1)                                                                                       \
    X(q6_k, 6, 32, BY_SCALE, 2)

/* The row of QTYPES for a w_dtype; bits 0 where it is none. */
INLINE QType q_type(int32_t dtype) {
    switch (dtype) {
#define ROW(name, bits, offset, kind, subs) case DTYPE_##name: return (QType){bits, offset, kind, subs};
        QTYPES(ROW)
#undef ROW
    }
    return (QType){0, 0, 0, 0};
}

INLINE int32_t q_codes_bytes(QType t) { return t.bits == 8 ? 256 : 128 + 32 * (t.bits - 4); }
INLINE int32_t q_has_min(QType t) { return t.kind == BY_D_M || t.kind == BY_SCALE_MIN; }
INLINE int32_t q_is_super(QType t) { return t.kind == BY_SCALE || t.kind == BY_SCALE_MIN; }
/* Bytes of a piece: 8 rows of 32. */
INLINE int32_t q_piece_bytes(QType t) {
    return q_codes_bytes(t) + (q_is_super(t) ? QPANEL * t.subs : 2 * QPANEL) * (1 + q_has_min(t));
}
/* Numbers of a row that share everything, and their bytes for 8 rows. */
INLINE int32_t q_block(QType t) { return q_is_super(t) ? 256 : QBLOCK; }
INLINE int32_t q_block_bytes(QType t) {
    return q_is_super(t) ? 8 * q_piece_bytes(t) + 2 * QPANEL * (1 + q_has_min(t)) : q_piece_bytes(t);
}
INLINE uint32_t q_panel_bytes(QType t, int32_t k) { return (uint32_t)(k / q_block(t)) * (uint32_t)q_block_bytes(t); }

/* Bytes of a block of 32 or 256 in a file. */
INLINE int32_t q_file_bytes(int32_t dtype) {
    static const uint8_t bytes[] = {18, 20, 22, 24, 34, 84, 110, 144, 176, 210, 36};
    return bytes[dtype - DTYPE_q4_0];
}

/* 32 activations: x = d q. d and the sums are 2^60 too large, which takes a part of the factor 2^-112 that half_load leaves in
 * the scales of weights; X_REST is what is left for the end. */
#define X_SCALE 0x1p60f
#define X_REST 0x1p52f
typedef struct { float d, sum, low_sum, high_sum; } XScales; /* sum: d times the sum of q, of all 32, of each 16 */
typedef struct { int8_t q[QBLOCK]; XScales scales; } XNarrow;
typedef struct { int16_t q[QBLOCK]; XScales scales; } XWide;
typedef struct { int8_t high[QBLOCK], low[QBLOCK]; XScales scales; } XBytes; /* q = 256 high + low */
enum { X_NARROW, X_WIDE, X_BYTES };

INLINE int32_t x_form(QType t, int32_t rows) { return !NARROW(t.bits) ? X_WIDE : rows == 1 ? X_BYTES : X_NARROW; }
INLINE int32_t x_row_bytes(int32_t form, int32_t k) {
    return k / QBLOCK * (int32_t)(form == X_NARROW ? sizeof(XNarrow) : sizeof(XWide));
}
/* k numbers, a multiple of 32, into blocks of a form. */
void quantise_row(const float *x, int32_t k, int32_t form, void *to);

/* A piece made plain, for products of many rows: int8 codes [k / 4][row][4] (wide: [pair][row][2]), then float32 scale[8] and
 * minimum[8] for each sub-block: weight = (scale code + minimum) 2^60. */
INLINE int32_t plain_piece_bytes(QType t) { return 256 + 64 * t.subs; }
void unpack_panel(int32_t dtype, const uint8_t *panel, int32_t k, int8_t *to);

/* out[8] (rows of x times one panel, 2^52 too small). */
void vector_panel(int32_t dtype, const void *x, const uint8_t *panel, int32_t k, float *out);
/* out[rows][8], 2^52 X_SCALE left out already; rows of x are x_row_bytes apart, the panel is plain. Up to 4 rows at a time. */
int32_t tile_rows(int32_t dtype, const char *x, int32_t rows, const int8_t *plain, int32_t k, float *out);

/* `pack` of a block-quantised weight: panels of 8 rows from rows [row0, row0 + rows) of a file. 0, or BAD_CODE. */
int32_t pack_quantised(const uint8_t *src, int32_t src_dtype, uint8_t *dst, int32_t row0, int32_t rows, int32_t n, int32_t k,
                       int32_t dst_dtype);
