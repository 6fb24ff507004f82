/* libgpurun_mpi.so: the interface of host/link/mpi/plugin.h, with MPI 3. */
#include "link/mpi/plugin.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static MPI_Comm comm = MPI_COMM_NULL;
static int ours; /* MPI was started by this plug-in */

_Static_assert(sizeof(MPI_Request) <= sizeof(struct gr_mpi_request), "a request fits");

static MPI_Request get(const struct gr_mpi_request *r)
{
    MPI_Request request;
    memcpy(&request, r, sizeof request);
    return request;
}

static void put(struct gr_mpi_request *r, MPI_Request request)
{
    memcpy(r, &request, sizeof request);
}

static void text(int error, char *buf, size_t n)
{
    char all[MPI_MAX_ERROR_STRING + 1] = "";
    int length = 0;
    if (MPI_Error_string(error, all, &length) != MPI_SUCCESS)
        snprintf(all, sizeof all, "error %d", error);
    snprintf(buf, n, "%s", all);
}

/* Raises the eager limit of Open MPI's shared memory (btl vader of 4.x, sm of 5), so that the
 * activations of a few tokens, 8 to 64 KiB, are sent at once: beyond the default of 4 KiB the
 * receiver answers first, which takes several calls on both sides. The user's settings stay. */
static void prefer_eager(void)
{
    setenv("OMPI_MCA_btl_vader_eager_limit", "69632", 0);
    setenv("OMPI_MCA_btl_sm_eager_limit", "69632", 0);
}

/* Starts MPI, for use by several threads: gpurun's own calls are made one at a time, but threads of
 * the program may use MPI as well. */
static int start_mpi(char *why, size_t n)
{
    int is_started = 0, is_over = 0, level = MPI_THREAD_SINGLE, rc = MPI_SUCCESS;
    MPI_Initialized(&is_started);
    MPI_Finalized(&is_over);
    if (is_over) {
        snprintf(why, n, "MPI has been ended in this process already and cannot be started twice");
        return 1;
    }
    if (!is_started) {
        prefer_eager();
        rc = MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
    } else {
        rc = MPI_Query_thread(&level);
    }
    ours = !is_started && rc == MPI_SUCCESS;
    if (rc != MPI_SUCCESS) {
        snprintf(why, n, "MPI could not be started (error %d)", rc);
    } else if (level < MPI_THREAD_SERIALIZED) {
        snprintf(why, n,
                 "this MPI does not allow calls from several threads (level %d, %d is "
                 "needed): use one that was built with threads",
                 level, MPI_THREAD_SERIALIZED);
        rc = 1;
    }
    return rc;
}

static void stop(void)
{
    int is_over = 0;
    if (comm != MPI_COMM_NULL)
        MPI_Comm_free(&comm);
    MPI_Finalized(&is_over);
    if (ours && !is_over)
        MPI_Finalize();
    ours = 0;
}

static int start(int *rank, int *n_rank, char *why, size_t n)
{
    if (comm != MPI_COMM_NULL) {
        snprintf(why, n, "this process is in a world already: close that first");
        return 1;
    }
    int rc = start_mpi(why, n);
    if (rc)
        return rc;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    rc = MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    if (!rc)
        rc = MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    if (!rc)
        rc = MPI_Comm_rank(comm, rank);
    if (!rc)
        rc = MPI_Comm_size(comm, n_rank);
    if (rc)
        text(rc, why, n);
    return rc;
}

static int send(const void *buf, int n, int to, int tag, struct gr_mpi_request *r)
{
    MPI_Request request = MPI_REQUEST_NULL;
    int rc = MPI_Isend(buf, n, MPI_BYTE, to, tag, comm, &request);
    put(r, request);
    return rc;
}

static int recv(void *buf, int n, int from, int tag, struct gr_mpi_request *r)
{
    MPI_Request request = MPI_REQUEST_NULL;
    int rc = MPI_Irecv(buf, n, MPI_BYTE, from, tag, comm, &request);
    put(r, request);
    return rc;
}

static int probe(int from, int tag, int *found, int *n)
{
    MPI_Status status;
    int rc = MPI_Iprobe(from, tag, comm, found, &status);
    return rc || !*found ? rc : MPI_Get_count(&status, MPI_BYTE, n);
}

static int gather(const void *mine, void *all, int n, struct gr_mpi_request *r)
{
    MPI_Request request = MPI_REQUEST_NULL;
    int rc = MPI_Iallgather(mine, n, MPI_BYTE, all, n, MPI_BYTE, comm, &request);
    put(r, request);
    return rc;
}

static int barrier(struct gr_mpi_request *r)
{
    MPI_Request request = MPI_REQUEST_NULL;
    int rc = MPI_Ibarrier(comm, &request);
    put(r, request);
    return rc;
}

static int test(struct gr_mpi_request *r, int *done, int *n)
{
    MPI_Request request = get(r);
    MPI_Status status;
    int class = 0, rc = MPI_Test(&request, done, &status);
    put(r, request);
    *n = 0;
    if (rc)
        MPI_Error_class(rc, &class);
    else if (*done)
        rc = MPI_Get_count(&status, MPI_BYTE, n);
    return class == MPI_ERR_TRUNCATE ? GR_MPI_TRUNCATED : rc;
}

static int cancel(struct gr_mpi_request *r)
{
    MPI_Request request = get(r);
    int rc = MPI_Cancel(&request);
    put(r, request);
    return rc;
}

gr_mpi_plugin_fn gr_mpi_plugin;

__attribute__((visibility("default"))) const struct gr_mpi *gr_mpi_plugin(void)
{
    static const struct gr_mpi table = {
        .abi = GR_MPI_ABI,
        .start = start,
        .stop = stop,
        .send = send,
        .recv = recv,
        .probe = probe,
        .gather = gather,
        .barrier = barrier,
        .test = test,
        .cancel = cancel,
        .text = text,
    };
    return &table;
}
