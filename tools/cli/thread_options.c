/* Placement of threads, from the flags. */
#include "thread_options.h"

#include <stdio.h>
#include <string.h>

#include "flags.h"

/* Joins a mask and a range to one list, "0xF0,8-11"; NULL: neither is given. */
static const char *cpus(char *text, size_t n, const char *mask, const char *range)
{
    const char *hex = !mask                                                  ? ""
                      : mask[0] == '0' && (mask[1] == 'x' || mask[1] == 'X') ? mask + 2
                                                                             : mask;
    size_t end = range ? strlen(range) : 0;
    if (!*hex && !end)
        return NULL;
    snprintf(text, n, "%s%s%s%s%s%s", *hex ? "0x" : "", hex, *hex && end ? "," : "",
             end && range[0] == '-' ? "0" : "", end ? range : "",
             end && range[end - 1] == '-' ? "1023" : "");
    return text;
}

void gr_thread_options(const struct gr_options *o, struct gr_thread_words *words,
                       struct gr_model_params *p)
{
    p->threads = (struct gr_thread_params){
        .cpus = cpus(words->one, sizeof words->one, o->cpu_mask, o->cpu_range),
        .strict = o->cpu_strict,
        .prio = o->prio,
        .poll = o->poll};
    p->threads_batch = (struct gr_thread_params){
        .cpus = cpus(words->many, sizeof words->many, o->cpu_mask_batch, o->cpu_range_batch),
        .strict = o->cpu_strict_batch < 0 ? o->cpu_strict : o->cpu_strict_batch,
        .prio = o->prio_batch < -1 ? o->prio : o->prio_batch,
        .poll = o->poll_batch < 0 ? o->poll : o->poll_batch};
    if (!p->threads_batch.cpus)
        p->threads_batch.cpus = p->threads.cpus;
    p->cpu_level = o->cpu_level;
    p->numa = !strcmp(o->numa, "distribute") ? GR_NUMA_DISTRIBUTE
              : !strcmp(o->numa, "isolate")  ? GR_NUMA_ISOLATE
              : !strcmp(o->numa, "numactl")  ? GR_NUMA_NUMACTL
                                             : GR_NUMA_NONE;
}

int gr_threads_wanted(const struct gr_options *o)
{
    struct gr_thread_words words;
    struct gr_model_params p = gr_model_params_default();
    if (o->threads > 0)
        return o->threads;
    gr_thread_options(o, &words, &p);
    return gr_processors(&p.threads);
}
