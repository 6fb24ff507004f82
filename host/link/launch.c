/* Finds the launcher of this process and the MPI plug-in, and opens the world of processes. */
#include <dlfcn.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "link/heartbeat.h"
#include "link/process.h"

#define PLUGIN "libgpurun_mpi.so"

static int32_t number(const char *text)
{
    char *end;
    long n = text ? strtol(text, &end, 10) : -1;
    return !text || end == text || *end || n < 0 || n > INT32_MAX ? -1 : (int32_t)n;
}

struct gr_launch gr_launch_find(const char *(*get)(const char *name))
{
    /* Variables of Open MPI; MPICH and relatives (Hydra); MVAPICH; Slurm's srun (a batch script has
     * the first of the two as well, but not the second); any PMIx launcher. */
    static const struct {
        const char *by, *rank, *n_rank;
    } known[] = {
        {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
        {"mpirun", "PMI_RANK", "PMI_SIZE"},
        {"mpirun", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"},
        {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"},
        {"a PMIx launcher", "PMIX_RANK", NULL},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        int32_t rank = number(get(known[i].rank));
        int32_t n_rank = known[i].n_rank ? number(get(known[i].n_rank)) : 0;
        if (rank < 0 || n_rank < 0 || (n_rank && rank >= n_rank))
            continue;
        const char *by = n_rank == 1 ? NULL : known[i].by;
        return (struct gr_launch){by, by ? rank : 0, by ? n_rank : 1};
    }
    return (struct gr_launch){NULL, 0, 1};
}

/* ---- the plug-in ---- */

/* The folder of the file with this code: of the library, or of the program it is linked into. */
static int own_folder(char *buf, size_t n)
{
    static const char here = 0;
    Dl_info info;
    char path[PATH_MAX];
    const char *file = dladdr(&here, &info) ? info.dli_fname : "";
    if (!strchr(file, '/') || !realpath(file, path)) { /* a program found by PATH */
        ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
        if (length < 0)
            return -1;
        path[length] = 0;
    }
    char *slash = strrchr(path, '/');
    if (!slash || (size_t)(slash - path) >= n)
        return -1;
    *slash = 0;
    snprintf(buf, n, "%s", path);
    return 0;
}

static int check_plugin(void *handle, const char *path, const struct gr_mpi **out)
{
    gr_mpi_plugin_fn *fn;
    void *symbol = dlsym(handle, GR_MPI_SYMBOL);
    memcpy(&fn, &symbol, sizeof fn);
    const struct gr_mpi *mpi = fn ? fn() : NULL;
    if (!mpi || mpi->abi != GR_MPI_ABI)
        return gr_fail(GR_E_IO, "%s: is of another version of gpurun; install both together", path);
    *out = mpi;
    return 0;
}

int gr_mpi_open(const struct gr_mpi **out, const struct gr_launch *launch)
{
    /* Relative to the own folder: of a build; of an installed library; of an installed program. */
    static const char *const places[] = {"", "/gpurun", "/../" GR_LIBDIR "/gpurun"};
    char own[PATH_MAX], path[PATH_MAX + 64];
    bool know_own = own_folder(own, sizeof own) == 0;
    *out = NULL;
    for (size_t i = 0; i <= sizeof places / sizeof *places; i++) {
        bool last = i == sizeof places / sizeof *places;
        if (!last && !know_own)
            continue;
        if (last)
            snprintf(path, sizeof path, "%s/gpurun/" PLUGIN, GR_FULL_LIBDIR);
        else
            snprintf(path, sizeof path, "%s%s/" PLUGIN, own, places[i]);
        if (access(path, F_OK) != 0)
            continue;
        /* RTLD_GLOBAL: some MPIs open parts of themselves, which need MPI's symbols. */
        void *handle = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
        if (!handle)
            return gr_fail(GR_E_IO,
                           "%s has started %d processes, but MPI cannot be used: %s; is the MPI "
                           "that gpurun was built with installed?",
                           launch->by, launch->n_rank, dlerror());
        gr_log(GR_LOG_DEBUG, "mpi: %s", path);
        return check_plugin(handle, path, out);
    }
    return gr_fail(GR_E_IO,
                   "%s has started %d processes, but this gpurun was built without MPI (there is "
                   "no " PLUGIN " in %s and %s/gpurun): install MPI's development package and "
                   "build again with -DGPURUN_MPI=ON, or start one process",
                   launch->by, launch->n_rank, know_own ? own : "its folder", GR_FULL_LIBDIR);
}

/* ---- the world with its heartbeat ---- */

static const char *environment(const char *name)
{
    return getenv(name);
}

#define START_NS (30 * (int64_t)1000000000) /* time limit for all ranks to get to an exchange */

/* First facts that ranks exchange. */
struct fact {
    char version[16];  /* of gpurun */
    char machine[128]; /* distinguishes machines of the same name */
    struct gr_rank rank;
};

/* Identifies the machine by boot, network namespace and name, since containers and copies of a
 * machine often have the same name. Cut short where it is too long. */
static void describe_machine(char *buf, size_t n, const char *host)
{
    char boot[40] = "", net[40] = "";
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (f && !fgets(boot, sizeof boot, f))
        boot[0] = 0;
    if (f)
        fclose(f);
    if (readlink("/proc/self/ns/net", net, sizeof net - 1) < 0)
        net[0] = 0;
    snprintf(buf, n, "%.36s %.39s %.49s", boot, net, host);
}

/* Numbers the processes of each machine, in the order of their ranks. */
static void number_locally(struct gr_rank *ranks, const struct fact *facts, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        ranks[i].local = ranks[i].n_local = 0;
        for (int32_t k = 0; k < n; k++)
            if (strncmp(facts[i].machine, facts[k].machine, sizeof facts[i].machine) == 0) {
                ranks[i].local += k < i;
                ranks[i].n_local++;
            }
    }
}

static int exchange_facts(struct gr_world *w)
{
    struct fact mine = {.rank = w->ranks[w->rank]},
                *all = gr_calloc((size_t)w->n_rank, sizeof *all);
    char name[128];
    if (!all)
        return GR_E_NOMEM_HOST;
    snprintf(mine.version, sizeof mine.version, "%s", GR_VERSION);
    describe_machine(mine.machine, sizeof mine.machine, mine.rank.host);
    int rc = gr_world_gather(w, &mine, all, sizeof mine, gr_now_ns() + START_NS);
    for (int32_t i = 0; i < w->n_rank && !rc; i++) {
        w->ranks[i] = all[i].rank;
        w->ranks[i].host[sizeof w->ranks[i].host - 1] = 0;
        if (strncmp(all[i].version, mine.version, sizeof mine.version) != 0)
            rc = gr_fail(GR_E_IO, "%s runs gpurun %.16s, this is %s: all need the same version",
                         gr_world_name(w, i, name, sizeof name), all[i].version, mine.version);
    }
    if (!rc)
        number_locally(w->ranks, all, w->n_rank);
    gr_free(all);
    return rc;
}

/* Starts the heartbeat: rank 0 sends its addresses to the others. */
static int start_heartbeat(struct gr_world *w)
{
    struct gr_heartbeat_hello mine, *all = gr_calloc((size_t)w->n_rank, sizeof *all);
    if (!all)
        return GR_E_NOMEM_HOST;
    int rc = gr_heartbeat_new(&w->heartbeat, w, NULL, &mine);
    int exchanged = gr_world_gather(w, &mine, all, sizeof mine, gr_now_ns() + START_NS);
    if (!rc)
        rc = exchanged;
    if (!rc)
        rc = gr_heartbeat_start(w->heartbeat, &all[0]);
    gr_free(all);
    return rc;
}

int gr_world_processes(struct gr_world **out)
{
    struct gr_launch launch = gr_launch_find(environment);
    const struct gr_mpi *mpi;
    *out = NULL;
    if (!launch.by)
        return 0;
    int rc = gr_mpi_open(&mpi, &launch);
    if (!rc)
        rc = gr_world_mpi(out, mpi, &launch);
    if (!rc && *out)
        rc = exchange_facts(*out);
    if (!rc && *out)
        rc = start_heartbeat(*out);
    if (rc && *out) {
        gr_world_lose(*out, (*out)->rank, gr_error()); /* so that closing waits for nobody */
        gr_world_close(out, gr_status_exit(rc));
    }
    return rc;
}

/* ---- gpurun.h ---- */

int gr_world_open(struct gr_world **out)
{
    return gr_world_processes(out);
}

int gr_world_close(struct gr_world **world, int code)
{
    if (!world || !*world)
        return code;
    code = gr_heartbeat_leave(&(*world)->heartbeat, code);
    (*world)->api->close(world);
    return code;
}
