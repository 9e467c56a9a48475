/* Attention for few queries (decoding): keys and values are read in place, once for all the query heads that share them.
 * Threads claim key heads; those that are left over when each thread has as many as the others are cut into ranges of keys.
 */
#include "attention.h"

enum {
    FEW_KEYS = 256,      /* keys between two updates of the running softmax: 64 KB of each at 64 dimensions */
    LINE = FEW_KEYS + 4, /* their scores, with room for those too many */
    TOGETHER = 3,        /* queries that meet a key while it is in a register */
    RANGE_KEYS = 48,     /* least number of keys in a range of its own */
};

/* scores[r][i] = q[r] . k[i] for R queries and `keys` rows of k, KEYS at a time; queries are d apart, scores LINE. Writes up
 * to three scores too many (room is left). */
#define SCORE(R, KEYS)                                                                                                   \
    static __attribute__((noinline)) void score_##R(const float *q, const float *k, int32_t k_row, int32_t keys, int32_t d, \
                                                    float *scores) {                                                     \
        for (int32_t i = 0; i < keys; i += KEYS) {                                                                       \
            const float *row[KEYS], *query = q;                                                                          \
            FULLY for (int n = 0; n < KEYS; n++) {                                                                       \
                row[n] = k + (int64_t)least(i + n, keys - 1) * k_row;                                                    \
                FIX(row[n]);                                                                                             \
            }                                                                                                            \
            vec s[R][4];                                                                                                 \
            FULLY for (int r = 0; r < R; r++) s[r][0] = s[r][1] = s[r][2] = s[r][3] = zero();                            \
            int32_t left = d;                                                                                            \
            for (; left >= 8; left -= 8) {                                                                               \
                FULLY for (int j = 0; j < 8; j += 4) SCORE_STEP(R, KEYS, j)                                              \
                FULLY for (int n = 0; n < KEYS; n++) row[n] += 8;                                                        \
                query += 8;                                                                                              \
            }                                                                                                            \
            for (; left >= 4; left -= 4) {                                                                               \
                SCORE_STEP(R, KEYS, 0)                                                                                   \
                FULLY for (int n = 0; n < KEYS; n++) row[n] += 4;                                                        \
                query += 4;                                                                                              \
            }                                                                                                            \
            FULLY for (int r = 0; r < R; r++) {                                                                          \
                transpose4(&s[r][0], &s[r][1], &s[r][2], &s[r][3]);                                                      \
                vec sum = add(add(s[r][0], s[r][1]), add(s[r][2], s[r][3]));                                             \
                for (int32_t j = 0; j < left; j++)                                                                       \
                    sum = madd(wasm_f32x4_make(row[0][j], row[1][j], row[2][j], row[KEYS - 1][j]),                       \
                               load_splat(query + r * d + j), sum);                                                      \
                store(scores + r * LINE + i, sum);                                                                       \
            }                                                                                                            \
        }                                                                                                                \
    }
#define SCORE_STEP(R, KEYS, OFFSET)                                                                                      \
    {                                                                                                                    \
        vec key[KEYS];                                                                                                   \
        FULLY for (int n = 0; n < KEYS; n++) key[n] = load(row[n] + (OFFSET));                                           \
        FULLY for (int r = 0; r < R; r++) {                                                                              \
            vec x = load(query + r * d + (OFFSET));                                                                      \
            FULLY for (int n = 0; n < KEYS; n++) {                                                                       \
                s[r][n] = madd(key[n], x, s[r][n]);                                                                      \
                FIX(s[r][n]);                                                                                            \
            }                                                                                                            \
        }                                                                                                                \
    }
SCORE(1, 4)
SCORE(2, 4)
SCORE(3, 3)

/* Two or three queries: 4 C columns of all the rows at a time, their sums in registers; the rows have been touched before.
 * sums[r][4 C] += p[r][keys] . v[keys][4 C]; the sums of the queries are `apart` floats apart. */
#define WEIGH_BLOCK(R, C)                                                                                                \
    static __attribute__((noinline)) void weigh_##R##_##C(const float *p, const float *v, int32_t v_row, int32_t keys,    \
                                                          float *sums, int32_t apart) {                                  \
        vec acc[R][C];                                                                                                   \
        FULLY for (int r = 0; r < R; r++)                                                                                \
            FULLY for (int c = 0; c < C; c++) acc[r][c] = load(sums + r * apart + 4 * c);                                \
        for (const float *end = p + keys; p < end; p++, v += v_row) {                                                    \
            vec w[R];                                                                                                    \
            FULLY for (int r = 0; r < R; r++) w[r] = load_splat(p + r * LINE);                                           \
            FULLY for (int c = 0; c < C; c++) {                                                                          \
                vec value = load(v + 4 * c);                                                                             \
                FULLY for (int r = 0; r < R; r++) {                                                                      \
                    acc[r][c] = madd(value, w[r], acc[r][c]);                                                            \
                    FIX(acc[r][c]);                                                                                      \
                }                                                                                                        \
            }                                                                                                            \
        }                                                                                                                \
        FULLY for (int r = 0; r < R; r++)                                                                                \
            FULLY for (int c = 0; c < C; c++) store(sums + r * apart + 4 * c, acc[r][c]);                                \
    }
#define WEIGH(R, C)                                                                                                      \
    WEIGH_BLOCK(R, C)                                                                                                    \
    WEIGH_BLOCK(R, 1)                                                                                                    \
    static void weigh_##R(const float *p, const float *v, int32_t v_row, int32_t keys, int32_t d, float *sums, int32_t apart) { \
        int32_t j = 0;                                                                                                   \
        for (; j + 4 * C <= d; j += 4 * C) weigh_##R##_##C(p, v + j, v_row, keys, sums + j, apart);                      \
        for (; j + 4 <= d; j += 4) weigh_##R##_1(p, v + j, v_row, keys, sums + j, apart);                                \
        for (; j < d; j++)                                                                                               \
            for (int32_t i = 0; i < keys; i++)                                                                           \
                for (int r = 0; r < R; r++) sums[r * apart + j] += v[(int64_t)i * v_row + j] * p[r * LINE + i];          \
    }
WEIGH(2, 4)
WEIGH(3, 3)

/* One query: row after row of the values, in the order of memory. sums[d] += p[keys] . v[keys][d] */
static __attribute__((noinline)) void weigh_1(const float *p, const float *v, int32_t v_row, int32_t keys, int32_t d,
                                              float *sums, int32_t apart) {
    int32_t i = 0;
    (void)apart;
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
        for (int32_t s = 0, n; s < states; s += n) {
            n = least(TOGETHER, states - s);
            int32_t seen[TOGETHER], keys = 0;
            for (int32_t r = 0; r < n; r++) {
                seen[r] = least(least(FEW_KEYS, to - first), visible(a, start, (s + r) % a->n_q) - first);
                keys = most(keys, seen[r]);
            }
            if (keys == 0) continue;
            const float *rows = k + (int64_t)first * a->k_row;
            (n == 1 ? score_1 : n == 2 ? score_2 : score_3)(q + s * d, rows, a->k_row, keys, d, scores);
            for (int32_t r = 0; r < n; r++) {
                State state = state_of(record, d, s + r);
                float *line = scores + r * LINE;
                if (seen[r] <= 0) {
                    for (int32_t i = 0; i < keys; i++) line[i] = 0.0f;
                    continue;
                }
                if (a->bias) /* state s is query s % n_q of head kv n_group + s / n_q */
                    add_bias(line, AT(float, a->bias) + (int64_t)(kv * a->n_group + (s + r) / a->n_q) * a->bias_head +
                             (int64_t)((s + r) % a->n_q) * a->bias_row + first, seen[r]);
                float factor = soften(line, seen[r], ceil_div(keys, 4) * 4, state.maximum, state.total);
                if (factor != 1.0f)
                    for (int32_t j = 0; j < d; j++) state.sums[j] *= factor;
            }
            if (s == 0 && n > 1 && a->v_row == d) touch(v + (int64_t)first * d, keys * d);
            (n == 1 ? weigh_1 : n == 2 ? weigh_2 : weigh_3)(scores, v + (int64_t)first * a->v_row, a->v_row, keys, d,
                                                            state_of(record, d, s).sums, d + 2);
        }
}

/* Heads [whole, kv_heads) are cut into `ranges` ranges of `step` keys, so that all threads are busy to the end. */
typedef struct { int32_t whole, ranges, step; } Cut;
static Cut cut_for(const Context *c, int32_t kv_heads, int32_t keys) {
    int32_t rest = kv_heads % c->n_threads, ranges = 1;
    while (rest * ranges % c->n_threads && keys >= RANGE_KEYS * (ranges + 1)) ranges++;
    return (Cut){ranges > 1 ? kv_heads - rest : kv_heads, ranges, ceil_div(ceil_div(keys, ranges), 4) * 4};
}

int32_t attend_few(const attention_args *a, const Context *c, int32_t start) {
    int32_t d = a->d, states = a->n_group * a->n_q, kv_heads = a->n_head / a->n_group;
    int32_t keys = visible(a, start, a->n_q - 1);
    Cut cut = cut_for(c, kv_heads, keys);
    int64_t record_size = ceil_div(states * (d + 2), 16) * 16, own_size = record_size + (int64_t)states * d + TOGETHER * LINE;
    /* records of ranges stand in the upper half of the scratch of thread 0 until all are there */
    int64_t half = c->scratch_bytes / 8;
    if (own_size > half || (kv_heads - cut.whole) * cut.ranges * record_size > half) cut = (Cut){kv_heads, 1, keys};
    if (own_size * 4 > c->scratch_bytes) return BAD_CODE;
    float *own = c->scratch, *q = own + record_size, *scores = q + (int64_t)states * d;
    float *records = c->scratch - (int64_t)c->thread * (c->scratch_bytes / 4) + half;
    int32_t tasks = cut.whole + (kv_heads - cut.whole) * cut.ranges;
    for (int32_t task; (task = claim(1)) < tasks;) {
        if (task < cut.whole) {
            attend_range(a, task, start, 0, keys, own, q, scores);
            for (int32_t s = 0; s < states; s++) write_few(a, task, s, state_of(own, d, s).sums, *state_of(own, d, s).total);
        } else {
            int32_t part = task - cut.whole, from = part % cut.ranges * cut.step;
            attend_range(a, cut.whole + part / cut.ranges, start, from, least(from + cut.step, keys), own, q, scores);
            for (int32_t i = 0; i < record_size; i += 4) store(records + part * record_size + i, load(own + i));
        }
    }
    if (cut.whole == kv_heads) return DONE;
    int32_t status = meet(c);
    if (status) return status;
    Range mine = share(c, (kv_heads - cut.whole) * states, 1);
    const Exp2 e = exp2_from(0.0f);
    for (int32_t i = mine.from; i < mine.to; i++) {
        int32_t head = i / states, s = i % states;
        float top = NOTHING, total = 0.0f;
        for (int32_t r = 0; r < cut.ranges; r++) {
            float high = *state_of(records + (head * cut.ranges + r) * record_size, d, s).maximum;
            top = high > top ? high : top;
        }
        for (int32_t j = 0; j < d; j++) own[j] = 0.0f;
        for (int32_t r = 0; r < cut.ranges; r++) {
            State part = state_of(records + (head * cut.ranges + r) * record_size, d, s);
            if (*part.total == 0.0f) continue;
            float factor = wasm_f32x4_extract_lane(exp2_below(&e, splat(*part.maximum - top)), 0);
            total += *part.total * factor;
            for (int32_t j = 0; j < d; j++) own[j] += part.sums[j] * factor;
        }
        write_few(a, cut.whole + head, s, own, total);
    }
    return DONE;
}
