/* The instruction sets, and what their files share: numbers of other types, and the work of a thread. */
#ifndef WEDLM_SETS_H
#define WEDLM_SETS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define INLINE inline __attribute__((always_inline))
#define UNROLLED _Pragma("GCC unroll 16")
#define TILE 64       /* outputs whose sums are kept before they are written */
#define SUMS_APART 80 /* of two rows; behind the last sum of a row up to three more are written */
#define MOST_SPAN 256 /* entries that are read at once */
#define KEYS_APART (MOST_SPAN + 16)  /* of transposed keys; not a power of two, so that they do not evict each other */
#define SIZE(type) ((type) == FLOAT32 ? 4 : 2)
#define BLOCK(type) ((type) >= Q4_K ? 256 : 32)  /* weights of a block; of numbers, of a step */
#define BLOCK_BYTES(type) \
    ((type) < Q4_0 ? 32 * SIZE(type) : (type) == Q4_0 ? 18 : (type) == Q4_1 ? 20 : (type) == Q5_0 ? 22 \
        : (type) == Q5_1 ? 24 : (type) == Q8_0 ? 34 : (type) == Q4_K ? 144 : (type) == Q5_K ? 176 : 210)

/* How weights are multiplied, which says how a row of x has to lie. */
enum kind {
    FLOATS,  /* float32 with float32 */
    BLOCKS,  /* what is unpacked to float32 with float32 */
    SPLIT,   /* bfloat16 with float32: in each step first the even inputs, then the odd ones */
    PAIRS,   /* bfloat16 with bfloat16, by an instruction that multiplies pairs */
    TILES,   /* the same by tiles of 16 rows */
};

/* A product as a thread computes it. */
struct job {
    const struct product *product;
    const struct job *draft;  /* NULL, or the second product of a draft adapter, of some of the rows */
    const int *places;        /* NULL, or the rows of x that it multiplies */
    const int *draft_rows;    /* of each row, -1 where the draft adapter does not act */
    long rows, row_bytes;     /* those of an arranged row of x */
    enum type type;
    enum kind kind;
    const void *x, *added;
    void *y;
    char *arranged;  /* memory of the thread, for x as it is read */
    float *kept;     /* and for four rows of weights that are unpacked */
};

/* A task of attention: a span of entries, and rows, which are `queries` of each head that shares a head of keys. */
struct attention {
    const struct forward *forward;
    const struct states *states;
    long batch, key_head, first_query, queries, first, rows, start, end;
    long padded, row_bytes;  /* values and bytes of a row of what is read of a head */
    float *results;          /* of each row: sums, the largest score and the total of the weights */
    int transposes;          /* whether keys are transposed, for many rows */
};

static INLINE float from_bfloat16(uint16_t bits)
{
    union { uint32_t word; float value; } both = {(uint32_t)bits << 16};
    return both.value;
}

static INLINE float from_float16(uint16_t bits)
{
    union { uint32_t word; float value; } both = {(uint32_t)(bits & 0x7fff) << 13}, scale = {0x77800000};
    both.value *= scale.value;  /* 2 to the power of 112, between the exponents' biases */
    both.word |= (bits & 0x7c00) == 0x7c00 ? 0x7f800000 : 0;
    both.word |= (uint32_t)(bits & 0x8000) << 16;
    return both.value;
}

static INLINE uint16_t to_bfloat16(float value)  /* to the nearest, ties to even */
{
    union { float value; uint32_t word; } both = {value};
    return value != value ? 0x7fc0 : (both.word + 0x7fff + (both.word >> 16 & 1)) >> 16;
}

static INLINE const uint8_t *row_of(const struct weights *w, long place, long inputs)
{
    const long row = w->order ? w->order[place] : place;
    return (const uint8_t *)w->rows + row * (inputs / BLOCK(w->type) * BLOCK_BYTES(w->type));
}

static INLINE float number(enum type type, const void *values, long i)
{
    return type == BFLOAT16 ? from_bfloat16(((const uint16_t *)values)[i]) : ((const float *)values)[i];
}

static INLINE void set_number(enum type type, void *values, long i, float value)
{
    if (type == BFLOAT16)
        ((uint16_t *)values)[i] = to_bfloat16(value);
    else
        ((float *)values)[i] = value;
}

/* Completes the sums of a row: the product of a draft adapter, the bias, and what else is added. */
static INLINE void complete(
    const struct job *job, long row, long output, long count, float *sums, const float *draft_sums)
{
    const struct product *p = job->product;
    const long start = row * p->outputs * (1 + p->is_gated) + output;
    for (long i = 0; i < count && p->bias; i++)
        sums[i] += number(job->type, p->bias, output + i);
    for (long i = 0; i < count && draft_sums; i++)
        sums[i] += draft_sums[i];
    for (long i = 0; i < count && job->added; i++)
        sums[i] += number(job->type, job->added, start + i);
}

/* Computes `count` outputs from `first` on of a job, with functions for their sums, and for what becomes of them. */
#define OUTPUTS(sum, store)                                                                             \
    float sums[2][MOST_ROWS * SUMS_APART], draft_sums[MOST_ROWS * SUMS_APART];                                      \
    const struct job *draft = job->draft;                                                               \
    const int is_gated = job->product->is_gated;                                                        \
    for (long output = first; output < first + count; output += TILE) {                                 \
        const long n = first + count - output < TILE ? first + count - output : TILE;                   \
        for (int part = 0; part <= is_gated; part++) {                                                  \
            const long from = output + (part ? job->product->outputs : 0);                              \
            sum(job, from, n, sums[part]);                                                              \
            if (draft)                                                                                  \
                sum(draft, from, n, draft_sums);                                                        \
            for (long row = 0; row < job->rows; row++) {                                                \
                const float *added = draft && job->draft_rows[row] >= 0                                 \
                    ? draft_sums + job->draft_rows[row] * SUMS_APART : NULL;                                  \
                complete(job, row, from, n, sums[part] + row * SUMS_APART, added);                            \
            }                                                                                           \
        }                                                                                               \
        for (long row = 0; row < job->rows; row++)                                                      \
            store(job, row, output, n, sums[0] + row * SUMS_APART,                                      \
                  is_gated ? sums[1] + row * SUMS_APART : NULL);                                        \
    }

/* Adds the bias of a query to its scores of `count` entries from `start` on; what it does not see is -infinity. */
static INLINE void add_bias(
    enum type type, const struct forward *f, long batch, long query, long start, long count, long columns,
    float *scores)
{
    const long at = batch * f->bias_strides[0] + query * f->bias_strides[1] + start;
    const long before = f->lengths ? f->lengths[batch] : f->entries - f->queries;
    const long end = before + query + 1 - start;  /* of those that a query sees, where all are causal */
    if (f->bias_kind == SEEN)
        for (long i = 0; i < count; i++)
            scores[i] = ((const uint8_t *)f->bias)[at + i] ? scores[i] : -INFINITY;
    if (f->bias_kind == ADDED)
        for (long i = 0; i < count; i++)
            scores[i] += number(type, f->bias, at + i);
    for (long i = f->bias_kind == CAUSAL && end < count ? end < 0 ? 0 : end : count; i < columns; i++)
        scores[i] = -INFINITY;
}

#define LIST4(x, half) x(0, half), x(1, half), x(2, half), x(3, half)
#define LIST8(x, half) LIST4(x, half), x(4, half), x(5, half), x(6, half), x(7, half)
#define LIST16(x, half) \
    LIST8(x, half), x(8, half), x(9, half), x(10, half), x(11, half), x(12, half), x(13, half), x(14, half), \
        x(15, half)
#if defined(__clang__)
#define SHUFFLE(ints, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(ints, a, b, ...) __builtin_shuffle(a, b, (ints){__VA_ARGS__})
#endif

/* kernels_of_set.h is included once for each instruction set, with
 *
 *   NAME(x), TARGET            x with the set's name behind it, and the attribute of functions that use the set
 *   LANES, LIST(x, half)       the floats in a vector, and x(0, half), x(1, half), ... for all of them
 *   MOST_TOGETHER, MOST_SPLIT  the rows of x that are multiplied at once
 *   HAS_PAIRS                  whether it multiplies pairs of bfloat16
 *   HOLD(vector)               keeps a vector in a register, since it is used several times
 */
#define IN_MEMORY(array) __asm__("" : "+m"(array))  /* a vector of one number from there takes one instruction */
#if defined(__x86_64__)
#define HOLD(vector) __asm__("" : "+v"(vector))

#define NAME(x) x##_avx512
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c,fma")))
#define LANES 16
#define LIST LIST16
#define MOST_TOGETHER 6
#define MOST_SPLIT 5
#include "kernels_of_set.h"

#define NAME(x) x##_avx512bf16
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,f16c,fma")))
#define LANES 16
#define LIST LIST16
#define MOST_TOGETHER 6
#define MOST_SPLIT 5
#define HAS_PAIRS 1
#include "kernels_of_set.h"

#define NAME(x) x##_avx2
#define TARGET __attribute__((target("avx2,f16c,fma")))
#define LANES 8
#define LIST LIST8
#define MOST_TOGETHER 2
#define MOST_SPLIT 2
#include "kernels_of_set.h"

#include "amx.h"
#undef HOLD
#endif

/* The vectors of the compiler's own target: NEON on ARM. */
#define NAME(x) x##_plain
#define TARGET
#define LANES 4
#define LIST LIST4
#if defined(__aarch64__)
#define MOST_TOGETHER 6
#define MOST_SPLIT 5
#define HOLD(vector) __asm__("" : "+w"(vector))
#else
#define MOST_TOGETHER 2
#define MOST_SPLIT 2
#define HOLD(vector)
#endif
#include "kernels_of_set.h"

#endif
