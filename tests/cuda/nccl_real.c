/* The real NCCL, where there is one: it is opened, says its version, gives an id that reaches the
 * other processes over the lane of orders, and says cleanly that a machine without a GPU has none.
 * Alone, or under mpirun. libnccl.so.2 is searched as the loader does, or GPURUN_TEST_NCCL of the
 * environment is its path. Exits 77 where it is not to be had. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cuda/nccl.h"
#include "gpurun.h"
#include "gr/status.h"
#include "link/link.h"

#define SKIPPED 77

static int n_failed;

static void expect(int is, const char *what)
{
    if (is)
        return;
    printf("%s is false: %s\n", what, gr_error_message());
    n_failed++;
}
#define EXPECT(is) expect(is, #is)

/* Rank 0's id, on every rank. The seconds that took. */
static double exchange(struct gr_world *w, struct nccl_id *id)
{
    int64_t start = gr_now_ns(), until = start + (int64_t)20 * 1000000000;
    for (int32_t r = 1; r < w->n_rank; r++) {
        struct gr_link *l = NULL;
        struct gr_request request = {0};
        if (w->rank != 0 && w->rank != r)
            continue;
        EXPECT(gr_world_link(w, GR_LANE_COMMAND, 0, r, &l) == 0);
        if (w->rank == 0)
            EXPECT(gr_link_send(l, id, sizeof *id, &request) == 0);
        else
            EXPECT(gr_link_recv(l, id, sizeof *id, &request) == 0);
        EXPECT(gr_link_wait(l, &request, until) == 0);
        gr_link_close(&l);
    }
    return gr_seconds_since(start);
}

/* A communicator of all: an error at once where there is no GPU, no hang, no communicator. */
static void refused(const struct gr_nccl *nccl, int version, struct nccl_id id, int32_t rank,
                    int32_t n_rank)
{
    struct nccl_config config = gr_nccl_config(version, "gpurun");
    nccl_comm comm = NULL;
    int64_t start = gr_now_ns();
    int result = nccl->init(&comm, n_rank, id, rank, &config);
    if (result == NCCL_OK || result == NCCL_IN_PROGRESS) {
        printf("rank %d: there is a GPU here; tests of links are those of scripts/gpu/suite\n",
               rank);
        (void)nccl->abort(comm);
        return;
    }
    EXPECT(!comm);
    EXPECT(gr_nccl_said(nccl, comm, "CUDA0", GR_NCCL_init, result) == GR_E_DEVICE);
    EXPECT(strncmp(gr_error_message(), "CUDA0: ncclCommInitRankConfig: ", 31) == 0);
    EXPECT(strstr(gr_error_message(), "nvidia-smi") != NULL);
    printf("rank %d: after %.1f ms: %s\n", rank, gr_seconds_since(start) * 1e3, gr_error_message());
}

int main(void)
{
    const char *path = getenv("GPURUN_TEST_NCCL");
    struct gr_world *w = NULL;
    struct gr_nccl nccl;
    struct nccl_id id = {{0}};
    int version;
    int64_t start = gr_now_ns();
    if (gr_nccl_load(&nccl, path ? path : "libnccl.so.2", &version)) {
        printf("skipped: %s\n", gr_error_message());
        return SKIPPED;
    }
    double load = gr_seconds_since(start), exchanged = 0;
    EXPECT(gr_world_processes(&w) == 0);
    int32_t rank = w ? w->rank : 0, n_rank = w ? w->n_rank : 1;
    start = gr_now_ns();
    if (rank == 0)
        EXPECT(nccl.unique_id(&id) == NCCL_OK);
    double made = gr_seconds_since(start);
    if (w)
        exchanged = exchange(w, &id);
    EXPECT(memcmp(&id, &(struct nccl_id){{0}}, sizeof id) != 0);
    printf(
        "rank %d of %d: NCCL %d opened in %.1f ms, id made in %.1f ms and exchanged in %.2f ms\n",
        rank, n_rank, version, load * 1e3, made * 1e3, exchanged * 1e3);
    refused(&nccl, version, id, rank, n_rank);
    return gr_world_close(&w, n_failed != 0);
}
