/* Settings of gpurun bench: of each flag that takes a list, one value. */
#include <stddef.h>
#include <string.h>

#include "bench.h"
#include "tools/cli/flags.h"

/* A list of options, and the option that takes one value of it. */
struct swept {
    size_t list, field;     /* in struct gr_options */
    enum gr_flag_kind kind; /* of the list: LIST, SWITCHES or CHOICES */
};
#define SWEPT(list, field, kind)                                                                   \
    {                                                                                              \
        offsetof(struct gr_options, list), offsetof(struct gr_options, field), kind                \
    }

/* Settings of a session, and of a model; the first one changes fastest. */
static const struct swept of_session[] = {
    SWEPT(thread_counts, threads, LIST),         SWEPT(cache_types_v, cache_type_v, CHOICES),
    SWEPT(cache_types_k, cache_type_k, CHOICES), SWEPT(ubatch_sizes, ubatch_size, LIST),
    SWEPT(batch_sizes, batch_size, LIST),        SWEPT(op_offloads, op_offload, SWITCHES),
    SWEPT(kv_offloads, kv_offload, SWITCHES)};
static const struct swept of_model[] = {SWEPT(gpu_layer_counts, gpu_layers, LIST),
                                        SWEPT(mmaps, mmap, SWITCHES)};

#define N_OF(table) (int)(sizeof(table) / sizeof *(table))

static int length(const struct gr_options *o, const struct swept *s)
{
    const void *list = (const char *)o + s->list;
    return s->kind == CHOICES ? ((const struct gr_word_list *)list)->n
                              : ((const struct gr_int_list *)list)->n;
}

static int count(const struct gr_options *o, const struct swept *s, int n)
{
    int all = 1;
    for (int i = 0; i < n; i++)
        all *= length(o, &s[i]);
    return all;
}

/* Sets the fields to combination i; returns i / (number of combinations). */
static int set(struct gr_options *o, const struct swept *s, int n, int i)
{
    for (int k = 0; k < n; i /= length(o, &s[k++])) {
        const void *list = (const char *)o + s[k].list;
        void *field = (char *)o + s[k].field;
        int at = i % length(o, &s[k]);
        if (s[k].kind == CHOICES)
            *(const char **)field = ((const struct gr_word_list *)list)->v[at];
        else
            *(int32_t *)field = ((const struct gr_int_list *)list)->v[at];
    }
    return i;
}

int gr_bench_n_session(const struct gr_options *o)
{
    return count(o, of_session, N_OF(of_session));
}

int gr_bench_n_model(const struct gr_options *o)
{
    return (o->models.n > 0 ? o->models.n : 1) * count(o, of_model, N_OF(of_model));
}

void gr_bench_set_session(struct gr_options *o, int i)
{
    (void)set(o, of_session, N_OF(of_session), i);
}

void gr_bench_set_model(struct gr_options *o, int i)
{
    int file = set(o, of_model, N_OF(of_model), i);
    o->model = file < o->models.n ? o->models.v[file] : NULL;
}
