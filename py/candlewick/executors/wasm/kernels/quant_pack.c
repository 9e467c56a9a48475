/* Block-quantised weights on their way in: a file's blocks, row by row, become the panels of quant.h. Almost everything is moved
 * four bytes at a time: four neighbouring codes of one row, in the order of k, are a word of a vector.
 * Formats: github.com/ggml-org/ggml, src/ggml-common.h. */
#include "quant.h"

typedef uint32_t __attribute__((aligned(1), may_alias)) word;
typedef uint16_t __attribute__((aligned(1), may_alias)) half_word;

enum { LOW4 = 0x0f0f0f0f, LOW2 = 0x03030303, LOW1 = 0x01010101 };

/* Where a row's part of a piece lies: words of its codes are 32 bytes apart, small numbers at `numbers`. */
typedef struct { uint8_t *codes, *high, *numbers; } Place;

/* Codes of a piece: word(p) gives those of k = 4 p ... 4 p + 3, four bits each. */
#define PUT_CODES(place, word_at)                                                                                        \
    FULLY for (int p = 0; p < 4; p++)                                                                                    \
        *(word *)((place)->codes + 32 * p) = (word_at(p) & LOW4) | (word_at(p + 4) & LOW4) << 4

/* As in the file: 16 bytes with k and k + 16. */
INLINE void put_same(Place *to, const uint8_t *codes) {
    FULLY for (int p = 0; p < 4; p++) *(word *)(to->codes + 32 * p) = *(const word *)(codes + 4 * p);
}

/* Bit i of `bits` is the fifth of k = i: every fourth one, from b on, makes byte b. */
INLINE void put_fifth(Place *to, uint32_t bits) {
    uint32_t out = 0;
    FULLY for (int b = 0; b < 4; b++) {
        uint32_t x = bits >> b & 0x11111111;
        x = (x | x >> 3) & 0x03030303;
        x = (x | x >> 6) & 0x000f000f;
        out |= ((x | x >> 12) & 255) << 8 * b;
    }
    *(word *)to->high = out;
}

INLINE void put_half(Place *to, int number, const uint8_t *from) {
    *(half_word *)(to->numbers + 2 * QPANEL * number) = *(const half_word *)from;
}

static void int8_piece(Place *to, const uint8_t *d, const uint8_t *codes) {
    put_half(to, 0, d);
    FULLY for (int g = 0; g < 8; g++) {
        uint32_t v = *(const word *)(codes + 4 * g);
        *(half_word *)(to->codes + 32 * g) = (uint16_t)((v & 255) | (v >> 8 & 0xff00));
        *(half_word *)(to->codes + 32 * g + 16) = (uint16_t)((v >> 8 & 255) | (v >> 16 & 0xff00));
    }
}

/* Piece `i` of a row's block at `from`; sub-block scales go to to->numbers, 8 apart. */
static void put_piece(int32_t dtype, const uint8_t *from, int32_t i, Place *to) {
    const word *q;
    int shift;
    switch (dtype) {
    case DTYPE_q4_0:
        put_half(to, 0, from);
        put_same(to, from + 2);
        return;
    case DTYPE_q4_1:
        put_half(to, 0, from);
        put_half(to, 1, from + 2);
        put_same(to, from + 4);
        return;
    case DTYPE_q5_0:
        put_half(to, 0, from);
        put_fifth(to, *(const word *)(from + 2));
        put_same(to, from + 6);
        return;
    case DTYPE_q5_1:
        put_half(to, 0, from);
        put_half(to, 1, from + 2);
        put_fifth(to, *(const word *)(from + 4));
        put_same(to, from + 8);
        return;
    case DTYPE_q8_0: int8_piece(to, from, from + 2); return;
    case DTYPE_q8_1: int8_piece(to, from, from + 4); return;
    case DTYPE_q2_k: {
        q = (const word *)(from + 16 + 32 * (i / 4));
        shift = 2 * (i % 4);
#define AT_P(p) (q[p] >> shift & LOW2)
        PUT_CODES(to, AT_P);
#undef AT_P
        for (int s = 0; s < 2; s++) {
            to->numbers[8 * s] = from[2 * i + s] & 15;
            to->numbers[16 + 8 * s] = from[2 * i + s] >> 4;
        }
        return;
    }
    case DTYPE_q3_k: {
        const word *third = (const word *)from;
        q = (const word *)(from + 32 + 32 * (i / 4));
        shift = 2 * (i % 4);
#define AT_P(p) ((q[p] >> shift & LOW2) | (third[p] >> i & LOW1) << 2)
        PUT_CODES(to, AT_P);
#undef AT_P
        for (int s = 0; s < 2; s++) {
            int at = 2 * i + s;
            int low = at < 8 ? from[96 + at] & 15 : from[88 + at] >> 4, high = from[104 + at % 4] >> 2 * (at / 4) & 3;
            to->numbers[8 * s] = (uint8_t)((low | high << 4) - 32);
        }
        return;
    }
    case DTYPE_q4_k:
    case DTYPE_q5_k: {
        const uint8_t *packed = from + 4;
        q = (const word *)(from + (dtype == DTYPE_q4_k ? 16 : 48) + 32 * (i / 2));
        shift = 4 * (i % 2);
#define AT_P(p) (q[p] >> shift)
        PUT_CODES(to, AT_P);
#undef AT_P
        if (dtype == DTYPE_q5_k) {
            uint32_t bits = 0;
            FULLY for (int g = 0; g < 8; g++) bits |= (((const word *)(from + 16))[g] >> i & LOW1) << g;
            *(word *)to->high = bits;
        }
        to->numbers[0] = i < 4 ? packed[i] & 63 : (packed[i + 4] & 15) | (packed[i - 4] >> 6) << 4;
        to->numbers[8] = i < 4 ? packed[i + 4] & 63 : packed[i + 4] >> 4 | (packed[i] >> 6) << 4;
        return;
    }
    case DTYPE_q6_k: {
        const word *two = (const word *)(from + 128 + 32 * (i / 4));
        q = (const word *)(from + 64 * (i / 4) + 32 * (i % 2));
        shift = 4 * (i % 4 / 2);
#define AT_P(p) (q[p] >> shift)
        PUT_CODES(to, AT_P);
#undef AT_P
        FULLY for (int s = 0; s < 2; s++) {
            uint32_t bits = 0;
            FULLY for (int p = 0; p < 4; p++) bits |= (two[4 * s + p] >> 2 * (i % 4) & LOW2) << 2 * p;
            *(word *)(to->high + 32 * s) = bits;
            to->numbers[8 * s] = from[192 + 2 * i + s];
        }
        return;
    }
    }
}

/* Rows [row0, row0 + rows) of a weight (n, k): row0 is a multiple of 8; what is missing of the last panel becomes zero. */
int32_t pack_quantised(const uint8_t *src, int32_t src_dtype, uint8_t *dst, int32_t row0, int32_t rows, int32_t n, int32_t k,
                       int32_t dst_dtype) {
    QType t = q_type(dst_dtype);
    if (!t.bits || k % q_block(t) || row0 % QPANEL || row0 + rows > n) return BAD_CODE;
    if (src_dtype != dst_dtype && !(src_dtype == DTYPE_q8_1 && dst_dtype == DTYPE_q8_0)) return BAD_CODE;
    const int32_t file_bytes = q_file_bytes(src_dtype), pieces = q_block(t) / QBLOCK, piece_bytes = q_piece_bytes(t);
    const int32_t codes_bytes = q_codes_bytes(t), two = 1 + q_has_min(t);
    const uint32_t stride = q_panel_bytes(t, k);
    if (row0 + rows == n && n % QPANEL) {
        uint64_t *last = (uint64_t *)(dst + (uint32_t)(n / QPANEL) * stride);
        for (uint32_t i = 0; i < stride / 8; i++) last[i] = 0;
    }
    for (int32_t row = row0; row < row0 + rows; row++) {
        int32_t lane = row % QPANEL;
        uint8_t *to = dst + (uint32_t)(row / QPANEL) * stride;
        for (int32_t from = 0; from < k; from += q_block(t), src += file_bytes) {
            for (int32_t i = 0; i < pieces; i++, to += piece_bytes) {
                Place place = {to + (t.bits == 8 ? 2 : 4) * lane, to + 128 + 4 * lane,
                               to + codes_bytes + (q_is_super(t) ? 1 : 2) * lane};
                put_piece(src_dtype, src, i, &place);
            }
            if (!q_is_super(t)) continue;
            int32_t d = src_dtype == DTYPE_q2_k ? 80 : src_dtype == DTYPE_q3_k ? 108 : src_dtype == DTYPE_q6_k ? 208 : 0;
            Place place = {to, to, to + 2 * lane};
            put_half(&place, 0, src + d);
            if (two == 2) put_half(&place, 1, src + d + 2);
            to += 2 * QPANEL * two;
        }
    }
    return DONE;
}
