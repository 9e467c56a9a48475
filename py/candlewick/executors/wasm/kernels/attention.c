/* y = softmax(scale q . k^T) v, one head after another, streaming over keys: no (queries, keys) matrix is ever stored.
 *
 * Softmax is kept in base 2 (scale carries log2 e) and online: with each block of keys the running maximum, the sum and the
 * weighted values are brought to the new maximum. Many queries: keys and values are first packed into panels, then
 * threads claim blocks of queries. Few queries (decoding): keys and values are read in place, once for all the query heads
 * that share them, and threads claim key heads, or ranges of keys where heads are too few for the threads.
 */
#include "runtime.h"
#include "tiles.h"

enum {
    Q_BLOCK = 48,    /* queries of one task, a multiple of 12 so that tiles of 3 and of 4 rows fit */
    KEY_BLOCK = 504, /* keys between two updates of the running softmax, a multiple of PANEL; 48 x 504 scores are 97 KB */
    Q_UNIT = 12,
    V_PANEL = 8,
    FEW_KEYS = 256,
};
#define NOTHING (-1e30f) /* stands for minus infinity: differences of two of them stay finite */

/* How many keys query i sees. */
INLINE int32_t visible(const attention_args *a, int32_t start, int32_t i) {
    if (!a->causal) return a->n_k;
    int64_t keys = (int64_t)start + i + 1;
    return keys < 0 ? 0 : keys > a->n_k ? a->n_k : (int32_t)keys;
}

#define TOP_LIMIT 0x1p20f

/* Scores of one row, `keys` of them valid, become 2^(score - maximum); the rest up to `padded`, a multiple of 4, become 0.
 * The maximum is rounded up to a whole number. Updates maximum and sum; returns the factor for what was summed before. */
static __attribute__((noinline)) float soften(float *scores, int32_t keys, int32_t padded, float *maximum, float *sum) {
    for (int32_t i = keys; i < padded; i++) scores[i] = NOTHING;
    vec high0 = splat(*maximum), high1 = high0, high2 = high0;
    const float *end = scores + padded, *end_12 = scores + padded / 12 * 12;
    float *p = scores;
    for (; p < end_12; p += 12) {
        high0 = vmax(high0, load(p));
        high1 = vmax(high1, load(p + 4));
        high2 = vmax(high2, load(p + 8));
    }
    for (; p < end; p += 4) high0 = vmax(high0, load(p));
    float top = __builtin_ceilf(lane_max(vmax(vmax(high0, high1), high2))), base = top;
    if (top > TOP_LIMIT || top < -TOP_LIMIT) { /* too large for the trick of exp2_below: subtract first */
        for (p = scores; p < end; p += 4) store(p, sub(load(p), splat(top)));
        base = 0.0f;
    }
    const Exp2 e = exp2_from(base);
    float factor = wasm_f32x4_extract_lane(exp2_below(&e, splat(*maximum - top + base)), 0);
    vec total = zero();
    for (p = scores; p < end_12; p += 12)
        FULLY for (int j = 0; j < 12; j += 4) {
            vec v = exp2_below(&e, load(p + j));
            FIX(v); /* one after the other: the machine overlaps them, the compiler would run out of registers */
            store(p + j, v);
            total = add(total, v);
        }
    for (; p < end; p += 4) {
        vec v = exp2_below(&e, load(p));
        store(p, v);
        total = add(total, v);
    }
    *sum = *sum * factor + lane_sum(total);
    for (int32_t i = keys; i < padded; i++) scores[i] = 0.0f; /* not the 2^-60 of masked keys */
    *maximum = top;
    return factor;
}

/* ---- many queries ------------------------------------------------------------------------------------------------- */

typedef struct {
    float *keys, *values;            /* all heads' panels */
    int32_t padded, d_padded;        /* n_k and d rounded up to whole panels */
} Packed;

INLINE float *key_panel(const Packed *p, const attention_args *a, int32_t head, int32_t panel) {
    return p->keys + ((int64_t)head * p->padded + panel * PANEL) * a->d;
}
INLINE float *value_panel(const Packed *p, int32_t head, int32_t column) {
    return p->values + (int64_t)head * p->padded * p->d_padded + (int64_t)column * p->padded;
}

/* 12 keys -> [d][12]; 12 values -> 12 rows of each [padded][8] panel. Keys from `seen` on are 0. */
static void pack_keys(const attention_args *a, const Packed *p, int32_t head, int32_t panel, int32_t seen) {
    float *to = key_panel(p, a, head, panel);
    const float *k = AT(float, a->k) + (int64_t)head * a->k_head, *v = AT(float, a->v) + (int64_t)head * a->v_head;
    int32_t first = panel * PANEL, d = a->d;
    for (int32_t j = 0; j < PANEL; j += 4) {
        const float *row[4];
        for (int32_t i = 0; i < 4; i++) row[i] = k + (int64_t)least(first + j + i, seen - 1) * a->k_row;
        int32_t c = 0;
        for (; c + 4 <= d; c += 4) {
            vec r0 = load(row[0] + c), r1 = load(row[1] + c), r2 = load(row[2] + c), r3 = load(row[3] + c);
            transpose4(&r0, &r1, &r2, &r3);
            store(to + c * PANEL + j, r0);
            store(to + (c + 1) * PANEL + j, r1);
            store(to + (c + 2) * PANEL + j, r2);
            store(to + (c + 3) * PANEL + j, r3);
        }
        for (; c < d; c++)
            for (int32_t i = 0; i < 4; i++) to[c * PANEL + j + i] = row[i][c];
    }
    for (int32_t column = 0; column < p->d_padded; column += V_PANEL) {
        float *rows = value_panel(p, head, column) + first * V_PANEL;
        const float *from = v + (int64_t)first * a->v_row + column;
        int whole = column + V_PANEL <= d;
        for (int32_t i = 0; i < PANEL; i++, from += a->v_row, rows += V_PANEL) {
            if (whole && first + i < seen) {
                store(rows, load(from));
                store(rows + 4, load(from + 4));
            } else {
                for (int32_t c = 0; c < V_PANEL; c++) rows[c] = first + i < seen && column + c < d ? from[c] : 0.0f;
            }
        }
    }
}

/* out[rows][12] = q[rows][d] . panel[d][12]; rows is a multiple of 3. */
static __attribute__((noinline)) void score_panel(const float *q, int32_t d, const float *panel_start, int32_t rows,
                                                  float *out, int32_t ldo) {
    for (int32_t r = 0; r < rows; r += 3) {
        const float *panel = panel_start, *row[3] = {q, q + d, q + 2 * d};
        vec acc[3][3];
        FULLY for (int i = 0; i < 3; i++) {
            acc[i][0] = acc[i][1] = acc[i][2] = zero();
            FIX(row[i]);
        }
        FIX(panel);
        int32_t left = d;
        for (; left >= 8; left -= 8) {
            FULLY for (int i = 0; i < 8; i++) STEP_12(3, i)
            panel += 8 * PANEL;
            FIX(panel);
            FULLY for (int i = 0; i < 3; i++) {
                row[i] += 8;
                FIX(row[i]);
            }
        }
        for (; left > 0; left--) {
            STEP_12(3, 0)
            panel += PANEL;
            FULLY for (int i = 0; i < 3; i++) row[i]++;
        }
        float *to = out;
        FULLY for (int i = 0; i < 3; i++, to += ldo)
            FULLY for (int c = 0; c < 3; c++) store(to + 4 * c, acc[i][c]);
        q += 3 * d;
        out += 3 * ldo;
    }
}

/* out[rows][8] += p[rows][keys] . panel[keys][8]; rows and keys are multiples of 4. */
static __attribute__((noinline)) void weigh_panel(const float *p, int32_t ldp, const float *panel_start, int32_t keys,
                                                  int32_t rows, float *out, int32_t ldo) {
    for (int32_t r = 0; r < rows; r += 4) {
        const float *panel = panel_start, *row[4] = {p, p + ldp, p + 2 * ldp, p + 3 * ldp};
        vec acc[4][2];
        float *to = out;
        FULLY for (int i = 0; i < 4; i++, to += ldo) {
            acc[i][0] = load(to);
            acc[i][1] = load(to + 4);
            FIX(row[i]);
        }
        FIX(panel);
        for (int32_t left = keys; left > 0; left -= 4) {
            FULLY for (int j = 0; j < 4; j++) {
                vec b0 = load(panel + V_PANEL * j), b1 = load(panel + V_PANEL * j + 4);
                FULLY for (int i = 0; i < 4; i++) {
                    vec a = load_splat(row[i] + j);
                    acc[i][0] = madd(a, b0, acc[i][0]);
                    acc[i][1] = madd(a, b1, acc[i][1]);
                    FIX(acc[i][0]);
                    FIX(acc[i][1]);
                }
            }
            panel += 4 * V_PANEL;
            FIX(panel);
            FULLY for (int i = 0; i < 4; i++) {
                row[i] += 4;
                FIX(row[i]);
            }
        }
        to = out;
        FULLY for (int i = 0; i < 4; i++, to += ldo) {
            store(to, acc[i][0]);
            store(to + 4, acc[i][1]);
        }
        p += 4 * ldp;
        out += 4 * ldo;
    }
}

static void attend_block(const attention_args *a, const Context *c, const Packed *p, int32_t head, int32_t from,
                         int32_t start) {
    int32_t rows = least(Q_BLOCK, a->n_q - from), rows_padded = ceil_div(rows, Q_UNIT) * Q_UNIT;
    int32_t d = a->d, width = p->d_padded, kv = head / a->n_group;
    float *q = c->scratch, *scores = q + Q_BLOCK * d, *sums = scores + Q_BLOCK * KEY_BLOCK;
    float maximum[Q_BLOCK], total[Q_BLOCK];
    vec scale = splat(a->scale * LOG2E);
    for (int32_t r = 0; r < rows; r++) {
        const float *row = AT(float, a->q) + (int64_t)head * a->q_head + (int64_t)(from + r) * a->q_row;
        int32_t i = 0;
        for (; i + 4 <= d; i += 4) store(q + r * d + i, mul(load(row + i), scale));
        for (; i < d; i++) q[r * d + i] = row[i] * (a->scale * LOG2E);
        maximum[r] = NOTHING;
        total[r] = 0.0f;
    }
    for (int32_t i = rows * d; i < rows_padded * d; i++) q[i] = 0.0f; /* scores of rows that are not there are 0 */
    for (int32_t i = 0; i < rows_padded * width; i += 4) store(sums + i, zero());
    int32_t keys = visible(a, start, from + rows - 1); /* the last query sees most */
    for (int32_t first = 0; first < keys; first += KEY_BLOCK) {
        int32_t here = least(KEY_BLOCK, keys - first), padded = ceil_div(here, PANEL) * PANEL;
        for (int32_t j = 0; j < padded; j += PANEL)
            score_panel(q, d, key_panel(p, a, kv, (first + j) / PANEL), rows_padded, scores + j, KEY_BLOCK);
        for (int32_t r = 0; r < rows; r++) {
            int32_t seen = most(0, least(here, visible(a, start, from + r) - first));
            if (seen == 0) {
                for (int32_t i = 0; i < padded; i++) scores[r * KEY_BLOCK + i] = 0.0f;
                continue;
            }
            float factor = soften(scores + r * KEY_BLOCK, seen, padded, &maximum[r], &total[r]);
            if (factor != 1.0f)
                for (float *s = sums + r * width; s < sums + (r + 1) * width; s += 4) store(s, mul(load(s), splat(factor)));
        }
        for (int32_t column = 0; column < width; column += V_PANEL)
            weigh_panel(scores, KEY_BLOCK, value_panel(p, kv, column) + first * V_PANEL, padded, rows_padded, sums + column,
                        width);
    }
    for (int32_t r = 0; r < rows; r++) {
        float *row = AT(float, a->y) + (int64_t)head * a->y_head + (int64_t)(from + r) * a->y_row;
        float inverse = total[r] > 0.0f ? 1.0f / total[r] : 0.0f; /* a query that sees nothing gives 0 */
        int32_t i = 0;
        for (; i + 4 <= d; i += 4) store(row + i, mul(load(sums + r * width + i), splat(inverse)));
        for (; i < d; i++) row[i] = sums[r * width + i] * inverse;
    }
}

static int32_t attend_many(const attention_args *a, const Context *c, int32_t start) {
    Packed p = {.keys = AT(float, a->scratch), .padded = ceil_div(a->n_k, PANEL) * PANEL,
                .d_padded = ceil_div(a->d, V_PANEL) * V_PANEL};
    int32_t kv_heads = a->n_head / a->n_group;
    p.values = p.keys + (int64_t)kv_heads * p.padded * a->d;
    if ((Q_BLOCK * a->d + Q_BLOCK * KEY_BLOCK + Q_BLOCK * p.d_padded) * 4 > c->scratch_bytes) return BAD_CODE;
    int32_t seen = visible(a, start, a->n_q - 1), panels = ceil_div(seen, PANEL);
    Range mine = share(c, kv_heads * panels, 1);
    for (int32_t i = mine.from; i < mine.to; i++) pack_keys(a, &p, i / panels, i % panels, seen);
    int32_t status = meet(c);
    if (status) return status;
    int32_t blocks = ceil_div(a->n_q, Q_BLOCK);
    for (int32_t task; (task = claim(1)) < a->n_head * blocks;)
        attend_block(a, c, &p, task / blocks, task % blocks * Q_BLOCK, start);
    return DONE;
}

/* ---- few queries -------------------------------------------------------------------------------------------------- */

/* scores[i] = q . k[i] for `keys` rows of k, four at a time; writes up to three scores too many (room is left). */
static __attribute__((noinline)) void score_keys(const float *q, const float *k, int32_t k_row, int32_t keys, int32_t d,
                                                 float *scores) {
    for (int32_t i = 0; i < keys; i += 4) {
        const float *k0 = k + (int64_t)i * k_row, *k1 = i + 1 < keys ? k0 + k_row : k0, *k2 = i + 2 < keys ? k1 + k_row : k0,
                    *k3 = i + 3 < keys ? k2 + k_row : k0;
        vec s0 = zero(), s1 = s0, s2 = s0, s3 = s0;
        int32_t j = 0;
        for (; j + 4 <= d; j += 4) {
            vec x = load(q + j);
            s0 = madd(load(k0 + j), x, s0);
            s1 = madd(load(k1 + j), x, s1);
            s2 = madd(load(k2 + j), x, s2);
            s3 = madd(load(k3 + j), x, s3);
        }
        transpose4(&s0, &s1, &s2, &s3);
        vec s = add(add(s0, s1), add(s2, s3));
        for (; j < d; j++)
            s = madd(wasm_f32x4_make(k0[j], k1[j], k2[j], k3[j]), load_splat(q + j), s);
        store(scores + i, s);
    }
}

/* sums[d] += p[keys] . v[keys, d] */
static __attribute__((noinline)) void weigh_values(const float *p, const float *v, int32_t v_row, int32_t keys, int32_t d,
                                                   float *sums) {
    int32_t i = 0;
    for (; i + 4 <= keys; i += 4, v += 4 * (int64_t)v_row) {
        vec p0 = load_splat(p + i), p1 = load_splat(p + i + 1), p2 = load_splat(p + i + 2), p3 = load_splat(p + i + 3);
        const float *v1 = v + v_row, *v2 = v1 + v_row, *v3 = v2 + v_row;
        int32_t j = 0;
        for (; j + 4 <= d; j += 4) {
            vec low = madd(load(v + j), p0, mul(load(v1 + j), p1));
            vec high = madd(load(v2 + j), p2, mul(load(v3 + j), p3));
            store(sums + j, add(load(sums + j), add(low, high)));
        }
        for (; j < d; j++) sums[j] += v[j] * p[i] + v1[j] * p[i + 1] + v2[j] * p[i + 2] + v3[j] * p[i + 3];
    }
    for (; i < keys; i++, v += v_row)
        for (int32_t j = 0; j < d; j++) sums[j] += v[j] * p[i];
}

/* What a task of attend_few keeps of each query of each head of the group: weighted sums (d), maximum, sum. */
typedef struct { float *sums, *maximum, *total; } State;
INLINE State state_of(float *record, int32_t d, int32_t s) {
    float *at = record + (int64_t)s * (d + 2);
    return (State){at, at + d, at + d + 1};
}

static void write_few(const attention_args *a, int32_t kv, int32_t s, const float *sums, float total) {
    int32_t head = kv * a->n_group + s / a->n_q, i = s % a->n_q;
    float *row = AT(float, a->y) + (int64_t)head * a->y_head + (int64_t)i * a->y_row;
    float inverse = total > 0.0f ? 1.0f / total : 0.0f;
    for (int32_t j = 0; j < a->d; j++) row[j] = sums[j] * inverse;
}

/* Keys [from, to) of one key head for all the queries of its group, into `record`. */
static void attend_range(const attention_args *a, int32_t kv, int32_t start, int32_t from, int32_t to, float *record,
                         float *q, float *scores) {
    int32_t d = a->d, states = a->n_group * a->n_q;
    for (int32_t s = 0; s < states; s++) {
        int32_t head = kv * a->n_group + s / a->n_q, i = s % a->n_q;
        const float *row = AT(float, a->q) + (int64_t)head * a->q_head + (int64_t)i * a->q_row;
        State state = state_of(record, d, s);
        for (int32_t j = 0; j < d; j++) {
            q[s * d + j] = row[j] * (a->scale * LOG2E);
            state.sums[j] = 0.0f;
        }
        *state.maximum = NOTHING;
        *state.total = 0.0f;
    }
    const float *k = AT(float, a->k) + (int64_t)kv * a->k_head, *v = AT(float, a->v) + (int64_t)kv * a->v_head;
    for (int32_t first = from; first < to; first += FEW_KEYS)
        for (int32_t s = 0; s < states; s++) {
            int32_t keys = least(least(FEW_KEYS, to - first), visible(a, start, s % a->n_q) - first);
            if (keys <= 0) continue;
            State state = state_of(record, d, s);
            score_keys(q + s * d, k + (int64_t)first * a->k_row, a->k_row, keys, d, scores);
            float factor = soften(scores, keys, ceil_div(keys, 4) * 4, state.maximum, state.total);
            if (factor != 1.0f)
                for (int32_t j = 0; j < d; j++) state.sums[j] *= factor;
            weigh_values(scores, v + (int64_t)first * a->v_row, a->v_row, keys, d, state.sums);
        }
}

/* Into how many ranges to cut the keys so that heads x ranges keep all threads busy; one where that is so already. */
static int32_t ranges_for(const Context *c, int32_t kv_heads, int32_t keys) {
    int32_t ranges = 1;
    while (kv_heads * ranges % c->n_threads && kv_heads * ranges < 4 * c->n_threads && keys >= 128 * (ranges + 1)) ranges++;
    return ranges;
}

static int32_t attend_few(const attention_args *a, const Context *c, int32_t start) {
    int32_t d = a->d, states = a->n_group * a->n_q, kv_heads = a->n_head / a->n_group;
    int32_t keys = visible(a, start, a->n_q - 1), ranges = ranges_for(c, kv_heads, keys);
    int64_t record_size = (int64_t)states * (d + 2), own_size = record_size + (int64_t)states * d + FEW_KEYS + 4;
    /* with several ranges their records stand in the upper half of the scratch of thread 0 until all are there */
    int64_t half = c->scratch_bytes / 8;
    if (own_size > half || kv_heads * ranges * record_size > half) ranges = 1;
    if (own_size * 4 > c->scratch_bytes) return BAD_CODE;
    float *own = c->scratch, *q = own + record_size, *scores = q + (int64_t)states * d;
    float *records = c->scratch - (int64_t)c->thread * (c->scratch_bytes / 4) + half;
    int32_t step = ceil_div(ceil_div(keys, ranges), 4) * 4;
    for (int32_t task; (task = claim(1)) < kv_heads * ranges;) {
        int32_t kv = task / ranges, from = task % ranges * step;
        float *record = ranges > 1 ? records + task * record_size : own;
        attend_range(a, kv, start, from, least(from + step, keys), record, q, scores);
        if (ranges == 1)
            for (int32_t s = 0; s < states; s++) write_few(a, kv, s, state_of(own, d, s).sums, *state_of(own, d, s).total);
    }
    if (ranges == 1) return DONE;
    int32_t status = meet(c);
    if (status) return status;
    Range mine = share(c, kv_heads * states, 1);
    const Exp2 e = exp2_from(0.0f);
    for (int32_t i = mine.from; i < mine.to; i++) {
        int32_t kv = i / states, s = i % states;
        float top = NOTHING, total = 0.0f;
        for (int32_t r = 0; r < ranges; r++) {
            float high = *state_of(records + (kv * ranges + r) * record_size, d, s).maximum;
            top = high > top ? high : top;
        }
        for (int32_t j = 0; j < d; j++) own[j] = 0.0f;
        for (int32_t r = 0; r < ranges; r++) {
            State part = state_of(records + (kv * ranges + r) * record_size, d, s);
            if (*part.total == 0.0f) continue;
            float factor = wasm_f32x4_extract_lane(exp2_below(&e, splat(*part.maximum - top)), 0);
            total += *part.total * factor;
            for (int32_t j = 0; j < d; j++) own[j] += part.sums[j] * factor;
        }
        write_few(a, kv, s, own, total);
    }
    return DONE;
}

int32_t kernel_attention(const attention_args *a, const Context *c) {
    if (a->n_head <= 0 || a->n_q <= 0 || a->d <= 0) return DONE;
    if (a->n_group <= 0 || a->n_head % a->n_group) return BAD_CODE;
    int32_t start = a->start ? *AT(int32_t, a->start) : 0;
    return a->scratch ? attend_many(a, c, start) : attend_few(a, c, start);
}
