/* The instruction loop: every thread walks the same list and meets the others after each instruction. */
#include "runtime.h"

Control shared_control;

/* Everything to claim is there again; only one thread does this, while the others wait. */
static void offer_again(int32_t n_threads) {
    shared_control.next = 0;
    for (int32_t i = 0; i < least(n_threads, MOST_THREADS); i++) shared_control.stretch[i].taken = 0;
}

#ifdef __wasm_atomics__
/* About 70 microseconds of looking before sleeping. Waking a sleeper takes some 30, in which the others reach the next barrier
 * and fall asleep there if they look for less than that: then all threads sleep at every barrier, for good, and small kernels
 * take two to four times as long. A sleeper looks at the stop word every 20 ms, so a dead thread never hangs the rest. */
enum { SPINS = 100000 };
#define LOOK(word) __atomic_load_n(&shared_control.word, __ATOMIC_SEQ_CST)

int32_t meet(const Context *c) {
    if (c->n_threads == 1) {
        offer_again(1);
        return LOOK(stop);
    }
    int32_t stop = LOOK(stop);
    if (stop) return stop;
    int32_t generation = LOOK(generation);
    if (__atomic_fetch_add(&shared_control.arrived, 1, __ATOMIC_SEQ_CST) == c->n_threads - 1) {
        __atomic_store_n(&shared_control.arrived, 0, __ATOMIC_SEQ_CST);
        offer_again(c->n_threads);
        __atomic_store_n(&shared_control.generation, generation + 1, __ATOMIC_SEQ_CST);
        if (LOOK(sleepers)) __builtin_wasm_memory_atomic_notify(&shared_control.generation, 0x7fffffff);
        return LOOK(stop);
    }
    for (int32_t i = 0; i < SPINS; i++)
        if (LOOK(generation) != generation) return LOOK(stop);
    __atomic_fetch_add(&shared_control.sleepers, 1, __ATOMIC_SEQ_CST);
    while (LOOK(generation) == generation && !(stop = LOOK(stop)))
        __builtin_wasm_memory_atomic_wait32(&shared_control.generation, generation, 20 * 1000 * 1000);
    __atomic_fetch_sub(&shared_control.sleepers, 1, __ATOMIC_SEQ_CST);
    return LOOK(stop);
}

static void fail(void) {
    int32_t go = 0;
    __atomic_compare_exchange_n(&shared_control.stop, &go, FAILED, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}
#else
int32_t meet(const Context *c) {
    offer_again(c->n_threads);
    return *(volatile int32_t *)&shared_control.stop;
}
static void fail(void) { shared_control.stop = FAILED; }
#endif

/* Called on one thread before the others are woken: forgets what a stopped or failed run left in the barrier. */
__attribute__((export_name("begin"))) void begin(void) {
    shared_control.arrived = 0;
    shared_control.sleepers = 0;
    offer_again(MOST_THREADS);
}

__attribute__((export_name("control"))) void *control(void) { return &shared_control; }

static int32_t dispatch(int32_t kernel, const void *args, const Context *c) {
    switch (kernel) {
#define CASE(name) case KERNEL_##name: return kernel_##name(args, c);
        KERNELS(CASE)
#undef CASE
    }
    return BAD_CODE;
}

/* Runs the instructions in [code, code_end). 0 done, 1 stopped, 2 a thread failed, 3 bad code. */
__attribute__((export_name("run"))) int32_t run(int32_t thread, int32_t n_threads, const int32_t *code,
                                                const int32_t *code_end, float *scratch, int32_t scratch_bytes) {
    const Context c = {thread, n_threads, scratch, scratch_bytes};
    while (code < code_end) {
        int32_t words = code[1];
        int32_t status = words < 2 || words > code_end - code ? BAD_CODE : dispatch(code[0], code + 2, &c);
        if (status == BAD_CODE) fail();
        if (status) return status;
        status = meet(&c);
        if (status) return status;
        code += words;
    }
    return DONE;
}
