#include "ranks/params.h"

#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "gr/dtype.h"

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
#define NUMBER(type, name) .name = (type)p->name,
#define ARRAY(type, name) ARRAY_##type(name)
#define ARRAY_char(name) .name = {p->name, p->name ? strlen(p->name) : 0},
#define ARRAY_float(name) .name = {p->name, GR_MAX_ADAPTER},
    return (struct gr_command_open){GR_COMMAND_FIELDS_OPEN(NUMBER, ARRAY)};
#undef NUMBER
#undef ARRAY_char
#undef ARRAY_float
}

struct gr_session_params gr_command_open_params(const struct gr_command_open *c)
{
    struct gr_session_params p = {0};
#define NUMBER(type, name) p.name = c->name;
#define ARRAY_char(name) p.name = type_named(c->name.p, c->name.n);
#define ARRAY_float(name)                                                                          \
    for (uint64_t i = 0; i < GR_MAX_ADAPTER; i++)                                                  \
        p.name[i] = i < c->name.n ? c->name.p[i] : NAN;
    GR_COMMAND_FIELDS_OPEN(NUMBER, ARRAY)
#undef NUMBER
#undef ARRAY
#undef ARRAY_char
#undef ARRAY_float
    return p;
}
