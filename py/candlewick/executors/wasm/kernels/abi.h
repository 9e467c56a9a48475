/* Written by build.py from abi.py: change that table, not this file. */
#pragma once
#include <stdint.h>

#define PANEL 12
#define QPANEL 8
#define ATTENTION_PACK_MIN 16
#define KERNELS(X) X(linear) X(linear_q) X(attention) X(layer_norm) X(embedding) X(embedding_q) X(copy) X(fill) X(unary) X(binary) X(reduce) X(softmax) X(conv2d) X(depthwise) X(conv_transpose2d) X(matmul) X(window_attention) X(cast) X(rms_norm) X(rope) X(top_k) X(take)

enum { KERNEL_linear = 0, KERNEL_linear_q = 1, KERNEL_attention = 2, KERNEL_layer_norm = 3, KERNEL_embedding = 4, KERNEL_embedding_q = 5, KERNEL_copy = 6, KERNEL_fill = 7, KERNEL_unary = 8, KERNEL_binary = 9, KERNEL_reduce = 10, KERNEL_softmax = 11, KERNEL_conv2d = 12, KERNEL_depthwise = 13, KERNEL_conv_transpose2d = 14, KERNEL_matmul = 15, KERNEL_window_attention = 16, KERNEL_cast = 17, KERNEL_rms_norm = 18, KERNEL_rope = 19, KERNEL_top_k = 20, KERNEL_take = 21 };
enum { DTYPE_f32 = 0, DTYPE_f16 = 1, DTYPE_bf16 = 2, DTYPE_f64 = 3, DTYPE_q4_0 = 4, DTYPE_q4_1 = 5, DTYPE_q5_0 = 6, DTYPE_q5_1 = 7, DTYPE_q8_0 = 8, DTYPE_q2_k = 9, DTYPE_q3_k = 10, DTYPE_q4_k = 11, DTYPE_q5_k = 12, DTYPE_q6_k = 13, DTYPE_q8_1 = 14, DTYPE_q8_k = 15 };
enum { PACK_flat = 0, PACK_panels = 1 };
enum { ACTIVATION_none = 0, ACTIVATION_gelu = 1, ACTIVATION_relu = 2, ACTIVATION_silu = 3 };
enum { UNARY_gelu = 0, UNARY_relu = 1, UNARY_silu = 2, UNARY_exp = 3, UNARY_log = 4, UNARY_log10 = 5, UNARY_sqrt = 6, UNARY_square = 7, UNARY_neg = 8, UNARY_tanh = 9, UNARY_sigmoid = 10, UNARY_sin = 11, UNARY_cos = 12 };
enum { BINARY_add = 0, BINARY_sub = 1, BINARY_mul = 2, BINARY_div = 3, BINARY_maximum = 4, BINARY_minimum = 5, BINARY_swiglu = 6 };
enum { REDUCE_sum = 0, REDUCE_mean = 1, REDUCE_max = 2, REDUCE_argmax = 3, REDUCE_log_sum_exp = 4 };

typedef struct {
    int32_t x;
    int32_t ldx;
    int32_t w;
    int32_t bias;
    int32_t residual;
    int32_t ldr;
    int32_t y;
    int32_t ldy;
    int32_t m;
    int32_t n;
    int32_t k;
    int32_t w_dtype;
    int32_t activation;
    int32_t final;
    int32_t count;
} linear_args;

typedef struct {
    int32_t x;
    int32_t ldx;
    int32_t w;
    int32_t bias;
    int32_t residual;
    int32_t ldr;
    int32_t y;
    int32_t ldy;
    int32_t m;
    int32_t n;
    int32_t k;
    int32_t w_dtype;
    int32_t activation;
    int32_t final;
    int32_t count;
    int32_t scratch;
    int32_t norm;
    float eps;
    int32_t times;
} linear_q_args;

typedef struct {
    int32_t q;
    int32_t q_head;
    int32_t q_row;
    int32_t k;
    int32_t k_head;
    int32_t k_row;
    int32_t v;
    int32_t v_head;
    int32_t v_row;
    int32_t y;
    int32_t y_head;
    int32_t y_row;
    int32_t n_head;
    int32_t n_group;
    int32_t n_q;
    int32_t n_k;
    int32_t d;
    float scale;
    int32_t causal;
    int32_t start;
    int32_t scratch;
    int32_t bias;
    int32_t bias_head;
    int32_t bias_row;
} attention_args;

typedef struct {
    int32_t x;
    int32_t w;
    int32_t b;
    int32_t y;
    int32_t m;
    int32_t n;
    float eps;
} layer_norm_args;

typedef struct {
    int32_t ids;
    int32_t table;
    int32_t y;
    int32_t m;
    int32_t n;
    int32_t n_rows;
    int32_t w_dtype;
} embedding_args;

typedef struct {
    int32_t ids;
    int32_t table;
    int32_t y;
    int32_t m;
    int32_t n;
    int32_t n_rows;
    int32_t w_dtype;
} embedding_q_args;

typedef struct {
    int32_t src;
    int32_t dst;
    int32_t d0;
    int32_t d1;
    int32_t d2;
    int32_t d3;
    int32_t s0;
    int32_t s1;
    int32_t s2;
    int32_t s3;
    int32_t t0;
    int32_t t1;
    int32_t t2;
    int32_t t3;
    int32_t offset;
    int32_t offset_stride;
    int32_t offset_max;
    int32_t into_dst;
} copy_args;

typedef struct {
    int32_t dst;
    int32_t count;
    float value;
} fill_args;

typedef struct {
    int32_t op;
    int32_t x;
    int32_t y;
    int32_t count;
} unary_args;

typedef struct {
    int32_t op;
    int32_t a;
    int32_t a_outer;
    int32_t a_inner;
    int32_t b;
    int32_t b_outer;
    int32_t b_inner;
    int32_t y;
    int32_t n_outer;
    int32_t n_inner;
} binary_args;

typedef struct {
    int32_t op;
    int32_t x;
    int32_t y;
    int32_t m;
    int32_t n;
} reduce_args;

typedef struct {
    int32_t x;
    int32_t y;
    int32_t m;
    int32_t n;
    int32_t log;
} softmax_args;

typedef struct {
    int32_t x;
    int32_t batch;
    int32_t height;
    int32_t width;
    int32_t c_in;
    int32_t w;
    int32_t bias;
    int32_t residual;
    int32_t y;
    int32_t h_out;
    int32_t w_out;
    int32_t c_out;
    int32_t kh;
    int32_t kw;
    int32_t stride;
    int32_t padding;
    int32_t w_dtype;
    int32_t activation;
    int32_t final;
} conv2d_args;

typedef struct {
    int32_t x;
    int32_t batch;
    int32_t height;
    int32_t width;
    int32_t channels;
    int32_t w;
    int32_t bias;
    int32_t residual;
    int32_t y;
    int32_t h_out;
    int32_t w_out;
    int32_t taps;
    int32_t stride;
    int32_t padding;
    int32_t w_dtype;
    int32_t activation;
    int32_t final;
} depthwise_args;

typedef struct {
    int32_t x;
    int32_t batch;
    int32_t height;
    int32_t width;
    int32_t c_in;
    int32_t w;
    int32_t bias;
    int32_t y;
    int32_t c_out;
    int32_t stride;
    int32_t activation;
} conv_transpose2d_args;

typedef struct {
    int32_t a;
    int32_t a_batch;
    int32_t lda;
    int32_t b;
    int32_t b_batch;
    int32_t b_k;
    int32_t b_n;
    int32_t y;
    int32_t y_batch;
    int32_t ldy;
    int32_t batch;
    int32_t m;
    int32_t n;
    int32_t k;
} matmul_args;

typedef struct {
    int32_t qkv;
    int32_t outside;
    int32_t bias;
    int32_t y;
    int32_t batch;
    int32_t height;
    int32_t width;
    int32_t window;
    int32_t n_head;
    int32_t d;
    float scale;
} window_attention_args;

typedef struct {
    int32_t mode;
    int32_t x;
    int32_t y;
    int32_t count;
} cast_args;

typedef struct {
    int32_t x;
    int32_t ldx;
    int32_t w;
    int32_t y;
    int32_t m;
    int32_t n;
    float eps;
} rms_norm_args;

typedef struct {
    int32_t x;
    int32_t x_head;
    int32_t x_row;
    int32_t cos;
    int32_t sin;
    int32_t start;
    int32_t start_max;
    int32_t y;
    int32_t y_head;
    int32_t y_row;
    int32_t n_head;
    int32_t n;
    int32_t d;
    int32_t pairs;
} rope_args;

typedef struct {
    int32_t x;
    int32_t y;
    int32_t m;
    int32_t n;
    int32_t k;
} top_k_args;

typedef struct {
    int32_t x;
    int32_t ids;
    int32_t y;
    int32_t m;
    int32_t n;
    int32_t k;
} take_args;
