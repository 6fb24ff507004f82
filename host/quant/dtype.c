#include "gr/dtype.h"

#include <strings.h>

#include "base/checked.h"

static const struct gr_dtype_info table[] = {
#define QUANT(NAME, name, id, n, bytes, codec) {name, id, n, bytes, (codec) != 0, (codec) == 3},
#include "gr/quant.def"
#undef QUANT
};

const struct gr_dtype_info *gr_dtype_find(uint32_t id)
{
    for (size_t i = 0; i < GR_COUNT(table); i++)
        if (table[i].id == id)
            return &table[i];
    return NULL;
}

const struct gr_dtype_info *gr_dtype_at(int i)
{
    return i >= 0 && i < (int)GR_COUNT(table) ? &table[i] : NULL;
}

const struct gr_dtype_info *gr_dtype_find_name(const char *name)
{
    for (size_t i = 0; i < GR_COUNT(table); i++)
        if (strcasecmp(table[i].name, name) == 0)
            return &table[i];
    return NULL;
}

const char *gr_dtype_name(uint32_t id)
{
    const struct gr_dtype_info *t = gr_dtype_find(id);
    return t ? t->name : "?";
}

size_t gr_row_bytes(uint32_t id, uint64_t n)
{
    uint64_t bytes;
    return gr_tensor_bytes(id, &n, 1, &bytes) ? bytes : 0;
}

bool gr_tensor_bytes(uint32_t id, const uint64_t *ne, uint32_t n_dim, uint64_t *bytes)
{
    const struct gr_dtype_info *t = gr_dtype_find(id);
    int64_t total, n_elem = 1;
    if (!t || n_dim < 1 || n_dim > 4 || ne[0] == 0 || ne[0] % t->block)
        return false;
    for (uint32_t i = 0; i < n_dim; i++)
        if (ne[i] == 0 || !gr_mul(&n_elem, n_elem, ne[i]))
            return false;
    if (!gr_mul(&total, n_elem / t->block, (int64_t)t->block_bytes))
        return false;
    *bytes = (uint64_t)total;
    return true;
}
