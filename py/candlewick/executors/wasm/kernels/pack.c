/* Weights on their way in: the host copies a piece of a file into a staging area and calls `pack` on it, piece by piece.
 *
 * flat: rows x k values become float32 at element row0 * k of dst. panels: rows [row0, row0 + rows) of a weight (n, k)
 * go into panels of 12 rows stored as [panel][k][12], so that the matmul reads 12 columns of w^T with three loads; row0 is
 * a multiple of 12 and the rest of the last panel is 0. 16-bit types stay 16 bits. A convolution's row is (c_in, taps) in
 * the file and (taps, c_in) in the panel: then neighbouring inputs of one moment lie together and the convolution is a
 * matmul over overlapping rows. Block-quantised weights: see quant_pack.c.
 */
#include "quant.h"

typedef float __attribute__((aligned(1), may_alias)) unaligned_float;

static float read_float(const void *src, int32_t dtype, uint32_t i) {
    switch (dtype) {
    case DTYPE_f16: return half_scalar(((const uint16_t *)src)[i]);
    case DTYPE_bf16: return bfloat_scalar(((const uint16_t *)src)[i]);
    case DTYPE_f64: return (float)((const double *)src)[i];
    case DTYPE_q8_k: { /* d as float32, 256 int8, sums of 16 */
        const char *block = (const char *)src + i / 256 * 292;
        return *(const unaligned_float *)block * (float)*((const int8_t *)block + 4 + i % 256);
    }
    }
    return ((const float *)src)[i];
}

static int32_t pack_flat(const void *src, int32_t dtype, float *dst, int32_t row0, int32_t rows, int32_t k) {
    float *to = dst + (uint32_t)row0 * (uint32_t)k;
    uint32_t count = (uint32_t)rows * (uint32_t)k;
    for (uint32_t i = 0; i < count; i++) to[i] = read_float(src, dtype, i);
    return DONE;
}

/* One row of k values into lane `lane` of a panel. */
#define SCATTER(VALUE, TYPE)                                                                                             \
    for (int32_t tap = 0; tap < taps; tap++)                                                                             \
        for (int32_t channel = 0; channel < channels; channel++) {                                                       \
            uint32_t i = first + (uint32_t)(channel * taps + tap);                                                       \
            ((TYPE *)dst)[panel + (uint32_t)(tap * channels + channel) * PANEL + lane] = (VALUE);                        \
        }

/* Returns 0, or 3 when the arguments do not fit together. */
__attribute__((export_name("pack"))) int32_t pack(int32_t kind, const void *src, int32_t src_dtype, void *dst, int32_t row0,
                                                  int32_t rows, int32_t n, int32_t k, int32_t taps, int32_t dst_dtype) {
    if (q_type(dst_dtype).bits)
        return kind == PACK_panels && taps == 1 ? pack_quantised(src, src_dtype, dst, row0, rows, n, k, dst_dtype) : BAD_CODE;
    if (src_dtype < 0 || (src_dtype > DTYPE_f64 && (src_dtype != DTYPE_q8_k || k % 256)) || rows < 0 || k < 0 || taps < 1 || k % taps) return BAD_CODE;
    if (kind == PACK_flat) return pack_flat(src, src_dtype, dst, row0, rows, k);
    if (kind != PACK_panels || row0 % PANEL || row0 + rows > n) return BAD_CODE;
    if (dst_dtype != DTYPE_f32 && dst_dtype != src_dtype) return BAD_CODE; /* widening is exact, narrowing is not ours */
    int32_t channels = k / taps, end = row0 + rows;
    int32_t padded = end == n ? ceil_div(n, PANEL) * PANEL : end;
    for (int32_t row = row0; row < padded; row++) {
        uint32_t panel = (uint32_t)(row / PANEL) * PANEL * (uint32_t)k, lane = (uint32_t)(row % PANEL);
        uint32_t first = (uint32_t)(row - row0) * (uint32_t)k;
        if (dst_dtype == DTYPE_f32) SCATTER(row < end ? read_float(src, src_dtype, i) : 0.0f, float)
        else SCATTER(row < end ? ((const uint16_t *)src)[i] : 0, uint16_t)
    }
    return DONE;
}
