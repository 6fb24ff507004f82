/* Helpers for names; the front ends use gr_edit_distance too. */
#ifndef GR_BASE_TEXT_H
#define GR_BASE_TEXT_H

#include "gpurun.h"

#endif
