/* The register tiles that matmul and attention are built from: out = init + x . panel (+ bias), rows of x against 12 (or 8)
 * packed columns. 9 accumulators and 3 columns of the panel fill V8's 15 registers exactly; one more and it spills. */
#pragma once
#include "simd.h"

static const float zeros[PANEL] __attribute__((aligned(16)));

/* ROWS rows of x (ldx apart) times a panel of k rows of 12 -> ROWS rows of out (ldo apart). `init` rows are ldi apart, 0 =
 * the same row for all; `bias` is added at the end. */
#define TILE_12(ROWS)                                                                                                    \
    static __attribute__((noinline)) void tile_##ROWS##x12(const float *x, int32_t ldx, const float *panel, int32_t k,   \
                                                           const float *init, int32_t ldi, const float *bias,            \
                                                           float *out, int32_t ldo) {                                    \
        vec acc[ROWS][3];                                                                                                \
        for (int r = 0; r < ROWS; r++)                                                                                   \
            for (int c = 0; c < 3; c++) acc[r][c] = load(init + r * ldi + 4 * c);                                        \
        const float *row[ROWS];                                                                                          \
        for (int r = 0; r < ROWS; r++) row[r] = x + r * ldx;                                                             \
        int32_t left = k;                                                                                                \
        for (; left >= 4; left -= 4) {                                                                                   \
            _Pragma("clang loop unroll(full)") for (int i = 0; i < 4; i++) {                                             \
                vec b0 = load(panel + PANEL * i), b1 = load(panel + PANEL * i + 4), b2 = load(panel + PANEL * i + 8);    \
                _Pragma("clang loop unroll(full)") for (int r = 0; r < ROWS; r++) {                                      \
                    vec a = load_splat(row[r] + i);                                                                      \
                    acc[r][0] = madd(a, b0, acc[r][0]);                                                                  \
                    acc[r][1] = madd(a, b1, acc[r][1]);                                                                  \
                    acc[r][2] = madd(a, b2, acc[r][2]);                                                                  \
                }                                                                                                        \
            }                                                                                                            \
            panel += 4 * PANEL;                                                                                          \
            for (int r = 0; r < ROWS; r++) row[r] += 4;                                                                  \
        }                                                                                                                \
        for (; left > 0; left--) {                                                                                       \
            vec b0 = load(panel), b1 = load(panel + 4), b2 = load(panel + 8);                                            \
            for (int r = 0; r < ROWS; r++) {                                                                             \
                vec a = load_splat(row[r]++);                                                                            \
                acc[r][0] = madd(a, b0, acc[r][0]);                                                                      \
                acc[r][1] = madd(a, b1, acc[r][1]);                                                                      \
                acc[r][2] = madd(a, b2, acc[r][2]);                                                                      \
            }                                                                                                            \
            panel += PANEL;                                                                                              \
        }                                                                                                                \
        for (int c = 0; c < 3; c++) {                                                                                    \
            vec b = load(bias + 4 * c);                                                                                  \
            for (int r = 0; r < ROWS; r++) store(out + r * ldo + 4 * c, add(acc[r][c], b));                              \
        }                                                                                                                \
    }

/* out[ROWS][8] += p[ROWS][k] . panel[k][8], the second product of attention. */
#define TILE_8(ROWS)                                                                                                     \
    static __attribute__((noinline)) void tile_##ROWS##x8(const float *p, int32_t ldp, const float *panel, int32_t k,    \
                                                          float *out, int32_t ldo) {                                     \
        vec acc[ROWS][2];                                                                                                \
        for (int r = 0; r < ROWS; r++)                                                                                   \
            for (int c = 0; c < 2; c++) acc[r][c] = load(out + r * ldo + 4 * c);                                         \
        const float *row[ROWS];                                                                                          \
        for (int r = 0; r < ROWS; r++) row[r] = p + r * ldp;                                                             \
        for (int32_t left = k; left > 0; left -= 4) { /* k is a multiple of 4 */                                         \
            _Pragma("clang loop unroll(full)") for (int i = 0; i < 4; i++) {                                             \
                vec b0 = load(panel + 8 * i), b1 = load(panel + 8 * i + 4);                                              \
                _Pragma("clang loop unroll(full)") for (int r = 0; r < ROWS; r++) {                                      \
                    vec a = load_splat(row[r] + i);                                                                      \
                    acc[r][0] = madd(a, b0, acc[r][0]);                                                                  \
                    acc[r][1] = madd(a, b1, acc[r][1]);                                                                  \
                }                                                                                                        \
            }                                                                                                            \
            panel += 32;                                                                                                 \
            for (int r = 0; r < ROWS; r++) row[r] += 4;                                                                  \
        }                                                                                                                \
        for (int r = 0; r < ROWS; r++)                                                                                   \
            for (int c = 0; c < 2; c++) store(out + r * ldo + 4 * c, acc[r][c]);                                         \
    }
