/* One row of rms_norm, for its own kernel and for products that normalise what they read. y may be x. */
#pragma once
#include "runtime.h"

void rms_norm_row(const float *x, const float *w, float *y, int32_t n, float eps);
