/* The tiny models with an encoder and a decoder whose logits another implementation computed. */
#ifndef TESTS_SUPPORT_ENCODER_DECODER_H
#define TESTS_SUPPORT_ENCODER_DECODER_H

#include <string.h>

#include "support/tiny.h"

enum { ENCODER_DECODER_N = 2 };

static const char *const encoder_decoder_name[ENCODER_DECODER_N] = {"t5", "t5-plain"};

/* The second one without gates, tables of later layers, and an output matrix. */
static inline struct tiny encoder_decoder_model(int i)
{
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){"t5", 2}));
    t.no_optional = i > 0, t.n_layer = 3;
    t.n_head_kv = t.n_head; /* as the other implementation needs it */
    return t;
}

#endif
