/* Products of a few rows with the weights of a linear layer, for CPUs: y = x W^T.
 *
 * A step of decoding has few rows, so it takes the time that reading the weights takes. torch's products of 2 to 32
 * rows take several times as long. This one reads each weight once, as it lies in memory, and multiplies it with all
 * rows. Sums are float32, and the sums of a row do not depend on the rows beside it.
 *
 * Instruction sets are chosen when it runs. Threads are those of the OpenMP library that torch has loaded.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#define INLINE inline __attribute__((always_inline))
#define MOST_ROWS 32
#define FEW_WEIGHTS 16384  /* one thread has read them before a second one begins */
#define FEW_PRODUCTS 100000  /* of queries and keys */
#define MOST_WIDTH 256  /* values of a head */
#define TILE 32    /* outputs whose sums are kept before they are written */
#define OUTPUTS 2  /* rows of the weights that are read at once */
#define FEW_ROWS 3 /* up to so many rows of x, rows of the weights are read singly: in order memory is read faster */

enum type { FLOAT32, BFLOAT16, INT8 };
#define SIZE(type) ((type) == FLOAT32 ? 4 : (type) == BFLOAT16 ? 2 : 1)

struct job {
    long rows, inputs, outputs;
    int places[MOST_ROWS];     /* of the rows in x, added and y */
    const struct job *draft;   /* NULL, or the second product of a draft adapter, which the first rows get added */
    enum type type;   /* of the weights */
    int is_bfloat16;  /* the type of x, bias, added and y; otherwise float32 */
    int is_gated;     /* there are twice as many weights: y = silu(first half) * second half */
    const void *x, *weights;
    const void *norm;                  /* NULL, or the weights of an RMS norm of x before the product */
    float epsilon;
    const float *scales;               /* of the rows of int8 weights */
    const void *bias, *added;          /* NULL, or what is added to the products */
    void *y;
    const char *arranged;
    int set;  /* the instruction set */
};

/* What a tensor [batch, heads, queries or entries, width] holds; strides are counted in values. */
struct states {
    const char *values;
    long strides[3];
};

/* The attention of a few queries to the entries of a cache. */
struct attention {
    long batch, queries, heads, key_heads, width, entries;
    enum type type;
    enum { CAUSAL, SEEN, ADDED } bias_kind;  /* bias says which entries are seen, or what is added to their scores */
    float scale;
    struct states query, key, value, bias;
    void *y;  /* [batch, queries, heads, width] */
    int set;
};
#define ATTENDED 8  /* rows that share what is read of keys and values */

static INLINE float from_bfloat16(uint16_t bits)
{
    union { uint32_t word; float value; } both = {(uint32_t)bits << 16};
    return both.value;
}

static INLINE uint16_t to_bfloat16(float value)  /* to the nearest, ties to even */
{
    union { float value; uint32_t word; } both = {value};
    if (value != value)
        return 0x7fc0;
    return (both.word + 0x7fff + (both.word >> 16 & 1)) >> 16;
}

static INLINE float number(int is_bfloat16, const void *values, long i)
{
    return is_bfloat16 ? from_bfloat16(((const uint16_t *)values)[i]) : ((const float *)values)[i];
}

static INLINE void set_number(int is_bfloat16, void *values, long i, float value)
{
    if (is_bfloat16)
        ((uint16_t *)values)[i] = to_bfloat16(value);
    else
        ((float *)values)[i] = value;
}

static INLINE float exponential(float x)
{
    const float within = x > 88.0f ? 88.0f : x < -88.0f ? -88.0f : x;  /* NaN stays */
    const float n = (float)(int)(within * 1.44269504f + (within < 0 ? -0.5f : 0.5f));
    const float r = (within - n * 0.693359375f) + n * 2.12194440e-4f;
    const float p = 1 + r * (1 + r * (0.5f + r * (0.166666667f + r * (0.0416666667f + r * (0.00833333333f + r * 0.00138888889f)))));
    union { int32_t word; float value; } power = {((int32_t)n + 127) << 23};
    return x > 88.0f ? INFINITY : p * power.value;
}

/* Scales the sums of a row, and adds the bias and what else is added. */
static INLINE void complete(const struct job *job, long row, long output, long count, float *sums, const float *draft_sums)
{
    const long start = job->places[row] * job->outputs * (1 + job->is_gated) + output;
    for (long i = 0; i < count && job->scales; i++)
        sums[i] *= job->scales[output + i];
    for (long i = 0; i < count && job->bias; i++)
        sums[i] += number(job->is_bfloat16, job->bias, output + i);
    for (long i = 0; i < count && draft_sums; i++)
        sums[i] += draft_sums[i];
    for (long i = 0; i < count && job->added; i++)
        sums[i] += number(job->is_bfloat16, job->added, start + i);
}

static INLINE void store(const struct job *job, long row, long output, long count, const float *gates, const float *sums)
{
    for (long i = 0; i < count; i++) {
        float value = gates[i];
        if (job->is_gated)
            value = value / (1 + exponential(-value)) * sums[i];
        set_number(job->is_bfloat16, job->y, job->places[row] * job->outputs + output + i, value);
    }
}

/* The body of a function that computes the outputs from `first` to `last`, with `sum` for their sums. */
#define SHARE(sum)                                                                                       \
    float sums[2][MOST_ROWS * TILE]; /* of the outputs and, if they are gated, of those that they gate */ \
    float draft_sums[MOST_ROWS * TILE];                                                                  \
    for (long output = first; output < last; output += TILE) {                                           \
        const long count = last - output < TILE ? last - output : TILE;                                  \
        for (int part = 0; part <= job->is_gated; part++) {                                              \
            const long from = output + (part ? job->outputs : 0);                                        \
            sum(job, from, count, sums[part]);                                                           \
            if (job->draft)                                                                              \
                sum(job->draft, from, count, draft_sums);                                                \
            for (long row = 0; row < job->rows; row++) {                                                 \
                const int has_draft = job->draft && row < job->draft->rows;                              \
                complete(job, row, from, count, sums[part] + row * TILE, has_draft ? draft_sums + row * TILE : NULL); \
            }                                                                                            \
        }                                                                                                \
        for (long row = 0; row < job->rows; row++)                                                       \
            store(job, row, output, count, sums[0] + row * TILE, sums[1] + row * TILE);                  \
    }

/* Adds the bias of a query to its scores of the entries from `start` on. Behind the last one nothing is seen. */
static INLINE void add_bias(enum type type, const struct attention *a, long batch, long query, long start, long valid, long lanes, float *scores)
{
    const long at = batch * a->bias.strides[0] + query * a->bias.strides[2] + start;
    const long end = a->entries - a->queries + query + 1 - start;  /* where all queries are causal */
    for (long i = 0; i < valid && a->bias_kind == SEEN; i++)
        scores[i] = a->bias.values[at + i] ? scores[i] : -INFINITY;
    for (long i = 0; i < valid && a->bias_kind == ADDED; i++)
        scores[i] += number(type == BFLOAT16, a->bias.values, at + i);
    for (long i = a->bias_kind == CAUSAL && end < valid ? end < 0 ? 0 : end : valid; i < lanes; i++)
        scores[i] = -INFINITY;
}

#define LIST4(x, half) x(0, half), x(1, half), x(2, half), x(3, half)
#define LIST8(x, half) LIST4(x, half), x(4, half), x(5, half), x(6, half), x(7, half)
#define LIST16(x, half) \
    LIST8(x, half), x(8, half), x(9, half), x(10, half), x(11, half), x(12, half), x(13, half), x(14, half), x(15, half)
#if defined(__clang__)
#define SHUFFLE(ints, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(ints, a, b, ...) __builtin_shuffle(a, b, (ints){__VA_ARGS__})
#endif

#if defined(__x86_64__) && defined(__linux__)
#define HOLD(vector) __asm__("" : "+v"(vector))  /* in a register, since it is used several times */

#define NAME(x) x##_avx512
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))
#define LANES 16
#define LIST LIST16
#define WIDEN(bytes) _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(bytes))))
#include "product_block.h"

#define NAME(x) x##_avx2
#define TARGET __attribute__((target("avx2,fma")))
#define LANES 8
#define LIST LIST8
#define WIDEN(bytes) _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(bytes))))
#include "product_block.h"
#else
#define HOLD(vector)
#endif

#define NAME(x) x##_plain
#define TARGET
#define LANES 4
#define LIST LIST4
#define WIDEN(b) (floats_plain){(int8_t)(b)[0], (int8_t)(b)[1], (int8_t)(b)[2], (int8_t)(b)[3]}
#include "product_block.h"

#if defined(__x86_64__) && defined(__linux__)
/* Tiles of 16 outputs times 32 inputs are multiplied with those of up to 16 rows. A product takes them if its weights are
 * bfloat16 and whole tiles; the others, and small ones, take AVX-512.
 */
#define AMX __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))
#define SIDE 16

static AMX void prepare_amx(const struct job *job, char *arranged)
{
    const long steps = job->inputs / 32, blocks = (job->rows + SIDE - 1) / SIDE;
    uint32_t *words = (uint32_t *)arranged;  /* [steps][blocks][pairs of inputs][rows] */
    float *floats = (float *)(arranged + steps * blocks * SIDE * SIDE * 4);
    memset(arranged, 0, steps * blocks * SIDE * SIDE * 4);
    arrange_avx512(BFLOAT16, job, (char *)floats);
    for (long i = 0; i < steps * job->rows; i++) {
        const long step = i / job->rows, row = i % job->rows;
        uint32_t *to = words + (step * blocks + row / SIDE) * SIDE * SIDE + row % SIDE;
        for (int pair = 0; pair < SIDE; pair++)
            to[pair * SIDE] = to_bfloat16(floats[i * 32 + pair]) | (uint32_t)to_bfloat16(floats[i * 32 + SIDE + pair]) << 16;
    }
}

static INLINE AMX void sum_amx(const struct job *job, long output, long count, float *out)
{
    const long row_bytes = job->inputs * 2, total = job->outputs * (1 + job->is_gated);
    const long blocks = (job->rows + SIDE - 1) / SIDE;
    const long starts[2] = {output, output + SIDE};
    const char *w[2];
    float sums[2][2][SIDE][SIDE];
    for (int part = 0; part < 2; part++)
        w[part] = (const char *)job->weights + (starts[part] + SIDE <= total ? starts[part] : total - SIDE) * row_bytes;
    const char *x = job->arranged;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (long k = 0; k < row_bytes; k += 64) {
        for (int row = 0; row < TILE; row++)
            __builtin_prefetch(w[0] + k + (TILE + row) * row_bytes, 0, 2);
        _tile_loadd(4, w[0] + k, row_bytes);
        _tile_loadd(5, w[1] + k, row_bytes);
        _tile_loadd(6, x, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 5, 6);
        if (blocks > 1) {
            _tile_loadd(7, x + SIDE * 64, 64);
            _tile_dpbf16ps(2, 4, 7);
            _tile_dpbf16ps(3, 5, 7);
        }
        x += blocks * SIDE * 64;
    }
    _tile_stored(0, sums[0][0], 64);
    _tile_stored(1, sums[0][1], 64);
    _tile_stored(2, sums[1][0], 64);
    _tile_stored(3, sums[1][1], 64);
    for (long i = 0; i < count; i++) {
        const long start = starts[i / SIDE], shift = start + SIDE <= total ? 0 : start + SIDE - total;
        for (long row = 0; row < job->rows && shift + i % SIDE < SIDE; row++)
            out[row * TILE + i] = sums[row / SIDE][i / SIDE][shift + i % SIDE][row % SIDE];
    }
}

static AMX void share_amx(const struct job *job, long first, long last)
{
    const struct { uint8_t palette, start, none[14]; uint16_t bytes[16]; uint8_t rows[16]; } config = {
        .palette = 1, .bytes = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 16},
    };
    _tile_loadconfig(&config);
    SHARE(sum_amx)
    _tile_release();
}

/* Linux gives tiles to a process that asks. */
static int asked_for_tiles(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1) && (d >> 24 & 1) && !syscall(SYS_arch_prctl, 0x1023, 18);
}
#endif

static const struct {
    const char *name;
    void (*prepare)(const struct job *, char *);
    void (*share)(const struct job *, long, long);
    void (*attend)(const struct attention *, long, long, long, long, float *);
} SETS[] = {
#if defined(__x86_64__) && defined(__linux__)
    {"amx", prepare_amx, share_amx, attend_avx512},
    {"avx512", prepare_avx512, share_avx512, attend_avx512},
    {"avx2", prepare_avx2, share_avx2, attend_avx2},
#endif
    {"plain", prepare_plain, share_plain, attend_plain},
};

static int has_set(const char *name)
{
#if defined(__x86_64__) && defined(__linux__)
    const int avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
        && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (!strcmp(name, "amx"))
        return avx512 && asked_for_tiles();
    if (!strcmp(name, "avx512"))
        return avx512;
    if (!strcmp(name, "avx2"))
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    return 1;
}

/* The functions of the OpenMP library that torch has loaded for all; GNU's and LLVM's have them. */
static void (*parallel)(void (*)(void *), void *, unsigned, unsigned);
static int (*thread_number)(void), (*thread_count)(void);
static int is_forked;  /* the threads stay behind, and waiting for them would take for ever */

static void note_fork(void)
{
    is_forked = 1;
}

static void run_share(void *data)
{
    const struct job *job = data;
    const long thread = thread_number(), threads = thread_count(), blocks = (job->outputs + OUTPUTS - 1) / OUTPUTS;
    const long first = blocks * thread / threads * OUTPUTS, last = blocks * (thread + 1) / threads * OUTPUTS;
    SETS[job->set].share(job, first, last < job->outputs ? last : job->outputs);
}

/* Reads integers, pointers among them, behind the first `skipped` arguments. */
static int parsed(PyObject *const *args, Py_ssize_t given, int skipped, int count, long long *values)
{
    if (given != skipped + count) {
        PyErr_Format(PyExc_TypeError, "got %zd arguments and takes %d", given, skipped + count);
        return 0;
    }
    for (int i = 0; i < count; i++)
        values[i] = PyLong_AsLongLong(args[skipped + i]);
    return !PyErr_Occurred();
}

/* What stays the same from call to call, as one object. */
static PyObject *plan(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    long long v[10];
    if (!parsed(args, given, 1, 10, v))
        return NULL;
    struct job job = {
        .set = v[0], .inputs = v[1], .outputs = v[2], .type = v[3], .is_bfloat16 = v[4], .is_gated = v[5],
        .weights = (void *)v[6], .scales = (void *)v[7], .bias = (void *)v[8], .norm = (void *)v[9],
        .epsilon = PyFloat_AsDouble(args[0]),
    };
    if (!strcmp(SETS[job.set].name, "amx") && (job.type != BFLOAT16 || job.inputs % 32 || job.outputs < TILE))
        job.set++;
    return PyErr_Occurred() ? NULL : PyBytes_FromStringAndSize((const char *)&job, sizeof job);
}

/* Arranges the input of a product; 0 if there is no memory for it, which the caller frees otherwise. */
static int prepare(struct job *job)
{
    void *arranged;
    if (posix_memalign(&arranged, 64, (job->rows + 32) * (job->inputs + 64) * 4))
        return 0;
    SETS[job->set].prepare(job, arranged);
    job->arranged = arranged;
    return 1;
}

static void run(const struct job *job, int threads)
{
    if (threads > 1 && parallel && !is_forked && job->inputs * job->outputs >= FEW_WEIGHTS)
        parallel(run_share, (void *)job, threads, 0);
    else
        SETS[job->set].share(job, 0, job->outputs);
}

/* The products of a draft adapter: first that of down, whose results are the input of that of up. */
static int run_draft(const struct job *job, struct job *down, struct job *up, int threads, void *results)
{
    down->x = job->x, down->y = results;
    if (!prepare(down))
        return 0;
    run(down, threads);
    up->x = results;
    return prepare(up);
}

static int planned(PyObject *plan, struct job *job)
{
    char *bytes;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(plan, &bytes, &size) < 0)
        return 0;
    if (size != sizeof *job) {
        PyErr_SetString(PyExc_ValueError, "a plan has another size");
        return 0;
    }
    memcpy(job, bytes, size);
    return 1;
}

/* product(plan, plan of down or None, plan of up or None, threads, rows, x, added, y, is_text) */
static PyObject *product(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    long long v[6];
    struct job job, down = {0}, up = {0};
    if (!parsed(args, given, 3, 6, v) || !planned(args[0], &job))
        return NULL;
    const int has_draft = args[1] != Py_None, threads = v[0];
    if (has_draft && (!planned(args[1], &down) || !planned(args[2], &up)))
        return NULL;
    if (has_draft)
        job.set = up.set = up.set > job.set ? up.set : job.set;  /* sums are added while they are in the same order */
    if (v[1] < 1 || v[1] > MOST_ROWS)
        return PyErr_Format(PyExc_ValueError, "product() takes 1 to %d rows and got %lld", MOST_ROWS, v[1]);
    job.rows = v[1], job.x = (void *)v[2], job.added = (void *)v[3], job.y = (void *)v[4];
    const char *is_text = (char *)v[5];
    int masks = 0, texts = job.rows;
    for (int row = job.rows - 1; row >= 0; row--)  /* rows of text come last, where a draft adapter does nothing */
        if (has_draft && is_text[row])
            job.places[--texts] = row;
    for (int row = 0; row < job.rows; row++)
        if (!has_draft || !is_text[row])
            job.places[masks++] = row;
    down.rows = up.rows = masks;
    memcpy(down.places, job.places, sizeof job.places);
    memcpy(up.places, job.places, sizeof job.places);
    void *results = has_draft ? malloc(job.rows * down.outputs * 4) : NULL;
    int is_done = !has_draft || results;
    Py_BEGIN_ALLOW_THREADS
    if (has_draft && is_done)
        is_done = run_draft(&job, &down, &up, threads, results);
    job.draft = has_draft ? &up : NULL;
    if (is_done && (is_done = prepare(&job)))
        run(&job, threads);
    free((void *)job.arranged);
    free((void *)down.arranged);
    free((void *)up.arranged);
    free(results);
    Py_END_ALLOW_THREADS
    if (!is_done)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

/* Normalises the queries and keys of a row, if there are weights for that, and rotates them. */
static void rotate_row(int is_bfloat16, long queries, long heads, long width, void *row, const void *cosines, const void *sines, const void *query_norm, const void *key_norm, float query_epsilon, float key_epsilon)
{
    float values[MOST_WIDTH], factor = 1;
    for (long head = 0; head < heads; head++) {
        const void *norm = head < queries ? query_norm : key_norm;
        const float epsilon = head < queries ? query_epsilon : key_epsilon;
        float squares = 0;
        for (long i = 0; i < width; i++)
            values[i] = number(is_bfloat16, row, head * width + i);
        for (long i = 0; i < width && norm; i++)
            squares += values[i] * values[i];
        factor = 1 / sqrtf(squares / width + epsilon);
        for (long i = 0; i < width && norm; i++)
            values[i] *= factor * number(is_bfloat16, norm, i);
        for (long i = 0; i < width; i++) {
            const float other = i < width / 2 ? -values[i + width / 2] : values[i - width / 2];
            set_number(is_bfloat16, row, head * width + i, values[i] * number(is_bfloat16, cosines, i) + other * number(is_bfloat16, sines, i));
        }
    }
}

static PyObject *rotate(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    long long v[11];
    if (!parsed(args, given, 2, 11, v))
        return NULL;
    const float query_epsilon = PyFloat_AsDouble(args[0]), key_epsilon = PyFloat_AsDouble(args[1]);
    const long rows = v[1], queries = v[2], heads = v[3], width = v[4], stride = v[5], size = v[0] ? 2 : 4;
    if (width > MOST_WIDTH)
        return PyErr_Format(PyExc_ValueError, "rotate() takes heads of %d values at most and got %ld", MOST_WIDTH, width);
    for (long row = 0; row < rows; row++)
        rotate_row(v[0], queries, heads, width, (char *)v[6] + row * stride * size, (char *)v[7] + row * width * size, (char *)v[8] + row * width * size, (void *)v[9], (void *)v[10], query_epsilon, key_epsilon);
    Py_RETURN_NONE;
}

struct attention_share {
    const struct attention *attention;
    long tasks, chunks, floats;  /* all tasks, those of a head of keys, and the memory of a thread */
    int is_parallel;
    float *memory;
};

static void attend_share(void *data)
{
    const struct attention_share *all = data;
    const struct attention *a = all->attention;
    const long thread = all->is_parallel ? thread_number() : 0, threads = all->is_parallel ? thread_count() : 1;
    for (long task = all->tasks * thread / threads; task < all->tasks * (thread + 1) / threads; task++) {
        const long head = task / all->chunks, first = task % all->chunks * ATTENDED, rows = a->queries * (a->heads / a->key_heads) - first;
        SETS[a->set].attend(a, head / a->key_heads, head % a->key_heads, first, rows < ATTENDED ? rows : ATTENDED, all->memory + thread * all->floats);
    }
}

/* attend(scale, threads, set, type, bias kind, batch, queries, heads, key_heads, width, entries, y, and the place and three
 * strides of query, key, value and bias)
 */
static PyObject *attend(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    long long v[27];
    if (!parsed(args, given, 1, 27, v))
        return NULL;
    struct attention a = {
        .scale = PyFloat_AsDouble(args[0]), .set = v[1], .type = v[2], .bias_kind = v[3], .batch = v[4], .queries = v[5],
        .heads = v[6], .key_heads = v[7], .width = v[8], .entries = v[9], .y = (void *)v[10],
    };
    struct states *states[] = {&a.query, &a.key, &a.value, &a.bias};
    for (int i = 0; i < 4; i++)
        *states[i] = (struct states){(char *)v[11 + 4 * i], {v[12 + 4 * i], v[13 + 4 * i], v[14 + 4 * i]}};
    const long rows = a.queries * (a.heads / a.key_heads), padded = (a.width + 63) / 64 * 64, columns = (a.entries + 15) / 16 * 16;
    struct attention_share all = {
        .attention = &a, .chunks = (rows + ATTENDED - 1) / ATTENDED, .floats = (2 * ATTENDED + 16) * padded + ATTENDED * columns,
        .is_parallel = v[0] > 1 && parallel && !is_forked && a.batch * a.heads * a.queries * a.entries * a.width >= FEW_PRODUCTS,
    };
    all.tasks = a.batch * a.key_heads * all.chunks;
    if (posix_memalign((void **)&all.memory, 64, (all.is_parallel ? v[0] : 1) * all.floats * 4))
        return PyErr_NoMemory();
    Py_BEGIN_ALLOW_THREADS
    if (all.is_parallel)
        parallel(attend_share, &all, v[0], 0);
    else
        attend_share(&all);
    Py_END_ALLOW_THREADS
    free(all.memory);
    Py_RETURN_NONE;
}

static PyObject *instruction_sets(PyObject *module, PyObject *none)
{
    PyObject *names = PyList_New(0);
    for (size_t i = 0; names && i < sizeof SETS / sizeof *SETS; i++) {
        PyObject *name = has_set(SETS[i].name) ? PyUnicode_FromString(SETS[i].name) : Py_NewRef(Py_None);
        if (!name || PyList_Append(names, name) < 0)
            Py_CLEAR(names);
        Py_XDECREF(name);
    }
    return names;
}

static PyMethodDef METHODS[] = {
    {"plan", (PyCFunction)(void (*)(void))plan, METH_FASTCALL, NULL},
    {"product", (PyCFunction)(void (*)(void))product, METH_FASTCALL, NULL},
    {"rotate", (PyCFunction)(void (*)(void))rotate, METH_FASTCALL, NULL},
    {"attend", (PyCFunction)(void (*)(void))attend, METH_FASTCALL, NULL},
    {"instruction_sets", instruction_sets, METH_NOARGS, "The instruction sets by number; None for one that this CPU lacks."},
    {0},
};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, .m_name = "_product", .m_size = -1, .m_methods = METHODS};

PyMODINIT_FUNC PyInit__product(void)
{
    parallel = dlsym(RTLD_DEFAULT, "GOMP_parallel");
    thread_number = dlsym(RTLD_DEFAULT, "omp_get_thread_num");
    thread_count = dlsym(RTLD_DEFAULT, "omp_get_num_threads");
    pthread_atfork(NULL, NULL, note_fork);
    return PyModule_Create(&MODULE);
}
