#include "quant/grids.h"

#define GRID(code) GR_GRID_8(code, GR_GRID_IQ1),
const uint64_t gr_grid_iq1[] = {
#include "gr/grid/iq1.inc"
};
#undef GRID

#define GRID(code) GR_GRID_8(code, GR_GRID_IQ2),
const uint64_t gr_grid_iq2_xxs[] = {
#include "gr/grid/iq2_xxs.inc"
};
const uint64_t gr_grid_iq2_xs[] = {
#include "gr/grid/iq2_xs.inc"
};
const uint64_t gr_grid_iq2_s[] = {
#include "gr/grid/iq2_s.inc"
};
#undef GRID

#define GRID(code) GR_GRID_4(code, GR_GRID_IQ3_XXS),
const uint32_t gr_grid_iq3_xxs[] = {
#include "gr/grid/iq3_xxs.inc"
};
#undef GRID

#define GRID(code) GR_GRID_4(code, GR_GRID_IQ3_S),
const uint32_t gr_grid_iq3_s[] = {
#include "gr/grid/iq3_s.inc"
};
#undef GRID
