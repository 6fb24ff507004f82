#include "model/arch.h"

#include <string.h>

#include "base/checked.h"
#include "base/text.h"
#include "model/model.h"

#define ARCH(symbol) extern const struct gr_arch gr_arch_##symbol;
#include "models/models.def"
#undef ARCH

static const struct gr_arch *const table[] = {
#define ARCH(symbol) &gr_arch_##symbol,
#include "models/models.def"
#undef ARCH
};

const struct gr_arch *gr_arch_at(int i)
{
    return i >= 0 && i < (int)GR_COUNT(table) ? table[i] : NULL;
}

const struct gr_arch *gr_arch_find(struct gr_str name)
{
    for (unsigned i = 0; i < GR_COUNT(table); i++)
        if (gr_str_is(name, table[i]->name))
            return table[i];
    return NULL;
}

const char *gr_arch_nearest(struct gr_str name)
{
    const char *best = table[0]->name;
    size_t least = SIZE_MAX;
    for (unsigned i = 0; i < GR_COUNT(table); i++) {
        size_t d = gr_edit_distance(name.p, name.n, table[i]->name, strlen(table[i]->name));
        if (d < least)
            least = d, best = table[i]->name;
    }
    return best;
}
