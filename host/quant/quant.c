#include "quant/quant.h"

#include "base/checked.h"
#include "gr/dtype.h"
#include "gr/quant_blocks.h"

#define SIZE(name, type) _Static_assert(sizeof(struct gr_##name) == (type), "layout of gr_" #name)
SIZE(q4_0, 18);
SIZE(q4_1, 20);
SIZE(q5_0, 22);
SIZE(q5_1, 24);
SIZE(q8_0, 34);
SIZE(q2_K, 84);
SIZE(q3_K, 110);
SIZE(q4_K, 144);
SIZE(q5_K, 176);
SIZE(q6_K, 210);
SIZE(q8_1, 36);
SIZE(q8_K, 292);
SIZE(q1_0, 18);
SIZE(q2_0, 18);
SIZE(tq1_0, 54);
SIZE(tq2_0, 66);
SIZE(iq4_nl, 18);
SIZE(iq4_xs, 136);
SIZE(mxfp4, 17);
SIZE(nvfp4, 36);
SIZE(iq2_xxs, 66);
SIZE(iq2_xs, 74);
SIZE(iq2_s, 82);
SIZE(iq3_xxs, 98);
SIZE(iq3_s, 110);
SIZE(iq1_s, 50);
SIZE(iq1_m, 56);

/* Indexed by type id; a type without a codec leaves a gap. */
#define ENTRY_0(NAME)
#define ENTRY_1(NAME) [GR_##NAME] = {gr_dequantize_##NAME, gr_quantize_##NAME},
#define ENTRY_3(NAME) ENTRY_1(NAME)
static const struct gr_quant table[] = {
#define QUANT(NAME, name, id, n, bytes, codec) ENTRY_##codec(NAME)
#include "gr/quant.def"
#undef QUANT
};

const struct gr_quant *gr_quant_find(uint32_t dtype)
{
    return dtype < GR_COUNT(table) && table[dtype].dequantize ? &table[dtype] : NULL;
}
