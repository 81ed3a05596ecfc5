/* Rotation of queries and keys, and the attention of queries to the entries of a cache; see sets.h.
 *
 * A span of entries is read once for all queries of all heads that share it. What a query gets does not depend on the
 * queries beside it, as long as these are up to MOST_ROWS: spans begin at the same entries, whatever reads them.
 */

/* Normalises a head's values of a row, if there are weights for that, and rotates them. */
static INLINE TARGET void NAME(rotate)(
    enum type type, long width, char *head, const char *norm, float epsilon, const char *cosines, const char *sines)
{
    float values[MOST_WIDTH], angles[2][MOST_WIDTH], squares = 0;
    for (long i = 0; i < width; i++) {
        values[i] = number(type, head, i);
        angles[0][i] = number(type, cosines, i);
        angles[1][i] = number(type, sines, i);
    }
    for (long i = 0; i < width && norm; i++)
        squares += values[i] * values[i];
    const float factor = 1 / sqrtf(squares / width + epsilon);
    for (long i = 0; i < width && norm; i++)
        values[i] *= factor * number(type, norm, i);
    for (long i = 0; i < width / 2; i++) {
        const long j = i + width / 2;
        set_number(type, head, i, values[i] * angles[0][i] - values[j] * angles[1][i]);
        set_number(type, head, j, values[j] * angles[0][j] + values[i] * angles[1][j]);
    }
}

static TARGET void NAME(rotate_head)(
    const struct forward *f, const struct layer *layer, long row, long head, char *values)
{
    const long at = row / f->queries * f->angle_stride + row % f->queries * f->width;
    const void *norm = head < f->num_heads ? layer->query_norm : layer->key_norm;
    const float epsilon = head < f->num_heads ? layer->query_epsilon : layer->key_epsilon;
    const long size = SIZE(f->type);
    const char *cosines = (const char *)f->cosines + at * size, *sines = (const char *)f->sines + at * size;
    if (f->type == BFLOAT16)
        NAME(rotate)(BFLOAT16, f->width, values, norm, epsilon, cosines, sines);
    else
        NAME(rotate)(FLOAT32, f->width, values, norm, epsilon, cosines, sines);
}

/* Turns scores, up to `columns`, a multiple of LANES, into weights; returns their total, and the largest score. */
static INLINE TARGET float NAME(softmax)(float *scores, long columns, float *largest)
{
    NAME(floats) *vectors = (NAME(floats) *)scores, most = vectors[0], total = {0};
    float best = -INFINITY;
    for (long i = 0; i < columns / LANES; i++) {
        const NAME(ints) is_more = vectors[i] > most;
        most = (NAME(floats))(((NAME(ints))vectors[i] & is_more) | ((NAME(ints))most & ~is_more));
    }
    for (int i = 0; i < LANES; i++)
        best = most[i] > best ? most[i] : best;
    for (long i = 0; i < columns / LANES; i++)
        total += vectors[i] = NAME(exponentials)(vectors[i] - (best > -INFINITY ? best : 0));
    *largest = best;
    return NAME(totals)(1, &total)[0];
}

/* Adds up the weighted values of `count` entries: `steps` steps from `first` on, whose sums are in registers. */
static INLINE TARGET void NAME(mix)(
    enum kind kind, enum type type, int rows, int steps, long first, long width, const float *weights, long columns,
    const char *values, long stride, long count, float *sums, long padded)
{
    const int parts = STEP(kind) / LANES;
    const long valid = width - first * STEP(kind), size = SIZE(type);
    NAME(floats) some[MOST_TOGETHER][4] = {0};
    for (long i = 0; i < count; i++) {
        NAME(floats) entry[4];
        for (int step = 0; step < steps; step++)
            NAME(load)(kind, type, values + i * stride + (first + step) * STEP(kind) * size,
                       steps > 1 ? STEP(kind) : valid, entry + step * parts);
        for (int row = 0; row < rows; row++)
            for (int v = 0; v < steps * parts; v++)
                some[row][v] += weights[row * columns + i] * entry[v];
    }
    for (int row = 0; row < rows; row++)
        for (int v = 0; v < steps * parts; v++)
            *(NAME(floats) *)(sums + row * padded + first * STEP(kind) + v * LANES) = some[row][v];
}

/* sums[row * padded + i] = the weighted values of a span, in the order in which they are read. */
static INLINE TARGET void NAME(mix_all)(
    enum kind kind, enum type type, int rows, long width, const float *weights, long columns, const char *values,
    long stride, long count, float *sums, long padded)
{
    const int together = 4 * LANES / STEP(kind);
    long first = 0;
#define MIX(steps) \
    NAME(mix)(kind, type, rows, steps, first, width, weights, columns, values, stride, count, sums, padded)
    for (; (first + together) * STEP(kind) <= width; first += together)
        MIX(together);
    for (; first * STEP(kind) < width; first++)
        MIX(1);
#undef MIX
}

/* What `rows` rows get of a span; `transposed` are its keys, if they are. */
static INLINE TARGET void NAME(attend_block)(
    enum kind kind, enum type type, const struct attention *a, int rows, long row, const char *queries,
    const float *transposed, float *scores)
{
    const struct forward *f = a->forward;
    const enum kind values_kind = type == BFLOAT16 ? SPLIT : FLOATS;
    const long size = SIZE(type), count = a->end - a->start, columns = (count + 15) / 16 * 16;
    const char *keys = (const char *)a->states->keys, *values = (const char *)a->states->values;
    keys += (a->batch * f->key_strides[0] + a->key_head * f->key_strides[1]) * size;
    values += (a->batch * f->value_strides[0] + a->key_head * f->value_strides[1]) * size;
    values += a->start * f->value_strides[2] * size;
    if (kind != PAIRS && a->transposes)
        NAME(mix_all)(FLOATS, FLOAT32, rows, columns, (const float *)queries, a->row_bytes / 4,
                      (const char *)transposed, KEYS_APART * 4, (f->width + STEP(kind) - 1) / STEP(kind) * STEP(kind),
                      scores, MOST_SPAN);
    else
        NAME(dots)(kind, keys, f->key_strides[2] * size, f->width, a->start, count, a->end - 1, rows, queries,
                   a->row_bytes, scores, MOST_SPAN);
    for (int i = 0; i < rows; i++) {
        float *result = a->results + (row - a->first + i) * (a->padded + 2);
        float *to = scores + i * MOST_SPAN;
        for (long j = 0; j < count; j++)
            to[j] *= f->scaling;
        add_bias(type, f, a->batch, a->first_query + (row + i) % a->queries, a->start, count, columns, to);
        result[a->padded + 1] = NAME(softmax)(to, columns, result + a->padded);
    }
    NAME(mix_all)(values_kind, type, rows, f->width, scores, MOST_SPAN, values, f->value_strides[2] * size, count,
                  a->results + (row - a->first) * (a->padded + 2), a->padded + 2);
}

/* Puts the keys of a span one beside the other; their values are in the order in which queries are arranged. */
static INLINE TARGET void NAME(transpose)(enum kind kind, enum type type, const struct attention *a, float *to)
{
    const struct forward *f = a->forward;
    const char *keys = (const char *)a->states->keys
        + (a->batch * f->key_strides[0] + a->key_head * f->key_strides[1] + a->start * f->key_strides[2]) * SIZE(type);
    NAME(floats) values[2];
    for (long i = 0; i < a->end - a->start; i++, keys += f->key_strides[2] * SIZE(type))
        for (long k = 0; k < f->width; k += STEP(kind)) {
            NAME(load)(kind, type, keys + k * SIZE(type), f->width - k, values);
            for (int j = 0; j < STEP(kind); j++)
                to[(k + j) * KEYS_APART + i] = ((const float *)values)[j];
        }
}

static INLINE TARGET void NAME(attend_rows)(enum kind kind, enum type type, const struct attention *a, char *memory)
{
    const struct forward *f = a->forward;
    const long group = f->num_heads / f->num_key_heads, all = f->num_heads + 2 * f->num_key_heads;
    float *scores = (float *)(memory + MOST_TOGETHER * a->row_bytes), *transposed = scores + MOST_TOGETHER * MOST_SPAN;
    if (kind != PAIRS && a->transposes)
        NAME(transpose)(kind, type, a, transposed);
    for (long row = a->first; row < a->first + a->rows; row += MOST_TOGETHER) {
        const long rows = a->first + a->rows - row < MOST_TOGETHER ? a->first + a->rows - row : MOST_TOGETHER;
        for (long i = 0; i < rows; i++) {
            const long head = a->key_head * group + (row + i) / a->queries;
            const long query = a->batch * f->queries + a->first_query + (row + i) % a->queries;
            NAME(arrange_row)(kind, type, (const char *)f->heads + (query * all + head) * f->width * SIZE(type),
                              f->width, NULL, 0, memory + i * a->row_bytes);
        }
#define CASE(n) case n: NAME(attend_block)(kind, type, a, n, row, memory, transposed, scores); break;
        switch (rows) {
        CASES
        }
#undef CASE
    }
}

/* The attention of some rows, which are queries of the heads that share a head of keys, to a span of entries. */
static TARGET void NAME(attend)(const struct attention *a, char *memory)
{
    if (a->forward->type == BFLOAT16)
        NAME(attend_rows)(HAS_PAIRS && !a->transposes ? PAIRS : SPLIT, BFLOAT16, a, memory);
    else
        NAME(attend_rows)(FLOATS, FLOAT32, a, memory);
}

/* Puts together what a row got of each span. */
static TARGET void NAME(merge)(const struct attention *a, const float *results, long spans, long stride, char *to)
{
    const struct forward *f = a->forward;
    float largest = -INFINITY, total = 0, values[MOST_WIDTH + 4 * LANES] = {0};
    for (long span = 0; span < spans; span++) {
        const float *result = results + span * stride + a->padded;
        largest = result[1] != 0 && result[0] > largest ? result[0] : largest;
    }
    for (long span = 0; span < spans; span++) {
        const float *result = results + span * stride;
        if (result[a->padded + 1] == 0)
            continue;
        const NAME(floats) below = {largest > -INFINITY ? result[a->padded] - largest : 0};
        const float share = NAME(exponentials)(below)[0];
        total += share * result[a->padded + 1];
        for (long i = 0; i < a->padded; i++)
            values[i] += share * result[i];
    }
    for (long i = 0; i < f->width; i++) {
        const long step = i / (2 * LANES), within = i % (2 * LANES);
        const long from = f->type == BFLOAT16 ? step * 2 * LANES + within % 2 * LANES + within / 2 : i;
        set_number(f->type, to, i, total == 0 ? 0 : values[from] / total);
    }
}
