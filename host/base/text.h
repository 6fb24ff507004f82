/* Small helpers on names: gr_edit_distance, which the front ends use too. */
#ifndef GR_BASE_TEXT_H
#define GR_BASE_TEXT_H

#include "gpurun.h"

#endif
