#include "ranks/command.h"

#include <string.h>

#include "base/checked.h"
#include "gr/status.h"

/* Layout of every array in a command's struct. */
struct array {
    const void *p;
    uint64_t n;
};

#define FIELD(type, field) {#field, offsetof(self, field), sizeof(type), false},
#define ARRAY(type, field) {#field, offsetof(self, field), sizeof(type), true},
#define BARE(NAME, meaning)
#define COMMAND(NAME, name, meaning)                                                               \
    case GR_COMMAND_##NAME: {                                                                      \
        typedef struct gr_command_##name self;                                                     \
        static const struct gr_command_field of[] = {GR_COMMAND_FIELDS_##NAME(FIELD, ARRAY)};      \
        *n = (int)GR_COUNT(of);                                                                    \
        return of;                                                                                 \
    }

const struct gr_command_field *gr_command_fields(uint32_t kind, int *n)
{
    switch (kind) {
#include "ranks/command.def"
    default:
        *n = 0;
        return NULL;
    }
}

#undef BARE
#undef COMMAND

const char *gr_command_name(uint32_t kind)
{
    static const char *const name[GR_N_COMMAND] = {
        [GR_COMMAND_NONE] = "?",
#define COMMAND(NAME, lower, meaning) [GR_COMMAND_##NAME] = #NAME,
#define BARE(NAME, meaning) [GR_COMMAND_##NAME] = #NAME,
#include "ranks/command.def"
#undef COMMAND
#undef BARE
    };
    return name[kind < GR_N_COMMAND ? kind : 0];
}

/* ---- writing ---- */

/* Appends n bytes, padded with zeros to a multiple of 8. */
static int put(struct gr_vec *out, const void *p, size_t n)
{
    static const char zeros[8];
    int rc = n ? gr_vec_append(out, p, n, 1) : 0;
    return rc || n % 8 == 0 ? rc : gr_vec_append(out, zeros, 8 - n % 8, 1);
}

int gr_command_write(struct gr_vec *out, uint32_t kind, const void *command)
{
    int n, rc = 0;
    const struct gr_command_field *f = gr_command_fields(kind, &n);
    for (int i = 0; i < n && !rc; i++) {
        const char *at = (const char *)command + f[i].offset;
        struct array a;
        if (!f[i].array) {
            rc = put(out, at, f[i].size);
            continue;
        }
        memcpy(&a, at, sizeof a);
        rc = put(out, &a.n, sizeof a.n);
        if (!rc)
            rc = put(out, a.p, (size_t)a.n * f[i].size);
    }
    return rc;
}

/* ---- reading ---- */

struct input {
    const char *p;
    size_t n;
};

/* Takes the next n bytes and their padding; NULL when there are fewer. */
static const void *get(struct input *in, uint64_t n)
{
    uint64_t padded;
    if (!gr_align_up(&padded, n, 8) || padded > in->n)
        return NULL;
    const char *p = in->p;
    in->p += padded, in->n -= padded;
    return p;
}

static bool read_array(struct input *in, size_t item, struct array *a)
{
    uint64_t bytes;
    const void *n = get(in, sizeof a->n);
    if (!n)
        return false;
    memcpy(&a->n, n, sizeof a->n);
    a->p = gr_mul(&bytes, a->n, (uint64_t)item) ? get(in, bytes) : NULL;
    return a->p != NULL;
}

int gr_command_read(void *command, uint32_t kind, const void *bytes, size_t n)
{
    struct input in = {bytes, n};
    int n_field;
    const struct gr_command_field *f = gr_command_fields(kind, &n_field);
    for (int i = 0; i < n_field; i++) {
        char *at = (char *)command + f[i].offset;
        struct array a = {0};
        const void *number = f[i].array ? NULL : get(&in, f[i].size);
        if (f[i].array ? !read_array(&in, f[i].size, &a) : !number)
            return gr_fail(GR_E_CORRUPT, "command %s: it ends in its field %s",
                           gr_command_name(kind), f[i].name);
        memcpy(at, f[i].array ? &a : number, f[i].array ? sizeof a : f[i].size);
    }
    if (in.n || kind == GR_COMMAND_NONE || kind >= GR_N_COMMAND)
        return gr_fail(GR_E_CORRUPT, "command %s: %zu bytes too many", gr_command_name(kind), in.n);
    return 0;
}
