/* The kernels of one instruction set; see sets.h. */
#ifndef HAS_PAIRS
#define HAS_PAIRS 0
#endif

#if MOST_TOGETHER >= 6  /* a CASE for each number of rows that are multiplied at once */
#define CASES CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#else
#define CASES CASE(1) CASE(2)
#endif

#include "vectors.h"
#include "products.h"
#include "attention.h"

#undef NAME
#undef TARGET
#undef LANES
#undef LIST
#undef MOST_TOGETHER
#undef MOST_SPLIT
#undef HAS_PAIRS
#undef CASES
