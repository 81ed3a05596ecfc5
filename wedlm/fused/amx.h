/* Products by tiles: 16 outputs times 32 inputs are multiplied with those of up to 16 rows. Those of bfloat16 weights
 * take them if they are whole tiles; the others, and attention, take AVX-512.
 */
#if defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#define AMX __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c,fma")))
#define SIDE 16

static AMX void arrange_amx(const struct job *job, char *arranged)
{
    if (job->kind != TILES) {
        arrange_avx512(job, arranged);
        return;
    }
    const struct product *p = job->product;
    const long steps = p->inputs / 32, blocks = (job->rows + SIDE - 1) / SIDE;
    uint32_t *words = (uint32_t *)arranged, *pairs = words + steps * blocks * SIDE * SIDE;
    memset(words, 0, steps * blocks * SIDE * SIDE * 4);
    for (long row = 0; row < job->rows; row++) {
        const char *x = (const char *)job->x + (job->places ? job->places[row] : row) * p->inputs * 2;
        arrange_row_avx512(PAIRS, BFLOAT16, x, p->inputs, p->norm, p->epsilon, (char *)pairs);
        for (long step = 0; step < steps; step++)  /* words are [steps][blocks][pairs of inputs][rows] */
            for (int pair = 0; pair < SIDE; pair++)
                words[((step * blocks + row / SIDE) * SIDE + pair) * SIDE + row % SIDE] = pairs[step * SIDE + pair];
    }
}

/* out[row * SUMS_APART + i] = the sum of row `row` and output `first` + i, for up to two tiles of outputs and two of
 * rows, from that of number `block` on.
 */
static AMX void sum_tiles(const struct job *job, long first, long count, long block, float *out)
{
    const struct product *p = job->product;
    const long row_bytes = p->inputs * 2, total = p->outputs * (1 + p->is_gated);
    const long blocks = (job->rows + SIDE - 1) / SIDE, starts[2] = {first, first + SIDE};
    const char *w[2], *x = job->arranged + block * SIDE * 64;
    const long rows = job->rows - block * SIDE < 2 * SIDE ? job->rows - block * SIDE : 2 * SIDE;
    float sums[2][2][SIDE][SIDE];
    for (int part = 0; part < 2; part++)
        w[part] = (const char *)p->weights->rows
            + (starts[part] + SIDE <= total ? starts[part] : total - SIDE) * row_bytes;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (long k = 0; k < row_bytes; k += 64) {
        for (int row = 0; row < 2 * SIDE; row++)
            __builtin_prefetch(w[0] + k + (2 * SIDE + row) * row_bytes, 0, 2);
        _tile_loadd(4, w[0] + k, row_bytes);
        _tile_loadd(5, w[1] + k, row_bytes);
        _tile_loadd(6, x, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 5, 6);
        if (rows > SIDE) {
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
        for (long row = 0; row < rows && shift + i % SIDE < SIDE; row++)
            out[(block * SIDE + row) * SUMS_APART + i] = sums[row / SIDE][i / SIDE][shift + i % SIDE][row % SIDE];
    }
}

static AMX void sum_amx(const struct job *job, long first, long count, float *out)
{
    if (job->kind != TILES)
        sum_avx512(job, first, count, out);
    for (long i = 0; i < count && job->kind == TILES; i += 2 * SIDE)
        for (long block = 0; block * SIDE < job->rows; block += 2)
            sum_tiles(job, first + i, count - i < 2 * SIDE ? count - i : 2 * SIDE, block, out + i);
}

static AMX void outputs_amx(const struct job *job, long first, long count)
{
    const struct { uint8_t palette, start, none[14]; uint16_t bytes[16]; uint8_t rows[16]; } config = {
        .palette = 1, .bytes = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 16},
    };
    _tile_loadconfig(&config);
    OUTPUTS(sum_amx, store_avx512)
    _tile_release();
}

/* Linux gives tiles to a process that asks. */
static int asked_for_tiles(void)
{
#if defined(__linux__)
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1) && (d >> 24 & 1)
        && !syscall(SYS_arch_prctl, 0x1023, 18);
#else
    return 0;
#endif
}
