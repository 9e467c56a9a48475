/* The register tiles that matmul and attention are built from.
 *
 * 9 sums, 3 columns of the panel and a broadcast value fill 13 of the 15 registers that V8 has; one row or column more and
 * it spills, at half the speed. V8 keeps the order of the instructions it is given, but the compiler likes to chain the
 * multiply-adds of one sum (then 24 operands are alive) and to make every address from a common base (an addition a load).
 * FIX tells it that a value may have changed: what is computed before stays before, and loads keep their constant offsets.
 */
#pragma once
#include "simd.h"

#define FIX_3(a) __asm__ volatile("" : "+r"((a)[0]), "+r"((a)[1]), "+r"((a)[2]))

static const float zeros[PANEL] __attribute__((aligned(16)));

/* One step of k: the sums of ROWS rows of 12 columns += x[row][k] * panel[k][12]. */
#define STEP_12(ROWS, OFFSET)                                                                                            \
    {                                                                                                                    \
        vec b0 = load(panel + PANEL * (OFFSET)), b1 = load(panel + PANEL * (OFFSET) + 4),                                \
            b2 = load(panel + PANEL * (OFFSET) + 8);                                                                     \
        FULLY for (int r = 0; r < ROWS; r++) {                                                                           \
            vec a = load_splat(row[r] + (OFFSET));                                                                       \
            acc[r][0] = madd(a, b0, acc[r][0]);                                                                          \
            acc[r][1] = madd(a, b1, acc[r][1]);                                                                          \
            acc[r][2] = madd(a, b2, acc[r][2]);                                                                          \
            FIX_3(acc[r]);                                                                                               \
        }                                                                                                                \
    }

/* One step of k with VECS vectors of columns: what is left of a product whose columns do not fill the last panel. */
#define STEP(ROWS, VECS, OFFSET)                                                                                         \
    {                                                                                                                    \
        vec b[VECS];                                                                                                     \
        FULLY for (int v = 0; v < VECS; v++) b[v] = load(panel + PANEL * (OFFSET) + 4 * v);                              \
        FULLY for (int r = 0; r < ROWS; r++) {                                                                           \
            vec a = load_splat(row[r] + (OFFSET));                                                                       \
            FULLY for (int v = 0; v < VECS; v++) acc[r][v] = madd(a, b[v], acc[r][v]);                                   \
            FULLY for (int v = 0; v < VECS; v++) FIX(acc[r][v]);                                                         \
        }                                                                                                                \
    }

/* out[ROWS][4 VECS] = init[ROWS][4 VECS] + x[ROWS][k] . panel[k][12] + bias. Rows of x, init and out are ldx, ldi and ldo apart;
 * ldi = 0 takes the same row for all. 3 x 12 is the one that counts; 4 x 8 and 6 x 4 are nearly as good on narrow panels. */
#define TILE(ROWS, VECS)                                                                                                 \
    static __attribute__((noinline)) void tile_##ROWS##_##VECS(const float *x, int32_t ldx, const float *panel, int32_t k, \
                                                               const float *init, int32_t ldi, const float *bias,        \
                                                               float *out, int32_t ldo) {                                \
        vec acc[ROWS][VECS];                                                                                             \
        const float *row[ROWS];                                                                                          \
        FULLY for (int r = 0; r < ROWS; r++) {                                                                           \
            FULLY for (int c = 0; c < VECS; c++) acc[r][c] = load(init + r * ldi + 4 * c);                               \
            row[r] = x + r * ldx;                                                                                        \
            FIX(row[r]);                                                                                                 \
        }                                                                                                                \
        int32_t left = k;                                                                                                \
        for (; left >= 4; left -= 4) {                                                                                   \
            FULLY for (int i = 0; i < 4; i++) STEP(ROWS, VECS, i)                                                        \
            panel += 4 * PANEL;                                                                                          \
            FIX(panel);                                                                                                  \
            FULLY for (int r = 0; r < ROWS; r++) {                                                                       \
                row[r] += 4;                                                                                             \
                FIX(row[r]);                                                                                             \
            }                                                                                                            \
        }                                                                                                                \
        for (; left > 0; left--) {                                                                                       \
            STEP(ROWS, VECS, 0)                                                                                          \
            panel += PANEL;                                                                                              \
            FULLY for (int r = 0; r < ROWS; r++) row[r]++;                                                               \
        }                                                                                                                \
        FULLY for (int c = 0; c < VECS; c++) {                                                                           \
            vec b = load(bias + 4 * c);                                                                                  \
            FULLY for (int r = 0; r < ROWS; r++) store(out + r * ldo + 4 * c, add(acc[r][c], b));                        \
        }                                                                                                                \
    }
