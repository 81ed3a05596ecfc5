/* The part of product.c that differs by instruction set. product.c includes it once for each, with
 *
 *   NAME(x)          x, with the name of the instruction set behind it
 *   TARGET           the attribute that lets a function use the instruction set
 *   LANES            the floats in a vector
 *   LIST(x, half)    x(0, half), x(1, half), ... for all lanes
 *   WIDEN(bytes)     a vector of floats from signed bytes
 */

typedef float NAME(floats) __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef uint32_t NAME(words) __attribute__((vector_size(LANES * 4), aligned(1), may_alias));  /* those of bfloat16 lie at even addresses */
typedef int32_t NAME(ints) __attribute__((vector_size(LANES * 4)));

#define ROWS (LANES / OUTPUTS)                    /* that are multiplied at once: a vector holds their totals */
#define STEP (LANES * (type == BFLOAT16 ? 2 : 1)) /* inputs; of bfloat16 a word holds two, which become two vectors */
#define INPUT_BYTES (STEP * 4)

/* Adds the products of one step. */
static INLINE TARGET void NAME(multiply)(enum type type, int rows, int outputs, NAME(floats) *sums, const char *x, const char *const *w)
{
    NAME(floats) weights[OUTPUTS], odd[OUTPUTS];
    for (int o = 0; o < outputs; o++) {
        const NAME(words) words = type == INT8 ? (NAME(words)){0} : *(const NAME(words) *)w[o];
        weights[o] = type == INT8 ? (NAME(floats))WIDEN(w[o]) : (NAME(floats))(type == BFLOAT16 ? words << 16 : words);
        odd[o] = (NAME(floats))(words & 0xffff0000u);
    }
    for (int row = 0; row < rows; row++) {
        const NAME(floats) *inputs = (const NAME(floats) *)(x + row * INPUT_BYTES);
        for (int part = 0; part < (type == BFLOAT16 ? 2 : 1); part++) {
            NAME(floats) input = inputs[part];
            HOLD(input);
            for (int o = 0; o < outputs; o++)
                sums[row * outputs + o] += (part ? odd : weights)[o] * input;
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

/* Multiplies `rows` rows of the input with `outputs` rows of the weights, but with none behind the last. */
static INLINE TARGET void NAME(block)(enum type type, int rows, int outputs, const struct job *job, long row, long output, long last, float *out)
{
    const long row_bytes = job->inputs * SIZE(type), step_bytes = STEP * SIZE(type), rest = row_bytes % step_bytes;
    const char *x = job->arranged + row * INPUT_BYTES, *w[OUTPUTS];
    NAME(floats) sums[LANES] = {0};
    for (int o = 0; o < outputs; o++)
        w[o] = (const char *)job->weights + (output + o < last ? output + o : last) * row_bytes;
    if (rest) {
        char padded[OUTPUTS][LANES * 4] = {0};
        const char *from[OUTPUTS];
        for (int o = 0; o < outputs; o++)
            from[o] = memcpy(padded[o], w[o] + row_bytes - rest, rest);
        NAME(multiply)(type, rows, outputs, sums, x + row_bytes / step_bytes * job->rows * INPUT_BYTES, from);
    }
    for (long k = 0; k < row_bytes / step_bytes; k++) {
        for (int o = 0; o < outputs; o++) {
            __builtin_prefetch(w[o] + 512, 0, 3);
            if (row == 0)
                __builtin_prefetch(w[o] + outputs * row_bytes, 0, 2);  /* what the next call reads */
        }
        NAME(multiply)(type, rows, outputs, sums, x, w);
        x += job->rows * INPUT_BYTES;
        for (int o = 0; o < outputs; o++)
            w[o] += step_bytes;
    }
    NAME(floats) totals = NAME(totals)(rows * outputs, sums);
    for (int r = 0; r < rows; r++)
        memcpy(out + r * TILE, (float *)&totals + r * outputs, outputs * 4);
}

/* out[row * TILE + i] = the sum of row `row` and output `output` + i, for all rows and up to TILE outputs. */
static INLINE TARGET void NAME(tile)(enum type type, const struct job *job, long output, long count, float *out)
{
    const long last = output + count - 1;
    if (type != INT8 && job->rows <= FEW_ROWS) {  /* with int8, sums would take longer than reading */
        for (long o = 0; o < count; o++)
            switch (job->rows) {
            case 1: NAME(block)(type, 1, 1, job, 0, output + o, last, out + o); break;
            case 2: NAME(block)(type, 2, 1, job, 0, output + o, last, out + o); break;
            default: NAME(block)(type, FEW_ROWS, 1, job, 0, output + o, last, out + o);
            }
        return;
    }
    for (long row = 0; row < job->rows; row += ROWS)  /* whose inputs stay in the nearest cache */
        for (long o = 0; o < count; o += OUTPUTS) {
            float *to = out + row * TILE + o;
#define CASE(n) case n: NAME(block)(type, n, OUTPUTS, job, row, output + o, last, to); break;
            switch (job->rows - row) {
            CASE(1)
#if LANES >= 8
            CASE(2) CASE(3)
#endif
#if LANES == 16
            CASE(4) CASE(5) CASE(6) CASE(7)
#endif
            default: NAME(block)(type, ROWS, OUTPUTS, job, row, output + o, last, to);
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

/* e to the power of x, none of which is above 0. What is below -87 becomes exactly 0, and NaN stays. */
static INLINE TARGET NAME(floats) NAME(exponentials)(NAME(floats) x)
{
    const NAME(ints) is_small = x < -87.0f;
    const NAME(ints) n = __builtin_convertvector((NAME(floats))((NAME(ints))x & ~is_small) * 1.44269504f - 0.5f, NAME(ints));
    const NAME(floats) whole = __builtin_convertvector(n, NAME(floats));
    const NAME(floats) r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
    const NAME(floats) p = 1 + r * (1 + r * (0.5f + r * (0.166666667f + r * (0.0416666667f + r * (0.00833333333f + r * 0.00138888889f)))));
    return (NAME(floats))((NAME(ints))(p * (NAME(floats))((n + 127) << 23)) & ~is_small);
}

/* Reads what a tensor holds of entries or queries of a head as floats, with zeros behind each. */
static INLINE TARGET void NAME(load_heads)(enum type type, const struct states *states, long width, long batch, long head, long first, long count, float *to, long padded)
{
    const long size = SIZE(type), *strides = states->strides;
    for (long i = 0; i < count; i++) {
        const char *from = states->values + (batch * strides[0] + head * strides[1] + (first + i) * strides[2]) * size;
        for (long k = 0; k < width; k += STEP)
            NAME(load)(type, type == BFLOAT16, from + k * size, width - k, (NAME(floats) *)(to + i * padded + k));
    }
}

#define AT(rows, row, k) (*(NAME(floats) *)((rows) + (row) * padded + (k)))
#define KEYS (LANES < 8 ? LANES : 8)  /* that are multiplied at once, so that their sums are in registers */
#define PARTS 4                       /* vectors of values that are added up at once */

/* The products of a query with LANES keys. */
static INLINE TARGET NAME(floats) NAME(score)(const float *query, const float *keys, long padded)
{
    NAME(floats) products[LANES];
    for (long i = 0; i < LANES; i += KEYS) {
        NAME(floats) some[KEYS] = {0};
        for (long k = 0; k < padded; k += LANES) {
            const NAME(floats) values = AT(query, 0, k);
            for (int j = 0; j < KEYS; j++)
                some[j] += values * AT(keys, i + j, k);
        }
        memcpy(products + i, some, sizeof some);
    }
    return NAME(totals)(LANES, products);
}

/* Adds the weighted values of `count` entries to the sums of two rows, which may be one. */
static INLINE TARGET void NAME(add_values)(const float *const *weights, const float *values, long count, float *const *sums, long padded)
{
    for (long k = 0; k < padded; k += PARTS * LANES) {
        NAME(floats) some[2][PARTS];
        for (int part = 0; part < 2 * PARTS; part++)
            some[part % 2][part / 2] = AT(sums[part % 2], 0, k + part / 2 * LANES);
        for (long i = 0; i < count; i++)
            for (int part = 0; part < PARTS; part++) {
                const NAME(floats) value = AT(values, i, k + part * LANES);
                some[0][part] += weights[0][i] * value;
                some[1][part] += weights[1][i] * value;
            }
        for (int part = 0; part < 2 * PARTS; part++)
            AT(sums[part % 2], 0, k + part / 2 * LANES) = some[part % 2][part / 2];
    }
}

/* Turns scores into weights whose total is returned. */
static INLINE TARGET float NAME(softmax)(NAME(floats) *scores, long blocks)
{
    NAME(floats) most = scores[0], total = {0};
    float best = -INFINITY;
    for (long i = 0; i < blocks; i++) {
        const NAME(ints) is_more = scores[i] > most;
        most = (NAME(floats))(((NAME(ints))scores[i] & is_more) | ((NAME(ints))most & ~is_more));
    }
    for (int i = 0; i < LANES; i++)
        best = most[i] > best ? most[i] : best;
    for (long i = 0; i < blocks; i++)
        total += scores[i] = NAME(exponentials)(scores[i] - (best > -INFINITY ? best : 0));
    return NAME(totals)(1, &total)[0];
}

/* The attention of `count` rows, which are queries of the heads that share a head of keys. */
static INLINE TARGET void NAME(attend_rows)(enum type type, const struct attention *a, long batch, long key_head, long first, long count, float *memory)
{
    const long padded = (a->width + PARTS * LANES - 1) / (PARTS * LANES) * PARTS * LANES;
    const long blocks = (a->entries + LANES - 1) / LANES, columns = blocks * LANES, group = a->heads / a->key_heads;
    float *queries = memory, *sums = queries + count * padded, *block = sums + count * padded, *scores = block + LANES * padded;
    memset(memory, 0, (2 * count + LANES) * padded * 4);
    for (long row = 0; row < count; row++) {
        const long head = key_head * group + (first + row) / a->queries, query = (first + row) % a->queries;
        NAME(load_heads)(type, &a->query, a->width, batch, head, query, 1, queries + row * padded, padded);
    }
    for (long start = 0; start < columns; start += LANES) {
        const long valid = a->entries - start < LANES ? a->entries - start : LANES;
        NAME(load_heads)(type, &a->key, a->width, batch, key_head, start, valid, block, padded);
        for (long row = 0; row < count; row++) {
            float *to = scores + row * columns + start;
            *(NAME(floats) *)to = NAME(score)(queries + row * padded, block, padded) * a->scale;
            if (valid == LANES)  /* a number that the compiler knows */
                add_bias(type, a, batch, (first + row) % a->queries, start, LANES, LANES, to);
            else
                add_bias(type, a, batch, (first + row) % a->queries, start, valid, LANES, to);
        }
    }
    float totals[ATTENDED];
    for (long row = 0; row < count; row++)
        totals[row] = NAME(softmax)((NAME(floats) *)(scores + row * columns), blocks);
    for (long start = 0; start < columns; start += LANES) {
        const long valid = a->entries - start < LANES ? a->entries - start : LANES;
        NAME(load_heads)(type, &a->value, a->width, batch, key_head, start, valid, block, padded);
        for (long row = 0; row < count; row += 2) {
            const long other = row + 1 < count ? row + 1 : row;
            const float *weights[2] = {scores + row * columns + start, scores + other * columns + start};
            float *of_rows[2] = {sums + row * padded, sums + other * padded};
            NAME(add_values)(weights, block, valid, of_rows, padded);
        }
    }
    for (long row = 0; row < count; row++) {
        const long head = key_head * group + (first + row) / a->queries, query = (first + row) % a->queries;
        for (long i = 0; i < a->width; i++) {
            const long from = type == BFLOAT16 ? i / STEP * STEP + i % 2 * LANES + i % STEP / 2 : i;  /* see multiply() */
            const float value = totals[row] == 0 ? 0 : sums[row * padded + from] / totals[row];
            set_number(type == BFLOAT16, a->y, ((batch * a->queries + query) * a->heads + head) * a->width + i, value);
        }
    }
}

static TARGET void NAME(attend)(const struct attention *a, long batch, long key_head, long first, long count, float *memory)
{
    if (a->type == BFLOAT16)
        NAME(attend_rows)(BFLOAT16, a, batch, key_head, first, count, memory);
    else
        NAME(attend_rows)(FLOAT32, a, batch, key_head, first, count, memory);
}

#undef NAME
#undef TARGET
#undef LANES
#undef LIST
#undef WIDEN
#undef ROWS
#undef STEP
#undef INPUT_BYTES
#undef AT
#undef PARTS
#undef KEYS
#undef LOW
#undef HIGH
#undef FOLD
