/* Decoder layers of few rows, in one call of all threads, products of few rows, and what is between those of many.
 *
 * Threads are those of the OpenMP library that torch has loaded. A forward is a sequence of phases, in each of which
 * the threads take pieces of work: first those of their own share, then what others have left. A thread that is not
 * running has no piece, so nobody waits for it; who has to wait spins for a moment, and then sleeps.
 */
#include "sets.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#define FEW_WEIGHTS 16384  /* one thread has read them before a second one begins */
#define SPINS 2000
#define LONG_BLOCK 96      /* of many rows, those for which a thread reads a span at once */
#define TRANSPOSED 24      /* rows from which on a span is transposed for them */

static const struct {
    const char *name;
    void (*arrange)(const struct job *, char *);
    void (*outputs)(const struct job *, long, long);
    void (*rotate)(const struct forward *, const struct layer *, long, long, char *);
    void (*attend)(const struct attention *, char *);
    void (*merge)(const struct attention *, const float *, long, long, char *);
    void (*row)(const struct job *, long);
    void (*unpack)(const struct unpacking *, long, long, float *);
    int has_pairs;
} SETS[] = {
#define OF(set, blocks) rotate_head_##set, attend_##set, merge_##set, row_##set, unpack_rows_##blocks
#if defined(__x86_64__)
    {"amx", arrange_amx, outputs_amx, OF(avx512, avx512), 0},
    {"avx512bf16", arrange_avx512bf16, outputs_avx512bf16, OF(avx512bf16, avx512), 1},
    {"avx512", arrange_avx512, outputs_avx512, OF(avx512, avx512), 0},
    {"avx2", arrange_avx2, outputs_avx2, OF(avx2, avx2), 0},
    {"plain", arrange_plain, outputs_plain, OF(plain, plain), 0},
#elif defined(__aarch64__)
    {"neon", arrange_plain, outputs_plain, OF(plain, plain), 0},
#else
    {"plain", arrange_plain, outputs_plain, OF(plain, plain), 0},
#endif
};

static int has_set(const char *name)
{
    (void)name;
#if defined(__x86_64__)
    __builtin_cpu_init();
    const int avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
        && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    const int pairs = avx512 && __builtin_cpu_supports("avx512bf16");
    if (!strcmp(name, "amx"))
        return avx512 && asked_for_tiles();
    if (!strcmp(name, "avx512bf16"))
        return pairs;
    if (!strcmp(name, "avx512"))
        return avx512;
    if (!strcmp(name, "avx2"))
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
#endif
    return 1;
}

const char *set_name(int set)
{
    if (set >= (int)(sizeof SETS / sizeof *SETS))
        return NULL;
    return has_set(SETS[set].name) ? SETS[set].name : "";
}

/* --- Threads --- */

static void (*parallel)(void (*)(void *), void *, unsigned, unsigned);
static int (*thread_number)(void);
static int is_forked;  /* the threads stay behind, and waiting for them would take for ever */

static void note_fork(void)
{
    is_forked = 1;
}

void find_threads(void)
{
    parallel = (void (*)(void (*)(void *), void *, unsigned, unsigned))dlsym(RTLD_DEFAULT, "GOMP_parallel");
    thread_number = (int (*)(void))dlsym(RTLD_DEFAULT, "omp_get_thread_num");
    pthread_atfork(NULL, NULL, note_fork);
}

/* A counter that shares its cache line with no other. */
struct counter {
    _Alignas(64) atomic_long value;
};

struct worker;

/* The threads of a call: for each phase how many pieces of each share are taken, and how many of all are done. */
struct team {
    void (*run)(struct worker *);
    const void *work;
    long threads, bytes;  /* the memory of a thread */
    struct counter *counters;
    char *memory;
};

struct worker {
    const struct team *team;
    char *memory;
    long thread, phase, share, taken;
};

/* Takes a piece of this phase, of which there are `pieces`; -1 if none is left. */
static long take(struct worker *me, long pieces)
{
    const long threads = me->team->threads;
    for (; me->share < threads; me->share++) {
        const long owner = (me->thread + me->share) % threads;
        const long first = pieces * owner / threads, last = pieces * (owner + 1) / threads;
        struct counter *counter = me->team->counters + me->phase * (threads + 1) + owner;
        const long piece = first + atomic_fetch_add_explicit(&counter->value, 1, memory_order_acq_rel);
        if (piece < last) {
            me->taken++;
            return piece;
        }
    }
    return -1;
}

/* Counts a piece of work; whether it was the last one. */
static int count_piece(struct counter *counter, long pieces)
{
    return atomic_fetch_add_explicit(&counter->value, 1, memory_order_acq_rel) == pieces - 1;
}

static void rest(long waited)
{
    if (waited >= SPINS) {
        const struct timespec moment = {.tv_nsec = 50000};
        nanosleep(&moment, NULL);
        return;
    }
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Waits until all pieces of this phase are done. */
static void finish(struct worker *me, long pieces)
{
    struct counter *done = me->team->counters + me->phase * (me->team->threads + 1) + me->team->threads;
    if (me->taken)
        atomic_fetch_add_explicit(&done->value, me->taken, memory_order_acq_rel);
    for (long waited = 0; atomic_load_explicit(&done->value, memory_order_acquire) < pieces; waited++)
        rest(waited);
    me->phase++;
    me->share = me->taken = 0;
}

static void run_worker(void *data)
{
    const struct team *team = data;
    struct worker me = {.team = team};
    if (team->threads > 1)
        me.thread = thread_number();
    me.memory = team->memory + me.thread * team->bytes;
    team->run(&me);
}

/* Runs a function in all threads; 0 if there is no memory. */
static int run_team(struct team *team, long phases)
{
    if (team->threads < 2 || !parallel || !thread_number || is_forked)
        team->threads = 1;
    const size_t counters = phases * (team->threads + 1) * sizeof *team->counters;
    void *memory;
    team->bytes = (team->bytes + 4095) / 4096 * 4096 + 64;
    if (posix_memalign(&memory, 64, counters + team->threads * team->bytes))
        return 0;
    memset(memory, 0, counters);
    team->counters = memory;
    team->memory = (char *)memory + counters;
    if (team->threads > 1)
        parallel(run_worker, team, team->threads, 0);
    else
        run_worker(team);
    free(memory);
    return 1;
}

/* --- Products --- */

static long most(long a, long b)
{
    return a > b ? a : b;
}

static long least(long a, long b)
{
    return a < b ? a : b;
}

static enum kind kind_of(const struct product *p, enum type type, int set)
{
    if (p->weights->type != (int32_t)type || p->weights->order || p->weights[1].count)
        return BLOCKS;
    if (type == FLOAT32)
        return FLOATS;
    if (!strcmp(SETS[set].name, "amx") && p->inputs % 32 == 0 && p->outputs * (1 + p->is_gated) >= 16)
        return TILES;
    return SETS[set].has_pairs ? PAIRS : SPLIT;
}

/* Bytes of an arranged row; rows do not begin at the same places of the nearest cache. */
static long arranged_bytes(enum kind kind, long inputs)
{
    return (inputs + 31) / 32 * 32 * (kind == PAIRS ? 2 : 4) + 64;
}

/* Memory for the arranged rows of a product, and for four of weights; tiles need whole ones, and a row more. */
static long memory_of(const struct product *p, long rows)
{
    const long one = arranged_bytes(FLOATS, p->inputs);
    const long draft = p->down ? most(memory_of(p->down, rows), memory_of(p->up, rows)) : 0;
    return one * (4 + (rows + 15) / 16 * 16 + 1) + draft;
}

static struct job job_of(const struct product *p, enum type type, int set, long rows, const void *x, void *y)
{
    const enum kind kind = kind_of(p, type, set);
    return (struct job){
        .product = p, .rows = rows, .row_bytes = arranged_bytes(kind, p->inputs), .type = type, .kind = kind, .x = x,
        .y = y,
    };
}

/* The rows, among few, in which a draft adapter acts. */
struct masks {
    long count;
    int places[MOST_ROWS], numbers[MOST_ROWS];  /* of each of them the row; of each row which of them it is, or -1 */
};

static struct masks masks_of(const uint8_t *is_text, long rows)
{
    struct masks masks = {0};
    for (long row = 0; row < rows && is_text; row++) {
        masks.numbers[row] = is_text[row] ? -1 : masks.count;
        if (masks.numbers[row] >= 0)
            masks.places[masks.count++] = row;
    }
    return masks;
}

/* A forward, and memory for it. */
struct forward_work {
    struct forward f;
    struct masks masks;
    char *heads, *attended, *gated, *lowered;
    long spans, padded;
    int is_long, transposes;   /* whether rows are many: a thread reads all spans for a part of the queries */
    long blocks, block_rows;   /* of the rows of a key head: in parts of its queries, or of its rows */
    long parts, part_queries;  /* of the queries */
    int64_t *seen;             /* [batch][parts][2]: the first entry that a query sees, and the last one and one */
    float *results;            /* of attention: [batch][key_heads][blocks][spans][block_rows][padded + 2] */
    struct counter *projected;       /* pieces of each head, over all layers */
    struct counter *attended_spans;  /* of each batch row, key head and block of rows, over all layers */
};

/* Rotates a head of queries or keys, and puts one of keys or values where it stays. */
static void complete_head(const struct forward_work *w, long layer, long head)
{
    const struct forward *f = &w->f;
    const long all = f->num_heads + 2 * f->num_key_heads, size = SIZE(f->type), rows = f->batch * f->queries;
    const int is_value = head >= f->num_heads + f->num_key_heads;
    const long key_head = head - f->num_heads - (is_value ? f->num_key_heads : 0);
    const int64_t *strides = is_value ? f->value_strides : f->key_strides;
    for (long row = 0; row < rows; row++) {
        char *values = w->heads + (row * all + head) * f->width * size;
        const long batch = row / f->queries, before = f->lengths ? f->lengths[batch] : f->entries - f->queries;
        if (!is_value)
            SETS[f->set].rotate(f, f->layers + layer, row, head, values);
        if (head < f->num_heads || !(f->stages & STORE))
            continue;
        const struct states *states = f->states + layer;
        const long at = batch * strides[0] + key_head * strides[1] + (before + row % f->queries) * strides[2];
        memcpy((char *)(is_value ? states->values : states->keys) + at * size, values, f->width * size);
    }
}

/* A phase that computes a product, before which comes that of a draft adapter's first one, which writes to `lowered`.
 * With the projections of `w`, heads are completed as soon as all their outputs are there.
 */
static void product_phase(
    struct worker *me, int set, struct job job, const struct masks *masks, void *lowered, const struct forward_work *w,
    long layer)
{
    const struct product *p = job.product;
    struct job draft;
    if (masks && masks->count && p->down) {
        draft = job_of(p->down, job.type, set, masks->count, job.x, lowered);
        draft.places = masks->places;
        product_phase(me, set, draft, NULL, NULL, NULL, 0);
        draft = job_of(p->up, job.type, set, masks->count, lowered, NULL);
        draft.arranged = me->memory + memory_of(p, job.rows) - memory_of(p->up, job.rows);
        job.draft = &draft;
        job.draft_rows = masks->numbers;
    }
    const long part = w ? w->f.width : p->outputs, parts = p->outputs / part, most = part < TILE ? part : TILE;
    const int is_even = (part + most - 1) / most * parts % me->team->threads == 0;
    const long size = is_even ? most : (most + 1) / 2;  /* so that threads have as many pieces, or nearly */
    const long pieces = (part + size - 1) / size;
    job.kept = (float *)me->memory;
    job.arranged = me->memory + 4 * arranged_bytes(FLOATS, p->inputs);
    for (long piece; (piece = take(me, pieces * parts)) >= 0;) {
        if (me->taken == 1) {
            SETS[set].arrange(&job, job.arranged);
            if (job.draft)
                SETS[set].arrange(&draft, draft.arranged);
        }
        const long first = piece % pieces * size, end = first + size < part ? first + size : part;
        SETS[set].outputs(&job, piece / pieces * part + first, end - first);
        if (w && count_piece(w->projected + piece / pieces, pieces * (layer + 1)))
            complete_head(w, layer, piece / pieces);
    }
    finish(me, pieces * parts);
}

struct product_work {
    const struct multiplication *m;
    struct masks masks;
    void *lowered;
};

static void run_rows(struct worker *me)
{
    const struct multiplication *m = ((const struct product_work *)me->team->work)->m;
    const struct job job = job_of(m->product, m->type, m->set, m->rows, m->x, m->y);
    const long pieces = (m->rows + 7) / 8;
    for (long piece; (piece = take(me, pieces)) >= 0;)
        for (long row = piece * 8; row < m->rows && row < piece * 8 + 8; row++)
            SETS[m->set].row(&job, row);
    finish(me, pieces);
}

static void run_product(struct worker *me)
{
    const struct product_work *work = me->team->work;
    const struct multiplication *m = work->m;
    struct job job = job_of(m->product, m->type, m->set, m->rows, m->x, m->y);
    job.added = m->added;
    product_phase(me, m->set, job, &work->masks, work->lowered, NULL, 0);
}

int multiply(const void *multiplication)
{
    const struct multiplication *m = multiplication;
    const struct product *p = m->product;
    struct product_work work = {.m = m, .masks = masks_of(p->down ? m->is_text : NULL, m->rows)};
    struct team team = {.run = run_product, .work = &work, .threads = m->threads};
    if (p->weights->type == NO_WEIGHTS)
        team.run = run_rows;
    else
        team.bytes = memory_of(p, m->rows);
    if (p->inputs * (p->weights->type == NO_WEIGHTS ? m->rows : p->outputs) < FEW_WEIGHTS)
        team.threads = 1;
    if (work.masks.count && !(work.lowered = malloc(m->rows * p->down->outputs * 4)))
        return 0;
    const int is_done = run_team(&team, 2);
    free(work.lowered);
    return is_done;
}

static void run_unpack(struct worker *me)
{
    const struct unpacking *u = me->team->work;
    const long pieces = (u->rows + 15) / 16;
    for (long piece; (piece = take(me, pieces)) >= 0;)
        for (long row = piece * 16; row < u->rows && row < piece * 16 + 16; row += 4)
            SETS[u->set].unpack(u, row, least(4, u->rows - row), (float *)me->memory);
    finish(me, pieces);
}

int unpack(const void *unpacking)
{
    const struct unpacking *u = unpacking;
    for (long i = 0; i < u->rows && u->places; i++)
        if (u->places[i] < 0 || u->places[i] >= u->weights->count)
            return -1;
    struct team team = {.run = run_unpack, .work = u, .threads = u->threads, .bytes = 4 * 4 * u->inputs};
    if (u->inputs * u->rows < FEW_WEIGHTS)
        team.threads = 1;
    return run_team(&team, 1);
}

/* --- Decoder layers --- */

/* Memory of a thread for the queries and scores of a block of rows, and the keys of a span. */
static long attention_bytes(const struct forward_work *w)
{
    const long keys = w->transposes ? w->padded * KEYS_APART * 4 : 0;
    return 8 * arranged_bytes(FLOATS, w->f.width) + 8 * MOST_SPAN * 4 + keys;
}

static long span_start(long span)  /* entries are read in spans of 128 at first, later of 256 */
{
    return span < 8 ? span * 128 : 1024 + (span - 8) * 256;
}

static long num_spans(long entries)
{
    return entries <= 1024 ? (entries + 127) / 128 : 8 + (entries - 1024 + 255) / 256;
}

static int is_seen(const struct forward *f, long at)
{
    return f->bias_kind == SEEN ? ((const uint8_t *)f->bias)[at] : number(f->type, f->bias, at) > -3.3e38f;
}

static void find_seen(const struct forward_work *w, int64_t *seen)
{
    const struct forward *f = &w->f;
    for (long part = 0; part < f->batch * w->parts; part++, seen += 2) {
        const long batch = part / w->parts, first = part % w->parts * w->part_queries;
        const long next = least(first + w->part_queries, f->queries);
        const long before = f->lengths ? f->lengths[batch] : f->entries - f->queries;
        seen[0] = 0, seen[1] = least(before + next, f->entries);
        if (f->bias_kind == CAUSAL)
            continue;
        seen[0] = f->entries, seen[1] = 0;
        for (long query = first; query < next; query++) {
            const long row = batch * f->bias_strides[0] + query * f->bias_strides[1];
            long from = 0, to = f->entries;
            uint64_t eight;
            for (; f->bias_kind == SEEN && to >= 8; to -= 8)
                if (memcpy(&eight, (const uint8_t *)f->bias + row + to - 8, 8), eight)
                    break;
            while (to > 0 && !is_seen(f, row + to - 1))
                to--;
            if (to == 0 && f->bias_kind == ADDED)  /* all entries share the attention of a query that sees none */
                to = f->entries;
            else
                while (from < least(to, seen[0]) && !is_seen(f, row + from))
                    from++;
            seen[0] = to > 0 ? least(from, seen[0]) : seen[0], seen[1] = most(to, seen[1]);
        }
    }
}

static void attention_phase(struct worker *me, const struct forward_work *w, long layer)
{
    const struct forward *f = &w->f;
    const long group = f->num_heads / f->num_key_heads, stride = w->padded + 2;
    const long spans = w->is_long ? w->spans : 1, shares = w->spans / spans;  /* of a piece, and pieces of a block */
    const long pieces = f->batch * f->num_key_heads * w->blocks * shares;
    for (long piece; (piece = take(me, pieces)) >= 0;) {
        const long block = piece / shares % w->blocks, head = piece / shares / w->blocks;
        const long batch = head / f->num_key_heads, part = w->is_long ? block : 0;
        const int64_t *seen = w->seen + 2 * (batch * w->parts + part);
        float *results = w->results + piece / shares * w->spans * w->block_rows * stride;
        struct attention a = {
            .forward = f, .states = f->states + layer, .batch = batch, .key_head = head % f->num_key_heads,
            .first_query = part * w->part_queries, .first = w->is_long ? 0 : block * w->block_rows,
            .padded = w->padded, .row_bytes = arranged_bytes(FLOATS, f->width), .transposes = w->transposes,
        };
        a.queries = least(w->part_queries, f->queries - a.first_query);
        a.rows = least(w->block_rows, group * a.queries - a.first);
        if (w->is_long)
            results = (float *)(me->memory + attention_bytes(w));
        for (long span = piece % shares * spans; span < piece % shares * spans + spans; span++) {
            a.results = results + span * w->block_rows * stride;
            a.start = span_start(span);
            a.end = least(span_start(span + 1), w->is_long ? seen[1] : f->entries);
            if (a.start < seen[1] && a.end > seen[0]) {
                SETS[f->set].attend(&a, me->memory);
            } else {
                for (long row = 0; row < a.rows; row++)
                    a.results[row * stride + w->padded + 1] = 0;
            }
        }
        if (!w->is_long && !count_piece(w->attended_spans + piece / shares, shares * (layer + 1)))
            continue;
        for (long row = 0; row < a.rows; row++) {  /* all spans of the block are done */
            const long query = batch * f->queries + a.first_query + (a.first + row) % a.queries;
            const long query_head = a.key_head * group + (a.first + row) / a.queries;
            char *to = w->attended + (query * f->num_heads + query_head) * f->width * SIZE(f->type);
            SETS[f->set].merge(&a, results + row * stride, w->spans, w->block_rows * stride, to);
        }
    }
    finish(me, pieces);
}

static void run_layers(struct worker *me)
{
    const struct forward_work *w = me->team->work;
    const struct forward *f = &w->f;
    const long rows = f->batch * f->queries;
    for (long i = 0; i < f->num_layers; i++) {
        const struct layer *layer = f->layers + i;
        if (f->stages & PROJECT) {
            struct job job = job_of(&layer->query_key_value, f->type, f->set, rows, f->hidden, w->heads);
            product_phase(me, f->set, job, &w->masks, w->lowered, w, i);
        }
        if (f->stages & ROTATE) {
            const long heads = f->num_heads + 2 * f->num_key_heads;
            for (long head; (head = take(me, heads)) >= 0;)
                complete_head(w, i, head);
            finish(me, heads);
        }
        if (f->stages & ATTEND)
            attention_phase(me, w, i);
        if (f->stages & COMPLETE) {
            struct job output = job_of(&layer->output, f->type, f->set, rows, w->attended, f->hidden);
            struct job gate_up = job_of(&layer->gate_up, f->type, f->set, rows, f->hidden, w->gated);
            struct job down = job_of(&layer->down, f->type, f->set, rows, w->gated, f->hidden);
            output.added = down.added = f->hidden;
            product_phase(me, f->set, output, &w->masks, w->lowered, NULL, 0);
            product_phase(me, f->set, gate_up, &w->masks, w->lowered, NULL, 0);
            product_phase(me, f->set, down, &w->masks, w->lowered, NULL, 0);
        }
    }
}

/* Parts of the memory of a call, one behind the other; an address, because NULL has no bytes behind it. */
static void *part(uintptr_t *memory, long bytes)
{
    const uintptr_t start = *memory;
    *memory += (bytes + 63) / 64 * 64;
    return (void *)start;
}

int forward(const void *forward)
{
    struct forward_work w = {.f = *(const struct forward *)forward};
    struct forward *f = &w.f;
    const long rows = f->batch * f->queries, all = f->num_heads + 2 * f->num_key_heads, size = SIZE(f->type);
    const long group = f->num_heads / f->num_key_heads, heads = f->batch * f->num_key_heads;
    const int has_products = f->stages & (PROJECT | COMPLETE);
    long rank = 0, bytes = 0, weights = has_products ? 0 : FEW_WEIGHTS;
    for (long i = 0; i < f->num_layers && has_products; i++) {
        const struct layer *layer = f->layers + i;
        const struct product *products[] = {&layer->query_key_value, &layer->output, &layer->gate_up, &layer->down};
        for (int j = 0; j < 4; j++) {
            rank = most(rank, products[j]->down ? products[j]->down->outputs : 0);
            bytes = most(bytes, memory_of(products[j], rows));
            weights += products[j]->inputs * products[j]->outputs;
        }
    }
    w.masks = masks_of(rank ? f->is_text : NULL, rows);
    w.padded = (f->width + 31) / 32 * 32;
    w.spans = num_spans(f->entries);
    w.is_long = rows > MOST_ROWS;
    w.part_queries = w.is_long ? least(f->queries, (LONG_BLOCK + group - 1) / group) : f->queries;
    w.parts = (f->queries + w.part_queries - 1) / w.part_queries;
    w.block_rows = group * w.part_queries;
    if (!w.is_long && heads * w.spans < 3 * f->threads && w.block_rows > 6)  /* too few pieces for all threads */
        w.block_rows = 6;
    w.transposes = w.is_long && w.block_rows >= TRANSPOSED;
    w.blocks = w.is_long ? w.parts : (group * f->queries + w.block_rows - 1) / w.block_rows;
    const long results = w.spans * w.block_rows * (w.padded + 2) * 4;  /* of a block */
    bytes = most(bytes, attention_bytes(&w) + (w.is_long ? results : 0));
    void *start = NULL;
    for (uintptr_t memory = 0;;) {  /* first to know the size */
        w.heads = part(&memory, f->heads ? 0 : rows * all * f->width * size);
        w.attended = part(&memory, f->attended ? 0 : rows * f->num_heads * f->width * size);
        w.gated = part(&memory, f->stages & COMPLETE ? rows * f->layers->gate_up.outputs * size : 0);
        w.lowered = part(&memory, w.masks.count * rank * size);
        w.seen = part(&memory, f->batch * w.parts * 2 * sizeof *w.seen);
        w.results = part(&memory, w.is_long ? 0 : heads * w.blocks * results);
        w.projected = part(&memory, all * sizeof *w.projected);
        w.attended_spans = part(&memory, heads * w.blocks * sizeof *w.attended_spans);
        struct states *own = part(&memory, f->num_layers * sizeof *own);
        if (!start) {
            if (posix_memalign(&start, 64, memory + 64))
                return 0;
            memory = (uintptr_t)start;
            continue;
        }
        memset(w.projected, 0, all * sizeof *w.projected);
        memset(w.attended_spans, 0, heads * w.blocks * sizeof *w.attended_spans);
        f->heads = w.heads = f->heads ? f->heads : w.heads;
        w.attended = f->attended ? f->attended : w.attended;
        if (!f->states) {  /* the queries are the only entries, and stay where they were projected */
            for (long i = 0; i < f->num_layers; i++) {
                own[i].keys = w.heads + f->num_heads * f->width * size;
                own[i].values = w.heads + (f->num_heads + f->num_key_heads) * f->width * size;
            }
            const int64_t strides[] = {f->queries * all * f->width, f->width, all * f->width};
            memcpy(f->key_strides, strides, sizeof strides);
            memcpy(f->value_strides, strides, sizeof strides);
            f->states = own;
            f->stages &= ~STORE;
        }
        if (f->stages & ATTEND)
            find_seen(&w, w.seen);
        struct team team = {.run = run_layers, .work = &w, .threads = f->threads, .bytes = bytes};
        if (weights < FEW_WEIGHTS)
            team.threads = 1;
        const int is_done = run_team(&team, (w.masks.count ? 9 : 5) * f->num_layers);
        free(start);
        return is_done;
    }
}
