/* What the machine's multiply-add can do at most: a loop that touches only registers, 9 sums as in the 3 x 12 tile. The
 * matmul benchmark compares with it, in the same module, so that browser and machine are the same. */
#include "runtime.h"

/* 12 x 9 multiply-adds of four lanes per loop; returns something of the sums so that nothing can be left out. */
__attribute__((export_name("peak"))) float peak(const float *seed, int32_t loops) {
    vec b0 = load(seed), b1 = load(seed + 4), b2 = load(seed + 8), a = load(seed + 12);
    vec acc[9];
    for (int i = 0; i < 9; i++) acc[i] = load(seed + 16 + 4 * i);
    for (int32_t n = 0; n < loops; n++) {
        FULLY for (int i = 0; i < 12; i++) {
            FULLY for (int r = 0; r < 3; r++) {
                acc[3 * r] = madd(a, b0, acc[3 * r]);
                acc[3 * r + 1] = madd(a, b1, acc[3 * r + 1]);
                acc[3 * r + 2] = madd(a, b2, acc[3 * r + 2]);
                FIX(a); /* or, without the fused instruction, the products would be taken out of the loop */
            }
        }
    }
    vec total = acc[0];
    for (int i = 1; i < 9; i++) total = add(total, acc[i]);
    return lane_sum(total);
}
