/* Compares products and decoder layers with the same in double, by each instruction set that this CPU has.
 *
 * It prints the first case whose difference is too large, and fails. A tensor has no more memory than it needs, so
 * that a sanitizer sees what is read beyond it. The first argument is the number of threads, which are this program's
 * own, so that a sanitizer knows them. The second one, n, leaves out all cases but each n-th.
 */
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"

#define RANK 5  /* of draft adapters */
#define LAYERS 2
#define PACKED -1  /* in place of a type of weights: parts of several types */

enum { BIAS = 1, NORM = 2, GATED = 4, DRAFT = 8, RESIDUAL = 16 };  /* what a product has */

static int threads = 1, num_parallel;
static _Thread_local int number_of_thread;
static char name[200];  /* of the case */

static void fail(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    printf("%s: ", name);
    vprintf(format, values);
    printf("\n");
    va_end(values);
    exit(1);
}

/* --- Threads, as forward.c finds those of OpenMP --- */

struct task {
    void (*run)(void *);
    void *data;
    int number;
};

static void *run_task(void *given)
{
    const struct task *task = given;
    number_of_thread = task->number;
    task->run(task->data);
    return NULL;
}

int omp_get_thread_num(void)
{
    return number_of_thread;
}

void GOMP_parallel(void (*run)(void *), void *data, unsigned count, unsigned flags)
{
    pthread_t others[16];
    struct task tasks[16];
    (void)flags;
    num_parallel++;
    for (unsigned i = 1; i < count; i++) {
        tasks[i] = (struct task){run, data, i};
        if (pthread_create(others + i, NULL, run_task, tasks + i))
            fail("no thread starts");
    }
    run(data);
    for (unsigned i = 1; i < count; i++)
        pthread_join(others[i], NULL);
}

/* --- Tensors --- */

static void *allocated[4096];
static int num_allocated;

static void *memory(long bytes)
{
    void *start = malloc(bytes);
    if (!start || num_allocated == 4096)
        fail("no memory");
    return allocated[num_allocated++] = start;
}

static void free_all(void)
{
    while (num_allocated)
        free(allocated[--num_allocated]);
}

static double *numbers(long count)
{
    return memset(memory(count * sizeof(double)), 0, count * sizeof(double));
}

static double uniform(void)  /* from -1 to 1 */
{
    static uint64_t state = 88172645463325252u;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (double)(state >> 11) / (1ull << 52) - 1;
}

static long below(long limit)  /* from 0 on */
{
    const long number = (uniform() + 1) / 2 * limit;
    return number < limit ? number : limit - 1;
}

static long size_of(int type)
{
    return type == FLOAT32 ? 4 : 2;
}

static double value(int type, const void *values, long i)
{
    float number;
    const uint32_t word = type == BFLOAT16 ? (uint32_t)((const uint16_t *)values)[i] << 16 : 0;
    memcpy(&number, type == FLOAT32 ? (const void *)((const float *)values + i) : &word, 4);
    return number;
}

static void set_value(int type, void *values, long i, float number)
{
    uint32_t word;
    memcpy(&word, &number, 4);
    if (type == FLOAT32)
        ((float *)values)[i] = number;
    else
        ((uint16_t *)values)[i] = word >> 16;
}

/* Values from -largest to largest, whose address is a multiple of nothing but their size. */
static void *tensor(int type, long count, double largest)
{
    char *values = (char *)memory((count + 1) * size_of(type)) + size_of(type);
    for (long i = 0; i < count; i++)
        set_value(type, values, i, largest * uniform());
    return values;
}

static uint8_t *booleans(long count)
{
    uint8_t *values = memory(count);
    for (long i = 0; i < count; i++)
        values[i] = uniform() < 0.3;
    return values;
}

static double *in_double(int type, const void *values, long count)
{
    double *copy = numbers(count);
    for (long i = 0; i < count; i++)
        copy[i] = value(type, values, i);
    return copy;
}

static void compare(const char *what, int type, double limit, const void *got, const double *wanted, long count)
{
    for (long i = 0; i < count; i++) {
        const double is = value(type, got, i), want = wanted[i];
        if (isnan(want) ? !isnan(is) : isinf(want) ? is != want : !(fabs(is - want) <= limit * (1 + fabs(want))))
            fail("%s %ld is %g and should be %g", what, i, is, want);
    }
}

/* --- Weights in blocks --- */

static const struct {
    long length, bytes;   /* of a block */
    int scale, offset;    /* exponents of float16 that make weights of about 0.05 */
} FORMS[] = {
    [FLOAT32] = {1, 4, 0, 0}, [BFLOAT16] = {1, 2, 0, 0}, [Q8_0] = {32, 34, 4, 0}, [Q4_1] = {32, 20, 7, 9},
    [Q4_K] = {256, 144, 2, 5},
};
static const int TYPES[] = {Q8_0, Q4_1, Q4_K, FLOAT32, BFLOAT16};

static void put_half(uint8_t *to, int exponent)
{
    const int bits = below(2) << 15 | exponent << 10 | below(1024);
    to[0] = bits, to[1] = bits >> 8;
}

static double half(const uint8_t *bytes)
{
    const int bits = bytes[0] | bytes[1] << 8;
    return ldexp(1024 + (bits & 1023), (bits >> 10 & 31) - 25) * (bits >> 15 ? -1 : 1);
}

/* Rows of random bits with finite scales; some come in another order. */
static struct weights weights_of(int type, long rows, long inputs, int has_order)
{
    const long blocks = rows * inputs / FORMS[type].length, bytes = FORMS[type].bytes;
    struct weights w = {.count = rows, .type = type};
    int32_t *order = has_order ? memory(rows * sizeof *order) : NULL;
    for (long row = 0; row < rows && order; row++)
        order[row] = below(rows);
    w.order = order;
    if (type == FLOAT32 || type == BFLOAT16) {
        w.rows = tensor(type, rows * inputs, sqrt(3.0 / inputs));
        return w;
    }
    uint8_t *values = (uint8_t *)memory(blocks * bytes + 1) + 1;
    for (long i = 0; i < blocks * bytes; i++)
        values[i] = below(256);
    for (long i = 0; i < blocks; i++) {
        put_half(values + i * bytes, FORMS[type].scale);
        if (FORMS[type].offset)
            put_half(values + i * bytes + 2, FORMS[type].offset);
    }
    w.rows = values;
    return w;
}

/* Number `i` of the row that comes at a place. */
static double weight(const struct weights *w, long inputs, long place, long i)
{
    const long row = w->order ? w->order[place] : place, at = i % FORMS[w->type].length, part = at / 32;
    const long number = (row * inputs + i) / FORMS[w->type].length;
    const uint8_t *block = (const uint8_t *)w->rows + number * FORMS[w->type].bytes;
    const uint8_t *scales = block + 4;
    int code, scale, offset;
    switch (w->type) {
    case Q8_0:
        return half(block) * (int8_t)block[2 + at];
    case Q4_1:
        code = at < 16 ? block[4 + at] & 15 : block[4 + at - 16] >> 4;
        return half(block) * code + half(block + 2);
    case Q4_K:
        code = block[16 + part / 2 * 32 + at % 32] >> part % 2 * 4 & 15;
        scale = part < 4 ? scales[part] & 63 : (scales[part + 4] & 15) | scales[part - 4] >> 6 << 4;
        offset = part < 4 ? scales[part + 4] & 63 : scales[part + 4] >> 4 | scales[part] >> 6 << 4;
        return half(block) * scale * code - half(block + 2) * offset;
    default:
        return value(w->type, w->rows, row * inputs + i);
    }
}

static void check_unpacking(int set, int type, int to_type, long rows, long inputs, int has_places)
{
    snprintf(name, sizeof name, "%s, type %d to %d, %ld rows, %ld inputs, places %d", set_name(set), type, to_type, rows,
             inputs, has_places);
    const long first = rows / 3, all = rows + first;
    const struct weights w = weights_of(type, all, inputs, rows % 2);
    int64_t *places = has_places ? memory(rows * sizeof *places) : NULL;
    double *wanted = numbers(rows * inputs);
    for (long row = 0; row < rows; row++) {
        if (places)
            places[row] = below(all);
        for (long i = 0; i < inputs; i++)
            wanted[row * inputs + i] = weight(&w, inputs, places ? places[row] : first + row, i);
    }
    const struct unpacking u = {
        .weights = &w, .places = places, .to = tensor(to_type, rows * inputs, 1), .first = first, .rows = rows,
        .inputs = inputs, .type = to_type, .threads = threads, .set = set,
    };
    if (!unpack(&u))
        fail("no memory");
    compare("weight", to_type, to_type == FLOAT32 ? 1e-7 : 4e-3, u.to, wanted, rows * inputs);
    free_all();
}

/* --- Products --- */

/* Weights in one to three parts, which end anywhere. */
static void pack(struct product *p, long rows)
{
    long left = rows, parts = 1 + below(rows < 3 ? rows : 3);
    for (long i = 0; i < parts; i++) {
        const long count = i == parts - 1 ? left : 1 + below(left - (parts - 1 - i));
        int type = TYPES[below(5)];
        while (p->inputs % FORMS[type].length)
            type = TYPES[below(5)];
        p->weights[i] = weights_of(type, count, p->inputs, below(2));
        left -= count;
    }
}

static struct product product_of(int type, int x_type, long inputs, long outputs, int has)
{
    const long rows = outputs * (has & GATED ? 2 : 1);
    struct product p = {.inputs = inputs, .outputs = outputs, .is_gated = !!(has & GATED), .epsilon = 1e-5f};
    if (type == PACKED && inputs % 32 == 0)
        pack(&p, rows);
    else
        p.weights[0] = weights_of(type == PACKED ? x_type : type, rows, inputs, 0);
    p.bias = has & BIAS ? tensor(x_type, rows, 1) : NULL;
    p.norm = has & NORM ? tensor(x_type, inputs, 1) : NULL;
    if (has & DRAFT) {
        struct product *draft = memory(2 * sizeof *draft);
        draft[0] = product_of(x_type, x_type, inputs, RANK, has & NORM);
        draft[1] = product_of(x_type, x_type, RANK, rows, 0);
        p.down = draft, p.up = draft + 1;
    }
    return p;
}

/* What lies between two products, as C keeps it. */
static double *kept(int type, double *values, long count)
{
    for (long i = 0; i < count && type == BFLOAT16; i++) {
        const float number = values[i];
        uint32_t word;
        memcpy(&word, &number, 4);
        const uint16_t bits = (word + 0x7fff + (word >> 16 & 1)) >> 16;
        values[i] = isnan(number) ? number : value(BFLOAT16, &bits, 0);
    }
    return values;
}

static double *multiplied(
    const struct product *p, int type, long rows, const double *x, const double *added, const uint8_t *is_text)
{
    const long all = p->outputs * (1 + p->is_gated);
    double *y = numbers(rows * p->outputs), *sums = numbers(rows * all), *normed = numbers(p->inputs);
    double *weights = numbers(all * p->inputs), *next = weights;
    const double *drafts = NULL;
    for (const struct weights *w = p->weights; next < weights + all * p->inputs; w++)
        for (long i = 0; i < w->count * p->inputs; i++)
            *next++ = weight(w, p->inputs, i / p->inputs, i % p->inputs);
    if (p->down && is_text)
        drafts = multiplied(p->up, type, rows, kept(type, multiplied(p->down, type, rows, x, NULL, NULL), rows * RANK),
                            NULL, NULL);
    for (long row = 0; row < rows; row++) {
        double squares = 0, *sum = sums + row * all;
        for (long i = 0; i < p->inputs; i++)
            squares += x[row * p->inputs + i] * x[row * p->inputs + i] / p->inputs;
        for (long i = 0; i < p->inputs; i++)
            normed[i] = x[row * p->inputs + i] * (p->norm ? value(type, p->norm, i) / sqrt(squares + p->epsilon) : 1);
        for (long output = 0; output < all; output++) {
            for (long i = 0; i < p->inputs; i++)
                sum[output] += normed[i] * weights[output * p->inputs + i];
            sum[output] += p->bias ? value(type, p->bias, output) : 0;
            sum[output] += added ? added[row * all + output] : 0;
            sum[output] += drafts && !is_text[row] ? drafts[row * all + output] : 0;
        }
        for (long i = 0; i < p->outputs; i++)
            y[row * p->outputs + i] = p->is_gated ? sum[i] / (1 + exp(-sum[i])) * sum[p->outputs + i] : sum[i];
    }
    return y;
}

static void check_product(int set, int type, int x_type, long rows, long inputs, long outputs, int has)
{
    snprintf(name, sizeof name, "%s, types %d and %d, %ld rows, %ld inputs, %ld outputs, with %d", set_name(set), type,
             x_type, rows, inputs, outputs, has);
    const struct product p = product_of(type, x_type, inputs, outputs, has);
    const long all = outputs * (1 + p.is_gated);
    void *x = tensor(x_type, rows * inputs, 1), *added = has & RESIDUAL ? tensor(x_type, rows * all, 1) : NULL;
    const float special[] = {NAN, INFINITY, -INFINITY, 100, -100};
    for (int i = 0; added && i < 5 && i < all && rows > 1; i++)
        set_value(x_type, added, i, special[i]);
    struct multiplication m = {.product = &p, .x = x, .added = added, .rows = rows, .type = x_type, .set = set};
    m.y = tensor(x_type, rows * outputs, 1);
    m.is_text = has & DRAFT ? booleans(rows) : NULL;
    m.threads = threads;
    if (!multiply(&m))
        fail("no memory");
    double *in = in_double(x_type, x, rows * inputs), *more = added ? in_double(x_type, added, rows * all) : NULL;
    const double gates = added && has & GATED ? 10 : 1;  /* of 100 enlarge the differences of what they let through */
    compare("output", x_type, gates * (x_type == FLOAT32 ? 5e-6 : 1e-2), m.y,
            multiplied(&p, x_type, rows, in, more, m.is_text), rows * outputs);
    free_all();
}

/* What becomes of many rows before or behind a product. */
static void check_rows(int set, int type, long rows, long width, int is_gated)
{
    snprintf(name, sizeof name, "%s, type %d, %ld rows of %ld, gated %d", set_name(set), type, rows, width, is_gated);
    const struct product p = {
        .weights = {{.type = NO_WEIGHTS}}, .inputs = width, .outputs = width, .is_gated = is_gated, .epsilon = 1e-5f,
        .norm = tensor(type, width, 1),
    };
    const long given = rows * width * (1 + is_gated);
    struct multiplication m = {.product = &p, .x = tensor(type, given, 3), .rows = rows, .type = type, .set = set};
    m.y = tensor(type, rows * width, 1);
    m.threads = threads;
    double *x = in_double(type, m.x, given), *wanted = numbers(rows * width);
    for (long i = 0; i < rows * width; i++) {
        const double *row = x + i / width * width * (1 + is_gated);
        double squares = 0;
        for (long j = 0; j < width; j++)
            squares += row[j] * row[j] / width;
        wanted[i] = is_gated ? row[i % width] / (1 + exp(-row[i % width])) * row[width + i % width]
            : row[i % width] * value(type, p.norm, i % width) / sqrt(squares + p.epsilon);
    }
    if (!multiply(&m))
        fail("no memory");
    compare("value", type, type == FLOAT32 ? 5e-6 : 1e-2, m.y, wanted, rows * width);
    free_all();
}

/* --- Decoder layers --- */

/* Normalises a head and rotates it. */
static void rotate(const struct forward *f, const struct layer *layer, long row, int is_query, double *head)
{
    const long at = row / f->queries * f->angle_stride + row % f->queries * f->width, half = f->width / 2;
    const void *norm = is_query ? layer->query_norm : layer->key_norm;
    double squares = 0, old[MOST_WIDTH];
    for (long i = 0; i < f->width; i++)
        squares += head[i] * head[i] / f->width;
    for (long i = 0; i < f->width; i++) {
        const double epsilon = is_query ? layer->query_epsilon : layer->key_epsilon;
        old[i] = head[i] * (norm ? value(f->type, norm, i) / sqrt(squares + epsilon) : 1);
    }
    for (long i = 0; i < f->width; i++)
        head[i] = old[i] * value(f->type, f->cosines, at + i)
            + (i < half ? -old[i + half] : old[i - half]) * value(f->type, f->sines, at + i);
}

static long length_of(const struct forward *f, long row)
{
    return f->lengths ? f->lengths[row / f->queries] : f->entries - f->queries;
}

/* What a query, which is head `head` of row `row`, gets of all entries. */
static void attend(
    const struct forward *f, long row, long head, const double *query, const double *keys, const double *values,
    double *to)
{
    const long batch = row / f->queries, key_head = head / (f->num_heads / f->num_key_heads);
    double total = 0, largest = -INFINITY, scores[2000];
    for (long i = 0; i < f->entries; i++) {
        const long at = batch * f->bias_strides[0] + row % f->queries * f->bias_strides[1] + i;
        const double *key = keys + batch * f->key_strides[0] + key_head * f->key_strides[1] + i * f->key_strides[2];
        int is_seen = i <= length_of(f, row) + row % f->queries;
        scores[i] = 0;
        for (long j = 0; j < f->width; j++)
            scores[i] += query[j] * key[j] * f->scaling;
        if (f->bias_kind == SEEN)
            is_seen = ((const uint8_t *)f->bias)[at];
        else if (f->bias_kind == ADDED)
            scores[i] += value(f->type, f->bias, at), is_seen = 1;
        scores[i] = is_seen ? scores[i] : -INFINITY;
        largest = fmax(largest, scores[i]);
    }
    for (long i = 0; i < f->entries && largest > -INFINITY; i++)
        total += scores[i] = exp(scores[i] - largest);
    for (long i = 0; i < f->entries && total > 0; i++)
        for (long j = 0; j < f->width; j++)
            to[j] += scores[i] / total
                * values[batch * f->value_strides[0] + key_head * f->value_strides[1] + i * f->value_strides[2] + j];
}

/* What queries get of all entries; writes their keys and values. */
static double *attended_in_double(
    const struct forward *f, const struct layer *layer, double *heads, double *keys, double *values)
{
    const long rows = f->batch * f->queries, projected = f->num_heads + f->num_key_heads;
    const long all = projected + f->num_key_heads;
    double *attended = numbers(rows * f->num_heads * f->width);
    for (long at = 0; at < rows * all; at++) {
        const long row = at / all, head = at % all, key_head = (head - f->num_heads) % f->num_key_heads;
        const int64_t *strides = head < projected ? f->key_strides : f->value_strides;
        const long entry = length_of(f, row) + row % f->queries;
        const long place = row / f->queries * strides[0] + key_head * strides[1] + entry * strides[2];
        if (head < projected)
            rotate(f, layer, row, head < f->num_heads, heads + at * f->width);
        if (head >= f->num_heads)
            memcpy((head < projected ? keys : values) + place, heads + at * f->width, f->width * sizeof *heads);
    }
    for (long row = 0; row < rows; row++)
        for (long head = 0; head < f->num_heads; head++)
            attend(f, row, head, heads + (row * all + head) * f->width, keys, values,
                   attended + (row * f->num_heads + head) * f->width);
    return attended;
}

/* The hidden states behind the layers; writes keys and values of the queries. */
static double *layered(const struct forward *f, double *hidden, double **keys, double **values)
{
    const long rows = f->batch * f->queries;
    for (long i = 0; i < f->num_layers; i++) {
        const struct layer *layer = f->layers + i;
        double *heads = multiplied(&layer->query_key_value, f->type, rows, hidden, NULL, f->is_text);
        const double *attended = attended_in_double(f, layer, heads, keys[i], values[i]);
        hidden = multiplied(&layer->output, f->type, rows, attended, hidden, f->is_text);
        const double *gated = multiplied(&layer->gate_up, f->type, rows, hidden, NULL, f->is_text);
        hidden = multiplied(&layer->down, f->type, rows, gated, hidden, f->is_text);
    }
    return hidden;
}

/* What queries see, or what is added to their scores; the first one of several sees nothing of what is only SEEN. */
static const void *bias_of(const struct forward *f)
{
    const long count = f->batch * f->queries * f->entries;
    void *bias = f->bias_kind == ADDED ? tensor(f->type, count, 2) : booleans(count);
    for (long i = 0; i < count; i++) {
        const long row = i / f->entries;
        const int is_hidden = i % f->entries >= length_of(f, row) + f->queries;
        if (f->bias_kind == SEEN && (is_hidden || (row == 0 && f->queries > 1)))
            ((uint8_t *)bias)[i] = 0;
        if (f->bias_kind == ADDED && (is_hidden || uniform() > 0.5))
            set_value(f->type, bias, i, is_hidden ? -INFINITY : -3.3895314e38f);
    }
    return bias;
}

struct shape {
    long batch, queries, entries, num_heads, num_key_heads, width;
};

/* `bits`: norms of heads, lengths, drafts, the order of heads and entries, one stage after the other */
static void check_layers(int set, int type, int x_type, struct shape s, int bias_kind, int has_states, int bits)
{
    snprintf(name, sizeof name, "%s, types %d and %d, batch %ld, %ld queries, %ld entries, %ld heads of %ld, "
             "width %ld, bias %d, states %d, with %d", set_name(set), type, x_type, s.batch, s.queries, s.entries,
             s.num_heads, s.num_key_heads, s.width, bias_kind, has_states, bits);
    const long rows = s.batch * s.queries, all = s.num_heads + 2 * s.num_key_heads, of_heads = s.num_heads * s.width;
    const long count = s.batch * s.num_key_heads * s.entries * s.width, draft = bits & 4 ? DRAFT : 0;
    const long hidden = type == PACKED ? 256 : 100, inner = type == PACKED ? 96 : 70;
    const long before = has_states && bits & 8 ? s.width : s.entries * s.width;  /* [.., entries, heads, ..] */
    const long between = has_states && bits & 8 ? s.num_key_heads * s.width : s.width;
    struct layer layers[LAYERS];
    struct states states[LAYERS];
    double *keys[LAYERS], *values[LAYERS];
    int64_t lengths[MOST_ROWS];
    for (int i = 0; i < LAYERS; i++) {
        layers[i] = (struct layer){
            .query_key_value = product_of(type, x_type, hidden, all * s.width, NORM | BIAS | draft),
            .output = product_of(type, x_type, of_heads, hidden, draft),
            .gate_up = product_of(type, x_type, hidden, inner, NORM | GATED | draft),
            .down = product_of(type, x_type, inner, hidden, draft),
            .query_norm = bits & 1 ? tensor(x_type, s.width, 2) : NULL,
            .key_norm = bits & 1 ? tensor(x_type, s.width, 2) : NULL,
            .query_epsilon = 1e-5f, .key_epsilon = 1e-6f,
        };
        states[i] = (struct states){tensor(x_type, count, 1), tensor(x_type, count, 1)};
        keys[i] = in_double(x_type, states[i].keys, count);
        values[i] = in_double(x_type, states[i].values, count);
    }
    struct forward f = {
        .layers = layers, .states = has_states ? states : NULL, .hidden = tensor(x_type, rows * hidden, 1),
        .cosines = tensor(x_type, rows * s.width, 1), .sines = tensor(x_type, rows * s.width, 1),
        .is_text = draft ? booleans(rows) : NULL, .lengths = has_states && bits & 2 ? lengths : NULL,
        .bias_strides = {s.queries * s.entries, s.entries},
        .key_strides = {s.num_key_heads * s.entries * s.width, before, between},
        .value_strides = {s.num_key_heads * s.entries * s.width, before, between},
        .angle_stride = s.queries * s.width, .num_layers = LAYERS, .batch = s.batch, .queries = s.queries,
        .entries = s.entries, .num_heads = s.num_heads, .num_key_heads = s.num_key_heads,
        .width = s.width, .type = x_type, .bias_kind = bias_kind, .stages = PROJECT | STORE | ATTEND | COMPLETE,
        .threads = threads, .set = set, .scaling = 1 / sqrtf(s.width),
    };
    for (long i = 0; i < s.batch; i++)
        lengths[i] = (s.entries - s.queries) * (i + 1) / s.batch;
    f.bias = bias_kind == CAUSAL ? NULL : bias_of(&f);
    if (rows > MOST_ROWS) {  /* what is between products */
        f.heads = tensor(x_type, rows * all * s.width, 1);
        f.attended = tensor(x_type, rows * of_heads, 1);
        f.num_layers = 1, f.stages = ROTATE | STORE | ATTEND;
        double *heads = in_double(x_type, f.heads, rows * all * s.width);
        double *wanted = attended_in_double(&f, layers, heads, keys[0], values[0]);
        if (!forward(&f))
            fail("no memory");
        compare("attended", x_type, x_type == FLOAT32 ? 5e-5 : 5e-2, f.attended, wanted, rows * of_heads);
        compare("key", x_type, x_type == FLOAT32 ? 5e-5 : 5e-2, states[0].keys, keys[0], has_states ? count : 0);
        compare("value", x_type, 0, states[0].values, values[0], has_states ? count : 0);
        free_all();
        return;
    }
    double *wanted = in_double(x_type, f.hidden, rows * hidden);
    wanted = layered(&f, wanted, keys, values);
    const int stages[] = {PROJECT | (has_states ? STORE : 0), ATTEND, COMPLETE};
    for (int i = 0; bits & 16 && i < 3 * LAYERS; i++) {
        if (i == 0) {
            f.heads = tensor(x_type, rows * all * s.width, 1);
            f.attended = tensor(x_type, rows * of_heads, 1);
        }
        f.layers = layers + i / 3, f.states = has_states ? states + i / 3 : NULL;
        f.num_layers = 1, f.stages = stages[i % 3];
        if (!forward(&f))
            fail("no memory");
    }
    if (!(bits & 16) && !forward(&f))
        fail("no memory");
    const double limit = x_type == FLOAT32 ? 5e-5 : 5e-2;
    compare("hidden state", x_type, limit, f.hidden, wanted, rows * hidden);
    for (int i = 0; has_states && i < LAYERS; i++) {
        compare("key", x_type, limit, states[i].keys, keys[i], count);
        compare("value", x_type, limit, states[i].values, values[i], count);
    }
    free_all();
}

int main(int count, char **arguments)
{
    const int types[][2] = {{FLOAT32, FLOAT32}, {BFLOAT16, BFLOAT16}, {PACKED, FLOAT32}, {PACKED, BFLOAT16}};
    const long shapes[][2] = {{1, 1}, {5, 3}, {33, 100}, {100, 33}, {64, 64}, {17, 150}, {256, 130}};
    const long rows[] = {1, 2, 3, 4, 5, 6, 7, 13, 17, 32, 64};
    const struct shape of_layers[] = {
        {1, 1, 1, 1, 1, 6}, {1, 5, 5, 4, 2, 6}, {2, 3, 3, 3, 1, 12}, {1, 7, 150, 6, 2, 64}, {3, 2, 40, 4, 4, 12},
        {2, 16, 300, 4, 1, 80}, {1, 4, 1500, 4, 2, 64}, {3, 2, 1400, 2, 1, 6}, {1, 32, 60, 2, 1, 64},
        {1, 1, 700, 2, 2, 256}, {1, 70, 70, 4, 2, 12}, {2, 65, 300, 3, 1, 64}, {1, 130, 1300, 2, 2, 40},
        {1, 66, 70, 100, 1, 6}, {9, 8, 200, 4, 1, 256},
    };
    int number = 0, step = count > 2 ? atoi(arguments[2]) : 1;
    threads = count > 1 ? atoi(arguments[1]) : 1;
    if (threads < 1 || threads > 16 || step < 1)
        fail("the arguments are 1 to 16 threads and the distance of the cases");
    find_threads();
    for (int set = 0; set_name(set); set++) {
        if (!*set_name(set))
            continue;
        for (int i = 0; i < 4 * 7 * 10; i += step, number++) {
            const long inputs = shapes[i / 4 % 7][0], whole = (inputs + 31) / 32 * 32;
            check_product(set, types[i % 4][0], types[i % 4][1], rows[i / 28], i % 4 < 2 ? inputs : whole,
                          shapes[i / 4 % 7][1], number * 7 % 32);
        }
        for (int i = 0; i < 5 * 2 * 2 * 6; i += step, number++)
            check_unpacking(set, TYPES[i % 5], i / 5 % 2, rows[i / 20 + 3], i / 20 % 2 * 256 + 256, i / 10 % 2);
        for (int i = 0; i < 2 * 2 * 4; i += step, number++)
            check_rows(set, i % 2, rows[7 + i / 4] * 9, i / 4 * 32 + 32, i / 2 % 2);
        for (int i = 0; i < 4 * 15 * 3; i += step, number++) {
            const struct shape s = of_layers[i / 4 % 15];
            check_layers(set, types[i % 4][0], types[i % 4][1], s, i / 60, s.entries > s.queries || number / 2 % 2,
                         number * 11 % 32);
        }
        printf("%s\n", set_name(set));
    }
    if (threads > 1 && !num_parallel)
        fail("all ran in one thread");
    return 0;
}
