/* The launcher that started this process, from the variables that launchers set. */
#include <string.h>

#include <criterion/criterion.h>

#include "link/process.h"

static const char *const *variables; /* name, value, ..., NULL */

static const char *get(const char *name)
{
    for (const char *const *v = variables; *v; v += 2)
        if (strcmp(v[0], name) == 0)
            return v[1];
    return NULL;
}

static void expect(const char *const *v, const char *by, int32_t rank, int32_t n_rank)
{
    variables = v;
    struct gr_launch found = gr_launch_find(get);
    cr_assert(by ? found.by && strcmp(found.by, by) == 0 : !found.by, "%s=%s: by %s", v[0], v[1],
              found.by);
    cr_assert(found.rank == rank && found.n_rank == n_rank, "%s=%s: rank %d of %d", v[0], v[1],
              found.rank, found.n_rank);
}
#define EXPECT(by, rank, n_rank, ...)                                                              \
    expect((const char *const[]){__VA_ARGS__, NULL}, by, rank, n_rank)

Test(launch, who_has_started_it)
{
    EXPECT(NULL, 0, 1, "HOME", "/root");
    EXPECT("mpirun", 1, 4, "OMPI_COMM_WORLD_RANK", "1", "OMPI_COMM_WORLD_SIZE", "4");
    EXPECT("mpirun", 0, 2, "PMI_RANK", "0", "PMI_SIZE", "2");
    EXPECT("srun", 3, 8, "SLURM_PROCID", "3", "SLURM_STEP_NUM_TASKS", "8");
    EXPECT("a PMIx launcher", 5, 0, "PMIX_RANK", "5");
    /* Open MPI by srun: Slurm's variables say how many there are. */
    EXPECT("srun", 1, 2, "PMIX_RANK", "1", "SLURM_PROCID", "1", "SLURM_STEP_NUM_TASKS", "2");
    /* One process is alone, whoever has started it. */
    EXPECT(NULL, 0, 1, "OMPI_COMM_WORLD_RANK", "0", "OMPI_COMM_WORLD_SIZE", "1");
    EXPECT(NULL, 0, 1, "SLURM_PROCID", "0", "SLURM_STEP_NUM_TASKS", "1");
    /* A batch script of Slurm without srun. */
    EXPECT(NULL, 0, 1, "SLURM_PROCID", "0", "SLURM_NTASKS", "16");
    /* Variables that make no sense are no launcher's. */
    EXPECT(NULL, 0, 1, "PMI_RANK", "x", "PMI_SIZE", "2");
    EXPECT(NULL, 0, 1, "PMI_RANK", "", "PMI_SIZE", "2");
    EXPECT(NULL, 0, 1, "PMI_RANK", "2", "PMI_SIZE", "2");
    EXPECT(NULL, 0, 1, "PMI_RANK", "-1", "PMI_SIZE", "2");
    EXPECT(NULL, 0, 1, "PMI_RANK", "99999999999", "PMI_SIZE", "2");
}
