/* The user's thread parameters as settings of the CPU backend. */
#include <string.h>

#include "gr/status.h"
#include "model/model.h"

static int read_one(struct gr_cpu_threads *out, const struct gr_thread_params *p)
{
    *out = (struct gr_cpu_threads){.strict = p->strict, .prio = p->prio, .poll_us = p->poll};
    if (p->cpus && (!gr_cpus_parse(&out->cpus, p->cpus) || !gr_cpus_count(&out->cpus)))
        return gr_fail(GR_E_INVALID,
                       "processors \"%s\": expected numbers, ranges and masks below %d, as in "
                       "0-3,8,0xF0",
                       p->cpus, GR_CPUS_MAX);
    out->chosen = p->cpus;
    if (p->prio < -1 || p->prio > 3)
        return gr_fail(GR_E_INVALID, "priority %d: -1 to 3 are possible", p->prio);
    return 0;
}

int gr_model_threads(struct gr_cpu_use *out, const struct gr_model_params *p)
{
    static const enum gr_cpu_numa numa[] = {[GR_NUMA_NONE] = GR_CPU_NUMA_OFF,
                                            [GR_NUMA_DISTRIBUTE] = GR_CPU_NUMA_DISTRIBUTE,
                                            [GR_NUMA_ISOLATE] = GR_CPU_NUMA_ISOLATE,
                                            [GR_NUMA_NUMACTL] = GR_CPU_NUMA_OFF};
    int rc = read_one(&out->decode, &p->threads);
    if (!rc)
        rc = read_one(&out->batch, &p->threads_batch);
    if (!rc && (uint32_t)p->numa > GR_NUMA_NUMACTL)
        rc = gr_fail(GR_E_INVALID, "numa %d: 0 to %d are possible", (int)p->numa, GR_NUMA_NUMACTL);
    out->numa = rc ? GR_CPU_NUMA_OFF : numa[p->numa];
    return rc;
}

const char *gr_cpu_instructions(const char *cpu_level)
{
    enum gr_cpu_level level;
    return gr_cpu_level_find(&level, cpu_level) ? NULL : gr_cpu_level_name(level);
}

int32_t gr_processors(const struct gr_thread_params *threads)
{
    struct gr_cpu_threads t = {.chosen = false};
    return threads && read_one(&t, threads) ? 1 : gr_cpu_processors(&t);
}
