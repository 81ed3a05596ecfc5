/* The part of product.c that differs by instruction set. product.c includes it once for each, with
 *
 *   NAME(x)          x, with the name of the instruction set behind it
 *   TARGET           the attribute that lets a function use the instruction set
 *   LANES            the floats in a vector
 *   LIST(x, half)    x(0, half), x(1, half), ... for all lanes
 *   WIDEN(bytes)     a vector of floats from signed bytes
 */

typedef float NAME(floats) __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef uint32_t NAME(words) __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t NAME(ints) __attribute__((vector_size(LANES * 4)));

#define ROWS (LANES / OUTPUTS)                    /* that are multiplied at once: a vector holds their totals */
#define STEP (LANES * (type == BFLOAT16 ? 2 : 1)) /* inputs; of bfloat16 a word holds two, which become two vectors */
#define INPUT_BYTES (STEP * 4)

/* Adds the products of one step. */
static INLINE TARGET void NAME(multiply)(enum type type, int rows, NAME(floats) *sums, const char *x, const char *const *w)
{
    NAME(floats) weights[OUTPUTS], odd[OUTPUTS];
    for (int o = 0; o < OUTPUTS; o++) {
        const NAME(words) words = type == INT8 ? (NAME(words)){0} : *(const NAME(words) *)w[o];
        weights[o] = type == INT8 ? (NAME(floats))WIDEN(w[o]) : (NAME(floats))(type == BFLOAT16 ? words << 16 : words);
        odd[o] = (NAME(floats))(words & 0xffff0000u);
    }
    for (int row = 0; row < rows; row++) {
        const NAME(floats) *inputs = (const NAME(floats) *)(x + row * INPUT_BYTES);
        for (int part = 0; part < (type == BFLOAT16 ? 2 : 1); part++) {
            NAME(floats) input = inputs[part];
            HOLD(input);
            for (int o = 0; o < OUTPUTS; o++)
                sums[row * OUTPUTS + o] += (part ? odd : weights)[o] * input;
        }
    }
}

/* Folds each vector in half, two of them into one, until the total of vector i is in lane i. How a vector is added up
 * does not depend on the others.
 */
static INLINE TARGET NAME(floats) NAME(totals)(int count, NAME(floats) *sums)
{
#define LOW(i, half) ((i) < LANES / 2 ? 0 : LANES) + (i) % (LANES / 2) / (half) * 2 * (half) + (i) % (half)
#define HIGH(i, half) LOW(i, half) + (half)
#define FOLD(half)                                                                                   \
    for (int i = 0; i < count; i += 2) {                                                             \
        const NAME(floats) a = sums[i], b = sums[i + 1 < count ? i + 1 : i];                         \
        sums[i / 2] = SHUFFLE(NAME(ints), a, b, LIST(LOW, half)) + SHUFFLE(NAME(ints), a, b, LIST(HIGH, half)); \
    }                                                                                                \
    count = (count + 1) / 2;
#if LANES == 16
    FOLD(8)
#endif
#if LANES >= 8
    FOLD(4)
#endif
    FOLD(2)
    FOLD(1)
    return sums[0];
}

/* Reads the values of one step, of which there are `count`, as floats; behind them are zeros. */
static INLINE TARGET void NAME(load)(enum type type, int is_bfloat16, const void *values, long count, NAME(floats) *to)
{
    char padded[LANES * 4] = {0};
    if (count < STEP)
        values = memcpy(padded, values, count * (is_bfloat16 ? 2 : 4));
    if (is_bfloat16 && type != BFLOAT16) {
        for (int i = 0; i < LANES; i++)
            ((float *)to)[i] = from_bfloat16(((const uint16_t *)values)[i]);
        return;
    }
    const NAME(words) words = *(const NAME(words) *)values;
    to[0] = (NAME(floats))(type == BFLOAT16 ? words << 16 : words);
    if (type == BFLOAT16)
        to[1] = (NAME(floats))(words & 0xffff0000u);
}

/* Copies the rows of the input as floats in the order in which they are read: step after step, in each all rows. */
static INLINE TARGET void NAME(arrange)(enum type type, const struct job *job, char *arranged)
{
    const int parts = INPUT_BYTES / LANES / 4;
    const long size = job->is_bfloat16 ? 2 : 4;
    for (long row = 0; row < job->rows; row++) {
        NAME(floats) squares = {0}, weights[2];
        for (long k = 0; k < job->inputs; k += STEP) {
            NAME(floats) *to = (NAME(floats) *)(arranged + (k / STEP * job->rows + row) * INPUT_BYTES);
            NAME(load)(type, job->is_bfloat16, (const char *)job->x + (job->places[row] * job->inputs + k) * size, job->inputs - k, to);
            for (int part = 0; part < parts; part++)
                squares += to[part] * to[part];
        }
        if (!job->norm)
            continue;
        const float factor = 1 / sqrtf(NAME(totals)(1, &squares)[0] / job->inputs + job->epsilon);
        for (long k = 0; k < job->inputs; k += STEP) {
            NAME(floats) *to = (NAME(floats) *)(arranged + (k / STEP * job->rows + row) * INPUT_BYTES);
            NAME(load)(type, job->is_bfloat16, (const char *)job->norm + k * size, job->inputs - k, weights);
            for (int part = 0; part < parts; part++)
                to[part] *= factor * weights[part];
        }
    }
}

/* Multiplies `rows` rows of the input with OUTPUTS rows of the weights, but with none behind the last. */
static INLINE TARGET void NAME(block)(enum type type, int rows, const struct job *job, long row, long output, long last, float *out)
{
    const long row_bytes = job->inputs * SIZE(type), step_bytes = STEP * SIZE(type), rest = row_bytes % step_bytes;
    const char *x = job->arranged + row * INPUT_BYTES, *w[OUTPUTS];
    NAME(floats) sums[LANES] = {0};
    for (int o = 0; o < OUTPUTS; o++)
        w[o] = (const char *)job->weights + (output + o < last ? output + o : last) * row_bytes;
    if (rest) {
        char padded[OUTPUTS][LANES * 4] = {0};
        const char *from[OUTPUTS];
        for (int o = 0; o < OUTPUTS; o++)
            from[o] = memcpy(padded[o], w[o] + row_bytes - rest, rest);
        NAME(multiply)(type, rows, sums, x + row_bytes / step_bytes * job->rows * INPUT_BYTES, from);
    }
    for (long k = 0; k < row_bytes / step_bytes; k++) {
        for (int o = 0; o < OUTPUTS; o++) {
            __builtin_prefetch(w[o] + 512, 0, 3);
            if (row == 0)
                __builtin_prefetch(w[o] + OUTPUTS * row_bytes, 0, 2);  /* what the next call reads */
        }
        NAME(multiply)(type, rows, sums, x, w);
        x += job->rows * INPUT_BYTES;
        for (int o = 0; o < OUTPUTS; o++)
            w[o] += step_bytes;
    }
    NAME(floats) totals = NAME(totals)(rows * OUTPUTS, sums);
    for (int r = 0; r < rows; r++)
        memcpy(out + r * TILE, (float *)&totals + r * OUTPUTS, OUTPUTS * 4);
}

/* out[row * TILE + i] = the sum of row `row` and output `output` + i, for all rows and up to TILE outputs. */
static INLINE TARGET void NAME(tile)(enum type type, const struct job *job, long output, long count, float *out)
{
    const long last = output + count - 1;
    for (long row = 0; row < job->rows; row += ROWS)  /* whose inputs stay in the nearest cache */
        for (long o = 0; o < count; o += OUTPUTS) {
            float *to = out + row * TILE + o;
#define CASE(n) case n: NAME(block)(type, n, job, row, output + o, last, to); break;
            switch (job->rows - row) {
            CASE(1)
#if LANES >= 8
            CASE(2) CASE(3)
#endif
#if LANES == 16
            CASE(4) CASE(5) CASE(6) CASE(7)
#endif
            default: NAME(block)(type, ROWS, job, row, output + o, last, to);
            }
#undef CASE
        }
}

static INLINE TARGET void NAME(sum)(const struct job *job, long output, long count, float *out)
{
    switch (job->type) {
    case FLOAT32: NAME(tile)(FLOAT32, job, output, count, out); break;
    case BFLOAT16: NAME(tile)(BFLOAT16, job, output, count, out); break;
    case INT8: NAME(tile)(INT8, job, output, count, out); break;
    }
}

static TARGET void NAME(share)(const struct job *job, long first, long last)
{
    SHARE(NAME(sum))
}

static TARGET void NAME(prepare)(const struct job *job, char *arranged)
{
    switch (job->type) {
    case FLOAT32: NAME(arrange)(FLOAT32, job, arranged); break;
    case BFLOAT16: NAME(arrange)(BFLOAT16, job, arranged); break;
    case INT8: NAME(arrange)(INT8, job, arranged); break;
    }
}

#undef NAME
#undef TARGET
#undef LANES
#undef LIST
#undef WIDEN
#undef ROWS
#undef STEP
#undef INPUT_BYTES
#undef LOW
#undef HIGH
#undef FOLD
