/* What the files in C share. Python fills the structs by name (native.py has the same fields in the same order). */
#ifndef WEDLM_KERNELS_H
#define WEDLM_KERNELS_H

#include <stdint.h>

#define MOST_ROWS 64  /* of products: more are left to torch, and only what is between them is done here */
#define MOST_WIDTH 256  /* values of a head */

/* Those of weights in blocks are GGUF's. */
enum type { FLOAT32, BFLOAT16, NO_WEIGHTS, FLOAT16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K };
enum bias_kind { CAUSAL, SEEN, ADDED };  /* a bias says which entries are seen, or what is added to their scores */
enum stage { PROJECT = 1, STORE = 2, ATTEND = 4, COMPLETE = 8, ROTATE = 16 };

/* Some rows of weights. */
struct weights {
    const void *rows;
    const int32_t *order;  /* NULL, or which of the rows comes at each place */
    int64_t count;
    int32_t type;
};

/* y = x W^T, with an RMS norm of x before it and silu(first half) * second half behind it, if it is gated. */
struct product {
    struct weights weights[3];  /* one below the other: [outputs, inputs], or twice as many outputs if it is gated */
    const void *bias;     /* NULL, or what is added to y; as norm, of the type of x */
    const void *norm;     /* NULL, or the weights of the norm */
    const struct product *down, *up;  /* NULL, or the products of a draft adapter, one behind the other */
    int64_t inputs, outputs;
    int32_t is_gated;
    float epsilon;  /* of the norm */
};

/* A product of some rows. With NO_WEIGHTS, y is x normalised; if it is gated, x is [rows, 2 * outputs] and y is
 * silu(first half) * second half.
 */
struct multiplication {
    const struct product *product;
    const void *x, *added;   /* [rows, inputs]; NULL or [rows, outputs], twice as many if it is gated */
    void *y;                 /* [rows, outputs] */
    const uint8_t *is_text;  /* [rows]; a draft adapter acts in the others */
    int64_t rows;
    int32_t type;  /* of x, added and y */
    int32_t threads, set;
};

/* Rows of weights as numbers of another type: those at `places`, or as many from `first` on. */
struct unpacking {
    const struct weights *weights;
    const int64_t *places;
    void *to;  /* [rows, inputs] */
    int64_t first, rows, inputs;
    int32_t type;  /* FLOAT32 or BFLOAT16 */
    int32_t threads, set;
};

struct layer {
    struct product query_key_value, output, gate_up, down;
    const void *query_norm, *key_norm;  /* NULL, or the weights of RMS norms of each head */
    float query_epsilon, key_epsilon;
};

/* The keys and values of a layer: of batch row, head and entry. */
struct states {
    void *keys, *values;
};

/* What decoder layers do with some rows, which are `queries` of each row of a batch. */
struct forward {
    const struct layer *layers;
    const struct states *states;       /* of each layer; NULL: the queries are the only entries */
    void *hidden;                      /* [rows, inputs of the layers], input and output */
    void *heads;                       /* NULL, or [rows, heads + 2 * key_heads, width]: what PROJECT writes */
    void *attended;                    /* NULL, or [rows, heads, width]: what ATTEND writes and COMPLETE reads */
    const void *cosines, *sines;       /* [batch, queries, width] */
    const uint8_t *is_text;            /* NULL, or [rows] */
    const int64_t *lengths;            /* NULL, or [batch]: entries of each row before its queries */
    const void *bias;                  /* [batch, queries, entries] */
    int64_t bias_strides[2];           /* of batch row and query; like all strides, counted in values */
    int64_t key_strides[3], value_strides[3];  /* of batch row, head and entry */
    int64_t angle_stride;              /* of cosines and sines: of a batch row */
    int64_t num_layers, batch, queries, entries;
    int64_t num_heads, num_key_heads, width;
    int32_t type;  /* of all values */
    int32_t bias_kind, stages, threads, set;
    float scaling;
};

const char *set_name(int set);  /* of an instruction set that this CPU has; "" of another, NULL behind the last */
void find_threads(void);        /* at first: those of the OpenMP library that torch has loaded */
int multiply(const void *multiplication);  /* 0: there is no memory */
int forward(const void *forward);
int unpack(const void *unpacking);      /* -1: one of its places is no row */

#endif
