/* The kernels of one instruction set; see sets.h. */
#ifndef HAS_PAIRS
#define HAS_PAIRS 0
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
