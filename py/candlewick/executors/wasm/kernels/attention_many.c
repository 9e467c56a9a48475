/* Attention for many queries: keys and values are first packed into panels (keys 12 wide and transposed, values 8 wide), then
 * threads claim blocks of queries. A block's scores come from the 3 x 12 tile, its weighted values from a 4 x 8 tile.
 */
#include "attention.h"
#include "tiles.h"

enum {
    Q_BLOCK = 48,    /* queries of one task, a multiple of 12 so that tiles of 3 and of 4 rows fit */
    KEY_BLOCK = 504, /* keys between two updates of the running softmax, a multiple of PANEL; 48 x 504 scores are 97 KB */
    Q_UNIT = 12,
};

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

void score_panel(const float *q, int32_t d, const float *panel_start, int32_t rows, float *out, int32_t ldo) {
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

void weigh_panel(const float *p, int32_t ldp, const float *panel_start, int32_t keys, int32_t rows, float *out, int32_t ldo) {
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
        int twelve = a->n_k <= PANEL && !a->causal && !a->bias;
        if (twelve) soften_twelve(scores, KEY_BLOCK, rows, here, total);
        for (int32_t r = 0; r < rows && !twelve; r++) {
            int32_t seen = most(0, least(here, visible(a, start, from + r) - first));
            if (seen == 0) {
                for (int32_t i = 0; i < padded; i++) scores[r * KEY_BLOCK + i] = 0.0f;
                continue;
            }
            if (a->bias)
                add_bias(scores + r * KEY_BLOCK, AT(float, a->bias) + (int64_t)head * a->bias_head +
                         (int64_t)(from + r) * a->bias_row + first, seen);
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

int32_t attend_many(const attention_args *a, const Context *c, int32_t start) {
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
