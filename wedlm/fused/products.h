/* Products of a few rows with rows of weights, by one instruction set; see sets.h and vectors.h.
 *
 * Each weight is read once, as it lies in memory, and multiplied with all rows. Four rows of weights and up to ROWS
 * rows of x are multiplied at once, in registers. The sums of a row do not depend on the rows beside it.
 */

#define ROWS(kind) ((kind) == SPLIT ? MOST_SPLIT : MOST_TOGETHER)
#define STEP(kind) ((kind) == SPLIT || (kind) == PAIRS ? 2 * LANES : LANES)  /* inputs that are multiplied at once */
#define WEIGHT_BYTES (4 * LANES)                                             /* that a step reads */
#define INPUT_BYTES(kind) ((kind) == SPLIT ? 8 * LANES : 4 * LANES)
#define AHEAD 2  /* by how many groups of four rows the weights are fetched before they are multiplied */

/* Adds the products of pairs of bfloat16. */
static INLINE TARGET NAME(floats) NAME(paired)(NAME(floats) sums, NAME(floats) w, NAME(floats) x)
{
#if HAS_PAIRS
    return (NAME(floats))_mm512_dpbf16_ps((__m512)sums, (__m512bh)w, (__m512bh)x);
#else
    (void)w, (void)x;
    return sums;
#endif
}

/* Adds the products of a step: sums[row * 4 + o] of row `row` with weights w[o]. */
static INLINE TARGET void NAME(step)(
    enum kind kind, int rows, const char *const *w, const char *x, long row_bytes, NAME(floats) *sums)
{
    NAME(floats) weights[4];
    for (int part = 0; part < (kind == SPLIT ? 2 : 1); part++) {
        for (int o = 0; o < 4; o++) {
            const NAME(words) words = *(const NAME(words) *)w[o];
            weights[o] = kind != SPLIT ? (NAME(floats))words : part ? ODD(words) : EVEN(words);
        }
        for (int row = 0; row < rows; row++) {
            NAME(floats) input = *(const NAME(floats) *)(x + row * row_bytes + part * 4 * LANES);
            NAME(floats) *sum = sums + row * 4;
            HOLD(input);
            for (int o = 0; o < 4; o++)
                sum[o] = kind == PAIRS ? NAME(paired)(sum[o], weights[o], input)
                    : (NAME(floats))(sum[o] + weights[o] * input);
        }
    }
}

/* out[row * out_stride + o * apart] = the totals of sums[row * 4 + o]. */
static INLINE TARGET void NAME(add_up)(int rows, NAME(floats) *sums, float *out, long out_stride, long apart)
{
    UNROLLED
    for (int i = 0; i < 4 * rows; i += LANES) {  /* row after row, the totals of its outputs */
        const int count = 4 * rows - i < LANES ? 4 * rows - i : LANES;
        const NAME(floats) totals = NAME(totals)(count, sums + i);
        UNROLLED
        for (int j = 0; j < count; j++)
            out[(i + j) / 4 * out_stride + j % 4 * apart] = ((const float *)&totals)[j];
    }
}

/* The products of `rows` rows of x with four rows of `inputs` weights: out[row * out_stride + o * apart]. Each step
 * fetches `pace` bytes of those `later` bytes behind, into the second cache: x and the weights in use fill the first.
 */
static INLINE TARGET void NAME(block)(
    enum kind kind, int rows, const char *const *weights, long later, long pace, long inputs, const char *x,
    long row_bytes, float *out, long out_stride, long apart)
{
    NAME(floats) sums[4 * MOST_TOGETHER] = {0};
    const char *w[4] = {weights[0], weights[1], weights[2], weights[3]};
    const long steps = inputs / STEP(kind), rest = inputs % STEP(kind) * WEIGHT_BYTES / STEP(kind);
    for (long k = 0; k < steps; k++) {
        for (int o = 0; o < 4; o++)
            __builtin_prefetch(weights[o] + later + k * pace, 0, 2);
        NAME(step)(kind, rows, w, x, row_bytes, sums);
        for (int o = 0; o < 4; o++)
            w[o] += WEIGHT_BYTES;
        x += INPUT_BYTES(kind);
    }
    if (rest) {
        char padded[4][LANES * 4] = {0};
        const char *from[4];
        for (int o = 0; o < 4; o++)
            from[o] = memcpy(padded[o], w[o], rest);
        NAME(step)(kind, rows, from, x, row_bytes, sums);
    }
    NAME(add_up)(rows, sums, out, out_stride, apart);
}

/* out[row * out_stride + i] = the product of row `row` of x with weights `first` + i, of which there are `count`;
 * behind weights `last` stand those of `last` again, and up to three more are written.
 *
 * The four rows of weights that are multiplied at once are a quarter of all apart, so that each is read in order. Each
 * block of rows of x fetches its share of those AHEAD; behind the last ones they are the first of the next piece.
 */
static INLINE TARGET void NAME(dots)(
    enum kind kind, const char *weights, long stride, long inputs, long first, long count, long last,
    long rows, const char *x, long row_bytes, float *out, long out_stride)
{
    const long blocks = (rows + ROWS(kind) - 1) / ROWS(kind), apart = (count + 3) / 4;
    const long pace = (WEIGHT_BYTES + blocks - 1) / blocks, bytes = inputs / STEP(kind) * WEIGHT_BYTES;
    for (long i = 0; i < apart; i++) {
        const long ahead = (AHEAD + (i + AHEAD < apart ? 0 : count - apart)) * stride;
        const char *w[4];
        for (int o = 0; o < 4; o++)
            w[o] = weights + (first + i + o * apart < last ? first + i + o * apart : last) * stride;
        for (long b = 0; b < blocks; b++) {
            const long row = rows * b / blocks, later = ahead + bytes * b / blocks;
#define CASE(n) \
    case n: \
        NAME(block)(kind, n, w, later, pace, inputs, x + row * row_bytes, row_bytes, \
                    out + row * out_stride + i, out_stride, apart); \
        break;
            switch (rows * (b + 1) / blocks - row) {
            CASES
            }
#undef CASE
        }
    }
}

/* Rounds to bfloat16, in the upper half of each word. */
static INLINE TARGET NAME(words) NAME(rounded)(NAME(floats) values)
{
    const NAME(words) words = (NAME(words))values, is_nan = (NAME(words))(values != values);
    return ((words + 0x7fff + (words >> 16 & 1)) & ~is_nan) | (0x7fc00000 & is_nan);
}

/* Reads the values of a step, of which there are `count`, as one or two vectors of floats; behind them are zeros. */
static INLINE TARGET void NAME(load)(
    enum kind kind, enum type type, const char *values, long count, NAME(floats) *to)
{
    char padded[LANES * 4] = {0};
    if (count < STEP(kind))
        values = memcpy(padded, values, count * SIZE(type));
    if (kind == FLOATS && type == BFLOAT16) {
        to[0] = (NAME(floats))(__builtin_convertvector(*(const NAME(halves) *)values, NAME(words)) << 16);
        return;
    }
    const NAME(words) words = *(const NAME(words) *)values;
    to[0] = type == BFLOAT16 ? EVEN(words) : (NAME(floats))words;
    if (type == BFLOAT16)
        to[1] = ODD(words);
}

/* Writes what `load` has read, in the order in which products read it. */
static INLINE TARGET void NAME(put)(enum kind kind, const NAME(floats) *values, char *to)
{
    if (kind == PAIRS)
        *(NAME(words) *)to = NAME(rounded)(values[0]) >> 16 | (NAME(rounded)(values[1]) & 0xffff0000u);
    else
        memcpy(to, values, STEP(kind) / LANES * sizeof *values);
}

/* Copies a row of x as the products read it, normalised if there are weights for that. */
static INLINE TARGET void NAME(arrange_row)(
    enum kind kind, enum type type, const char *x, long inputs, const char *norm, float epsilon, char *to)
{
    const int parts = STEP(kind) / LANES, size = SIZE(type);
    NAME(floats) squares = {0}, values[2], weights[2] = {{0}};
    float factor = 1;
    for (long k = 0; k < inputs && norm; k += STEP(kind)) {
        NAME(load)(kind, type, x + k * size, inputs - k, values);
        for (int part = 0; part < parts; part++)
            squares += values[part] * values[part];
    }
    if (norm)
        factor = 1 / sqrtf(NAME(totals)(1, &squares)[0] / inputs + epsilon);
    for (long k = 0; k < inputs; k += STEP(kind), to += INPUT_BYTES(kind)) {
        NAME(load)(kind, type, x + k * size, inputs - k, values);
        if (norm)
            NAME(load)(kind, type, norm + k * size, inputs - k, weights);
        for (int part = 0; part < parts && norm; part++)
            values[part] *= factor * weights[part];
        NAME(put)(kind, values, to);
    }
}

static TARGET void NAME(arrange)(const struct job *job, char *arranged)
{
    const struct product *p = job->product;
    for (long row = 0; row < job->rows; row++) {
        const char *x = (const char *)job->x + (job->places ? job->places[row] : row) * p->inputs * SIZE(job->type);
        char *to = arranged + row * job->row_bytes;
        switch (job->kind) {
        case FLOATS: NAME(arrange_row)(FLOATS, FLOAT32, x, p->inputs, p->norm, p->epsilon, to); break;
        case SPLIT: NAME(arrange_row)(SPLIT, BFLOAT16, x, p->inputs, p->norm, p->epsilon, to); break;
        case PAIRS: NAME(arrange_row)(PAIRS, BFLOAT16, x, p->inputs, p->norm, p->epsilon, to); break;
        case BLOCKS:
            if (job->type == BFLOAT16)
                NAME(arrange_row)(FLOATS, BFLOAT16, x, p->inputs, p->norm, p->epsilon, to);
            else
                NAME(arrange_row)(FLOATS, FLOAT32, x, p->inputs, p->norm, p->epsilon, to);
            break;
        case TILES: break;
        }
    }
}

#if HAS_PAIRS  /* weights in blocks are multiplied as floats */
#define sum_of_blocks_avx512bf16 sum_of_blocks_avx512
#else
#include "blocks.h"
#endif

/* silu(gate) * up */
static INLINE TARGET NAME(floats) NAME(gated)(NAME(floats) gate, NAME(floats) up)
{
    const NAME(ints) is_below = gate < 0, one = (NAME(ints))((NAME(floats)){0} + 1);
    const NAME(floats) small = NAME(exponentials)((NAME(floats))((NAME(ints))gate | INT32_MIN));  /* of -|gate| */
    const NAME(floats) share = (NAME(floats))(((NAME(ints))small & is_below) | (one & ~is_below));
    return gate * (share / (1 + small)) * up;
}

/* Writes sums as outputs of a row, with `gates` those of a gated product. Of both, whole vectors are read. */
static INLINE TARGET void NAME(store)(
    const struct job *job, long row, long output, long count, const float *gates, const float *sums)
{
    char *to = (char *)job->y + (row * job->product->outputs + output) * SIZE(job->type);
    for (long i = 0; i < count; i += LANES) {
        NAME(floats) values = *(const NAME(floats) *)(gates + i);
        if (sums)
            values = NAME(gated)(values, *(const NAME(floats) *)(sums + i));
        if (count - i >= LANES && job->type == BFLOAT16)
            *(NAME(halves) *)(to + i * 2) = __builtin_convertvector(NAME(rounded)(values) >> 16, NAME(halves));
        else if (count - i >= LANES)
            *(NAME(floats) *)(to + i * 4) = values;
        else
            for (long j = 0; j < count - i; j++)
                set_number(job->type, to, i + j, ((const float *)&values)[j]);
    }
}

/* sums[row * SUMS_APART + i] = the product of row `row` with weights `first` + i, for up to TILE of them. */
static TARGET void NAME(sum)(const struct job *job, long first, long count, float *sums)
{
    const struct product *p = job->product;
    const long stride = p->inputs * SIZE(p->weights->type);
#define DOTS(kind) \
    NAME(dots)(kind, p->weights->rows, stride, p->inputs, first, count, first + count - 1, job->rows, \
               job->arranged, job->row_bytes, sums, SUMS_APART)
    switch (job->kind) {
    case FLOATS: DOTS(FLOATS); break;
    case SPLIT: DOTS(SPLIT); break;
    case PAIRS: DOTS(PAIRS); break;
    case BLOCKS: NAME(sum_of_blocks)(job, first, count, sums); break;
    case TILES: break;
    }
#undef DOTS
}

static TARGET void NAME(outputs)(const struct job *job, long first, long count)
{
    OUTPUTS(NAME(sum), NAME(store))
}

static INLINE TARGET void NAME(gate_row)(enum kind kind, enum type type, const char *x, long width, char *to)
{
    const long size = SIZE(type);
    NAME(floats) gates[2], ups[2];
    for (long i = 0; i < width; i += STEP(kind)) {
        NAME(load)(kind, type, x + i * size, width - i, gates);
        NAME(load)(kind, type, x + (width + i) * size, width - i, ups);
        for (int part = 0; part < STEP(kind) / LANES; part++)
            gates[part] = NAME(gated)(gates[part], ups[part]);
        NAME(put)(kind, gates, to + i * size);
    }
}

/* A row of what a product reads, normalised, or of what it has given, gated. */
static TARGET void NAME(row)(const struct job *job, long row)
{
    const struct product *p = job->product;
    const long size = p->inputs * SIZE(job->type);
    const char *x = (const char *)job->x + row * size * (1 + p->is_gated);
    char *y = (char *)job->y + row * size;
    if (p->is_gated && job->type == BFLOAT16)
        NAME(gate_row)(PAIRS, BFLOAT16, x, p->inputs, y);
    else if (p->is_gated)
        NAME(gate_row)(FLOATS, FLOAT32, x, p->inputs, y);
    else if (job->type == BFLOAT16)
        NAME(arrange_row)(PAIRS, BFLOAT16, x, p->inputs, p->norm, p->epsilon, y);
    else
        NAME(arrange_row)(FLOATS, FLOAT32, x, p->inputs, p->norm, p->epsilon, y);
}
