/* What a kernel is given besides its arguments: which thread it is, how many there are, private scratch, and two ways to
 * split work: `rows_of` (equal shares, for even work) and `claim` (whoever is free takes the next piece). */
#pragma once
#include "abi.h"
#include "simd.h"

enum { DONE = 0, STOPPED = 1, FAILED = 2, BAD_CODE = 3 };

enum { MOST_THREADS = 16 };

/* Words that threads share. Each lies in its own cache line, so that waiting on one does not slow the others. */
typedef struct {
    _Alignas(64) int32_t stop;       /* written by the host: 1 a person asked, 2 a thread died; everyone leaves with it */
    _Alignas(64) int32_t arrived;    /* threads that reached the barrier */
    _Alignas(64) int32_t generation; /* barriers passed; what waiting threads look at */
    _Alignas(64) int32_t sleepers;   /* waiting threads that gave up spinning */
    _Alignas(64) int32_t next;       /* next piece of work to claim; the barrier sets it back to 0 */
    struct { _Alignas(64) int32_t taken; } stretch[MOST_THREADS]; /* pieces taken of each thread's own stretch; so too */
} Control;

extern Control shared_control;

typedef struct {
    int32_t thread, n_threads;
    float *scratch; /* this thread's; those of all threads lie behind one another, scratch_bytes each */
    int32_t scratch_bytes;
} Context;

#define DECLARE(name) int32_t kernel_##name(const name##_args *a, const Context *c);
KERNELS(DECLARE)
#undef DECLARE

/* Waits until every thread has come here; 0, or the stop word: then the caller must return it at once. */
int32_t meet(const Context *c);

INLINE int32_t add_to(int32_t *word, int32_t value) {
#ifdef __wasm_atomics__
    return __atomic_fetch_add(word, value, __ATOMIC_RELAXED);
#else
    int32_t old = *word;
    *word = old + value;
    return old;
#endif
}

INLINE int32_t claim(int32_t pieces) { return add_to(&shared_control.next, pieces); }

typedef struct { int32_t from, to; } Range;

/* This thread's share of `count` things, in whole multiples of `unit`. */
INLINE Range share(const Context *c, int32_t count, int32_t unit) {
    int64_t units = (count + (int64_t)unit - 1) / unit;
    int32_t from = (int32_t)(units * c->thread / c->n_threads) * unit;
    int32_t to = (int32_t)(units * (c->thread + 1) / c->n_threads) * unit;
    return (Range){from < count ? from : count, to < count ? to : count};
}

#define AT(type, address) ((type *)(uintptr_t)(uint32_t)(address))

INLINE int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }
INLINE int32_t most(int32_t a, int32_t b) { return a > b ? a : b; }
INLINE int32_t ceil_div(int32_t a, int32_t b) { return (a + b - 1) / b; }

/* The next of `pieces`, or `pieces` when there is none. Each thread walks a stretch of its own from the start, then helps the
 * others with theirs: what a thread reads lies in one line, as the machine fetches ahead, and threads that write next to each
 * other would slow each other down (by a third). */
INLINE int32_t claim_apart(const Context *c, int32_t pieces) {
    if (c->n_threads > MOST_THREADS) return least(claim(1), pieces);
    for (int32_t i = 0; i < c->n_threads; i++) {
        int32_t thread = (c->thread + i) % c->n_threads;
        int32_t from = (int32_t)((int64_t)pieces * thread / c->n_threads);
        int32_t to = (int32_t)((int64_t)pieces * (thread + 1) / c->n_threads);
        int32_t piece = from + add_to(&shared_control.stretch[thread].taken, 1);
        if (piece < to) return piece;
    }
    return pieces;
}

/* Reads one value of every cache line in order: the machine fetches ahead along a line, but not along a tile's many rows. */
INLINE void touch(const float *from, int32_t count) {
    for (const float *p = from; p < from + count; p += 16) {
        float value = *p;
        FIX(value);
    }
}
