/* Weights in GGUF's blocks as floats, by one instruction set; see sets.h and vectors.h.
 *
 * A block has 32 or 256 weights, each of which is code * scale + offset, rounded once: what the file's own format
 * says, to the bit. Four rows are unpacked side by side.
 */

#define HAS_TABLE(type) (LANES == 16 && ((type) == Q4_0 || (type) == Q4_1 || (type) == Q4_K))
#define HAS_OFFSET(type) ((type) >= Q4_0 && (type) != Q8_0 && (type) != Q6_K)
#define AHEAD_BYTES 8000  /* that are fetched before they are multiplied */
#define TOGETHER(type) ((type) == Q6_K ? 128 : (type) >= Q4_K ? 64 : 32)  /* weights whose bits lie together */
/* Rows of x whose products are added up as weights are unpacked; for more of them these are kept. */
#if MOST_TOGETHER >= 6
#define MOST_DIRECT 6
#else
#define MOST_DIRECT 2
#endif
#define DIRECT_ROWS(type) ((type) >= Q4_0 ? MOST_DIRECT : (type) == FLOAT32 ? 0 : 1)

static INLINE TARGET NAME(ints) NAME(unsigned_bytes)(const uint8_t *bytes)
{
#if LANES == 16
    return (NAME(ints))_mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)bytes));
#elif LANES == 8
    return (NAME(ints))_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)bytes));
#else
    return (NAME(ints)){bytes[0], bytes[1], bytes[2], bytes[3]};
#endif
}

static INLINE TARGET NAME(floats) NAME(signed_bytes)(const uint8_t *bytes)
{
#if LANES == 16
    return (NAME(floats))_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)bytes)));
#elif LANES == 8
    return (NAME(floats))_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)bytes)));
#else
    const int8_t *values = (const int8_t *)bytes;
    return (NAME(floats)){values[0], values[1], values[2], values[3]};
#endif
}

/* Converts numbers in 16 bits, `count` at the start of each of four blocks. */
static INLINE TARGET void NAME(headers)(int count, const uint8_t *const *blocks, float *to)
{
    uint16_t halves[8];
    for (int o = 0; o < 4; o++)
        memcpy(halves + o * count, blocks[o], count * 2);
#if LANES >= 8
    if (count == 2)
        _mm256_storeu_ps(to, _mm256_cvtph_ps(_mm_loadu_si128((const void *)halves)));
    else
        _mm_storeu_ps(to, _mm_cvtph_ps(_mm_loadl_epi64((const void *)halves)));
#else
    for (int i = 0; i < 4 * count; i++)
        to[i] = from_float16(halves[i]);
#endif
}

/* The scales and offsets of four blocks, for each 32 weights (Q6_K: 16). */
static INLINE TARGET void NAME(scales)(
    enum type type, const uint8_t *const *blocks, float (*scales)[16], float (*offsets)[16])
{
    const int has_both = type == Q4_1 || type == Q5_1 || type == Q4_K || type == Q5_K;
    float headers[8];
    const uint8_t *ends[4];
    for (int o = 0; o < 4; o++)
        ends[o] = blocks[o] + (type == Q6_K ? 208 : 0);
    NAME(headers)(has_both ? 2 : 1, ends, headers);
    IN_MEMORY(headers);
    for (int o = 0; o < 4; o++) {
        const float scale = headers[o * (has_both ? 2 : 1)], offset = headers[o * 2 % 8 + 1];
        if (type == Q4_K || type == Q5_K) {
            uint32_t words[3], values[4];
            uint8_t of_scales[8], of_offsets[8];
            memcpy(words, blocks[o] + 4, sizeof words);
            values[0] = words[0] & 0x3f3f3f3f;
            values[1] = (words[2] & 0x0f0f0f0f) | (words[0] >> 2 & 0x30303030);
            values[2] = words[1] & 0x3f3f3f3f;
            values[3] = (words[2] >> 4 & 0x0f0f0f0f) | (words[1] >> 2 & 0x30303030);
            memcpy(of_scales, values, 8);
            memcpy(of_offsets, values + 2, 8);
            for (int i = 0; i < 8; i++) {
                scales[o][i] = scale * of_scales[i];
                offsets[o][i] = -(offset * of_offsets[i]);
            }
        } else if (type == Q6_K) {
            for (int i = 0; i < 16; i++)
                scales[o][i] = scale * (int8_t)blocks[o][192 + i];
        } else {
            scales[o][0] = scale;
            offsets[o][0] = has_both ? offset : scale * (type == Q4_0 ? -8 : -16);
        }
    }
}

/* Adds the fifth bits of codes: of the blocks of 32 bits in a row, of Q5_K one in each byte. */
static INLINE TARGET NAME(ints) NAME(with_bits)(
    enum type type, NAME(ints) codes, const uint8_t *high, long from, int at)
{
    const int byte = (from + at) / 32;  /* the place of the bit */
    uint32_t bits;
    memcpy(&bits, high, 4);
#if LANES == 16
    const __mmask16 mask = type == Q5_K
        ? _mm_test_epi8_mask(_mm_loadu_si128((const void *)high), _mm_set1_epi8(1 << byte)) : bits >> at;
    return (NAME(ints))_mm512_mask_or_epi32((__m512i)codes, mask, (__m512i)codes, _mm512_set1_epi32(16));
#else
    NAME(ints) lanes;
    for (int lane = 0; lane < LANES; lane++)
        lanes[lane] = at % 32 + lane;
    return codes | (type == Q5_K ? NAME(unsigned_bytes)(high) >> byte & 1 : (int32_t)bits >> lanes & 1) << 4;
#endif
}

/* The codes of LANES weights from number `from` + `at` of a block on; `from` is a multiple of TOGETHER. Those of a
 * type with a table have more bits above 4.
 */
static INLINE TARGET NAME(ints) NAME(codes)(enum type type, const uint8_t *block, long from, int at)
{
    const int i = at % 32, is_high = type < Q4_K ? i >= 16 : at >= TOGETHER(type) / 2;
    const uint8_t *low = block, *high = block;
    NAME(ints) codes;
    if (type <= Q5_1) {
        high += type == Q5_0 ? 2 : 4;
        low += (type == Q4_0 ? 2 : type == Q4_1 ? 4 : type == Q5_0 ? 6 : 8) + i % 16;
    } else if (type == Q6_K) {
        high += 128 + from / 4 + i;
        low += from / 2 + at % 64;
    } else {
        high += 16 + i;
        low += (type == Q4_K ? 16 : 48) + from / 2 + i;
    }
    codes = NAME(unsigned_bytes)(low);
    HOLD(codes);
    if (is_high)
        codes >>= 4;
    else if (!HAS_TABLE(type))
        codes &= 15;
    if (type == Q6_K) {
        const NAME(ints) more = NAME(unsigned_bytes)(high);
        return (codes | ((at < 64 ? more << (4 - at / 32 * 2) : more >> (at / 32 * 2 - 4)) & 48)) - 32;
    }
    return type == Q5_0 || type == Q5_1 || type == Q5_K ? NAME(with_bits)(type, codes, high, from, at) : codes;
}

/* All weights of 4 bits that a scale and an offset make. */
static INLINE TARGET NAME(floats) NAME(table)(float scale, float offset)
{
    NAME(floats) codes = {0};
    for (int i = 0; i < LANES; i++)
        codes[i] = i;
    return codes * scale + offset;
}

/* LANES weights from number `from` + `at` of a block on. */
static INLINE TARGET NAME(floats) NAME(weights)(
    enum type type, const uint8_t *block, long from, int at, float scale, float offset, NAME(floats) table)
{
    (void)table;
    if (type == FLOAT32)
        return *(const NAME(floats) *)(block + at * 4);
    if (type == BFLOAT16)
        return (NAME(floats))(__builtin_convertvector(*(const NAME(halves) *)(block + at * 2), NAME(words)) << 16);
    if (type == Q8_0)
        return NAME(signed_bytes)(block + 2 + at) * scale;
#if LANES == 16
    if (type == FLOAT16)
        return (NAME(floats))_mm512_cvtph_ps(_mm256_loadu_si256((const void *)(block + at * 2)));
    if (HAS_TABLE(type))
        return (NAME(floats))_mm512_permutexvar_ps((__m512i)NAME(codes)(type, block, from, at), (__m512)table);
#elif LANES == 8
    if (type == FLOAT16)
        return (NAME(floats))_mm256_cvtph_ps(_mm_loadu_si128((const void *)(block + at * 2)));
#else
    if (type == FLOAT16) {
        NAME(floats) values = {0};
        for (int i = 0; i < LANES; i++)
            values[i] = from_float16(((const uint16_t *)block)[at + i]);
        return values;
    }
#endif
    const NAME(floats) codes = __builtin_convertvector(NAME(codes)(type, block, from, at), NAME(floats));
    return HAS_OFFSET(type) ? codes * scale + offset : codes * scale;
}

/* What lies in the blocks of four rows of weights from number `from` + `at` on, 32 of each: adds their products with
 * `rows` rows of x to sums[row * 4 + o], or without x writes them to `to`, one row `apart` behind the other.
 */
static INLINE TARGET void NAME(some_unpacked)(
    enum type type, int rows, const uint8_t *const *blocks, long from, int at, float (*scales)[16],
    float (*offsets)[16], const char *x, long row_bytes, NAME(floats) *sums, float *to, long apart)
{
    NAME(floats) tables[4] = {0}, some[4];
    for (int o = 0; o < 4 && HAS_TABLE(type); o++)
        tables[o] = NAME(table)(scales[o][(from + at) / 32], offsets[o][(from + at) / 32]);
    UNROLLED
    for (int i = 0; i < 32; i += LANES) {
        const long place = (from + at + i) / (type == Q6_K ? 16 : 32);
        for (int o = 0; o < 4; o++)
            some[o] = NAME(weights)(type, blocks[o], from, at + i, type >= Q4_0 ? scales[o][place] : 0,
                                    HAS_OFFSET(type) ? offsets[o][place] : 0, tables[o]);
        UNROLLED
        for (int row = 0; row < rows; row++) {
            NAME(floats) input = *(const NAME(floats) *)(x + row * row_bytes + i * 4);
            HOLD(input);
            UNROLLED
            for (int o = 0; o < 4; o++)
                sums[row * 4 + o] += some[o] * input;
        }
        for (int o = 0; o < 4 && !rows; o++)
            *(NAME(floats) *)(to + o * apart + i) = some[o];
    }
}

/* The same with all weights of four rows, whose products are written. What lies `later` bytes behind is fetched. */
static INLINE TARGET void NAME(unpacked)(
    enum type type, int rows, const uint8_t *const *weights, const long *later, long inputs, const char *x,
    long row_bytes, NAME(floats) *sums, float *to)
{
    const uint8_t *blocks[4] = {weights[0], weights[1], weights[2], weights[3]};
    NAME(floats) some[4 * MOST_DIRECT] = {0};
    for (long k = 0; k < inputs; k += BLOCK(type)) {
        float scales[4][16], offsets[4][16];
        for (int o = 0; o < 4; o++)
            for (int i = 0; i < BLOCK_BYTES(type); i += 64)
                __builtin_prefetch(blocks[o] + later[o] + i, 0, 2);
        if (type >= Q4_0)
            NAME(scales)(type, blocks, scales, offsets);
        for (long from = 0; from < BLOCK(type); from += TOGETHER(type)) {
#define PART(at) \
    if (at < TOGETHER(type)) \
        NAME(some_unpacked)(type, rows, blocks, from, at, scales, offsets, x + (k + from + at) * 4, row_bytes, some, \
                            to + k + from + at, inputs)
            PART(0);
            PART(32);
            PART(64);
            PART(96);
#undef PART
        }
        for (int o = 0; o < 4; o++)
            blocks[o] += BLOCK_BYTES(type);
    }
    _Pragma("GCC unroll 24")
    for (int i = 0; i < 4 * rows; i++)
        sums[i] = some[i];
}

static TARGET void NAME(unpack)(
    enum type type, int rows, const uint8_t *const *weights, const long *later, long inputs, const char *x,
    long row_bytes, NAME(floats) *sums, float *to)
{
#define CASE(type, rows) \
    case type * 8 + rows: NAME(unpacked)(type, rows, weights, later, inputs, x, row_bytes, sums, to); break;
#if MOST_DIRECT == 6
#define TYPE(type) \
    CASE(type, 0) CASE(type, 1) CASE(type, 2) CASE(type, 3) CASE(type, 4) CASE(type, 5) CASE(type, 6)
#else
#define TYPE(type) CASE(type, 0) CASE(type, 1) CASE(type, 2)
#endif
    switch (type * 8 + rows) {
        CASE(FLOAT32, 0) CASE(BFLOAT16, 0) CASE(FLOAT16, 0) CASE(BFLOAT16, 1) CASE(FLOAT16, 1)
        TYPE(Q4_0) TYPE(Q4_1) TYPE(Q5_0) TYPE(Q5_1) TYPE(Q8_0) TYPE(Q4_K) TYPE(Q5_K) TYPE(Q6_K)
    }
#undef TYPE
#undef CASE
}

/* As `sum`, of weights in blocks that lie one below the other. */
static INLINE TARGET void NAME(sum_of_part)(
    const struct job *job, const struct weights *w, long first, long count, float *sums)
{
    const long inputs = job->product->inputs, apart = (count + 3) / 4;
    const long blocks = (job->rows + MOST_TOGETHER - 1) / MOST_TOGETHER;
    const long ahead = AHEAD_BYTES / (inputs / BLOCK(w->type) * BLOCK_BYTES(w->type)) / 4 + 1;  /* groups of rows */
    const int rows = job->rows <= DIRECT_ROWS(w->type) ? job->rows : 0;
    const char *kept[4];
    for (int o = 0; o < 4; o++)
        kept[o] = (const char *)(job->kept + o * inputs);
    for (long i = 0; i < apart; i++) {
        NAME(floats) some[4 * MOST_TOGETHER];
        const uint8_t *from[4];
        long later[4];
        for (int o = 0; o < 4; o++) {
            const long place = first + (i + o * apart < count ? i + o * apart : count - 1);
            const long next = place + ahead + (i + ahead < apart ? 0 : count - apart);
            from[o] = row_of(w, place, inputs);
            later[o] = row_of(w, next < w->count ? next : w->count - 1, inputs) - from[o];
        }
        NAME(unpack)(w->type, rows, from, later, inputs, job->arranged, job->row_bytes, some, job->kept);
#define CASE(n) case n: NAME(add_up)(n, some, sums + i, SUMS_APART, apart); break;
        switch (rows) {
        CASES
        }
#undef CASE
        for (long b = 0; b < blocks && !rows; b++) {
            const long row = job->rows * b / blocks;
#define CASE(n) \
    case n: \
        NAME(block)(FLOATS, n, kept, 0, 0, inputs, job->arranged + row * job->row_bytes, job->row_bytes, \
                    sums + row * SUMS_APART + i, SUMS_APART, apart); \
        break;
            switch (job->rows * (b + 1) / blocks - row) {
            CASES
            }
#undef CASE
        }
    }
}

static TARGET void NAME(sum_of_blocks)(const struct job *job, long first, long count, float *sums)
{
    const struct weights *w = job->product->weights;
    for (; first >= w->count; w++)
        first -= w->count;
    for (; count > 0; w++, first = 0) {
        const long here = count < w->count - first ? count : w->count - first;
        NAME(sum_of_part)(job, w, first, here, sums);
        sums += here, count -= here;
    }
}

/* Writes up to four rows of weights. */
static TARGET void NAME(unpack_rows)(const struct unpacking *u, long first, long count, float *kept)
{
    const long none[4] = {0};
    const uint8_t *from[4];
    for (int o = 0; o < 4; o++) {
        const long row = first + (o < count ? o : count - 1);
        from[o] = row_of(u->weights, u->places ? u->places[row] : u->first + row, u->inputs);
    }
    NAME(unpack)(u->weights->type, 0, from, none, u->inputs, NULL, 0, NULL, kept);
    char *to = (char *)u->to + first * u->inputs * SIZE(u->type);
    if (u->type == FLOAT32)
        memcpy(to, kept, count * u->inputs * 4);
    for (long i = 0; i < count * u->inputs && u->type == BFLOAT16; i += LANES)
        *(NAME(halves) *)(to + i * 2) =
            __builtin_convertvector(NAME(rounded)(*(const NAME(floats) *)(kept + i)) >> 16, NAME(halves));
}

#undef MOST_DIRECT
