#include "ranks/params.h"

#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "gr/dtype.h"

/* The numbers of GR_COMMAND_FIELDS_OPEN have the names of those of the parameters. */
#define IGNORE(type, name)

/* The static name of a storage type, or NULL when there is no such type. */
static const char *type_named(const char *p, uint64_t n)
{
    char name[16] = "";
    if (!n || n >= sizeof name)
        return NULL;
    memcpy(name, p, (size_t)n);
    const struct gr_dtype_info *type = gr_dtype_find_name(name);
    return type ? type->name : NULL;
}

struct gr_command_open gr_command_open_of(const struct gr_session_params *p)
{
#define WRITE(type, name) .name = (type)p->name,
    return (struct gr_command_open){.adapter_scale = {p->adapter_scale, GR_MAX_ADAPTER},
                                    .type_k = {p->type_k, p->type_k ? strlen(p->type_k) : 0},
                                    .type_v = {p->type_v, p->type_v ? strlen(p->type_v) : 0},
                                    GR_COMMAND_FIELDS_OPEN(WRITE, IGNORE)};
#undef WRITE
}

struct gr_session_params gr_command_open_params(const struct gr_command_open *c)
{
    struct gr_session_params p = {.type_k = type_named(c->type_k.p, c->type_k.n),
                                  .type_v = type_named(c->type_v.p, c->type_v.n)};
#define READ(type, field) p.field = c->field;
    GR_COMMAND_FIELDS_OPEN(READ, IGNORE)
#undef READ
    p.nvtx = GR_MIN(p.nvtx, GR_NVTX_LAYER);
    for (uint64_t i = 0; i < GR_MAX_ADAPTER; i++)
        p.adapter_scale[i] = i < c->adapter_scale.n ? c->adapter_scale.p[i] : NAN;
    return p;
}
