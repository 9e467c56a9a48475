/* mode 0: float32 -> int32, towards zero and saturating, NaN -> 0; mode 1: int32 -> float32. */
#include "runtime.h"

int32_t kernel_cast(const cast_args *a, const Context *c) {
    Range part = share(c, a->count, 64);
    if (a->mode == 0)
        for (int32_t i = part.from; i < part.to; i++) {
            vec v = wasm_i32x4_trunc_sat_f32x4(load_splat(AT(float, a->x) + i));
            AT(int32_t, a->y)[i] = wasm_i32x4_extract_lane(v, 0);
        }
    else
        for (int32_t i = part.from; i < part.to; i++) AT(float, a->y)[i] = (float)AT(int32_t, a->x)[i];
    return DONE;
}
