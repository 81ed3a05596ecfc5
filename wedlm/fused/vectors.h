/* Vectors of an instruction set; see sets.h. */

typedef float NAME(floats) __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef uint32_t NAME(words) __attribute__((vector_size(LANES * 4), aligned(1), may_alias));
typedef int32_t NAME(ints) __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef uint16_t NAME(halves) __attribute__((vector_size(LANES * 2), aligned(1), may_alias));

#define EVEN(words) ((NAME(floats))((words) << 16))  /* of the pairs of bfloat16 in words, as floats */
#define ODD(words) ((NAME(floats))((words) & 0xffff0000u))

/* Folds each vector in half, two of them into one, until the total of vector i is in lane i. How a vector is added up
 * does not depend on the others.
 */
static INLINE TARGET NAME(floats) NAME(totals)(int count, NAME(floats) *sums)
{
#define LOW(i, half) ((i) < LANES / 2 ? 0 : LANES) + (i) % (LANES / 2) / (half) * 2 * (half) + (i) % (half)
#define HIGH(i, half) LOW(i, half) + (half)
#define FOLD(half)                                                            \
    UNROLLED                                                                  \
    for (int i = 0; i < count; i += 2) {                                      \
        const NAME(floats) a = sums[i], b = sums[i + 1 < count ? i + 1 : i];  \
        sums[i / 2] = SHUFFLE(NAME(ints), a, b, LIST(LOW, half))              \
            + SHUFFLE(NAME(ints), a, b, LIST(HIGH, half));                    \
    }                                                                         \
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

/* e to the power of x, none of which is above 0. What is below -87 becomes exactly 0, and NaN stays. */
static INLINE TARGET NAME(floats) NAME(exponentials)(NAME(floats) x)
{
    const NAME(ints) is_small = x < -87.0f;
    const NAME(floats) near = (NAME(floats))((NAME(ints))x & ~is_small);
    const NAME(ints) n = __builtin_convertvector(near * 1.44269504f - 0.5f, NAME(ints));
    const NAME(floats) whole = __builtin_convertvector(n, NAME(floats));
    const NAME(floats) r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
    const NAME(floats) more = 0.166666667f + r * (0.0416666667f + r * (0.00833333333f + r * 0.00138888889f));
    const NAME(floats) p = 1 + r * (1 + r * (0.5f + r * more));
    return (NAME(floats))((NAME(ints))(p * (NAME(floats))((n + 127) << 23)) & ~is_small);
}
