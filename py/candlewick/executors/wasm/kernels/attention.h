/* What the two ways of computing attention share; see attention.c. */
#pragma once
#include "runtime.h"

#define NOTHING (-1e30f) /* stands for minus infinity: differences of two of them stay finite */

/* How many keys query i sees. */
INLINE int32_t visible(const attention_args *a, int32_t start, int32_t i) {
    if (!a->causal) return a->n_k;
    int64_t keys = (int64_t)start + i + 1;
    return keys < 0 ? 0 : keys > a->n_k ? a->n_k : (int32_t)keys;
}

/* Scores of one row, `keys` of them valid, become 2^(score - maximum); the rest up to `padded`, a multiple of 4, become 0.
 * The maximum is rounded up to a whole number. Updates maximum and sum; returns the factor for what was summed before. */
float soften(float *scores, int32_t keys, int32_t padded, float *maximum, float *sum);

/* The same for `rows` rows, ld apart, of at most 12 keys each, 12 written; maxima are not kept. */
void soften_twelve(float *scores, int32_t ld, int32_t rows, int32_t keys, float *sums);

/* scores += bias, which is in base e. */
void add_bias(float *scores, const float *bias, int32_t keys);

enum { V_PANEL = 8 };

/* out[rows][12] = q[rows][d] . panel[d][12]; rows is a multiple of 3. */
void score_panel(const float *q, int32_t d, const float *panel_start, int32_t rows, float *out, int32_t ldo);
/* out[rows][8] += p[rows][keys] . panel[keys][8]; rows and keys are multiples of 4. */
void weigh_panel(const float *p, int32_t ldp, const float *panel_start, int32_t keys, int32_t rows, float *out, int32_t ldo);

int32_t attend_many(const attention_args *a, const Context *c, int32_t start);
int32_t attend_few(const attention_args *a, const Context *c, int32_t start);
