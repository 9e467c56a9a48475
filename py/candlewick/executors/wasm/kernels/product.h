/* The inner part of every matrix product, shared by linear, the convolutions and matmul; see product.c. */
#pragma once
#include "runtime.h"

enum {
    K_BLOCK = 2048, /* rows of a panel taken at once: 96 KB of float32, which stream from L2 as fast as the tile takes them */
    ROW_BLOCK = 96, /* rows of x per partial-sum block and, in the last panels, per task; a multiple of 3 */
};

/* Floats of scratch that `multiply` may touch for so many rows. */
#define PRODUCT_SCRATCH(rows) ((K_BLOCK + (rows)) * PANEL)

/* All of x's rows [row, row + rows) times one panel, with the epilogue, into y. */
void multiply(const linear_args *a, float *scratch, int32_t panel, int32_t row, int32_t rows);

/* The epilogue of rows of up to 12 sums, and of one long line in place. */
void finish(const float *from, int32_t ldf, float *y, int32_t ldy, const float *residual, int32_t ldr, int32_t rows,
            int32_t columns, int32_t activation, int32_t final);
void finish_line(float *y, const float *residual, int32_t count, int32_t activation, int32_t final);

/* Zeros into `rows` rows of y, shared by the threads. */
void zero_rows(const Context *c, float *y, int32_t ldy, int32_t rows, int32_t n);
